"""The recogniser: from sound to words, in bounded steps, so that an engine can do other things
between them.

A small network often hears the right word second: "gold" for "cold". Who knows what is likely to be
said (`expects`) is asked about the transcript; where it is not, the next likely readings are
written too, best first, and the first that is expected holds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from parley.media.pcm import Samples
from parley.models.cascade.transcript import clean, once, repetition
from parley.models.cascade.whisper import RATE_HZ, Whisper, log_mel

WINDOWS_S = ((5.5, 8.0), (11.0, 12.0))
"""Utterances up to the first are heard in a window of the second: a third or less of the time. On
40 recordings of a person 3.1 % of the words are wrong in 12 s instead of 3.7 in 30 s
(docs/log/pocket.md), on 99 short prompts of another 12.6 % in 8 s instead of 12.3 in 12 s, 61 of
them right in both. Repetitions, which short windows invite, are stopped below."""
SHORT_S = 11.0
LONGEST_S = 28.0
"""Longest sound that is recognised in one pass; longer utterances are cut where they are
quietest."""
UNSURE = -0.4
"""Below this confidence a short utterance is recognised again with `LEAD_S` of silence before it,
because the network is sensitive to where a sound starts. The reading with the higher confidence is
used."""
LEAD_S = 0.35
TOKENS_PER_STEP, ROUNDS_PER_STEP = 8, 4
"""Tokens per step of one reading, and of several readings together."""
TOKEN_LIMIT = 120
FORK_LOSS = 4.2
"""Maximum difference in log probability between another reading and the first."""
FORK_TOKENS = 4
"""Alternative tokens considered at each position."""
FORKS, FORKS_AT_ONCE = 10, 5
"""Maximum number of other readings, and how many are decoded together: a token for five takes
little longer than one."""

Expects = Callable[[str], bool]


@dataclass(frozen=True, slots=True)
class Heard:
    """What was understood.

    Args:
        text: "" for no words.
        confidence: mean log probability of its tokens; 0 is certain.
        silence: the network's own probability that nobody speaks.
        steps: how many it took.
    """

    text: str
    confidence: float = 0.0
    silence: float = 0.0
    steps: int = 1


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What the ids mean.

    Args:
        pieces: bytes of each text token, in the order of the (pruned) ids.
        start: tokens that begin every transcript.
        end: the token that ends it.
        silence: the token that says that nobody speaks.
        banned: ids that are never chosen.
        leading: ids that may not come first (blank, and the end).
    """

    pieces: tuple[bytes, ...]
    start: tuple[int, ...]
    end: int
    silence: int
    banned: tuple[int, ...]
    leading: tuple[int, ...]

    def letters(self, token: int) -> str:
        """The audible part of a token: without case, spaces and punctuation; "" if none."""
        return "".join(sign for sign in self.text([token]).lower() if sign.isalnum())

    def text(self, ids: list[int]) -> str:
        return b"".join(self.pieces[one] for one in ids if one < len(self.pieces)).decode(
            "utf-8", "replace"
        )


@dataclass(slots=True, eq=False)
class _Reading:
    """A transcript on its way.

    Args:
        loss: how much less likely its tokens are than those chosen instead.
        ids: its tokens; the last is not in `past`.
        past, kept: what the decoder has written and heard, as `Whisper.write` takes it.
        scores: log probability of each token that was chosen here.
        text: when it is finished.
        is_refused: makes no sense.
    """

    loss: float
    ids: list[int]
    past: list[tuple[Tensor, Tensor]]
    kept: list[tuple[Tensor, Tensor]]
    scores: list[float] = field(default_factory=list)
    text: str | None = None
    is_refused: bool = False


class Recognition:
    """One utterance on its way to words. `step` does a bounded piece; `heard` at the end.

    Args:
        expects: says of a transcript whether it makes sense; None takes any.
    """

    def __init__(
        self,
        network: Whisper,
        words: Vocabulary,
        samples: Samples,
        expects: Expects | None = None,
    ) -> None:
        self._network = network
        self._words = words
        self._samples = level(samples)
        self._expects = expects
        self._best: Heard | None = None
        self._others: list[_Reading] = []
        self._tried = 0
        self._steps = 0
        self.heard: Heard | None = None
        self._begin()

    def _begin(self) -> None:
        self._layer = -1
        self._encoded: Tensor | None = None
        self._silence = 0.0
        self._readings: list[_Reading] = []

    def step(self) -> bool:
        """Do a bounded piece of work; true when finished."""
        network = self._network
        if self._encoded is None:
            seconds = len(self._samples) / RATE_HZ
            fitting = [window for longest, window in WINDOWS_S if seconds <= longest]
            window_s = fitting[0] if fitting else network.shape.window_s
            self._encoded = network.begin(log_mel(self._samples, window_s))
            self._layer = 0
        elif self._layer < len(network.encoder):
            self._encoded = network.encode(self._encoded, self._layer)
            self._layer += 1
            if self._layer == len(network.encoder):
                self._readings = [_Reading(0.0, [], [], network.listen(self._encoded))]
        elif self.heard is None:
            self._write()
        self._steps += 1
        if self.heard is not None:
            self.heard = replace(self.heard, steps=self._steps)
        return self.heard is not None

    def _write(self) -> None:
        for _ in range(TOKENS_PER_STEP if len(self._readings) == 1 else ROUNDS_PER_STEP):
            unfinished = [one for one in self._readings if one.text is None]
            # Those of one encoding go together.
            for kept in {id(one.kept): one.kept for one in unfinished}.values():
                self._write_next([one for one in unfinished if one.kept is kept])
            if self._tried:
                self._consider()
            elif self._readings[0].text is not None:
                self._take_first(self._readings[0])
            if self.heard is not None or not self._readings:
                return

    def _write_next(self, readings: list[_Reading]) -> None:
        words, kept = self._words, readings[0].kept
        if not readings[0].ids:
            (first,) = readings
            logits = self._network.write(list(words.start), 0, first.past, kept)[None]
            self._silence = float(torch.softmax(logits[0].float(), -1)[words.silence])
        elif len(readings) == 1:
            (one,) = readings
            logits = self._network.write([one.ids[-1]], self._place(one), one.past, kept)[None]
        else:
            logits = self._network.write_each(
                [one.ids[-1] for one in readings], [self._place(one) for one in readings],
                [one.past for one in readings], kept,
            )  # fmt: skip
        for one, row in zip(readings, logits.float().clone(), strict=True):
            self._choose(one, row)

    def _place(self, reading: _Reading) -> int:
        return len(self._words.start) + len(reading.ids) - 1

    def _choose(self, reading: _Reading, logits: Tensor) -> None:
        """Choose a token from logits (V,) and keep its alternatives."""
        words = self._words
        if not reading.ids:
            logits[list(words.leading)] = -math.inf
        logits[list(words.banned)] = -math.inf
        chances = torch.log_softmax(logits, -1)
        values, tokens = chances.topk(1 + FORK_TOKENS)
        token = int(tokens[0])
        if self._expects is not None:
            losses = (reading.loss + values[0] - values[1:]).tolist()
            self._keep_others(reading, token, tokens[1:].tolist(), losses)
        reading.scores.append(float(values[0]))
        is_over = token == words.end or len(reading.ids) >= TOKEN_LIMIT
        if not is_over:
            reading.ids.append(token)
            repeated = repetition(reading.ids)
            if repeated:
                del reading.ids[-repeated:]
                is_over = True
        if is_over:
            text = once(words.text(reading.ids), len(self._samples) / RATE_HZ)
            reading.text = clean(text)

    def _keep_others(
        self, reading: _Reading, chosen: int, others: list[int], losses: list[float]
    ) -> None:
        """Keep alternatives that are other words; other spellings of the same word do not count."""
        seen = {"", self._words.letters(chosen)}
        for other, loss in zip(others, losses, strict=True):
            letters = self._words.letters(other)
            if loss <= FORK_LOSS and letters not in seen:
                seen.add(letters)
                self._others.append(
                    _Reading(loss, [*reading.ids, other], list(reading.past), reading.kept)
                )

    def _take_first(self, reading: _Reading) -> None:
        confidence = sum(reading.scores) / max(1, len(reading.scores))
        heard = Heard(reading.text or "", confidence, self._silence)
        if self._best is None:
            self._best = heard
            if confidence < UNSURE and len(self._samples) <= SHORT_S * RATE_HZ:
                lead = np.zeros(round(LEAD_S * RATE_HZ), np.float32)
                self._samples = np.concatenate((lead, self._samples))
                self._begin()
                return
        else:
            self._best = max(self._best, heard, key=lambda one: one.confidence)
        if self._expects is None or not self._best.text or self._expects(self._best.text):
            self.heard = self._best
        else:
            self._try_others()

    def _consider(self) -> None:
        """Accept the likeliest reading that is expected once all likelier ones are finished."""
        assert self._best is not None
        assert self._expects is not None
        for one in self._readings:
            if one.text is None:
                return
            if not one.is_refused and one.text and self._expects(one.text):
                # As sure as the first reading was: it is what the sound may be believed by.
                self.heard = Heard(one.text, self._best.confidence, self._best.silence)
                return
            one.is_refused = True
        self._try_others()

    def _try_others(self) -> None:
        count = min(FORKS_AT_ONCE, FORKS - self._tried)
        self._others.sort(key=lambda one: one.loss)
        self._readings, self._others = self._others[:count], self._others[count:]
        self._tried += len(self._readings)
        if not self._readings:
            self.heard = self._best


class Recogniser:
    """Whisper as the cascade's recogniser."""

    def __init__(self, network: Whisper, words: Vocabulary) -> None:
        self.network = network
        self.words = words

    def begin(self, samples: Samples, expects: Expects | None = None) -> Recognition:
        """Start on an utterance (N,), 16 kHz."""
        cut = samples[: round(LONGEST_S * RATE_HZ)]
        return Recognition(self.network, self.words, cut, expects)

    def hear(self, samples: Samples, expects: Expects | None = None) -> Heard:
        """Recognise a whole utterance."""
        work = self.begin(samples, expects)
        while not work.step():
            continue
        assert work.heard is not None
        return work.heard


def level(samples: Samples) -> Samples:
    """Amplify quiet recordings to the levels of the training data."""
    top = float(np.abs(samples).max(initial=0.0))
    return samples if not 1e-4 < top < 0.25 else (samples * (0.5 / top)).astype(np.float32)
