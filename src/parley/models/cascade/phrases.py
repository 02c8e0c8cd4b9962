"""Sentences that the notes can answer, as a network of a recogniser's tokens.

`know/asked.txt` holds them: a kind per line, alternatives in brackets, words of a table in braces.
A recogniser in doubt about its first reading looks for the likeliest of them (`recognition.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from parley.models.cascade.notes import knowledge
from parley.models.cascade.notes.calendar import DAYS, MONTHS
from parley.models.cascade.numerals import in_words

State = frozenset["_Place"]
KEPT_STATES = 4000
"""Of a conversation's searches; most are met again."""
_SEGMENT = re.compile(r"\(([^)]*)\)|\{(\w+)\}|([^({]+)")
_SHAPES = "circle square triangle star heart ring cross"
_TOPICS = "dragon cat dog fox bear moon star sea ship king queen princess robot rabbit bird tree"
_COLOURS = "red blue green yellow black white orange purple brown pink"


@dataclass(eq=False, slots=True)
class _Node:
    """A place in a tree of token sequences; `is_end`: one of them is complete here."""

    after: dict[int, _Node] = field(default_factory=dict)
    is_end: bool = False

    def add(self, tokens: Iterable[int]) -> None:
        node = self
        for token in tokens:
            node = node.after.setdefault(token, _Node())
        node.is_end = True


@dataclass(frozen=True, slots=True)
class _Place:
    """Where in a sentence one is: in its segment `index`, at `node`."""

    segments: tuple[_Node, ...]
    index: int
    node: _Node


@dataclass(frozen=True, slots=True)
class Following:
    """The tokens (N,) that may come next, and the state after each; that after the end is empty."""

    tokens: Tensor
    states: list[State]


class Phrases:
    """All sentences.

    Args:
        pieces: bytes of each token.
        end: the token that ends a transcript.
        lines: kinds of sentences; None: those of `know/asked.txt`.
    """

    def __init__(
        self, pieces: Sequence[bytes], end: int, lines: Sequence[str] | None = None
    ) -> None:
        self._ids = {piece: token for token, piece in reversed(list(enumerate(pieces)))}
        self._longest = max(map(len, pieces))
        self._end = end
        self._slots: dict[str, _Node] = {}
        self._words = _tables(pieces)
        lines = knowledge.lines_of("asked") if lines is None else lines
        places = [place for line in lines for place in self._opened(self._segments(line), 0)]
        self.start: State = frozenset(places)
        self._next: dict[State, Following] = {}

    def following(self, state: State) -> Following:
        """What may come after a state."""
        if state not in self._next:
            if len(self._next) >= KEPT_STATES:
                self._next.clear()
            found: dict[int, set[_Place]] = {}
            for place in state:
                if place.index == len(place.segments):
                    found.setdefault(self._end, set())
                    continue
                for token, node in place.node.after.items():
                    places = found.setdefault(token, set())
                    if node.after:
                        places.add(_Place(place.segments, place.index, node))
                    if node.is_end:
                        places.update(self._opened(place.segments, place.index + 1))
            states = [frozenset(places) for places in found.values()]
            self._next[state] = Following(torch.tensor(list(found)), states)
        return self._next[state]

    def _opened(self, segments: tuple[_Node, ...], index: int) -> list[_Place]:
        """The places where segment `index` begins, or a later one if it may be left out."""
        places = []
        while index < len(segments):
            places.append(_Place(segments, index, segments[index]))
            if not segments[index].is_end:
                return places
            index += 1
        return [*places, _Place(segments, index, _NOWHERE)]

    def _segments(self, line: str) -> tuple[_Node, ...]:
        found: list[_Node] = []
        for choices, slot, words in _SEGMENT.findall(line):
            if words.strip():
                found.append(self._tree([words.strip()], is_first=not found))
            elif slot:
                if slot not in self._slots:
                    self._slots[slot] = self._tree(self._words[slot])
                found.append(self._slots[slot])
            elif choices:
                found.append(self._tree(choices.split("|"), is_first=not found))
        marks = _Node(is_end=True)
        for mark in "?.!":
            marks.add(self._tokens(mark))
        return (*found, marks)

    def _tree(self, phrases: Iterable[str], *, is_first: bool = False) -> _Node:
        tree = _Node()
        for phrase in phrases:
            tree.add(self._tokens(f" {phrase}" if phrase else ""))
            if is_first and phrase:
                tree.add(self._tokens(f" {phrase[0].lower()}{phrase[1:]}"))
        return tree

    def _tokens(self, text: str) -> list[int]:
        """The longest pieces one after the other."""
        left, tokens = text.encode(), []
        while left:
            most = min(self._longest, len(left))
            size = next(n for n in range(most, 0, -1) if left[:n] in self._ids)
            tokens.append(self._ids[left[:size]])
            left = left[size:]
        return tokens


_NOWHERE = _Node()


def _tables(pieces: Sequence[bytes]) -> dict[str, list[str]]:
    keyed = ("colour", "leg", "eat", "say", "sound", "baby", "live", "language", "currency")
    tables = {key: _of_facts(key) for key in (*keyed, "plural")}
    for key in ("language", "currency"):
        tables[key] = [one.title() for one in tables[key]]
    for key in ("eat", "live", "colour"):
        tables[key] += [f"{one}s" for one in tables[key]]
    whole = (piece.decode("utf-8", "ignore") for piece in pieces)
    shapes = _SHAPES.split()
    numbers = [str(n) for n in range(101)] + [in_words(n) for n in range(21)]
    return tables | {
        "capital": list(knowledge.country_names().values()),
        "town": [one.rstrip(".") for one in knowledge.capitals().values()],
        "opposite": list(knowledge.opposites()),
        "definition": list(knowledge.definitions()),
        "number": numbers + [in_words(10 * n) for n in range(3, 11)],
        "common": [one[1:] for one in whole if re.fullmatch(" [a-z]{3,}", one)],
        "day": [one.capitalize() for one in DAYS],
        "month": [one.capitalize() for one in MONTHS],
        "letter": list("ABCDEFGHIJKLMNOPQRSTUVWXYZ"),
        "mix": _COLOURS.split(),
        "shape": shapes + [f"{one}s" for one in shapes],
        "topic": _TOPICS.split(),
    }


def _of_facts(key: str) -> list[str]:
    """What follows a key word of the facts."""
    keys = (one for line in knowledge.lines_of("facts") for one in line.split("|")[0].split(","))
    rows = map(str.split, keys)
    return [" ".join(row[1:]) for row in rows if row[0] == key and len(row) > 1]
