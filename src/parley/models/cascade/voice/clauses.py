"""Cuts text into clauses, from the text alone, so that streamed text is cut like whole text."""

from __future__ import annotations

import re
from itertools import islice
from typing import Final

from parley.models.cascade.voice.written.abbreviations import TITLES

STOPS: Final = ".!?"
"""Characters that end a sentence."""
PAUSES: Final = ",;:—…"
"""Characters that make a pause within a sentence."""
MIN_WORDS, MAX_WORDS = 3, 14
"""Minimum and, if the text allows it, maximum number of words of a clause."""
MAX_CHARS: Final = 120
DIGIT_CHARS, SIGN_CHARS = 3, 5
"""Maximum length of a clause in characters, also within words, and the characters that a digit and
another sign count for. A clause is synthesised in one step, for which all conversations wait, and
600 halves in a row are eight minutes of speech."""
_MARKS: Final = frozenset(" \n'\"()-" + STOPS + PAUSES)
"""Characters that are not spoken."""
FIRST_WORDS: Final = 2
"""Minimum number of words of the first clause of an answer that a user waits for: "I'm sorry,"
plays for as long as the synthesis of the next words takes."""

_END: Final = re.compile(r"(?<=[.!?…])[\"')\]*_]*(?=\s)|(?<=[,;:—])(?=\s)|\n")
_LONG: Final = re.compile(rf"\s*(?:\S+\s+){{{MAX_WORDS + 1}}}\S")
_FENCES: Final = ("```", "~~~")
_SHORT: Final = (
    r"no|nos|vs|e\.g|i\.e|approx|fig|figs|vol|ch|sec|pp|pg|ca|cf|al|ave|blvd|inc|dept|est|max|min|"
    r"[A-Za-z]"
)
_GOES_ON: Final = re.compile(rf"(?:^|[\s(\"'])(?:{'|'.join(sorted(TITLES))}|{_SHORT})\.$", re.I)
"""The full stop of an abbreviation, which may be within a sentence."""
_MARKER: Final = re.compile(r"\s*(?:\d{1,3}[.)]|[-*+•]|#{1,6})\s*$")
"""The marker of a list item or heading; its words follow."""
_TIES: Final = re.compile(
    r"(?:[\d%$€£+=×/-]|\b(?:a|an|the|of|to|in|at|by|for|and|or|is|no\.))$", re.I
)
"""Words that stay with the next word when a clause is cut for its length."""


def cut(text: str, *, is_last: bool, is_first: bool = False) -> tuple[list[str], str]:
    """The complete clauses of a text, and the rest, which waits for more text.

    `is_first`: the first of them may be shorter (`FIRST_WORDS`).

    Joined, the clauses are the text. A block of code is one clause. The result depends on the text
    only: cutting streamed text returns the clauses of the whole text.
    """
    done: list[str] = []
    start = 0
    least = FIRST_WORDS if is_first else MIN_WORDS
    while (size := _first(text[start:], least)) > 0:
        done.append(text[start : start + size])
        start += size
        least = MIN_WORDS
    rest = text[start:]
    if is_last and rest.strip():
        done.append(rest)
        rest = ""
    return done, rest


def _first(text: str, least: int) -> int:
    """Length of the first clause; 0 if it is incomplete."""
    lead = len(text) - len(text.lstrip())
    fence = text[lead : lead + 3]
    if fence in _FENCES:
        return text.find(fence, lead + 3) + 3 if fence in text[lead + 3 :] else 0
    for found in _END.finditer(text, lead):
        piece = text[: found.end()]
        if _is_long(piece):
            return _place(piece)
        if _is_end(piece, least, is_line="\n" in found[0]):
            return found.end()
    return _place(text) if _is_long(text) else 0


def _is_end(piece: str, least: int, *, is_line: bool) -> bool:
    """True if a clause may end here."""
    if not piece.strip() or _MARKER.fullmatch(piece):
        return False
    # A stop ends a clause only if the next character is known; else "3." of "3.5" would be one.
    is_stop = piece.rstrip("\"')]*_ ")[-1:] in tuple(STOPS + "…")
    if is_stop and not is_line and _GOES_ON.search(piece.strip()):
        return False
    return is_line or len(piece.split()) >= (1 if is_stop else least)


def _is_long(text: str) -> bool:
    return _room(text) < len(text) or _LONG.match(text) is not None


def _room(text: str) -> int:
    """Position up to which a clause may reach."""
    lead = len(text) - len(text.lstrip())
    left = MAX_CHARS
    for place, sign in enumerate(text[lead : lead + MAX_CHARS + 1], lead):
        is_short = sign.isalpha() or sign in _MARKS
        left -= 1 if is_short else DIGIT_CHARS if sign.isdecimal() else SIGN_CHARS
        if left < 0:
            return place
    return len(text)


def _place(text: str) -> int:
    """Position at which a text that is too long is cut: after a word, not within a phrase."""
    room = _room(text)
    ends = [found.end() for found in islice(re.finditer(r"\S+", text), MAX_WORDS)]
    ends = [end for end in ends if end <= room] or [room]
    for end in reversed(ends[MAX_WORDS // 2 :]):
        if not _TIES.search(text[:end]):
            return end
    return ends[-1]
