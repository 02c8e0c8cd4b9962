"""Abbreviations, with and without a stop, and initials."""

from __future__ import annotations

import re
from typing import Final

from parley.models.cascade.voice.written.amounts import UNITS
from parley.models.cascade.voice.written.spelling import spelled, tables

(
    _BEFORE_NAMES,
    _BEHIND_NAMES,
    _BEFORE_NUMBERS,
    _ANYWHERE,
    _DOTLESS,
    _STATES,
) = tables("abbreviations")
_PLURAL: Final = frozenset("chapter figure volume page section equation number article".split())
_STROKES: Final = (
    (re.compile(r"\bw/o(?:ut)?\b", re.I), "without "),
    (re.compile(r"\b[Nn]o\.(?=\d)"), "number "),
    (re.compile(r"(?<![\w/])km/h(?!\w)"), "kilometres per hour"),
    (re.compile(r"(?<![\w/])m/s(?!\w)"), "metres per second"),
    (re.compile(r"\bw/(?=\s|\w)", re.I), "with "),
    (re.compile(r"\bb/c\b", re.I), "because "),
    (re.compile(r"\bN/A\b", re.I), "not applicable "),
    (re.compile(r"\bc/o\b"), "care of "),
    (re.compile(r"\band/or\b", re.I), "and or"),
    (re.compile(r"\bs/he\b", re.I), "she or he"),
    (re.compile(r"\b(?:TCP/IP|S/PDIF|AC/DC|OS/2)\b"), lambda f: f[0].replace("/", " ")),
    (re.compile(r"(?i)'n'|(?<= )'n(?= )"), " and "),
    (re.compile(r"(?i)(?<!\w)'(?:tis)\b"), "it is"),
    (re.compile(r"(?i)(?<!\w)'(?:til|till)\b"), "until"),
    (re.compile(r"(?i)(?<!\w)'cause\b"), "because"),
    (re.compile(r"\bC\+\+"), f"{spelled('C')} plus plus "),
    (re.compile(r"\bC#"), f"{spelled('C')} sharp "),
    (re.compile(r"\bF#"), f"{spelled('F')} sharp "),
    (re.compile(r"\b([A-F])\+(?![\w+])"), lambda f: f"{spelled(f[1])} plus "),
    (re.compile(r"(?<=\b[Aa]n )A-(?![\w-])|(?<=\ba )([B-D])-(?![\w-])"),
     lambda f: f"{spelled(f[1] or 'A')} minus "),
    (re.compile(r"\b(Ctrl|Control|Alt|Shift|Cmd|Command|Option|Fn|Win|Super)\s?[-+]\s?(?=\w)"),
     lambda f: {"Ctrl": "control ", "Cmd": "command "}.get(f[1], f[1].lower() + " ")),
    (re.compile(r"\b([A-Z])([&/])([A-Z])(s?)\b"),
     lambda f: f"{spelled(f[1])}{' and ' if f[2] == '&' else ' '}{spelled(f[3]).rstrip()}"
     + ("'s" if f[4] else "")),
    (re.compile(r"\bAT&T\b"), f"{spelled('AT')} and {spelled('T')}"),
)  # fmt: skip

TITLES: Final = frozenset(_BEFORE_NAMES) - {"ft", "fr", "hon", "rep"}
_NAME: Final = r"[A-Z][\w'&-]*"
_WORD: Final = re.compile(r"(?<![\w.])(et al|[A-Za-z]{1,6}(?:\.[A-Za-z])?)\.(?=[\s,;:!?)\"']|$)")


def read_abbreviations(text: str) -> str:
    """Write abbreviations as words. A full stop that also ends the sentence stays."""
    for pattern, said in _STROKES:
        text = pattern.sub(said, text)
    text = re.sub(
        r"(?<=[a-z]), (" + "|".join(_STATES) + r")\b(?=\s*\d{5}|[.,;:!?)]|\s*$|\s+[a-z])",
        lambda found: f", {_STATES[found[1]]} ", text,
    )  # fmt: skip
    text = re.sub(r"\bPh\.\s?D\b\.?", f" {spelled('PHD')} ", text)
    text = re.sub(r"\b([BM])\.\s?Sc\b\.?", lambda f: f" {spelled(f[1] + 'SC')} ", text)
    text = re.sub(r"(?<![\w.])(?:[A-Za-z]\.\s?){2,}(?![a-z]\w)", _initials, text)
    text = re.sub(r"(?<![\w.])([A-Z])\.(?=\s[A-Z][a-z])", lambda found: spelled(found[1]), text)
    text = _WORD.sub(lambda found: _abbreviated(found, text), text)
    text = re.sub(r"\b(Mr|Mrs|Dr|Prof|St|Mt)(?=\s[A-Z])", _titled, text)
    return re.sub(
        r"(?<![\w.'/-])(?<!\d )([A-Za-z]{2,6})(?![\w'/-])",
        lambda found: _DOTLESS.get(found[1].lower(), found[0])
        if not found[1].isupper() or found[1] == "OK" else found[0],
        text,
    )  # fmt: skip


def _titled(found: re.Match[str]) -> str:
    return _BEFORE_NAMES[found[1].lower()]


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


def _abbreviated(found: re.Match[str], text: str) -> str:
    low = found[1].lower()
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


def _is_street(last: re.Match[str] | None, after: str) -> bool:
    following = re.match(r"\s+([A-Z]\w*)", after)
    if last is None or last[0].isdigit() or (following and following[1] not in _STARTS):
        return False
    return last is not None and last[0].lower() not in (
        "the",
        "in",
        "on",
        "at",
        "and",
        "from",
        "to",
    )
