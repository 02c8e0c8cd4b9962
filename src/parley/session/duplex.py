"""Runs a conversation of units: hear a second, listen or speak, settle, and again.

Serves the duplex and the realtime dialect; `UnitLimits` holds what differs. One task does
everything that touches the model, strictly in order, so a unit's bookkeeping has ended before the
next unit begins. `accept` and `expire` act at once, also while a unit is being computed.

Source: duplex details; service.md 3.5, 4.4, 4.5; sessions.md 6, 7.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from parley.errors import (
    BadInput,
    ContextFull,
    InferenceFailed,
    InvalidPayload,
    ParleyError,
    SeatLost,
    WrongPhase,
)
from parley.media.pcm import Pcm
from parley.session.events import (
    ClientEvent,
    Ended,
    Failed,
    Heard,
    InterruptAsked,
    Interrupted,
    PauseAsked,
    Paused,
    Ready,
    ResumeAsked,
    Resumed,
    Seen,
    StopAsked,
    UnitDone,
    UnitsPrepared,
)
from parley.session.life import Life
from parley.session.mailbox import Cutter, Mailbox, Unit
from parley.session.opened import Voices, no_voices, open_frames, open_voice
from parley.views.duplex import DuplexView

FRAMES_LIMIT: Final = 4
"""Frames in one unit; the newest are kept. Source: service.md 4.4."""

FAILURES_LIMIT: Final = 3
"""So many failed units in a row end the session. Source: service.md 4.4, 4.5."""


@dataclass(frozen=True, slots=True)
class UnitLimits:
    """What differs between dialects and servers. None: no such limit.

    Args:
        setup_s: from the beginning to a valid preparation.
        session_s: from `Ready` to the end, pauses included.
        total_left_s: from now to the end, whatever happens.
        silence_s: without sound while active.
        pause_s: a pause for which the client names no length.
        voice_s: longest reference voice.
        mailbox_units: units that may wait.
        context_tokens: a context this long ends the session; what the model itself cannot hold
            ends it in any case.
        prompt_room_tokens: what a prompt must leave of `context_tokens`.
    """

    setup_s: float = 30.0
    session_s: float | None = None
    total_left_s: float | None = None
    silence_s: float | None = None
    pause_s: float = 60.0
    voice_s: float = 60.0
    mailbox_units: int = 2
    context_tokens: int | None = None
    prompt_room_tokens: int = 0


class DuplexDriver:
    """See the module's text."""

    def __init__(
        self,
        life: Life,
        view: DuplexView,
        limits: UnitLimits,
        *,
        voices: Voices = no_voices,
        seed: int | None = None,
    ) -> None:
        self._life = life
        self._view = view
        self._limits = limits
        self._voices = voices
        self._seed = seed
        self._changed = asyncio.Event()
        self._asked: UnitsPrepared | None = None
        self._mailbox = Mailbox(limits.mailbox_units)
        self._cutter = Cutter(round(view.spec.unit_s * view.spec.input_rate_hz))
        self._frames: tuple[bytes, ...] = ()
        self._begun_s = life.clock.monotonic()
        self._ready_s = self._begun_s
        self._silent_since_s = self._begun_s
        self._paused_s = self._begun_s
        self._settles_late = True
        self._units = 0
        self._failures = 0
        self._last_tokens = 0

    # ---- what the client does --------------------------------------------------------------

    def accept(self, event: ClientEvent) -> None:
        """See `Driver`."""
        life = self._life
        match event:
            case UnitsPrepared():
                if life.phase != "connected":
                    raise WrongPhase("prepare", life.phase)
                self._asked = event
                life.enter("preparing")
                self._changed.set()
            case Heard():
                self._hear(event)
            case Seen(frames):
                self._frames = (*self._frames, *frames)[-FRAMES_LIMIT:]
            case PauseAsked(seconds):
                self._pause(self._limits.pause_s if seconds is None else seconds)
            case ResumeAsked():
                life.deadlines.clear("pause")
                life.enter("active")
                self._break_silence()
                life.emit(Resumed())
            case InterruptAsked():
                self._mailbox.force_listen()
                life.emit(Interrupted())
            case StopAsked():
                life.end(Ended("stopped"))
            case _:
                raise WrongPhase(type(event).__name__, life.phase)

    def _hear(self, heard: Heard) -> None:
        if self._life.phase != "active":
            raise WrongPhase("audio", self._life.phase)
        now_s = self._life.clock.monotonic()
        self._break_silence()
        if self._frames:
            frames = (*self._frames, *heard.frames)[-FRAMES_LIMIT:]
            heard = Heard(heard.pcm, frames, heard.force_listen, heard.max_slices)
            self._frames = ()
        self._mailbox.put([Unit(piece, now_s) for piece in self._cutter.cut(heard)])
        self._changed.set()

    def _pause(self, seconds: float) -> None:
        life = self._life
        now_s = life.clock.monotonic()
        self._paused_s = now_s
        self._mailbox.clear()
        self._cutter.reset()
        self._frames = ()
        life.deadlines.clear("silence")
        life.deadlines.set("pause", now_s + seconds)
        life.enter("paused")
        life.emit(Paused(seconds))

    def _break_silence(self) -> None:
        self._silent_since_s = self._life.clock.monotonic()
        if self._limits.silence_s is not None:
            self._life.deadlines.set("silence", self._silent_since_s + self._limits.silence_s)

    # ---- what time does --------------------------------------------------------------------

    def expire(self, deadline: str) -> None:
        """See `Driver`. Every deadline here ends the session; it says how long what was too
        long."""
        since_s = {
            "silence": self._silent_since_s,
            "pause": self._paused_s,
            "session": self._ready_s,
        }.get(deadline, self._begun_s)
        elapsed_s = self._life.clock.monotonic() - since_s
        self._life.end(Ended("timeout", elapsed_s=elapsed_s))

    def stop_turn(self) -> bool:
        """Make the next unit listen."""
        if self._life.phase != "active":
            return False
        self._mailbox.force_listen()
        return True

    # ---- what the model does ---------------------------------------------------------------

    async def run(self) -> Ended:
        """See `Driver`."""
        self._set_deadlines(total=self._limits.total_left_s)
        await self._prepare()
        while True:
            unit = await self._next_unit()
            try:
                await self._process(unit)
                self._failures = 0
            except BadInput as error:
                # A frame that is no picture: this unit is skipped, the model was not asked.
                self._life.emit(Failed(error))
            except ContextFull as error:
                self._life.emit(Failed(error))
                return Ended("context_full")
            except SeatLost:
                raise
            except InferenceFailed as error:
                self._failures += 1
                self._life.emit(Failed(error))
                if self._failures >= FAILURES_LIMIT:
                    return Ended("error")
            if self._is_full():
                return Ended("context_full")

    async def close(self) -> None:
        """See `Driver`."""
        self._view.stop()
        await self._view.cleanup()

    def _set_deadlines(self, **lengths_s: float | None) -> None:
        now_s = self._life.clock.monotonic()
        for name, length_s in lengths_s.items():
            if length_s is not None:
                self._life.deadlines.set(name, now_s + length_s)

    async def _prepare(self) -> None:
        """Until one preparation succeeds; what fails leaves the client another try."""
        life = self._life
        while True:
            self._set_deadlines(setup=self._limits.setup_s)
            asked = await self._next_preparation()
            life.deadlines.clear("setup")
            try:
                prompt_tokens = await self._open(asked)
            except SeatLost:
                raise
            except ParleyError as error:
                life.enter("connected")
                life.emit(Failed(error))
                continue
            break
        self._ready_s = life.clock.monotonic()
        life.enter("active")
        self._set_deadlines(session=self._limits.session_s)
        self._break_silence()
        life.emit(Ready(prompt_tokens=prompt_tokens))

    async def _next_preparation(self) -> UnitsPrepared:
        while self._asked is None:
            self._changed.clear()
            await self._changed.wait()
        asked, self._asked = self._asked, None
        return asked

    async def _next_unit(self) -> Unit:
        while True:
            unit = self._mailbox.take() if self._life.phase == "active" else None
            if unit is not None:
                return unit
            self._changed.clear()
            await self._changed.wait()

    async def _open(self, asked: UnitsPrepared) -> int:
        """Begin a conversation as asked; gives the prompt's length in tokens.

        Raises:
            BadInput: a voice cannot be used, or the prompt leaves no room to talk.
        """
        limits = self._limits
        voice = await open_voice(
            asked.voice, asked.voice_name, voices=self._voices, limit_s=limits.voice_s
        )
        tts_voice = await open_voice(
            asked.tts_voice, None, voices=self._voices, limit_s=limits.voice_s
        )
        try:
            prompt_tokens = await self._view.prepare(
                asked.prompt,
                voice,
                tts_voice,
                options=asked.options,
                max_slice_nums=asked.max_slices,
                seed=self._seed,
            )
        except ContextFull as error:
            # A full context would end the session; this one is still empty.
            raise InvalidPayload(
                f"The prompt is too long: it takes {error.needed} of {error.limit} tokens."
            ) from error
        if limits.context_tokens is not None:
            room = limits.context_tokens - prompt_tokens
            if room < limits.prompt_room_tokens:
                raise InvalidPayload(
                    f"The prompt is too long: it takes {prompt_tokens} of "
                    f"{limits.context_tokens} tokens and must leave "
                    f"{limits.prompt_room_tokens} for the conversation."
                )
        self._settles_late = asked.settles_late
        return prompt_tokens

    async def _process(self, unit: Unit) -> None:
        """One unit: sound in, result out, bookkeeping.

        Raises:
            BadInput: a frame is no picture; nothing was fed.
            InferenceFailed: the context is as before the unit.
            ContextFull: there is no room for it.
        """
        heard, view, clock = unit.heard, self._view, self._life.clock
        frames = await open_frames(heard.frames)
        due_s = unit.received_s + view.spec.unit_s
        await view.prefill(heard.pcm, frames, max_slice_nums=heard.max_slices, due_s=due_s)
        result = await view.generate(heard.force_listen, due_s=due_s)
        if not self._settles_late:
            await self._settle()
        now_s = clock.monotonic()
        done = UnitDone(
            index=self._units,
            is_listen=result.is_listen,
            text=result.text,
            pcm=result.audio or Pcm.empty(view.spec.output_rate_hz),
            end_of_turn=result.end_of_turn,
            context_tokens=result.kv_cache_length,
            time_ms=round(1000 * (now_s - self._ready_s)),
            costs_ms={
                "prefill": result.cost_encode_ms,
                "llm": result.cost_llm_ms,
                "tts": result.cost_tts_ms,
                "token2wav": result.cost_token2wav_ms,
                "all": result.cost_all_ms,
            },
            wall_ms=1000 * (now_s - unit.received_s),
            text_tokens=result.n_tokens,
            speech_tokens=result.n_tts_tokens,
            vision_slices=result.vision_slices,
            vision_tokens=result.vision_tokens,
            unit=heard,
        )
        self._units += 1
        self._life.emit(done)
        self._last_tokens = result.kv_cache_length
        # The writer sends the result while the model settles; the next unit waits for both.
        await self._settle()

    async def _settle(self) -> None:
        """Close the unit.

        Raises:
            _SettleFailed: the context is in doubt, so the session has to end.
        """
        try:
            await self._view.finalize()
        except SeatLost:
            raise
        except InferenceFailed as error:
            raise _SettleFailed from error

    def _is_full(self) -> bool:
        limit = self._limits.context_tokens
        if limit is None:
            return False
        return max(self._last_tokens, self._view.kv_cache_length) >= limit


class _SettleFailed(ParleyError):
    """A unit could not be closed; what follows would not make sense to the model."""

    code = InferenceFailed.code

    def __init__(self) -> None:
        super().__init__("The model failed between two units.")
