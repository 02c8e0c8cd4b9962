"""Spelling, the alphabet, and words with a given first letter."""

from __future__ import annotations

import re
import string
from collections.abc import Iterable
from typing import Final

from parley.models.cascade.notes.knowledge import capitals, countries_of, country_names
from parley.models.cascade.numerals import as_digits
from parley.models.cascade.tables import blocks_of, patterns

_SAYS: Final = patterns("letters")
_NO_WORDS: Final = "it that this me you words word please life everything".split()
_PLACES: Final = "last first second third fourth fifth sixth".split()
LONGEST = 45
"""Maximum length of a word that is spelled; no English word is longer."""


def spelling_note(low: str) -> str | None:
    """A word spelled letter by letter."""
    found = _SAYS["spell"].search(low)
    if not found:
        return None
    word = (found["word"] or found["back"] or found["how"] or found["named"]).strip("'-")
    if word in _NO_WORDS or not 2 <= len(word) <= LONGEST:
        return None
    letters = word.replace("'", "").upper()
    if found["back"] or found["backwards"]:
        return f"{word.capitalize()} backwards is {', '.join(letters[::-1])}."
    return f"{word.capitalize()} is spelled {', '.join(letters)}."


def letters_note(low: str) -> str | None:
    """Facts about the letters of a word, of the sentence or of the alphabet."""
    found = _SAYS["count"].search(low)
    if found and found[2] not in ("the", "alphabet", "english", "it", "that", "my", "your"):
        kind, word = found.groups()
        vowels = sum(letter in "aeiou" for letter in word)
        count = {"letters": len(word), "vowels": vowels, "consonants": len(word) - vowels}[kind]
        return f"{word.capitalize()} has {count} {kind.removesuffix('s') if count == 1 else kind}."
    if found := _SAYS["words"].search(low):
        return f"It has {len(found[1].split())} words."
    if _SAYS["here"].search(low):
        return f"It has {len(low.split())} words."
    if found := _SAYS["palindrome"].search(low):
        is_so = found[1] == found[1][::-1]
        return f"{'Yes' if is_so else 'No'}, {found[1]} backwards is {found[1][::-1]}."
    if found := _SAYS["times"].search(low):
        letter, word = found[1].upper(), found[2].capitalize()
        count = found[2].count(found[1])
        return f"{word} has {count or 'no'} {letter}{'s' * (count != 1)}."
    if found := _SAYS["order"].search(low):
        place = ord(found[2]) - 97 + (-1 if found[1] == "before" else 1)
        if 0 <= place < 26:
            return f"{found[1].capitalize()} {found[2].upper()} comes {chr(97 + place).upper()}."
        return "The alphabet ends there."
    if found := _SAYS["first"].search(low):
        place, word = _PLACES.index(found[1]) - 1, found[2]
        if place >= len(word):
            return f"{word.capitalize()} has only {len(word)} letters."
        return f"The {found[1]} letter of {word} is {word[place].upper()}."
    if _SAYS["alphabet"].search(low):
        return f"{', '.join(string.ascii_uppercase[:: -1 if 'backward' in low else 1])}."
    return None


_THINGS: Final = {name: " ".join(lines).split() for name, *lines in blocks_of("notes/letters")}
_COUNTS: Final = {"a": 1, "an": 1, "some": 3}
_NAMED: Final = re.compile(
    rf"\b(an?|some|\d\d?) ({'|'.join(_THINGS)}|countr|cit|capital)(?:s|y|ies)?\b"
    r"(?:.{0,14}?\b(?:with|from|in)(?: an?\b)?(?: the)?(?: letter)? ([a-z])"
    r"| (?:in|of|from) (africa|asia|europe|oceania|(?:south|north) america))?\W*$"
)
_ASKS: Final = re.compile(r"^\W*(?:\w+\W+){0,3}?(?:name|list|say|think of|(?:give|tell)(?: me)?)\b")


def named_note(low: str) -> str | None:
    """A number of animals, fruits, countries or other things, optionally with a given first
    letter."""
    found = _NAMED.search(as_digits(low).replace("color", "colour"))
    if not found or not (found[3] or _ASKS.search(low)):
        return None
    number, kind, letter, continent = found.groups()
    if continent and kind != "countr":
        return None
    there = countries_of(continent) if continent else country_names().values()
    countries = {"countr": there, "cit": capitals().values(), "capital": capitals().values()}
    words: Iterable[str] = _THINGS.get(kind) or countries[kind]
    wanted = int(number) if number.isdigit() else _COUNTS[number]
    chosen = [word for word in words if word.lower().startswith(letter or "")][:wanted]
    if not chosen:
        return f"I can't think of any with {str(letter).upper()}."
    *first, last = chosen
    said = f"{', '.join(first)} and {last}" if first else last
    return f"{said[0].upper()}{said[1:]}."
