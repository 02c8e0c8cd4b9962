"""`parley usage`: what the keys of a running server used by day."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from parley.cli.remote import RemoteServer, Titled, VerbReport, reports

COLUMNS: Final = {
    "day": "day",
    "key_id": "key",
    "name": "name",
    "sessions": "sessions",
    "minutes": "minutes",
    "tokens": "tokens",
}
"""Fields of a row and their titles."""


@reports
def usage(
    server: RemoteServer,
    days: Annotated[int, typer.Option(min=1, max=3660, help="Number of days to show.")] = 31,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
) -> VerbReport:
    """Show sessions, minutes and generated tokens of each key by day (UTC)."""
    path = "/api/admin/keys/usage"
    if as_csv:
        text = server.ask("GET", path, days=days, format="csv")
        return VerbReport(data=text, lines=[text.removesuffix("\n")])
    found = server.ask("GET", path, days=days)
    rows = [[one[field] for field in COLUMNS] for one in found["usage"]]
    return VerbReport(data=found, table=Titled([*COLUMNS.values()], rows, none="No key was used."))
