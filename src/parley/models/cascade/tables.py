"""Reads texts, tables and patterns from data files next to the modules that use them.

A file contains entries, one per line or one per block. Lines that start with `# ` are comments,
empty lines separate blocks, and an indented line continues the previous one.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib import resources


def blocks_of(name: str, glue: str = " ") -> list[list[str]]:
    """The lines of each block of a file; `name` as in `know/facts`, `glue` joins continued
    lines."""
    text = (resources.files("parley.models.cascade") / f"{name}.txt").read_text("utf-8")
    blocks = text.replace("\n  ", glue).split("\n\n")
    lines = ([line for line in block.split("\n") if line[:2] not in ("", "# ")] for block in blocks)
    return [block for block in lines if block]


def lines_of(name: str) -> list[str]:
    """All lines of a file."""
    return [line for block in blocks_of(name) for line in block]


def words(name: str) -> dict[str, frozenset[str]]:
    """Lists of words, by name. Each block is a name and its words."""
    return {first: frozenset(" ".join(lines).split()) for first, *lines in blocks_of(name)}


@functools.cache
def _parts() -> dict[str, str]:
    return dict(blocks_of("notes/parts", glue=""))


def any_of(alternatives: Sequence[str], parts: Mapping[str, str] | None = None) -> re.Pattern[str]:
    """A pattern that matches any of the alternatives. In these, `(?P<name>` is a group, and
    `<name>` stands for one of the parts, by default those of `notes/parts`."""
    pattern = "|".join(alternatives)
    known = _parts() if parts is None else parts
    while (filled := _PART.sub(lambda found: known[found[1]], pattern)) != pattern:
        pattern = filled  # A part may contain others.
    return re.compile(pattern)


_PART = re.compile(r"(?<!P)<(\w+)>")


def patterns(name: str) -> dict[str, re.Pattern[str]]:
    """The patterns that notes look for, by name. Each block is a name and its alternatives."""
    blocks = blocks_of(f"notes/patterns/{name}", glue="")
    return {block[0]: any_of(block[1:]) for block in blocks}


def pattern_words() -> Counter[str]:
    """Words that the patterns and the tables of replies look for, and the starts of such words."""
    folder = resources.files("parley.models.cascade") / "notes"
    files = [*(folder / "patterns").iterdir(), *folder.iterdir()]
    text = "\n".join(one.read_text("utf-8") for one in files if one.name.endswith(".txt"))
    text = re.sub(r"\\[a-zA-Z]|<\w+>", " ", text)
    text = re.sub(r"([a-z]+)([a-z])\?([a-z]*)", r"\1\2\3 \1\3", text)
    return Counter(re.findall(r"\b[a-z]{3,}\b", text))
