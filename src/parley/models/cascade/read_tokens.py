"""What a row of the bundled language model has read: its cache, and in which portions.

The network's inputs get one int8 scale per call, so numbers depend on what was read together. A row
that is to go on exactly as another one has to read in the same portions, and need not do so before
it writes: until then they are only noted.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from torch import Tensor

from parley.models.cascade.llama import Cache, Llama

PIECE_TOKENS: Final = 128
"""Prompt tokens per step."""


class Later(Enum):
    """Stands for logits that will be there when the row has caught up."""

    LOGITS = "logits"


class ReadTokens:
    """See the module's text."""

    def __init__(self, model: Llama) -> None:
        self._model = model
        self.cache = Cache(model.shape)
        self._portions: list[tuple[int, ...]] = []
        self._read = 0
        """Portions that are in the cache."""
        self.length = 0
        """Tokens that were read, or will have been."""

    @property
    def is_behind(self) -> bool:
        """Whether some were only noted."""
        return self._read < len(self._portions)

    def run(self, ids: tuple[int, ...], *, later: bool = False) -> Tensor | Later:
        """Read one portion; gives the logits behind it. `later`, or where others wait: note it."""
        later = later or self.is_behind
        logits = Later.LOGITS if later else self._model.run(list(ids), self.cache)
        self._portions.append(ids)
        self._read += not later
        self.length += len(ids)
        return logits

    def cut(self, length: int) -> None:
        """Forget everything from `length` on, which is where a portion ends."""
        while self.length > length:
            self.length -= len(self._portions.pop())
        self._read = min(self._read, len(self._portions))
        self.cache.cut(min(self.cache.length, length))

    def catch_up(self) -> Tensor:
        """Read what was noted, at most `PIECE_TOKENS`, or the last portion once more; gives the
        logits."""
        if not self.is_behind:
            self._read -= 1
            self.cache.cut(self.length - len(self._portions[-1]))
        done = 0
        while True:
            portion = self._portions[self._read]
            logits = self._model.run(list(portion), self.cache)
            self._read += 1
            done += max(len(portion), PIECE_TOKENS // 16)
            if not self.is_behind or done >= PIECE_TOKENS:
                return logits
