"""The context of one row, counted in tokens: lengths, and the sliding window.

Pure arithmetic. A model reports the tokens that it appended and where entries end; the ledger
returns the ranges of positions that the window keeps, and the model moves its tensors. The ledger
counts exactly the tokens in the context: those in the model's cache and those that it must still
read.

The context is a protected head (the system prompt) followed by entries: units in duplex, rounds
(user and assistant together) otherwise. Only whole entries are dropped, oldest first, and never the
open one. Source: sessions.md 5, with its "exact bookkeeping".
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

from parley.engine.work import Window
from parley.errors import ContextFull

UNIT_ROOM = 192
"""Space that the next unit may need above the high mark: the distance between the default mark and
the default limit."""

Range = tuple[int, int]
"""Positions from the first one up to, but not including, the second."""


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """A complete unit or round.

    Args:
        said: token ids of the words spoken in it, without special tokens; empty for a unit that
            listened.
        is_kept: True if it is never dropped (a system prompt inside the conversation).
    """

    tokens: int
    said: tuple[int, ...] = ()
    is_kept: bool = False


@dataclass(frozen=True, slots=True)
class Eviction:
    """Effect of the window on a context.

    The new context is `keep[0]`, then, if `previous` is not None, the ids `marker + previous +
    suffix` run through the model again, then the other ranges; kept tokens move to the positions
    that follow from that, so positions are compact again.

    Args:
        keep: ranges of old positions, in order.
        previous: token ids of the words of dropped units, newest last, without marker and suffix;
            None if nothing has to be written.
        length_tokens: length of the new context.
        dropped_tokens: number of old positions that are not kept, without those of a replaced
            `previous` and suffix.
        dropped_entries: number of dropped units or rounds.
    """

    keep: tuple[Range, ...]
    previous: tuple[int, ...] | None
    length_tokens: int
    dropped_tokens: int
    dropped_entries: int


class ContextLedger:
    """The bookkeeping of one conversation.

    Args:
        limit_tokens: maximum length of the context; `require` refuses anything beyond it.
        marker_tokens: length of the text that introduces the words of dropped units (`context`
            window).
    """

    def __init__(
        self, limit_tokens: int, window: Window | None = None, *, marker_tokens: int = 0
    ) -> None:
        self.limit_tokens = limit_tokens
        self.room_tokens: int | None = None
        """Number of tokens that currently fit into shared memory; None: no limit."""
        self.window = window or Window()
        self._marker_tokens = marker_tokens
        self._head_tokens = 0
        self._suffix_tokens = 0
        self._previous: tuple[int, ...] = ()
        self.entries: tuple[LedgerEntry, ...] = ()
        """Complete entries, oldest first."""
        self._entry_tokens = 0
        self._open_tokens = 0
        self.evictions = 0
        """Number of times that positions were dropped or moved; copies from before are then
        invalid."""

    @property
    def length_tokens(self) -> int:
        """Length of the context, including the open entry."""
        # Read several times per step, so the sum is stored, and no function is called here.
        carried = self._marker_tokens + len(self._previous) if self._previous else 0
        protected = self._head_tokens + carried + self._suffix_tokens
        return protected + self._entry_tokens + self._open_tokens

    @property
    def protected_tokens(self) -> int:
        """Length of the head, which is never dropped, including the words carried over into it."""
        return self._head_tokens + self._previous_tokens(self._previous) + self._suffix_tokens

    def require(self, tokens: int) -> None:
        """Raises `ContextFull` if `tokens` more do not fit."""
        room = self.limit_tokens if self.room_tokens is None else self.room_tokens
        if self.length_tokens + tokens > room:
            raise ContextFull(self.length_tokens + tokens, room)

    def append(self, tokens: int) -> None:
        """`tokens` were appended to the context; they belong to the open entry."""
        self._open_tokens += tokens

    def cut(self, tokens: int) -> None:
        """The last `tokens` of the open entry were removed."""
        if tokens > self._open_tokens:
            raise ValueError(f"cannot take back {tokens} of {self._open_tokens} open tokens")
        self._open_tokens -= tokens

    def protect(self, *, suffix_tokens: int = 0) -> None:
        """The open entry is the system prompt: close it; it is never dropped.

        Args:
            suffix_tokens: length of its closing part; the words of dropped units are inserted
                before that (`context` window).
        """
        if self._open_tokens < suffix_tokens:
            raise ValueError("the suffix is longer than the system prompt")
        if self.entries:
            self.end_entry(is_kept=True)
            return
        self._head_tokens += self._suffix_tokens + self._open_tokens - suffix_tokens
        self._suffix_tokens = suffix_tokens
        self._open_tokens = 0

    def end_entry(self, said: Sequence[int] = (), *, is_kept: bool = False) -> None:
        """Close the open entry. Does nothing if it is empty."""
        if self._open_tokens:
            entry = LedgerEntry(self._open_tokens, tuple(said), is_kept)
            self.entries = (*self.entries, entry)
            self._entry_tokens += self._open_tokens
            self._open_tokens = 0

    def plan(self) -> Eviction | None:
        """The next drop of the window; None if it drops nothing."""
        match self.window.kind:
            case "off":
                return None
            case "basic":
                count = self._over_the_mark()
            case "context":
                count = max(0, len(self.entries) - self.window.max_units)
        if not count:
            return None
        return self._eviction(self._oldest(count))

    def commit(self, eviction: Eviction) -> None:
        """The model has carried out `plan`: update the ledger. Earlier copies become invalid."""
        gone = set(self._oldest(eviction.dropped_entries))
        if eviction.previous is not None:
            self._previous = eviction.previous
        self.entries = tuple(entry for index, entry in enumerate(self.entries) if index not in gone)
        self._entry_tokens = sum(entry.tokens for entry in self.entries)
        self.evictions += 1
        assert self.length_tokens == eviction.length_tokens

    def copy(self) -> ContextLedger:
        """A copy of the ledger, which can be restored as long as `evictions` is the same."""
        return copy.copy(self)

    def _over_the_mark(self) -> int:
        """Number of oldest entries to drop to get from the high mark to the low one. If there is
        less memory than the marks require, both are lowered."""
        length, count = self.length_tokens, 0
        high, low = self.window.high_tokens, self.window.low_tokens
        if self.room_tokens is not None and self.room_tokens - UNIT_ROOM < high:
            room = self.room_tokens - UNIT_ROOM
            high, low = room, low * room // high
        if length <= high:
            return 0
        for entry in self.entries:
            if length <= low:
                break
            if not entry.is_kept:
                length -= entry.tokens
                count += 1
        return count

    def _oldest(self, count: int) -> list[int]:
        """Indices of the `count` oldest entries that may be dropped."""
        return [index for index, entry in enumerate(self.entries) if not entry.is_kept][:count]

    def _eviction(self, gone: Sequence[int]) -> Eviction | None:
        if not gone:
            return None
        said: list[int] = []
        if self.window.kind == "context":
            for index in gone:
                said += self.entries[index].said
        carried = [*self._previous, *said]
        previous = tuple(carried[max(0, len(carried) - self.window.previous_max_tokens) :])
        rewrites = previous != self._previous
        ranges: list[Range] = [(0, self._head_tokens if rewrites else self.protected_tokens)]
        position, dropped = self.protected_tokens, 0
        for index, entry in enumerate(self.entries):
            if index in gone:
                dropped += entry.tokens
            else:
                _extend(ranges, (position, position + entry.tokens), splits=rewrites)
            position += entry.tokens
        _extend(ranges, (position, position + self._open_tokens), splits=rewrites)
        carried_tokens = self._previous_tokens(previous)
        kept = self._entry_tokens - dropped + self._open_tokens
        return Eviction(
            keep=tuple(ranges),
            previous=previous if rewrites else None,
            length_tokens=self._head_tokens + carried_tokens + self._suffix_tokens + kept,
            dropped_tokens=dropped,
            dropped_entries=len(gone),
        )

    def _previous_tokens(self, previous: Sequence[int]) -> int:
        return self._marker_tokens + len(previous) if previous else 0


def _extend(ranges: list[Range], new: Range, *, splits: bool) -> None:
    """Add a range, which is joined to the previous one if they are adjacent; the first range stays
    separate if it `splits`."""
    if new[0] == new[1]:
        return
    last = ranges[-1]
    if last[1] == new[0] and not (splits and len(ranges) == 1):
        ranges[-1] = (last[0], new[1])
    else:
        ranges.append(new)
