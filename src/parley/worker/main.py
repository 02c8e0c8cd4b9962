"""Builds a worker from its settings: model, engine, and the host that runs sessions.

The health page answers from the start; the worker connects to the gateway when the model is warm.
The process exits with `FAILED` if its device or a slot is broken, so that its supervisor starts
another.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import urlsplit

from parley import __version__, logs, models
from parley.certificates import ServerPair, server_context
from parley.clock import SystemClock
from parley.engine.engine import Engine
from parley.engine.model import Model
from parley.errors import SetupError
from parley.installation import build_id
from parley.library.voices import VoiceLibrary, VoiceUser, named_voice
from parley.media import decoder
from parley.media.decoder import DecoderLimits
from parley.media.pcm import Pcm
from parley.private import keep_private
from parley.protocol.control import Hello, Welcome
from parley.protocol.networks import host_name, in_url, is_this_machine
from parley.recording.layout import Folder, RecordingFolders
from parley.recording.recorder import Recordings
from parley.recording.render_queue import RenderQueue
from parley.session.opened import FindVoice
from parley.session_log.places import open_session_logs
from parley.settings import Settings, WorkerSettings
from parley.settings.tree import split_list
from parley.tasks import end_tasks
from parley.tracing import Tracing
from parley.transport import OpenConnections, UvicornServer, link_limits, listen
from parley.turns import JudgesTurns, TurnJudges, onset
from parley.turns.keywords import KeywordMatcher
from parley.turns.smart_turn import BUNDLED, end_of_turn
from parley.vad import DetectorFactory
from parley.vad.deferring import deferring
from parley.vad.energy import EnergyDetector
from parley.vad.silero import SileroModel
from parley.worker.app import make_app
from parley.worker.control import ControlLink, GatewayLinks, http_url, socket_url
from parley.worker.finished import FinishedRecordings, gateway_voice
from parley.worker.host import MOVE_S, Host, ObserverFactory, no_observers
from parley.worker.lease import LeasedSlot
from parley.worker.memory import read_device, resident_bytes, trim
from parley.worker.session_trace import SessionTrace
from parley.worker.trust import GatewayTrust

DONE: Final = 0
FAILED: Final = 1
RESTART: Final = 75
"""Exit code if an admin ordered a restart: the supervisor restarts the worker immediately. Source:
EX_TEMPFAIL of sysexits.h, which systemd and Docker count as a failure."""

PROGRESS_EVERY_S: Final = 5.0

READ_MEMORY_EVERY_S: Final = 5.0

CONNECTIONS_OF_ONE: Final = 1024
"""Limit of connections per address if other machines can reach this worker: a gateway has one
connection per session."""

LEAVE_GRACE_S: Final = 10.0
"""Time after a signal in which requests that are being answered may finish."""

FIRST_PORT: Final = 8007
"""Port of the first worker on a machine, if other machines can reach it."""

SWITCH_INTERVAL_S: Final = 0.00005
"""Time for which a thread of a worker keeps the interpreter lock while another one waits for it.
The engine thread releases it with every operator and every wait for the device, and then waits for
the thread that reads messages. Python's default of 5 ms costs it several times as much. Source:
`python -m tools.bench engine`, docs/log/minicpmo45.md."""

STEP_LIMIT_S: Final = 60.0
CPU_STEP_LIMIT_S: Final = 600.0
"""Time limit of one step: a long prompt of a large model takes minutes on a CPU."""
STEP_CHECK_S: Final = 1.0

GOODBYES: Final = {DONE: "shutdown", FAILED: "failed", RESTART: "restart"}
"""Reason that is sent to the gateway, by exit code."""

_FAILURES: Final = {
    "stuck": "a session could not be cleaned up",
    "fault": "device",
    "hung": "a step of the model does not end",
}

_log = logs.get(__name__)

T = TypeVar("T")


class WorkerProcess:
    """One worker process. `run` until `stop`, or until it fails.

    Args:
        load_model: for tests; the default finds the model by its name.
        leaving: called with the exit code as soon as the worker has failed or will restart; the
            rest of the shutdown may hang.
        warm: called when the model is warm, before the first session.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        load_model: Callable[[], Model] | None = None,
        leaving: Callable[[int], None] = lambda code: None,
        warm: Callable[[], None] = lambda: None,
    ) -> None:
        self._settings = settings
        self._leaving = leaving
        self._warm = warm
        self._clock = SystemClock()
        self._load_model = load_model or (lambda: models.load(settings.model))
        self.host: Host | None = None
        """The host; set once the model is warm."""
        self.is_loading = False
        """True if `run` returned while the model was loading, which continues in a thread."""
        self._drain_s = 0.0
        self._moves_s = MOVE_S
        self._tracing = Tracing.of(settings.trace, "parley-worker")
        self._stopping = asyncio.Event()
        self._replays = RenderQueue()
        self._voices = VoiceLibrary(
            settings.storage.data_dir, limit_s=settings.limits.reference_audio_s
        )
        secret = settings.security.worker_secret
        if not secret and not is_this_machine(settings.worker.host):
            raise SetupError(
                f"A worker on {settings.worker.host} can be reached from other machines, "
                "and there is no shared secret.",
                hint="Set security.worker_secret for worker and gateway, or listen on 127.0.0.1.",
            )
        self._gateways = gateway_trusts(settings)
        self._pair = None if speaks_http(settings.worker) else ServerPair()
        self._folders = RecordingFolders(settings.storage.data_dir)
        self._finished_recordings = FinishedRecordings(self._folders)
        self._tasks: set[asyncio.Task[None]] = set()
        self._listener = listen(settings.worker.host, listen_port(settings.worker))
        self.port: int = self._listener.getsockname()[1]
        self._url = self._advertised()
        self._server = self._make_server(secret)

    def _make_server(self, secret: str | None) -> UvicornServer:
        app = make_app(
            lambda: self.host,
            secret=secret,
            finished=self._finished_recordings,
            name=host_name(self._url) or "",
        )
        clients = OpenConnections(CONNECTIONS_OF_ONE if self._pair is not None else None)
        return UvicornServer(
            app,
            tls=None if self._pair is None else server_context(self._pair),
            clients=clients,
            limits=link_limits(self._settings.limits),
            timeout_graceful_shutdown=5,
        )

    def stop(self, drain_s: float = 0.0, *, is_orphan: bool = False) -> None:
        """Start a graceful shutdown; sessions may continue for `drain_s`.

        Args:
            is_orphan: True if the process that started this one has died, together with the gateway
                of `serve`: sessions are left to their logs immediately.
        """
        self._drain_s = 0.0 if is_orphan else drain_s
        self._moves_s = 0.0 if is_orphan else MOVE_S
        self._stopping.set()

    def reload(self, read: Callable[[], Settings]) -> None:
        """Use the limits of the current settings for sessions that start from now on."""
        try:
            limits = read().limits
        except SetupError as error:
            _log.error("settings_reload_failed", why=str(error), hint=error.hint)
            return
        if self.host is None:
            self._settings = self._settings.model_copy(update={"limits": limits})
        else:
            self.host.change_limits(limits.model_dump(mode="json"))

    def stop_now(self) -> None:
        self._stopping.set()
        if self.host is not None:
            self.host.leaving.set()

    async def run(self) -> int:
        """Work until stopped; returns the exit code.

        Raises:
            SetupError: the model or the detector cannot be loaded.
        """
        serving = asyncio.create_task(self._server._serve([self._listener]), name="server")
        decoding = decoder.use(DecoderLimits.of(self._settings.limits))
        try:
            stopping = asyncio.create_task(self._stopping.wait(), name="stopping")
            loading = asyncio.create_task(self._load(), name="loading")
            await asyncio.wait({stopping, loading}, return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
            if not loading.done():
                # Loading cannot be interrupted; the process exits all the same.
                loading.cancel()
                self.is_loading = True
                return DONE
            model, detectors, judges = loading.result()
            async with Engine(model, self._clock) as engine:
                return await self._work(engine, detectors, judges)
        finally:
            self._server.end()
            await serving
            self._listener.close()
            await asyncio.to_thread(decoding.close)

    async def _load(self) -> tuple[Model, DetectorFactory, TurnJudges]:
        """Load everything that takes long, and log the progress."""
        settings = self._settings
        began_s = time.monotonic()
        _log.info("model_loading", model=settings.model.name)
        progress = asyncio.create_task(_say_still_loading(began_s), name="progress")
        try:
            detectors = await _aside(lambda: _load_detector(settings.worker.vad))
            judges = await _aside(lambda: load_judges(settings.worker))
            model = await _aside(self._load_model)
            if isinstance(model, JudgesTurns):
                model.use_judges(judges)
        finally:
            progress.cancel()
        _log.info("model_loaded", model=model.spec.name, took_s=_since(began_s))
        return model, detectors, judges

    async def _work(self, engine: Engine, detectors: DetectorFactory, judges: TurnJudges) -> int:
        settings = self._settings
        began_s = time.monotonic()
        await engine.warm_up()
        _log.info("model_warm", took_s=_since(began_s))
        self._warm()
        identity = Hello(
            worker_id=f"worker-{settings.worker.index}-{secrets.token_hex(4)}",
            url=self._url,
            slots=engine.slots,
            model=engine.spec.name,
            version=__version__,
            build=build_id(),
            pid=os.getpid(),
            index=settings.worker.index,
            # A model that does not name its device does not use a GPU.
            device=engine.spec.details.get("device", "cpu"),
            certificate=self._pair.pem if self._pair is not None else "",
        )
        recordings = self._recordings(identity.worker_id, engine.spec.name)
        session_logs = await asyncio.to_thread(open_session_logs, settings)
        host = Host(
            engine,
            identity,
            self._clock,
            self._settings.limits,
            detectors,
            judges,
            voices=self._voices_for,
            cleanup_limit_s=settings.worker.cleanup_limit_s,
            recordings=recordings,
            session_logs=session_logs,
            finished=self._finished_recordings,
            observers=self._traced(identity.worker_id),
            seed=settings.model.seed,
            is_ready=True,
        )
        links = GatewayLinks(
            [
                ControlLink(
                    host,
                    trust=trust,
                    secret=settings.security.worker_secret,
                    welcomed=self._welcomed,
                )
                for trust in self._gateways
            ]
        )
        self._links = links
        host.report = links.report
        self.host = host
        _log.info("worker_ready", worker_id=identity.worker_id, url=identity.url)
        linking = asyncio.create_task(links.run(), name="control links")
        reading = asyncio.create_task(_watch_memory(host), name="memory")
        code = FAILED
        try:
            code = await self._wait_for_the_end(host, engine, linking)
            if code in (FAILED, RESTART):
                self._leaving(code)
            return code
        finally:
            await links.say_goodbye(GOODBYES[code])
            await end_tasks(linking, reading)
            await session_logs.close()
            await asyncio.to_thread(recordings.close)
            await asyncio.to_thread(self._replays.close)
            await asyncio.to_thread(self._tracing.close)

    def _traced(self, worker_id: str) -> ObserverFactory:
        tracing = self._tracing
        if not tracing.is_on:
            return no_observers
        return lambda lease: [SessionTrace(tracing, lease, worker_id)]

    def _welcomed(self, welcome: Welcome) -> None:
        looking = asyncio.create_task(
            asyncio.to_thread(self._finished_recordings.welcomed, welcome.store_id), name="handover"
        )
        logs.keep(looking, self._tasks)

    def _recordings(self, worker_id: str, model: str) -> Recordings:
        storage = self._settings.storage
        if storage.recording:
            self._keep_private(storage.data_dir)
        recordings = Recordings(
            storage, worker_id=worker_id, model=model, clock=self._clock, finished=self._finished
        )
        recordings.recover()
        return recordings

    def _keep_private(self, data_dir: Path) -> None:
        try:
            for folder in (data_dir, RecordingFolders(data_dir).root):
                keep_private(folder)
        except OSError as error:
            # Each recording will report this again; conversations need no folder.
            _log.error("recordings_folder_unusable", folder=str(data_dir), why=str(error))

    def _finished(self, folder: Folder) -> None:
        if self._settings.storage.replays:
            self._replays.put(folder)
        self._finished_recordings.finished(folder)

    def _voices_for(self, lease: LeasedSlot) -> FindVoice:
        """Finds the voices that a session's client may use."""
        user = VoiceUser.named(lease.caller)

        def registered(name: str) -> Pcm | None:
            """May be called in any thread."""
            if not self._finished_recordings.is_on:
                return self._voices.find(name, user)
            link, secret = self._links.current, self._settings.security.worker_secret
            return gateway_voice(
                name,
                lease.caller,
                base_url=http_url(link.gateway_url),
                context=link.tls,
                secret=secret,
                limit_s=self._settings.limits.reference_audio_s,
            )

        return partial(named_voice, registered=registered, settings=self._settings)

    async def _wait_for_the_end(
        self, host: Host, engine: Engine, linking: asyncio.Task[None]
    ) -> int:
        waits = {
            "stop": asyncio.create_task(self._stopping.wait()),
            "left": asyncio.create_task(host.leaving.wait()),
            "stuck": asyncio.create_task(host.broken.wait()),
            "fault": asyncio.create_task(engine.broken.wait()),
            "hung": asyncio.create_task(self._until_a_step_hangs(engine)),
        }
        try:
            await asyncio.wait({*waits.values(), linking}, return_when=asyncio.FIRST_COMPLETED)
            if linking.done():
                linking.result()
            failed = next((why for why in ("stuck", "fault", "hung") if waits[why].done()), None)
            if failed is not None:
                _log.error("worker_failed", why=_FAILURES[failed])
                host.abandon()
                # Notify the other sessions of this worker, if that is still possible.
                host.leave(0.0, moves=False)
                await host.leaving.wait()
                return FAILED
            if waits["stop"].done():
                host.leave(LEAVE_GRACE_S, self._drain_s, moves_s=self._moves_s)
                await host.leaving.wait()
                return DONE
            _log.info("restart_ordered")
            return RESTART
        finally:
            await end_tasks(*waits.values())

    async def _until_a_step_hangs(self, engine: Engine) -> None:
        limit_s = self._settings.worker.step_limit_s
        if limit_s is None:
            device = engine.spec.details.get("device", "cpu")
            limit_s = CPU_STEP_LIMIT_S if device.startswith("cpu") else STEP_LIMIT_S
        # The engine thread cannot report it, because it hangs.
        while engine.step_took_s <= limit_s:  # noqa: ASYNC110
            await asyncio.sleep(STEP_CHECK_S)

    def _advertised(self) -> str:
        """The address that the gateway dials.

        Raises:
            SetupError: the configured address does not match how this worker listens.
        """
        scheme = "http" if self._pair is None else "https"
        chosen = self._settings.worker.advertise_url
        if chosen is None:
            name = self._settings.worker.host
            if name in ("0.0.0.0", "::", ""):
                name = own_address(self._gateways[0].url)
            return f"{scheme}://{in_url(name)}:{self.port}"
        if self._pair is not None and chosen.startswith("http://"):
            raise SetupError(
                f"This worker listens with TLS, and is announced as {chosen}.",
                hint="Announce it as https://…, or have it listen without TLS: --http.",
            )
        return chosen


def gateway_trusts(settings: Settings) -> list[GatewayTrust]:
    """The gateways to connect to, with their TLS settings.

    Raises:
        SetupError: there is none, or an address or a certificate is invalid.
    """
    worker = settings.worker
    urls = split_list(worker.gateway_url) or ("",)
    for url in urls:
        socket_url(url)  # refused now, not after a model was loaded
    return [
        GatewayTrust(
            url,
            fingerprint=worker.gateway_fingerprint,
            ca=worker.gateway_ca,
            own=settings.gateway.ssl_certfile,
        )
        for url in urls
    ]


def speaks_http(worker: WorkerSettings) -> bool:
    """True if session sockets use no TLS."""
    return is_this_machine(worker.host) if worker.http is None else worker.http


def listen_port(worker: WorkerSettings) -> int:
    """The port as set; else a fixed one, for which a firewall can be opened, or any free one on
    loopback."""
    if worker.port is not None:
        return worker.port
    return 0 if is_this_machine(worker.host) else FIRST_PORT + worker.index


def own_address(gateway_url: str) -> str:
    """This machine's address on the route to the gateway; its name if that is unknown."""
    parts = urlsplit(gateway_url)
    try:
        family, kind, _, _, far = socket.getaddrinfo(
            parts.hostname, parts.port or 443, type=socket.SOCK_DGRAM
        )[0]
        with socket.socket(family, kind) as probe:
            # Connecting a datagram socket sends nothing.
            probe.connect(far)
            return str(probe.getsockname()[0]).partition("%")[0]
    except OSError:
        return socket.gethostname()


def load_judges(settings: WorkerSettings) -> TurnJudges:
    """The judges of a worker with these settings."""
    words = None
    onsets = onset.bundled() if settings.interruption_words else None
    if settings.interruption_words and importlib.util.find_spec("pocketsphinx") is None:
        _log.warning(
            "interruption_words_off",
            why="pocketsphinx is not installed",
            hint="Commands do not interrupt. `pip install pocketsphinx` may need a C compiler.",
        )
    elif settings.interruption_words:
        words = KeywordMatcher()
    if settings.end_of_turn == "silence":
        return TurnJudges(None, words, onsets)
    path = BUNDLED if settings.end_of_turn == "model" else Path(settings.end_of_turn)
    return TurnJudges(end_of_turn(path), words, onsets)


def _load_detector(name: str) -> DetectorFactory:
    return deferring(SileroModel()) if name == "silero" else EnergyDetector


async def _aside(work: Callable[[], T]) -> T:
    """Run something long in a thread that does not prevent the process from exiting."""
    done: Future[T] = Future()
    done.set_running_or_notify_cancel()

    def body() -> None:
        try:
            done.set_result(work())
        except Exception as error:
            done.set_exception(error)

    threading.Thread(target=body, name="loading", daemon=True).start()
    return await asyncio.wrap_future(done)


async def _watch_memory(host: Host) -> None:
    ended, least_bytes = 0, resident_bytes()
    while True:
        if host.ended_sessions != ended:
            ended = host.ended_sessions
            least_bytes = await asyncio.to_thread(trim, least_bytes)
        # In a thread: a device that hangs must not stop the heartbeats.
        host.device_memory = await asyncio.to_thread(read_device, host.identity.device)
        await asyncio.sleep(READ_MEMORY_EVERY_S)


async def _say_still_loading(began_s: float) -> None:
    while True:
        await asyncio.sleep(PROGRESS_EVERY_S)
        _log.info("model_still_loading", waited_s=_since(began_s))


def _since(began_s: float) -> float:
    return round(time.monotonic() - began_s, 1)
