"""Pieces of work as rows of steps: opening, prefill, and what all jobs share.

A step has two halves. The first computes on the device, for all jobs of the stage together, and may
fail; it writes only where nobody reads yet. The second commits: lengths, counters, results. It
cannot fail. So a step that raises has advanced nobody and may be repeated with fewer jobs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from parley.engine.segments import Audio, Image, Mark, Marker, Segment, Text
from parley.engine.work import Prefill, PrefillResult, Stage, StartResult, StartSession
from parley.errors import BadInput, ContextFull, InvalidRequest
from parley.models.job import ModelJob as ModelJob
from parley.models.minicpmo45.audio_encoder.mel import (
    FIRST_FED_SAMPLES,
    FIRST_LIVE_SAMPLES,
    HOP,
    LIVE_SAMPLES,
    PIECE_SAMPLES,
    Samples,
)
from parley.models.minicpmo45.conversation.parts import Parts
from parley.models.minicpmo45.conversation.state import WAITING_FRAMES, Conversation, Frame
from parley.models.minicpmo45.prompt.inputs import Media, chat_messages, fuse, samples_of
from parley.models.minicpmo45.prompt.layout import (
    Part,
    Place,
    Prompt,
    PromptMessage,
    PromptSound,
    Role,
    as_text,
    expand,
    merge_texts,
    render,
)
from parley.models.minicpmo45.vision_encoder.pictures import choose_grid

PICTURES_PER_STEP = 4
"""Most pictures of one job that one step cuts and looks at."""

VOICE_WAIT_S = 0.002
"""How long a step waits for a voice that is being made."""

CLIPS_PER_STEP = 4
"""Most 30-second pieces of one job that one step hears."""


class StartJob(ModelJob):
    """A new conversation. With a voice to prepare it takes vocoder steps: the voice is looked for
    on another thread, and a step that finds it missing waits a moment and gives way."""

    def __init__(self, model: Parts, row: int, opening: StartSession, seed: int) -> None:
        speaks = opening.speak and model.speech_output is not None
        super().__init__(row, Stage.VOCODE if speaks else None)
        self.model = model
        self.opening = opening
        self.seed = seed
        self.voice: Future[Any] | None = None
        if model.speech_output is not None and speaks:
            self.voice = model.speech_output.vocoder.find(opening.voice)
        else:
            self.open()

    @property
    def is_voice_found(self) -> bool:
        """Wait a moment for the voice."""
        assert self.voice is not None
        wait([self.voice], timeout=VOICE_WAIT_S)
        return self.voice.done()

    def open(self) -> None:
        self.model.begin(self.row, self.opening, self.seed, speaks=self.voice is not None)
        self.finish(StartResult(self.seed))

    def cancel(self) -> None:
        """An opening that nobody wants any more leaves a text-only conversation."""
        if self._stage is not None and self.voice is not None:
            self.voice.cancel()
            self.voice = None
            self.open()


class Feed:
    """Embeddings on their way into a row's context, in bounded pieces.

    Args:
        ids: what is fed, where it is plain tokens; for those who watch.
    """

    def __init__(self, embeds: Tensor, ids: Sequence[int] = ()) -> None:
        self.embeds = embeds
        self.ids = tuple(ids)
        self.done = 0
        self.hidden: Tensor | None = None

    @property
    def count(self) -> int:
        return int(self.embeds.shape[0])

    @property
    def is_complete(self) -> bool:
        return self.done >= self.count

    def next(self, limit: int) -> Tensor:
        return self.embeds[self.done : self.done + limit]


@dataclass(slots=True)
class Work:
    """Media of a prefill that have to be encoded.

    Args:
        pictures: pixels and limits, in order; `seen` their tokens so far.
        clips: whole sounds, cut every 30 s; `heard` their tokens so far.
        chunked: whether the encoder's one-second chunk mask is on for them.
        live: the next piece of a live stream, else None.
        is_last: the live stream ends with it.
    """

    pictures: list[Frame] = field(default_factory=list)
    seen: list[Tensor] = field(default_factory=list)
    clips: list[Samples] = field(default_factory=list)
    heard: list[Tensor] = field(default_factory=list)
    chunked: bool = True
    live: Samples | None = None
    live_tokens: Tensor | None = None
    is_last: bool = False

    @property
    def is_done(self) -> bool:
        return (
            len(self.seen) == len(self.pictures)
            and len(self.heard) == len(self.clips)
            and (self.live is None or self.live_tokens is not None)
        )

    @property
    def is_live_due(self) -> bool:
        """Whether the piece of a live stream has still to be heard."""
        return self.live is not None and self.live_tokens is None

    @property
    def next_pictures(self) -> list[Frame]:
        return self.pictures[len(self.seen) : len(self.seen) + PICTURES_PER_STEP]

    @property
    def next_clips(self) -> list[Samples]:
        return self.clips[len(self.heard) : len(self.heard) + CLIPS_PER_STEP]

    @property
    def longest_frames(self) -> int:
        """Mel frames of the longest clip: all clips of a request are padded to it."""
        return max((math.ceil(len(clip) / HOP) for clip in self.clips), default=0)

    @property
    def audio(self) -> Tensor | None:
        if self.live_tokens is not None:
            return self.live_tokens
        return torch.cat(self.heard) if self.heard else None

    def take_signals(self, signals: Sequence[Samples]) -> None:
        """Cut whole sounds every 30 s."""
        self.clips = [
            signal[first : first + PIECE_SAMPLES]
            for signal in signals
            for first in range(0, max(1, len(signal)), PIECE_SAMPLES)
        ]


class PrefillJob(ModelJob):
    """Encode what there is to see and hear, then feed it.

    Subclasses decide what the prompt is and what happens when it is in.
    """

    feed: Feed | None = None
    wants_logits = False

    def __init__(self, model: Parts, conversation: Conversation) -> None:
        super().__init__(conversation.row, Stage.ENCODE)
        self.model = model
        self.conversation = conversation
        self.work = Work()
        self.prompt = Prompt(())
        self.added = 0

    def prepared(self) -> None:
        """The first stage, once prompt and media are known."""
        self.go(Stage.PREFILL if self.work.is_done else Stage.ENCODE)

    def begin_feed(self) -> None:
        """Called by the first prefill step."""
        embeds = fuse(self.model.llm, self.prompt, self.work.seen, self.work.audio)
        self.feed = Feed(embeds, self.prompt.ids)

    def encoded(self) -> None:
        """Called when all media have their tokens."""
        self.go(Stage.PREFILL)

    def fed(self, logits: Tensor | None) -> None:
        """Called when everything is in the context, with the last position's logits (V,) where they
        are wanted."""
        raise NotImplementedError

    @property
    def slices(self) -> int:
        return sum(int(tokens.shape[0]) for tokens in self.work.seen)

    def done(self) -> None:
        """Finish with the usual result."""
        self.finish(
            PrefillResult(
                self.added,
                self.conversation.ledger.length_tokens,
                vision_slices=self.slices,
                vision_tokens=self.model.config.query_num * self.slices,
            )
        )


class TurnPrefill(PrefillJob):
    """Chat and half-duplex: messages into the context; the turn-based window before and after."""

    def __init__(self, model: Parts, conversation: Conversation, work: Prefill) -> None:
        super().__init__(model, conversation)
        state = conversation.state
        self.begun, self.new_turn = state.has_begun, state.new_turn
        self.window_is_due = True
        self.closing = 0
        self.system_tokens = 0
        self.turn_sounds = 0
        self.has_turn_sound = False
        self.restarts_audio = not state.has_begun
        self.role: Role = "user"
        self.text = ""
        media = Media()
        if conversation.mode == "chat":
            self._chat(work.segments, media)
        else:
            self._half_duplex(work.segments, media)
        self.added = len(self.prompt.ids)
        self.work.pictures = media.pictures
        if self.work.live is None:
            self.work.take_signals(media.signals())
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
            ledger.require(self.added - (eviction.dropped_tokens if eviction else 0))

    def _append(self, parts: Sequence[Part], *, is_system: bool) -> None:
        """More of the prompt. Messages are tokenised one by one."""
        model = self.model
        self.text += as_text(parts)
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

    def _chat(self, segments: Sequence[Segment], media: Media) -> None:
        config = self.model.config
        messages = chat_messages(
            segments,
            media,
            max_slices=None,
            with_id=config.slices.use_image_id,
            pool_step=config.pool_step,
        )
        if messages:
            self.role = messages[-1].role
        self._append(render(messages), is_system=self.role == "system")

    def _half_duplex(self, segments: Sequence[Segment], media: Media) -> None:
        """Turns of the user are left open, and closed by what follows."""
        self.work.chunked = False
        for role, content in _turns(segments):
            self.role = role
            parts: list[Part] = []
            for segment in content:
                if isinstance(segment, Text):
                    parts.append(segment.text)
                elif isinstance(segment, Image):
                    parts.append(media.add_picture(segment, max_slices=1, with_id=False))
                else:
                    parts.append(self._sound(segment, role, media))
            if role != "user":
                self.restarts_audio = True
                parts = list(parts) if self.begun else render([PromptMessage(role, tuple(parts))])
            elif not self.begun or self.new_turn:
                parts = [self._opening(), *parts]
            self.begun, self.new_turn = True, role != "user"
            self._append(parts, is_system=role == "system")
        self.turn_sounds += int(self.has_turn_sound)

    def _opening(self) -> str:
        if not self.conversation.state.has_replied:
            return "<|im_start|>user\n"
        self.closing = len(self.model.tokenizer.encode("<|tts_eos|><|im_end|>\n"))
        return "<|tts_eos|><|im_end|>\n<|im_start|>user\n"

    def _sound(self, segment: Audio, role: Role, media: Media) -> PromptSound:
        samples = samples_of(segment)
        pool_step = self.model.config.pool_step
        if role == "user":
            # The first sound of a turn has a minimum length, also when it is whole.
            is_first = self.conversation.state.turn_sounds == 0 and not self.has_turn_sound
            if is_first and len(samples) < FIRST_LIVE_SAMPLES:
                samples = np.pad(samples, (FIRST_LIVE_SAMPLES - len(samples), 0))
            self.has_turn_sound = True
        if segment.hearing == "live":
            if self.work.live is not None:
                raise BadInput("One live piece of sound at a time.")
            self.work.live = samples
            return media.add_clip(samples, pool_step=pool_step)
        media.begin_group()
        return media.add_clip(samples, pool_step=pool_step)

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
        state.has_begun, state.new_turn = True, self.new_turn
        state.turn_sounds += self.turn_sounds
        if not self.model.behaviour.counts_window_exactly:
            state.rounds = state.rounds.prefilled(self.role, self.added)
        if self.restarts_audio:
            conversation.restart_audio(self.model.audio_cache)
        self.model.slide_turns(conversation)
        self.done()


def _turns(segments: Sequence[Segment]) -> list[tuple[Role, list[Text | Image | Audio]]]:
    """Segments by turn. What stands outside of turn marks goes on with the user's turn."""
    turns: list[tuple[Role, list[Text | Image | Audio]]] = []
    is_open = False
    for segment in segments:
        if isinstance(segment, Marker):
            if segment.mark is Mark.UNIT:
                raise BadInput("A turn-based conversation has no units.")
            is_open = segment.mark is Mark.TURN_START
            if is_open:
                turns.append((segment.role or "user", []))
            continue
        if not is_open:
            turns.append(("user", []))
            is_open = True
        turns[-1][1].append(segment)
    return turns


class UnitPrefillJob(PrefillJob):
    """Duplex: the system prompt, or one unit."""

    def __init__(self, model: Parts, conversation: Conversation, work: Prefill) -> None:
        super().__init__(model, conversation)
        if conversation.state.unsettled is not None:
            raise InvalidRequest("The last unit has not been settled.")
        segments = work.segments
        self.is_unit = any(isinstance(s, Marker) and s.mark is Mark.UNIT for s in segments)
        self.is_short = False
        self.protects = False
        self.suffix = 0
        self.kind = "audio"
        self._kept: tuple[Samples, tuple[Frame, ...]] | None = None
        self.is_first_sound = False
        media = Media()
        if self.is_unit:
            self._unit(segments, media)
        else:
            self._system(segments, media)
        if self._result is not None:
            return
        self.wants_logits = self.is_unit and not self.is_short
        conversation.ledger.require(self.added)
        self.prepared()

    def _system(self, segments: Sequence[Segment], media: Media) -> None:
        """`<|im_start|>system`, text, newline, the voice between its tags, `<|im_end|>`.

        The newline and the tags are part of the layout, also without a voice. Outside of turn marks
        texts and sounds are fed as they are.
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
                    media.begin_group()
                    sound = media.add_clip(
                        samples_of(segment), pool_step=self.model.config.pool_step
                    )
                    parts.append(sound)
                case Image():
                    raise BadInput("A duplex system prompt holds no pictures.")
        ids: list[int] = []
        places: list[Place] = []
        for part in merge_texts(parts):
            if isinstance(part, str):
                ids += self.model.tokenizer.encode(part)
            elif isinstance(part, PromptSound):
                count = part.tokens
                places.append(Place("audio", part.index, 0, len(ids), len(ids) + count))
                ids += [self.model.tokenizer.ids.unk] * count
        self.prompt = Prompt(tuple(ids), tuple(places))
        self.added = len(ids)
        self.work.take_signals(media.signals())

    def _unit(self, segments: Sequence[Segment], media: Media) -> None:
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
                    new = samples_of(segment)
                    sound = new if sound is None else np.concatenate([sound, new])
                case Text():
                    raise BadInput("A unit holds sound and pictures only.")
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
        self.kind = "omni" if frames and sound is not None else "vision" if frames else "audio"
        self._kept = (rest, ())
        self.work.pictures = frames
        self.work.live = live
        self._lay_out(10 if live is not None else 0)

    def _wait(self, buffer: Samples, frames: list[Frame]) -> None:
        """Too little sound for a unit: keep it, and the pictures with it, and feed nothing."""
        self.is_short = True
        if self.model.behaviour.waits_for_whole_units:
            state = self.conversation.state
            state.buffered, state.frames = buffer, tuple(frames[-WAITING_FRAMES:])
            state.logits = None
            self.done()
            return
        self._kept = (buffer, ())
        self.work.pictures = frames
        self._lay_out(0)

    def _lay_out(self, sounds: int) -> None:
        """Ids and places: the unit's tag, each picture's pieces between their tags, the sound."""
        special = self.model.tokenizer.ids
        rules, queries = self.model.config.slices, self.model.config.query_num
        ids = [special.unit]
        places: list[Place] = []
        for index, (pixels, limit) in enumerate(self.work.pictures):
            height, width = pixels.shape[:2]
            grid = choose_grid(width, height, limit or rules.max_slices, rules.resolution)
            count = 1 if grid is None else 1 + grid[0] * grid[1]
            for piece in range(count):
                tags = (
                    (special.image, special.image_end)
                    if piece == 0
                    else (special.slice, special.slice_end)
                )
                start = len(ids) + 1
                ids += [tags[0], *[special.unk] * queries, tags[1]]
                places.append(Place("image", index, piece * queries, start, start + queries))
        if sounds:
            places.append(Place("audio", 0, 0, len(ids), len(ids) + sounds))
            ids += [special.unk] * sounds
        self.prompt = Prompt(tuple(ids), tuple(places))
        self.added = len(ids)

    def encoded(self) -> None:
        """The sound's true number of tokens is known now."""
        if self.work.live_tokens is not None:
            self._lay_out(int(self.work.live_tokens.shape[0]))
        self.go(Stage.PREFILL)

    def fed(self, logits: Tensor | None) -> None:
        conversation = self.conversation
        state, ledger = conversation.state, conversation.ledger
        ledger.append(self.added)
        if not self.is_unit:
            if self.protects:
                ledger.protect(suffix_tokens=self.suffix)
            self.done()
            return
        if state.units == 0 and not ledger.entries and not ledger.protected_tokens:
            # A prompt that came without turn marks is a system prompt all the same.
            ledger.cut(self.added)
            ledger.protect()
            ledger.append(self.added)
        assert self._kept is not None
        state.buffered, state.frames = self._kept
        state.unit_start = ledger.length_tokens - self.added
        state.unit_kind = self.kind
        if self.is_short:
            state.logits = None
            self.done()
            return
        if self.work.live is not None:
            state.live_units += 1
        state.units += 1
        state.logits = logits
        self.done()
