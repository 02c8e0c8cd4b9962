"""Texts and tables that are data: files beside the modules that read them.

A file has entries, one a line or one a block. Lines that begin with `# ` are comments, empty lines
part blocks, and a line that is indented continues the one before.
"""

from __future__ import annotations

from importlib import resources


def blocks_of(name: str) -> list[list[str]]:
    """The lines of each block of a file; `name` as in `know/facts`."""
    text = (resources.files("parley.models.cascade") / f"{name}.txt").read_text("utf-8")
    blocks = text.replace("\n  ", " ").split("\n\n")
    lines = ([line for line in block.split("\n") if line[:2] not in ("", "# ")] for block in blocks)
    return [block for block in lines if block]


def lines_of(name: str) -> list[str]:
    """All lines of a file."""
    return [line for block in blocks_of(name) for line in block]
