"""`parley drain`: keep new work away from a worker of a running server."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

import typer

from parley.cli import reach
from parley.cli.remote import Json, RemoteServer, show_json


def drain(
    worker: Annotated[str, typer.Argument(help="Its id, as `parley status` shows it.")],
    off: Annotated[bool, typer.Option("--off", help="Let new work in again.")] = False,
    restart: Annotated[
        bool, typer.Option("--restart", help="End what runs there, and start it again.")
    ] = False,
    as_json: Json = False,
    url: reach.Url = None,
    insecure: reach.Insecure = False,
    ca: reach.Ca = None,
    token: reach.Token = None,
) -> None:
    """Keep new work away from a worker. Its sessions continue, or move to another worker."""
    server = RemoteServer.of(url, insecure=insecure, ca=ca, token=token)
    path = f"/api/admin/workers/{quote(worker, safe='')}"
    if restart:
        found = server.ask("POST", f"{path}/restart")
        said = f"{worker} restarts."
    else:
        found = server.ask("PUT", path, {"draining": not off})
        said = f"{worker} takes work again." if off else f"{worker} gets no new work."
    if as_json:
        show_json(found)
    else:
        typer.echo(said)
