"""Records every function of parley that is called, in order, in every thread."""

import contextlib
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import parley

SOURCE = Path(parley.__file__).parent
# Comprehensions and the like are part of the function that contains them.
_INNER = ("<listcomp>", "<genexpr>", "<dictcomp>", "<setcomp>", "<lambda>")


class CallTrace:
    """Calls in order, as `file.py::qualified.name`; a coroutine that continues counts again.

    It records threads that are started while it is installed, so install it before the server.
    """

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.is_on = False
        self._names: dict[CodeType, str | None] = {}

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Watch this thread and those that start from now on."""
        threading.setprofile(self._profile)
        sys.setprofile(self._profile)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    def start(self) -> None:
        """Clear the recorded calls and start recording."""
        self.calls.clear()
        self.is_on = True

    def stop(self) -> list[str]:
        """Calls since `start`."""
        self.is_on = False
        return list(self.calls)

    def _profile(self, frame: FrameType, event: str, _: Any) -> None:
        if self.is_on and event == "call":
            code = frame.f_code
            try:
                name = self._names[code]
            except KeyError:
                name = self._names[code] = _name(code)
            if name is not None:
                self.calls.append(name)


def _name(code: CodeType) -> str | None:
    path = Path(code.co_filename)
    if not path.is_relative_to(SOURCE) or code.co_name in _INNER:
        return None
    return f"{path.relative_to(SOURCE)}::{code.co_qualname.replace('.<locals>', '')}"
