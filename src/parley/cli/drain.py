"""`parley drain`: keep new work away from a worker of a running server."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

import typer

from parley.cli.remote import RemoteServer, VerbReport, reports


@reports
def drain(
    server: RemoteServer,
    worker: Annotated[str, typer.Argument(help="Worker id, as `parley status` shows it.")],
    off: Annotated[bool, typer.Option("--off", help="Admit new work again.")] = False,
    restart: Annotated[
        bool, typer.Option("--restart", help="End its sessions and restart it.")
    ] = False,
) -> VerbReport:
    """Stop giving new work to a worker. Its sessions continue, or move to another worker."""
    path = f"/api/admin/workers/{quote(worker, safe='')}"
    if restart:
        return VerbReport(data=server.ask("POST", f"{path}/restart"), lines=[f"{worker} restarts."])
    said = f"{worker} takes work again." if off else f"{worker} gets no new work."
    return VerbReport(data=server.ask("PUT", path, {"draining": not off}), lines=[said])
