"""What a server needs while it imports its modules, which takes most of its processor time until it
listens: faster imports, and a SIGHUP that does not end it.

Imported objects stay alive, so garbage collections every few hundred objects find nothing and take
a tenth of the start. If rich and pygments are installed, structlog and httpx import them for
coloured tracebacks and a command line, which a server does not need: another tenth.
"""

from __future__ import annotations

import contextlib
import gc
import signal
import sys
from collections.abc import Iterator
from typing import Any, Final

DECORATION: Final = ("rich", "pygments")
"""Packages that other packages import if they are installed, and that a server does not need."""


early_reloads: Final[list[int]] = []
"""SIGHUPs that a starting server has received."""


def keep_reloads() -> None:
    """Keep SIGHUP for the server that this process will be, which it would end."""
    if sys.platform != "win32" and sys.stderr is not None and not sys.stderr.isatty():
        signal.signal(signal.SIGHUP, lambda number, _: early_reloads.append(number))


@contextlib.contextmanager
def importing(*, plain: bool = False) -> Iterator[None]:
    """Context in which modules are imported; garbage is collected afterwards.

    Args:
        plain: True: packages of `DECORATION` that are not imported yet cannot be imported within
            the block.
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
    # This is how Python marks a module as missing.
    modules.update(dict.fromkeys(hidden))
    try:
        yield
    finally:
        for name in hidden:
            del modules[name]
