"""Meaning of capitals: spelled letters, a word, emphasis, or a Roman numeral."""

from __future__ import annotations

import re
from typing import Final

from parley.models.cascade.numerals import as_ordinal, in_words
from parley.models.cascade.tables import lines_of
from parley.models.cascade.voice.written.rules import ReadingRules
from parley.models.cascade.voice.written.spelling import any_of, number, spelled, tables, year

_SAID: Final = {
    "JSON": "jason", "JPEG": "jpeg", "JPG": "jpeg", "ASCII": "ascii",
    "GUI": "gooey", "OK": "okay", "YAML": "yamel", "WIFI": "wifi", "COVID": "covid",
    "MSDOS": "M S doss",
}  # fmt: skip
(
    _WORDS,
    _LETTERS,
    _SHORT,
    _DOUBTFUL,
    _ONSETS,
    _CODAS,
    _RULERS,
    _THRONES,
) = (frozenset(line.split()) for line in lines_of("voice/written/capitals"))
_ALWAYS_WORDS: Final = frozenset("is or in me hi ill add can am mad".split())
_RUNS: Final = re.compile(r"[aeiou]+|[^aeiou]+")
_MANY_VOWELS: Final = re.compile(r"aa|ii|uu|[aeiou]{3}|^[aeiou]{2}[aeiou]|^ae$|ao$|^ua|^uu|iu$")


def is_sayable(word: str) -> bool:
    """True if lower-case letters look like an English word: `nasa`, not `html`."""
    word = re.sub(r"(?<=[^aeiou])y|^y(?=[^aeiou])", "i", word.replace("qu", "kw"))
    runs: list[str] = _RUNS.findall(word)
    if not any(run[0] in "aeiou" for run in runs) or _MANY_VOWELS.search(word):
        return False
    for place, run in enumerate(runs):
        if run[0] in "aeiou":
            continue
        is_first, is_last = place == 0, place == len(runs) - 1
        if is_first and is_last:
            return False
        if is_first:
            fits = run in _ONSETS
        elif is_last:
            fits = run in _CODAS
        else:
            fits = any(_splits(run, at) for at in range(len(run) + 1))
        if not fits:
            return False
    return True


def _splits(run: str, at: int) -> bool:
    """True if consonants may end a syllable before `at` and start one there."""
    return (not at or run[:at] in _CODAS) and (at == len(run) or run[at:] in _ONSETS)


def word_or_letters(token: str, *, shouts: bool = False) -> str:
    """Capitals as a word or as letters.

    Args:
        shouts: a neighbour is a word in capitals.
    """
    low = token.lower()
    if _SAID.get(token):
        return _SAID[token]
    if low in _LETTERS:
        return spelled(token)
    if low in _WORDS:
        return low
    if low in _DOUBTFUL and low not in _ALWAYS_WORDS:
        return low if shouts else spelled(token)
    if low in _SHORT:
        return low
    if len(token) >= 4 and is_sayable(low):
        return low
    return low if shouts and len(token) >= 3 and is_sayable(low) else spelled(token)


(_MIXED,) = tables("names")


def _chemical(found: re.Match[str]) -> str:
    if re.fullmatch(r"[A-Z]{2,}s", found[0]):
        # The plural of an abbreviation: PCs.
        return found[0]
    parts = re.findall(r"[A-Za-z]+|\d+", found[0])
    return " ".join(number(part) if part.isdigit() else spelled(part) for part in parts)


def _camel(word: str) -> str:
    if re.match(r"(?:Mc|Mac|De|Di|La|Le|Van|O)[A-Z][a-z]+$", word):
        return word.lower()
    if re.fullmatch(r"[A-Z]{2,}s", word):
        return word
    parts = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", word)
    said = [
        spelled(part)
        if len(part) == 1
        else word_or_letters(part)
        if part.isupper()
        else part.lower()
        for part in parts
    ]
    return " ".join(said)


mixed_case: Final = ReadingRules(
    "mixed_case", {"name": any_of(_MIXED)}, name=lambda text: _MIXED[text].rstrip(),
    formula=_chemical, camel=_camel,
)  # fmt: skip
_VALUES: Final = {"I": 1, "V": 5, "X": 10, "L": 50, "C": 100, "D": 500, "M": 1000}
_SHORT_NAMES: Final = {
    "vol.": "volume", "pt.": "part", "ch.": "chapter", "art.": "article", "sec.": "section",
    "p.": "page", "pp.": "pages",
}  # fmt: skip
_NOT_ROMAN: Final = frozenset("XX XXX XXXX CIVIC MIX MILD VIVID VI LIVID MIMIC".split())


def roman_value(text: str) -> int:
    """`XIV` as 14."""
    values = [_VALUES[sign] for sign in text]
    signs = [
        -one if one < after else one for one, after in zip(values, [*values[1:], 0], strict=True)
    ]
    return sum(signs)


def _in_words(text: str) -> str:
    return in_words(roman_value(text.upper()))


def _throned(found: re.Match[str]) -> str:
    name, roman = found[1], found[2]
    is_single = roman in ("C", "D", "L", "M") or (roman == "X" and name == "Malcolm")
    if not roman or is_single or (roman in "IV" and name in ("Mary", "John", "Paul", "Joseph")):
        return found[0]
    return f"{name} the {as_ordinal(roman_value(roman))}"


def _counted(found: re.Match[str]) -> str:
    name, roman = found[1], found[2]
    if (
        not roman
        or (len(roman) == 1 and not roman.isupper())
        or (roman in "CDLM" and name.lower() not in ("chapter", "part"))
    ):
        return found[0]
    if roman in "CD" or (roman == "I" and name[0].islower()):
        return found[0]
    name = _SHORT_NAMES.get(name.lower(), name)
    return f"{name} {_in_words(roman)} "


def _free(found: re.Match[str]) -> str:
    roman = found[1]
    value = roman_value(roman)
    if re.match(r"\s(?:century|centuries|arrondissement|dynasty)\b", found.string[found.end() :]):
        return as_ordinal(value)
    if roman in _NOT_ROMAN and roman != "VI":
        return found[0]
    return f" {year(str(value)) if 1100 < value < 2100 else in_words(value)} "


read_romans: Final = ReadingRules(
    "romans", {"throne": any_of(_THRONES), "ruler": any_of(_RULERS)}, throned=_throned,
    counted=_counted, free=_free, roman=_in_words,
    short=lambda text: _SHORT_NAMES.get(text, text),
)  # fmt: skip
_CAPS: Final = re.compile(r"(?<![A-Za-z'])([A-Z]{2,})('?s)?(?![A-Za-z])")
_SHOUT: Final = re.compile(r"[A-Z]{2,}(?:'[A-Z]+)?")


def read_capitals(text: str) -> str:
    """Read words in capitals: spelled out, as a word, or as emphasis."""
    text = re.sub(r"\b[A-Z]+'[A-Z]+\b", lambda found: found[0].lower(), text)
    tokens = list(re.finditer(r"[^\W\d_]+(?:'[^\W\d_]+)*", text))
    shouted = {
        place
        for place, token in enumerate(tokens)
        if _SHOUT.fullmatch(token[0]) and _is_word(token[0])
    }
    near = {
        token.start(): bool({place - 2, place - 1, place + 1, place + 2} & shouted)
        for place, token in enumerate(tokens)
    }

    def said(found: re.Match[str]) -> str:
        shouts = near.get(found.start(), False)
        words = word_or_letters(found[1], shouts=shouts).rstrip()
        return words + ("'s" if found[2] else "")

    return _CAPS.sub(said, text)


def _is_word(token: str) -> bool:
    low = token.lower()
    if low in _LETTERS or low in _WORDS or _SAID.get(token) or low in _DOUBTFUL:
        return False
    return low in _SHORT or (len(low) >= 4 and is_sayable(low))


def _many(text: str) -> str:
    return re.sub("y$", "ie", number(text)) + "s"


read_numbered_names: Final = ReadingRules("numbered_names", many=_many)
