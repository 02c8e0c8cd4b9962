"""`parley gateway`: meet clients; workers dial in from this or other hosts."""

from __future__ import annotations

import functools
import gc
import socket
from collections.abc import Callable
from typing import Annotated

import typer
import uvloop

from parley import logs
from parley.cli import flags
from parley.cli.announce import announce
from parley.cli.signals import ending_on_signals
from parley.executor.base import RESTART_EXIT_CODE
from parley.gateway.main import Gateway
from parley.private import make_files_private
from parley.settings import Settings, load


def gateway(
    http: flags.Http = False,
    port: flags.Port = None,
    host: flags.Host = None,
    config: flags.Config = None,
    ssl_certfile: flags.Certfile = None,
    ssl_keyfile: flags.Keyfile = None,
    data_dir: flags.DataDir = None,
    drain_timeout: flags.DrainTimeout = None,
    max_queue_size: Annotated[
        int | None, typer.Option(help="Maximum number of clients in the queue.")
    ] = None,
    timeout: Annotated[
        float | None, typer.Option(help="Seconds after which POST /api/chat fails.")
    ] = None,
    lang: Annotated[
        str | None, typer.Option(help="Initial language of the pages: zh or en.")
    ] = None,
    log_level: flags.LogLevel = None,
    log_format: flags.LogFormat = None,
) -> None:
    """Run the gateway alone. Start workers with `parley worker`, here or elsewhere."""
    read = functools.partial(
        load,
        config,
        {
            "gateway.http": http or None,
            "gateway.port": port,
            "gateway.host": host,
            "gateway.ssl_certfile": ssl_certfile,
            "gateway.ssl_keyfile": ssl_keyfile,
            "gateway.lang": lang,
            "gateway.drain_timeout_s": drain_timeout,
            "log.format": log_format,
            "queue.max_size": max_queue_size,
            "queue.request_timeout_s": timeout,
            "storage.data_dir": data_dir,
            "log.level": log_level,
        },
    )
    settings = read()
    logs.configure(level=settings.log.level, style=settings.log.format)
    logs.tell_crashes()
    make_files_private()
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
    announce("ended")
    return running.was_replaced


def _say_ready(running: Gateway) -> None:
    # Modules stay. Looking through them for garbage stops every connection for a twentieth of a
    # second.
    gc.freeze()
    announce(f"gateway ready: {running.url}", url=running.url)
    if running.fingerprint is not None:
        announce(
            "workers on other hosts: "
            f"parley worker --gateway wss://{socket.gethostname()}:{running.port} "
            f"--fingerprint {running.fingerprint} --host 0.0.0.0"
        )
