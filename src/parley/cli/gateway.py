"""`parley gateway`: meet clients; workers dial in from this or other hosts."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import typer
import uvloop

from parley import logs
from parley.cli import flags
from parley.gateway.main import Gateway
from parley.settings import Settings, load


def gateway(
    http: flags.Http = False,
    port: flags.Port = None,
    host: flags.Host = None,
    config: flags.Config = None,
    ssl_certfile: Annotated[
        Path | None, typer.Option(help="Certificate; made on first start if absent.")
    ] = None,
    ssl_keyfile: Annotated[Path | None, typer.Option(help="Its private key.")] = None,
    max_queue_size: Annotated[int | None, typer.Option(help="Places in the queue.")] = None,
    timeout: Annotated[
        float | None, typer.Option(help="Seconds until POST /api/chat gives up.")
    ] = None,
    lang: Annotated[str | None, typer.Option(help="Language the pages start in: zh or en.")] = None,
    log_level: flags.LogLevel = None,
) -> None:
    """Run the gateway alone. Start workers with `parley worker`, here or elsewhere."""
    settings = load(
        config,
        {
            "gateway.http": http or None,
            "gateway.port": port,
            "gateway.host": host,
            "gateway.ssl_certfile": ssl_certfile,
            "gateway.ssl_keyfile": ssl_keyfile,
            "gateway.lang": lang,
            "queue.max_size": max_queue_size,
            "queue.request_timeout_s": timeout,
            "log.level": log_level,
        },
    )
    logs.configure(level=settings.log.level, style=settings.log.format)
    uvloop.run(_run(settings))


async def _run(settings: Settings) -> None:
    running = Gateway(settings)
    with ending_on_signals(running.stop, running.stop_now):
        await running.serve(lambda: typer.echo(f"gateway ready: {running.url}"))


@contextlib.contextmanager
def ending_on_signals(stop: Callable[[], object], stop_now: Callable[[], object]) -> Iterator[None]:
    """Ctrl-C and SIGTERM end gracefully, a second one at once."""
    loop = asyncio.get_running_loop()
    times = 0

    def asked() -> None:
        nonlocal times
        times += 1
        if times == 1:
            typer.echo("\nending; once more ends at once", err=True)
            stop()
        else:
            stop_now()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, asked)
    try:
        yield
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
