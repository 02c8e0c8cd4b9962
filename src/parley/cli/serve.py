"""`parley serve`: the gateway and its workers on one machine, from one command."""

from __future__ import annotations

import asyncio
import os
import secrets
import sys
import time
from typing import Annotated, Any, Final

import typer
import uvloop

from parley import __version__, logs
from parley.cli import flags
from parley.cli.gateway import ending_on_signals
from parley.errors import SetupError
from parley.executor.base import WorkerNews
from parley.executor.local import (
    LocalExecutor,
    local_environments,
    visible_gpus,
    worker_command,
)
from parley.gateway.fleet import Worker
from parley.gateway.main import Gateway
from parley.settings import Settings, load

WORKERS_GRACE_S: Final = 5.0
"""The gateway has ended the sessions by then; workers have only themselves to put away."""
PROGRESS_EVERY_S: Final = 5.0


def serve(
    http: flags.Http = False,
    port: flags.Port = None,
    host: flags.Host = None,
    model: Annotated[
        str | None, typer.Option(help="Model name, checkpoint folder or hub id.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Worker processes; default one per GPU, or one.")
    ] = None,
    slots: Annotated[
        str | None, typer.Option(help="Conversations at once per worker, or auto.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda or cuda:N.")] = None,
    config: flags.Config = None,
    log_level: flags.LogLevel = None,
) -> None:
    """Start the server: a gateway and its workers, until Ctrl-C."""
    settings = load(
        config,
        {
            "gateway.http": http or None,
            "gateway.port": port,
            "gateway.host": host,
            "model.name": model,
            "model.slots": slots,
            "model.device": device,
            "workers": workers,
            "log.level": log_level,
        },
    )
    logs.configure(level=settings.log.level, style=settings.log.format)
    uvloop.run(Serve(settings).run())


class Serve:
    """One running server: the gateway in this process, workers as its children."""

    def __init__(self, settings: Settings) -> None:
        secret = settings.security.worker_secret or secrets.token_hex(32)
        security = settings.security.model_copy(update={"worker_secret": secret})
        # Workers write to us, not to the terminal: what suits the terminal is decided here.
        style = settings.log.format
        if style == "auto":
            style = "text" if sys.stderr.isatty() else "json"
        log = settings.log.model_copy(update={"format": style})
        self._settings = settings.model_copy(update={"security": security, "log": log})
        self._gateway = Gateway(self._settings)
        self._executor: LocalExecutor | None = None
        self._began_at = time.monotonic()
        self._given_up: list[str] = []
        self._joined = asyncio.Event()

    async def run(self) -> None:
        """Serve until told to stop.

        Raises:
            SetupError: no worker can be started.
        """
        gateway = self._gateway
        started = asyncio.Event()
        with ending_on_signals(gateway.stop, self._stop_now):
            serving = asyncio.create_task(gateway.serve(started.set), name="gateway")
            waiting = asyncio.create_task(started.wait())
            await asyncio.wait({serving, waiting}, return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            tasks: list[asyncio.Task[Any]] = []
            try:
                if not serving.done():
                    await self._start_workers()
                    assert self._executor is not None
                    tasks = [
                        asyncio.create_task(self._executor.watch(), name="executor"),
                        asyncio.create_task(self._progress(), name="progress"),
                    ]
                    await asyncio.wait({serving, tasks[0]}, return_when=asyncio.FIRST_COMPLETED)
                    gateway.stop()
                await serving
                if tasks and tasks[0].done():
                    tasks[0].result()
                    raise SetupError(
                        "No worker could start.",
                        hint=f"The lines above say why ({self._given_up[-1]}). "
                        "`parley doctor` checks this machine.",
                    )
            finally:
                gateway.stop_now()
                if self._executor is not None:
                    await self._executor.stop(WORKERS_GRACE_S)
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, serving, return_exceptions=True)

    async def _start_workers(self) -> None:
        gateway_url = await self._gateway.open_internal()
        worker = self._settings.worker.model_copy(update={"gateway_url": gateway_url})
        gpus = visible_gpus(os.environ)
        environments = local_environments(
            self._settings.model_copy(update={"worker": worker}), gpus
        )
        self._executor = LocalExecutor(
            environments,
            command=worker_command(),
            news=self._heard,
            write=lambda line: typer.echo(line, err=True),
        )
        fleet = self._gateway.house.fleet
        fleet.expected_workers = len(environments)
        fleet.joined = self._worker_joined
        count = len(environments)
        typer.echo(
            f"parley {__version__}: loading model '{self._settings.model.name}' "
            f"in {count} {'worker' if count == 1 else 'workers'} …"
        )
        await self._executor.start()

    def _worker_joined(self, worker: Worker) -> None:
        hello = worker.hello
        slots = "1 slot" if hello.slots == 1 else f"{hello.slots} slots"
        typer.echo(f"worker {hello.index} ready: {hello.model} on {hello.device}, {slots}")
        if not self._joined.is_set():
            self._joined.set()
            took_s = time.monotonic() - self._began_at
            typer.echo(f"ready after {took_s:.1f} s: {self._gateway.url}  (Ctrl-C ends)")

    def _heard(self, news: WorkerNews) -> None:
        fleet = self._gateway.house.fleet
        if news.kind in ("ended", "given_up"):
            # Its successor comes under another name; nobody waits for this one.
            for worker in list(fleet):
                if worker.hello.pid == news.pid:
                    fleet.left(worker)
        match news.kind:
            case "ended":
                typer.echo(
                    f"worker {news.index} ended ({news.why}); "
                    f"starting it again in {news.retry_in_s:g} s",
                    err=True,
                )
            case "given_up":
                self._given_up.append(news.why)
                fleet.expected_workers -= 1
                typer.echo(f"worker {news.index} cannot start ({news.why})", err=True)

    async def _progress(self) -> None:
        """Say that we are still there while a model loads."""
        while not self._joined.is_set():
            try:
                async with asyncio.timeout(PROGRESS_EVERY_S):
                    await self._joined.wait()
            except TimeoutError:
                waited_s = time.monotonic() - self._began_at
                typer.echo(f"still loading, {waited_s:.0f} s")

    def _stop_now(self) -> None:
        self._gateway.stop_now()
