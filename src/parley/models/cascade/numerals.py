"""Converts numbers to words and back: for arithmetic, recognised text and reading aloud."""

from __future__ import annotations

import re

_SMALL = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen "
    "fifteen sixteen seventeen eighteen nineteen"
).split()
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()
_SCALES = (
    (10**12, "trillion"),
    (10**9, "billion"),
    (10**6, "million"),
    (1000, "thousand"),
    (100, "hundred"),
)
_VALUE = {word: value for value, word in enumerate(_SMALL)} | {
    word: 20 + 10 * index for index, word in enumerate(_TENS)
}
_FACTOR = {word: value for value, word in _SCALES}
_ORDINAL = {
    "one": "first", "two": "second", "three": "third", "five": "fifth", "eight": "eighth",
    "nine": "ninth", "twelve": "twelfth",
}  # fmt: skip
_WORDS = "|".join([*sorted(_VALUE, key=len, reverse=True), *_FACTOR])
_RUN = re.compile(
    rf"\b(?:a\s+(?=hundred|thousand|million))?(?:{_WORDS})(?:[\s-]+(?:and\s+)?(?:{_WORDS}))*\b"
)


def in_words(value: int) -> str:
    if value < 0:
        return "minus " + in_words(-value)
    if value < 20:
        return _SMALL[value]
    if value < 100:
        tens, ones = divmod(value, 10)
        return _TENS[tens - 2] + (f"-{_SMALL[ones]}" if ones else "")
    for size, name in _SCALES:
        if value >= size:
            many, rest = divmod(value, size)
            if many >= 1000:
                return " ".join(_SMALL[int(digit)] for digit in str(value))
            joint = " and " if rest and rest < 100 else " "
            return f"{in_words(many)} {name}" + (joint + in_words(rest) if rest else "")
    raise AssertionError(value)


def as_ordinal(value: int) -> str:
    """An ordinal in words, such as "first" or "twenty-third"."""
    head, _, last = in_words(value).rpartition("-")
    start, _, word = (last or head).rpartition(" ")
    if word in _ORDINAL:
        word = _ORDINAL[word]
    elif word.endswith("y"):
        word = word[:-1] + "ieth"
    else:
        word += "th"
    joined = f"{start} {word}" if start else word
    return f"{head}-{joined}" if head and last else joined


def as_digits(text: str) -> str:
    """The text, lower case, with number words as digits: `seven plus twenty-one` is `7 plus 21`.

    Numbers that are listed ("one two three") stay separate.
    """
    return _RUN.sub(lambda found: _digits(found[0]), text.lower())


def _digits(run: str) -> str:
    words = [word for word in re.split(r"[\s-]+", run) if word not in ("and", "a")]
    numbers: list[int] = []
    total = current = 0
    last: int | None = None

    def close() -> None:
        nonlocal total, current, last
        if last is not None:
            numbers.append(total + current)
        total, current, last = 0, 0, None

    for word in words:
        if word in _FACTOR:
            factor = _FACTOR[word]
            current = max(1, current) * factor
            if factor > 100:
                total, current = total + current, 0
            last = factor
            continue
        value = _VALUE[word]
        fits = last is None or last >= 100 or (last in range(20, 100, 10) and 0 < value < 10)
        if not fits:
            close()
        current += value
        last = value
    close()
    return " ".join(map(str, numbers))
