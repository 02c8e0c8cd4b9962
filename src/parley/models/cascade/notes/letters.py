"""Spelling, the alphabet, and words with a letter."""

from __future__ import annotations

import re
import string
from collections.abc import Iterable

from parley.models.cascade.notes.knowledge import capitals, country_names
from parley.models.cascade.tables import lines_of

LONGEST = 45
"""Letters of a word that is spelled; no English word has more."""


def spelling_note(low: str) -> str | None:
    """A word letter by letter."""
    found = re.search(
        r"\b(?:spell(?:ing of)?(?: out)?(?: me)?(?: the)?(?: word)?(?: for me)?(?: the)?(?: "
        r"word)?)[\s:,\"']+"
        r"([a-z'-]+)[\"']?\W*(backwards?)?\W*(?:for me|please|by letters?|letter by letter)?\W*$",
        low,
    ) or re.search(
        r"\bhow (?:is|do you write)(?: the word)? ([a-z'-]+)()(?: spelled| spelt|$|\?)", low
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


_NAMED = re.compile(
    r"\b(one|an?|two|three|four|five|[1-5]|some) (animals?|fruits?|countr(?:y|ies)|cit(?:y|ies)|"
    r"capitals?)\b.{0,14}?\b(?:with|from|in)(?: an?\b)?(?: the)?(?: letter)? ([a-z])\W*$"
)
_COUNTS = {"a": 1, "an": 1, "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "some": 3}
_ANIMALS, _FRUITS = (line.split() for line in lines_of("notes/letters"))


def named_note(low: str) -> str | None:
    """A number of animals, fruits, countries or cities with a given letter."""
    found = _NAMED.search(low)
    if not found:
        return None
    number, kind, letter = found.groups()
    words: Iterable[str] = _ANIMALS if kind.startswith("an") else _FRUITS
    if kind.startswith(("co", "ci", "ca")):
        words = country_names().values() if kind.startswith("co") else capitals().values()
    wanted = int(number) if number.isdigit() else _COUNTS[number]
    chosen = [word for word in words if word.lower().startswith(letter)][:wanted]
    if not chosen:
        return f"I can't think of any with {letter.upper()}."
    *first, last = chosen
    said = f"{', '.join(first)} and {last}" if first else last
    return f"{said[0].upper()}{said[1:]}."
