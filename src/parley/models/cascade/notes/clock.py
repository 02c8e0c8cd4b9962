"""Answers to questions about the time of day and the date.

The caller of a note reads the clock and stores the time with the other choices, so a repeated
conversation has the same answers.
"""

from __future__ import annotations

import re
from calendar import isleap
from collections.abc import Callable, Iterable
from datetime import date, datetime, timedelta
from typing import Final

from parley.models.cascade.notes.said import Replies
from parley.models.cascade.numerals import as_digits
from parley.models.cascade.tables import patterns

DAYS: Final = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS: Final = (
    "January February March April May June July August September October November December"
).split()
_SAYS: Final = patterns("clock")
_TOLD: Final = Replies("notes/clock")
Now = Callable[[], datetime]
_FEASTS: Final = {
    "christmas": (12, 25), "christmas eve": (12, 24), "new year": (1, 1), "new year's": (1, 1),
    "new year's eve": (12, 31), "new year's day": (1, 1), "new year day": (1, 1),
    "new year eve": (12, 31), "halloween": (10, 31), "valentine's day": (2, 14),
}  # fmt: skip
_FEAST: Final = re.compile(
    rf"\b(?<=week is )({'|'.join(sorted(_FEASTS, key=len, reverse=True))})\b"
)


def clock_note(low: str, now: Now) -> str | None:
    """The time, the day, the date, or the time until one; None if none of them is asked for. `now`
    is called only if it is needed."""
    if re.search(r"\b(?:mars|moon)\b", low):
        return None
    low = re.sub(r"[,\s]+(?:pls|plz|please|thanks|mate|buddy|bro)\W*$", "?", low)
    low = _SAYS["day_first"].sub(r"\2 \1", low)
    shifted = _shifted(as_digits(low), now) or _of_the_year(low, now)
    if shifted:
        return shifted
    other = _SAYS["other_day"].search(low)
    if other:
        return _other_day(other[1] or other[2] or other[3], now().date())
    until = _SAYS["until"].search(low)
    if until:
        told = _until(until[1], now().date())
        days = re.search(r"\d+(?= days until)", told) if "weeks" in low else None
        return f"{told} That is about {round(int(days[0]) / 7)} weeks." if days else told
    if weekday := _SAYS["on"].search(low):
        today = now().date()
        ahead = (DAYS.index(weekday[1].capitalize()) - today.weekday()) % 7 or 7
        return f"It is {_date(today + timedelta(ahead))}."
    if asked := _SAYS["is_it"].search(low):
        return _whether(asked[1], now().date())
    return _said(low, now)


def age_note(low: str, told: Iterable[str], now: Now) -> str | None:
    """The age of users who stated their year of birth, or the year of birth of users who stated
    their age. Both are two values, because the birthday is unknown."""
    facts = "\n".join(told)
    if _SAYS["how_old"].search(low) and (born := _SAYS["born"].search(facts)):
        age = now().year - int(born[1])
        return f"You are {age - 1} or {age}, as you were born in {born[1]}."
    if _SAYS["when_born"].search(low) and (old := _SAYS["old"].search(as_digits(facts))):
        year = now().year - int(old[1])
        return f"In {year - 1} or {year}, if you are {old[1]}."
    return None


def _whether(asked: str, today: date) -> str:
    """The answer to `Is it Monday?` or `Is it the weekend?`"""
    name, is_weekend = DAYS[today.weekday()], today.weekday() >= 5
    if asked.capitalize() in DAYS:
        return f"{'Yes' if asked == name.lower() else 'No'}, today is {_date(today)}."
    return f"{'Yes' if is_weekend == (asked == 'weekend') else 'No'}, today is {name}."


def _said(low: str, now: Now) -> str | None:
    """An answer that only needs the current time."""
    form = _TOLD.find(low)
    if form is None:
        return None
    moment = now()
    if "{time}" in form and _SAYS["elsewhere"].search(low) and not _SAYS["both"].search(low):
        form = "I know only the time here: it is {time}."
    return form.format(
        time=_clock(moment), date=_date(moment.date()), month=MONTHS[moment.month - 1],
        year=moment.year, week=moment.isocalendar().week,
    )  # fmt: skip


def _shifted(low: str, now: Now) -> str | None:
    """A time, a day or a year before or after now, or the time until an hour."""
    if _SAYS["not_now"].search(low):
        return None
    found = _SAYS["shifted"].search(low)
    if found:
        what, count, unit, ago = found.groups()
        if (what, unit) == ("year", "year") and count.isdigit():
            year = now().year + (-1 if ago else 1) * int(count)
            return f"It {'was' if ago else 'will be'} the year {year}."
        units = {"minute": 1, "hour": 60, "day": 1440, "week": 10_080}
        if unit not in units or (what == "time") != (units[unit] < 1440):
            return None
        many = 0.5 if count.startswith("half") else int(count) if count.isdigit() else 1
        moment = now() + timedelta(minutes=(-1 if ago else 1) * many * units[unit])
        verb = "was" if ago else "will be"
        return f"It {verb} {_clock(moment) if what == 'time' else _date(moment.date())}."
    found = _SAYS["hours_until"].search(low)
    if found is None:
        return None
    name, hour, minute, half = found.groups()
    at, day_min = {"midnight": 0, "noon": 12, "midday": 12}.get(name), 1440
    if at is None:
        is_of_half = bool(half) and half != "o'clock"
        at = int(hour) % 12 + 12 * half.startswith("p") if is_of_half else int(hour)
        day_min = 1440 if is_of_half or at > 12 else 720
    moment = now()
    left = (at * 60 + int(minute or 0) - moment.hour * 60 - moment.minute) % day_min
    said = [
        f"{many} {unit}{'' if many == 1 else 's'}"
        for many, unit in zip(divmod(left, 60), ("hour", "minute"), strict=True) if many
    ]  # fmt: skip
    return f"It is {' and '.join(said) or 'no time at all'} until {name}."


def _dated(feast: re.Match[str]) -> str:
    """The date of a feast, as users write dates."""
    month, day = _FEASTS[feast[1]]
    return f"{MONTHS[month - 1].lower()} {day}"


def _of_the_year(low: str, now: Now) -> str | None:
    """Facts about this year: a weekday, a season, the remaining days."""
    found = _SAYS["weekday_of"].search(_FEAST.sub(_dated, low))
    if found:
        month = [one.lower() for one in MONTHS].index(found[1]) + 1
        try:
            return f"{_date(date(int(found[3] or now().year), month, int(found[2])))}."
        except ValueError:
            return "There is no such day."
    season = _SAYS["season"].search(low)
    if season:
        names = ("winter", "spring", "summer", "autumn")
        month = MONTHS.index(season[1].capitalize()) + 1 if season[1] else now().month
        place = month % 12 // 3
        return f"In the north it is {names[place]}, and in the south {names[(place + 2) % 4]}."
    found = re.search(
        r"\b(?:is|was|will) (?:(?:this|last|next) year|it|this|(\d{4})) (?:be )?a leap year\b", low
    )
    if found:
        year = int(found[1] or now().year) - ("last year" in low) + ("next year" in low)
        is_so = isleap(year)
        return f"{'Yes' if is_so else 'No'}, {year} is {'a' if is_so else 'not a'} leap year."
    if found := _SAYS["february"].search(low):
        return f"In {found[1]} February has {28 + isleap(int(found[1]))} days."
    if born := re.search(r"\bhow old\b.*\bborn in (\d{4})\b", low):
        then = re.search(r"\bin (\d{4})\b.*\bborn\b", low)
        year = int(then[1]) if then else now().year
        return f"Who was born in {born[1]} turns {year - int(born[1])} in {year}."
    found = _SAYS["left"].search(low)
    if found:
        today = now().date()
        first = date(today.year + (found[1] == "year" or today.month == 12),
                     1 if found[1] == "year" else today.month % 12 + 1, 1)  # fmt: skip
        days = (first - today).days - 1
        return f"After today there are {days} days left this {found[1]}."
    found = _SAYS["beside"].search(low)
    if found and "month" in low:
        other = MONTHS[(now().month - 1 + (1 if found[1] == "next" else -1)) % 12]
        return f"{found[1].capitalize()} month {'is' if found[1] == 'next' else 'was'} {other}."
    return None


def _clock(now: datetime) -> str:
    return f"{now.hour % 12 or 12}:{now.minute:02} {'AM' if now.hour < 12 else 'PM'}"


def _date(day: date) -> str:
    return f"{DAYS[day.weekday()]}, {MONTHS[day.month - 1]} {day.day}, {day.year}"


def _other_day(which: str, today: date) -> str:
    step = {"tomorrow": 1, "yesterday": -1, "day after tomorrow": 2, "day before yesterday": -2}
    day = _date(today + timedelta(step[which]))
    name = f"The {which}" if " " in which else which.capitalize()
    return f"{name} {'is' if step[which] > 0 else 'was'} {day}."


def _until(what: str, today: date) -> str:
    if what.endswith("weekend"):
        days = (5 - today.weekday()) % 7 if today.weekday() < 5 else 0
        name = "the weekend"
    elif what.capitalize() in DAYS:
        days, name = (DAYS.index(what.capitalize()) - today.weekday()) % 7 or 7, what.capitalize()
    else:
        month, day = _FEASTS.get(what) or (
            MONTHS.index(what.split()[0].capitalize()) + 1,
            int(what.split()[1]),
        )
        name = what.title().replace("'S", "'s")
        try:
            then = date(today.year, month, day)
            then = then if then >= today else date(today.year + 1, month, day)
        except ValueError:
            return f"There is no {name}."
        days = (then - today).days
    if days == 0:
        return f"It is {name} today." if name != "the weekend" else "It is the weekend already."
    return f"It is {days} day{'' if days == 1 else 's'} until {name}."
