"""Money, units, fractions, ratios, ranges, and the signs of mathematics."""

from __future__ import annotations

import re
from functools import partial
from typing import Final

from parley.models.cascade.numerals import as_ordinal, in_words
from parley.models.cascade.voice.written.rules import ReadingRules
from parley.models.cascade.voice.written.spelling import any_of, number, tables

_SCALES: Final = {
    "k": "thousand", "K": "thousand", "m": "million", "M": "million", "mn": "million",
    "mio": "million", "mm": "million", "MM": "million", "bn": "billion", "Bn": "billion",
    "B": "billion", "b": "billion", "tn": "trillion", "T": "trillion", "trn": "trillion",
    "million": "million", "billion": "billion", "trillion": "trillion", "thousand": "thousand",
    "hundred": "hundred", "Million": "million", "Billion": "billion",
}  # fmt: skip
_COINS: Final = {sign: names.split(", ") for sign, names in tables("money")[0].items()}
"""Sign or code of a currency to its names in the singular and plural, and to those of its
hundredths, if any."""
UNITS: Final = tables("units")[0]
_PARTS: Final = {
    "unit": any_of(UNITS),
    "sign": "[" + "".join(sign for sign in _COINS if len(sign) == 1) + "]",
    "code": any_of(sign for sign in _COINS if len(sign) > 1),
}


def _joined(text: str) -> str:
    return re.sub(r"\D", "", text)


def _threes(text: str) -> str:
    """Digits in groups of three, if there are too many for a number."""
    return " ".join(re.findall(r"\d{1,3}", text))


plain_groups: Final = ReadingRules("groups", _PARTS, joined=_joined, threes=_threes)


def _money(found: re.Match[str]) -> str:
    sign, value, scale = found.group("coin", "value", "scale")
    if "," in value and re.fullmatch(r"\d{1,3}(?:\.\d{3})*,\d\d", value):
        value = value.replace(".", "").replace(",", ".")
    one, many, *hundredths = _COINS[sign]
    if _is_attributive(found) or "-m" in found[0] or "-b" in found[0]:
        many = one
    if scale:
        return f"{number(value)} {_SCALES[scale]} {many}"
    whole, _, part = value.replace(",", "").partition(".")
    if len(part) != 2 or not hundredths:
        return f"{number(value)} {one if value == '1' else many}"
    said = f"{in_words(int(whole or 0))} {one if int(whole or 0) == 1 else many}"
    if int(part) == 0:
        return said
    rest = f"{in_words(int(part))} {hundredths[int(part) != 1]}"
    return f"{said} and {rest}" if int(whole or 0) else rest


_NO_NOUNS: Final = frozenset(
    "a an per and or to for in of is was at from on away each more less with by as than that which "
    "we you he she they it were are has had left long tall wide high deep between there here below "
    "above off".split()
)


def _is_attributive(found: re.Match[str]) -> bool:
    """True if an amount precedes the noun that it describes: a $5 bill, a 5 km walk, a 90°
    angle."""
    before = found.string[: found.start()].rstrip().lower()
    after = found.string[found.end() :]
    if not re.search(r"(?:^|\s)(?:an?|the|this|that|every|one|each)(?: \w+ to)?$", before):
        return False
    following = re.match(r"[ -]([A-Za-z]+)", after)
    return following is not None and following[1] not in _NO_NOUNS


_POWER: Final = {"^2": "square", "2": "square", "^3": "cubic", "3": "cubic"}


def _unit(text: str) -> tuple[str, str]:
    base, power = text, ""
    found = re.fullmatch(r"(.+?)(\^?[23])", text)
    if found and found[1] in UNITS:
        base, power = found[1], _POWER[found[2]]
    one, _, plural = UNITS.get(base, base).partition(", ")
    many = plural or f"{one}s"
    if power and base in ("s", "sec", "min", "h"):
        tail = "squared" if power == "square" else "cubed"
        return f"{one} {tail}", f"{many} {tail}"
    return (f"{power} {one}".strip(), f"{power} {many}".strip())


def _counted(one: str, many: str, text: str) -> str:
    return f"{number(text)} {one if text == '1' else many}"


read_money: Final = ReadingRules(
    "money", _PARTS, money=_money, without_points=lambda text: text.replace(".", ""),
    cents=partial(_counted, "cent", "cents"), pence=partial(_counted, "penny", "pence"),
    unit=lambda text: _unit(text)[0],
)  # fmt: skip


_NEED_SPACE: Final = frozenset(("K", "A"))
_NEED_SUM: Final = frozenset(
    "d day days week month year hour minute second people inch mile miles hours".split()
)
_COMPASS: Final = {"N": "north", "S": "south", "E": "east", "W": "west"}
_NOT_JOINED: Final = frozenset("L V W J K".split())


def _amount(found: re.Match[str]) -> str:
    value, unit, per = found[1], found[2], found[3]
    gap = found[0][len(value) : len(value) + 1]
    if (unit in _NEED_SPACE and gap != " ") or (unit in _NEED_SUM and not per):
        return found[0]
    if unit in _NOT_JOINED and gap == "-":
        return found[0]
    if unit == "in." and not re.match(r"\s*(?:$|[a-z,;x×])", found.string[found.end() :]):
        return found[0]
    one, many = _unit(unit)
    is_one = value == "1" or gap == "-" or _is_attributive(found)
    said = f" {number(value)} {one if is_one else many}"
    if per:
        said += f" per {_unit(per)[0]}"
    stop = ""
    if unit.endswith(".") and not found.string[found.end() :].strip():
        stop = "."
    return f"{said}{stop} "


def _mixed_amount(found: re.Match[str]) -> str:
    """`2 1/2 lbs` as two and a half pounds."""
    whole, top, below, unit = found.groups()
    if int(top) >= int(below) or unit in _NEED_SUM:
        return found[0]
    one, many = _unit(unit)
    part = _share(top, below, is_part=True)
    return f"{number(whole)} and {part} {one if _is_attributive(found) else many} "


def _inches(found: re.Match[str]) -> str:
    return "inch" if found[1] == "1" or _is_attributive(found) else "inches"


read_units: Final = ReadingRules(
    "units", _PARTS, amount=_amount, mixed_amount=_mixed_amount, inches=_inches,
    feet=partial(_counted, "foot", "feet"), compass=_COMPASS.__getitem__,
)  # fmt: skip


def _signed(text: str) -> str:
    if not re.fullmatch(r"[-+−]?[0-9]+", text):
        return text
    return ("minus " if text[0] in "-−" else "") + number(text.lstrip("+-−"))


read_ranges: Final = ReadingRules("ranges", _PARTS, signed=_signed)


_RATED: Final = re.compile(
    r"\b(?:rate\w*|scor\w*|gave|give|gives|got|pain|rating|graded?|stars?)\b", re.I
)


def _mixed_fraction(found: re.Match[str]) -> str:
    whole, top, below = found.groups()
    if int(top) >= int(below):
        return found[0]
    return f" {number(whole)} and {_share(top, below, is_part=True)} "


_SHARED: Final = frozenset(
    "cup cups mile inch hour pint teaspoon tablespoon pound ounce glass".split()
)
"""Things of which there may be a half."""


def _fraction(found: re.Match[str]) -> str:
    top, below, noun = found[1], found[2], found[3] or ""
    tail = found[0][found[0].index(below, len(top)) + len(below) :]
    is_rated = noun in ("star", "stars", "points") or bool(
        _RATED.search(found.string[: found.start()][-40:])
    )
    if (
        "." in top
        or (is_rated and below in ("5", "10", "100", "20"))
        or (below in ("100",) and int(top) > 1)
    ):
        return f" {number(top)} out of {number(below)} {tail}"
    if below == "10" and top in ("0", "10"):
        return f" {number(top)} out of ten {tail}"
    if int(below) < 2 or int(top) >= int(below) or not (
        int(below) <= 20 or below in ("100", "1000", "32", "64", "50", "25")
    ):  # fmt: skip
        return f" {number(top)} over {number(below)} {tail}"
    share = _share(top, below, is_part=False)
    unit = UNITS.get(noun)
    if (unit and noun not in ("in", "d", "a")) or noun in _SHARED:
        name = _unit(noun)[0] if unit else noun.removesuffix("s") if noun != "glass" else noun
        article = "an" if name == "hour" or name[0] in "aeio" else "a"
        return (
            f" half {article} {name} " if share == "one half" else f" {share} of {article} {name} "
        )
    return f" {share} {tail}"


def _share(top: str, below: str, *, is_part: bool) -> str:
    count, size = int(top), int(below)
    names = {2: ("half", "halves"), 4: ("quarter", "quarters")}
    if size in names:
        one, many = names[size]
    else:
        one = as_ordinal(size)
        one = {100: "hundredth", 1000: "thousandth"}.get(size, one)
        many = one + "s"
    if count == 1:
        return f"a {one}" if is_part else f"one {one}"
    return f"{in_words(count)} {many}"


read_fractions: Final = ReadingRules(
    "fractions", mixed_fraction=_mixed_fraction, fraction=_fraction
)
_SIGNS, _COMPARED, _GREEK = tables("signs")


def _by_or_times(found: re.Match[str]) -> str:
    text = found.string
    if re.search(r"\d{3}$", text[: found.start()]) and re.match(r"\d{3}", text[found.end() :]):
        return " by "
    if "*" in found[0] or "=" in text or "^" in text[found.end() : found.end() + 8]:
        return " times "
    if "×" in found[0] and re.search(r"(?<!\d)\d{1,2}$", text[: found.start()]) and re.match(
        r"\d{1,3}(?!\d)(?!\s?(?:mm|cm|m|inch|px|in)\b)", text[found.end() :]
    ):  # fmt: skip
        return " times "
    return " by "


def _divided_or_over(found: re.Match[str]) -> str:
    return " divided by " if "=" in found.string else " over "


read_signs: Final = ReadingRules(
    "signs", {"sign": any_of(_SIGNS)}, signed=_signed, by_or_times=_by_or_times,
    divided_or_over=_divided_or_over, sign=_SIGNS.__getitem__, compared=_COMPARED.__getitem__,
    greek=lambda letter: _GREEK[letter.lower()],
)  # fmt: skip


def _any_number(found: re.Match[str]) -> str:
    text = found[0].rstrip(",")
    trailing = found[0][len(text) :]
    if "," in text and not re.fullmatch(r"\d{1,3}(?:,\d{3})+(?:\.\d+)?", text):
        return ", ".join(number(part) for part in text.split(",") if part) + trailing
    return f" {number(text)}{trailing} " if found[0][0] == "." else number(text) + trailing


read_numbers: Final = ReadingRules(
    "numbers", any_number=_any_number, scale=_SCALES.__getitem__,
    nth=lambda text: as_ordinal(int(text.replace(",", ""))),
)  # fmt: skip
