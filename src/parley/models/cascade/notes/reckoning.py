"""Sums, comparisons and counting, computed from the words of a question."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Final

from parley.models.cascade.numerals import as_digits
from parley.models.cascade.tables import patterns

_SAYS: Final = patterns("reckoning")
COUNT_LIMIT = 30
"""Maximum number of numbers that are counted aloud."""
NUMBER = r"(-?\d+(?:\.\d+)?)"
BEYOND = re.compile(r"\d{16}|\d[xyn]\b|\b[fg]\(")
"""Numbers that floats do not represent exactly, and algebra; there are no notes for sums of
these."""

_OPERATORS = {
    "plus": "+", "+": "+", "and": "+", "added to": "+", "add": "+", "minus": "-", "-": "-",
    "–": "-", "less": "-", "take away": "-", "times": "*", "multiplied by": "*", "x": "*", "*": "*",
    "×": "*", "divided by": "/", "over": "/", "/": "/", "÷": "/",
}  # fmt: skip
_NAMES = {"+": "plus", "-": "minus", "*": "times", "/": "divided by"}
_FORMS = tuple(
    (re.compile(pattern.replace("N", NUMBER)), operator, is_swapped)
    for pattern, operator, is_swapped in (
        (r"\b(?:add|sum of)\s+N (?:and|to|plus) N", "+", False),
        (r"\b(?:how much|what)(?:'s| is| are| do| does)? N and N", "+", False),
        (r"\b(?:subtract|take(?: away)?)\s+N (?:away )?from N", "-", True),
        (r"\bdifference between N and N", "-", False),
        (r"\bN from N\b", "-", True),
        (r"\b(?:multiply|product of) N (?:by|and|with|times) N", "*", False),
        (r"\bdivide N by N", "/", False),
    )
)
"""`is_swapped`: the second number comes first."""
_SINGLE: tuple[tuple[re.Pattern[str], str, Callable[[float], float]], ...] = (
    (re.compile(rf"\b(?:double|twice)(?: of)? {NUMBER}"), "Double {} is {}.", lambda v: 2 * v),
    (
        re.compile(rf"\bhalf of {NUMBER}(?! \w+s of| (?:thirds?|quarters?|fifths?|tenths?)\b)"),
        "Half of {} is {}.",
        lambda v: v / 2,
    ),
    (re.compile(rf"\bsquare root of {NUMBER}"), "The square root of {} is {}.", lambda v: v**0.5),
    (re.compile(rf"\bcube root of {NUMBER}"), "The cube root of {} is {}.", lambda v: v ** (1 / 3)),
    (re.compile(rf"{NUMBER} squared|\bsquare of {NUMBER}"), "{} squared is {}.", lambda v: v * v),
    (re.compile(rf"{NUMBER} cubed|\bcube of {NUMBER}"), "{} cubed is {}.", lambda v: v**3),
    (
        re.compile(rf"\b(?:number|year) (?:comes |is )?after {NUMBER}"),
        "After {} comes {}.",
        lambda v: v + 1,
    ),
    (
        re.compile(rf"\b(?:number|year) (?:comes |is )?before {NUMBER}"),
        "Before {} is {}.",
        lambda v: v - 1,
    ),
    (re.compile(rf"\btriple(?: of)? {NUMBER}"), "Triple {} is {}.", lambda v: 3 * v),
    (
        re.compile(
            rf"\bround(?:ed)?(?: (?:up|off|down))? {NUMBER}"
            r"(?!.*\b(?:decimals?|places|tenth|hundredth|hundred|100?)\b)"
        ),
        "{} is about {}.",
        lambda v: int(v + 0.5),
    ),
)


def number(value: float) -> str:
    """A number as text: thousands are separated from 10,000 on, with at most two digits after the
    point, or three below 1."""
    if abs(value - round(value)) < 1e-9:
        return f"{round(value):,}" if abs(value) >= 10_000 else str(round(value))
    return f"{value:.{2 if abs(value) >= 1 else 3}f}".rstrip("0").rstrip(".")


def rounded(value: float) -> str:
    """`number`, with `about` before it if it is not exact."""
    said = number(value)
    is_exact = abs(float(said.replace(",", "")) - value) < 1e-9 * max(1, abs(value))
    return said if is_exact else f"about {said}"


_ADDED: Final = ("more", "on", "given")
"""Groups of the pattern `change` for what is added; the others are for what is taken away."""


def _story(text: str) -> str | None:
    """`I have 15 euros and spend 6, how much is left?`"""
    if not re.search(r"\bhow (?:many|much)\b|\bwhat(?:'s| is) left\b|\bremain", text):
        return None
    have = _SAYS["have"].search(text)
    if not have:
        return None
    changes = list(_SAYS["change"].finditer(text, have.end()))
    parts = [
        ("plus" if one.lastgroup in _ADDED else "minus", one[one.lastgroup or 0]) for one in changes
    ]
    is_whole = len(re.findall(r"\d+", text)) == 1 + len(parts)
    return chain(have[1], parts) if parts and is_whole else None


def sum_note(low: str) -> str | None:
    """A sum and its result; the sum may be in a short story."""
    text = as_digits(low)
    text = re.sub(r"(?<=\d),(?=\d{3}\b)", "", text).replace("sqrt", "square root of ")
    text = re.sub(r"(?<=square root of )\s*\((\d+)\)", r"\1", text)
    if not _SAYS["bare"].fullmatch(text) or _SAYS["of_digits"].search(text):
        text = _SAYS["joined"].sub(" · ", text)
    if BEYOND.search(text):
        return None
    if (found := _SAYS["brackets"].fullmatch(text)) and _INNER.search(found[1]):
        return _bracketed(found[1])
    listed = _SAYS["list"].search(text)
    if listed:
        return chain(listed[1], [("plus", n) for n in re.findall(NUMBER, listed[2])])
    story = _story(text)
    if story:
        return story
    plain = text
    for pattern, _, work in _SINGLE:
        plain = pattern.sub(functools.partial(_worked_out, work), plain)
    plain = _PERCENT_OF.sub(lambda found: number(_percent(found)).replace(",", ""), plain)
    found = _SAYS["binary"].search(plain)
    if found:
        return chain(found[1], _SAYS["part"].findall(found[2]))
    for pattern, operator, is_swapped in _FORMS:
        found = pattern.search(text)
        if found:
            first, second = found[1], found[2]
            if is_swapped:
                first, second = second, first
            return chain(first, [(_NAMES[operator], second)])
    if percent := _PERCENT_OF.search(text):
        return f"{percent[1]} percent of {percent[2]} is {number(_percent(percent))}."
    for pattern, form, work in _SINGLE:
        found = pattern.search(text)
        if found:
            value = _operand(found)
            if value >= 0:
                return form.format(number(value), rounded(work(value)))
    return None


_PERCENT_OF: Final = re.compile(
    rf"{NUMBER}\s*(?:percent|per cent|%)(?: tip| tax)? (?:of|on|for) {NUMBER}"
)


def _percent(found: re.Match[str]) -> float:
    return float(found[1]) * float(found[2]) / 100


_INNER: Final = re.compile(r"\(([^()]+)\)")
"""Brackets that contain no others."""


def _bracketed(written: str) -> str | None:
    """A sum with brackets, evaluated from the innermost ones."""
    plain = written
    while found := _INNER.search(plain):
        part = sum_note(found[1]) if re.search(r"\d\s*[-+*/x]", found[1]) else f"is {found[1]}."
        if not part or not (
            value := re.search(rf"is (?:about )?{NUMBER}\.$", part.replace(",", ""))
        ):
            return None
        plain = plain[: found.start()] + value[1] + plain[found.end() :]
    told = sum_note(plain)
    return told and f"{written.strip()} is {told.rpartition(' is ')[2]}"


def _worked_out(work: Callable[[float], float], found: re.Match[str]) -> str:
    """A term such as `7 squared` as a number, for the sum that contains it."""
    value = _operand(found)
    return number(work(value)).replace(",", "") if value >= 0 else found[0]


def _operand(found: re.Match[str]) -> float:
    return float(next(group for group in found.groups() if group))


def chain(first: str, parts: Sequence[tuple[str, str]]) -> str | None:
    """A sum in words, with its result; None if the result or a term is too large for a note."""
    if any(BEYOND.search(term) for term in (first, *(term for _, term in parts))):
        return None
    terms: list[float] = [float(first)]
    said = [number(float(first))]
    signs: list[str] = []
    for word, term in parts:
        operator, value = _OPERATORS[word], float(term)
        said += [_NAMES[operator], number(value)]
        if operator in "*/":
            if operator == "/" and value == 0:
                return "Nothing can be divided by zero."
            terms[-1] = terms[-1] * value if operator == "*" else terms[-1] / value
        else:
            signs.append(operator)
            terms.append(value)
    total = terms[0]
    for sign, value in zip(signs, terms[1:], strict=True):
        total = total + value if sign == "+" else total - value
    if not abs(total) <= 1e12:  # also excludes NaN, the result of infinite terms
        return None
    return f"{' '.join(said)} is {rounded(total)}."


_FRACTION: Final = re.compile(r"(?<![\d/.])(\d{1,6})/([1-9]\d{0,5})(?![\d/.])")
SHARES: Final = {
    "half": 2, "third": 3, "quarter": 4, "fourth": 4, "fifth": 5, "sixth": 6, "eighth": 8,
    "tenth": 10,
}  # fmt: skip
COUNTED: Final = {"a": 1, "an": 1, "one": 1, "1": 1, "two": 2, "2": 2, "three": 3, "3": 3}
_SHARE: Final = re.compile(rf"\b({'|'.join(COUNTED)}) ({'|'.join(SHARES)})s?\b")


def _written(found: re.Match[str]) -> str:
    """`two thirds` as 2/3."""
    return f"{COUNTED[found[1]]}/{SHARES[found[2]]}"


_LOW: Final = ("smaller", "less", "lower")


def compare_note(low: str) -> str | None:
    """The bigger or smaller one of two numbers, or whether a number is even or odd."""
    text = as_digits(_SHARE.sub(_written, low))
    if BEYOND.search(text) or _SAYS["part"].search(_FRACTION.sub("1", text)):
        return None
    if found := _SAYS["parity"].search(text):
        kind = "odd" if int(found[1]) % 2 else "even"
        start = "" if found[3] else "Yes, " if kind == found[2] else "No, "
        return f"{start}{found[1]} is {kind}."
    written = {str(int(one[1]) / int(one[2])): one[0] for one in _FRACTION.finditer(text)}
    text = _FRACTION.sub(lambda one: str(int(one[1]) / int(one[2])), text)
    found = _SAYS["which"].search(text)
    whether = None if found else _SAYS["whether"].search(text)
    if found:
        first, second, wants_low = float(found[2]), float(found[3]), found[1] in _LOW
    elif whether:
        first, second, wants_low = float(whether[1]), float(whether[3]), whether[2] in _LOW
    else:
        return None
    if first == second:
        return "They are equal." if found else "No, they are equal."
    if found:
        best = found[2] if (first < second) == wants_low else found[3]
        return (
            f"{written.get(best) or number(float(best))} is {'smaller' if wants_low else 'bigger'}."
        )
    answer = "Yes" if (first < second) == wants_low else "No"
    order = "smaller" if first < second else "bigger"
    return f"{answer}, {number(first)} is {order} than {number(second)}."


_OF_SEVERAL: Final[dict[re.Pattern[str], Callable[[list[float]], str | None]]] = {
    _SAYS["average"]: lambda of: f"The average is {number(sum(of) / len(of))}.",
    _SAYS["biggest"]: lambda of: f"The biggest is {number(max(of))}.",
    _SAYS["smallest"]: lambda of: f"The smallest is {number(min(of))}.",
    _SAYS["sorted"]: lambda of: ", ".join(map(number, sorted(of))) + ".",
    _SAYS["next"]: lambda of: _continued(of),
}


def several_note(low: str) -> str | None:
    """The average of some numbers, their extremes, their order, or the next one."""
    text = as_digits(low)
    of = [float(one) for one in re.findall(NUMBER, text)]
    if len(of) < 3 or BEYOND.search(text):
        return None
    return next((told(of) for said, told in _OF_SEVERAL.items() if said.search(text)), None)


def _continued(of: Sequence[float]) -> str | None:
    """The number that follows numbers with equal steps, with equal ratios, or of which each is the
    sum of the previous two."""
    steps = {round(after - before, 9) for before, after in pairwise(of)}
    ratios = {round(after / before, 9) for before, after in pairwise(of) if before}
    if len(steps) == 1:
        return f"Next comes {number(of[-1] + steps.pop())}."
    if len(ratios) == 1:
        return f"Next comes {number(of[-1] * ratios.pop())}."
    is_sum = all(of[at] == of[at - 1] + of[at - 2] for at in range(2, len(of)))
    return f"Next comes {number(of[-1] + of[-2])}." if is_sum else None


def count_note(low: str) -> str | None:
    """Numbers in sequence, at most `COUNT_LIMIT` of them."""
    text = as_digits(re.sub(r"(?<=\b(?:by|in) )([a-z]+?)s\b", r"\1", low))
    found = _SAYS["count"].search(text)
    if BEYOND.search(text) or not found or re.search(r"\bin [a-z]+(?:ish|ench|an|ese|tch)\b", text):
        return None
    first, last = int(found[1] or found[3] or 1), int(found[2] or (1 if found[3] else found[4]))
    if found[4] and re.search(r"\bbackwards?\b|\bdown\b", text):
        first, last = last, 1
    by = _SAYS["by"].search(text)
    size = int(by[1]) if by else 1
    first = size if by and not found[1] and last > size else first
    step = max(size, 1) * (1 if last >= first else -1)
    if abs(last - first) // abs(step) >= COUNT_LIMIT:
        return f"I can count up to {COUNT_LIMIT} numbers at a time."
    return ", ".join(str(value) for value in range(first, last + step // abs(step), step)) + "."
