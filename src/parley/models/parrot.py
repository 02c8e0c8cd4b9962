"""Model that echoes its input: the echo test, and the simplest model that satisfies the contract.

In turn-based modes it reports in a sentence how long and how loud you spoke, what it saw and what
you wrote, and plays your voice back. In duplex it listens while you speak; after one silent unit it
replays your voice second by second, and ignores what you say meanwhile (without headphones it would
answer itself forever). It needs no weights and no torch, and its steps take no time: all measured
time is the server's own.

Context tokens are counted approximately as in MiniCPM-o, so that the same limits are reached: 10
tokens per second of audio, 64 + 2 per picture or slice, one per word or Chinese character.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from parley.engine.context import ContextLedger
from parley.engine.model import Job, Memory, ModelSpec
from parley.engine.segments import Audio, Image, Mark, Marker, Segment, Text
from parley.engine.work import (
    Ending,
    Finalize,
    Generate,
    GenerateResult,
    OutputPiece,
    Prefill,
    PrefillResult,
    Stage,
    StartSession,
    StepUnit,
    TalkWork,
)
from parley.media.pcm import INPUT_RATE_HZ, OUTPUT_RATE_HZ, Pcm, join, level_dbfs
from parley.media.resample import resample
from parley.models.job import FinalizeJob, ModelJob, RowModel, merge_texts
from parley.models.plan import ModelPlan
from parley.protocol.values import CONTEXT_TOKENS
from parley.settings import ModelSettings

UNIT_SAMPLES = OUTPUT_RATE_HZ
"""One second of speech: the output of one step, and of one unit."""

VOICE_DBFS = -45.0
"""Louder audio counts as speech."""

WORDS_PER_SOUND = 4
"""Number of words between two seconds of audio in a streamed reply: text is ahead of audio."""

SPEECH_TOKEN_SAMPLES = 960
"""40 ms, like the real model's speech tokens. Source: sessions.md."""

SLICE_PIXELS = 448 * 448
IMAGE_TOKENS = 64
CLOSING_TOKENS = 2
"""Number of closing tokens: the terminator and the end of the unit or turn."""

_CJK = r"\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
_WORD = re.compile(rf"(?:[{_CJK}]|[^\s{_CJK}]+)\s*")
_MARKER_TOKENS = {Mark.TURN_START: 3, Mark.TURN_END: CLOSING_TOKENS, Mark.UNIT: 1}


def words_of(text: str) -> tuple[str, ...]:
    """Split a text into the parrot's tokens: words, and Chinese, Japanese or Korean characters."""
    return tuple(_WORD.findall(text.lstrip()))


def count(segment: Segment, default_slices: int) -> int:
    """Number of context tokens of a segment."""
    match segment:
        case Text(text):
            return len(words_of(text))
        case Audio(pcm):
            return math.ceil(10 * len(pcm) / pcm.rate_hz)
        case Image():
            return (IMAGE_TOKENS + 2) * count_slices(segment, default_slices)
        case Marker(mark):
            return _MARKER_TOKENS[mark]


def count_slices(image: Image, default_slices: int) -> int:
    """Number of slices of a picture: the overview, and tiles according to its area and the
    limit."""
    height, width = image.pixels.shape[:2]
    limit = default_slices if image.max_slices is None else image.max_slices
    tiles = min(math.ceil(height * width / SLICE_PIXELS), limit)
    return 1 + tiles if tiles > 1 else 1


@dataclass(frozen=True, slots=True, eq=False)
class _Input:
    """Input since the last answer. Immutable, so that a checkpoint can refer to it."""

    sounds: tuple[Pcm, ...] = ()
    sizes: tuple[tuple[int, int], ...] = ()
    texts: tuple[str, ...] = ()

    def and_also(self, segment: Segment) -> _Input:
        match segment:
            case Audio(pcm):
                return replace(self, sounds=(*self.sounds, pcm))
            case Image(pixels):
                size = (int(pixels.shape[1]), int(pixels.shape[0]))
                return replace(self, sizes=(*self.sizes, size))
            case Text(text) if text.strip():
                return replace(self, texts=(*self.texts, text.strip()))
            case _:
                return self

    @property
    def is_asking(self) -> bool:
        """True if the user said or wrote something."""
        return bool(self.sounds or self.texts)

    def sentence(self) -> str:
        """The parrot's description of the input."""
        parts = []
        if self.sounds:
            sound = join(self.sounds, INPUT_RATE_HZ)
            level = level_dbfs(sound)
            loudness = f"at {level:.0f} dB" if math.isfinite(level) else "in silence"
            parts.append(f"You spoke for {sound.duration_s:.1f} seconds {loudness}.")
        if self.sizes:
            sizes = dict.fromkeys(f"{width} by {height}" for width, height in self.sizes)
            noun = "picture" if len(self.sizes) == 1 else "pictures"
            parts.append(f"I saw {len(self.sizes)} {noun} of {' and '.join(sizes)}.")
        parts += [f"You wrote: {text}" for text in self.texts]
        return " ".join(parts) or "I heard nothing."

    def voice(self) -> Pcm:
        """All audio, resampled to the output rate."""
        return resample(join(self.sounds, INPUT_RATE_HZ), OUTPUT_RATE_HZ)


@dataclass(frozen=True, slots=True, eq=False)
class _State:
    """State of a row other than its lengths; replaced as a whole.

    Args:
        role: of the turn that is being read.
        heard: turn-based: the last user turn; duplex: the input since the parrot last spoke.
        has_replied: turn-based: the round has its answer, so the next turn starts a new one.
        is_reply_open: turn-based: the answer's terminators are due before the next turn.
        is_unit_silent: duplex: of the unit that awaits its decision; None if there is none.
        is_unfinalized: duplex: the unit has its decision, and its terminators are due.
        is_answering: duplex: a turn of the parrot is running.
        sound, words: duplex: what remains to be said in that turn.
        said: duplex: number of words said in the open unit.
        decisions: duplex: number of decisions made.
    """

    role: str | None = None
    heard: _Input = _Input()
    has_replied: bool = False
    is_reply_open: bool = False
    is_unit_silent: bool | None = None
    is_unfinalized: bool = False
    is_answering: bool = False
    sound: Pcm = field(default_factory=lambda: Pcm.empty(OUTPUT_RATE_HZ))
    words: tuple[str, ...] = ()
    said: int = 0
    decisions: int = 0

    def silent(self) -> _State:
        """This state with nothing left to say."""
        return replace(self, is_answering=False, sound=Pcm.empty(OUTPUT_RATE_HZ), words=())


class _SlotState:
    """All state of one row."""

    def __init__(self, opening: StartSession, limit_tokens: int) -> None:
        self.opening = opening
        self.is_duplex = opening.mode == "duplex"
        self.ledger = ContextLedger(limit_tokens, opening.window, marker_tokens=2)
        self.state = _State()

    @property
    def awaits_finalize(self) -> bool:
        return self.state.is_unfinalized

    @property
    def context_tokens(self) -> int:
        return self.ledger.length_tokens

    def take_in(self, segment: Segment, tokens: int) -> None:
        """Add a segment to the context."""
        match segment:
            case Marker(Mark.TURN_START, role):
                self._begin_turn(role)
            case Marker(Mark.UNIT):
                self.state = replace(self.state, is_unit_silent=True)
            case Audio() | Image() | Text():
                self._hear(segment)
            case _:
                pass
        self.ledger.append(tokens)
        if isinstance(segment, Marker) and segment.mark is Mark.TURN_END:
            if self.state.role == "system":
                self.ledger.protect(suffix_tokens=CLOSING_TOKENS)
            self.state = replace(self.state, role=None, has_replied=self.state.role == "assistant")

    def slide(self) -> int:
        """Drop what the window evicts; returns the number of tokens dropped."""
        eviction = self.ledger.plan()
        if eviction is None:
            return 0
        self.ledger.commit(eviction)
        return eviction.dropped_tokens

    def finalize(self) -> int:
        """Add a unit's terminators, and slide its window; returns the number of tokens dropped."""
        self.ledger.append(CLOSING_TOKENS)
        self.ledger.end_entry(said=range(self.state.said))
        self.state = replace(self.state, is_unfinalized=False, said=0)
        return self.slide()

    def _begin_turn(self, role: str | None) -> None:
        if self.state.has_replied or role == "system":
            self.ledger.end_entry()
        heard = _Input() if role == "user" else self.state.heard
        self.state = replace(
            self.state, role=role, heard=heard, has_replied=False, is_reply_open=False
        )

    def _hear(self, segment: Segment) -> None:
        state = self.state
        if state.is_unit_silent is None:
            if state.role not in ("system", "assistant"):
                self.state = replace(state, heard=state.heard.and_also(segment))
            return
        if isinstance(segment, Audio):
            if level_dbfs(segment.pcm) <= VOICE_DBFS:
                return
            self.state = state = replace(state, is_unit_silent=False)
            if state.is_answering:
                return
        self.state = replace(state, heard=state.heard.and_also(segment))


class _PrefillJob(ModelJob):
    """Encode if the input has audio or pictures, then prefill one piece per step."""

    def __init__(
        self, row: int, conversation: _SlotState, work: Prefill, piece_tokens: int
    ) -> None:
        segments = merge_texts(work.segments)
        has_media = any(isinstance(segment, Audio | Image) for segment in segments)
        super().__init__(row, Stage.ENCODE if has_media else Stage.PREFILL)
        self._conversation = conversation
        self._piece_tokens = piece_tokens
        slices = 9 if conversation.opening.mode == "chat" else 1
        self._parts = [(segment, count(segment, slices)) for segment in segments]
        if conversation.state.is_reply_open and _starts_turn(segments):
            self._parts.insert(0, (Text(""), CLOSING_TOKENS))
        self._slices = sum(
            count_slices(segment, slices) for segment in segments if isinstance(segment, Image)
        )
        self._added = self._left = sum(tokens for _, tokens in self._parts)
        if not conversation.is_duplex:
            # Tokens that the window drops before this prefill count as free.
            eviction = conversation.ledger.plan()
            conversation.ledger.require(self._added - (eviction.dropped_tokens if eviction else 0))
        else:
            # A unit also needs room for the token that decides it and for its terminators.
            conversation.ledger.require(self._added + 1 + CLOSING_TOKENS)

    def run(self) -> None:
        if self.stage is Stage.ENCODE:
            self.go(Stage.PREFILL)
            return
        self._left = max(0, self._left - self._piece_tokens)
        if self._left:
            return
        conversation = self._conversation
        # Turn-based windows slide before and after each prefill, duplex ones when a unit is
        # finalized.
        if not conversation.is_duplex:
            conversation.slide()
        for segment, tokens in self._parts:
            conversation.take_in(segment, tokens)
        if not conversation.is_duplex:
            conversation.slide()
        self.finish(
            PrefillResult(
                self._added,
                conversation.ledger.length_tokens,
                vision_slices=self._slices,
                vision_tokens=IMAGE_TOKENS * self._slices,
            )
        )


class _GenerateJob(ModelJob):
    """Generate the sentence word by word and the voice second by second; some words always come
    first."""

    def __init__(self, row: int, conversation: _SlotState, work: Generate) -> None:
        super().__init__(row, Stage.PREFILL)
        conversation.ledger.require(_MARKER_TOKENS[Mark.TURN_START] + 1)
        self._conversation = conversation
        self._work = work
        heard = conversation.state.heard
        self._words = words_of(work.say or heard.sentence())
        self._said = 0
        speaks = work.speak and conversation.opening.speak
        self._voice = heard.voice() if speaks else Pcm.empty(OUTPUT_RATE_HZ)
        self._played = 0
        self.is_streamed = work.streaming

    def cancel(self) -> None:
        if self.stage is not None:
            self._end(Ending.CANCELLED)

    def run(self) -> None:
        match self.stage:
            case Stage.PREFILL:
                self._conversation.ledger.append(_MARKER_TOKENS[Mark.TURN_START])
                self.go(Stage.DECODE)
            case Stage.DECODE:
                self._say()
            case _:
                self._play()

    def _say(self) -> None:
        self._conversation.ledger.append(1)
        self._pieces.append(OutputPiece(text=self._words[self._said]))
        self._said += 1
        sound_is_due = self._said % WORDS_PER_SOUND == 0 and self._played < len(self._voice)
        self._continue(Stage.VOCODE if sound_is_due else Stage.DECODE)

    def _play(self) -> None:
        chunk = self._voice.slice(self._played, self._played + UNIT_SAMPLES)
        self._played += len(chunk)
        self._pieces.append(OutputPiece(pcm=chunk))
        self._continue(Stage.DECODE)

    def _continue(self, stage: Stage) -> None:
        ledger = self._conversation.ledger
        if self._said < len(self._words):
            is_full = ledger.length_tokens >= ledger.limit_tokens
            if stage is Stage.DECODE and (self._said >= self._work.max_new_tokens or is_full):
                self._end(Ending.LIMIT)
            else:
                self.stage = stage
        elif self._played < len(self._voice):
            self.stage = Stage.VOCODE
        else:
            self._end(Ending.DONE)

    def _end(self, ending: Ending) -> None:
        conversation = self._conversation
        conversation.state = replace(conversation.state, has_replied=True, is_reply_open=True)
        self.finish(
            GenerateResult(
                ending,
                "".join(self._words[: self._said]),
                end_of_turn=ending is Ending.DONE,
                text_tokens=self._said,
                speech_tokens=math.ceil(self._played / SPEECH_TOKEN_SAMPLES),
                context_tokens=conversation.ledger.length_tokens,
            )
        )


class _UnitJob(ModelJob):
    """One unit: listen, or say the next second of the pending answer."""

    def __init__(self, row: int, conversation: _SlotState, work: StepUnit) -> None:
        is_due = conversation.state.is_unit_silent is not None
        super().__init__(row, Stage.DECODE if is_due else None)
        self._conversation = conversation
        self._work = work
        self._chunk = Pcm.empty(OUTPUT_RATE_HZ)
        self._text = ""
        self._said = 0
        self._is_last = False
        if not is_due:
            self._end(Ending.LISTEN)

    def cancel(self) -> None:
        if self.stage is Stage.DECODE:
            self._decided(self._conversation.state.silent())
        if self.stage is not None:
            self._chunk = Pcm.empty(OUTPUT_RATE_HZ)
            self._end(Ending.CANCELLED)

    def run(self) -> None:
        if self.stage is Stage.VOCODE:
            self._pieces.append(OutputPiece(pcm=self._chunk))
            self._end(Ending.SPOKE)
        else:
            self._choose()

    def _choose(self) -> None:
        state = self._conversation.state
        options = self._conversation.opening.duplex
        if self._work.say is not None:
            self._say_again(replace(state.silent(), heard=_Input()), words_of(self._work.say))
            return
        if self._work.force_listen or state.decisions < options.force_listen_count:
            self._listen(state.silent())
            return
        if not state.is_answering and state.is_unit_silent and state.heard.is_asking:
            speaks = self._conversation.opening.speak and options.generate_audio
            state = replace(
                state,
                is_answering=True,
                sound=state.heard.voice() if speaks else state.sound,
                words=words_of(state.heard.sentence()),
                heard=_Input(),
            )
        if state.is_answering:
            self._speak(state)
        else:
            self._listen(state)

    def _listen(self, state: _State) -> None:
        self._decided(state)
        self._end(Ending.LISTEN)

    def _say_again(self, state: _State, words: tuple[str, ...]) -> None:
        self._conversation.ledger.append(1 + len(words))
        self._text, self._said, self._is_last = "".join(words), len(words), True
        self._decided(replace(state, said=len(words)))
        self._end(Ending.SPOKE)

    def _speak(self, state: _State) -> None:
        ledger, samples = self._conversation.ledger, len(state.sound)
        seconds_left = max(1, math.ceil(samples / UNIT_SAMPLES))
        room = ledger.limit_tokens - ledger.length_tokens - CLOSING_TOKENS - 1
        limit = self._conversation.opening.duplex.max_new_speak_tokens_per_chunk - 2
        taken = max(0, min(math.ceil(len(state.words) / seconds_left), max(1, limit), room))
        words, left = state.words[:taken], state.words[taken:]
        chunk, rest = state.sound.slice(0, UNIT_SAMPLES), state.sound.slice(UNIT_SAMPLES)
        self._is_last = samples <= UNIT_SAMPLES and (not left or room <= taken)
        if 0 < samples < UNIT_SAMPLES and not self._is_last:
            # The words outlast the audio: a delta in the middle is always a whole second.
            silence = Pcm.silence(UNIT_SAMPLES - samples, OUTPUT_RATE_HZ)
            chunk = join([chunk, silence], OUTPUT_RATE_HZ)
        self._chunk, self._text, self._said = chunk, "".join(words), taken
        ledger.append(1 + taken)
        self._pieces.append(OutputPiece(text=self._text))
        state = replace(state, sound=rest, words=left, said=taken)
        self._decided(state.silent() if self._is_last else state)
        if samples:
            self.stage = Stage.VOCODE
        else:
            self._end(Ending.SPOKE)

    def _decided(self, state: _State) -> None:
        self._conversation.state = replace(
            state, is_unit_silent=None, is_unfinalized=True, decisions=state.decisions + 1
        )

    def _end(self, ending: Ending) -> None:
        self.finish(
            GenerateResult(
                ending,
                self._text,
                end_of_turn=self._is_last,
                text_tokens=self._said,
                speech_tokens=math.ceil(len(self._chunk) / SPEECH_TOKEN_SAMPLES),
                context_tokens=self._conversation.ledger.length_tokens,
            )
        )


class Parrot(RowModel[_SlotState]):
    def __init__(
        self, rows: int = 1, *, name: str = "parrot", context_limit_tokens: int = CONTEXT_TOKENS
    ) -> None:
        spec = ModelSpec(name=name, context_limit_tokens=context_limit_tokens, reads_in_units=True)
        super().__init__(spec, rows)

    def job_of(self, row: int, conversation: _SlotState, work: TalkWork) -> Job:
        match work:
            case Prefill():
                return _PrefillJob(row, conversation, work, self._spec.prefill_piece_tokens)
            case Generate():
                return _GenerateJob(row, conversation, work)
            case StepUnit():
                return _UnitJob(row, conversation, work)
            case Finalize():
                return FinalizeJob(row, conversation, conversation.finalize)

    def open(self, row: int, opening: StartSession, seed: int) -> None:
        del seed  # Nothing that it says is random.
        self._conversations[row] = _SlotState(opening, self._spec.context_limit_tokens)

    def remember(self, row: int, conversation: _SlotState) -> Any:
        return conversation.ledger.copy(), conversation.state

    def can_return(self, conversation: _SlotState, kept: Any) -> bool:
        return bool(kept[0].evictions == conversation.ledger.evictions)

    def return_to(self, row: int, conversation: _SlotState, kept: Any) -> None:
        ledger, conversation.state = kept
        conversation.ledger = ledger.copy()

    def warm_up(self) -> None:
        resample(Pcm.silence(INPUT_RATE_HZ, INPUT_RATE_HZ), OUTPUT_RATE_HZ)

    def memory(self) -> Memory:
        sounds = [
            sound
            for conversation in self._conversations
            if conversation is not None
            for sound in (*conversation.state.heard.sounds, conversation.state.sound)
        ]
        return Memory(0, 0, sum(sound.samples.nbytes for sound in sounds))


def load(settings: ModelSettings) -> Parrot:
    """Return a parrot with the requested number of rows; `auto` means eight."""
    return Parrot(8 if settings.slots == "auto" else settings.slots or 1)


def describe(settings: ModelSettings) -> ModelPlan:
    """The plan of a load, which needs no files and no device."""
    rows = 8 if settings.slots == "auto" else settings.slots or 1
    return ModelPlan("parrot", source="built in", device="none", slots=rows)


def _starts_turn(segments: Sequence[Segment]) -> bool:
    return any(
        isinstance(segment, Marker) and segment.mark is Mark.TURN_START for segment in segments
    )
