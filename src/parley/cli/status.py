"""`parley status`: how a running server is."""

from __future__ import annotations

from typing import Any

import typer

from parley.cli import reach
from parley.cli.remote import Json, RemoteServer, show_json, show_table


def status(
    as_json: Json = False,
    url: reach.Url = None,
    insecure: reach.Insecure = False,
    ca: reach.Ca = None,
    token: reach.Token = None,
) -> None:
    """Show whether a server takes sessions, its workers and its queue.

    Ends with 1 when it does not take sessions (`/ready`).
    """
    server = RemoteServer.of(url, insecure=insecure, ca=ca, token=token)
    ready = server.ask("GET", "/ready")
    found = server.ask("GET", "/status")
    if as_json:
        show_json({**ready, **found})
    else:
        typer.echo(f"ready: {'yes' if ready['ready'] else 'no. ' + ready['why']}")
        typer.echo(f"queue: {found['queue_length']} of {found['max_queue_size']}")
        typer.echo(f"version: {_version(found)}")
        for index, why in found["waiting_workers"].items():
            typer.echo(f"worker {index}: {why}")
        workers = server.ask("GET", "/workers")["workers"]
        for one in workers:
            if one.get("unreachable"):
                typer.echo(
                    f"{one['worker_id']}: the gateway cannot connect to {one['url'] or 'it'}. "
                    "Check `parley worker --advertise` and the firewall."
                )
        show_table(
            ("worker", "state", "slots", "free", "model", "device", "version", "address"),
            (
                (
                    one["worker_id"],
                    _state(one),
                    one["slots"],
                    one["free_slots"],
                    one["model"],
                    one["gpu_id"],
                    _version(one),
                    one["url"],
                )
                for one in workers
            ),
            none="No workers.",
        )
    if not ready["ready"]:
        raise typer.Exit(1)


def _version(found: dict[str, Any]) -> str:
    return f"{found['version']} ({found['build']})" if found.get("build") else found["version"]


def _state(worker: dict[str, Any]) -> str:
    if worker.get("unreachable"):
        return "unreachable"
    return "draining" if worker["draining"] else str(worker["status"])
