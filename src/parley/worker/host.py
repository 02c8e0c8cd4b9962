"""Takes a lease, finds a seat, runs the session, gives everything back.

Acceptance is one step on the event loop: a seat is taken, or the newcomer is refused; nothing is
awaited in between. Giving back is one `finally`, in reverse order, and only when the model has let
go of the session is its slot free again. Source: service.md 3.1, 3.5.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from parley import logs
from parley.clock import Clock
from parley.engine.seat import Engine, EngineSeat
from parley.errors import ParleyError, Refused, ServiceUnavailable, WorkerBusy
from parley.protocol.control import (
    Beat,
    EndSession,
    FromWorker,
    Hello,
    Phase,
    SessionPhase,
    StopTurn,
    TaskType,
    WorkerState,
)
from parley.protocol.dialects import DIALECTS, DialectName
from parley.session import life as lives
from parley.session.chat import ChatDriver, ChatLimits
from parley.session.duplex import DuplexDriver, UnitLimits
from parley.session.events import Ended, StopAsked
from parley.session.half_duplex import HalfDuplexDriver, TurnLimits
from parley.session.life import (
    Disconnected,
    Driver,
    Life,
    Observer,
    OutputLimits,
    Socket,
    Translator,
)
from parley.session.opened import Voices, no_voices
from parley.session.translate.chat import ChatTranslator
from parley.session.translate.duplex import DuplexTranslator
from parley.session.translate.half_duplex import HalfDuplexTranslator
from parley.session.translate.realtime import RealtimeTranslator
from parley.settings import LimitSettings
from parley.vad import DetectorFactory
from parley.views.chat import ChatView
from parley.views.duplex import DuplexView
from parley.views.half_duplex import HalfDuplexView
from parley.worker.meter import Meter, SessionMeter
from parley.worker.recording import Recording, Recordings

CLEANUP_GRACE_S: Final = 5.0
"""A newcomer waits this long for a session that is being cleaned up. Source: service.md 3.1."""

REALTIME_CONTEXT_TOKENS: Final = 8192
"""The realtime protocol's context, fixed. Source: realtime video protocol."""

PROMPT_ROOM_TOKENS: Final = 1024
"""What a realtime prompt must leave free. Source: service.md 4.5."""

TURN_AWAY_S: Final = 2.0
"""How long saying no may take."""

MIB: Final = 1024 * 1024

_PHASES: Final[dict[lives.Phase, Phase]] = {
    "connected": "preparing",
    "preparing": "preparing",
    "active": "active",
    "generating": "generating",
    "paused": "paused",
    "closed": "cleanup",
}

_BUSY: Final[dict[TaskType, WorkerState]] = {
    "chat": "busy_chat",
    "half_duplex_audio": "busy_half_duplex",
    "audio_duplex": "duplex_active",
    "omni_duplex": "duplex_active",
}

_log = logs.get(__name__)


@dataclass(frozen=True, slots=True)
class Lease:
    """What the gateway says about a session it hands over.

    Args:
        accepted_s: unix seconds at which the gateway accepted the client; None: just now.
    """

    lease_id: str
    session_id: str
    dialect: DialectName
    task: TaskType
    accepted_s: float | None = None
    queue_wait_ms: float = 0.0


ObserverFactory = Callable[[Lease], Sequence[Observer]]


def no_observers(lease: Lease) -> Sequence[Observer]:
    """Nobody watches."""
    del lease
    return ()


@dataclass(slots=True, eq=False)
class _Held:
    """A session that is here."""

    lease: Lease
    phase: Phase = "preparing"
    was_ready: bool = False
    life: Life | None = None


@dataclass(frozen=True, slots=True)
class Identity:
    """Who this worker is."""

    worker_id: str
    url: str
    version: str
    pid: int
    index: int = 0
    device: str = "cpu"


@dataclass(slots=True, eq=False)
class Host:
    """Every session of one worker. Belongs to the event loop.

    Args:
        detectors: makes a voice detector for a half-duplex session.
        voices: finds registered voices.
        observers: who watches a session, besides the meter.
        recordings: keeps sessions, where they are to be kept.
        report: told about every change of phase.
        guard_s: for so long after `prepared` a half-duplex session hears nothing.
    """

    engine: Engine
    identity: Identity
    clock: Clock
    limits: LimitSettings
    detectors: DetectorFactory
    cleanup_limit_s: float = 10.0
    guard_s: float = 0.5
    voices: Voices = no_voices
    observers: ObserverFactory = no_observers
    recordings: Recordings | None = None
    report: Callable[[FromWorker], None] = lambda message: None
    meter: Meter = field(default_factory=Meter)
    is_ready: bool = False
    """Whether the model is warm; set once by whoever started it."""
    broken: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a session could not be cleaned up: this process has to end."""
    leaving: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when nothing is left to do and the process may end."""
    _held: dict[str, _Held] = field(default_factory=dict)
    _is_leaving: bool = False
    _emptied: asyncio.Event = field(default_factory=asyncio.Event)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    # ---- a session -------------------------------------------------------------------------

    async def hold(self, lease: Lease, socket: Socket) -> None:
        """Hold a session from its accepted socket to its closed one."""
        with logs.bind_session(lease.session_id, dialect=lease.dialect):
            try:
                seat = await self._take_seat()
            except Refused as error:
                self.meter.count_error(error.code)
                await _turn_away(lease, socket, error)
                return
            self.meter.count_request()
            held = self._held[lease.lease_id] = _Held(lease)
            self._emptied.clear()
            await self._hold(held, socket, seat)

    async def _hold(self, held: _Held, socket: Socket, seat: EngineSeat) -> None:
        lease = held.lease
        life: Life | None = None
        driver: Driver | None = None
        ended: Ended | None = None
        try:
            self._report(held)
            recording = self._begin_recording(lease)
            translator = self._translator(lease)
            if recording is not None:
                recording.tell = translator.name_recording
            life = held.life = Life(
                socket=socket,
                translator=translator,
                clock=self.clock,
                session_id=lease.session_id,
                output=OutputLimits(
                    waiting_bytes=round(self.limits.output_mb * MIB),
                    stall_s=self.limits.output_stall_s,
                ),
                observers=[
                    SessionMeter(self.meter, lease.task),
                    *([recording] if recording is not None else []),
                    *self.observers(lease),
                ],
                enters=lambda phase: self._enter(held, _PHASES[phase]),
            )
            driver = self._driver(lease, life, seat, recording.seed if recording else None)
            _log.info("session began", task=lease.task, queue_wait_ms=lease.queue_wait_ms)
            ended = await life.run(driver)
        finally:
            self._enter(held, "cleanup")
            # Shielded: what is under way must be given back even if the server is in a hurry.
            await asyncio.shield(self._spawn(self._clean_up(held, driver, seat)))
            _log.info("session ended", reason=ended.reason if ended else "cancelled")
            if life is not None:
                await life.finish()

    async def _take_seat(self) -> EngineSeat:
        """A seat now; or soon, if a session is being cleaned up.

        Raises:
            WorkerBusy: there is none.
            ServiceUnavailable: there will be none.
        """
        if self._is_leaving:
            raise ServiceUnavailable("The server is shutting down.")
        if not self.is_ready or self.broken.is_set() or not self.engine.is_running:
            raise ServiceUnavailable("The model is not running.")
        seat = self.engine.try_take_seat()
        if seat is not None:
            return seat
        if not any(held.phase == "cleanup" for held in self._held.values()):
            raise WorkerBusy
        try:
            async with asyncio.timeout(CLEANUP_GRACE_S):
                return await self.engine.take_seat()
        except TimeoutError:
            raise WorkerBusy from None

    async def _clean_up(self, held: _Held, driver: Driver | None, seat: EngineSeat) -> None:
        try:
            async with asyncio.timeout(self.cleanup_limit_s):
                try:
                    if driver is not None:
                        await driver.close()
                finally:
                    await seat.close()
        except TimeoutError:
            # A slot that does not come back cannot be trusted again: end, and be started anew.
            _log.error("session stuck", limit_s=self.cleanup_limit_s)
            self.broken.set()
        except ParleyError:
            # The seat is closed all the same; what it held died with whatever failed.
            _log.warning("session cleaned up with an error", exc_info=True)
        finally:
            self._held.pop(held.lease.lease_id, None)
            self._enter(held, "ended")
            if not self._held:
                self._emptied.set()

    def _translator(self, lease: Lease) -> Translator:
        match lease.dialect:
            case "chat":
                return ChatTranslator()
            case "half_duplex":
                return HalfDuplexTranslator(lease.session_id)
            case "duplex":
                return DuplexTranslator(
                    lease.session_id, clock=self.clock, pause_s=self.limits.pause_s
                )
            case "realtime":
                return RealtimeTranslator(lease.session_id, sees_video=lease.task == "omni_duplex")

    def _begin_recording(self, lease: Lease) -> Recording | None:
        if self.recordings is None:
            return None
        return self.recordings.begin(
            session_id=lease.session_id, dialect=lease.dialect, task=lease.task
        )

    def _driver(self, lease: Lease, life: Life, seat: EngineSeat, seed: int | None) -> Driver:
        limits = self.limits
        match lease.dialect:
            case "chat":
                return ChatDriver(
                    life,
                    ChatView(seat),
                    ChatLimits(
                        setup_s=limits.chat_first_message_s, voice_s=limits.reference_audio_s
                    ),
                    voices=self.voices,
                    seed=seed,
                )
            case "half_duplex":
                return HalfDuplexDriver(
                    life,
                    HalfDuplexView(seat),
                    TurnLimits(
                        setup_s=limits.setup_s,
                        session_s=limits.half_duplex_session_s,
                        voice_s=limits.reference_audio_s,
                        guard_s=self.guard_s,
                    ),
                    detectors=self.detectors,
                    voices=self.voices,
                    seed=seed,
                )
            case "duplex":
                return DuplexDriver(
                    life,
                    DuplexView(seat),
                    UnitLimits(
                        setup_s=limits.setup_s,
                        session_s=limits.duplex_session_s,
                        silence_s=limits.duplex_silence_s,
                        pause_s=limits.pause_s,
                        voice_s=limits.reference_audio_s,
                        mailbox_units=limits.mailbox_units,
                    ),
                    voices=self.voices,
                    seed=seed,
                )
            case "realtime":
                return DuplexDriver(
                    life,
                    DuplexView(seat),
                    UnitLimits(
                        setup_s=limits.setup_s,
                        total_left_s=self._realtime_left_s(lease),
                        voice_s=limits.reference_audio_s,
                        mailbox_units=limits.mailbox_units,
                        context_tokens=REALTIME_CONTEXT_TOKENS,
                        prompt_room_tokens=PROMPT_ROOM_TOKENS,
                    ),
                    voices=self.voices,
                    seed=seed,
                )

    def _realtime_left_s(self, lease: Lease) -> float:
        """What is left of the total time; it began when the gateway accepted the client."""
        is_audio = lease.task == "audio_duplex"
        limit_s = self.limits.realtime_audio_s if is_audio else self.limits.realtime_video_s
        if lease.accepted_s is None or not self.limits.realtime_counts_queue:
            return limit_s
        # A clock that runs differently over there can neither lengthen nor start over the session.
        spent_s = min(max(self.clock.time() - lease.accepted_s, 0.0), limit_s)
        return limit_s - spent_s

    def frame_limit_bytes(self, dialect: DialectName) -> int:
        """Largest message of a dialect."""
        limit_mb = self.limits.chat_frame_mb if dialect == "chat" else self.limits.frame_mb
        return round(limit_mb * MIB)

    # ---- phases ----------------------------------------------------------------------------

    def _enter(self, held: _Held, phase: Phase) -> None:
        if phase == held.phase or held.phase == "ended":
            return
        held.phase = phase
        held.was_ready = held.was_ready or phase in ("active", "generating")
        self._report(held)

    def _report(self, held: _Held) -> None:
        self.report(self._described(held))

    def _described(self, held: _Held) -> SessionPhase:
        pause_due_s = held.life.deadlines.get("pause") if held.life is not None else None
        return SessionPhase(
            lease_id=held.lease.lease_id,
            session_id=held.lease.session_id,
            task=held.lease.task,
            phase=held.phase,
            was_ready=held.was_ready,
            pause_left_s=None
            if pause_due_s is None or held.phase != "paused"
            else max(0.0, pause_due_s - self.clock.monotonic()),
        )

    @property
    def state(self) -> WorkerState:
        """One word for the whole worker; the busiest session's."""
        if self.broken.is_set() or (self.is_ready and not self.engine.is_running):
            return "error"
        if not self.is_ready:
            return "loading"
        phases = {held.phase for held in self._held.values()}
        for held in self._held.values():
            if held.phase in ("preparing", "active", "generating"):
                return _BUSY[held.lease.task]
        if "paused" in phases:
            return "duplex_paused"
        return "cleanup" if "cleanup" in phases else "idle"

    @property
    def free_slots(self) -> int:
        """How many sessions could begin now."""
        if not self.is_ready or self._is_leaving or self.broken.is_set():
            return 0
        return self.engine.free_slots

    # ---- for the control link --------------------------------------------------------------

    def hello(self) -> Hello:
        """Who we are."""
        spec, who = self.engine.spec, self.identity
        return Hello(
            worker_id=who.worker_id,
            url=who.url,
            slots=self.engine.slots,
            model=spec.name,
            device=who.device,
            version=who.version,
            pid=who.pid,
            index=who.index,
            modes=tuple(spec.modes),
            details=dict(spec.details),
        )

    def beat(self) -> Beat:
        """How we are; counts since the last beat."""
        stats = self.engine.take_stats()
        for stage, durations_ms in stats.stage_ms.items():
            self.meter.add(stage.value, durations_ms)
        counted = self.meter.take()
        return Beat(
            state=self.state,
            free_slots=self.free_slots,
            total_requests=self.meter.total_requests,
            avg_inference_time_ms=round(self.meter.avg_inference_ms, 1),
            kv_cache_length=self.engine.context_tokens,
            stages=counted.stages,
            answers=counted.answers,
            errors=counted.errors,
        )

    def living(self) -> Iterable[SessionPhase]:
        """Every session that is here."""
        return [self._described(held) for held in self._held.values()]

    def stop_turn(self, order: StopTurn) -> bool:
        """Stop one session's answer, or the session; whether it is here."""
        life = self._life(order.session_id)
        if life is None:
            return False
        if order.scope == "turn":
            life.stop_turn()
        else:
            life.accept(StopAsked())
        return True

    def end_session(self, order: EndSession) -> None:
        """End one session in its dialect's words."""
        life = self._life(order.session_id)
        if life is not None:
            is_shutdown = order.reason == "server_shutdown"
            life.end(Ended("server_shutdown" if is_shutdown else "stopped"))

    def leave(self, grace_s: float) -> None:
        """Take no more sessions, end the running ones, then set `leaving`.

        Requests that are being answered may finish within `grace_s`; conversations, which have no
        end of their own, end now.
        """
        if not self._is_leaving:
            self._is_leaving = True
            self._spawn(self._leave(grace_s))

    async def _leave(self, grace_s: float) -> None:
        if not self._held:
            self._emptied.set()
        for held in list(self._held.values()):
            if held.lease.task != "chat" and held.life is not None:
                held.life.end(Ended("server_shutdown"))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await self._emptied.wait()
        for held in list(self._held.values()):
            if held.life is not None:
                held.life.end(Ended("server_shutdown"))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.cleanup_limit_s):
                await self._emptied.wait()
        self.leaving.set()

    def _life(self, session_id: str) -> Life | None:
        for held in self._held.values():
            if held.lease.session_id == session_id and held.life is not None:
                return None if held.life.has_ended else held.life
        return None

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # ---- for people ------------------------------------------------------------------------

    def health(self) -> dict[str, Any]:
        """The health page. Source: service.md 3.2."""
        state = self.state
        status = {"error": "error", "loading": "initializing"}.get(state, "healthy")
        current = next((held.lease.session_id for held in self._held.values()), None)
        return {
            "status": status,
            "worker_status": state,
            "gpu_id": self.identity.index,
            "model_loaded": self.is_ready,
            "current_session_id": current,
            "total_requests": self.meter.total_requests,
            "avg_inference_time_ms": round(self.meter.avg_inference_ms, 1),
            "kv_cache_length": self.engine.context_tokens,
            "slots": self.engine.slots,
            "free_slots": self.free_slots,
        }


async def _turn_away(lease: Lease, socket: Socket, error: Refused) -> None:
    """Say no in the dialect's words, and close."""
    answer = DIALECTS[lease.dialect].refuse(error)
    with contextlib.suppress(Disconnected, TimeoutError):
        async with asyncio.timeout(TURN_AWAY_S):
            for frame in answer.frames():
                await socket.send(frame)
            await socket.close(answer.close_code or error.close_code, error.code)
