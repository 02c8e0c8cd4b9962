"""Imports at the start of a server, which take most of its processor time until it listens.

What is imported stays, so looking through all of it for garbage every few hundred objects finds
nothing and takes a tenth of the start. structlog and httpx import rich and pygments where they are
installed, for tracebacks in colour and a command line that a server does not have: another tenth.
"""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Iterator
from typing import Any, Final

DECORATION: Final = ("rich", "pygments")
"""Packages that others import only if they are installed, and that a server does not need."""


@contextlib.contextmanager
def importing(*, plain: bool = False) -> Iterator[None]:
    """The time in which modules are imported; garbage is collected afterwards.

    Args:
        plain: what is imported finds no package of `DECORATION` that is not imported yet;
            afterwards they can be imported as ever.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        with without(*(DECORATION if plain else ())):
            yield
    finally:
        if was_enabled:
            gc.enable()


@contextlib.contextmanager
def without(*names: str) -> Iterator[None]:
    """While the block runs, modules that are not imported yet cannot be found."""
    hidden = [name for name in names if name not in sys.modules]
    modules: dict[str, Any] = sys.modules
    # Python's own way to say that there is no module of a name.
    modules.update(dict.fromkeys(hidden))
    try:
        yield
    finally:
        for name in hidden:
            del modules[name]
