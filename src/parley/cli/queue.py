"""`parley queue`: who waits at a running server."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

import typer

from parley.cli.remote import RemoteServer, Titled, VerbReport, reports


@reports
def queue(
    server: RemoteServer,
    cancel: Annotated[
        str | None, typer.Option(metavar="TICKET", help="Remove this ticket from the queue.")
    ] = None,
) -> VerbReport:
    """Show who is waiting and for how long, or remove a client from the queue."""
    if cancel is not None:
        found = server.ask("DELETE", f"/api/queue/{quote(cancel, safe='')}")
        is_out = bool(found["success"])
        said = "cancelled" if is_out else "There is no such ticket."
        return VerbReport(data=found, lines=[said], exit_code=0 if is_out else 1)
    found = server.ask("GET", "/api/queue")
    return VerbReport(
        data=found,
        table=Titled(
            ("position", "ticket", "kind", "waits for another s"),
            [
                (one["position"], one["ticket_id"], one["task_type"], one["estimated_wait_s"])
                for one in found["items"]
            ],
            none="The queue is empty.",
        ),
    )
