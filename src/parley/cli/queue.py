"""`parley queue`: who waits at a running server."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

import typer

from parley.cli import reach
from parley.cli.remote import Json, RemoteServer, show_json, show_table


def queue(
    cancel: Annotated[
        str | None, typer.Option(metavar="TICKET", help="Take this ticket out of the queue.")
    ] = None,
    as_json: Json = False,
    url: reach.Url = None,
    insecure: reach.Insecure = False,
    ca: reach.Ca = None,
    token: reach.Token = None,
) -> None:
    """Show who waits, and for how long; or take a client out of the queue."""
    server = RemoteServer.of(url, insecure=insecure, ca=ca, token=token)
    if cancel is not None:
        found = server.ask("DELETE", f"/api/queue/{quote(cancel, safe='')}")
        if as_json:
            show_json(found)
        else:
            typer.echo("cancelled" if found["success"] else "There is no such ticket.")
        if not found["success"]:
            raise typer.Exit(1)
        return
    found = server.ask("GET", "/api/queue")
    if as_json:
        show_json(found)
        return
    show_table(
        ("position", "ticket", "kind", "waits for another s"),
        (
            (one["position"], one["ticket_id"], one["task_type"], one["estimated_wait_s"])
            for one in found["items"]
        ),
        none="Nobody waits.",
    )
