"""Drivers of the speech decoder: the rows that each mode feeds, and what it drops between blocks.

Each mode has a driver over one `SpeechRow`: `begin` creates the next `SpeechBlock`, the engine
steps it (`MiniCPMTTS.step`) until it is finished, and `end` does the bookkeeping and returns the
tokens.

| mode                        | rows of a block           | driver            |
|-----------------------------|---------------------------|-------------------|
| whole utterance (chat)      | all, text eos, audio bos  | `whole_utterance` |
| turn in blocks of ten       | rows, (text eos,) bos     | `SpokenTurn`      |
| one-second units (duplex)   | rows, audio bos           | `SpokenUnits`     |

When a turn no longer fits into the cache, its driver starts over from the previous block (rows and
tokens) plus the new one, as `sliding_recompute` does; the published code has no such check and runs
past the range that the model was trained on. Source: speech.md 2.3 to 2.6; sessions.md 2.5, 4.6.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from parley.models.minicpmo45.tts.decoder import MiniCPMTTS
from parley.models.minicpmo45.tts.rows import BlockRule, SpeechBlock, SpeechRow
from parley.models.minicpmo45.tts.sampling import SpeechSampling

TOKENS_PER_UNIT = 25
"""Number of speech tokens of one second."""

BLOCK_LIMIT = 500
"""Maximum number of draws of one block of a streamed turn. Source: speech.md 2.4."""

UTTERANCE_LIMIT = 2048
UTTERANCE_MINIMUM = 50
"""Maximum and minimum number of tokens of a whole utterance. Source: speech.md 2.4."""


class _Said(NamedTuple):
    """A block: its condition rows, shape (L, D), and its tokens."""

    rows: Tensor
    tokens: list[int]

    @property
    def length(self) -> int:
        return self.rows.shape[0] + len(self.tokens)


def whole_utterance(
    decoder: MiniCPMTTS,
    row: SpeechRow,
    rows: Tensor,
    sampling: SpeechSampling | None = None,
    *,
    min_new: int = UTTERANCE_MINIMUM,
    max_new: int = UTTERANCE_LIMIT,
) -> SpeechBlock:
    """Chat: the whole answer in one block; the row's earlier speech is dropped.

    Args:
        rows: shape (L, D), from `MiniCPMTTS.condition`, without tail rows.
    """
    condition = torch.cat([rows, decoder.text_eos, decoder.audio_bos])
    most = max(1, min(max_new, decoder.capacity - len(condition)))
    row.forget()
    row.window = None
    rule = BlockRule(min_new, most, True, True, sampling or decoder.config.sampling)
    return SpeechBlock(row, condition, rule)


class SpokenTurn:
    """Half-duplex: one turn in blocks of about ten rows; the row's previous turn is dropped.

    Args:
        attention: attention type, which decides what is dropped between blocks; None follows the
            checkpoint.
        window: number of columns kept by `sliding_window`; None follows the checkpoint.
    """

    def __init__(
        self,
        decoder: MiniCPMTTS,
        row: SpeechRow,
        sampling: SpeechSampling | None = None,
        *,
        attention: str | None = None,
        window: int | None = None,
        block_limit: int = BLOCK_LIMIT,
    ) -> None:
        self.decoder = decoder
        self.row = row
        self.sampling = sampling or decoder.config.sampling
        self.attention = attention or decoder.config.attention_type
        window = window or decoder.config.streaming_sliding_window_audio_window_size
        self.block_limit = block_limit
        self._first_length = 0
        self._last: _Said | None = None
        self._rows: Tensor | None = None
        row.forget()
        row.window = window if self.attention == "sliding_window" else None

    def begin(self, rows: Tensor, *, is_last: bool) -> SpeechBlock:
        """Start the next block.

        Args:
            rows: shape (L, D), from `MiniCPMTTS.condition`, without tail rows; L may be 0.
            is_last: True if the text is complete.
        """
        tail = [self.decoder.text_eos] if is_last else []
        self._rows = torch.cat([rows, *tail, self.decoder.audio_bos])
        # A turn that has spoken has a history; it is kept if the turn starts over.
        rule = BlockRule(0, self.block_limit, False, not self.row.history, self.sampling)
        return SpeechBlock(self.row, self._condition(self._rows), rule)

    def _condition(self, new: Tensor) -> Tensor:
        """Drop what the attention type drops, and return the block's condition."""
        if self._last is not None:
            if self.attention == "sliding_recompute":
                return self._again(new)
            ends = (self._first_length, self._last.length)
            if self.attention == "reindex" and self.row.length > sum(ends):
                self.decoder.keep_ends(self.row, *ends)
        if not self.decoder.has_room(self.row, new.shape[0] + self.block_limit):
            return self._again(new)
        return new

    def _again(self, new: Tensor) -> Tensor:
        """Start the turn over from its previous block, and return the condition."""
        history = self.row.history
        self.row.forget()
        self.row.history = history
        return _with_previous(self.decoder, self._last, new, self.block_limit)

    def end(self, block: SpeechBlock) -> list[int]:
        """Finish the block and return its tokens."""
        assert self._rows is not None
        self._last, self._rows = _Said(self._rows, list(block.tokens)), None
        self._first_length = self._first_length or self._last.length
        return block.tokens


class SpokenUnits:
    """Duplex: one block per speaking unit; the cache is kept for the whole turn.

    Top-p and top-k are not applied here, and the penalty's history is cleared for every unit.
    """

    def __init__(
        self, decoder: MiniCPMTTS, row: SpeechRow, sampling: SpeechSampling | None = None
    ) -> None:
        self.decoder = decoder
        self.row = row
        self.sampling = (sampling or decoder.config.sampling).without_filters()
        self._rows: Tensor | None = None
        self._last: _Said | None = None
        self.ends_turn = False
        row.window = None
        row.forget()

    def begin(
        self, rows: Tensor | None, *, ends_turn: bool, max_new: int = TOKENS_PER_UNIT + 1
    ) -> SpeechBlock:
        """Start a unit.

        Args:
            rows: shape (L, D), from `MiniCPMTTS.condition(..., normalize=True)`; None or empty if
                the unit has no new text.
            ends_turn: True if the unit contains the end of the turn, so speech may stop early.
            max_new: maximum number of draws; one more than the tokens of a unit, because the last
                is dropped.
        """
        parts = [self.decoder.audio_bos] if rows is None else [rows, self.decoder.audio_bos]
        condition = self._rows = torch.cat(parts)
        self.ends_turn = ends_turn
        min_new = 0 if ends_turn or self.row.position == 0 else max_new
        self.row.history = []
        if not self.decoder.has_room(self.row, condition.shape[0] + max_new):
            self.row.forget()
            condition = _with_previous(self.decoder, self._last, condition, max_new)
        return SpeechBlock(
            self.row, condition, BlockRule(min_new, max_new, True, True, self.sampling)
        )

    def end(self, block: SpeechBlock) -> list[int]:
        """Finish the unit and return its tokens; after the end of a turn the next unit starts a new
        turn."""
        assert self._rows is not None
        self._last, self._rows = _Said(self._rows, list(block.tokens)), None
        if self.ends_turn:
            self.interrupt()
        return block.tokens

    def interrupt(self) -> None:
        """Drop the turn, at its end or at a forced listen."""
        self.row.forget()
        self._last = None
        self._rows = None


def _with_previous(
    decoder: MiniCPMTTS, last: _Said | None, new: Tensor, block_limit: int
) -> Tensor:
    """The previous block's rows and tokens, then the new rows; only the new rows if these do not
    fit together."""
    if last is None or last.length + new.shape[0] + block_limit > decoder.capacity:
        return new
    return torch.cat([last.rows, decoder.code_rows(last.tokens), new])
