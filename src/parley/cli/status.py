"""`parley status`: how a running server is."""

from __future__ import annotations

from typing import Any

from parley.cli.remote import RemoteServer, Titled, VerbReport, reports


@reports
def status(server: RemoteServer) -> VerbReport:
    """Show whether a server takes sessions, its workers and its queue.

    Ends with 1 when it does not take sessions (`/ready`).
    """
    ready = server.ask("GET", "/ready")
    found = server.ask("GET", "/status")
    workers = server.ask("GET", "/workers")["workers"]
    return VerbReport(
        data={**ready, **found},
        lines=[
            f"ready: {'yes' if ready['ready'] else 'no. ' + ready['why']}",
            f"queue: {found['queue_length']} of {found['max_queue_size']}",
            f"version: {_version(found)}",
            *(f"worker {index}: {why}" for index, why in found["waiting_workers"].items()),
            *(
                f"{one['worker_id']}: the gateway cannot connect to {one['url'] or 'it'}. "
                "Check `parley worker --advertise` and the firewall."
                for one in workers
                if one.get("unreachable")
            ),
        ],
        table=Titled(
            ("worker", "state", "slots", "free", "model", "device", "version", "address"),
            [
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
            ],
            none="No workers.",
        ),
        exit_code=0 if ready["ready"] else 1,
    )


def _version(found: dict[str, Any]) -> str:
    return f"{found['version']} ({found['build']})" if found.get("build") else found["version"]


def _state(worker: dict[str, Any]) -> str:
    if worker.get("unreachable"):
        return "unreachable"
    return "draining" if worker["draining"] else str(worker["status"])
