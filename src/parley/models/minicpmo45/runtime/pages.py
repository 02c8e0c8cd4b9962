"""Allocation of a pool's pages to the rows of a cache: a row takes pages only as it grows.

Pure bookkeeping: integers and lists. Every row is guaranteed its share. Beyond that it may take
free pages, except those that the other rows' shares still need.

Letters: `P` positions of a page.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from parley.errors import ContextFull

PAGE_POSITIONS: Final = 256
"""A multiple of the columns that the attention kernel reads at a time."""

ZEROS: Final = 0
"""The page in place of those that a row has not taken: zeros, never written."""

SPARE: Final = 1
"""The page for padding; it is never read."""

RESERVED: Final = 2
"""Number of pages before those that rows take."""


@dataclass(frozen=True, slots=True)
class PagePool:
    """Size of a pool.

    Args:
        pages: number of pages of all rows together.
        share_positions: positions that every row is guaranteed.
        page_positions: `P`.
    """

    pages: int
    share_positions: int
    page_positions: int = PAGE_POSITIONS


class PageTable:
    """The pages of every row.

    Args:
        capacity: maximum positions of a row.

    Raises:
        ValueError: the pool is too small for the rows' shares with one row at its capacity.
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
        """Number of pages that no row has taken."""
        return len(self._free)

    def reach(self, row: int) -> int:
        """Maximum number of positions that a row may have now."""
        owed = sum(
            max(0, self.share - len(held)) for other, held in enumerate(self.held) if other != row
        )
        pages = len(self.held[row]) + len(self._free) - owed
        return min(self._capacity, pages * self.page)

    def reserve(self, row: int, length: int) -> list[int]:
        """Give a row the pages for `length` positions; returns the new pages.

        Raises:
            ContextFull: the remaining pages are guaranteed to other rows; nothing has changed.
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
        """Free the pages behind `length` positions; returns True if there were any."""
        held = self.held[row]
        behind = held[-(-length // self.page) :]
        self._free.update(behind)
        del held[len(held) - len(behind) :]
        return bool(behind)

    def _next(self, held: list[int]) -> int:
        """Take the page after a row's last one if it is free, because neighbours are read without a
        copy. Otherwise take the middle of the longest free stretch, where the row can continue to
        grow."""
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
