"""Prefill of the system prompt and of units in duplex."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from parley.engine.segments import Audio, Image, Mark, Marker, Segment, Text
from parley.engine.work import Prefill, Stage
from parley.errors import BadInput, ContextFull
from parley.models.minicpmo45.audio_encoder.mel import (
    FIRST_FED_SAMPLES,
    FIRST_LIVE_SAMPLES,
    LIVE_SAMPLES,
    Samples,
)
from parley.models.minicpmo45.conversation.parts import Parts
from parley.models.minicpmo45.conversation.prefill import PrefillJob
from parley.models.minicpmo45.conversation.state import WAITING_FRAMES, Conversation, Frame
from parley.models.minicpmo45.prompt.layout import (
    Part,
    PromptSound,
    PromptWriter,
    merge_texts,
)
from parley.models.minicpmo45.vision_encoder.pictures import choose_grid

TERMINATORS = 3
"""Number of tokens that may follow an answer: the turn's end, the unit's terminator, the unit's
end."""

ANSWER_TOKENS = 256
"""Maximum number of tokens for which room is reserved for a unit's answer; clients may request any
number."""


class UnitPrefillJob(PrefillJob):
    """Prefills the system prompt, or one unit, in duplex."""

    def __init__(self, model: Parts, conversation: Conversation, work: Prefill) -> None:
        super().__init__(model, conversation)
        segments = work.segments
        self.is_unit = any(isinstance(s, Marker) and s.mark is Mark.UNIT for s in segments)
        self.is_short = False
        self.protects = False
        self.suffix = 0
        self._kept: tuple[Samples, tuple[Frame, ...]] | None = None
        self.is_first_sound = False
        if self.is_unit:
            self._unit(segments)
        else:
            self._system(segments)
        if not self.added:
            self.done()
            return
        self.wants_logits = self.is_unit and not self.is_short
        if self.is_unit:
            self._require_unit()
        else:
            self.require(self.added)
        self.prepared()

    def _require_unit(self) -> None:
        """Reserve room for the unit and its answer, so that no other row takes it. If memory is
        short, the window moves now instead of after the answer."""
        most = self.conversation.opening.duplex.max_new_speak_tokens_per_chunk + TERMINATORS
        answer_tokens = min(most, ANSWER_TOKENS)
        try:
            self.require(self.added, answer_tokens=answer_tokens)
        except ContextFull:
            if not self.model.slide_units(self.conversation):
                raise
            self.require(self.added, answer_tokens=answer_tokens)

    def _system(self, segments: Sequence[Segment]) -> None:
        """`<|im_start|>system`, text, newline, the voice between its tags, `<|im_end|>`.

        The newline and the tags are part of the layout, even without a voice. Texts and clips
        outside of turn marks are fed as they are.
        """
        parts: list[Part] = []
        role: str | None = None
        voiced = False
        for segment in segments:
            match segment:
                case Marker(Mark.TURN_START, named):
                    role = named or "system"
                    parts.append(f"<|im_start|>{role}\n")
                case Marker(Mark.TURN_END):
                    if not voiced:
                        parts.append("\n<|audio_start|>")
                    parts.append("<|audio_end|><|im_end|>")
                    self.suffix = len(self.model.tokenizer.encode("<|audio_end|><|im_end|>"))
                    self.protects, role = True, None
                case Text(text):
                    parts.append(text)
                case Audio():
                    if role is not None and not voiced:
                        parts.append("\n<|audio_start|>")
                        voiced = True
                    self.work.begin_group()
                    pool_step = self.model.config.pool_step
                    parts.append(self.work.add_clip(segment.pcm.samples, pool_step=pool_step))
                case Image():
                    raise BadInput("A duplex system prompt cannot contain pictures.")
        writer = PromptWriter(self.model.tokenizer)
        for part in merge_texts(parts):
            if isinstance(part, str):
                writer.ids += self.model.tokenizer.encode(part)
            elif isinstance(part, PromptSound):
                writer.sound(part.tokens)
        self.prompt = writer.prompt
        self.added = len(self.prompt.ids)
        self.work.cut_clips()

    def _unit(self, segments: Sequence[Segment]) -> None:
        state = self.conversation.state
        frames: list[Frame] = list(state.frames)
        sound: Samples | None = None
        for segment in segments:
            match segment:
                case Marker():
                    continue
                case Image():
                    limit = 1 if segment.max_slices is None else segment.max_slices
                    if limit < 1:
                        raise BadInput("max_slice_nums must be at least 1.", field="max_slice_nums")
                    frames.append((segment.pixels, limit))
                case Audio():
                    new = segment.pcm.samples
                    sound = new if sound is None else np.concatenate([sound, new])
                case Text():
                    raise BadInput("A unit can contain sound and pictures, but no text.")
        if sound is None and not frames:
            raise BadInput("A unit needs sound or a picture.")
        live: Samples | None = None
        rest = state.buffered
        if sound is not None:
            buffer = np.concatenate([state.buffered, sound])
            self.is_first_sound = state.live_units == 0
            if self.is_first_sound and len(buffer) < FIRST_LIVE_SAMPLES:
                buffer = np.pad(buffer, (FIRST_LIVE_SAMPLES - len(buffer), 0))
            needed = FIRST_FED_SAMPLES if self.is_first_sound else LIVE_SAMPLES
            if len(buffer) < needed:
                self._wait(buffer, frames)
                return
            live, rest = buffer[:needed], buffer[needed:].copy()
        self._kept = (rest, ())
        self.work.pictures = frames
        self.work.live = live
        self._lay_out(10 if live is not None else 0)

    def _wait(self, buffer: Samples, frames: list[Frame]) -> None:
        """Store audio that is too short for a unit. Its pictures are stored with it, or fed without
        it if `waits_for_whole_units` is off."""
        self.is_short = True
        if self.model.behaviour.waits_for_whole_units:
            state = self.conversation.state
            state.buffered, state.frames = buffer, tuple(frames[-WAITING_FRAMES:])
            state.logits = None
            return
        self._kept = (buffer, ())
        self.work.pictures = frames
        self._lay_out(0)

    def _lay_out(self, sounds: int) -> None:
        """Write the prompt: the unit's tag, each picture's pieces between their tags, and the
        audio."""
        rules = self.model.config.slices
        writer = PromptWriter(self.model.tokenizer, self.model.config.query_num)
        writer.ids.append(self.model.tokenizer.ids.unit)
        for pixels, limit in self.work.pictures:
            height, width = pixels.shape[:2]
            grid = choose_grid(width, height, limit or rules.max_slice_nums, rules.scale_resolution)
            writer.picture(grid)
        if sounds:
            writer.sound(sounds)
        self.prompt = writer.prompt
        self.added = len(self.prompt.ids)

    def encoded(self) -> None:
        """Write the prompt again, with the audio's true number of tokens."""
        if self.work.live_tokens is not None:
            self._lay_out(int(self.work.live_tokens.shape[0]))
        self.go(Stage.PREFILL)

    def fed(self, logits: Tensor | None) -> None:
        conversation = self.conversation
        state, ledger = conversation.state, conversation.ledger
        state.unread = ()
        ledger.append(self.added)
        if not self.is_unit:
            if self.protects:
                ledger.protect(suffix_tokens=self.suffix)
            self.done()
            return
        if state.units == 0 and not ledger.entries and not ledger.protected_tokens:
            # A prompt without turn marks is also a system prompt.
            ledger.cut(self.added)
            ledger.protect()
            ledger.append(self.added)
        assert self._kept is not None
        state.buffered, state.frames = self._kept
        if self.is_short:
            state.logits = None
            self.done()
            return
        if self.work.live is not None:
            state.live_units += 1
        state.units += 1
        state.logits = logits
        self.done()
