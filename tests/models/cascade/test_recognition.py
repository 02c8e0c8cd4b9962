"""Which of several readings of a sound holds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from parley.models.cascade import store
from parley.models.cascade.recognition import FORKS, Recognition, Vocabulary
from parley.models.cascade.whisper import WhisperShape

PIECES = ("hot", " cold", " gold", " old", "x")
END, START, SILENCE = 5, 6, 7
WORDS = Vocabulary(
    tuple(piece.encode() for piece in PIECES), (START,), END, SILENCE, (START, SILENCE), (END,)
)


@dataclass
class ScriptedNetwork:
    """A decoder whose probabilities are written down.

    Args:
        chances: by what was written so far, each next token's probability.
        written: what every call was asked to continue.
    """

    chances: dict[tuple[int, ...], dict[int, float]]
    written: list[tuple[int, ...]] = field(default_factory=list)
    encoder: tuple[Any, ...] = (None,)
    shape: WhisperShape = field(default_factory=WhisperShape)

    def begin(self, mel):
        return mel

    def encode(self, x, layer):
        return x

    def listen(self, encoded):
        return []

    def write(self, ids, start, past, heard):
        before = past[-1] if past else ()
        now = (*before, *(one for one in ids if one != START))
        past.append(now)
        assert start == (0 if ids == [START] else len(now))
        self.written.append(now)
        table = self.chances.get(now, {END: 1.0})
        logits = torch.full((8,), 1e-9)
        for token, chance in table.items():
            logits[token] = chance
        return logits.log()

    def write_each(self, ids, starts, pasts, heard):
        rows = zip(ids, starts, pasts, strict=True)
        return torch.stack([self.write([one], start, past, heard) for one, start, past in rows])


def hear(network: ScriptedNetwork, expects=None) -> str:
    work = Recognition(network, WORDS, np.ones(1600, np.float32), expects)  # type: ignore[arg-type]
    while not work.step():
        continue
    assert work.heard is not None
    return work.heard.text


def doubtful() -> ScriptedNetwork:
    return ScriptedNetwork({
        (): {0: 1.0},
        (0,): {2: 0.6, 1: 0.3, 3: 0.1},
    })  # fmt: skip


def test_without_expectations_the_likeliest_words_hold():
    network = doubtful()

    assert hear(network) == "hot gold"
    assert len(network.written) == 3


def test_the_likeliest_expected_reading_holds():
    assert hear(doubtful(), lambda text: text in ("hot cold", "hot old")) == "hot cold"


def test_an_expected_first_reading_is_the_only_one():
    network = doubtful()

    assert hear(network, lambda text: "gold" in text) == "hot gold"
    assert len(network.written) == 3


def test_where_nothing_is_expected_the_first_reading_holds_after_a_bounded_search():
    everywhere = {END: 0.3, 1: 0.25, 2: 0.25, 3: 0.2}
    network = ScriptedNetwork({})
    network.chances = _Always(everywhere)
    asked: list[str] = []

    def expects(text: str) -> bool:
        asked.append(text)
        return False

    first = hear(ScriptedNetwork(_Always(everywhere)))

    assert hear(network, expects) == first
    assert len(asked) <= 1 + FORKS


def test_what_is_far_less_likely_is_not_considered():
    network = ScriptedNetwork({(): {0: 1.0}, (0,): {2: 0.99, 1: 0.001}})

    assert hear(network, lambda text: text == "hot cold") == "hot gold"


class _Always(dict):
    """The same probabilities wherever one is, but no blank first."""

    def __init__(self, table):
        super().__init__()
        self.table = table

    def get(self, key, default=None):
        return {0: 1.0} if not key else self.table


def test_weights_in_blocks_of_four_bits_are_read_as_they_were_written():
    halves = np.arange(2 * 32, dtype=np.float32).reshape(2, 32) % 16
    raw = np.zeros((2, 20), np.uint8)
    raw[:, :2] = np.array([0.5, 0.25], np.float16)[:, None].view(np.uint8)
    raw[:, 2:4] = np.array([-1.0, -2.0], np.float16)[:, None].view(np.uint8)
    packed = halves.astype(np.uint8)
    raw[:, 4:] = packed[:, :16] | packed[:, 16:] << 4

    values = store.unblocked(*store.blocked(torch.from_numpy(raw)))

    wanted = halves * np.array([[0.5], [0.25]]) + np.array([[-1.0], [-2.0]])
    assert np.allclose(values.numpy(), wanted, atol=0.02)
