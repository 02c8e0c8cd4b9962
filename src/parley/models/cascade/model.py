"""The cascade on the engine's contract: recogniser, language model, voice and eyes in a row.

What was heard goes into the context as text, the answer is written token by token and spoken clause
by clause while it is being written. Everything that differs between two conversations is an
immutable `Memo`, so a mark is a memo; the language model's cache is only a cache, and is brought up
to date by comparing tokens (`writer.py`).

Stages: ENCODE recogniser and eyes; PREFILL prompt tokens; DECODE one token; VOCODE one clause of
speech. Rows are stepped one after the other: on a CPU nothing is won by batching, and so a row
never depends on its company.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from parley.engine.model import Job, Memory, ModelSpec
from parley.engine.segments import Audio, Image, Mark, Marker, Segment, Text
from parley.engine.work import (
    Checkpoint,
    Ending,
    Finalize,
    FinalizeResult,
    Generate,
    GenerateResult,
    OutputPiece,
    Prefill,
    PrefillResult,
    Stage,
    StartResult,
    StartSession,
    StepUnit,
    Work,
)
from parley.errors import ContextFull, InvalidRequest
from parley.media.image import Pixels
from parley.media.pcm import INPUT_RATE_HZ, OUTPUT_RATE_HZ, Pcm, Samples, join
from parley.media.resample import resample
from parley.models.cascade import memory, notes
from parley.models.cascade.detector import BARGE_MS, Turns, believed, is_echo
from parley.models.cascade.messages import History, Line
from parley.models.cascade.prompt import PERSONA
from parley.models.cascade.sampling import Rule
from parley.models.cascade.voice.reading import cut
from parley.models.cascade.whisper import Heard
from parley.models.cascade.writer import Draft, Writer
from parley.models.job import ModelJob
from parley.protocol.values import Role
from parley.vad.base import WINDOW_SAMPLES, Detector, DetectorFactory

UNIT_SAMPLES = OUTPUT_RATE_HZ
HEAT = 0.3
"""Share of the asked temperature that the bundled model uses: it has few right answers."""
STEADY = 0.5
"""Greatest `top_p` for the bundled model: what it is sure of, it always says."""
HIGH_SHARE, LOW_SHARE = 0.6, 0.35
"""Above the first share of the context the oldest rounds are dropped, down to the second."""
DUPLEX_TOKENS = 120
"""Longest answer in a duplex conversation."""
NOTHING_HEARD = "um"
"""What stands in the context for a turn without words."""

_NOT_PROMPTS = (
    "clone the voice", "use the voice in the audio prompt", "you are a helpful assistant with the above",
    "as an assistant, you will speak using this voice", "try to role-play the character based on the audio",
    "use the <reserved", "streaming omni conversation", "streaming duplex conversation", "模仿", "你的任务是用这种声音", "请用这种声音", "假装你是",
)  # fmt: skip


_GENERIC = re.compile(
    r"(?:you are|you're) an? (?:helpful|friendly|useful|good)?(?: and \w+)? ?(?:ai |voice |personal )?assistant"
    r"(?:\W+(?:please )?(?:reply|answer|respond|speak) (?:naturally|briefly|politely|helpfully|in english))?\W*"
)
"""Prompts that say no more than our own, such as those that pages and clients send by default."""


class Hearing(Protocol):
    """An utterance on its way to words."""

    @property
    def heard(self) -> Heard | None: ...

    def step(self) -> bool:
        """A bounded piece of work; True when finished."""
        ...


class Recogniser(Protocol):
    """Sound to words."""

    def begin(self, samples: Samples) -> Hearing: ...


class Speaker(Protocol):
    """Words to sound."""

    def find(self, voice: Pcm | None) -> int:
        """The number of the voice that comes closest to a reference."""
        ...

    def say(self, clause: str, voice: int) -> Samples:
        """A clause (N,), 24 kHz. May be empty."""
        ...


class Eyes(Protocol):
    """A picture to a sentence."""

    def look(self, pixels: Pixels) -> str: ...


@dataclass(frozen=True, slots=True, eq=False)
class Telling:
    """An answer of a duplex conversation while it is spoken.

    Args:
        draft: what was written of it.
        taken: how much of its text has become sound.
        clauses: what was spoken, with its length in samples.
        waiting: sound that was not played yet, (N,).
        played: samples that were.
    """

    draft: Draft = field(default_factory=Draft)
    taken: int = 0
    clauses: tuple[tuple[str, int], ...] = ()
    waiting: Samples = field(default_factory=lambda: np.zeros(0, np.float32))
    played: int = 0
    shown: int = 0

    @property
    def is_all_spoken(self) -> bool:
        return self.draft.is_over and self.taken >= len(self.draft.text)

    def heard_text(self) -> str:
        """The words whose sound was played."""
        left, words = self.played, []
        for text, samples in self.clauses:
            if left >= samples:
                words.append(text)
            elif left > 0:
                pieces = text.split()
                words.append(" ".join(pieces[: round(len(pieces) * left / max(1, samples))]))
            left -= samples
        return " ".join(" ".join(words).split())


@dataclass(frozen=True, slots=True, eq=False)
class Memo:
    """What a row knows; replaced as a whole."""

    history: History
    tokens: int = 0
    draws: int = 0
    role: Role | None = None
    turns: Turns = field(default_factory=Turns)
    ear: tuple[Samples, Samples] | None = None
    rest: Samples = field(default_factory=lambda: np.zeros(0, np.float32))
    picture: str | None = None
    images: tuple[Pixels, ...] = ()
    telling: Telling | None = None
    echo: Samples = field(default_factory=lambda: np.zeros(0, np.float32))
    is_unit_open: bool = False
    is_unfinalized: bool = False
    barged_ms: int = 0
    decisions: int = 0
    heard: str = ""
    written: str = ""


class Conversation:
    """One row's opening, and its memo."""

    def __init__(self, opening: StartSession, seed: int, voice: int, ear: Detector | None) -> None:
        self.opening = opening
        self.seed = seed
        self.voice = voice
        self.ear = ear
        self.memo = Memo(History(PERSONA))
        self.serial = 0
        self.abandoned: list[tuple[int, int]] = []

    @property
    def is_duplex(self) -> bool:
        return self.opening.mode == "duplex"

    @property
    def speaks(self) -> bool:
        return self.opening.speak and (not self.is_duplex or self.opening.duplex.generate_audio)


@dataclass(frozen=True, slots=True, eq=False)
class CascadeMark:
    """A remembered point of one opening of one row."""

    row: int
    conversation: Conversation
    memo: Memo
    serial: int
    point: object

    @property
    def context_tokens(self) -> int:
        return self.memo.tokens


class CascadeJob(ModelJob):
    """A piece of work as a row of steps."""

    def run(self) -> None:
        """One step of the present stage."""
        raise NotImplementedError


class OpenJob(CascadeJob):
    """A new conversation."""

    def __init__(self, model: Cascade, row: int, opening: StartSession) -> None:
        super().__init__(row, Stage.VOCODE)
        self._model, self._opening = model, opening

    def run(self) -> None:
        opening = self._opening
        seed = random.randrange(2**63) if opening.seed is None else opening.seed
        self._model.begin(self._row, opening, seed)
        self.finish(StartResult(seed))


class PrefillJob(CascadeJob):
    """Segments enter the context: sound as words, pictures as notes."""

    def __init__(self, model: Cascade, row: int, conversation: Conversation, work: Prefill) -> None:
        has_media = any(isinstance(one, Audio | Image) for one in work.segments)
        super().__init__(row, Stage.ENCODE if has_media else Stage.PREFILL)
        self._model, self._conversation = model, conversation
        self._waiting = merged(work.segments)
        self._memo = conversation.memo
        self._hearing: Hearing | None = None
        self._windows: list[Samples] = []
        self._slices = 0
        self._heard: list[str] = []
        texts = " ".join(one.text for one in work.segments if isinstance(one, Text))
        model.require(conversation.memo, texts)

    def run(self) -> None:
        if self._stage is Stage.PREFILL:
            if self._waiting:
                self._take_in()
            memo = self._memo
            if self._model.writer.prepare(self._row, memo.history):
                self._commit()
            return
        if self._hearing is not None:
            self._hear_on()
        elif self._waiting:
            self._take_in()
        if self._hearing is None and not self._waiting and not self._wants_words():
            self.go(Stage.PREFILL)

    def _take_in(self) -> None:
        """Up to and including the next sound or picture."""
        while self._waiting:
            segment = self._waiting.pop(0)
            match segment:
                case Marker(Mark.TURN_START, role):
                    self._begin(role or "user")
                case Marker(Mark.TURN_END):
                    self._close()
                case Marker(Mark.UNIT):
                    self._memo = replace(self._memo, is_unit_open=True)
                case Text(text):
                    self._add(text)
                case Image(pixels):
                    self._see(pixels)
                    return
                case Audio(pcm):
                    if self._memo.is_unit_open:
                        self._listen(pcm)
                    elif self._memo.role not in ("system", "assistant"):
                        self._hearing = self._model.recogniser.begin(pcm.samples)
                    return

    # Turns.

    def _begin(self, role: Role) -> None:
        memo = self._memo
        self._memo = replace(memo, role=role)
        if role == "system":
            self._memo = replace(self._memo, history=replace(memo.history, system=""))
        elif role == "user":
            lines = memo.history.lines
            if not (lines and lines[-1].is_open):
                self._lines((*lines, Line("user", "", is_open=True)))

    def _add(self, text: str) -> None:
        memo = self._memo
        if memo.is_unit_open:
            written = " ".join(f"{memo.written} {text}".split())
            self._memo = replace(memo, written=written)
        elif memo.role == "system":
            joined = " ".join((memo.history.system + " " + text).split())
            self._memo = replace(memo, history=replace(memo.history, system=joined))
        elif memo.role == "assistant":
            self._lines((*memo.history.lines, Line("assistant", " ".join(text.split()))))
        else:
            self._user(text)

    def _user(self, text: str, image: Pixels | None = None) -> None:
        lines = self._memo.history.lines
        if not (lines and lines[-1].is_open):
            lines = (*lines, Line("user", "", is_open=True))
        last = lines[-1]
        images = (*last.images, image) if image is not None else last.images
        words = " ".join(f"{last.text} {plain(text)}".split())
        self._lines((*lines[:-1], replace(last, text=words, images=images)))

    def _close(self) -> None:
        memo = self._memo
        if memo.role == "system":
            system = persona_of(memo.history.system)
            self._memo = replace(memo, history=replace(memo.history, system=system))
        elif memo.role == "user" and memo.history.lines and memo.history.lines[-1].is_open:
            self._memo = replace(
                memo,
                history=closed(memo.history, memo.picture, self._model, self._conversation.seed),
                picture=None,
            )
        self._memo = replace(self._memo, role=None)

    def _lines(self, lines: tuple[Line, ...]) -> None:
        self._memo = replace(self._memo, history=replace(self._memo.history, lines=lines))

    # Senses.

    def _see(self, pixels: Pixels) -> None:
        self._slices += 1
        if self._model.writer.sees:
            if self._memo.is_unit_open:
                self._memo = replace(self._memo, images=(pixels,))
            else:
                self._user("", pixels)
        elif self._model.eyes is not None:
            self._memo = replace(self._memo, picture=self._model.eyes.look(pixels))

    def _hear_on(self) -> None:
        assert self._hearing is not None
        if not self._hearing.step():
            return
        heard = self._hearing.heard
        assert heard is not None
        self._hearing = None
        if self._memo.is_unit_open:
            turns = self._memo.turns
            text = believed(
                heard.text,
                confidence=heard.confidence,
                silence=heard.silence,
                speech_ms=turns.speech_ms,
            )
            self._memo = replace(self._memo, turns=turns.with_words(text))
        elif heard.text:
            self._heard.append(heard.text)
            self._user(heard.text)

    def _listen(self, pcm: Pcm) -> None:
        """A unit of live sound goes through the voice detector."""
        memo, ear = self._memo, self._conversation.ear
        assert ear is not None
        restore(ear, memo.ear)
        sound = np.concatenate((memo.rest, pcm.samples))
        turns = memo.turns
        ours = None
        if memo.telling is not None or len(memo.echo):
            ours = memo.echo
        speech_before = turns.speech_ms if turns.is_open else 0
        count = len(sound) // WINDOW_SAMPLES
        windows = [sound[n * WINDOW_SAMPLES : (n + 1) * WINDOW_SAMPLES] for n in range(count)]
        spoken = 0
        for window in windows:
            probability = ear.probability(window)
            turns = turns.take(window, probability)
            spoken += probability >= 0.6
        if ours is not None and len(ours) and spoken and is_echo(pcm.samples, ours):
            turns, spoken = Turns(), 0
        barged = 0
        if memo.telling is not None:
            barged = memo.barged_ms + 64 * spoken if spoken else 0
        del speech_before
        self._memo = replace(
            memo,
            turns=turns,
            rest=sound[count * WINDOW_SAMPLES :],
            ear=snapshot(ear),
            barged_ms=barged,
        )
        if turns.wants_words:
            self._hearing = self._model.recogniser.begin(turns.samples)

    def _wants_words(self) -> bool:
        return False

    def _commit(self) -> None:
        memo = self._memo
        conversation = self._conversation
        before = conversation.memo.tokens
        history = memo.history
        tokens = self._model.writer.count(history)
        conversation.memo = replace(memo, tokens=tokens)
        self.finish(
            PrefillResult(
                tokens - before, tokens, vision_slices=self._slices,
                vision_tokens=64 * self._slices, heard=" ".join(self._heard),
            )
        )  # fmt: skip


class ReplyJob(CascadeJob):
    """Answers the open turn: written token by token, spoken clause by clause."""

    def __init__(
        self, model: Cascade, row: int, conversation: Conversation, work: Generate
    ) -> None:
        super().__init__(row, Stage.PREFILL)
        self._model, self._conversation, self._work = model, conversation, work
        memo = conversation.memo
        history = model.windowed(memo.history)
        lines = history.lines
        if not lines or lines[-1].role == "assistant":
            history = replace(history, lines=(*lines, Line("user", NOTHING_HEARD, is_open=True)))
        self._history = closed(history, memo.picture, model, conversation.seed)
        self._draft = Draft()
        self._taken = 0
        self._said: list[str] = []
        self._clauses: list[str] = []
        self._samples = 0
        self._held: list[OutputPiece] = []
        self._draws = memo.draws
        self._speaks = work.speak and conversation.speaks and model.speaker is not None
        sampling = work.sampling
        temperature = 0.0 if sampling.is_greedy else sampling.temperature
        self._rule = model.rule(
            temperature, sampling.top_p, sampling.top_k, sampling.repetition_penalty
        )

    def run(self) -> None:
        if self._stage is Stage.VOCODE:
            self._speak()
            return
        if self._work.say is not None:
            self._draft = Draft(self._work.say, is_over=True)
            self._after_text()
            return
        before = self._draft
        self._draft = self._model.writer.step(
            self._row, self._history, before, self._rule, self._work.max_new_tokens,
            self._conversation.seed, self._draws,
        )  # fmt: skip
        if self._draft is not before and (
            len(self._draft.ids) != len(before.ids) or self._draft.is_over
        ):
            self._draws += 1
        self._after_text()

    def _after_text(self) -> None:
        draft = self._draft
        if draft.problem and not draft.text:
            self._draft = draft = replace(draft, text=draft.problem)
        if self._speaks:
            clauses, _ = cut(draft.text[self._taken :], is_last=draft.is_over)
            for clause in clauses:
                self._taken += len(clause)
            self._clauses += clauses
            if self._clauses:
                self.go(Stage.VOCODE)
                return
        elif len(draft.text) > self._taken:
            self._put(OutputPiece(draft.text[self._taken :]))
            self._taken = len(draft.text)
        self._go_on()

    def _speak(self) -> None:
        clause = self._clauses[0]
        assert self._model.speaker is not None
        wave = self._model.speaker.say(clause, self._conversation.voice)
        self._clauses.pop(0)
        self._samples += len(wave)
        self._said.append(clause)
        self._put(OutputPiece(clause, Pcm(wave, OUTPUT_RATE_HZ) if len(wave) else None))
        if not self._clauses:
            self._go_on()

    def _go_on(self) -> None:
        if self._draft.is_over:
            self._end(Ending.LIMIT if self._draft.is_limit else Ending.DONE)
            return
        reads = self._model.writer.is_reading(self._row, self._history, self._draft)
        self.go(Stage.PREFILL if reads else Stage.DECODE)

    def _put(self, piece: OutputPiece) -> None:
        (self._pieces if self._work.streaming else self._held).append(piece)

    def cancel(self) -> None:
        if self._stage is not None:
            self._model.writer.cancel(self._row)
            self._end(Ending.CANCELLED)

    def _end(self, ending: Ending) -> None:
        if self._held:
            self._pieces.append(joined(self._held))
        said = "".join(self._said) if self._speaks else self._draft.text[: self._taken]
        draft, conversation = self._draft, self._conversation
        # What was cut off was not heard: the history holds what was said.
        is_whole = said == draft.text
        answer = Line("assistant", said.strip(), ids=draft.ids if is_whole else ())
        told = self._history.told
        history = replace(self._history, lines=(*self._history.lines, answer), told=told)
        memo = replace(
            conversation.memo, history=history, draws=self._draws, picture=None,
            tokens=self._model.writer.count(history), role=None,
        )  # fmt: skip
        conversation.memo = memo
        self.finish(
            GenerateResult(
                ending, said, end_of_turn=ending is Ending.DONE, text_tokens=draft.count,
                speech_tokens=-(-self._samples // 960), context_tokens=memo.tokens,
            )
        )  # fmt: skip


class AnswerJob(CascadeJob):
    """One unit of duplex: listen, or say the next second."""

    def __init__(
        self, model: Cascade, row: int, conversation: Conversation, work: StepUnit
    ) -> None:
        memo = conversation.memo
        super().__init__(row, Stage.DECODE if memo.is_unit_open else None)
        self._model, self._conversation, self._work = model, conversation, work
        self._memo = memo
        self._text = ""
        self._begun = False
        self._tokens = 0
        self._heard = ""
        if not memo.is_unit_open:
            self._end(Ending.LISTEN, memo)

    def run(self) -> None:
        if not self._begun:
            self._decide()
        else:
            self._tell()

    def _decide(self) -> None:
        self._begun = True
        memo = self._memo
        options = self._conversation.opening.duplex
        if self._work.force_listen or memo.decisions < options.force_listen_count:
            self._end(Ending.LISTEN, self._interrupted(memo))
            return
        if memo.telling is not None:
            if memo.barged_ms >= BARGE_MS:
                self._end(Ending.LISTEN, self._interrupted(memo))
            else:
                self._tell()
            return
        if memo.turns.is_noise:
            self._end(Ending.LISTEN, replace(memo, turns=memo.turns.without()))
            return
        # What was written waits for whoever is speaking, and is answered together with them.
        is_due = memo.turns.is_due or (bool(memo.written) and not memo.turns.is_open)
        if not is_due:
            self._end(Ending.LISTEN, memo)
            return
        self._heard = memo.turns.text or ""
        text = " ".join(filter(None, (memo.written, self._heard)))
        history = self._model.windowed(memo.history)
        line = Line("user", plain(text), images=memo.images, is_open=True)
        history = replace(history, lines=(*history.lines, line))
        history = closed(
            history,
            memo.picture if asks_to_see(text) else None,
            self._model,
            self._conversation.seed,
        )
        self._memo = replace(
            memo, history=history, turns=Turns(), telling=Telling(), images=(), written=""
        )
        self._tell()

    def _tell(self) -> None:
        """Write or speak until there is a second of sound, then play it."""
        memo = self._memo
        telling = memo.telling
        assert telling is not None
        speaks = self._conversation.speaks and self._model.speaker is not None
        if self._stage is Stage.VOCODE:
            telling = self._voiced(telling)
        enough = len(telling.waiting) >= UNIT_SAMPLES if speaks else self._tokens >= 10
        if enough or telling.is_all_spoken:
            self._play(telling, speaks=speaks)
            return
        clauses, _ = cut(telling.draft.text[telling.taken :], is_last=telling.draft.is_over)
        if clauses and speaks:
            self._memo = replace(memo, telling=telling)
            if self._stage is not Stage.VOCODE:
                self.go(Stage.VOCODE)
            return
        if clauses:
            taken = telling.taken + sum(map(len, clauses))
            self._tokens += 10
            self._memo = replace(
                memo,
                telling=replace(
                    telling, taken=taken, clauses=(*telling.clauses, *((c, 0) for c in clauses))
                ),
            )
            return
        draft = self._model.writer.step(
            self._row,
            memo.history,
            telling.draft,
            self._rule(),
            DUPLEX_TOKENS,
            self._conversation.seed,
            memo.draws,
        )
        draws = memo.draws + (draft is not telling.draft)
        if draft.problem and not draft.text:
            draft = replace(draft, text=draft.problem, is_over=True)
        self._memo = replace(memo, telling=replace(telling, draft=draft), draws=draws)
        reads = not draft.is_over and self._model.writer.is_reading(self._row, memo.history, draft)
        self.go(Stage.PREFILL if reads else Stage.DECODE)

    def _voiced(self, telling: Telling) -> Telling:
        clauses, _ = cut(telling.draft.text[telling.taken :], is_last=telling.draft.is_over)
        if not clauses:
            return telling
        assert self._model.speaker is not None
        wave = self._model.speaker.say(clauses[0], self._conversation.voice)
        telling = replace(
            telling, taken=telling.taken + len(clauses[0]),
            clauses=(*telling.clauses, (clauses[0], len(wave))),
            waiting=np.concatenate((telling.waiting, wave)),
        )  # fmt: skip
        self._memo = replace(self._memo, telling=telling)
        return telling

    def _rule(self) -> Rule:
        options = self._conversation.opening.duplex
        temperature = 0.0 if options.decode_mode == "greedy" else options.temperature
        return self._model.rule(temperature, options.top_p, options.top_k)

    def _play(self, telling: Telling, *, speaks: bool) -> None:
        chunk, rest = telling.waiting[:UNIT_SAMPLES], telling.waiting[UNIT_SAMPLES:]
        is_last = telling.is_all_spoken and not len(rest)
        if not is_last and len(chunk) < UNIT_SAMPLES and speaks:
            chunk = np.concatenate((chunk, np.zeros(UNIT_SAMPLES - len(chunk), np.float32)))
        # The words of a clause come with the second in which its sound begins.
        played = telling.played + len(chunk)
        begins, shown = 0, 0
        for _, samples in telling.clauses:
            if begins < played or not speaks or is_last:
                shown += 1
            begins += samples
        fresh = telling.clauses[telling.shown : shown]
        self._text = "".join(text for text, _ in fresh)
        piece = OutputPiece(self._text, Pcm(chunk, OUTPUT_RATE_HZ) if len(chunk) else None)
        if piece.text or piece.pcm is not None:
            self._pieces.append(piece)
        telling = replace(telling, waiting=rest, played=played, shown=shown)
        echo = (
            resample(Pcm(chunk, OUTPUT_RATE_HZ), INPUT_RATE_HZ).samples
            if len(chunk)
            else np.zeros(0, np.float32)
        )
        memo = replace(
            self._memo, echo=np.concatenate((self._memo.echo, echo))[-2 * INPUT_RATE_HZ :]
        )
        if is_last:
            answer = Line("assistant", telling.draft.text.strip(), ids=telling.draft.ids)
            if telling.draft.text.strip() != telling.draft.text or not telling.draft.ids:
                answer = replace(answer, ids=())
            memo = replace(
                memo, telling=None, barged_ms=0,
                history=replace(memo.history, lines=(*memo.history.lines, answer)),
            )  # fmt: skip
        else:
            memo = replace(memo, telling=telling)
        self._end(Ending.SPOKE, memo, end_of_turn=is_last, samples=len(chunk))

    def _interrupted(self, memo: Memo) -> Memo:
        """Our answer ends here; the history keeps what was heard of it."""
        telling = memo.telling
        if telling is None:
            return memo
        self._model.writer.cancel(self._row)
        text = telling.heard_text()
        history = memo.history
        if text:
            history = replace(history, lines=(*history.lines, Line("assistant", text)))
        return replace(memo, telling=None, history=history, barged_ms=0)

    def cancel(self) -> None:
        if self._stage is not None:
            self._text = ""
            self._end(Ending.CANCELLED, self._interrupted(self._memo))

    def _end(
        self, ending: Ending, memo: Memo, *, end_of_turn: bool = False, samples: int = 0
    ) -> None:
        conversation = self._conversation
        was_open = conversation.memo.is_unit_open
        if ending is Ending.LISTEN and memo.telling is None and len(memo.echo):
            memo = replace(memo, echo=memo.echo[INPUT_RATE_HZ:])
        memo = replace(
            memo, is_unit_open=False, is_unfinalized=was_open or memo.is_unfinalized,
            decisions=memo.decisions + was_open, tokens=self._count(memo),
        )  # fmt: skip
        conversation.memo = memo
        self.finish(
            GenerateResult(
                ending, self._text, end_of_turn=end_of_turn, text_tokens=len(self._text.split()),
                speech_tokens=-(-samples // 960), context_tokens=memo.tokens, heard=self._heard,
            )
        )  # fmt: skip

    def _count(self, memo: Memo) -> int:
        count = self._model.writer.count(memo.history)
        if memo.telling is not None:
            count += memo.telling.draft.count
        return count


class FinalizeJob(CascadeJob):
    """Nothing is due: a finished answer is closed by the next turn."""

    def __init__(self, row: int, conversation: Conversation) -> None:
        super().__init__(row, Stage.FINALIZE if conversation.memo.is_unfinalized else None)
        self._conversation = conversation
        if self._stage is None:
            self.finish(FinalizeResult(conversation.memo.tokens))

    def run(self) -> None:
        memo = self._conversation.memo
        self._conversation.memo = replace(memo, is_unfinalized=False)
        self.finish(FinalizeResult(memo.tokens))


class Cascade:
    """See the module's text.

    Args:
        voices: how many conversations at once.
        ears: makes a voice detector per conversation.
        eyes: None says nothing about pictures.
        speaker: None for text only.
    """

    def __init__(
        self,
        writer: Writer,
        recogniser: Recogniser,
        speaker: Speaker | None,
        eyes: Eyes | None,
        ears: DetectorFactory,
        *,
        rows: int,
        name: str = "cascade",
        weights_bytes: int = 0,
    ) -> None:
        self.writer = writer
        self.recogniser = recogniser
        self.speaker = speaker
        self.eyes = eyes
        self._ears = ears
        self._weights_bytes = weights_bytes
        self._spec = ModelSpec(
            name=name, context_limit_tokens=writer.limit_tokens, can_speak=speaker is not None,
            prefill_piece_tokens=128, transcribes=True, reads_aloud=speaker is not None,
            reads_in_units=True,
        )  # fmt: skip
        self._conversations: list[Conversation | None] = [None] * rows

    @property
    def spec(self) -> ModelSpec:
        return self._spec

    @property
    def rows(self) -> int:
        return len(self._conversations)

    @property
    def has_default_voice(self) -> bool:
        """There is always one."""
        return self.speaker is not None

    def start(self, row: int, work: Work) -> Job:
        if isinstance(work, StartSession):
            return OpenJob(self, row, work)
        conversation = self._conversations[row]
        if conversation is None:
            raise InvalidRequest("The conversation has not been opened.")
        match work:
            case Prefill(segments):
                if conversation.memo.is_unfinalized:
                    raise InvalidRequest("The last unit has not been finalized.")
                for segment in segments:
                    if isinstance(segment, Audio) and segment.pcm.rate_hz != INPUT_RATE_HZ:
                        raise InvalidRequest(
                            f"Sound must have {INPUT_RATE_HZ} Hz here, got {segment.pcm.rate_hz} Hz."
                        )
                return PrefillJob(self, row, conversation, work)
            case Finalize():
                return FinalizeJob(row, conversation)
            case StepUnit():
                if not conversation.is_duplex:
                    raise InvalidRequest("Units are answered in duplex only.")
                return AnswerJob(self, row, conversation, work)
            case Generate():
                if conversation.is_duplex:
                    raise InvalidRequest("Turns are answered in chat and half-duplex only.")
                return ReplyJob(self, row, conversation, work)

    def step(self, stage: Stage, jobs: Sequence[Job]) -> None:
        for job in jobs:
            assert isinstance(job, CascadeJob)
            # A step that failed for another row is repeated: who has moved on already stays there.
            if job.stage is stage:
                job.run()

    def begin(self, row: int, opening: StartSession, seed: int) -> None:
        """A new conversation takes the row."""
        voice = (
            self.speaker.find(opening.voice) if self.speaker is not None and opening.speak else 0
        )
        ear = self._ears() if opening.mode == "duplex" else None
        self.writer.open(row)
        self._conversations[row] = Conversation(opening, seed, voice, ear)
        conversation = self._conversations[row]
        assert conversation is not None
        conversation.memo = replace(conversation.memo, history=History(PERSONA))
        conversation.memo = replace(conversation.memo, tokens=0)

    def require(self, memo: Memo, text: str) -> None:
        """Raises `ContextFull` when words do not fit even into an empty context."""
        limit = self.writer.limit_tokens
        if len(text) < limit // 2:
            return
        needed = self.writer.count_text(text) + self.writer.count_text(memo.history.system) + 64
        if needed > limit:
            raise ContextFull(max(needed, limit + 1), limit)

    def windowed(self, history: History) -> History:
        """The history without its oldest rounds where it has grown too long."""
        limit = self.writer.limit_tokens
        if self.writer.count(history) <= HIGH_SHARE * limit:
            return history
        lines = history.lines
        while (
            len(lines) > 1 and self.writer.count(replace(history, lines=lines)) > LOW_SHARE * limit
        ):
            following = [n for n, line in enumerate(lines) if n and line.role == "user"]
            if not following:
                break
            lines = lines[following[0] :]
        known = tuple(memory.listen(history.told).sentences()) if self.writer.takes_notes else ()
        return replace(history, lines=lines, known=known)

    def rule(self, temperature: float, top_p: float, top_k: int, penalty: float = 1.0) -> Rule:
        """How tokens are chosen: as asked, more carefully with the bundled model."""
        if not self.writer.takes_notes:
            return Rule(temperature, top_p, top_k, penalty)
        return Rule(HEAT * temperature, min(top_p, STEADY), top_k, penalty)

    def mark(self, row: int) -> Checkpoint:
        conversation = self._conversations[row]
        if conversation is None:
            raise InvalidRequest("The conversation has not been opened.")
        conversation.serial += 1
        return CascadeMark(
            row, conversation, conversation.memo, conversation.serial, self.writer.point(row)
        )

    def can_roll_back(self, mark: Checkpoint) -> bool:
        if (
            not isinstance(mark, CascadeMark)
            or self._conversations[mark.row] is not mark.conversation
        ):
            return False
        return not any(a < mark.serial <= b for a, b in mark.conversation.abandoned)

    def roll_back(self, mark: Checkpoint) -> None:
        assert isinstance(mark, CascadeMark)
        conversation = mark.conversation
        kept = [one for one in conversation.abandoned if one[0] < mark.serial]
        conversation.abandoned = [*kept, (mark.serial, conversation.serial)]
        conversation.memo = mark.memo
        self.writer.cancel(mark.row)
        self.writer.rewind(mark.row, mark.point)

    def context_tokens(self, row: int) -> int:
        conversation = self._conversations[row]
        return 0 if conversation is None else conversation.memo.tokens

    def close(self, row: int) -> None:
        if self._conversations[row] is not None:
            self.writer.close(row)
        self._conversations[row] = None

    def warm_up(self) -> None:
        hearing = self.recogniser.begin(np.zeros(INPUT_RATE_HZ, np.float32))
        while not hearing.step():
            continue
        if self.speaker is not None:
            self.speaker.say("Hello there.", 0)
        draft = Draft()
        self.writer.open(0)
        for _ in range(4):
            draft = self.writer.step(0, History("", (Line("user", "Hi"),)), draft, Rule(), 2, 0, 0)
        self.writer.close(0)

    def memory(self) -> Memory:
        row = int(getattr(self.writer, "row_bytes", 0))
        used = int(getattr(self.writer, "used_bytes", 0))
        return Memory(self._weights_bytes, row, used)

    def unload(self) -> None:
        for row in range(self.rows):
            self.close(row)


def closed(history: History, picture: str | None, model: Cascade, seed: int) -> History:
    """The open turn of the user ends, and gets its note."""
    lines = history.lines
    if not lines or not lines[-1].is_open:
        return history
    last = lines[-1]
    text = last.text or ("What is this?" if picture or last.images else NOTHING_HEARD)
    note = None
    if model.writer.takes_notes:
        answers = [line.text for line in lines if line.role == "assistant"]
        note = picture or notes.note_for(text, history.told, seed=seed % 1000, answers=answers)
    line = replace(last, text=text, note=note, is_open=False)
    return replace(history, lines=(*lines[:-1], line), told=(*history.told, text))


def persona_of(system: str) -> str:
    """Who the model is: the asked prompt, or our own where it only speaks of voices."""
    low = system.lower().strip()
    if _GENERIC.fullmatch(low):
        return PERSONA
    for phrase in _NOT_PROMPTS:
        if low.startswith(phrase):
            return PERSONA
    return system.strip() or PERSONA


def plain(text: str) -> str:
    """Words of a user, without anything that could be taken for a control token."""
    return " ".join(text.replace("<|", "< ").replace("|>", " >").split())


def asks_to_see(text: str) -> bool:
    """Whether an utterance is about what the camera shows."""
    low = text.lower()
    return any(
        word in low
        for word in ("see", "look", "picture", "this", "colour", "color", "shape", "holding", "camera", "circle",
                     "square", "triangle", "star", "heart", "ring", "cross", "image", "show")
    )  # fmt: skip


def merged(segments: Sequence[Segment]) -> list[Segment]:
    """Neighbouring texts are one text."""
    found: list[Segment] = []
    for segment in segments:
        if isinstance(segment, Text) and found and isinstance(found[-1], Text):
            found[-1] = Text(found[-1].text + segment.text)
        else:
            found.append(segment)
    return found


def joined(pieces: Sequence[OutputPiece]) -> OutputPiece:
    """Several pieces as one."""
    sounds = [piece.pcm for piece in pieces if piece.pcm is not None]
    return OutputPiece(
        "".join(piece.text for piece in pieces), join(sounds, OUTPUT_RATE_HZ) if sounds else None
    )


def snapshot(ear: Detector) -> tuple[Samples, Samples] | None:
    """What a detector remembers, if it remembers anything."""
    state, context = getattr(ear, "_state", None), getattr(ear, "_context", None)
    return None if state is None or context is None else (state.copy(), context.copy())


def restore(ear: Detector, kept: tuple[Samples, Samples] | None) -> None:
    """Return a detector to a snapshot; None is its beginning."""
    ear.reset()
    if kept is not None:
        ear._state, ear._context = kept[0].copy(), kept[1].copy()  # type: ignore[attr-defined]
