"""State of a slot of the speech decoder, and one call of the decoder.

Contains only counters, rules and tokens that the host knows without reading from the device. The
caches belong to the decoder (`network.py`).

Letters: `L` condition rows of one block, `D` width, `V` speech codes. Source: speech.md 2.4, 2.6.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from parley.models.minicpmo45.runtime.caches import CacheCheckpoint
from parley.models.minicpmo45.tts.sampling import SpeechSampling


@dataclass(frozen=True, slots=True)
class BlockRule:
    """How one call of the speech model samples and ends. Source: speech.md 2.4, the table.

    Args:
        min_new: number of tokens before which the end code cannot be drawn.
        max_new: maximum number of draws.
        drops_last: True if a block that reaches `max_new` returns one token less, which is exactly
            what was fed; otherwise it returns all, and its last token is never fed.
        first_is_free: True if the first draw of the block has neither penalty nor filters.
        sampling: temperature, penalty, filters.
    """

    min_new: int
    max_new: int
    drops_last: bool
    first_is_free: bool
    sampling: SpeechSampling


@dataclass(slots=True, eq=False)
class SpeechRow:
    """State of one slot of the decoder: counters only, the caches belong to the decoder.

    Args:
        index: the slot.
        seed: seed of the row's draws.
        first, length: valid cache columns are `first` up to `length`.
        position: rotary position of the next token; larger than the next column after a window has
            dropped columns.
        draws: number of random numbers used so far.
        history: tokens that the penalty considers; the mode decides when it is cleared.
        window: number of newest columns that are kept after each pass; None keeps all.
    """

    index: int
    seed: int = 0
    first: int = 0
    length: int = 0
    position: int = 0
    draws: int = 0
    history: list[int] = field(default_factory=list)
    window: int | None = None

    def take(self, other: SpeechRow) -> None:
        """Copy the state of another row, which does not change."""
        self.first, self.length, self.position = other.first, other.length, other.position
        self.draws, self.history, self.window = other.draws, list(other.history), other.window

    def forget(self) -> None:
        """Empty the cache and start at position 0; the draws continue."""
        self.first = self.length = self.position = 0
        self.history = []

    @property
    def columns(self) -> int:
        return self.length - self.first


@dataclass(frozen=True, slots=True, eq=False)
class RowCheckpoint:
    """A copy of a row's state, and its columns up to its length."""

    row: SpeechRow
    columns: CacheCheckpoint


@dataclass(slots=True, eq=False)
class SpeechBlock:
    """One call of the speech model on one row: condition rows in, speech tokens out.

    Args:
        condition: shape (L, D), in the decoder's dtype and on its device.
        tokens: tokens accepted so far; with `drops_last` the sample at the limit is not included.
        finished: True if no more tokens follow.
        ended: True if the end code was drawn.
    """

    row: SpeechRow
    condition: Tensor
    rule: BlockRule
    tokens: list[int] = field(default_factory=list)
    sampled: int = 0
    finished: bool = False
    ended: bool = False

    @property
    def left(self) -> int:
        """Number of draws left until its limit."""
        return self.rule.max_new - self.sampled

    def cancel(self) -> None:
        """Accept no more tokens; accepted ones are kept."""
        self.finished = True
