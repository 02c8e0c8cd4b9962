"""A repeated event and its listeners.

Pure: no event loop. Listeners are called in the order in which they were added, and must not raise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVarTuple, Unpack

Args = TypeVarTuple("Args")


class Signal(Generic[*Args]):
    """`notify` calls all listeners."""

    __slots__ = ("_listeners",)

    def __init__(self) -> None:
        self._listeners: list[Callable[[Unpack[Args]], object]] = []

    def listen(self, listener: Callable[[Unpack[Args]], object]) -> Callable[[], None]:
        """Call `listener` on each `notify` from now on. The returned function removes it; safe to
        repeat."""
        self._listeners.append(listener)

        def stop() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)

        return stop

    def notify(self, *args: *Args) -> None:
        for listener in tuple(self._listeners):
            listener(*args)
