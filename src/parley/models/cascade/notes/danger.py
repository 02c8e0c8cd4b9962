"""A small network that recognises sentences about danger, trained on sentences (training/care).

Words are represented by vectors of their meaning, so it recognises sentences that resemble the
training data. Shapes: `W` words, `D` numbers each, `F` filters, `K` kinds.
"""

from __future__ import annotations

import functools
import re
import string
from collections.abc import Iterable, Iterator
from importlib import resources
from typing import Final

import numpy as np
import numpy.typing as npt

KINDS: Final = ("none", "self", "other", "emergency")
"""No danger; users who may harm themselves; users who fear that another person may; an
emergency."""
WIDTHS: Final = (1, 2, 3, 4)
"""Widths of the filters, in words."""
MOST_WORDS: Final = 40
"""Maximum number of words that are judged together; the pieces of a longer sentence overlap by
half."""
LAST_WORDS: Final = 2000
"""Number of words at the end of a text that are judged; earlier words are ignored."""
SLIP_LETTERS, SLIPS_MOST = 20, 100
"""Maximum length of a word that is corrected, and maximum number of such words in a text: a word
has a thousand possible slips, and all conversations wait while they are looked up."""
_SPELT: Final = tuple(
    (re.compile(pattern), plain)
    for pattern, plain in (
        (r"\bcan ?not\b|\bcan'?t\b", "can not"),
        (r"\bwon'?t\b", "will not"),
        (r"\b(do|does|did|is|was|were|would|could|should|have|has|had|are)n'?t\b", r"\1 not"),
        (r"\bi'?ma?\b", "i am"),
        (r"\bi'?ve\b", "i have"),
        (r"'ll\b", " will"),
        (r"'ve\b", " have"),
        (r"'re\b", " are"),
        (r"'d\b", " would"),
        (r"'s\b", " s"),
        (r"\bwanna\b", "want to"),
        (r"\bgonna\b", "going to"),
        (r"\bgotta\b", "got to"),
        (r"\b(my|him|her|your|them)sel(?:f|ves)\b", r"\1 self"),
        (r"(.)\1{2,}", r"\1\1"),
    )
)


def words_of(text: str) -> list[str]:
    """The words of a sentence in a uniform spelling: `I'm`, `im` and `I am` are the same."""
    low = re.sub("[’`]", "'", text.lower())
    for pattern, plain in _SPELT:
        low = pattern.sub(plain, low)
    return re.findall(r"[a-z]+|[0-9]+", low)


class DangerJudge:
    """The network; see the module's docstring.

    Args:
        words: the known words, most frequent first.
        vectors: of the words (W, D).
        filters: for each width w, weights (w * D, F) and bias (F,).
        out: weights (4 * F, K) and bias (K,).
    """

    def __init__(
        self,
        words: list[str],
        vectors: npt.NDArray[np.float32],
        filters: list[tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]],
        out: tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]],
    ) -> None:
        self._places = {word: place for place, word in enumerate(words)}
        self._vectors, self._filters, self._out = vectors, filters, out

    def odds(self, text: str) -> npt.NDArray[np.float64]:
        """Probability of each kind (K,) for the sentence that is most likely about danger."""
        pieces = list(_pieces(text))
        places = self._known(word for words in pieces for word in words)
        judged = [self._judge([places.get(word) for word in words]) for words in pieces]
        return min(judged, key=lambda kinds: float(kinds[0]), default=np.eye(len(KINDS))[0])

    def _known(self, words: Iterable[str]) -> dict[str, int]:
        """Indices of the words that are known, or that differ from a known word by one slip."""
        found: dict[str, int] = {}
        tried = 0
        for word in dict.fromkeys(words):
            place = self._places.get(word)
            if place is None and 3 < len(word) <= SLIP_LETTERS and tried < SLIPS_MOST:
                tried += 1
                near = (self._places[one] for one in slips(word) if one in self._places)
                place = min(near, default=None)
            if place is not None:
                found[word] = place
        return found

    def _judge(self, places: list[int | None]) -> npt.NDArray[np.float64]:
        pad = max(WIDTHS) - 1
        width = self._vectors.shape[1]
        sequence = np.zeros((len(places) + 2 * pad, width), np.float32)
        for place, known in enumerate(places):
            if known is not None:
                sequence[pad + place] = self._vectors[known]
        best = []
        for size, (weight, bias) in zip(WIDTHS, self._filters, strict=True):
            inner = sequence[pad - size + 1 : len(sequence) - pad + size - 1]
            windows = np.lib.stride_tricks.sliding_window_view(inner.ravel(), size * width)[::width]
            best.append(np.maximum((windows @ weight).max(0) + bias, 0))
        weight, bias = self._out
        scores = (np.concatenate(best) @ weight + bias).astype(np.float64)
        powers = np.exp(scores - scores.max())
        return np.asarray(powers / powers.sum())


def _pieces(text: str) -> Iterator[list[str]]:
    """Pieces of a text: its sentences, and the whole text if it has at most `MOST_WORDS` words."""
    sentences = [words_of(one) for one in re.split(r"[.!?\n]+", text)]
    whole = [word for one in sentences for word in one][-LAST_WORDS:]
    if len(whole) <= MOST_WORDS:
        yield from [whole] if whole else []
    left = LAST_WORDS
    for sentence in reversed(sentences if sum(map(bool, sentences)) > 1 or len(whole) > 40 else []):
        for start in range(0, min(len(sentence), left), MOST_WORDS // 2):
            yield sentence[start : start + MOST_WORDS]
        left -= len(sentence)


def slips(word: str) -> Iterator[str]:
    """The words that this one may stand for if one letter was lost, added, changed or swapped."""
    for place in range(len(word) + 1):
        head, tail = word[:place], word[place:]
        yield head + tail[1:]
        if len(tail) > 1:
            yield head + tail[1] + tail[0] + tail[2:]
        for letter in string.ascii_lowercase:
            yield head + letter + tail
            yield head + letter + tail[1:]


@functools.cache
def bundled() -> DangerJudge:
    """The judge that is bundled with the package."""
    with (resources.files("parley.models.cascade") / "know" / "danger.npz").open("rb") as file:
        stored = np.load(file)
        arrays = {name: stored[name] for name in stored.files}

    def read(name: str) -> npt.NDArray[np.float32]:
        """An array that is stored in eight bits, with one step per column."""
        return np.asarray(arrays[name] * arrays[f"{name}_step"].astype(np.float32), np.float32)

    filters = [(read(f"filter{size}"), arrays[f"bias{size}"]) for size in WIDTHS]
    words = bytes(arrays["words"]).decode().split()
    return DangerJudge(words, read("vectors"), filters, (read("out"), arrays["bias"]))
