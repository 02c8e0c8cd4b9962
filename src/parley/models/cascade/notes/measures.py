"""Sums in everyday words: dozens, hours, prices, powers, primes, units, the last result."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from parley.models.cascade.notes.reckoning import BEYOND, COUNTED, SHARES, chain, number
from parley.models.cascade.notes.reckoning import NUMBER as _N
from parley.models.cascade.numerals import as_digits
from parley.models.cascade.tables import patterns

_SAYS: Final = patterns("measures")

_KINDS: Final[tuple[dict[str, float], ...]] = (
    {"second": 1, "minute": 60, "hour": 3600, "day": 86400, "week": 604800, "year": 31536000,
     "decade": 315360000, "century": 3153600000},
    {"millimetre": 1, "centimetre": 10, "inch": 25.4, "foot": 304.8, "yard": 914.4, "metre": 1000,
     "kilometre": 1e6, "mile": 1609344},
    {"gram": 1, "ounce": 28.349523125, "pound": 453.59237, "kilogram": 1000, "ton": 1e6,
     "tonne": 1e6},
    {"millilitre": 1, "ounce": 29.5735295625, "teaspoon": 4.92892159375,
     "tablespoon": 14.78676478125, "cup": 236.5882365, "pint": 473.176473, "litre": 1000,
     "gallon": 3785.411784},
    {"piece": 1, "dozen": 12},
)  # fmt: skip
"""The units of each kind, as multiples of the smallest one."""
_UNIT_WORDS: Final = {
    "feet": "foot", "inches": "inch", "km": "kilometre", "m": "metre", "cm": "centimetre",
    "mm": "millimetre", "kg": "kilogram", "g": "gram", "lb": "pound", "lbs": "pound",
    "oz": "ounce", "kilometer": "kilometre", "meter": "metre", "centimeter": "centimetre",
    "millimeter": "millimetre", "liter": "litre", "milliliter": "millilitre", "kilo": "kilogram",
    "centuries": "century",
}  # fmt: skip
_NAMES: Final = rf"(?:{'|'.join([*(unit for kind in _KINDS for unit in kind), *_UNIT_WORDS])})\b"
_PLURAL: Final = {"foot": "feet", "inch": "inches", "century": "centuries"}


def measure_note(low: str, answers: Sequence[str] = (), before: str = "") -> str | None:
    """Result of a sum in everyday words; `before`: what the user said last."""
    text = _halves(as_digits(re.sub(r"\b(\d+),(?=\d{3}\b)", r"\1", low)))
    if BEYOND.search(text):
        return None
    if _OF_THAT.search(text) or _MANY_OF_THAT.search(text):
        said = " ".join((before, *answers[-1:])).replace(",", "")
        *_, amount = _AMOUNT.findall(as_digits(said)) or ("that",)
        text = _OF_THAT.sub(f"{amount} ", _MANY_OF_THAT.sub(rf"\1 {amount}", text))
    for rule in _RULES:
        found = rule(text)
        if found:
            return found
    return _on(text, answers)


_OF_THAT: Final = re.compile(r"\b(?:that|it|this) (?=(?:in|to|into) (?:degrees )?[a-z]+\W*$)")
_MANY_OF_THAT: Final = re.compile(
    r"\b(how (?:many|much) [a-z]+ (?:is|are|in)) (?:that|it|this)\W*$"
)
_AMOUNT: Final = re.compile(r"-?\d+(?:\.\d+)? [a-z]+(?: (?:celsius|fahrenheit))?")
"""For `What is that in miles?` and `How many seconds is that?`"""


def _half_more(found: re.Match[str]) -> str:
    return f"{found[1]}.5" if found[1] else "1.5 hours"


def _past(found: re.Match[str]) -> str:
    if found[2] == "to":
        return f"{int(found[3]) - 1 or 12}:45"
    return f"{found[3]}:{30 if found[1] == 'half' else 15}"


def _halves(text: str) -> str:
    text = re.sub(r"\b(\d+) and a half\b|\b(?:an?|1) hour and a half\b", _half_more, text)
    text = re.sub(r"\b(half|quarter) (past|to) (\d{1,2})\b", _past, text)
    text = text.replace("a quarter of an hour", "15 minutes")
    text = re.sub(r"\b(?:an?|1) dozen (?=[a-z]+ (?:at|for|cost) )", "12 ", text)
    text = re.sub(
        rf"\b(\d+) ?(?:feet|foot|ft|')(?: and)? ?(\d+)"
        rf"(?: ?(?:inch(?:es)?|in(?= (?:in|to|into) )|\")|(?! ?{_NAMES})(?= (?:in|to|into) |\W*$))",
        lambda found: f"{12 * int(found[1]) + int(found[2])} inches",
        text,
    )
    text = re.sub(rf"\b(?:half an?|a half) (?={_NAMES})", "0.5 ", text)
    return re.sub(rf"\b(?:an?|one) (?={_NAMES})", "1 ", text)


def _unit(word: str) -> str:
    word = _UNIT_WORDS.get(word, word)
    if any(word in kind for kind in _KINDS):
        return word
    word = word.removesuffix("s")
    return _UNIT_WORDS.get(word, word)


def _said(value: float, unit: str) -> str:
    return f"{number(value)} {unit if value == 1 else _PLURAL.get(unit, unit + 's')}"


def _ratio(one: str, other: str) -> float | None:
    if (one, other) == ("year", "week"):
        return 52
    kind = next((kind for kind in _KINDS if one in kind and other in kind), None)
    return kind[one] / kind[other] if kind else None


def _how_many(text: str) -> str | None:
    dozen = _SAYS["dozen"].search(text)
    if dozen:
        return f"{number(float(dozen[2]))} dozen is {number(12 * float(dozen[2]))}."
    found = _SAYS["how_many"].search(text)
    if not found:
        return None
    wanted, unit = _unit(found[1]), _unit(found[3])
    ratio = _ratio(unit, wanted)
    if ratio is None or wanted == unit:
        return None
    return _equation(float(found[2]), unit, ratio, wanted)


def _equation(value: float, unit: str, ratio: float, wanted: str) -> str:
    about = "" if abs(value * ratio - round(value * ratio, 2)) < 1e-9 else "about "
    verb = "is" if value == 1 else "are"
    return f"{_said(value, unit)} {verb} {about}{_said(value * ratio, wanted)}."


def _converted(text: str) -> str | None:
    found = _SAYS["converted"].search(text)
    if not found:
        return None
    unit, wanted = _unit(found[2]), _unit(found[3])
    ratio = _ratio(unit, wanted)
    return (
        None if ratio is None or unit == wanted else _equation(float(found[1]), unit, ratio, wanted)
    )


def _temperature(text: str) -> str | None:
    found = _SAYS["temperature"].search(re.sub(r"\bminus (?=\d)", "-", text))
    if not found or found[2][0] == found[3][0]:
        return None
    value = float(found[1])
    other = (value - 32) / 1.8 if found[2][0] == "f" else value * 1.8 + 32
    names = {"f": "Fahrenheit", "c": "Celsius"}
    there, here = number(value), number(round(other, 1))
    return f"{there} degrees {names[found[2][0]]} are {here} degrees {names[found[3][0]]}."


def _price(text: str) -> str | None:
    reduced = _SAYS["reduced"].search(text)
    if reduced:
        price, share = reduced[1] or reduced[4], reduced[2] or reduced[3]
        left = float(price) * (1 - float(share) / 100)
        return f"With {share} percent off, {price} becomes {number(left)}."
    if raised := _SAYS["raised"].search(text):
        whole = float(raised[1]) * (1 + float(raised[2]) / 100)
        return f"{raised[1]} plus {raised[2]} percent is {number(whole)}."
    if tip := _SAYS["tip"].search(text):
        return f"{tip[2]} percent of {tip[1]} is {number(float(tip[1]) * float(tip[2]) / 100)}."
    each = _SAYS["at_each"].search(text)
    if each:
        cost = number(float(each[1]) * float(each[3]))
        return f"{each[1]} {each[2]} cost {cost} {each[4]}".strip() + "."
    found = _SAYS["price"].search(text)
    if not found:
        return None
    first, things, price, money, many, what = found.groups()
    total = float(price) * float(many) / (float(first) if first.isdigit() else 1)
    thing = what or f"{things.removesuffix('s')}s"
    one, s = (thing.removesuffix("s"), "s") if many == "1" else (thing, "")
    return f"{many} {one} cost{s} {number(total)} {money or ''}".strip() + "."


def _power(text: str) -> str | None:
    found = _SAYS["power"].search(text)
    if found and abs(float(found[1])) <= 1000 and abs(float(found[1])) ** int(found[2]) < 1e12:
        return (
            f"{found[1]} to the power of {found[2]} is {number(float(found[1]) ** int(found[2]))}."
        )
    return None


def _shares(text: str) -> str | None:
    if found := re.search(rf"\b(\d{{1,4}})/([1-9]\d{{0,3}}) of {_N}", text):
        value = int(found[1]) * float(found[3]) / int(found[2])
        return f"{found[1]}/{found[2]} of {found[3]} is {number(value)}."
    found = re.search(rf"(?<!of )\b(an?|one|1|two|2|three|3) ({'|'.join(SHARES)})s? of {_N}", text)
    if not found:
        return None
    many = COUNTED[found[1]]
    value = many * float(found[3]) / SHARES[found[2]]
    name = found[2] + ("s" if many > 1 else "")
    return f"{ {1: 'A', 2: 'Two', 3: 'Three'}[many] } {name} of {found[3]} is {number(value)}."


def _prime(text: str) -> str | None:
    found = re.search(r"\bis (\d{1,6}) (?:a )?prime\b", text)
    if not found:
        return None
    value = int(found[1])
    factor = next((n for n in range(2, int(value**0.5) + 1) if value % n == 0), None)
    if value < 2:
        return f"No, {value} is not a prime number."
    if factor:
        return f"No, {value} is {factor} times {value // factor}."
    return f"Yes, {value} is a prime number."


def _checked(text: str) -> str | None:
    found = _SAYS["checked"].search(text)
    result = chain(found[2], [(found[3], found[4])]) if found else None
    if not found or not result:
        return None
    is_so = result.removesuffix(".").endswith(f" {number(float(found[5]))}")
    return f"{'Yes' if is_so else 'No'}, {result}"


_IT: Final = r"(?:that|it|this|the result)"
_DONE_TO_IT: Final = (
    (re.compile(rf"\bdivide(?: {_IT})? by {_N}"), r"divided by \1"),
    (re.compile(rf"\bmultiply(?: {_IT})? (?:by|with) {_N}"), r"times \1"),
    (re.compile(rf"\badd {_N}(?: to {_IT})?"), r"plus \1"),
    (re.compile(rf"\b(?:subtract|take(?: away)?) {_N}(?: (?:away )?from {_IT})?"), r"minus \1"),
    (re.compile(rf"\bdouble {_IT}"), "times 2"),
    (re.compile(rf"\bhalve {_IT}"), "divided by 2"),
)
_STEP: Final = (
    r"\W*(?:(?:and|now|then|next|okay|ok|so|(?:what|how) about|(?:what )?if(?: i| you| we)?"
    rf"|(?:what(?:'s| is) )?(?:that|it|this))\W+)*(plus|minus|times|(?:divid|multipli)ed by) {_N}"
)


def _on(text: str, answers: Sequence[str]) -> str | None:
    """`And times two?` after a result, or `Take 20, subtract 5 and divide that by 3.`"""
    start = _SAYS["start"].match(text)
    text = text[start.end() :] if start else text
    for verb, done in _DONE_TO_IT:
        text = verb.sub(done, text)
    if not re.fullmatch(rf"(?:{_STEP}){{1,4}}\W*(?:what do (?:i|you|we) (?:get|have)\W*)?", text):
        return None
    last = answers[-1].replace(",", "") if answers else ""
    before = start or re.search(rf"\b(?:is|are|comes to|cost) (?:about )?{_N}(?: [a-z]+)?\.$", last)
    if not before:
        # "What about minus 10?" may also ask for another temperature.
        return None if "about" in text else "From which number? Tell me the whole sum, please."
    told, value = [], before[1]
    for step in re.findall(_STEP, text):
        told.append(chain(value, [step]) or "")
        *_, value = re.findall(_N, told[-1].replace(",", "")) or [""]
        if not value or "zero" in told[-1]:
            break
    return " ".join(told) or None


def _divided(text: str) -> str | None:
    """`18 balls for 4 people, how many each?`, `12 eggs cost 6 dollars, how much is one?`"""
    amounts = [float(one) for one in re.findall(_N, text)]
    if len(amounts) == 2 and _SAYS["each"].search(text):
        return chain(str(max(amounts)), [("divided by", str(min(amounts)))])
    if shared := _SAYS["shared"].search(text):
        return chain(shared[1], [("divided by", shared[2])])
    cost = _SAYS["cost_of_one"].search(text)
    return chain(cost[2], [("divided by", cost[1])]) if cost else None


def _in_base(text: str) -> str | None:
    """`255 in hexadecimal`."""
    if code := _SAYS["code"].search(text):
        return f"{code[0]} is {int(code[0], 0)}."
    found = _SAYS["base"].search(text)
    if not found:
        return None
    written = f"{int(found[1]):{ {'b': 'b', 'o': 'o', 'h': 'X'}[found[2][0]] }}"
    return f"{found[1]} in {found[2]} is {written}."


_PAST: Final = re.compile(r"\b([1-5]?\d) (?:minutes )?past (\d{1,2})\b")


def _times(text: str) -> str | None:
    """`A film begins at 8:15 and lasts two hours, when does it end?`, `My train goes at 6:40 and I
    need half an hour to get there. When must I leave?`, `From 9 to 17:30, how long is that?`"""
    text = _PAST.sub(lambda past: f"{past[2]}:{int(past[1]):02}", text)
    times = [(int(one[1]), int(one[2] or 0), one[3]) for one in _SAYS["clock"].finditer(text)]
    is_late = any(hour > 12 or half for hour, _, half in times)
    day_min = 24 * 60 if is_late else 12 * 60
    at = [60 * (hour % 12 + 12 * (half == "p") if half else hour) + of for hour, of, half in times]
    if len(at) == 2 and _SAYS["from_to"].search(text):
        parts = zip(divmod((at[1] - at[0]) % day_min, 60), ("hour", "minute"), strict=True)
        return f"That is {' and '.join(_said(many, unit) for many, unit in parts if many)}."
    leaves, span = _SAYS["when_to_leave"].search(text), _SAYS["span"].search(text)
    if len(at) != 1 or not span or not (leaves or _SAYS["when_over"].search(text)):
        return None
    taken = float(span[1]) * (60 if span[2] == "hour" else 1) + int(span[3] or 0)
    then = round(at[0] + (-taken if leaves else taken)) % day_min
    hour = then // 60 or (0 if is_late else 12)
    return f"{'You have to leave at' if leaves else 'At'} {hour}:{then % 60:02d}."


_RULES: Final = (
    _times, _how_many, _converted, _temperature, _price, _power, _shares, _prime, _checked,
    _divided, _in_base,
)  # fmt: skip
