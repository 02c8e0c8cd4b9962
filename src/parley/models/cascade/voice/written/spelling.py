"""Functions of all reading rules: spelled letters, single digits, numbers in words.

A rule replaces a written form with the words for it, in lower case. A spelled letter is a character
of Unicode's private use area until all rules are done, so that no later rule mistakes it for a
word.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from parley.models.cascade.numerals import as_ordinal, in_words
from parley.models.cascade.tables import blocks_of

_FIRST: Final = 0xE000
LETTERS: Final = f"[{chr(_FIRST + ord('A'))}-{chr(_FIRST + ord('Z'))}]"
"""Matches one spelled letter."""


def spelled(text: str) -> str:
    """The letters of a text, each read by name; digits are left for later rules."""
    return "".join(
        f" {chr(_FIRST + ord(sign.upper()))} " if sign.isascii() and sign.isalpha() else sign
        for sign in text
    )


def tables(name: str) -> list[dict[str, str]]:
    """Written to spoken forms, for each block of a file in this folder.

    A line contains written forms, separated by commas, and after a colon the spoken form, in which
    capitals are spelled.
    """
    return [
        {
            written: re.sub("[A-Z]+", lambda found: spelled(found[0]), said)
            for all_written, said in (line.split(": ") for line in block)
            for written in all_written.split(", ")
        }
        for block in blocks_of(f"voice/written/{name}")
    ]


def any_of(written: Iterable[str]) -> str:
    """A pattern that matches any of these, longer ones first."""
    return f"(?:{'|'.join(sorted(map(re.escape, written), key=len, reverse=True))})"


def as_letters(text: str) -> str:
    """Spelled letters as single capitals."""
    return re.sub(LETTERS, lambda found: chr(ord(found[0]) - _FIRST), text)


def digits(text: str) -> str:
    return " ".join(in_words(int(sign)) for sign in text if sign.isdigit())


def number(text: str) -> str:
    """A written number in words."""
    whole, _, part = text.replace(",", "").partition(".")
    is_plain = "," in text or whole.endswith("000")
    is_code = len(whole) > 15 or (len(whole) > 9 and not is_plain)
    if is_code or (len(whole) > 1 and whole[0] == "0"):
        said = digits(whole)
    else:
        said = in_words(int(whole)) if whole else ""
    return f"{said} point {digits(part)}".strip() if part else said


def ordinal(text: str) -> str:
    """`3` as third."""
    return as_ordinal(int(text))


def year(text: str) -> str:
    """Four digits as a year."""
    century, rest = int(text[:2]), int(text[2:])
    if century % 10 == 0 and rest < 10:
        return in_words(int(text))
    if rest == 0:
        return f"{in_words(century)} hundred"
    return f"{in_words(century)} {'oh ' if rest < 10 else ''}{in_words(rest)}"


def code(text: str) -> str:
    """Digits of a name, such as a flight's or a room's: 204 as two oh four."""
    if len(text) < 3:
        return number(text)
    if len(text) == 3 and text[0] != "0":
        head, rest = in_words(int(text[0])), int(text[1:])
        if rest == 0:
            return f"{head} hundred"
        return f"{head} {'oh ' if rest < 10 else ''}{in_words(rest)}"
    if len(text) == 4 and text[0] != "0":
        return in_words(int(text)) if text[1:3] == "00" or text[2:] == "00" else year(text)
    return digits(text)
