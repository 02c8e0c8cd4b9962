"""Meaning of capitals: spelled letters, a word, emphasis, or a Roman numeral."""

from __future__ import annotations

import re
from typing import Final

from parley.models.cascade.numerals import as_ordinal, in_words
from parley.models.cascade.tables import lines_of
from parley.models.cascade.voice.written.spelling import any_of, code, number, spelled, tables, year

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
    """True if consonants may end a syllable up to `at` and begin one there."""
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
_MIXED_WORD: Final = re.compile(r"\b[A-Za-z]*[a-z][A-Z][A-Za-z]*\b|\b[A-Z]{2,}[a-z]{2,}[A-Za-z]*\b")
_KNOWN_MIXED: Final = re.compile(rf"\b({any_of(_MIXED)})('?s)?\b")
_ELEMENTS: Final = (
    "He|Li|Be|Ne|Na|Mg|Al|Si|Cl|Ar|Ca|Sc|Ti|Cr|Mn|Fe|Co|Ni|Cu|Zn|Ga|Ge|As|Se|Br|Kr|Rb|Sr|Zr|Ag|"
    "Cd|Sn|Sb|Te|Xe|Cs|Ba|Pt|Au|Hg|Pb|Bi|Po|Rn|Ra|Th|H|B|C|N|O|F|P|S|K|V|I|W|U"
)
_FORMULA: Final = re.compile(
    rf"(?<![\w/])(?=[A-Za-z0-9()]*(?:[A-Z)]\d|[a-z][A-Z]|[A-Z][A-Z][a-z]\b))"
    rf"(?:\(?(?:{_ELEMENTS})\d*(?:\)\d*)?){{2,}}(?![A-Za-z0-9])"
)


def mixed_case(text: str) -> str:
    """Split names with inner capitals, and chemical formulas: ChatGPT, OpenAI, NaCl."""
    text = _KNOWN_MIXED.sub(lambda f: _MIXED[f[1]].rstrip() + ("'s" if f[2] else ""), text)
    text = _FORMULA.sub(_chemical, text)
    return _MIXED_WORD.sub(_camel, text)


def _chemical(found: re.Match[str]) -> str:
    if re.fullmatch(r"[A-Z]{2,}s", found[0]):
        # The plural of an abbreviation: PCs.
        return found[0]
    parts = re.findall(r"[A-Za-z]+|\d+", found[0])
    return " ".join(number(part) if part.isdigit() else spelled(part) for part in parts)


def _camel(found: re.Match[str]) -> str:
    word = found[0]
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


_ROMAN: Final = r"(?=[IVXLCDM])M{0,3}(?:CM|CD|D?C{0,3})(?:XC|XL|L?X{0,3})(?:IX|IV|V?I{0,3})"
_VALUES: Final = {"I": 1, "V": 5, "X": 10, "L": 50, "C": 100, "D": 500, "M": 1000}
_NUMBERED: Final = (
    "World War|Chapter|Part|Act|Book|Volume|Vol\\.|Pt\\.|Ch\\.|Art\\.|Sec\\.|Type|Class|"
    "Phase|Appendix|Section|Article|Scene|Title|"
    "Level|Grade|Stage|Super Bowl|Episode|Final Fantasy|Mark|Schedule|Category|Group|Division|"
    "Unit|Table|Figure|Step|Round|Theorem|Vatican|Tier|Apollo|Rocky|Schengen|Basel|Annex"
)
_SHORT_NAMES: Final = {
    "vol.": "volume",
    "pt.": "part",
    "ch.": "chapter",
    "art.": "article",
    "sec.": "section",
}
_THRONE: Final = re.compile(
    rf"\b({any_of(_THRONES)}(?: [A-Z]\w+){{1,3}}|{any_of(_RULERS)}),? ({_ROMAN})\b"
    r"(?!\.\s?[A-Z])"
)
_COUNTED: Final = re.compile(rf"\b({_NUMBERED}) ({_ROMAN})(?!\w)", re.I)
_FREE: Final = re.compile(r"(?<![\w.'-])(?=[IVX]{2,}\b|[MDCLXVI]{5,}\b)" + rf"({_ROMAN})(?![\w'])")
_SMALL: Final = r"((?=[ivxl]{2})(?:xl|l?x{0,3})(?:ix|iv|v?i{0,3}))"
_PAGES: Final = re.compile(rf"\b([Pp]ages?|pp?\.) {_SMALL}(?:[-–]{_SMALL})?(?![\w'])")
_NOT_ROMAN: Final = frozenset("XX XXX XXXX CIVIC MIX MILD VIVID VI LIVID MIMIC".split())


def roman_value(text: str) -> int:
    """`XIV` as 14."""
    values = [_VALUES[sign] for sign in text]
    signs = [
        -one if one < after else one for one, after in zip(values, [*values[1:], 0], strict=True)
    ]
    return sum(signs)


def read_romans(text: str) -> str:
    """Write Roman numerals as words: an ordinal after a ruler's name, otherwise a cardinal."""
    text = re.sub(r"\bWW(I{1,3}|[123])\b", _world_war, text)
    text = re.sub(
        r"\bIV(?= (?:drip|fluid|line|bag|antibiotic|pole|treatment))", spelled("IV"), text
    )
    text = _PAGES.sub(_paged, text)
    text = _THRONE.sub(_throned, text)
    text = _COUNTED.sub(_counted, text)
    return _FREE.sub(_free, text)


def _throned(found: re.Match[str]) -> str:
    name, roman = found[1], found[2]
    is_single = roman in ("C", "D", "L", "M") or (roman == "X" and name == "Malcolm")
    if not roman or is_single or (roman in "IV" and name in ("Mary", "John", "Paul", "Joseph")):
        return found[0]
    return f"{name} the {as_ordinal(roman_value(roman))}"


def _paged(found: re.Match[str]) -> str:
    pages = [in_words(roman_value(one.upper())) for one in found.groups()[1:] if one]
    name = {"p.": "page", "pp.": "pages"}.get(found[1], found[1])
    return f"{name} {' to '.join(pages)} "


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
    return f"{name} {in_words(roman_value(roman.upper()))} "


def _free(found: re.Match[str]) -> str:
    roman = found[1]
    value = roman_value(roman)
    if re.match(r"\s(?:century|centuries|arrondissement|dynasty)\b", found.string[found.end() :]):
        return as_ordinal(value)
    if roman in _NOT_ROMAN and roman != "VI":
        return found[0]
    return f" {year(str(value)) if 1100 < value < 2100 else in_words(value)} "


def _world_war(found: re.Match[str]) -> str:
    count = int(found[1]) if found[1].isdigit() else len(found[1])
    return f"world war {in_words(count)}"


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


def read_numbered_names(text: str) -> str:
    """Read letters followed by a number: A380 as A three eighty."""
    text = re.sub(
        r"(?<![A-Za-z])([A-Z])-?(\d{1,3})s\b",
        lambda f: f"{spelled(f[1])} {number(f[2])}s ".replace("ys ", "ies "), text,
    )  # fmt: skip
    text = re.sub(
        r"(?<![A-Za-z])([A-Z])-(\d+)(?![.,]\d)", lambda f: f"{spelled(f[1])} {code(f[2])} ", text
    )
    text = re.sub(r"\b(\d{3,4})([pi])\b", lambda f: f"{code(f[1])} {spelled(f[2])}", text)
    text = re.sub(r"\bIPv(?=\d)", spelled("IPV"), text)
    text = re.sub(r"(?<=[A-Za-z])-(?=\d)|(?<=\d)-(?=[A-Za-z])", " ", text)
    text = re.sub(
        r"(?<![\w.])([A-Za-z]{1,4})(\d{3,5})(?![\d%]|[.,]\d)",
        lambda f: f"{spelled(f[1]) if len(f[1]) == 1 else f[1]} {code(f[2])} ",
        text,
    )
    return re.sub(
        r"(?<![\w.])([A-Z]{2,5}) (\d{3,4})(?![\w%°]|[.,:]\d)",
        lambda found: f"{found[1]} {code(found[2])} ", text,
    )  # fmt: skip
