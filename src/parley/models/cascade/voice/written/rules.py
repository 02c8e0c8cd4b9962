"""Rules that replace written forms with words: files of patterns and their spoken text.

A block of `rules/NAME.txt` contains a pattern, or its alternatives, one per line, and then the
spoken text in quotation marks. `<name>` in a pattern is a part of `parts.txt`, or of a table. In
the spoken text, `{1}` is a group, `{number 1}` the result of a verb for the group ("" if it is
absent), `{time}` the result of a verb for the whole match, and `[2: to]` is used only if group 2
was found.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from parley.models.cascade import tables
from parley.models.cascade.numerals import in_words
from parley.models.cascade.voice.written.spelling import (
    code,
    digits,
    number,
    ordinal,
    spelled,
    year,
)

_OPTIONAL: Final = re.compile(r"\[(\d):([^]]*)\]")
_PLACE: Final = re.compile(r"\{(?:(\w+) )?(\w+)\}")
_VERBS: Final[Mapping[str, Callable[[str], str]]] = {
    "number": number, "digits": digits, "ordinal": ordinal, "year": year, "code": code,
    "letters": spelled, "lower": str.lower, "count": lambda text: in_words(int(text)),
}  # fmt: skip


class ReadingRules:
    """The rules of a file, applied to a text one after the other.

    Args:
        parts: further parts of the patterns, from tables.
        verbs: further verbs; each receives the text of a group, or a match.
    """

    def __init__(
        self, name: str, parts: Mapping[str, str] | None = None, /, **verbs: Callable[[Any], str]
    ) -> None:
        known = {**_parts(), **(parts or {})}
        self._verbs: dict[str, Callable[[Any], str]] = {**_VERBS, **verbs}
        blocks = tables.blocks_of(f"voice/written/rules/{name}", glue="")
        self._rules = [
            (tables.any_of(patterns, known), said[1:-1].replace(r"\n", "\n"))
            for *patterns, said in blocks
        ]

    def __call__(self, text: str) -> str:
        for pattern, said in self._rules:
            text = pattern.sub(functools.partial(self._said, said), text)
        return text

    def _said(self, said: str, found: re.Match[str]) -> str:
        there = _OPTIONAL.sub(lambda part: part[2] if found[int(part[1])] else "", said)
        return _PLACE.sub(functools.partial(self._filled, found), there)

    def _filled(self, found: re.Match[str], place: re.Match[str]) -> str:
        verb, group = place.groups()
        if not group.isdigit():
            return self._verbs[group](found)
        text = found[int(group)] or ""
        return self._verbs[verb](text) if verb and text else text


@functools.cache
def _parts() -> dict[str, str]:
    return dict(tables.blocks_of("voice/written/parts", glue=""))
