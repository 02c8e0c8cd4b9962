"""`parley usage`: what the keys of a running server used by day."""

from __future__ import annotations

from typing import Annotated

import typer

from parley.cli import reach
from parley.cli.remote import Json, RemoteServer, show_json, show_table


def usage(
    days: Annotated[int, typer.Option(min=1, max=3660, help="How far back.")] = 31,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    as_json: Json = False,
    url: reach.Url = None,
    insecure: reach.Insecure = False,
    ca: reach.Ca = None,
    token: reach.Token = None,
) -> None:
    """Show sessions, minutes and generated tokens of each key by day (UTC)."""
    server = RemoteServer.of(url, insecure=insecure, ca=ca, token=token)
    path = "/api/admin/keys/usage"
    if as_csv:
        typer.echo(server.ask("GET", path, days=days, format="csv"), nl=False)
        return
    found = server.ask("GET", path, days=days)
    if as_json:
        show_json(found)
        return
    show_table(
        ("day", "key", "name", "sessions", "minutes", "tokens"),
        (
            (
                one["day"],
                one["key_id"],
                one["name"],
                one["sessions"],
                one["minutes"],
                one["tokens"],
            )
            for one in found["usage"]
        ),
        none="No key was used.",
    )
