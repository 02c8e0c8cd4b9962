"""Spelling, the alphabet, and words with a letter."""

from __future__ import annotations

import re
import string
from collections.abc import Iterable
from typing import Final

from parley.models.cascade.notes.knowledge import capitals, country_names
from parley.models.cascade.numerals import as_digits
from parley.models.cascade.tables import blocks_of

LONGEST = 45
"""Letters of a word that is spelled; no English word has more."""


def spelling_note(low: str) -> str | None:
    """A word letter by letter."""
    found = (
        re.search(
            r"\b(?:spell(?:ing of)?(?: out)?(?: me)?(?: the)?(?: word)?(?: for me)?(?: the)?(?: "
            r"word)?)[\s:,\"']+"
            r"([a-z'-]+)[\"']?\W*(backwards?)?\W*"
            r"(?:for me|please|by letters?|letter by letter)?\W*$",
            low,
        )
        or re.search(
            r"\b(?:is|what's) (?:the word )?[\"']?([a-z'-]+)[\"']? (?:spelled |written )?"
            r"(backwards)\W*$",
            low,
        )
        or re.search(
            r"\bhow (?:is|do you write)(?: the word)? ([a-z'-]+)()(?: spelled| spelt|$|\?)", low
        )
    )
    if not found:
        return None
    word = found[1].strip("'-")
    if (
        word in ("it", "that", "this", "me", "you", "words", "word", "please", "life", "everything")
        or not 2 <= len(word) <= LONGEST
    ):
        return None
    letters = word.replace("'", "").upper()
    if found[2]:
        return f"{word.capitalize()} backwards is {', '.join(letters[::-1])}."
    return f"{word.capitalize()} is spelled {', '.join(letters)}."


def letters_note(low: str) -> str | None:
    """Letters of a word or of the alphabet."""
    found = re.search(
        r"\bhow many (letters|vowels|consonants) (?:are (?:there )?in|does|has|in) "
        r"(?:the word )?([a-z]+)",
        low,
    )
    if found and found[2] not in ("the", "alphabet", "english", "it", "that", "my", "your"):
        kind, word = found.groups()
        vowels = sum(letter in "aeiou" for letter in word)
        count = {"letters": len(word), "vowels": vowels, "consonants": len(word) - vowels}[kind]
        return f"{word.capitalize()} has {count} {kind.removesuffix('s') if count == 1 else kind}."
    found = re.search(r"\bhow many words (?:are|does|has|in)\b[^:\"]*[:\"](.+)", low)
    if found:
        return f"It has {len(found[1].split())} words."
    if found := re.search(r"\bis [\"']?([a-z]+)[\"']? a palindrome\b", low):
        is_so = found[1] == found[1][::-1]
        return f"{'Yes' if is_so else 'No'}, {found[1]} backwards is {found[1][::-1]}."
    found = re.search(
        r"\bhow many (?:letter )?([a-z])'?s? (?:are (?:there )?in|does|has|in) (?:the word )?"
        r"([a-z]+)",
        low,
    )
    if found:
        count = found[2].count(found[1])
        return (
            f"{found[2].capitalize()} has {count or 'no'} {found[1].upper()}{'s' * (count != 1)}."
        )
    found = re.search(
        r"\b(?:letter|what) (?:comes )?(after|before|follows)(?: the letter)? ([a-z])\b\W*$", low
    )
    if found:
        place = ord(found[2]) - 97 + (-1 if found[1] == "before" else 1)
        if 0 <= place < 26:
            return f"{found[1].capitalize()} {found[2].upper()} comes {chr(97 + place).upper()}."
        return "The alphabet ends there."
    found = re.search(r"\bfirst letter (?:of|in) (?:the (?:word|alphabet)\s?)?([a-z]*)", low)
    if found:
        return (
            f"The first letter of {found[1]} is {found[1][0].upper()}."
            if found[1]
            else "The first letter is A."
        )
    if re.search(r"\b(?:say|tell me|recite|sing|know)\b.*\balphabet\b", low):
        step = -1 if "backward" in low else 1
        return f"{', '.join(string.ascii_uppercase[::step])}."
    return None


_THINGS: Final = {name: " ".join(lines).split() for name, *lines in blocks_of("notes/letters")}
_COUNTS: Final = {"a": 1, "an": 1, "some": 3}
_NAMED: Final = re.compile(
    rf"\b(an?|some|\d\d?) ({'|'.join(_THINGS)}|countr|cit|capital)(?:s|y|ies)?\b"
    r"(?:.{0,14}?\b(?:with|from|in)(?: an?\b)?(?: the)?(?: letter)? ([a-z]))?\W*$"
)
_ASKS: Final = re.compile(r"^\W*(?:\w+\W+){0,3}?(?:name|list|say|think of|(?:give|tell)(?: me)?)\b")


def named_note(low: str) -> str | None:
    """A number of animals, fruits, countries or other things, with a given letter or without."""
    found = _NAMED.search(as_digits(low).replace("color", "colour"))
    if not found or not (found[3] or _ASKS.search(low)):
        return None
    number, kind, letter = found.groups()
    countries = {"countr": country_names(), "cit": capitals(), "capital": capitals()}
    words: Iterable[str] = _THINGS.get(kind) or countries[kind].values()
    wanted = int(number) if number.isdigit() else _COUNTS[number]
    chosen = [word for word in words if word.lower().startswith(letter or "")][:wanted]
    if not chosen:
        return f"I can't think of any with {str(letter).upper()}."
    *first, last = chosen
    said = f"{', '.join(first)} and {last}" if first else last
    return f"{said[0].upper()}{said[1:]}."
