"""Abbreviations, with and without a stop, and initials."""

from __future__ import annotations

import re
from typing import Final

from parley.models.cascade.voice.written.amounts import UNITS
from parley.models.cascade.voice.written.rules import ReadingRules
from parley.models.cascade.voice.written.spelling import any_of, spelled, tables

(
    _BEFORE_NAMES,
    _BEHIND_NAMES,
    _BEFORE_NUMBERS,
    _ANYWHERE,
    _DOTLESS,
    _STATES,
) = tables("abbreviations")
_PLURAL: Final = frozenset("chapter figure volume page section equation number article".split())
TITLES: Final = frozenset(_BEFORE_NAMES) - {"ft", "fr", "hon", "rep"}
_NAME: Final = r"[A-Z][\w'&-]*"


def _initials(found: re.Match[str]) -> str:
    text = found[0]
    low = re.sub(r"[\s.]", "", text).lower()
    rest = found.string[found.end() :]
    is_end = not rest.strip() or bool(re.match(r"\s*[A-Z]\w", rest) and text[-1].isspace())
    if low in ("eg", "ie"):
        return {"eg": "for example ", "ie": "that is "}[low]
    if re.fullmatch(r"(?:[A-Z]\.\s)+", text) and rest[:1].isupper():
        is_end = False  # initials before a name
    stop = (
        "." if is_end and not (rest[:1].isupper() and len(low) <= 3 and text[0].isupper()) else ""
    )
    return f" {spelled(low)}{stop} "


def _abbreviated(found: re.Match[str]) -> str:
    low, text = found[1].lower(), found.string
    before, after = text[: found.start()].rstrip(), text[found.end() :]
    has_name_after = bool(re.match(rf"\s+{_NAME}", after))
    has_number_after = bool(re.match(r"\s*[#(]?\d", after))
    last = re.search(r"[\w'’]+$", before)
    has_name_before = before.endswith("&") or bool(
        last and (last[0][0].isupper() or last[0][0].isdigit())
    )
    if low in _BEFORE_NUMBERS and has_number_after:
        name = _BEFORE_NUMBERS[low]
        is_many = re.match(r"\s*\d+\s?(?:[-–&]|and|to)\s?\d", after) and not name.endswith("s")
        return f"{name}s " if is_many and name in _PLURAL else f"{name} "
    if f"{low}." in UNITS and re.search(r"\d$", before):
        return found[0]
    is_end = not after.strip() or bool(re.match(r"\s+[A-Z]", after))
    if (
        low in _BEHIND_NAMES
        and has_name_before
        and (low not in ("st", "dr") or _is_street(last, after))
    ):
        is_street_in_town = bool(re.match(r"\s*,", after))
        return _BEHIND_NAMES[low] + ("." if is_end and not is_street_in_town else " ")
    if low in _BEFORE_NAMES and (has_name_after or low in ("mr", "mrs", "ms")):
        return f"{_BEFORE_NAMES[low]} "
    if low == "no" or low not in _ANYWHERE:
        return found[0]
    return _ANYWHERE[low] + ("." if is_end and low not in ("e.g", "i.e", "vs", "cf") else " ")


_STARTS: Final = frozenset(
    "The It He She We I They This That There A An In On At And But You My His Her Our Its".split()
)


_NO_STREETS: Final = frozenset("the in on at and from to".split())


def _is_street(last: re.Match[str] | None, after: str) -> bool:
    following = re.match(r"\s+([A-Z]\w*)", after)
    if last is None or last[0].isdigit() or (following and following[1] not in _STARTS):
        return False
    return last[0].lower() not in _NO_STREETS


read_abbreviations: Final = ReadingRules(
    "abbreviations", {"state": "|".join(_STATES)}, state=_STATES.__getitem__, initials=_initials,
    letter=lambda text: spelled(text).rstrip(), abbreviated=_abbreviated,
    title=lambda text: _BEFORE_NAMES[text.lower()],
    dotless=lambda text: _DOTLESS.get(text.lower(), text),
)  # fmt: skip
(_BOOKS,) = tables("books")
read_verses: Final = ReadingRules(
    "verses", {"short_book": any_of(_BOOKS)},
    book=lambda text: _BOOKS.get(text.rstrip("."), text),
)  # fmt: skip
