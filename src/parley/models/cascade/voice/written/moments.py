"""Dates, years, decades and times of day."""

from __future__ import annotations

import re
from functools import partial
from typing import Final

from parley.models.cascade.numerals import in_words
from parley.models.cascade.voice.written.rules import ReadingRules
from parley.models.cascade.voice.written.spelling import number, ordinal, spelled, year

_MONTHS: Final = (
    "january february march april may june july august september october november december".split()
)
_DAYS: Final = "monday tuesday wednesday thursday friday saturday sunday".split()


def _beginning(names: list[str], text: str) -> str:
    """`Sept.` as september."""
    return next(name for name in names if name.startswith(text.lower()[:3]))


def _named_month(text: str) -> str:
    return _MONTHS[int(text) - 1]


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


read_dates: Final = ReadingRules(
    "dates", month=partial(_beginning, _MONTHS), weekday=partial(_beginning, _DAYS),
    named_month=_named_month, numeric_date=_numeric,
)  # fmt: skip


def _many(unit: str, text: str) -> str:
    return f"{in_words(int(text))} {unit}{'' if int(text) == 1 else 's'}"


def _clock(found: re.Match[str]) -> str:
    hours, minutes = int(found[1]), int(found[2] or 0)
    if minutes == 0:
        return in_words(hours)
    return f"{in_words(hours)} {'oh ' if minutes < 10 else ''}{in_words(minutes)}"


def _time(found: re.Match[str]) -> str:
    hour, minute, seconds = int(found[1]), int(found[2]), found[3]
    to = " to " if found[4] else ""
    if seconds and int(seconds):
        said = _clock(found) if minute else in_words(hour)
        return f" {said} and {_many('second', seconds)}{to} "
    if minute:
        return f" {'zero ' + in_words(minute) if hour == 0 else _clock(found)}{to} "
    if hour in (0, 24):
        return f" midnight{to} "
    unit = "hundred" if hour > 12 else "o'clock"
    return f" {in_words(hour)} {unit}{to} "


read_times: Final = ReadingRules(
    "times", clock=_clock, time=_time,
    hours=partial(_many, "hour"), minutes=partial(_many, "minute"),
    seconds=partial(_many, "second"),
    half=lambda letter: spelled(f"{letter}m").strip(),
    sign=lambda text: "plus" if text == "+" else "minus",
)  # fmt: skip
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


def _years(found: re.Match[str]) -> str:
    first, last = found.groups()
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


def _era_year(text: str) -> str:
    return year(text) if len(text) == 4 else number(text)


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


read_years: Final = ReadingRules(
    "years", era_year=_era_year, maybe_year=_maybe_year,
    initials=lambda text: spelled(text.replace(".", "")),
)  # fmt: skip
read_year_ranges: Final = ReadingRules("year_ranges", decade=_decade, years=_years)
