"""Rules that write a form as words: files of patterns and of what is said for them.

A block of `rules/NAME.txt` has a pattern, or alternatives of it, one a line, and then in quotation
marks what is said. `<name>` in a pattern is a part of `parts.txt`, or of a table. In what is said
`{1}` is a group, `{number 1}` what a verb makes of it ("" if it is absent), `{time}` what a verb
makes of the whole match, and `[2: to]` stands there only if group 2 was found.
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
        parts: of its patterns, from tables.
        verbs: of its own: of the text of a group, or of a match.
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
