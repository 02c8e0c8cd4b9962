"""Search for the likeliest phrase in a sound, one token of several phrases at a time.

Shapes: `R` phrases that are followed, `V` tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from parley.models.cascade.phrases import Phrases, State
from parley.models.cascade.whisper import Vocabulary, Whisper

BEAMS = 6
"""Maximum number of phrases that are followed: a token for six takes little longer than for one."""
SHORTEST, LONGEST = 0.75, 1.6
"""Letters of a phrase, as shares of those of the first reading, give or take `SPARE` for numbers in
digits: to leave out what was said costs a recogniser little."""
SPARE = 4
TOKEN_LIMIT = 30

_Cache = list[tuple[Tensor, Tensor]]


@dataclass(slots=True, eq=False)
class _Beam:
    """The beginning of a phrase; the last of its `ids` is not in `past`."""

    score: float
    ids: list[int]
    past: _Cache
    state: State


class Search:
    """The search for one sound.

    Args:
        kept: the sound, as `Whisper.write` takes it.
        floor: log probability below which no phrase is followed.
        letters: of the first reading.
        expects: says of a phrase whether it makes sense in this conversation.
    """

    def __init__(
        self,
        network: Whisper,
        words: Vocabulary,
        phrases: Phrases,
        kept: _Cache,
        floor: float,
        letters: int,
        expects: Callable[[str], bool],
    ) -> None:
        self._network, self._words, self._phrases = network, words, phrases
        self._kept, self._floor, self._letters = kept, floor, letters
        self._expects = expects
        self._beams = [_Beam(0.0, [], [], phrases.start)]
        self.found: list[int] = []
        """Tokens of the likeliest phrase so far; none at first."""

    def step(self) -> bool:
        """Read the next token of each phrase; true when the search is over."""
        chances = torch.log_softmax(self._logits().float(), -1)
        grown = [
            one
            for beam, row in zip(self._beams, chances, strict=True)
            for one in self._grow(beam, row)
        ]
        grown.sort(key=lambda one: -one.score)
        # One that is likelier than all that was found may still end as the likeliest.
        self._beams = [one for one in grown[:BEAMS] if one.score > self._floor]
        for one in self._beams:
            one.past = list(one.past)
        return not self._beams or len(self._beams[0].ids) >= TOKEN_LIMIT

    def _logits(self) -> Tensor:
        """After each phrase (R, V)."""
        words, beams = self._words, self._beams
        if not beams[0].ids:
            return self._network.write(list(words.start), 0, beams[0].past, self._kept).view(1, -1)
        place = len(words.start) + len(beams[0].ids) - 1
        return self._network.write_each(
            [one.ids[-1] for one in beams],
            [place] * len(beams),
            [one.past for one in beams],
            self._kept,
        )

    def _grow(self, beam: _Beam, chances: Tensor) -> Sequence[_Beam]:
        """The phrase with each token that may follow and is likely enough, given chances (V,)."""
        after = self._phrases.following(beam.state)
        scores = beam.score + chances[after.tokens]
        best = scores.topk(min(BEAMS + 1, len(after.tokens)))
        grown = []
        for score, place in zip(best.values.tolist(), best.indices.tolist(), strict=True):
            token = int(after.tokens[place])
            if score <= self._floor:
                break
            if token != self._words.end:
                state = after.states[place]
                grown.append(_Beam(score, [*beam.ids, token], beam.past, state))
            elif self._fits(beam.ids):
                self.found, self._floor = beam.ids, score
        return grown

    def _fits(self, ids: list[int]) -> bool:
        text = self._words.text(ids).strip()
        letters = sum(sign.isalnum() for sign in text)
        shortest, longest = SHORTEST * self._letters - SPARE, LONGEST * self._letters + SPARE
        return shortest <= letters <= longest and self._expects(text)
