"""Converts speech to text in bounded steps, so that an engine can do other work between them."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from parley.media.pcm import Pcm, Samples
from parley.media.segments import bounds_of
from parley.models.cascade.transcript import FOREIGN_SPEECH, clean, once, repetition
from parley.models.cascade.whisper import RATE_HZ, Vocabulary, Whisper, log_mel
from parley.models.cascade.word_times import FRAME_S, timed, token_starts
from parley.protocol.values import WordTime

WINDOWS_S = ((3.0, 6.0), (5.5, 8.0), (11.0, 12.0), (15.0, 20.0))
"""Utterances up to the first length are recognised in a window of the second, which takes a third
of the time or less. On 40 recordings of a person, 3.1 % of the words are wrong in 12 s; in 6 s as
many as in 8 s, in a quarter less time; of 3,061 words in 11 to 14 s of speech, 10.2 % in 20 s
instead of 10.8 in 30 s (docs/log/pocket.md). Short windows cause repetitions, which are stopped
below."""
SHORT_S = 11.0
LONGEST_S = 28.0
"""Maximum length of audio that is recognised; callers cut longer audio at its pauses
(`stretches_of`)."""
LEAD_S = 0.35
UNCLEAR, UNCLEAR_WORD = -0.5, -0.7
"""Text below the first confidence is unclear; none of 32 prompts of a person was below it. A short
utterance is then recognised again with `LEAD_S` of silence before it, because the network is
sensitive to where a sound starts, and the reading with the higher confidence is used. A single
word, whose end and punctuation count as much as the word, is unclear below the second: 16 of 125
that were right (64 are below the first), and 41 of 58 others (55)."""
TOKENS_PER_STEP = 8
TOKEN_LIMIT = 120


@dataclass(frozen=True, slots=True)
class Heard:
    """Result of recognition.

    Args:
        text: "" for no words.
        confidence: mean log probability of its tokens; 0 is certain.
        silence: the network's probability that there is no speech.
        steps: number of steps that it took.
    """

    text: str
    confidence: float = 0.0
    silence: float = 0.0
    steps: int = 1

    @property
    def is_unclear(self) -> bool:
        return self.confidence < (UNCLEAR_WORD if len(self.text.split()) == 1 else UNCLEAR)


@dataclass(slots=True, eq=False)
class _Reading:
    """A transcript that is being written.

    Args:
        lead_s: seconds of silence before its sound.
        kept, past: keys and values of the audio and of the written tokens, for `Whisper.write`.
        ids: its tokens; the last one is not in `past` yet.
        scores: log probability of each token that was chosen here.
        silence: see `Heard`.
        text: None until it is complete.
    """

    lead_s: float
    kept: list[tuple[Tensor, Tensor]]
    past: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    silence: float = 0.0
    text: str | None = None

    @property
    def confidence(self) -> float:
        return sum(self.scores) / max(1, len(self.scores))


class Recognition:
    """Recognition of one utterance. `step` does a bounded piece of work; `heard` is the result."""

    def __init__(self, network: Whisper, words: Vocabulary, samples: Samples) -> None:
        self._network = network
        self._words = words
        self._samples = level(samples)
        self._spoken = bounds_of(Pcm(self._samples, RATE_HZ))
        """Start and end of all sound, in seconds."""
        self._held: _Reading | None = None
        """The reading that is used."""
        self._steps = 0
        self._work = self._recognise()
        self.heard: Heard | None = None

    def step(self) -> bool:
        """Do a bounded piece of work; true when finished."""
        self._steps += 1
        self.heard = next(self._work)
        return self.heard is not None

    def _recognise(self) -> Iterator[Heard | None]:
        """Yield the result, and None after each piece of work before it. An unclear reading is
        followed by another one; the one with the higher confidence is used."""
        held = yield from self._read(0.0)
        if held.confidence < UNCLEAR and len(self._samples) <= SHORT_S * RATE_HZ:
            yield None
            again = yield from self._read(LEAD_S)
            held = max(held, again, key=lambda one: one.confidence)
        self._held = held
        yield Heard(held.text or "", held.confidence, held.silence, self._steps)

    def _read(self, lead_s: float) -> Generator[None, None, _Reading]:
        network = self._network
        lead = np.zeros(round(lead_s * RATE_HZ), np.float32)
        sound = np.concatenate((lead, self._samples))
        seconds = len(sound) / RATE_HZ
        fitting = (window for longest, window in WINDOWS_S if seconds <= longest)
        encoded = network.begin(log_mel(sound, next(fitting, network.shape.window_s)))
        for layer in range(len(network.encoder)):
            yield
            encoded = network.encode(encoded, layer)
        reading = _Reading(lead_s, network.listen(encoded))
        while reading.text is None:
            if len(reading.scores) % TOKENS_PER_STEP == 0:
                yield
            self._write_next(reading)
        return reading

    def _write_next(self, reading: _Reading) -> None:
        words = self._words
        start, ids = 0, list(words.start)
        if reading.ids:
            start, ids = len(ids) + len(reading.ids) - 1, [reading.ids[-1]]
        logits = self._network.write(ids, start, reading.past, reading.kept)
        if not reading.ids:
            reading.silence = float(torch.softmax(logits.float(), -1)[words.silence])
        self._choose(reading, logits.float().clone())

    def _choose(self, reading: _Reading, logits: Tensor) -> None:
        """Choose a token from logits (V,)."""
        words = self._words
        if not reading.ids:
            logits[list(words.leading)] = -math.inf
        logits[list(words.banned)] = -math.inf
        chances = torch.log_softmax(logits, -1)
        score, token = (float(one) for one in chances.max(-1))
        token = int(token)
        reading.scores.append(score)
        is_over = token == words.end or len(reading.ids) >= TOKEN_LIMIT
        if not is_over:
            reading.ids.append(token)
            repeated = repetition(reading.ids)
            if repeated:
                del reading.ids[-repeated:]
                is_over = True
        if is_over:
            start_s, end_s = self._spoken
            reading.text = clean(once(words.text(reading.ids), end_s - start_s))

    def likelihoods(self, texts: list[str]) -> list[float]:
        """Log probability of each text in the audio, regardless of how the text continues."""
        assert self._held is not None
        ids = [self._ids(text, self._held.ids) for text in texts]
        found = self._network.likelihoods(self._words.start, ids, self._held.kept)
        return [float(one) for one in found]

    def _ids(self, text: str, written: list[int]) -> list[int]:
        """The tokens of a text: the written ones, or all but the last of them, if they are this
        text; else those of the vocabulary."""
        for ids in (written, written[:-1]):
            if self._words.text(ids).strip() == text:
                return ids
        return self._words.ids(f" {text}")

    def word_times(self, text: str) -> tuple[WordTime, ...]:
        """Times of the words of `text`, in seconds. `text` is that of `heard`, or the sentence that
        replaces it."""
        if self._held is None or text in ("", FOREIGN_SPEECH):
            return ()
        reading, words, looks = self._held, self._words, list[Tensor]()
        ids = self._ids(text, reading.ids)
        self._network.write([*words.start, *ids], 0, [], reading.kept, looks)
        frames = math.ceil((reading.lead_s + len(self._samples) / RATE_HZ) / FRAME_S)
        starts = token_starts(looks, len(words.start) - 1, frames) - reading.lead_s
        pieces = [words.text([one]) for one in ids]
        return timed(pieces, starts.clip(*self._spoken), text)


class Recogniser:
    """Whisper as the cascade's recogniser."""

    def __init__(self, network: Whisper, words: Vocabulary) -> None:
        self.network = network
        self.words = words

    def begin(self, samples: Samples) -> Recognition:
        """Start to recognise an utterance (N,) at 16 kHz."""
        return Recognition(self.network, self.words, samples[: round(LONGEST_S * RATE_HZ)])


def level(samples: Samples) -> Samples:
    """Amplify quiet recordings to the levels of the training data."""
    top = float(np.abs(samples).max(initial=0.0))
    return samples if not 1e-4 < top < 0.25 else (samples * (0.5 / top)).astype(np.float32)
