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
from parley.models.cascade.numerals import as_digits

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
    r"|\bis it (?:already )?(?:noon|midday|midnight|lunch ?time)(?: yet| already| now)?\W*$"
    r"|^\W*and (?:what(?:'s| is) )?the time\W*$"
)
_BOTH: Final = re.compile(r"\btime and (?:the )?(?:date|day)\b|\b(?:date|day) and (?:the )?time\b")
_ELSEWHERE: Final = re.compile(
    r"\b(?:time|day|date)\b.*\b(?:in|at) (?!the (?:moment|morning)|your|this|my)[a-z]"
)
_DATE: Final = re.compile(
    r"\b(?:what|which)(?:'s| is)? (?:the |today's )?(?:current )?date\b|\btoday's date\b|\bdate "
    r"today\b"
    r"|\bwhat(?:'s| is) (?:the )?(?:day and )?date\b|\bwhat day of the month\b"
    r"|\b(?:tell|give) me (?:the|today's) date\b|^\W*and (?:what(?:'s| is) )?the date\W*$"
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
    r"\b(?:what|which) (?:day|date|weekday)(?: of the week)?(?:'s| is| was| will)?(?: it)?(?: be)? "
    r"(?:the )?(day after tomorrow|day before yesterday|tomorrow|yesterday)\b"
    r"|\bwhat(?:'s| is| was) (?:the )?(day after tomorrow|day before yesterday|tomorrow"
    r"|yesterday)\b(?:'s date)?\W*$"
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
    r"(?:my birthday (?:on|is) )?(?:the )?"
    r"(christmas(?: eve)?|new year(?:'s)?(?: eve| day)?|halloween|valentine's day|"
    rf"{'|'.join(day.lower() for day in DAYS)}|the weekend|weekend|"
    rf"(?:{'|'.join(month.lower() for month in MONTHS)}) \d{{1,2}})"
)
_PART: Final = re.compile(
    r"\bis it (?:still |already )?(?:morning|afternoon|evening|night|late|early)\b"
    r"(?: (?:yet|already|now))?\W*$"
)
_MONTH_NAMES: Final = "|".join(month.lower() for month in MONTHS)
_DAY_FIRST: Final = re.compile(rf"\b(\d{{1,2}})(?:st|nd|rd|th)? (?:of )?({_MONTH_NAMES})\b")
_SPAN: Final = r"(half an?|\d{1,4}|an?) (minute|hour|day|week|month|year)s?"
_SHIFTED: Final = re.compile(
    r"\b(?:what|which) (time|day|date|weekday|year)(?: of the week)? "
    rf"(?:will it be|is it|would it be|was it|is|was) (?:in )?{_SPAN}(?: from (?:now|today))?"
    r"( ago)?\W*$"
)
_HOURS_UNTIL: Final = re.compile(
    r"\bhow (?:many (?:hours|minutes)|long)(?: is it| are there| is there| are left)?(?: left)? "
    r"(?:until|till|to|before) (midnight|noon|midday|(\d{1,2})(?::(\d\d))? ?(am|pm|a\.m|p\.m))"
)
_WEEKDAY_OF: Final = re.compile(
    r"\b(?:what|which) (?:day|weekday)(?: of the week)? (?:is|does|will|was)(?: it)?(?: on)?"
    "(?: the)? "
    rf"({_MONTH_NAMES}) (\d{{1,2}})(?:(?:st|nd|rd|th)?,? (?:of |in )?(\d{{4}}))?"
)
_SEASON: Final = re.compile(
    r"\b(?:what|which) season (?:is it|is|are we in|do we have|is this)\b"
    rf"(?: in ({_MONTH_NAMES})\b)?"
)
_ON: Final = re.compile(rf"\bdate\b.*\b({'|'.join(day.lower() for day in DAYS)})\b")
_LEFT: Final = re.compile(r"\bhow many days (?:are )?(?:left|remain\w*)(?: in| of)? (?:this|the) "
                          r"(year|month)\b")  # fmt: skip
_BESIDE: Final = re.compile(
    r"\b(?:what|which)(?:'s| is)? (?:month (?:is |comes |was )?)?(next|last)(?: month)?\W*$"
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
    low = re.sub(r"[,\s]+(?:pls|plz|please|thanks|mate|buddy|bro)\W*$", "?", low)
    low = _DAY_FIRST.sub(r"\2 \1", low)
    shifted = _shifted(as_digits(low), now) or _of_the_year(low, now)
    if shifted:
        return shifted
    other = _OTHER_DAY.search(low)
    if other:
        return _other_day(other[1] or other[2] or other[3], now().date())
    until = _UNTIL.search(low)
    if until:
        return _until(until[1], now().date())
    if _BOTH.search(low):
        return f"It is {_clock(now())} on {_date(now().date())}."
    if _TIME.search(low):
        if _ELSEWHERE.search(low):
            return f"I know only the time here: it is {_clock(now())}."
        return f"It is {_clock(now())}."
    if _PART.search(low):
        return f"It is {_clock(now())}."
    if _YEAR.search(low):
        return f"It is the year {now().year}."
    if _MONTH.search(low):
        return f"It is {MONTHS[now().month - 1]}."
    weekday = _ON.search(low)
    if weekday:
        today = now().date()
        ahead = (DAYS.index(weekday[1].capitalize()) - today.weekday()) % 7 or 7
        return f"It is {_date(today + timedelta(ahead))}."
    if _DATE.search(low):
        return f"Today is {_date(now().date())}."
    if _WEEK.search(low):
        return f"It is week {now().isocalendar().week} of the year."
    weekend = _WEEKEND.search(low)
    if weekend:
        is_so = (now().weekday() >= 5) == (weekend[1] == "weekend")
        return f"{'Yes' if is_so else 'No'}, today is {DAYS[now().weekday()]}."
    day = _DAY.search(low)
    if day:
        today = now().date()
        if day[1]:
            is_so = DAYS[today.weekday()].lower() == day[1]
            return f"{'Yes' if is_so else 'No'}, today is {_date(today)}."
        return f"Today is {_date(today)}."
    return None


def _shifted(low: str, now: Now) -> str | None:
    """The time or the day before or after now, or how long it is until an hour."""
    found = _SHIFTED.search(low)
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
    found = _HOURS_UNTIL.search(low)
    if found is None:
        return None
    name, hour, minute, half = found.groups()
    at = {"midnight": 0, "noon": 12, "midday": 12}.get(name)
    if at is None:
        at = int(hour) % 12 + 12 * half.startswith("p")
    moment = now()
    left = (at * 60 + int(minute or 0) - moment.hour * 60 - moment.minute) % 1440
    said = [
        f"{many} {unit}{'' if many == 1 else 's'}"
        for many, unit in zip(divmod(left, 60), ("hour", "minute"), strict=True) if many
    ]  # fmt: skip
    return f"It is {' and '.join(said) or 'no time at all'} until {name}."


def _of_the_year(low: str, now: Now) -> str | None:
    """Facts about this year: a weekday, a season, the remaining days."""
    found = _WEEKDAY_OF.search(low)
    if found:
        month = [one.lower() for one in MONTHS].index(found[1]) + 1
        try:
            return f"{_date(date(int(found[3] or now().year), month, int(found[2])))}."
        except ValueError:
            return "There is no such day."
    season = _SEASON.search(low)
    if season:
        names = ("winter", "spring", "summer", "autumn")
        month = MONTHS.index(season[1].capitalize()) + 1 if season[1] else now().month
        place = month % 12 // 3
        return f"In the north it is {names[place]}, and in the south {names[(place + 2) % 4]}."
    found = re.search(r"\b(?:is|was|will) (?:this year|it|this|(\d{4})) (?:be )?a leap year\b", low)
    if found:
        year = int(found[1] or now().year)
        is_so = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
        return f"{'Yes' if is_so else 'No'}, {year} is {'a' if is_so else 'not a'} leap year."
    found = _LEFT.search(low)
    if found:
        today = now().date()
        first = date(today.year + (found[1] == "year" or today.month == 12),
                     1 if found[1] == "year" else today.month % 12 + 1, 1)  # fmt: skip
        days = (first - today).days - 1
        return f"After today there are {days} days left this {found[1]}."
    found = _BESIDE.search(low)
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
