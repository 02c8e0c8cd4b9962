"""Dates, years, decades and times of day."""

from __future__ import annotations

import re
from typing import Final

from parley.models.cascade.numerals import in_words
from parley.models.cascade.voice.written.spelling import number, ordinal, spelled, year

_MONTHS: Final = (
    "january february march april may june july august september october november december".split()
)
_DAYS: Final = "monday tuesday wednesday thursday friday saturday sunday".split()
_MONTH: Final = (
    r"(Jan(?:uary|\.)?|Feb(?:ruary|\.)?|Mar(?:ch|\.)?|Apr(?:il|\.)?|May|June?\.?|July?\.?|"
    r"Aug(?:ust|\.)?|Sept?(?:ember|\.)?|Oct(?:ober|\.)?|Nov(?:ember|\.)?|Dec(?:ember|\.)?)"
)
_DAY: Final = r"(3[01]|[12]\d|0?[1-9])(?:st|nd|rd|th)?"
_YEAR: Final = r"(1\d{3}|20\d\d)"
_TO: Final = r"\s?[-–—]\s?"
_WEEKDAY: Final = r"(?:Mon|Tues?|Wed|Thu(?:rs?)?|Fri|Sat|Sun)"
_NO_MORE: Final = r"(?![\w%°]|[.,:/]\d|-\d)"


def month(text: str) -> str:
    """`Sept.` as september."""
    return next(name for name in _MONTHS if name.startswith(text.lower().rstrip(".")[:3]))


def _named(number_text: str) -> str:
    return _MONTHS[int(number_text) - 1]


def read_dates(text: str) -> str:
    """Write dates as words: `4/7/2026` as april seventh, twenty twenty six (American order)."""
    text = _read_weekdays(text)
    text = re.sub(
        rf"\b{_YEAR}[-/](0?[1-9]|1[0-2])[-/](3[01]|[12]\d|0?[1-9])(?:T(?=\d\d:\d\d)|(?![\d-]))",
        lambda f: f" {_named(f[2])} {ordinal(f[3])}, {year(f[1])} ", text,
    )  # fmt: skip
    text = re.sub(r"(?<=\d)Z\b", "", text)
    text = re.sub(
        rf"(?<![\w/.-])(\d\d?)([/.-])(\d\d?)\2({_YEAR}|\d\d)(?![\w/]|[.-]\d)", _numeric, text
    )
    text = re.sub(
        r"\b(on|by|until|since|from|before|after|dated|due|of) "
        r"(1[0-2]|0?[1-9])/(3[01]|[12]\d|0?[1-9])"
        r"(?![\w/%]|\.\d)(?! (?:of|cup|mile|inch|hour))",
        lambda f: f"{f[1]} {_named(f[2])} {ordinal(f[3])} ", text, flags=re.I,
    )  # fmt: skip
    text = re.sub(
        rf"\b{_MONTH}\s{_DAY}{_TO}{_DAY}(?:,?\s{_YEAR})?{_NO_MORE}",
        lambda f: f"{month(f[1])} {ordinal(f[2])} to {ordinal(f[3])}{_comma_year(f[4])} ", text,
    )  # fmt: skip
    text = re.sub(
        rf"\b{_MONTH}\s{_DAY}(?:(,?)\s{_YEAR})?{_NO_MORE}(?!\s(?:percent|degrees|km|kg))",
        lambda f: f"{month(f[1])} {ordinal(f[2])}{_comma_year(f[4])} ", text,
    )  # fmt: skip
    text = re.sub(
        rf"(?<![\w.,/:-])(?:([Tt]he)\s)?{_DAY}(?:{_TO}{_DAY})?\s(?:of\s)?{_MONTH}(?:,?\s{_YEAR})?"
        rf"(?![\w])(?!\.\d)", _day_first, text,
    )  # fmt: skip
    text = re.sub(
        rf"\b{_MONTH}(,?)\s{_YEAR}{_NO_MORE}", lambda f: f"{month(f[1])} {year(f[3])} ", text
    )
    text = re.sub(
        rf"\b{_MONTH}{_TO}{_MONTH}(?![\w])", lambda f: f"{month(f[1])} to {month(f[2])} ", text
    )
    return re.sub(
        r"\b(Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sept?|Oct|Nov|Dec)\.(?=\s|,|$)",
        lambda f: month(f[1]) + ("." if not f.string[f.end() :].strip() else ""), text,
    )  # fmt: skip


def _comma_year(text: str | None) -> str:
    return f", {year(text)}" if text else ""


def _numeric(found: re.Match[str]) -> str:
    first, second, last = int(found[1]), int(found[3]), found[4]
    is_day_first = found[2] == "." or first > 12
    day, number_of_month = (first, second) if is_day_first else (second, first)
    if not (1 <= number_of_month <= 12 and 1 <= day <= 31):
        return found[0]
    if found[2] == "-" and len(last) == 2:
        return found[0]
    whole = last if len(last) == 4 else ("20" if int(last) < 70 else "19") + last
    return f" {_MONTHS[number_of_month - 1]} {ordinal(str(day))}, {year(whole)} "


def _day_first(found: re.Match[str]) -> str:
    article = found[1] or "the"
    to = f" to the {ordinal(found[3])}" if found[3] else ""
    when = f" {year(found[5])}" if found[5] else ""
    stop = ""
    if found[4].endswith(".") and not found[5] and not found.string[found.end() :].strip():
        stop = "."
    return f"{article} {ordinal(found[2])}{to} of {month(found[4])}{when}{stop} "


def _read_weekdays(text: str) -> str:
    def day(one: str) -> str:
        return next(name for name in _DAYS if name.startswith(one.lower()[:3]))

    text = re.sub(
        rf"\b({_WEEKDAY})[-/–]({_WEEKDAY})[-/–]({_WEEKDAY})\b",
        lambda f: f"{day(f[1])}, {day(f[2])}, {day(f[3])} ", text,
    )  # fmt: skip
    text = re.sub(
        rf"\b({_WEEKDAY})\.?{_TO}({_WEEKDAY})\b\.?",
        lambda f: f"{day(f[1])} to {day(f[2])} ", text,
    )  # fmt: skip
    names = "|".join(name.capitalize() for name in _DAYS)
    text = re.sub(rf"\b({names}){_TO}({names})\b", r"\1 to \2", text)
    text = re.sub(
        rf"\b({_WEEKDAY})\.(?=,?\s)|\b(Tues?|Thu(?:rs?)?|Fri)\b(?![.'-])"
        rf"|\b(Mon|Wed|Sat|Sun)(?=,? (?:\d|{_MONTH[1:-1]}|{_WEEKDAY}\b|and {_WEEKDAY}\b))"
        rf"|\b(Mon|Wed|Sat|Sun)(?= (?:to|through|until) (?:{_WEEKDAY}\b|[A-Z][a-z]+day\b))",
        lambda f: day(f[1] or f[2] or f[3] or f[4]), text,
    )  # fmt: skip
    return text


_ZONES: Final = r"(?:UTC|GMT|BST|CET|CEST|EST|EDT|CST|CDT|MST|MDT|PST|PDT|IST|JST)"
_HALF: Final = r"([AaPp])\.?\s?[Mm]\b(\.?)"


def read_times(text: str) -> str:
    """Write times of day, and durations such as `1h30`, as words."""
    text = re.sub(r"\b(noon|midnight)\s?[-–]\s?(?=\d)", r"\1 to ", text)
    text = re.sub(
        rf"(?<![\w:.])(1[0-2]|0?[1-9])((?::[0-5]\d)?){_TO}(?=(?:1[0-2]|0?[1-9])(?::[0-5]\d)?\s?{_HALF})",
        lambda f: f"{_clock(f[1], f[2][1:]) if f[2] else in_words(int(f[1]))} to ", text,
    )  # fmt: skip
    text = re.sub(
        rf"(?<![\w:.])(1[0-2]|0?[1-9])(?:[:.]([0-5]\d))?\s?{_HALF}(?:{_TO}(?=\d))?", _half_day, text
    )
    text = re.sub(
        r"(?<![\w:.,])(2[0-4]|1\d|0?\d):([0-5]\d)(?::([0-5]\d))?(?:\.\d+)?"
        r"(?![\w:]|\.\d)(?!\s(?:ratio|odds|scale))(?:(\s?[-–—]\s?)(?=\d))?",
        _time, text,
    )  # fmt: skip
    text = re.sub(
        r"\b(\d+)\s?h\s?(\d{1,2})\s?(?:m|min|mins)?\b(?:\s?(\d{1,2})\s?s\b)?", _length, text
    )
    text = re.sub(
        r"\b(\d+)\s?m(?:in)?\s?(\d{1,2})\s?s\b",
        lambda f: f"{_many(f[1], 'minute')} {_many(f[2], 'second')} ", text,
    )  # fmt: skip
    return re.sub(
        rf"\b({_ZONES})\s?([+-−])(\d{{1,2}})(?::00)?\b",
        lambda f: f"{spelled(f[1])} {'plus' if f[2] == '+' else 'minus'} {number(f[3])} ", text,
    )  # fmt: skip


def _many(text: str, unit: str) -> str:
    return f"{in_words(int(text))} {unit}{'' if int(text) == 1 else 's'}"


def _length(found: re.Match[str]) -> str:
    seconds = f" {_many(found[3], 'second')}" if found[3] else ""
    return f"{_many(found[1], 'hour')} {_many(found[2], 'minute')}{seconds} "


def _clock(hour: str, minute: str) -> str:
    hours, minutes = int(hour), int(minute or 0)
    if minutes == 0:
        return in_words(hours)
    return f"{in_words(hours)} {'oh ' if minutes < 10 else ''}{in_words(minutes)}"


def _half_day(found: re.Match[str]) -> str:
    rest = found.string[found.end() :]
    is_end = not rest.strip() or re.match(rf"\s+(?!{_MONTH}|{_ZONES}|[A-Z][a-z]+day)[A-Z]", rest)
    stop = "." if found[4] and is_end else " "
    to = " to " if found[0].rstrip()[-1] in "-–—" else ""
    return f" {_clock(found[1], found[2] or '')} {spelled(found[3] + 'm').strip()}{to}{stop}"


def _time(found: re.Match[str]) -> str:
    hour, minute, seconds = int(found[1]), int(found[2]), found[3]
    to = " to " if found[4] else ""
    if seconds and int(seconds):
        said = _clock(found[1], found[2]) if minute else in_words(hour)
        return f" {said} and {_many(seconds, 'second')}{to} "
    if minute:
        return f" {'zero ' + in_words(minute) if hour == 0 else _clock(found[1], found[2])}{to} "
    if hour in (0, 24):
        return f" midnight{to} "
    unit = "hundred" if hour > 12 else "o'clock"
    return f" {in_words(hour)} {unit}{to} "


_YEAR_BEFORE: Final = frozenset(
    "in since until till by year circa summer winter spring autumn fall early late mid pre post "
    "ad class from before after during january february march april may june july august "
    "september october november december".split()
)
_COUNT_BEFORE: Final = frozenset(
    "than nearly almost approximately exactly plus minus times equals number up least most "
    "about over only every all these those some costs cost weighs".split()
)
_NOT_COUNTED: Final = frozenset(
    "was is has does as this its his us always perhaps towards across unless besides".split()
)
_COUNTED: Final = frozenset(
    "people men women children feet percent more times fewer less million billion thousand".split()
)
_YEAR_RANGE: Final = rf"(?<![\w.,-])({_YEAR}){_TO}(\d\d(?:\d\d)?)(?![\w%]|[.,]\d|-\d)"


def read_years(text: str) -> str:
    """Write years, decades, eras and quarters as words; four digits before something countable stay
    a number."""
    text = re.sub(
        r"(?<![\w])'(\d\d)(?!\w)",
        lambda f: f"{'oh ' if f[1][0] == '0' else ''}{number(f[1].lstrip('0') or '0')}",
        text,
    )
    text = re.sub(
        r"\b(?:(AD|BC|BCE|CE)\s(\d{1,4})|(\d{1,4})\s(AD|BCE?|CE|A\.D\.|B\.C\.(?:E\.)?))(?![\w])",
        _era,
        text,
    )
    text = re.sub(rf"\b(Q[1-4]|H[12]|FY)\s?{_YEAR}\b", lambda f: f"{f[1]} {year(f[2])}", text)
    text = re.sub(
        r"(?<=\b[Ii]n )(1\d{3}|20\d\d)/(\d\d)\b",
        lambda f: f"{year(f[1])} {in_words(int(f[2]))}",
        text,
    )
    return re.sub(rf"(?<![\w.,$€£#]){_YEAR}(?![\w%°]|[.,]\d|:\d)", _maybe_year, text)


def read_year_ranges(text: str) -> str:
    """Write decades and ranges of years as words: 1914-18 as nineteen fourteen to eighteen."""
    text = re.sub(
        r"(?<![\w.,])(?:(?:(?<=')|'|(?<=\b[Tt]he )|(?<=\b(?:[Hh]is|[Hh]er|mid) )|(?<=\bmid-)"
        r"|(?<=\bearly )|(?<=\blate )|(?<=\btheir )|(?<=\b[Mm]y )|(?<=\byour ))(\d)0'?s"
        r"|(1\d|20)(\d)0'?s)(?!\w)", _decade, text,
    )  # fmt: skip
    text = re.sub(r"(?<=ties)\s?[-–]\s?(?=(?:\w+ )?\w+ties\b)", " to ", text)
    return re.sub(_YEAR_RANGE, _years, text)


def _years(found: re.Match[str]) -> str:
    first, last = found[1], found[3]
    if len(last) == 4 and not int(first) <= int(last) <= 2100:
        return found[0]
    if len(last) == 2 and int(last) <= int(first[2:]):
        return found[0]
    said = year(last) if len(last) == 4 else in_words(int(last))
    return f"{year(first)} to {said} "


def _decade(found: re.Match[str]) -> str:
    if found[1]:
        if found[1] in "01":
            return found[0] if found[1] == "0" else "tens"
        return in_words(10 * int(found[1]))[:-1] + "ies"
    century, ten = found[2], int(found[3])
    if ten == 0:
        return f"{in_words(int(century))} hundreds" if century != "20" else "two thousands"
    return f"{in_words(int(century))} {'tens' if ten == 1 else in_words(10 * ten)[:-1] + 'ies'}"


def _era(found: re.Match[str]) -> str:
    era = spelled((found[1] or found[4]).replace(".", ""))
    digits = found[2] or found[3]
    said = year(digits) if len(digits) == 4 else number(digits)
    return f" {era} {said} " if found[1] else f" {said} {era} "


def _maybe_year(found: re.Match[str]) -> str:
    before = re.search(r"([A-Za-z]+)['’)\"]*,?\s$", found.string[: found.start()])
    after = re.match(r"[\s-]([A-Za-z]+)", found.string[found.end() :])
    previous = before[1].lower() if before else ""
    following = after[1] if after else ""
    low = following.lower()
    is_counted = following.islower() and (
        low in _COUNTED
        or (
            low.endswith("s")
            and not low.endswith("ss")
            and len(low) > 3
            and low not in _NOT_COUNTED
        )
    )
    if is_counted and previous not in ("in", "since", "year"):
        is_year = found[1].endswith("00") and found[1] != "1000" and int(found[1]) < 2000
        return year(found[1]) if is_year else number(found[1])
    if previous in _YEAR_BEFORE:
        return year(found[1]) if int(found[1]) >= 1010 else number(found[1])
    if previous in _COUNT_BEFORE or int(found[1]) < 1100:
        return number(found[1])
    return year(found[1])
