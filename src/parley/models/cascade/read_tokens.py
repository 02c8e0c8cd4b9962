"""Tokens that a row of the bundled language model has read: its cache, and its portions.

The network's inputs have one int8 scale per call, so results depend on the tokens that are read
together. A row that must continue exactly like another one has to read the same portions. It need
not do so before it writes: until then they are only noted.

A block is a portion of which only the first token is known to follow; the others are expected. They
are accepted one by one, until another token is read instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from torch import Tensor

from parley.models.cascade.llama import Cache, Llama

PIECE_TOKENS: Final = 128
"""Maximum number of prompt tokens per step."""


class Later(Enum):
    """Placeholder for logits that are computed when the row has caught up."""

    LOGITS = "logits"


@dataclass(frozen=True, slots=True)
class Portion:
    """Tokens read in one call.

    Args:
        known: number of tokens that were known to follow when the portion was read.
        kept: number of tokens that count.
        is_block: True if further tokens may still be accepted.
    """

    ids: tuple[int, ...]
    known: int
    kept: int
    is_block: bool = False

    @property
    def wanted(self) -> int:
        """Number of last tokens for which logits are computed."""
        return len(self.ids) - min(self.known, self.kept) + 1


def shared(mine: Sequence[object], theirs: Sequence[object]) -> int:
    """Length of the common start of two sequences."""
    pairs = enumerate(zip(mine, theirs, strict=False))
    return next((at for at, (one, other) in pairs if one != other), min(len(mine), len(theirs)))


class ReadTokens:
    def __init__(self, model: Llama) -> None:
        self._model = model
        self.cache = Cache(model.shape)
        self._portions: list[Portion] = []
        self._read = 0
        """Number of portions in the cache."""
        self._ahead: Tensor | None = None
        """Logits after the last tokens of the current block (N, V)."""
        self.length = 0
        """Number of tokens that were read or noted."""

    @property
    def is_behind(self) -> bool:
        """True if some tokens were only noted."""
        return self._read < len(self._portions)

    @property
    def portions(self) -> tuple[Portion, ...]:
        """Everything that was read or noted, for `restore`."""
        return tuple(self._portions)

    def run(self, ids: tuple[int, ...], *, later: bool = False) -> Tensor | Later:
        """Read one portion; returns the logits after it. With `later`, or if other portions are
        pending, only note it."""
        later = later or self.is_behind
        self.end_block()
        logits = Later.LOGITS if later else self._model.run(list(ids), self.cache)
        self._append(Portion(ids, len(ids), len(ids)), later=later)
        return logits

    def run_block(self, ids: tuple[int, ...], *, later: bool = False) -> Tensor | Later:
        """Read a block whose first token is known to follow; returns the logits after that
        token."""
        later = later or self.is_behind
        self.end_block()
        block = Portion(ids, 1, 1, is_block=True)
        ahead = None if later else self._model.run_each(list(ids), self.cache, block.wanted)
        self._append(block, later=later)
        self._ahead = ahead
        return Later.LOGITS if ahead is None else ahead[0]

    def _append(self, portion: Portion, *, later: bool) -> None:
        self._portions.append(portion)
        self._read += not later
        self.length += portion.kept

    def expects(self, token: int) -> bool:
        """True if the token is the next one of the current block."""
        last = self._portions[-1] if self._portions else None
        return (
            last is not None
            and last.is_block
            and last.kept < len(last.ids)
            and last.ids[last.kept] == token
        )

    def take(self) -> Tensor | Later:
        """Accept the expected token; returns the logits after it."""
        last = self._portions[-1]
        self._portions[-1] = replace(last, kept=last.kept + 1)
        self.length += 1
        if self._ahead is None:
            return Later.LOGITS
        return self._ahead[last.kept - len(last.ids)]

    def end_block(self) -> None:
        """Drop the remaining tokens of the block."""
        self._ahead = None
        if self._portions and self._portions[-1].is_block:
            self._portions[-1] = replace(self._portions[-1], is_block=False)
            if not self.is_behind:
                self.cache.cut(self.length)

    def cut(self, length: int) -> None:
        """Drop everything from `length` on."""
        self.end_block()
        while self.length > length:
            last = self._portions[-1]
            start = self.length - last.kept
            if start >= length:
                self._portions.pop()
                self.length = start
            else:
                self._portions[-1] = replace(last, kept=length - start)
                self.length = length
        self._read = min(self._read, len(self._portions))
        self.cache.cut(min(self.cache.length, length))

    def restore(self, portions: tuple[Portion, ...]) -> None:
        """Restore the state after `portions`; those that are no longer in the cache are noted."""
        same = shared(self._portions[: self._read], portions)
        is_here = same == len(portions) == len(self._portions)
        if is_here:
            return
        if same and portions[same - 1].is_block:
            # Its expected tokens were cut off, or belong to a later state.
            same -= 1
        self.cut(sum(portion.kept for portion in portions[:same]))
        for portion in portions[same:]:
            self._append(portion, later=True)

    def catch_up(self) -> Tensor:
        """Read noted tokens, at most `PIECE_TOKENS`, or the last portion again; returns the
        logits."""
        if not self.is_behind:
            self._read -= 1
            self.cache.cut(self.length - self._portions[-1].kept)
        done = 0
        while True:
            portion = self._portions[self._read]
            start, ids = self.cache.length, list(portion.ids)
            is_last = self._read + 1 == len(self._portions)
            is_whole = portion.kept == len(ids) and not portion.is_block
            if is_whole or not is_last:
                logits = self._model.run(ids, self.cache)
            else:
                each = self._model.run_each(ids, self.cache, portion.wanted)
                logits = each[portion.kept - 1 - len(ids)]
                self._ahead = each if portion.is_block else None
            if not portion.is_block:
                self.cache.cut(start + portion.kept)
            self._read += 1
            done += max(len(ids), PIECE_TOKENS // 16)
            if not self.is_behind or done >= PIECE_TOKENS:
                return logits
