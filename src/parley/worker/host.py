"""Runs the sessions of one worker: takes a lease, finds a slot, runs the session, and releases
everything.

Acceptance is one step on the event loop, without an await: a slot is taken, or the session is
refused. Everything is released in one `finally`, in reverse order, and the slot is free again only
when the model has released the session. Source: service.md 3.1, 3.5.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from parley import logs
from parley.clock import Clock
from parley.dialects import registry
from parley.dialects.base import Dialect, SessionContext
from parley.dialects.events import RecordingLost, SessionEnded, StopRequested
from parley.dialects.registry import DialectRegistry
from parley.engine.engine import Engine, SlotHandle
from parley.engine.model import ModelSpec
from parley.errors import ParleyError, Refused, ServiceUnavailable, WorkerBusy
from parley.protocol.control import (
    Ability,
    ContextPages,
    DeviceMemory,
    EndSession,
    FromWorker,
    HandOver,
    Heartbeat,
    Hello,
    ResumeState,
    SessionPhase,
    StopResult,
    StopTurn,
)
from parley.protocol.kinds import Kind, Phase, WorkerState
from parley.recording.recorder import Recordings, SessionRecorder
from parley.session.chat import ChatRunner
from parley.session.conversation import ConversationRunner
from parley.session.duplex import DuplexRunner
from parley.session.log import OutputBounds, SessionLog
from parley.session.opened import FindVoice, Voices, no_voice
from parley.session.outbox import OutputLimits
from parley.session.resumable import ResumableSocket, ResumeRefused
from parley.session.session import Observer, RebuildableRunner, Runner, Session
from parley.session.socket import SessionSocket
from parley.session_log.contract import (
    LOG_VERSION,
    LoggedSession,
    SessionLogs,
    SessionLogWriter,
)
from parley.settings import LimitSettings
from parley.turns import NO_JUDGES, TurnJudges
from parley.vad import DetectorFactory
from parley.views.chat import ChatView
from parley.views.duplex import DuplexView
from parley.views.half_duplex import HalfDuplexView
from parley.worker.finished import FinishedRecordings
from parley.worker.lease import LeasedSlot
from parley.worker.meter import SessionMeter, WorkerMeter
from parley.worker.rebuilding import RebuiltSession, SessionHead
from parley.worker.socket import GatewaySocket

CLEANUP_GRACE_S: Final = 4.0
"""Time for which a new session waits for one that is being cleaned up; shorter than the gateway's
timeout for the handshake."""

STEP_LIMITS: Final = 6
"""Number of cleanup limits after which a session counts as stuck even if the model was busy."""

MOVE_S: Final = 10.0
"""Minimum time for which a stopping worker waits for its sessions to move to other workers."""

ENDED_LIMIT: Final = 64
"""Number of ended sessions that are remembered for their clients."""

MIB: Final = 1024 * 1024

_log = logs.get(__name__)


ObserverFactory = Callable[[LeasedSlot], Sequence[Observer]]


def no_observers(lease: LeasedSlot) -> Sequence[Observer]:
    del lease
    return ()


@dataclass(slots=True, eq=False)
class _Held:
    """A session of this worker."""

    lease: LeasedSlot
    began_s: float
    """Monotonic time of its start."""
    phase: Phase = Phase.PREPARING
    was_ready: bool = False
    session: Session | None = None
    meter: SessionMeter | None = None
    socket: ResumableSocket | None = None
    is_abandoned: bool = False
    """True if another worker continues it because this one has failed."""


@dataclass(frozen=True, slots=True, eq=False)
class _SessionParts:
    """A session and what belongs to it."""

    session: Session
    socket: ResumableSocket
    log: SessionLog
    dialect: Dialect
    recording: SessionRecorder | None
    seed: int


def _abilities(spec: ModelSpec) -> tuple[Ability, ...]:
    able: dict[Ability, bool] = {
        "speech": spec.can_speak,
        "reading": spec.reads_aloud and spec.can_speak,
        "transcription": spec.transcribes or bool(spec.transcription_prompt),
        "tools": spec.calls_tools,
        "tool_choice": spec.must_call_tools,
        "json": spec.keeps_formats,
        "penalties": spec.takes_penalties,
        "logprobs": spec.reports_logprobs,
    }
    return tuple(name for name, is_able in able.items() if is_able)


@dataclass(slots=True, eq=False)
class Host:
    """All sessions of one worker. Belongs to the event loop.

    Args:
        identity: of this worker, without the model's capabilities and the sessions.
        dialects: that its clients may use.
        detectors: makes a voice detector for a half-duplex session.
        judges: decide if a user has finished, if that depends on more than silence.
        voices: finds the registered voices that a session's client may use.
        observers: further observers of a session, after the meter.
        recordings: records sessions; None if recording is off.
        finished: recordings that the gateway will fetch.
        report: called at every change of phase.
        guard_s: time after `prepared` in which a half-duplex session ignores audio.
    """

    engine: Engine
    identity: Hello
    clock: Clock
    limits: LimitSettings
    detectors: DetectorFactory
    judges: TurnJudges = NO_JUDGES
    cleanup_limit_s: float = 10.0
    guard_s: float = 0.5
    dialects: DialectRegistry = field(default_factory=lambda: registry.installed())
    voices: Callable[[LeasedSlot], FindVoice] = lambda lease: no_voice
    observers: ObserverFactory = no_observers
    recordings: Recordings | None = None
    finished: FinishedRecordings | None = None
    report: Callable[[FromWorker], None] = lambda message: None
    session_logs: SessionLogs = field(default_factory=SessionLogs)
    """Backend of the session logs, from which another worker can continue sessions."""
    meter: WorkerMeter = field(default_factory=WorkerMeter)
    seed: int | None = None
    """Seed of every session; None: each has its own."""
    is_ready: bool = False
    """True if the model is warm; set once by its starter."""
    device_memory: DeviceMemory | None = None
    """GPU memory, as last measured."""
    ended_sessions: int = 0
    broken: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a session could not be cleaned up: the process must exit."""
    leaving: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when there is nothing left to do and the process may exit."""
    _held: dict[str, _Held] = field(default_factory=dict)
    _ended: dict[str, _Held] = field(default_factory=dict)
    """Ended sessions, newest last, for clients that return."""
    _is_leaving: bool = False
    _may_move: bool = True
    _parted: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a session has ended, or the conditions of this worker's shutdown have changed."""
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.engine.on_broken = self.abandon

    # ---- a session -------------------------------------------------------------------------

    async def admit(self, lease: LeasedSlot) -> SlotHandle:
        """Take a slot for a session whose socket is not accepted yet; `hold` or the caller closes
        it.

        Raises:
            Refused: there is no room; the gateway finds another slot or waits.
        """
        try:
            return await self._take_slot()
        except Refused as error:
            with logs.bind_session(lease.session_id, dialect=lease.dialect):
                _log.info("session_refused", code=error.code)
            self.meter.counts.errors[error.code] += 1
            raise

    async def rebuild(
        self, lease: LeasedSlot, slot: SlotHandle, socket: GatewaySocket, *, follows: bool = False
    ) -> None:
        """Continue a session of another worker from its log, and hold it until it ends. The client
        arrives by `attach`. `follows`: True if the other worker still runs it; see
        `FOLLOW_HEADER`."""
        with logs.bind_session(lease.session_id, dialect=lease.dialect):
            held = self._held[lease.lease_id] = _Held(lease, self.clock.monotonic())
            logged = self._logged(lease)
            rebuilt = RebuiltSession(socket, self.session_logs, logged, follows=follows)
            try:
                await self._hold(held, socket, slot, rebuilt=rebuilt)
            except ParleyError as error:
                await rebuilt.refuse(str(error))
                raise

    async def hold(self, lease: LeasedSlot, slot: SlotHandle, socket: SessionSocket) -> None:
        """Hold a session from its accepted socket until it is closed."""
        with logs.bind_session(lease.session_id, dialect=lease.dialect):
            self.meter.total_requests += 1
            held = self._held[lease.lease_id] = _Held(lease, self.clock.monotonic())
            await self._hold(held, socket, slot)

    async def _hold(
        self,
        held: _Held,
        socket: SessionSocket,
        slot: SlotHandle,
        rebuilt: RebuiltSession | None = None,
    ) -> None:
        runner: Runner | None = None
        ended: SessionEnded | None = None
        try:
            self._report(held)
            if rebuilt is not None:
                held.lease = await rebuilt.read(held.lease)
            parts = self._make(held, socket, rebuilt)
            runner = self._runner(held.lease, parts, slot)
            if not isinstance(runner, RebuildableRunner):
                parts.socket.log_nothing()
            else:
                parts.log.without_old_sound = runner.without_old_sound
                if rebuilt is not None:
                    await self._restore(rebuilt, parts, runner)
                    if rebuilt.has_ended:
                        ended = SessionEnded("stopped")
                        return
                    rebuilt.forget()
            _log.info("session_began", kind=held.lease.kind, queue_wait_ms=held.lease.queue_wait_ms)
            ended = await parts.session.run(runner)
        finally:
            self._enter(held, Phase.CLEANUP)
            # Shielded: resources must be released even if the server is shutting down.
            await asyncio.shield(self._spawn(self._clean_up(held, runner, slot)))
            _log.info("session_ended", reason=ended.reason if ended else "cancelled")
            try:
                if held.session is not None:
                    await held.session.finish()
            finally:
                held.session = None
                if held.socket is not None:
                    held.socket.forget_session()
            if held.socket is not None:
                self._let_last_words_be_fetched(held.socket, ended)

    def _make(
        self, held: _Held, socket: SessionSocket, rebuilt: RebuiltSession | None
    ) -> _SessionParts:
        """The session and what belongs to it, except its runner."""
        lease = held.lease
        writer = self.session_logs.create(self._logged(lease)) if rebuilt is None else None
        is_wanted = rebuilt is None or rebuilt.recording_id
        recording = self._begin_recording(lease) if is_wanted else None
        seed = self._new_seed() if recording is None else recording.head.seed
        if rebuilt is not None:
            seed = rebuilt.seed
        dialect = self._dialect(lease, lease.dialect if rebuilt is None else rebuilt.dialect_name)
        log = self._session_log(held, writer, seed, recording)
        meter = held.meter = SessionMeter(self.meter, lease.kind)
        resumable = held.socket = ResumableSocket(
            socket,
            session_id=lease.session_id,
            window_s=self.limits.resume_window_s,
            output=OutputLimits(
                waiting_bytes=round(self.limits.output_mb * MIB),
                stall_s=self.limits.output_stall_s,
            ),
            clock=self.clock,
            log=log,
            moved=lambda: self._report(held),
        )
        recorders = [] if recording is None else [recording]
        session = held.session = Session(
            socket=resumable,
            dialect=dialect,
            settle=self.dialects.settle,
            observers=[log, meter, *recorders, *self.observers(lease)],
            enters=lambda phase: self._enter(held, phase),
            recorded=None if recording is None else recording.recording_id,
            may_roll_over=self.limits.rollover,
        )
        if recording is not None:
            recording.report_lost = lambda entries: session.emit(RecordingLost(entries))
        return _SessionParts(session, resumable, log, dialect, recording, seed)

    def _dialect(self, lease: LeasedSlot, name: str) -> Dialect:
        return self.dialects.open(
            name,
            SessionContext(
                session_id=lease.session_id,
                kind=lease.kind,
                extensions=lease.extensions,
                parameters=lease.parameters,
                abilities=frozenset(_abilities(self.engine.spec)),
                clock=self.clock,
                limit_s=self._limit_s(lease.kind),
            ),
        )

    async def _restore(
        self, rebuilt: RebuiltSession, parts: _SessionParts, runner: RebuildableRunner
    ) -> None:
        await rebuilt.restore(parts.socket, parts.session, runner)
        recording = parts.recording
        if recording is not None and rebuilt.setup is not None and not rebuilt.has_ended:
            now_s = self.clock.monotonic()
            recording.continue_session(
                rebuilt.setup,
                first=rebuilt.recording_id,
                after=rebuilt.entries_done,
                seed=rebuilt.seed,
                at_s=now_s,
            )
            # Their answers are recorded here, so the session is, too.
            for entry in rebuilt.unanswered:
                recording.observe(entry, now_s)

    def _new_seed(self) -> int:
        return secrets.randbelow(2**63) if self.seed is None else self.seed

    def _logged(self, lease: LeasedSlot) -> LoggedSession:
        """The facts about a session that a gateway needs if this worker is lost."""
        who = self.identity
        return LoggedSession(
            log_id=lease.own_log_id,
            lease_id=lease.lease_id,
            session_id=lease.session_id,
            kind=lease.kind,
            dialect=lease.dialect,
            worker_id=who.worker_id,
            worker_url=who.url,
            worker_pid=who.pid,
            fingerprint=self.hello().fingerprint,
            note=lease.note,
        )

    def _session_log(
        self,
        held: _Held,
        writer: SessionLogWriter | None,
        seed: int,
        recording: SessionRecorder | None,
    ) -> SessionLog:
        log = SessionLog(
            writer,
            clock=self.clock,
            outputs=OutputBounds(
                limit_bytes=round(self.limits.resume_journal_mb * MIB),
                limit_s=self.limits.resume_journal_s,
            ),
            head=lambda: SessionHead(
                held.lease, seed, "" if recording is None else recording.kept_as
            ),
            limit_bytes=round(self.limits.session_log_mb * MIB),
        )
        log.on_fenced = lambda: self._end_fenced(held)
        return log

    def _end_fenced(self, held: _Held) -> None:
        """Another worker continues the session: release its slot."""
        _log.warning("session_fenced", lease_id=held.lease.lease_id)
        if held.socket is not None:
            # Its client now belongs to the other worker, and receives nothing more from this one.
            held.socket.end()
        if held.session is not None:
            held.session.end(SessionEnded("server_shutdown"))

    def hand_over(self, order: HandOver) -> None:
        """The gateway wants another worker to continue a session: stop it between two turns or
        units, and report that."""
        self._spawn(self._hand_over(order))

    async def _hand_over(self, order: HandOver) -> None:
        held = self._held.get(order.lease_id)
        socket = None if held is None else held.socket
        is_done = socket is not None and await socket.hand_over()
        self.report(StopResult(order.request_id, is_done))

    def resumable(self, lease_id: str) -> ResumableSocket:
        """The resumable connection of a session.

        Raises:
            ResumeRefused: there is no such session.
        """
        found = self._held.get(lease_id) or self._ended.get(lease_id)
        if found is None or found.socket is None:
            raise ResumeRefused("unknown")
        return found.socket

    def _let_last_words_be_fetched(
        self, socket: ResumableSocket, ended: SessionEnded | None
    ) -> None:
        """A client that was just cut off may return for its last messages."""
        if not socket.is_enabled:
            return
        if ended is None or ended.reason == "disconnected" or not socket.has_last_words:
            socket.end()
        else:
            loop = asyncio.get_running_loop()
            loop.call_later(socket.window_left_s, socket.end)

    def _remember_ended(self, held: _Held) -> None:
        """Keep the messages that its client may still fetch."""
        if held.socket is None or not held.socket.is_enabled or held.socket.has_left:
            return
        # Without the session and its log, which are large.
        self._ended[held.lease.lease_id] = _Held(
            held.lease, held.began_s, Phase.ENDED, held.was_ready, socket=held.socket
        )
        while len(self._ended) > ENDED_LIMIT:
            oldest = self._ended.pop(next(iter(self._ended)))
            assert oldest.socket is not None
            oldest.socket.end()

    async def _take_slot(self) -> SlotHandle:
        """A slot: now, or soon if a session is being cleaned up.

        Raises:
            WorkerBusy: there is none.
            ServiceUnavailable: the worker accepts no more sessions.
        """
        if self._is_leaving:
            raise ServiceUnavailable("The server is shutting down.")
        if not self.is_ready or self.broken.is_set() or not self.engine.is_running:
            raise ServiceUnavailable("The model is not running.")
        slot = self.engine.try_take_slot()
        if slot is not None:
            return slot
        if not any(held.phase is Phase.CLEANUP for held in self._held.values()):
            raise WorkerBusy
        try:
            async with asyncio.timeout(CLEANUP_GRACE_S):
                return await self.engine.take_slot()
        except TimeoutError:
            raise WorkerBusy from None

    async def _clean_up(self, held: _Held, runner: Runner | None, slot: SlotHandle) -> None:
        async def close() -> None:
            try:
                if runner is not None:
                    await runner.close()
            finally:
                await slot.close()

        closing = asyncio.create_task(close())
        try:
            for _ in range(STEP_LIMITS):
                before_s = self.engine.stepped_s
                await asyncio.wait({closing}, timeout=self.cleanup_limit_s)
                # No step is interrupted. On a slow host the steps in progress and those of other
                # sessions may take longer than the limit.
                if closing.done() or self.engine.stepped_s - before_s < self.cleanup_limit_s / 2:
                    break
            if closing.done():
                closing.result()
            else:
                # A slot that is not released cannot be used again: exit, to be restarted.
                closing.cancel()
                _log.error("session_stuck", limit_s=self.cleanup_limit_s)
                self.broken.set()
        except ParleyError:
            # The slot is closed all the same; the failure has destroyed its content.
            _log.warning("session_cleanup_failed", exc_info=True)
        finally:
            self._held.pop(held.lease.lease_id, None)
            self._remember_ended(held)
            self._enter(held, Phase.ENDED)
            self.ended_sessions += 1
            self._parted.set()

    def _begin_recording(self, lease: LeasedSlot) -> SessionRecorder | None:
        if self.recordings is None:
            return None
        return self.recordings.begin(
            session_id=lease.session_id,
            dialect=lease.dialect,
            kind=lease.kind,
            owner=lease.facts.key_id or "",
            seed=self.seed,
        )

    def _runner(self, lease: LeasedSlot, parts: _SessionParts, slot: SlotHandle) -> Runner:
        limits, dialect, session, seed = self.limits, parts.dialect, parts.session, parts.seed
        voices = Voices(limits.reference_audio_s, self.voices(lease))
        match lease.kind.mode:
            case "chat":
                return ChatRunner(
                    session,
                    ChatView(slot),
                    limits,
                    is_single=not dialect.has_several_chats,
                    voices=voices,
                    seed=seed,
                )
            case "half_duplex":
                return ConversationRunner(
                    session,
                    HalfDuplexView(slot),
                    limits,
                    has_items=dialect.has_items,
                    guard_s=self.guard_s,
                    detectors=self.detectors,
                    judges=self.judges,
                    voices=voices,
                    seed=seed,
                )
            case "duplex":
                return DuplexRunner(
                    session,
                    DuplexView(slot),
                    limits,
                    call_left_s=self._call_left_s(lease) if dialect.is_timed_call else None,
                    context_tokens=dialect.context_tokens,
                    prompt_room_tokens=dialect.prompt_room_tokens,
                    detectors=self.detectors,
                    judges=self.judges,
                    voices=voices,
                    seed=seed,
                )

    def _limit_s(self, kind: Kind) -> float:
        limits = self.limits
        return limits.duplex_session_s if kind.is_duplex else limits.half_duplex_session_s

    def _call_left_s(self, lease: LeasedSlot) -> float:
        """Remaining total time, which started when the client joined the queue."""
        is_audio = lease.kind is Kind.AUDIO_DUPLEX
        limit_s = self.limits.realtime_audio_s if is_audio else self.limits.realtime_video_s
        waited_s = lease.queue_wait_ms / 1000 if self.limits.realtime_counts_queue else 0.0
        return max(0.0, limit_s - waited_s)

    def frame_limit_bytes(self, kind: Kind) -> int:
        limits = self.limits
        return round((limits.chat_frame_mb if kind is Kind.CHAT else limits.frame_mb) * MIB)

    # ---- phases ----------------------------------------------------------------------------

    def _enter(self, held: _Held, phase: Phase) -> None:
        if phase == held.phase or held.phase is Phase.ENDED:
            return
        held.phase = phase
        held.was_ready = held.was_ready or phase.has_started
        self._report(held)

    def _report(self, held: _Held) -> None:
        if not held.is_abandoned:
            self.report(self._described(held))

    def _described(self, held: _Held) -> SessionPhase:
        pause_due_s = held.session.deadlines.get("pause") if held.session is not None else None
        return SessionPhase(
            lease_id=held.lease.lease_id,
            session_id=held.lease.session_id,
            kind=held.lease.kind,
            phase=held.phase,
            was_ready=held.was_ready,
            tokens=held.meter.tokens if held.meter is not None else 0,
            pause_left_s=None
            if pause_due_s is None or held.phase is not Phase.PAUSED
            else max(0.0, pause_due_s - self.clock.monotonic()),
            resume=self._resume_state(held),
        )

    def _resume_state(self, held: _Held) -> ResumeState | None:
        if held.socket is None or not held.socket.is_enabled:
            return None
        return ResumeState(
            dialect=held.lease.dialect,
            left_s=held.socket.left_s,
            note=held.lease.note,
            log_id=held.lease.own_log_id if held.socket.is_protected else "",
            ran_s=self.clock.monotonic() - held.began_s,
        )

    @property
    def state(self) -> WorkerState:
        """State of the worker: that of its busiest session."""
        if self.broken.is_set() or (self.is_ready and not self.engine.is_running):
            return "error"
        if not self.is_ready:
            return "loading"
        phases = {held.phase for held in self._held.values()}
        for held in self._held.values():
            if held.phase in (Phase.CONNECTED, Phase.PREPARING) or held.phase.has_started:
                return held.lease.kind.busy_state
        if Phase.PAUSED in phases:
            return "duplex_paused"
        return "cleanup" if Phase.CLEANUP in phases else "idle"

    @property
    def free_slots(self) -> int:
        if not self.is_ready or self._is_leaving or self.broken.is_set():
            return 0
        return self.engine.free_slots

    # ---- for the control link --------------------------------------------------------------

    def hello(self) -> Hello:
        spec = self.engine.spec
        return msgspec.structs.replace(
            self.identity,
            slots=self.engine.slots,
            model=spec.name,
            modes=tuple(spec.modes),
            details=dict(spec.details),
            abilities=_abilities(spec),
            context_tokens=spec.context_limit_tokens,
            transcription_prompt=spec.transcription_prompt,
            sessions=tuple(
                self._described(held) for held in (*self._held.values(), *self._ended.values())
            ),
            session_logs=self.session_logs.name,
            log_version=LOG_VERSION,
        )

    def heartbeat(self) -> Heartbeat:
        """The heartbeat: state, and counts since the previous one."""
        stats = self.engine.take_stats()
        for stage, durations_ms in stats.stage_ms.items():
            self.meter.add(stage.value, durations_ms)
        counted = self.meter.take()
        pages = self.engine.context_pages
        return Heartbeat(
            state=self.state,
            free_slots=self.free_slots,
            total_requests=self.meter.total_requests,
            avg_inference_time_ms=round(self.meter.avg_inference_ms, 1),
            kv_cache_length=self.engine.context_tokens,
            device_memory=self.device_memory,
            fast_paths=self.engine.fast_paths,
            problem=self.engine.problem,
            context_pages=None if pages is None else ContextPages(*pages),
            stages=counted.stages,
            answers=counted.answers,
            errors=counted.errors,
            interruptions=counted.interruptions,
            silences=counted.silences,
            recording="off" if self.recordings is None else self.recordings.state,
            recording_lost=0 if self.recordings is None else self.recordings.take_lost(),
            is_leaving=self._is_leaving and self._may_move,
            recordings_waiting=None if self.finished is None else self.finished.waiting,
            sessions_without_log=sum(
                held.socket is not None and held.socket.lacks_log for held in self._held.values()
            ),
            tokens={
                lease_id: held.meter.tokens
                for lease_id, held in self._held.items()
                if held.meter is not None and held.meter.tokens
            },
        )

    def living(self) -> Iterable[SessionPhase]:
        """All sessions of this worker."""
        return [self._described(held) for held in self._held.values()]

    @property
    def is_looked_for(self) -> bool:
        """True if a client may be looking for its session at the gateway."""
        is_living = any(held.socket and held.socket.is_enabled for held in self._held.values())
        return is_living or any(
            held.socket and held.socket.has_last_words for held in self._ended.values()
        )

    def stop_turn(self, order: StopTurn) -> bool:
        """Stop one session's answer; returns False if there was none."""
        session = self._session(order.lease_id)
        return session is not None and session.stop_turn()

    def end_session(self, order: EndSession) -> bool:
        """End one session with the messages of its dialect; returns False if it had already
        ended."""
        session = self._session(order.lease_id)
        if session is None:
            return False
        if order.reason == "moved" and (socket := self._held[order.lease_id].socket) is not None:
            socket.leave()
        if order.reason != "server_shutdown":
            # As if the client had requested it, so that the recording shows it.
            session.accept(StopRequested())
        else:
            session.end(SessionEnded("server_shutdown"))
        return True

    def message_arrives(self, lease_id: str) -> None:
        """A message of a session's client is arriving slowly."""
        session = self._session(lease_id)
        if session is not None:
            session.await_message()

    def announce_end(self, time_left_s: float) -> None:
        """Notify clients that requested it that their sessions will end."""
        for held in list(self._held.values()):
            if held.session is not None:
                held.session.go_away(time_left_s, "shutdown")

    def change_limits(self, limits: Mapping[str, Any]) -> None:
        """Use these limits for sessions that start from now on; running ones keep theirs."""
        known = {name: limits[name] for name in LimitSettings.model_fields if name in limits}
        try:
            self.limits = LimitSettings(**known)
        except ValueError as error:
            _log.error("limits_not_changed", why=str(error))
            return
        self.session_logs.keep_for(self.limits.resume_window_s)
        _log.info("limits_changed")

    def leave(
        self, grace_s: float, drain_s: float = 0.0, *, moves: bool = True, moves_s: float = MOVE_S
    ) -> None:
        """Accept no more sessions, end the running ones, then set `leaving`.

        All sessions may continue for `drain_s`. During this time, and for at least `moves_s`, the
        gateway moves sessions that can be resumed to other workers; the remaining ones are handed
        over, and continue from their logs when a slot is free. Then requests that are being
        answered may finish within `grace_s`; conversations are ended.

        Args:
            moves: False if no session can continue elsewhere, because the gateway stops too. May be
                set by a later call.
        """
        self._may_move = self._may_move and moves
        self._parted.set()
        if not self._is_leaving:
            self._is_leaving = True
            self._spawn(self._leave(grace_s, drain_s, moves_s))
            self.report(self.heartbeat())

    async def _leave(self, grace_s: float, drain_s: float, moves_s: float) -> None:
        if drain_s:
            self.announce_end(drain_s)
            await self._until(lambda: not self._held, drain_s)
        await self._until(lambda: not (self._may_move and self._movable()), moves_s - drain_s)
        handed_over = await self._hand_over_rest()
        for lease_id, held in list(self._held.items()):
            is_request = held.lease.kind is Kind.CHAT
            if not is_request and held.session is not None and lease_id not in handed_over:
                held.session.end(SessionEnded("server_shutdown"))
        await self._until(lambda: self._held.keys() <= handed_over, grace_s)
        for lease_id, held in list(self._held.items()):
            if held.session is not None and lease_id not in handed_over:
                held.session.end(SessionEnded("server_shutdown"))
        await self._until(lambda: self._held.keys() <= handed_over, self.cleanup_limit_s)
        self.leaving.set()

    def abandon(self) -> None:
        """This worker has failed: sessions that another worker can continue leave their logs as
        they are and send nothing more. To the gateway they are lost with this process."""
        for lease_id, socket in self._movable().items():
            self._held[lease_id].is_abandoned = True
            socket.leave()

    async def _until(self, is_so: Callable[[], bool], limit_s: float) -> None:
        """Wait until a condition holds; it is checked whenever a session has ended."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, limit_s)):
                while not is_so():
                    self._parted.clear()
                    await self._parted.wait()

    def _movable(self) -> dict[str, ResumableSocket]:
        """Sessions that could continue on another worker, by lease."""
        return {
            lease_id: held.socket
            for lease_id, held in self._held.items()
            if held.socket is not None and held.socket.is_protected
        }

    async def _hand_over_rest(self) -> set[str]:
        """Stop the sessions that can be resumed between two turns or units, with everything in
        their logs; returns their leases. They are not ended: to the gateway they are lost with this
        process."""
        if not self._may_move:
            return set()
        left = self._movable()
        done = await asyncio.gather(*(socket.hand_over() for socket in left.values()))
        return {lease_id for lease_id, is_done in zip(left, done, strict=True) if is_done}

    def _session(self, lease_id: str) -> Session | None:
        held = self._held.get(lease_id)
        if held is None or held.session is None or held.session.has_ended:
            return None
        return held.session

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return logs.keep(asyncio.create_task(work), self._tasks)

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
            "problem": self.engine.problem,
        }
