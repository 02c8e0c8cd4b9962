"""`parley gateway`: serve clients; workers connect from this host or others."""

from __future__ import annotations

import gc
import socket
from collections.abc import Callable

import typer
import uvloop

from parley.cli import flags
from parley.cli.announce import announce, set_up
from parley.cli.signals import ending_on_signals
from parley.executor.base import RESTART_EXIT_CODE
from parley.gateway.main import Gateway
from parley.settings import Settings


@flags.sets(
    *("gateway.http", "gateway.port", "gateway.host", "gateway.ssl_certfile"),
    *("gateway.ssl_keyfile", "storage.data_dir", "gateway.drain_timeout_s", "queue.max_size"),
    *("queue.request_timeout_s", "gateway.lang", "log.level", "log.format"),
)
def gateway(read: flags.Reader) -> None:
    """Run the gateway alone. Start workers with `parley worker`, here or elsewhere."""
    settings = set_up(read)
    if uvloop.run(_run(settings, read)):
        raise typer.Exit(RESTART_EXIT_CODE)


async def _run(settings: Settings, read: Callable[[], Settings]) -> bool:
    """Run the gateway; True if it should restart as a standby of the gateway that replaced it."""
    running = Gateway(settings)
    running.reread_by(read, settings)
    running.keeps_sessions = True
    with ending_on_signals(
        running.stop,
        running.stop_now,
        drain=lambda: running.stop(settings.gateway.drain_timeout_s),
        reload=running.reload,
    ):
        await running.serve(lambda: _say_ready(running))
    announce("ended", "ended")
    return running.was_replaced


def _say_ready(running: Gateway) -> None:
    # Modules stay in memory. Scanning them for garbage blocks all connections for a twentieth of a
    # second.
    gc.freeze()
    announce("ready", f"gateway ready: {running.url}", url=running.url)
    if running.fingerprint is not None:
        announce(
            "workers_may_join",
            "workers on other hosts: "
            f"parley worker --gateway wss://{socket.gethostname()}:{running.port} "
            f"--fingerprint {running.fingerprint} --host 0.0.0.0",
        )
