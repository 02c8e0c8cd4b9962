"""The slots, their holders, and the work requested of each.

Pure bookkeeping of integers and queues. `Slots` lives on the event loop's side and says which rows
are free; a generation number counts a row's holders, so that what belongs to a departed one can be
told apart. `WorkQueue` lives on the engine thread's side and keeps the work of each row in the
order it was asked for.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Generic, TypeVar

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class SlotKey:
    """A row and the generation number of its holder."""

    row: int
    generation: int


class Slots:
    """Free and held rows. The row that has been free longest is taken next."""

    def __init__(self, rows: int) -> None:
        if rows < 1:
            raise ValueError(f"an engine needs at least one row, got {rows}")
        self._generations = [0] * rows
        self._free: deque[int] = deque(range(rows))

    @property
    def free(self) -> int:
        """Number of free slots."""
        return len(self._free)

    @property
    def rows(self) -> int:
        return len(self._generations)

    def take(self) -> SlotKey | None:
        """A free row for a new holder; None when all are held."""
        if not self._free:
            return None
        row = self._free.popleft()
        self._generations[row] += 1
        return SlotKey(row, self._generations[row])

    def is_current(self, key: SlotKey) -> bool:
        """True if this holder still holds the row."""
        return self._generations[key.row] == key.generation and key.row not in self._free

    def release(self, key: SlotKey) -> bool:
        """Free the row; False, and nothing changes, when the holder no longer holds it."""
        if not self.is_current(key):
            return False
        self._free.append(key.row)
        return True


class WorkQueue(Generic[Item]):
    """Work waiting per row, first come first served, one piece in progress at a time.

    `current` has the piece in progress and `waiting` those after it, row by row; `count` is the
    number of both. Others only read them.
    """

    def __init__(self, rows: int) -> None:
        self.waiting: list[deque[Item]] = [deque() for _ in range(rows)]
        self.current: list[Item | None] = [None] * rows
        self.count = 0

    def add(self, row: int, item: Item) -> None:
        """Put at the end of the row's line."""
        self.waiting[row].append(item)
        self.count += 1

    def advance(self) -> Item | None:
        """Begin the next piece of the first row with work waiting and none in progress; returns it,
        or None."""
        for row, waiting in enumerate(self.waiting):
            if waiting and self.current[row] is None:
                self.current[row] = waiting.popleft()
                return self.current[row]
        return None

    def finish(self, row: int) -> None:
        """The piece in progress is finished."""
        self.count -= self.current[row] is not None
        self.current[row] = None

    def clear(self, row: int) -> list[Item]:
        """Forget the row's work; returns the piece in progress and those that waited."""
        current = self.current[row]
        dropped = ([] if current is None else [current]) + list(self.waiting[row])
        self.current[row] = None
        self.waiting[row].clear()
        self.count -= len(dropped)
        return dropped
