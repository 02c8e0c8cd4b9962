"""Settings → model → engine → a worker that takes sessions. The only place that puts them together.

The health page answers from the first moment; the gateway hears of the worker when the model is
warm. The process ends with `FAILED` when its device or a slot cannot be trusted any more, so that
whoever supervises it starts another.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import secrets
import socket
import ssl
import threading
import time
from collections.abc import Callable
from typing import Final, TypeVar

import uvicorn

from parley import __version__, logs, models
from parley.clock import Clock, SystemClock
from parley.engine.model import Model
from parley.engine.seat import Engine
from parley.errors import SetupError
from parley.library.voices import VoiceShelf, read_voice
from parley.media.pcm import Pcm
from parley.recording.layout import Folder, Shelf
from parley.recording.making import ReplayMaker
from parley.settings import Settings
from parley.vad import DetectorFactory
from parley.vad.energy import EnergyDetector
from parley.vad.silero import SileroModel
from parley.worker.app import make_app
from parley.worker.control import ControlLink, socket_url, trust
from parley.worker.host import MIB, Host, Identity
from parley.worker.recording import Recordings

DONE: Final = 0
FAILED: Final = 1

PROGRESS_EVERY_S: Final = 5.0

LEAVE_GRACE_S: Final = 10.0
"""On a signal: how long requests that are being answered may take."""

PING_EVERY_S: Final = 20.0

_log = logs.get(__name__)

T = TypeVar("T")


class Worker:
    """One worker process. `run` until `stop`, or until it fails.

    Args:
        load_model: for tests; the default finds the model by its name.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        clock: Clock | None = None,
        load_model: Callable[[], Model] | None = None,
    ) -> None:
        self._settings = settings
        self._clock = clock or SystemClock()
        self._load_model = load_model or (lambda: models.load(settings.model))
        self._host: Host | None = None
        self._stopping = asyncio.Event()
        self._replays = ReplayMaker()
        self._voices = VoiceShelf(
            settings.storage.data_dir, limit_s=settings.limits.reference_audio_s
        )
        secret = settings.security.worker_secret
        if not secret and not is_loopback(settings.worker.host):
            raise SetupError(
                f"A worker on {settings.worker.host} can be reached from other machines, "
                "and there is no shared secret.",
                hint="Set security.worker_secret for worker and gateway, or listen on 127.0.0.1.",
            )
        socket_url(settings.worker.gateway_url)  # refused now, not after a model was loaded
        self._listener = _listen(settings.worker.host, settings.worker.port)
        self.port: int = self._listener.getsockname()[1]
        self._server = _Server(
            uvicorn.Config(
                make_app(lambda: self._host, secret=secret),
                http="httptools",
                ws="websockets-sansio",
                ws_max_size=round(settings.limits.chat_frame_mb * MIB),
                ws_per_message_deflate=False,
                ws_ping_interval=PING_EVERY_S,
                ws_ping_timeout=PING_EVERY_S,
                lifespan="off",
                log_config=None,
                timeout_graceful_shutdown=5,
            )
        )

    @property
    def host(self) -> Host | None:
        """There once the model is warm."""
        return self._host

    def stop(self) -> None:
        """Begin a graceful end."""
        self._stopping.set()

    def stop_now(self) -> None:
        """End without waiting for anybody."""
        self._stopping.set()
        if self._host is not None:
            self._host.leaving.set()

    async def run(self) -> int:
        """Work until stopped; gives the exit code.

        Raises:
            SetupError: the model or the detector cannot be loaded.
        """
        serving = asyncio.create_task(self._server.serve_until_told(self._listener), name="server")
        try:
            stopping = asyncio.create_task(self._stopping.wait(), name="stopping")
            loading = asyncio.create_task(self._load(), name="loading")
            await asyncio.wait({stopping, loading}, return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
            if not loading.done():
                # A load cannot be interrupted; the process ends around it.
                loading.cancel()
                return DONE
            model, detectors = loading.result()
            async with Engine(model, self._clock) as engine:
                return await self._work(engine, detectors)
        finally:
            self._server.should_exit = True
            await serving
            self._listener.close()

    async def _load(self) -> tuple[Model, DetectorFactory]:
        """The model and the detector, saying now and then that we are still at it."""
        settings = self._settings
        began_s = time.monotonic()
        _log.info("model loading", model=settings.model.name)
        progress = asyncio.create_task(_say_still_loading(began_s), name="progress")
        try:
            detectors = await _aside(lambda: _load_detector(settings.worker.vad))
            model = await _aside(self._load_model)
        finally:
            progress.cancel()
        _log.info("model loaded", model=model.spec.name, took_s=_since(began_s))
        return model, detectors

    async def _work(self, engine: Engine, detectors: DetectorFactory) -> int:
        settings = self._settings
        began_s = time.monotonic()
        await engine.warm_up()
        _log.info("model warm", took_s=_since(began_s))
        identity = Identity(
            worker_id=f"worker-{settings.worker.index}-{secrets.token_hex(4)}",
            url=settings.worker.advertise_url or self._url(),
            version=__version__,
            pid=os.getpid(),
            index=settings.worker.index,
            device=engine.spec.details.get("device", _device(settings.model.device)),
        )
        recordings = self._recordings(identity.worker_id, engine.spec.name)
        host = Host(
            engine,
            identity,
            self._clock,
            settings.limits,
            detectors,
            voices=self._find_voice,
            cleanup_limit_s=settings.worker.cleanup_limit_s,
            recordings=recordings,
            is_ready=True,
        )
        link = ControlLink(
            host,
            gateway_url=settings.worker.gateway_url,
            secret=settings.security.worker_secret,
            tls=self._trust(),
        )
        host.report = link.report
        self._host = host
        _log.info("worker ready", worker_id=identity.worker_id, url=identity.url)
        linking = asyncio.create_task(link.run(), name="control link")
        try:
            return await self._wait_for_the_end(host, engine, linking)
        finally:
            await link.say_goodbye("shutdown" if self._stopping.is_set() else "failed")
            linking.cancel()
            await asyncio.gather(linking, return_exceptions=True)
            await asyncio.to_thread(recordings.close)
            await asyncio.to_thread(self._replays.close)

    def _recordings(self, worker_id: str, model: str) -> Recordings:
        storage = self._settings.storage
        recordings = Recordings(
            Shelf(storage.data_dir),
            worker_id=worker_id,
            model=model,
            clock=self._clock,
            is_on=storage.recording,
            keeps_inputs=storage.exact_inputs,
            min_free_gb=storage.min_free_gb,
            finished=self._make_replay,
        )
        recordings.recover()
        return recordings

    def _make_replay(self, folder: Folder) -> None:
        if self._settings.storage.replays:
            self._replays.put(folder)

    def _find_voice(self, name: str) -> Pcm | None:
        """A registered voice, or the default one by its published id. In any thread."""
        path = self._settings.model.default_voice
        if name == "default" and path is not None:
            return read_voice(path, limit_s=self._settings.limits.reference_audio_s).pcm
        return self._voices.find(name)

    async def _wait_for_the_end(
        self, host: Host, engine: Engine, linking: asyncio.Task[None]
    ) -> int:
        waits = {
            "stop": asyncio.create_task(self._stopping.wait()),
            "left": asyncio.create_task(host.leaving.wait()),
            "stuck": asyncio.create_task(host.broken.wait()),
            "fault": asyncio.create_task(engine.wait_broken()),
        }
        try:
            await asyncio.wait({*waits.values(), linking}, return_when=asyncio.FIRST_COMPLETED)
            if linking.done():
                linking.result()
            if waits["stuck"].done() or waits["fault"].done():
                _log.error("worker failed", why="stuck" if waits["stuck"].done() else "device")
                # Others on this worker hear that it is over, if they still can.
                host.leave(0.0)
                await host.leaving.wait()
                return FAILED
            if waits["stop"].done():
                host.leave(LEAVE_GRACE_S)
                await host.leaving.wait()
            return DONE
        finally:
            for task in waits.values():
                task.cancel()
            await asyncio.gather(*waits.values(), return_exceptions=True)

    def _url(self) -> str:
        name = self._settings.worker.host
        if name in ("0.0.0.0", "::", ""):
            name = socket.gethostname()
        return f"http://{f'[{name}]' if ':' in name else name}:{self.port}"

    def _trust(self) -> ssl.SSLContext | None:
        certificate = self._settings.gateway.ssl_certfile
        return trust(
            self._settings.worker.gateway_url,
            str(certificate) if certificate.is_file() else None,
        )


def _device(chosen: str) -> str:
    """For a model that does not say where it runs: one without tensors runs on the CPU."""
    return "cpu" if chosen == "auto" else chosen


def is_loopback(host: str) -> bool:
    """Whether an address to listen on can be reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class _Server(uvicorn.Server):
    """uvicorn, with signals left to whoever runs us."""

    async def serve_until_told(self, listener: socket.socket) -> None:
        try:
            await self._serve([listener])
        except SystemExit as error:
            raise SetupError("The worker could not listen; the log says why.") from error


def _load_detector(name: str) -> DetectorFactory:
    return SileroModel() if name == "silero" else EnergyDetector


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise SetupError(
            f"'{host}' is not an address of this machine.", hint="Choose another worker.host."
        ) from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise SetupError(
            f"Port {port} on {host} cannot be used: {error.strerror}.",
            hint="Choose another with --port, or 0 for any free one.",
        ) from error
    return listener


async def _aside(work: Callable[[], T]) -> T:
    """Do something long in a thread that does not keep the process from ending."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(act: Callable[[], None]) -> None:
        def on_loop() -> None:
            if not future.done():
                act()

        with contextlib.suppress(RuntimeError):  # the loop has ended: nobody waits any more
            loop.call_soon_threadsafe(on_loop)

    def body() -> None:
        try:
            value = work()
        except Exception as error:
            failure = error
            settle(lambda: future.set_exception(failure))
        else:
            settle(lambda: future.set_result(value))

    threading.Thread(target=body, name="loading", daemon=True).start()
    return await future


async def _say_still_loading(began_s: float) -> None:
    while True:
        await asyncio.sleep(PROGRESS_EVERY_S)
        _log.info("model still loading", waited_s=_since(began_s))


def _since(began_s: float) -> float:
    return round(time.monotonic() - began_s, 1)
