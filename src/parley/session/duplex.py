"""Runs a conversation of units: hear a second, listen or speak, finalize, repeat.

Serves the duplex and the realtime dialect, which differ in the arguments of `DuplexRunner`. One
task does everything that touches the model, strictly in order, so a unit is completely finished
before the next one starts. `accept` and `expire` act immediately, even while a unit is being
computed.

Source: service.md 3.5, 4.4, 4.5; sessions.md 6, 7.
"""

from __future__ import annotations

import asyncio
import dataclasses
import math
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

from parley import logs
from parley.dialects.events import (
    AudioInput,
    ClientEvent,
    DuplexSetup,
    Failed,
    InterruptRequested,
    PauseRequested,
    ResumeRequested,
    SessionEnded,
    SessionInterrupted,
    SessionPaused,
    SessionReady,
    SessionResumed,
    StopRequested,
    TextInput,
    TurnTranscribed,
    UnitDone,
    VideoInput,
)
from parley.errors import (
    BadInput,
    ContextFull,
    InferenceFailed,
    InvalidPayload,
    InvalidRequest,
    ParleyError,
    SlotLost,
    UpstreamFailed,
    WrongPhase,
)
from parley.media.pcm import INPUT_RATE_HZ, OUTPUT_RATE_HZ, Pcm
from parley.protocol.kinds import Phase
from parley.protocol.values import FRAMES_LIMIT, VadOptions
from parley.session.interruption import Interruptions
from parley.session.listening import AT_ONCE_SAMPLES
from parley.session.mailbox import OWN_BY_TIME, Mailbox, PendingUnit
from parley.session.opened import Voices
from parley.session.replay import UnitFeed, replay
from parley.session.session import Session
from parley.session.silence import DEADLINE, MODEL_S, SilenceWatch
from parley.session_log.entries import WentBack
from parley.settings import LimitSettings
from parley.turns import TurnJudges
from parley.vad import DetectorFactory, SpeechEnded, UtteranceFinder
from parley.views.duplex import KEPT_UNITS, DuplexView

FAILURES_LIMIT: Final = 3
"""Number of consecutive failed units that ends the session. Source: service.md 4.4, 4.5."""


_log = logs.get(__name__)

WINDOW_SHARES: Final = (0.85, 0.6)
"""Shares of the context in a conversation with a sliding context: above the first, the oldest part
is forgotten until the second remains."""

CLOSING: Final = VadOptions(min_silence_duration_ms=128)
"""The pause that ends a unit of a client that sends short chunks. It is too short for an answer:
the model recognises the words of the unit and decides how long the silence must be."""

MORE_SAMPLES: Final = 16 * 64
LONGEST_SAMPLES: Final = 16 * 1344
"""If the model waits for more silence, units of this length follow whenever it is idle, up to the
longest silence that it waits for (`turns.end_of_turn`)."""

RESUMED_SAMPLES: Final = 16 * 96
"""Speech of this length makes it likely that the user continues. A click, or a moment of noise in a
loud room, is shorter and must not delay an answer."""

WRITTEN_LIMIT: Final = 8
"""Number of written messages that may wait for the next unit."""


class DuplexRunner:
    """See the module's text.

    Args:
        call_left_s: time until a timed call ends unconditionally; None: the call is not timed, and
            limits of length and silence start with `SessionReady`.
        context_tokens: a context of this length ends the session; one that is too long for the
            model always does.
        prompt_room_tokens: number of `context_tokens` that a prompt must leave free.
    """

    def __init__(
        self,
        session: Session,
        view: DuplexView,
        limits: LimitSettings,
        *,
        call_left_s: float | None,
        context_tokens: int | None,
        prompt_room_tokens: int,
        detectors: DetectorFactory,
        judges: TurnJudges,
        voices: Voices,
        seed: int | None,
    ) -> None:
        self._session = session
        self._view = view
        self._limits = limits
        self._call_left_s = call_left_s
        self._context_tokens = context_tokens
        self._prompt_room_tokens = prompt_room_tokens
        self._detectors = detectors
        self._judges = judges
        self._feed = UnitFeed(view, voices=voices, seed=seed)
        self._changed = asyncio.Event()
        self._asked: DuplexSetup | None = None
        self._silence = SilenceWatch(session)
        self._spec = view.spec
        unit_samples = round(self._spec.unit_s * INPUT_RATE_HZ)
        self._mailbox = Mailbox(limits.mailbox_units, unit_samples, lost=session.report_dropped)
        self._finder: UtteranceFinder | None = None
        """Finds pauses in which a unit may end."""
        self._quiet_samples = LONGEST_SAMPLES
        """Length of the current pause."""
        self._spoken_samples = 0
        """Length of speech since the last pause was found."""
        self._resumed_s = -math.inf
        """Time at which the user last resumed speaking."""
        self._frames: tuple[bytes, ...] = ()
        self._written: list[str] = []
        self._started_s = session.clock.monotonic()
        self._ready_s = self._started_s
        self._silent_since_s = self._started_s
        self._paused_s = self._started_s
        self._settles_late = True
        self._units = 0
        self._failures = 0
        self._last_tokens = 0
        self._unit: PendingUnit | None = None
        """The unit that is being processed and has no result yet."""
        self._is_rebuilt = False
        me = weakref.proxy(self)  # not a cycle, which would keep sounds until it is collected
        self._interruptions = Interruptions(
            session, index=lambda: me._units, stop=lambda _: me._be_cut()
        )
        self._must_go_back = False
        self._continues = False
        """True if more units of the current answer follow: a moment of silence between them,
        because the next one is late or this one was short, is not the end of the answer."""
        self._unsent_units = 0
        """Number of units since an interruption whose results were not sent."""

    # ---- what the client does --------------------------------------------------------------

    def accept(self, event: ClientEvent) -> None:
        session = self._session
        match event:
            case DuplexSetup():
                if session.phase is not Phase.CONNECTED:
                    raise WrongPhase("prepare", session.phase)
                self._asked = event
                session.enter(Phase.PREPARING)
                self._changed.set()
            case AudioInput():
                self._hear(event)
            case VideoInput(frames):
                self._frames = (*self._frames, *frames)[-FRAMES_LIMIT:]
            case TextInput():
                self._read(event)
            case PauseRequested(seconds):
                self._pause(self._limits.pause_s if seconds is None else seconds)
            case ResumeRequested():
                session.deadlines.clear("pause")
                session.enter(Phase.ACTIVE)
                self._break_silence()
                session.emit(SessionResumed())
            case InterruptRequested():
                self._mailbox.forces_listen = True
                session.emit(SessionInterrupted())
            case StopRequested():
                session.end(SessionEnded("stopped"))
            case _:
                raise WrongPhase(type(event).__name__, session.phase)

    def _hear(self, heard: AudioInput) -> None:
        if self._session.phase is not Phase.ACTIVE:
            raise WrongPhase("audio", self._session.phase)
        now_s = self._silent_since_s = self._session.clock.monotonic()
        if self._call_left_s is None:
            self._session.deadlines.set("silence", now_s + self._limits.duplex_silence_s)
        if heard.playback is not None:
            self._interruptions.report(heard.playback)
        if self._frames or heard.playback is not None:
            frames = (*self._frames, *heard.frames)[-FRAMES_LIMIT:]
            heard = dataclasses.replace(heard, frames=frames, playback=None)
            self._frames = ()
        if self._interruptions.is_armed:
            if self._is_answering:
                self._interruptions.hear(heard.pcm)
            else:
                self._interruptions.learn(heard.pcm)
        arrivals = self._session.arrivals
        arrivals.is_late(len(heard.pcm) / heard.pcm.rate_hz)
        has_waiting = bool(self._mailbox.units)
        backlog = math.ceil(arrivals.backlog_s / self._spec.unit_s) if has_waiting else 0
        has_unit = self._mailbox.hear(heard, now_s, backlog=backlog)
        if self._finder is not None and len(heard.pcm) <= AT_ONCE_SAMPLES:
            if self._has_paused(self._finder, heard.pcm):
                has_unit |= self._mailbox.close_unit(now_s)
            has_unit |= self._may_end_unit()
        if has_unit:
            self._changed.set()

    def _has_paused(self, finder: UtteranceFinder, pcm: Pcm) -> bool:
        """True if the user has just stopped speaking. False while an answer is heard, because its
        units are whole seconds."""
        found = finder.feed(pcm)
        if self._is_answering:
            return False
        before = self._spoken_samples
        self._spoken_samples = 0 if finder.is_quiet else before + len(pcm)
        if before < RESUMED_SAMPLES <= self._spoken_samples:
            self._resumed_s = self._session.clock.monotonic()
        if any(isinstance(event, SpeechEnded) and event.utterance for event in found):
            self._quiet_samples = 0
            return True
        self._quiet_samples += LONGEST_SAMPLES if finder.is_speaking else len(pcm)
        return False

    def _may_end_unit(self) -> bool:
        """True if the user may have finished, and the audio since the last unit is long enough."""
        partial = self._mailbox.partial
        if partial is None or self._quiet_samples >= LONGEST_SAMPLES or self._is_answering:
            return False
        return len(partial.pcm) >= MORE_SAMPLES and not self._mailbox.units

    @property
    def _is_answering(self) -> bool:
        return self._continues or self._interruptions.playback.is_heard

    def _read(self, written: TextInput) -> None:
        if self._session.phase is not Phase.ACTIVE:
            raise WrongPhase("text", self._session.phase)
        if written.text and not self._view.spec.reads_in_units:
            raise InvalidRequest(
                f"The model {self._view.spec.name} takes sound and pictures in a duplex "
                "conversation; written words can be sent in half-duplex and chat.",
                field="text",
            )
        if len(self._written) >= WRITTEN_LIMIT:
            raise InvalidRequest(
                f"{WRITTEN_LIMIT} written messages wait for a unit; send sound, too.", field="text"
            )
        if written.text:
            self._written.append(written.text)
        self._frames = (*self._frames, *written.pictures)[-FRAMES_LIMIT:]

    def _pause(self, seconds: float) -> None:
        session = self._session
        now_s = session.clock.monotonic()
        self._paused_s = now_s
        self._mailbox.clear()
        self._frames = ()
        session.deadlines.clear("silence")
        session.deadlines.set("pause", now_s + seconds)
        session.enter(Phase.PAUSED)
        session.emit(SessionPaused(seconds))

    def _break_silence(self) -> None:
        self._silent_since_s = self._session.clock.monotonic()
        if self._call_left_s is None:
            self._set("silence", self._limits.duplex_silence_s)

    # ---- what time does --------------------------------------------------------------------

    def expire(self, deadline: str) -> None:
        """See `Runner`. Every deadline here ends the session; the message names the limit."""
        if deadline == DEADLINE:
            self._silence.expire()
            return
        since_s = {
            "silence": self._silent_since_s,
            "pause": self._paused_s,
            "session": self._ready_s,
        }.get(deadline, self._started_s)
        elapsed_s = self._session.clock.monotonic() - since_s
        self._session.end(SessionEnded("timeout", elapsed_s=elapsed_s))

    def stop_turn(self) -> bool:
        """Make the next unit listen."""
        if self._session.phase is not Phase.ACTIVE:
            return False
        self._mailbox.forces_listen = True
        return True

    def _be_cut(self) -> None:
        """The user interrupts the answer."""
        self._must_go_back, self._unsent_units = True, 0
        self._mailbox.forces_listen = True

    # ---- what the model does ---------------------------------------------------------------

    async def run(self) -> SessionEnded:
        if not self._is_rebuilt:
            if self._call_left_s is not None:
                self._set("total", self._call_left_s)
            await self._prepare()
        return await self._converse()

    async def _converse(self) -> SessionEnded:
        """Process units until the context is full or the model fails too often."""
        while True:
            self._silence.end()
            unit = await self._next_unit()
            try:
                try:
                    await self._process(unit)
                finally:
                    self._unit = None
                self._failures = 0
            except BadInput as error:
                # A frame is not a picture: this unit is skipped without calling the model.
                self._session.emit(Failed(error))
            except ContextFull as error:
                self._session.emit(Failed(error))
                return SessionEnded("context_full")
            except SlotLost:
                raise
            except InferenceFailed as error:
                self._failures += 1
                self._session.emit(Failed(error))
                if self._failures >= FAILURES_LIMIT:
                    return SessionEnded("error")
            limit = self._context_tokens
            if (
                limit is not None
                and max(self._last_tokens, self._view.kv_cache_length) >= limit
                and not self._session.rolls_over
            ):
                return SessionEnded("context_full")

    # ---- another worker continues ------------------------------------------------------------

    @property
    def is_between(self) -> bool:
        return self._unit is None

    def first_entry(self) -> None:
        """See `RebuildableRunner`."""

    def remembered(self) -> dict[str, Any] | None:
        now_s = self._session.clock.monotonic()
        pending = (*((self._unit,) if self._unit is not None else ()), *self._mailbox.units)
        return {
            "units": self._units,
            "failures": self._failures,
            "last_tokens": self._last_tokens,
            "pending": [unit.heard for unit in pending],
            "forces_listen": self._mailbox.forces_listen,
            "waiting": self._mailbox.partial,
            "frames": self._frames,
            "written": self._written,
            "must_go_back": self._must_go_back,
            "unheard_chars": self._interruptions.playback.unheard_chars,
            "continues": self._continues,
            "unsent_units": self._unsent_units,
            "started_ago_s": now_s - self._started_s,
            "ready_ago_s": now_s - self._ready_s,
            "silent_ago_s": now_s - self._silent_since_s,
            "paused_ago_s": now_s - self._paused_s,
        }

    async def redo(self, log: Sequence[Any]) -> None:
        if log and isinstance(log[0], DuplexSetup):
            await self._open(log[0])
            log = log[1:]
        await replay(self._feed, log)
        await self._feed.catch_up()

    async def restore(self, remembered: dict[str, Any]) -> None:
        await self._feed.conclude()
        now_s = self._session.clock.monotonic()
        self._units, self._failures = remembered["units"], remembered["failures"]
        self._last_tokens = remembered["last_tokens"]
        self._frames, self._written = remembered["frames"], remembered["written"]
        pending = remembered["pending"]
        self._mailbox.restore(pending, now_s)
        self._session.arrivals.restored_s = sum(one.pcm.duration_s for one in pending)
        self._mailbox.forces_listen = remembered["forces_listen"]
        self._mailbox.partial = remembered["waiting"]
        self._must_go_back = remembered["must_go_back"]
        self._interruptions.playback.unheard_chars = remembered["unheard_chars"]
        self._continues = remembered["continues"]
        self._unsent_units = remembered["unsent_units"]
        self._started_s = now_s - remembered["started_ago_s"]
        self._ready_s = now_s - remembered["ready_ago_s"]
        self._silent_since_s = now_s - remembered["silent_ago_s"]
        self._paused_s = now_s - remembered["paused_ago_s"]
        self._is_rebuilt = True

    def without_old_sound(self, log: Sequence[Any]) -> list[Any]:
        light: deque[Any] = deque()
        # The units that may be decided again, and the unit that precedes them.
        units, needed_s = KEPT_UNITS + 1, 0.0
        for entry in reversed(log):
            kept = entry
            if isinstance(entry, WentBack):
                units = KEPT_UNITS + 1
            elif isinstance(entry, UnitDone) and entry.unit is not None:
                heard, decided = entry.unit, entry.decided
                if units:
                    needs_s = math.inf if decided.needs_sound_s is None else decided.needs_sound_s
                    needed_s = max(needed_s, needs_s)
                elif needed_s <= 0 and decided.chosen is not None:
                    light_unit = dataclasses.replace(heard, pcm=heard.pcm.silenced())
                    kept = dataclasses.replace(entry, unit=light_unit)
                units = max(0, units - 1)
                needed_s -= heard.pcm.duration_ms / 1000
            light.appendleft(kept)
        return list(light)

    async def close(self) -> None:
        self._interruptions.close()
        self._view.stop()
        await self._view.cleanup()

    def _set(self, deadline: str, length_s: float) -> None:
        self._session.deadlines.set(deadline, self._session.clock.monotonic() + length_s)

    async def _prepare(self) -> None:
        """Wait until one preparation succeeds; after a failure the client may try again."""
        session = self._session
        while True:
            self._set("setup", self._limits.setup_s)
            asked = await self._next_preparation()
            if session.rolls_over:
                asked = dataclasses.replace(asked, slides=self._slides())
            session.deadlines.clear("setup")
            try:
                prompt_tokens = await self._open(asked)
            except SlotLost:
                raise
            except ParleyError as error:
                session.enter(Phase.CONNECTED)
                session.emit(Failed(error))
                continue
            break
        session.log(asked)
        recording_id = await session.recording_id()
        self._ready_s = session.clock.monotonic()
        session.enter(Phase.ACTIVE)
        if self._call_left_s is None:
            self._set("session", self._limits.duplex_session_s)
        self._break_silence()
        reads = self._view.spec.reads_in_units
        session.emit(
            SessionReady(prompt_tokens=prompt_tokens, recording_id=recording_id, reads=reads)
        )

    async def _next_preparation(self) -> DuplexSetup:
        while self._asked is None:
            self._changed.clear()
            await self._changed.wait()
        asked, self._asked = self._asked, None
        return asked

    async def _next_unit(self) -> PendingUnit:
        while True:
            if self._finder is not None and self._may_end_unit():
                self._mailbox.close_unit(self._session.clock.monotonic())
            unit = self._mailbox.take() if self._session.phase is Phase.ACTIVE else None
            if unit is not None:
                self._unit = unit
                return unit
            self._changed.clear()
            await self._changed.wait()

    async def _open(self, asked: DuplexSetup) -> int:
        """Start the requested conversation; returns the prompt's length in tokens.

        Raises:
            BadInput: a voice cannot be used, or the prompt leaves no room to talk.
        """
        try:
            prompt_tokens = await self._feed.open(asked)
        except ContextFull as error:
            # A full context would end the session, but this one is still empty.
            raise InvalidPayload(
                f"The prompt is too long: it takes {error.needed} of {error.limit} tokens."
            ) from error
        limit, room_tokens = self._context_tokens, self._prompt_room_tokens
        if limit is not None and limit - prompt_tokens < room_tokens:
            raise InvalidPayload(
                f"The prompt is too long: it takes {prompt_tokens} of {limit} tokens "
                f"and must leave {room_tokens} for the conversation."
            )
        self._settles_late = asked.settles_late
        if asked.cuts_by_time:
            self._mailbox.own = OWN_BY_TIME
            if self._spec.answers_short_units:
                self._finder = UtteranceFinder(self._detectors(), CLOSING)
        self._interruptions.arm(asked.interruption, self._detectors, self._judges)
        self._interruptions.begin()
        return prompt_tokens

    async def _process(self, unit: PendingUnit) -> None:
        """Process one unit: audio in, result out, bookkeeping.

        Raises:
            BadInput: a frame is not a picture; nothing was fed.
            InferenceFailed: the context is as before the unit.
            ContextFull: there is no room for it.
        """
        clock = self._session.clock
        if self._must_go_back:
            await self._go_back()
        self._silence.begin("waiting_for_model", MODEL_S)
        due_s = unit.received_s + self._spec.unit_s
        heard, written = unit.heard, tuple(self._written)
        if written:
            heard = dataclasses.replace(heard, text="\n".join(written))
        decided = await self._feed.unit(heard, due_s)
        is_start = not decided.is_listen and not self._continues
        if is_start and self._resumed_s > unit.received_s and await self._view.take_back():
            # A pause inside a sentence was mistaken for its end.
            heard = dataclasses.replace(heard, force_listen=True)
            decided = await self._feed.unit(heard, due_s)
        if not self._settles_late:
            await self._settle()
        now_s = clock.monotonic()
        self._silence.end()
        if now_s > due_s:
            self._silence.late(now_s - due_s)
        result = decided
        if self._interruptions.is_cut:
            # The unit was interrupted while it was computed, or is the first that listens again.
            self._interruptions.is_cut = not decided.is_listen
            self._unsent_units += 1
            result = decided.silenced()
        self._continues = result.pcm is not None and not result.end_of_turn
        if not result.is_listen:
            audio = result.pcm or Pcm.empty(OUTPUT_RATE_HZ)
            self._interruptions.say(result.text, audio, audio.duration_ms)
        elif not self._interruptions.playback.is_heard:
            self._interruptions.playback.begin()
        done = UnitDone(
            index=self._units,
            result=result,
            time_ms=round(1000 * (now_s - self._ready_s)),
            wall_ms=1000 * (now_s - unit.received_s),
            unit=heard,
            unsaid=None if result is decided else decided,
        )
        self._units += 1
        self._unit = None
        # Text that failed is repeated with the next unit.
        del self._written[: len(written)]
        if result.heard:
            self._session.emit(TurnTranscribed(done.index, result.heard))
        self._session.emit(done)
        if result.problem:
            self._session.emit(Failed(UpstreamFailed(result.problem)))
        if result.voice_failed:
            self._silence.report("voice_failed")
        self._last_tokens = result.context_tokens
        # The writer sends the result while the model settles; the next unit waits for both.
        await self._settle()

    async def _go_back(self) -> None:
        """Make the context contain only what was heard of the interrupted answer."""
        self._must_go_back = False
        unheard_chars = self._interruptions.playback.unheard_chars
        unsent_units, decided = self._unsent_units, None
        try:
            went = await self._view.cut_answer(unheard_chars, unsent_units)
        except SlotLost:
            raise
        except InferenceFailed:
            went, decided = False, self._view.decided_again
            _log.warning("answer_truncation_failed", unit=self._units, exc_info=True)
        self._session.log(WentBack(unheard_chars, unsent_units, decided))
        if not went:
            _log.info("context_not_truncated", unit=self._units)

    async def _settle(self) -> None:
        """Close the unit.

        Raises:
            _FinalizeFailed: the context is in doubt, so the session has to end.
        """
        try:
            await self._view.finalize()
        except SlotLost:
            raise
        except InferenceFailed as error:
            raise _FinalizeFailed from error

    def _slides(self) -> tuple[int, int]:
        """Window of the sliding context of a conversation without a maximum length."""
        limit = self._view.spec.context_limit_tokens
        if self._context_tokens is not None:
            limit = min(limit, self._context_tokens)
        high, low = WINDOW_SHARES
        return round(high * limit), round(low * limit)


class _FinalizeFailed(ParleyError):
    """A unit could not be finalized; later units would not make sense to the model."""

    code = InferenceFailed.code
    sentence = "The model failed between two units."
