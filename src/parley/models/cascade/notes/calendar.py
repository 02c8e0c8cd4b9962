"""Days of the week and months of the year."""

from __future__ import annotations

import re

DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = (
    "January February March April May June July August September October November December"
).split()
_MONTH_DAYS = dict(zip(MONTHS, (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31), strict=True))


def calendar_note(low: str) -> str | None:
    """The day after Tuesday, the third month, days of a month, lists of all."""
    for names, noun in ((DAYS, "day"), (MONTHS, "month")):
        joined = "|".join(name.lower() for name in names)
        found = re.search(rf"\b(after|before|follows|precedes)\s+({joined})\b", low) or re.search(
            rf"\b(next|previous) {noun} (?:to|after|from) ({joined})\b", low
        )
        if found and (noun in low or re.search(r"\bwhat\b|\bwhich\b|\bcome", low)):
            index = [name.lower() for name in names].index(found[2])
            is_before = found[1] in ("before", "precedes", "previous")
            other = names[(index + (-1 if is_before else 1)) % len(names)]
            return f"{'Before' if is_before else 'After'} {names[index]} comes {other}."
        between = re.search(rf"\bbetween ({joined}) and ({joined})\b", low)
        if between:
            lows = [name.lower() for name in names]
            first, second = lows.index(between[1]), lows.index(between[2])
            if (second - first) % len(names) == 2:
                return f"{names[(first + 1) % len(names)]} is between them."
    found = re.search(
        rf"\bhow many days (?:are (?:there )?in|does|has|in) "
        rf"({'|'.join(m.lower() for m in MONTHS)})\b",
        low,
    )
    if found:
        month = found[1].capitalize()
        extra = ", and 29 in a leap year" if month == "February" else ""
        return f"{month} has {_MONTH_DAYS[month]} days{extra}."
    found = re.search(r"\b(?:how many|which|what) months have (28|29|30|31) days\b", low)
    if found:
        days = int(found[1])
        named = [month for month in MONTHS if _MONTH_DAYS[month] == days]
        if len(named) < 2:
            return "February has 28 days, and 29 in a leap year."
        return f"{len(named)} months: {', '.join(named[:-1])} and {named[-1]}."
    found = re.search(
        r"\b(first|second|third|fourth|fifth|sixth|seventh|eighth|ninth|tenth|eleventh|twelfth"
        r"|last) (day of the week|month)",
        low,
    )
    if found:
        order = (
            "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth"
        ).split()
        names = DAYS if found[2].startswith("day") else MONTHS
        place = len(names) - 1 if found[1] == "last" else order.index(found[1])
        if place < len(names):
            return f"The {found[1]} {found[2]} is {names[place]}."
    for names, wanted in ((DAYS, r"days of the week"), (MONTHS, r"months")):
        asks = rf"\b(?:name|list|tell me|say|what are|which are)\b.*\b{wanted}\b"
        is_all = names is DAYS and re.search(rf"\b{wanted}\b\W*$", low)
        if (is_all or re.search(asks, low)) and "how many" not in low:
            return f"{', '.join(names[:-1])} and {names[-1]}."
    return None
