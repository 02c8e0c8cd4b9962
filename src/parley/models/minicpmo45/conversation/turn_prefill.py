"""Prefill of messages in chat and half-duplex."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from parley.engine.segments import Audio, Image, Segment, Text
from parley.engine.work import Prefill
from parley.errors import BadInput, ContextFull
from parley.models.minicpmo45.audio_encoder.mel import FIRST_LIVE_SAMPLES
from parley.models.minicpmo45.conversation.parts import Parts
from parley.models.minicpmo45.conversation.prefill import PrefillJob
from parley.models.minicpmo45.conversation.state import Conversation
from parley.models.minicpmo45.prompt.inputs import chat_messages, turns
from parley.models.minicpmo45.prompt.layout import (
    Part,
    PromptMessage,
    PromptSound,
    Role,
    expand,
    render,
)


class TurnPrefill(PrefillJob):
    """Prefills messages in chat and half-duplex; the turn-based window is applied before and
    after."""

    def __init__(self, model: Parts, conversation: Conversation, work: Prefill) -> None:
        super().__init__(model, conversation)
        state = conversation.state
        self.has_started, self.new_turn = state.has_started, state.new_turn
        self.closing = 0
        self.system_tokens = 0
        self.turn_sounds = 0
        self.has_turn_sound = False
        self.restarts_audio = not state.has_started
        self.role: Role = "user"
        if conversation.opening.mode == "chat":
            self._chat(work.segments)
        else:
            self._half_duplex(work.segments)
        self.added = len(self.prompt.ids)
        if self.work.live is None:
            self.work.cut_clips()
        if not self.added:
            self.done()
            return
        self._require_room()
        self.prepared()

    def _require_room(self) -> None:
        ledger = self.conversation.ledger
        limit = self.model.spec.context_limit_tokens
        if self.added > limit:
            raise ContextFull(self.added, limit)
        if self.model.behaviour.counts_window_exactly:
            eviction = ledger.plan()
            self.require(self.added - (eviction.dropped_tokens if eviction else 0))

    def _append(self, parts: Sequence[Part], *, is_system: bool) -> None:
        """Extend the prompt. Messages are tokenised one by one."""
        model = self.model
        more = expand(
            parts,
            model.tokenizer,
            model.config.slices,
            queries=model.config.query_num,
            literal=not model.behaviour.parses_typed_tags,
        )
        self.prompt = self.prompt.followed_by(more)
        if is_system and self.system_tokens + len(more.ids) == len(self.prompt.ids):
            self.system_tokens += len(more.ids)

    def _chat(self, segments: Sequence[Segment]) -> None:
        config = self.model.config
        messages = chat_messages(
            segments,
            self.work,
            max_slices=None,
            with_id=config.slices.use_image_id,
            pool_step=config.pool_step,
        )
        if messages:
            self.role = messages[-1].role
        self._append(render(messages), is_system=self.role == "system")

    def _half_duplex(self, segments: Sequence[Segment]) -> None:
        """A user's turn stays open; the next message closes it."""
        self.work.chunked = False
        for role, content in turns(segments):
            self.role = role
            parts: list[Part] = []
            for segment in content:
                if isinstance(segment, Text):
                    parts.append(segment.text)
                elif isinstance(segment, Image):
                    parts.append(self.work.add_picture(segment, max_slices=1, with_id=False))
                else:
                    parts.append(self._sound(segment, role))
            if role != "user":
                self.restarts_audio = True
                parts = (
                    list(parts) if self.has_started else render([PromptMessage(role, tuple(parts))])
                )
            elif not self.has_started or self.new_turn:
                parts = [self._opening(), *parts]
            self.has_started, self.new_turn = True, role != "user"
            self._append(parts, is_system=role == "system")
        self.turn_sounds += int(self.has_turn_sound)

    def _opening(self) -> str:
        if not self.conversation.state.has_replied:
            return "<|im_start|>user\n"
        self.closing = len(self.model.tokenizer.encode("<|tts_eos|><|im_end|>\n"))
        return "<|tts_eos|><|im_end|>\n<|im_start|>user\n"

    def _sound(self, segment: Audio, role: Role) -> PromptSound:
        samples = segment.pcm.samples
        pool_step = self.model.config.pool_step
        if role == "user":
            # The first clip of a turn has a minimum length, even if it is not live.
            is_first = self.conversation.state.turn_sounds == 0 and not self.has_turn_sound
            if is_first and len(samples) < FIRST_LIVE_SAMPLES:
                samples = np.pad(samples, (FIRST_LIVE_SAMPLES - len(samples), 0))
            self.has_turn_sound = True
        if segment.hearing == "live":
            if self.work.live is not None:
                raise BadInput("One live piece of sound at a time.")
            self.work.live = samples
        else:
            self.work.begin_group()
        return self.work.add_clip(samples, pool_step=pool_step)

    def begin_feed(self) -> None:
        self.model.slide_turns(self.conversation)
        super().begin_feed()

    def fed(self, logits: Tensor | None) -> None:
        conversation = self.conversation
        state, ledger = conversation.state, conversation.ledger
        if state.is_reply_open:
            ledger.append(self.closing)
            ledger.end_entry()
            state.is_reply_open = False
        if self.system_tokens:
            ledger.append(self.system_tokens)
            ledger.protect()
        ledger.append(self.added - self.system_tokens - self.closing)
        state.has_started, state.new_turn = True, self.new_turn
        state.turn_sounds += self.turn_sounds
        if not self.model.behaviour.counts_window_exactly:
            state.rounds = state.rounds.prefilled(self.role, self.added)
        if self.restarts_audio:
            self.model.audio_cache.empty(self.row)
        self.model.slide_turns(conversation)
        self.done()
