"""`parley worker`: hold a model and take the sessions that a gateway hands over."""

from __future__ import annotations

from typing import Annotated

import typer
import uvloop

from parley import logs
from parley.cli import flags
from parley.cli.gateway import ending_on_signals
from parley.settings import Settings, load
from parley.worker.main import Worker


def worker(
    gateway: Annotated[
        str | None, typer.Option(help="Gateway to work for, http(s)://host:port.")
    ] = None,
    port: flags.Port = None,
    host: flags.Host = None,
    advertise: Annotated[
        str | None, typer.Option(help="How the gateway reaches this worker, if not host:port.")
    ] = None,
    worker_index: Annotated[
        int | None, typer.Option(min=0, help="Number of this worker on its machine.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Model name, checkpoint folder or hub id.")
    ] = None,
    slots: Annotated[str | None, typer.Option(help="Conversations at once, or auto.")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda or cuda:N.")] = None,
    compile: Annotated[
        bool | None, typer.Option(help="Capture steps as CUDA graphs on a GPU.")
    ] = None,
    vad: Annotated[str | None, typer.Option(help="Voice detector: silero or energy.")] = None,
    pause_timeout: Annotated[
        float | None, typer.Option(help="Seconds a duplex session may stay paused.")
    ] = None,
    config: flags.Config = None,
    log_level: flags.LogLevel = None,
) -> None:
    """Run one worker; `parley serve` does this by itself."""
    settings = load(
        config,
        {
            "worker.gateway_url": gateway,
            "worker.port": port,
            "worker.host": host,
            "worker.advertise_url": advertise,
            "worker.index": worker_index,
            "worker.vad": vad,
            "model.name": model,
            "model.slots": slots,
            "model.device": device,
            "model.compile": compile,
            "limits.pause_s": pause_timeout,
            "log.level": log_level,
        },
    )
    logs.configure(level=settings.log.level, style=settings.log.format)
    code = uvloop.run(_run(settings))
    if code:
        raise typer.Exit(code)


async def _run(settings: Settings) -> int:
    running = Worker(settings)
    with ending_on_signals(running.stop, running.stop_now):
        return await running.run()
