"""Duplex: one unit per second, in which the model listens or speaks.

Per unit: `prefill`, `generate`, and `finalize` before the next `prefill`. The slot preserves the
order, so `finalize` may run as a task while the answer is sent to the client. If the model fails on
a unit, the context is as before the unit, and the next one may follow.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from parley import logs
from parley.engine import work
from parley.engine.engine import PendingResult, SlotHandle
from parley.engine.segments import Audio, Image, Mark, Marker, Segment, Text
from parley.errors import InferenceFailed, InvalidRequest, SlotLost
from parley.media.image import Pixels
from parley.media.pcm import INPUT_RATE_HZ, Pcm, Samples, join
from parley.media.resample import resample
from parley.protocol.values import DuplexConfig
from parley.views.plain import sound_of
from parley.views.turns import SlotView

log = logs.get(__name__)

R = TypeVar("R", bound=work.GenerateResult)

DEFAULT_PROMPT = "Streaming Omni Conversation."
"""Source: sessions.md 4.1, view level."""


@dataclass(frozen=True, slots=True)
class UnitPrefill:
    """Result of a unit's prefill.

    Args:
        success: False if nothing was appended; `reason` explains why.
    """

    success: bool
    reason: str = ""
    prefilled: work.PrefillResult | None = None


KEPT_UNITS = 4
"""Number of units to which the view can roll back: those that the client may not have heard yet,
and the current one."""


@dataclass(slots=True, eq=False)
class _Unit:
    """A unit that was decided.

    Args:
        start: checkpoint before it.
        text: words of the model; None: it listened.
    """

    start: work.Checkpoint
    segments: tuple[Segment, ...]
    text: str | None


class DuplexView(SlotView):
    """`prepare`, then units, then `cleanup`."""

    def __init__(self, slot: SlotHandle) -> None:
        super().__init__(slot)
        self._max_slices: int | Sequence[int] = 1
        self._unit_start: work.Checkpoint | None = None
        self._segments: tuple[Segment, ...] = ()
        self._kept: deque[_Unit] = deque(maxlen=KEPT_UNITS)
        self._heard: work.PrefillResult | None = None
        self._decoding: PendingResult[work.GenerateResult] | None = None
        self._needs_finalize = False
        self._is_prepared = False
        self._is_stopped = False
        self._has_break = False
        self._units = 0
        self.decided_again = 0
        """Number of units that the newest `cut_answer` decided again."""
        self._due_s: float | None = None

    async def prepare(
        self,
        system_prompt: str | None = None,
        ref_audio: Pcm | Samples | None = None,
        tts_audio: Pcm | Samples | None = None,
        *,
        options: DuplexConfig | None = None,
        max_slice_nums: int = 1,
        window: work.Window | None = None,
        seed: int | None = None,
    ) -> int:
        """Start a conversation; returns the prompt's length in tokens.

        Args:
            ref_audio: the voice in the prompt; None: the model's own, if it is to speak.
            tts_audio: the voice for the vocoder; None: `ref_audio`.
            max_slice_nums: default for pictures of units.
        """
        options = options or DuplexConfig()
        self.forget()
        self._is_stopped = self._has_break = False
        self._max_slices = max_slice_nums
        heard, voice = sound_of(ref_audio), sound_of(tts_audio)
        await self._slot.start(
            work.StartSession(
                "duplex",
                voice=heard if voice is None else voice,
                speak=options.generate_audio,
                seed=seed,
                window=window or work.Window(),
                duplex=options,
            )
        )
        prompt: list[Segment] = [
            Marker(Mark.TURN_START, "system"),
            Text(DEFAULT_PROMPT if system_prompt is None else system_prompt),
        ]
        if heard is None and options.generate_audio:
            heard = self.spec.prompt_voice
        if heard is not None:
            prompt.append(Audio(resample(heard, INPUT_RATE_HZ), "voice"))
        prompt.append(Marker(Mark.TURN_END, "system"))
        prefilled = await self._slot.prefill(prompt)
        self._is_prepared = True
        return prefilled.context_tokens

    async def prefill(
        self,
        audio: Pcm | Samples | None,
        frames: Sequence[Pixels] = (),
        text: str = "",
        *,
        max_slice_nums: int | Sequence[int] | None = None,
        due_s: float | None = None,
    ) -> UnitPrefill:
        """Append one unit: video frames, then written text, then audio.

        Args:
            audio: about a second; an array of samples has 16 kHz.
            text: only for models that read in units (`ModelSpec.reads_in_units`).
            max_slice_nums: for all frames, or one per frame; None: as set by `prepare`.
            due_s: monotonic time at which the answer to this unit is due.

        Raises:
            RuntimeError: the previous unit was not finalized.
        """
        audio = sound_of(audio)
        if reason := self._no_unit(audio, frames):
            return UnitPrefill(False, reason)
        self._due_s = due_s
        segments = self._segments_of(audio, frames, text, max_slice_nums)
        self._heard = None
        self._heard = await self._slot.prefill(segments, takes_checkpoint=True, due_s=due_s)
        self._unit_start, self._segments = self._heard.checkpoint, segments
        self._units += 1
        return UnitPrefill(True, prefilled=self._heard)

    async def unit(
        self,
        audio: Pcm | None,
        frames: Sequence[Pixels] = (),
        text: str = "",
        *,
        force_listen: bool = False,
        max_slice_nums: int | Sequence[int] | None = None,
        due_s: float | None = None,
        again: work.UnitChoices | None = None,
    ) -> work.UnitResult:
        """`prefill` and `generate` in one request, which the engine processes without returning in
        between. Arguments and errors are theirs; after a failure the context is as before the unit.

        Args:
            again: the model's choices for this unit in another slot; there is no audio then, and
                `catch_up` must be called before a unit without `again`.
        """
        if self._no_unit(audio, frames):
            return self._nothing(end_of_turn=self._is_stopped)
        self._due_s = due_s
        self._segments = self._segments_of(audio, frames, text, max_slice_nums)
        unit = work.WholeUnit(
            work.Prefill(self._segments, takes_checkpoint=True, again=again and again.prefill),
            work.StepUnit(force_listen, again=again and again.step),
        )
        result = await self._decided(self._slot.unit(unit, due_s=due_s))
        self._unit_start = result.prefilled.checkpoint
        self._units += 1
        return self._counted(result)

    async def generate(
        self, force_listen: bool = False, *, due_s: float | None = None
    ) -> work.UnitResult:
        """Let the model decide about the unit: listen, or speak for about a second.

        Args:
            due_s: None: as given for the unit.
        """
        if self._is_stopped:
            return self._nothing(end_of_turn=True)
        heard, self._heard = self._heard, None
        if heard is None:
            return self._nothing(end_of_turn=False)
        decoding = self._slot.generate(
            work.StepUnit(force_listen),
            due_s=self._due_s if due_s is None else due_s,
        )
        try:
            decided = await self._decided(decoding)
        except InferenceFailed as failure:
            await self._back_to_unit_start(failure)
            raise
        pieces = [piece async for piece in decoding]
        timings = _add(heard.timings, decided.timings)
        return self._counted(work.UnitResult.of(decided, heard, pieces, timings))

    async def _decided(self, answering: PendingResult[R]) -> R:
        """Result of an answer, which `stop` can cut short."""
        self._decoding = answering
        try:
            return await answering.result()
        except asyncio.CancelledError:
            answering.cancel()
            raise
        finally:
            self._decoding = None

    def _counted(self, result: work.UnitResult) -> work.UnitResult:
        """The result of the unit that was just decided, to which the view can roll back."""
        self._needs_finalize = True
        if self._unit_start is not None:
            text = None if result.is_listen else result.text
            self._kept.append(_Unit(self._unit_start, self._segments, text))
        return replace(result, current_time=self._units)

    async def take_back(self) -> bool:
        """Roll back to before the unit that was just decided, instead of `finalize`. Returns False
        if that is not possible; then nothing has changed."""
        start = self._unit_start
        if start is None or not await self._slot.can_roll_back(start):
            return False
        await self._slot.roll_back(start)
        self._kept.pop()
        self._needs_finalize, self._unit_start = False, None
        self._units -= 1
        return True

    async def catch_up(self) -> None:
        """Do work that was deferred while units were replayed. Call between two units."""
        await self._slot.prefill(())

    async def finalize(self, *, due_s: float | None = None) -> work.FinalizeResult | None:
        """Close the unit: terminators, window. Harmless, and returns None, if there is nothing to
        close.

        May run as a task: once it has started, `prefill` may be called and waits its turn. After a
        failure the unit stays open, and the conversation cannot continue.
        """
        if not self._needs_finalize:
            return None
        self._needs_finalize = False
        return await self._slot.finalize(due_s=self._due_s if due_s is None else due_s)

    async def cut_answer(
        self, unheard_chars: int, unsent_units: int, decides: int | None = None
    ) -> bool:
        """Make the context contain only the heard part of an interrupted answer. Call between two
        units.

        The units from the first one that was not heard completely are decided again: that unit says
        the heard words, and later ones listen.

        Args:
            unheard_chars: number of unheard characters at the end of the text that the client was
                sent.
            unsent_units: number of newest units of which the client was sent nothing.
            decides: number of units to decide again; the rest is dropped. None: all.

        Returns:
            False if that is not possible; the context then contains the whole answer.

        Raises:
            RuntimeError: the last unit was not finalized.
            InferenceFailed: the context contains only the `decided_again` first of these units.
        """
        if self._needs_finalize:
            raise RuntimeError("finalize must run before an answer is cut")
        units = list(self._kept)
        sent = len(units) - unsent_units
        first, say = len(units), ""
        for index in range(len(units) - 1, -1, -1):
            text = units[index].text
            if index < sent and unheard_chars <= 0:
                break
            if text is not None:
                first = index
                left = max(0, len(text) - unheard_chars) if index < sent else 0
                unheard_chars -= len(text) if index < sent else 0
                say = text[:left].rstrip()
        if first == len(units):
            return True
        if not await self._slot.can_roll_back(units[first].start):
            return False
        await self._slot.roll_back(units[first].start)
        for _ in units[first:]:
            self._kept.pop()
        self.decided_again = 0
        for number, unit in enumerate(units[first:][:decides]):
            command = work.StepUnit(say=say) if number == 0 else work.StepUnit(force_listen=True)
            await self._decide_again(unit, command)
            self.decided_again += 1
        return True

    async def _decide_again(self, unit: _Unit, command: work.StepUnit) -> None:
        prefill = work.Prefill(unit.segments, takes_checkpoint=True)
        decided = await self._decided(self._slot.unit(work.WholeUnit(prefill, command)))
        try:
            await self._slot.finalize()
        except InferenceFailed as failure:
            # An open unit would make every later one fail.
            self._unit_start = decided.prefilled.checkpoint
            await self._back_to_unit_start(failure)
            raise
        if decided.prefilled.checkpoint is not None:
            self._kept.append(_Unit(decided.prefilled.checkpoint, unit.segments, command.say))

    def set_break(self) -> None:
        """Published name. Interruptions use `force_listen`; this flag is only stored."""
        self._has_break = True

    def clear_break(self) -> None:
        self._has_break = False

    def is_break_set(self) -> bool:
        return self._has_break

    def stop(self) -> None:
        """End the current unit and answer no further ones until the next `prepare`."""
        self._is_stopped = self._has_break = True
        if self._decoding is not None:
            self._decoding.cancel()

    def is_stopped(self) -> bool:
        return self._is_stopped

    def forget(self) -> None:
        """The slot is about to serve another view: discard the state of this view."""
        if self._decoding is not None:
            self._decoding.cancel()
        self._is_prepared = self._needs_finalize = False
        self._unit_start = self._heard = None
        self._kept.clear()
        self._units = 0

    async def cleanup(self) -> None:
        """Free the memory of the conversation; the slot stays held. Safe to repeat, at any time."""
        self.forget()
        try:
            await self._slot.clear()
        except SlotLost:
            log.debug("slot_already_gone")

    async def offline_inference(
        self,
        audio: Pcm | Samples,
        frames: Sequence[Pixels] = (),
        *,
        ends_with_turn: bool = True,
    ) -> list[work.UnitResult]:
        """Process a whole recording unit by unit; the last one is padded with silence. Call
        `prepare` first.

        Args:
            frames: the i-th belongs to the i-th unit.
            ends_with_turn: stop at the first `end_of_turn`.
        """
        sound = sound_of(audio) or Pcm.empty(INPUT_RATE_HZ)
        unit = round(self.spec.unit_s * INPUT_RATE_HZ)
        results: list[work.UnitResult] = []
        for index, start in enumerate(range(0, len(sound), unit)):
            piece = sound.slice(start, start + unit)
            padding = Pcm.silence(unit - len(piece), INPUT_RATE_HZ)
            await self.prefill(join([piece, padding], INPUT_RATE_HZ), frames[index : index + 1])
            results.append(await self.generate())
            await self.finalize()
            if ends_with_turn and results[-1].end_of_turn:
                break
        return results

    def _no_unit(self, audio: Pcm | None, frames: Sequence[Pixels]) -> str:
        """The reason why no unit can be appended now; "" if one can.

        Raises:
            InvalidRequest, RuntimeError: no unit is allowed now.
        """
        if not self._is_prepared:
            raise InvalidRequest("The conversation has not been prepared.")
        if self._needs_finalize:
            raise RuntimeError("finalize must run before the next prefill")
        if self._is_stopped:
            return "stopped"
        if (audio is None or not len(audio)) and not frames:
            return "there is neither sound nor a picture"
        return ""

    def _segments_of(
        self,
        audio: Pcm | None,
        frames: Sequence[Pixels],
        text: str,
        max_slice_nums: int | Sequence[int] | None,
    ) -> tuple[Segment, ...]:
        segments: list[Segment] = [Marker(Mark.UNIT)]
        limits = self._max_slices if max_slice_nums is None else max_slice_nums
        for index, frame in enumerate(frames):
            limit = limits if isinstance(limits, int) else limits[min(index, len(limits) - 1)]
            segments.append(Image(frame, max_slices=limit, with_id=False))
        if text:
            segments.append(Text(text))
        if audio is not None and len(audio):
            if audio.rate_hz != INPUT_RATE_HZ:
                audio = resample(audio, INPUT_RATE_HZ)
            segments.append(Audio(audio, "live"))
        return tuple(segments)

    def _nothing(self, *, end_of_turn: bool) -> work.UnitResult:
        decided = work.GenerateResult(
            work.Ending.LISTEN, "", end_of_turn, 0, 0, self.kv_cache_length
        )
        return replace(
            work.UnitResult.of(decided, work.PrefillResult(0, 0), (), {}), current_time=self._units
        )

    async def _back_to_unit_start(self, failure: InferenceFailed) -> None:
        checkpoint, self._unit_start = self._unit_start, None
        if isinstance(failure, SlotLost) or checkpoint is None:
            return
        if await self._slot.can_roll_back(checkpoint):
            await self._slot.roll_back(checkpoint)


def _add(first: work.Timings, second: work.Timings) -> dict[work.Stage, float]:
    return {
        stage: first.get(stage, 0.0) + second.get(stage, 0.0)
        for stage in work.Stage
        if stage in first or stage in second
    }
