"""`parley serve`: the gateway and its workers on one machine, from one command."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Annotated

import typer
import uvloop

from parley import logs, models
from parley.cli import flags
from parley.cli.announce import announce
from parley.errors import SetupError
from parley.executor.local import end_unused, prepare_worker
from parley.importing import importing
from parley.private import make_files_private
from parley.settings import Settings, load


def serve(
    http: flags.Http = False,
    port: flags.Port = None,
    host: flags.Host = None,
    model: Annotated[
        str | None, typer.Option(help="Model name, checkpoint folder or hub id.")
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="Number of worker processes; default one per GPU, or one."),
    ] = None,
    executor: Annotated[
        str | None, typer.Option(help="Where workers run: local, or ray (a cluster).")
    ] = None,
    ray_address: Annotated[
        str | None,
        typer.Option(help="Ray cluster: host:port, auto, or local (start one on this machine)."),
    ] = None,
    slots: Annotated[
        str | None, typer.Option(help="Concurrent conversations per worker, or auto.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda or cuda:N.")] = None,
    llm: flags.Llm = None,
    llm_model: flags.LlmModel = None,
    asr: flags.Asr = None,
    tts: flags.Tts = None,
    ssl_certfile: flags.Certfile = None,
    ssl_keyfile: flags.Keyfile = None,
    data_dir: flags.DataDir = None,
    drain_timeout: flags.DrainTimeout = None,
    config: flags.Config = None,
    log_level: flags.LogLevel = None,
    log_format: flags.LogFormat = None,
) -> None:
    """Start the server: a gateway and its workers, until Ctrl-C."""
    began_at = time.monotonic()
    read = functools.partial(
        load,
        config,
        {
            "gateway.http": http or None,
            "gateway.port": port,
            "gateway.host": host,
            "gateway.ssl_certfile": ssl_certfile,
            "gateway.ssl_keyfile": ssl_keyfile,
            "storage.data_dir": data_dir,
            "model.name": model,
            "model.slots": slots,
            "model.device": device,
            "model.llm": llm,
            "model.llm_model": llm_model,
            "model.asr": asr,
            "model.tts": tts,
            "workers": workers,
            "executor": executor,
            "ray.address": ray_address,
            "log.level": log_level,
            "log.format": log_format,
            "gateway.drain_timeout_s": drain_timeout,
        },
    )
    settings = read()
    logs.configure(level=settings.log.level, style=settings.log.format)
    logs.tell_crashes()
    make_files_private()
    if settings.standby.redis_url is not None:
        raise SetupError(
            "`parley serve` is one gateway with its workers and has no standby.",
            hint="Run `parley gateway` on each host, and `parley worker`; or leave "
            "standby.redis_url out.",
        )
    # Before anything is started: an unknown name is reported immediately.
    models.check(settings.model)
    uvloop.run(_run(settings, began_at, read))
    announce(f"ended after {time.monotonic() - began_at:.0f} s")


async def _run(settings: Settings, began_at: float, read: Callable[[], Settings]) -> None:
    # While this process imports the gateway, a second one imports what the first worker needs.
    is_small = models.resolve(settings.model.name) in models.BUNDLED
    prepared = None
    if settings.executor == "local" and is_small:
        prepared = await prepare_worker("parley.cli.worker", "parley.models.cascade")
    try:
        with importing(plain=True):
            from parley.cli.serving import Serve

        await Serve(settings, began_at=began_at, prepared=prepared, read=read).run()
    finally:
        if prepared is not None:
            await end_unused(prepared)
