"""The recogniser: from sound to words, in bounded steps, so that an engine can do other things
between them.

A small network often hears the right word second: "gold" for "cold". Who knows what is likely to be
said (`expects`) is asked about the transcript; where it is not, the next likely readings are
written too, best first, and the first that is expected holds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from parley.media.pcm import Samples
from parley.models.cascade.transcript import clean, once, repetition
from parley.models.cascade.whisper import RATE_HZ, Whisper, log_mel

SHORT_S, SHORT_WINDOW_S = 11.0, 12.0
"""Utterances up to the first are heard in a window of the second: a third of the time, and on 40
recordings of a person 3.1 % of the words wrong instead of 3.7 (docs/log.md). Repetitions, which
short windows invite, are stopped below."""
LONGEST_S = 28.0
"""What is heard at once; longer utterances are cut where they are quietest."""
UNSURE = -0.4
"""Below this confidence a short utterance is heard once more, with `LEAD_S` of silence before it:
the network is sensitive to where a sound begins. The surer reading holds."""
LEAD_S = 0.35
TOKENS_PER_STEP = 8
TOKEN_LIMIT = 120
FORK_LOSS = 4.2
"""How much less likely another reading may be than the first, in log probability."""
FORK_TOKENS = 4
"""Other tokens that are considered at each place."""
FORKS = 10
"""Other readings at most, each some milliseconds."""

Expects = Callable[[str], bool]


@dataclass(frozen=True, slots=True)
class Heard:
    """What was understood.

    Args:
        text: "" for no words.
        confidence: mean log probability of its tokens; 0 is certain.
        silence: the network's own probability that nobody speaks.
    """

    text: str
    confidence: float = 0.0
    silence: float = 0.0


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
        """What of a token is heard: without case, spaces and punctuation; "" for no text."""
        return "".join(sign for sign in self.text([token]).lower() if sign.isalnum())

    def text(self, ids: list[int]) -> str:
        return b"".join(self.pieces[one] for one in ids if one < len(self.pieces)).decode(
            "utf-8", "replace"
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Fork:
    """The beginning of another reading.

    Args:
        loss: how much less likely its tokens are than those chosen instead.
        ids: its tokens; the last is not in `past`.
        past, kept: what the decoder has written and heard, as `Whisper.write` takes it.
    """

    loss: float
    ids: tuple[int, ...]
    past: tuple[tuple[Tensor, Tensor], ...]
    kept: list[tuple[Tensor, Tensor]]


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
        self._forks: list[_Fork] = []
        self._tried = 0
        self.heard: Heard | None = None
        self._begin()

    def _begin(self) -> None:
        self._layer = -1
        self._encoded: Tensor | None = None
        self._kept: list[tuple[Tensor, Tensor]] = []
        self._silence = 0.0
        self._write_from(_Fork(0.0, (), (), self._kept))

    def _write_from(self, fork: _Fork) -> None:
        self._ids = list(fork.ids)
        self._past = list(fork.past)
        self._kept = fork.kept
        self._loss = fork.loss
        self._scores: list[float] = []

    def step(self) -> bool:
        """Go on; True when finished."""
        network = self._network
        if self._encoded is None:
            is_short = len(self._samples) <= SHORT_S * RATE_HZ
            window_s = SHORT_WINDOW_S if is_short else network.shape.window_s
            self._encoded = network.begin(log_mel(self._samples, window_s))
            self._layer = 0
        elif self._layer < len(network.encoder):
            self._encoded = network.encode(self._encoded, self._layer)
            self._layer += 1
            if self._layer == len(network.encoder):
                self._kept = network.listen(self._encoded)
        elif self.heard is None:
            self._write()
        return self.heard is not None

    def _write(self) -> None:
        for _ in range(TOKENS_PER_STEP):
            token, score = self._next()
            self._scores.append(score)
            if token == self._words.end or len(self._ids) >= TOKEN_LIMIT:
                self._finish()
                return
            self._ids.append(token)
            repeated = repetition(self._ids)
            if repeated:
                del self._ids[-repeated:]
                self._finish()
                return

    def _next(self) -> tuple[int, float]:
        """The next token and its log probability; what else it may have been is kept."""
        words = self._words
        new = [self._ids[-1]] if self._ids else list(words.start)
        start = len(words.start) + len(self._ids) - 1 if self._ids else 0
        logits = self._network.write(new, start, self._past, self._kept).float().clone()
        if not self._ids:
            self._silence = float(torch.softmax(logits, -1)[words.silence])
            logits[list(words.leading)] = -math.inf
        logits[list(words.banned)] = -math.inf
        chances = torch.log_softmax(logits, -1)
        values, tokens = chances.topk(1 + FORK_TOKENS)
        if self._expects is not None:
            losses = (self._loss + values[0] - values[1:]).tolist()
            self._keep_forks(int(tokens[0]), tokens[1:].tolist(), losses)
        return int(tokens[0]), float(values[0])

    def _keep_forks(self, chosen: int, others: list[int], losses: list[float]) -> None:
        """Other words that may have been said; the same ones in other signs are none."""
        seen = {"", self._words.letters(chosen)}
        for other, loss in zip(others, losses, strict=True):
            letters = self._words.letters(other)
            if loss <= FORK_LOSS and letters not in seen:
                seen.add(letters)
                past = tuple(self._past)
                self._forks.append(_Fork(loss, (*self._ids, other), past, self._kept))

    def _finish(self) -> None:
        text = once(self._words.text(self._ids), len(self._samples) / RATE_HZ)
        confidence = sum(self._scores) / max(1, len(self._scores))
        heard = Heard(clean(text), confidence, self._silence)
        if self._tried:
            self._consider(heard)
        elif self._best is None:
            self._best = heard
            if confidence < UNSURE and len(self._samples) <= SHORT_S * RATE_HZ:
                lead = np.zeros(round(LEAD_S * RATE_HZ), np.float32)
                self._samples = np.concatenate((lead, self._samples))
                self._begin()
            else:
                self._settle()
        else:
            self._best = max(self._best, heard, key=lambda one: one.confidence)
            self._settle()

    def _settle(self) -> None:
        """Take what was written, or begin to try other readings."""
        assert self._best is not None
        if self._expects is None or not self._best.text or self._expects(self._best.text):
            self.heard = self._best
        else:
            self._try_next()

    def _consider(self, other: Heard) -> None:
        assert self._best is not None
        assert self._expects is not None
        if other.text and self._expects(other.text):
            # As sure as the first reading was: it is what the sound may be believed by.
            self.heard = Heard(other.text, self._best.confidence, self._best.silence)
        else:
            self._try_next()

    def _try_next(self) -> None:
        if not self._forks or self._tried >= FORKS:
            self.heard = self._best
            return
        self._tried += 1
        fork = min(self._forks, key=lambda one: one.loss)
        self._forks.remove(fork)
        self._write_from(fork)


class Recogniser:
    """Whisper behind the cascade's door."""

    def __init__(self, network: Whisper, words: Vocabulary) -> None:
        self.network = network
        self.words = words

    def begin(self, samples: Samples, expects: Expects | None = None) -> Recognition:
        """Start on an utterance (N,), 16 kHz."""
        cut = samples[: round(LONGEST_S * RATE_HZ)]
        return Recognition(self.network, self.words, cut, expects)

    def hear(self, samples: Samples, expects: Expects | None = None) -> Heard:
        """A whole utterance at once."""
        work = self.begin(samples, expects)
        while not work.step():
            continue
        assert work.heard is not None
        return work.heard


def level(samples: Samples) -> Samples:
    """Quiet recordings are made louder: the network was taught on usual levels."""
    top = float(np.abs(samples).max(initial=0.0))
    return samples if not 1e-4 < top < 0.25 else (samples * (0.5 / top)).astype(np.float32)
