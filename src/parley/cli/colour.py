"""Prints coloured lines on terminals, and plain ones elsewhere or if NO_COLOR is set."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.text import Text


def say(line: str, colour: str, *, err: bool = False) -> None:
    """Write a line to standard output, or to standard error."""
    from rich.text import Text

    paint(Text(line, style=colour), err=err)


def paint(text: Text, *, err: bool = False) -> None:
    """Print a line of several colours, never wrapped, so that it can be copied and searched."""
    from rich.console import Console

    Console(stderr=err, highlight=False, soft_wrap=True).print(text)
