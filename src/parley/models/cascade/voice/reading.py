"""Converts written text to words that can be read aloud.

The rules of `written/` replace everything that is not a word with the words that a person would
say, the most specific forms first: addresses before dates, dates before money, money before
numbers. `clauses.py` cuts the text into clauses.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Final

from parley.models.cascade.voice.clauses import PAUSES, STOPS, cut
from parley.models.cascade.voice.written.abbreviations import read_abbreviations, read_verses
from parley.models.cascade.voice.written.addresses import read_addresses, read_chess, read_codes
from parley.models.cascade.voice.written.amounts import (
    plain_groups,
    read_fractions,
    read_money,
    read_numbers,
    read_ranges,
    read_signs,
    read_units,
)
from parley.models.cascade.voice.written.capitals import (
    mixed_case,
    read_capitals,
    read_numbered_names,
    read_romans,
)
from parley.models.cascade.voice.written.markup import without_markup
from parley.models.cascade.voice.written.moments import (
    read_dates,
    read_times,
    read_year_ranges,
    read_years,
)
from parley.models.cascade.voice.written.rules import ReadingRules
from parley.models.cascade.voice.written.spelling import LETTERS, as_letters

__all__ = ["PAUSES", "STOPS", "cut", "read_out"]

_RULES: Final = (
    without_markup,
    plain_groups,
    read_chess,
    read_addresses,
    read_verses,
    read_dates,
    read_romans,
    read_money,
    read_codes,
    read_times,
    read_abbreviations,
    read_year_ranges,
    read_ranges,
    read_units,
    read_years,
    mixed_case,
    read_numbered_names,
    read_fractions,
    read_signs,
    read_numbers,
    read_capitals,
    ReadingRules("named_letters"),
)
LONGEST: Final = 600
"""Number of characters that are normalised together; a clause rarely has more than 100."""
_TOKEN: Final = re.compile(rf"{LETTERS}(?:'s)?|[^\W\d_]+(?:'[^\W\d_]+)*'?|[.!?,;:—…()\[\]\"]")
_FOLDED: Final = str.maketrans(
    {"ß": "ss", "ẞ": "ss", "ø": "o", "Ø": "O", "æ": "ae", "Æ": "AE", "œ": "oe", "Œ": "OE", "ł": "l",
     "Ł": "L", "đ": "d", "Đ": "D", "ð": "th", "Ð": "Th", "þ": "th", "Þ": "Th", "ı": "i", "ħ": "h"}
)  # fmt: skip
_BEHIND_LETTERS: Final = ("plus", "minus", "equals", "times", "is", "squared", "cubed")


def read_out(text: str) -> list[str]:
    """The words in lower case (single capitals are read as letters), with stops and pauses.

    `It costs $3.50, Dr. Smith!` is `it costs three dollars and fifty cents , doctor smith !`.
    """
    words: list[str] = []
    for piece in _pieces(text):
        words += _read(piece)
    return words


def _pieces(text: str) -> list[str]:
    """A text in pieces, because the time of the rules grows faster than the length of their
    input."""
    pieces = []
    while len(text) > LONGEST:
        place = text.rfind(" ", LONGEST // 2, LONGEST)
        place = LONGEST if place < 0 else place
        pieces.append(text[:place])
        text = text[place:]
    return [*pieces, text]


def _read(text: str) -> list[str]:
    for rule in _RULES:
        text = rule(text)
    text = folded(text.replace("–", " — "))
    tokens: list[str] = _TOKEN.findall(text)
    words: list[str] = []
    for index, token in enumerate(tokens):
        if not token[0].isalpha() and not re.match(LETTERS, token):
            _add_mark(words, token)
            continue
        word = token.strip("'") if not re.match(LETTERS, token) else token
        if re.match(LETTERS, word):
            words.append(as_letters(word))
        elif len(word) == 1 and word.isascii() and not _is_word(tokens, index):
            words.append(word.upper())
        elif word:
            words.append(word.lower())
    return words


def folded(text: str) -> str:
    """The text with Latin letters without accents; letters of other scripts are dropped."""
    plain = unicodedata.normalize("NFD", text.translate(_FOLDED))
    return "".join(
        sign for sign in plain
        if sign.isascii() or sign in PAUSES + STOPS or re.match(LETTERS, sign) or not (
            sign.isalpha() or unicodedata.combining(sign))
    )  # fmt: skip


def _add_mark(words: list[str], mark: str) -> None:
    mark = {"…": ".", "(": ",", ")": ",", "[": ",", "]": ",", '"': ""}.get(mark, mark)
    if not mark or not words:
        return
    if words[-1][0] not in STOPS + PAUSES:
        words.append(mark)
    elif mark in STOPS and words[-1] not in STOPS:
        words[-1] = mark


def _is_word(tokens: list[str], index: int) -> bool:
    """True if a single letter is a word, an article or I. In `G, A, R` it is a letter."""
    token = tokens[index]
    if token not in ("a", "A", "I", "i"):
        return False
    following = tokens[index + 1 : index + 2]
    if token in "aA" and following in ([":"], [")"]):
        return False
    if token in "ai":
        return not (following and following[0] in _BEHIND_LETTERS)
    before = [one for one in tokens[max(0, index - 2) : index] if one != ","]
    after = [one for one in tokens[index + 1 : index + 3] if one != ","]
    near = before[-1:] + after[:1]
    has_stop = tokens[index + 1 : index + 2] in ([","], ["."], [])
    is_listed = has_stop and any(len(one) == 1 and one.isupper() for one in near)
    is_counted = after[:1] in (["to"], ["plus"], ["minus"], ["equals"], ["times"]) and token == "A"
    return not is_listed and not is_counted
