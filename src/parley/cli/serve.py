"""`parley serve`: the gateway and its workers on one machine, from one command."""

from __future__ import annotations

import time
from collections.abc import Callable

import uvloop

from parley import models
from parley.cli import flags
from parley.cli.announce import announce, set_up
from parley.errors import SetupError
from parley.executor.local import end_unused, prepare_worker
from parley.importing import importing
from parley.settings import Settings


@flags.sets(
    *("gateway.http", "gateway.port", "gateway.host", "model.name", "workers", "executor"),
    *("ray.address", "model.slots", "model.device", "model.llm", "model.llm_model", "model.asr"),
    *("model.tts", "gateway.ssl_certfile", "gateway.ssl_keyfile", "storage.data_dir"),
    *("gateway.drain_timeout_s", "log.level", "log.format"),
)
def serve(read: flags.Reader) -> None:
    """Start the server: a gateway and its workers, until Ctrl-C."""
    began_at = time.monotonic()
    settings = set_up(read)
    if settings.standby.redis_url is not None:
        raise SetupError(
            "`parley serve` is one gateway with its workers and has no standby.",
            hint="Run `parley gateway` on each host, and `parley worker`; or leave "
            "standby.redis_url out.",
        )
    # Before anything is started: an unknown name is reported immediately.
    models.check(settings.model)
    uvloop.run(_run(settings, began_at, read))
    announce("ended", f"ended after {time.monotonic() - began_at:.0f} s")


async def _run(settings: Settings, began_at: float, read: Callable[[], Settings]) -> None:
    # While this process imports the gateway, a second one imports what the first worker needs.
    is_small = models.resolve(settings.model.name) in models.BUNDLED
    prepared = None
    if settings.executor == "local" and is_small:
        prepared = prepare_worker("parley.cli.worker", "parley.models.cascade")
    try:
        with importing(plain=True):
            from parley.cli.serving import Serve

        await Serve(settings, began_at=began_at, prepared=prepared, read=read).run()
    finally:
        if prepared is not None:
            end_unused(prepared)
