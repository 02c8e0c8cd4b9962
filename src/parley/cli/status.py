"""`parley status`: how a running server is."""

from __future__ import annotations

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
        for index, why in found["waiting_workers"].items():
            typer.echo(f"worker {index}: {why}")
        workers = server.ask("GET", "/workers")["workers"]
        show_table(
            ("worker", "state", "slots", "free", "model", "device", "address"),
            (
                (
                    one["worker_id"],
                    "draining" if one["draining"] else one["status"],
                    one["slots"],
                    one["free_slots"],
                    one["model"],
                    one["gpu_id"],
                    one["url"],
                )
                for one in workers
            ),
            none="No workers.",
        )
    if not ready["ready"]:
        raise typer.Exit(1)
