"""Which pages of a pool the rows of a cache hold: a row takes what it remembers, not what it might.

Pure bookkeeping: integers and lists. Every row is sure of its share; beyond that it takes what
no other share needs, so no row can take what another one is sure of.

Letters: `P` positions of a page.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from parley.errors import ContextFull

PAGE_POSITIONS: Final = 256
"""A multiple of the columns that the attention kernel reads at a time."""

ZEROS: Final = 0
"""The page that stands for all that a row does not hold: zeros that are never written."""

SPARE: Final = 1
"""The page where padding is written; it is never read."""

RESERVED: Final = 2
"""Pages in front of those that rows take."""


@dataclass(frozen=True, slots=True)
class PagePool:
    """How large a pool is.

    Args:
        pages: of all rows together.
        share_positions: what every row is sure of.
        page_positions: `P`.
    """

    pages: int
    share_positions: int
    page_positions: int = PAGE_POSITIONS


class PageTable:
    """The pages of every row.

    Args:
        capacity: most positions of a row.

    Raises:
        ValueError: the pool does not hold the rows' shares, or not one row at its longest.
    """

    def __init__(self, pool: PagePool, *, rows: int, capacity: int) -> None:
        self.pool = pool
        self.page = pool.page_positions
        self.width = -(-capacity // self.page)
        self.share = min(self.width, -(-pool.share_positions // self.page))
        least = self.width + (rows - 1) * self.share
        if pool.pages < least:
            raise ValueError(f"{rows} rows need {least} pages, the pool has {pool.pages}")
        self._capacity = capacity
        self._free = set(range(RESERVED, RESERVED + pool.pages))
        self.held: list[list[int]] = [[] for _ in range(rows)]

    @property
    def free(self) -> int:
        """Pages that no row holds."""
        return len(self._free)

    def reach(self, row: int) -> int:
        """Positions that a row may have now."""
        owed = sum(
            max(0, self.share - len(held)) for other, held in enumerate(self.held) if other != row
        )
        pages = len(self.held[row]) + len(self._free) - owed
        return min(self._capacity, pages * self.page)

    def reserve(self, row: int, length: int) -> list[int]:
        """Give a row the pages for `length` positions; returns the new ones.

        Raises:
            ContextFull: others are sure of what is left; nothing has changed.
        """
        held = self.held[row]
        missing = -(-length // self.page) - len(held)
        if missing <= 0:
            return []
        if length > (reach := self.reach(row)):
            raise ContextFull(length, reach)
        taken: list[int] = []
        for _ in range(missing):
            taken.append(self._next(held))
            held.append(taken[-1])
        return taken

    def release(self, row: int, length: int) -> bool:
        """Take back what lies behind `length` positions; true if there was something."""
        held = self.held[row]
        behind = held[-(-length // self.page) :]
        self._free.update(behind)
        del held[len(held) - len(behind) :]
        return bool(behind)

    def _next(self, held: list[int]) -> int:
        """The page behind a row's last one if it is free: neighbours are read without a copy. Else
        the middle of the longest free stretch, where there is room to continue."""
        page = held[-1] + 1 if held else -1
        if page not in self._free:
            start, longest, begin, last = 0, 0, -1, -1
            for one in sorted(self._free):
                begin = one if one != last + 1 else begin
                last = one
                if one - begin + 1 > longest:
                    start, longest = begin, one - begin + 1
            page = start + longest // 2
        self._free.remove(page)
        return page
