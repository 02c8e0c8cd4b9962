"""The time of day and the date, where they are asked for.

The moment is read by who asks for the note, and written down with what was chosen: a conversation
that is done again says the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import date, datetime, timedelta
from typing import Final

from parley.models.cascade.notes.calendar import DAYS, MONTHS
from parley.models.cascade.notes.said import FixedNote

Now = Callable[[], datetime]

_TIME: Final = re.compile(
    r"\bwhat(?:'s| is)? (?:the )?time(?: is it| now| it is)?(?: right now| now| please| there)?\W*$"
    r"|\bwhat time is it\b|\bwhat time (?:do you have|have you got|it is)\b|\btell me (?:what "
    r")?(?:the )?time\b"
    r"|\b(?:do you (?:know|have)|have you got) (?:what )?the time\b|\bwhat(?:'s| is) the "
    r"(?:current|exact) time\b"
    r"|\bwhat(?:'s| is) the time in\b|\bhow late is it\b|\b(?:current|exact) time\b|\bknow what "
    r"time\b|\bgot the time\b|^\W*(?:the )?time(?:,? please)?\W*$|\bwhat hour is it\b"
    r"|\b(?:check|look at|read) (?:the|your|a) (?:clock|watch|time)\b"
    r"|\bis it (?:already )?(?:past|after|before) (?:noon|midday|midnight|lunch|lunchtime|\d)"
)
_ELSEWHERE: Final = re.compile(
    r"\b(?:time|day|date)\b.*\b(?:in|at) (?!the (?:moment|morning)|your|this|my)[a-z]"
)
_DATE: Final = re.compile(
    r"\b(?:what|which)(?:'s| is)? (?:the |today's )?(?:current )?date\b|\btoday's date\b|\bdate "
    r"today\b"
    r"|\bwhat(?:'s| is) (?:the )?(?:day and )?date\b|\bwhat day of the month\b"
    r"|\b(?:tell|give) me (?:the|today's) date\b"
)
_DAY: Final = re.compile(
    r"\b(?:what|which) (?:day|weekday)(?: of the week)?(?: is| do we have| are we)?(?: it)?(?: "
    r"today| now| is it| have)?\W*$"
    r"|\b(?:what|which) day (?:is (?:it |today)|do we have)|\bwhat(?:'s| is) today\b|\bwhat day "
    r"it is\b"
    r"|\bwhat(?:'s| is) the (?:week)?day(?: today| of the week)?\W*$"
    r"|\bis (?:it|today) (monday|tuesday|wednesday|thursday|friday|saturday|sunday)\b"
)
_OTHER_DAY: Final = re.compile(
    r"\b(?:what|which) (?:day|date)(?: of the week)?(?:'s| is| was| will)?(?: it)?(?: be)? "
    r"(?:the )?(day after tomorrow|day before yesterday|tomorrow|yesterday)\b"
    r"|\bwhat(?:'s| is| was) (tomorrow|yesterday)\b(?:'s date)?"
    r"|\bdate(?: is it| was it| will it be| for)? (tomorrow|yesterday)\b"
)
_WEEKEND: Final = re.compile(
    r"\bis (?:it|today|this) (?:the|a|already the) (weekend|weekday|work ?day|working day)\b"
)
_WEEK: Final = re.compile(
    r"\b(?:what|which) (?:calendar )?week(?: number)? (?:is it|is this|are we)\b"
)
_MONTH: Final = re.compile(r"\b(?:what|which) month (?:is it|is this|are we in|do we have)\b")
_YEAR: Final = re.compile(
    r"\b(?:what|which) year (?:is it|is this|are we in|do we have|it is)\b|\bcurrent year\b"
)
_UNTIL: Final = re.compile(
    r"\bhow (?:many days|long)(?: is it| is there| are there| are left)?(?: left)? (?:until|till"
    r"|to|before) "
    r"(?:the )?(christmas(?: eve)?|new year(?:'s)?(?: eve| day)?|halloween|valentine's day|"
    rf"{'|'.join(day.lower() for day in DAYS)}|the weekend|weekend|"
    rf"(?:{'|'.join(month.lower() for month in MONTHS)}) \d{{1,2}})"
)
_PART: Final = re.compile(
    r"\bis it (?:still |already )?(?:morning|afternoon|evening|night|late|early)\b"
    r"(?: (?:yet|already|now))?\W*$"
)
_FEASTS: Final = {
    "christmas": (12, 25), "christmas eve": (12, 24), "new year": (1, 1), "new year's": (1, 1),
    "new year's eve": (12, 31), "new year's day": (1, 1), "new year day": (1, 1),
    "new year eve": (12, 31), "halloween": (10, 31), "valentine's day": (2, 14),
}  # fmt: skip


def clock_note(low: str, now: Now) -> str | None:
    """The time, the day, the date, or how long it is until one. `now` is read only then."""
    if re.search(r"\b(?:mars|moon)\b", low):
        return None
    other = _OTHER_DAY.search(low)
    if other:
        return FixedNote(_other_day(other[1] or other[2] or other[3], now().date()))
    until = _UNTIL.search(low)
    if until:
        return FixedNote(_until(until[1], now().date()))
    if _TIME.search(low):
        if _ELSEWHERE.search(low):
            return FixedNote(f"I know only the time here: it is {_clock(now())}.")
        return FixedNote(f"It is {_clock(now())}.")
    if _PART.search(low):
        return FixedNote(f"It is {_clock(now())}.")
    if _YEAR.search(low):
        return FixedNote(f"It is the year {now().year}.")
    if _MONTH.search(low):
        return FixedNote(f"It is {MONTHS[now().month - 1]}.")
    if _DATE.search(low):
        return FixedNote(f"Today is {_date(now().date())}.")
    if _WEEK.search(low):
        return FixedNote(f"It is week {now().isocalendar().week} of the year.")
    weekend = _WEEKEND.search(low)
    if weekend:
        is_so = (now().weekday() >= 5) == (weekend[1] == "weekend")
        return FixedNote(f"{'Yes' if is_so else 'No'}, today is {DAYS[now().weekday()]}.")
    day = _DAY.search(low)
    if day:
        today = now().date()
        if day[1]:
            is_so = DAYS[today.weekday()].lower() == day[1]
            return FixedNote(f"{'Yes' if is_so else 'No'}, today is {_date(today)}.")
        return FixedNote(f"Today is {_date(today)}.")
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
