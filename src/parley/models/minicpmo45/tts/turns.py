"""Which rows the speech decoder is fed in each way of talking, and what it forgets between blocks.

A driver per way, all over one `SpeechRow`: `begin` makes the next `SpeechBlock`, the engine steps
it (`MiniCPMTTS.step`) until it is finished, `end` does the bookkeeping and returns the tokens.

| way                         | rows of a block           | driver            |
|-----------------------------|---------------------------|-------------------|
| whole utterance (chat)      | all, text eos, audio bos  | `whole_utterance`      |
| turn in blocks of ten       | rows, (text eos,) bos     | `SpokenTurn`      |
| one-second units (duplex)   | rows, audio bos           | `SpokenUnits`     |

When a turn outgrows the cache, every driver starts over from its previous block (rows and tokens)
plus the new one, as `sliding_recompute` does; the published code has no guard and runs past the
range it was trained on. Source: speech.md 2.3 to 2.6; sessions.md 2.5, 4.6.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from parley.models.minicpmo45.tts.decoder import MiniCPMTTS
from parley.models.minicpmo45.tts.rows import BlockRule, SpeechBlock, SpeechRow
from parley.models.minicpmo45.tts.sampling import SpeechSampling

TOKENS_PER_UNIT = 25
"""Speech tokens of one second."""

BLOCK_LIMIT = 500
"""Draws of one block of a streamed turn. Source: speech.md 2.4."""

UTTERANCE_LIMIT = 2048
UTTERANCE_MINIMUM = 50
"""Limits of a whole utterance. Source: speech.md 2.4."""


@dataclass(frozen=True, slots=True)
class Yielded:
    """Tokens that are ready for the vocoder; `is_last` closes the turn and may come without
    tokens."""

    tokens: list[int]
    is_last: bool


def whole_utterance(
    decoder: MiniCPMTTS,
    row: SpeechRow,
    rows: Tensor,
    sampling: SpeechSampling | None = None,
    *,
    min_new: int = UTTERANCE_MINIMUM,
    max_new: int = UTTERANCE_LIMIT,
) -> SpeechBlock:
    """Chat: the whole answer in one block, of a row that has forgotten what it said.

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
    """Half-duplex: one turn in blocks of about ten rows, tokens handed out in full seconds.

    Args:
        attention: what is forgotten between blocks; None follows the checkpoint.
        yield_tokens: tokens that `end` returns together.
        window: columns kept by `sliding_window`; None follows the checkpoint.
    """

    def __init__(
        self,
        decoder: MiniCPMTTS,
        row: SpeechRow,
        sampling: SpeechSampling | None = None,
        *,
        attention: str | None = None,
        yield_tokens: int = TOKENS_PER_UNIT,
        window: int | None = None,
        block_limit: int = BLOCK_LIMIT,
    ) -> None:
        self.decoder = decoder
        self.row = row
        self.sampling = sampling or decoder.config.sampling
        self.attention = attention or decoder.config.attention_type
        self.window = window or decoder.config.streaming_sliding_window_audio_window_size
        self.yield_tokens = yield_tokens
        self.block_limit = block_limit
        self._reset()

    def _reset(self) -> None:
        self.row.forget()
        self.row.window = self.window if self.attention == "sliding_window" else None
        self.waiting: list[int] = []
        self.blocks = 0
        self.first_length = self.last_length = 0
        self.last_rows: Tensor | None = None
        self.last_tokens: list[int] = []
        self.new_rows: Tensor | None = None
        self.is_last = False
        self.has_spoken = False

    def begin(self, rows: Tensor, *, is_last: bool) -> SpeechBlock:
        """Start the next block.

        Args:
            rows: shape (L, D), from `MiniCPMTTS.condition`, without tail rows; L may be 0.
            is_last: the text is complete.
        """
        tail = [self.decoder.text_eos] if is_last else []
        self.new_rows = torch.cat([rows, *tail, self.decoder.audio_bos])
        self.is_last = is_last
        return SpeechBlock(
            self.row,
            self._condition(self.new_rows),
            BlockRule(0, self.block_limit, False, not self.has_spoken, self.sampling),
        )

    def _condition(self, new: Tensor) -> Tensor:
        """The block's input, after dropping what its attention type drops."""
        if self.blocks and self.attention == "sliding_recompute":
            return self._again(new)
        if self.blocks and self.attention == "reindex":
            kept = self.first_length + self.last_length
            if self.row.length > kept:
                self.decoder.keep_ends(self.row, self.first_length, self.last_length)
        if not self.decoder.has_room(self.row, new.shape[0] + self.block_limit):
            return self._again(new)
        return new

    def _again(self, new: Tensor) -> Tensor:
        """The condition when a turn starts over from its previous block."""
        history = self.row.history
        self.row.forget()
        self.row.history = history
        return _with_previous(self.decoder, self.last_rows, self.last_tokens, new, self.block_limit)

    def end(self, block: SpeechBlock) -> list[Yielded]:
        """Hand out full seconds; after the last block of an ended turn also the rest."""
        assert self.new_rows is not None
        length = self.new_rows.shape[0] + len(block.tokens)
        if self.blocks == 0:
            self.first_length = length
        self.last_length = length
        self.last_rows, self.last_tokens = self.new_rows, list(block.tokens)
        self.new_rows = None
        self.blocks += 1
        self.has_spoken = self.has_spoken or bool(block.tokens)
        self.waiting += block.tokens
        ready: list[Yielded] = []
        while len(self.waiting) >= self.yield_tokens:
            ready.append(Yielded(self.waiting[: self.yield_tokens], False))
            self.waiting = self.waiting[self.yield_tokens :]
        if block.ended and self.is_last:
            ready.append(Yielded(self.waiting, True))
            self.waiting = []
        return ready

    def flush(self) -> list[Yielded]:
        """End the turn with the waiting tokens. The row is free afterwards."""
        rest = [Yielded(self.waiting, True)] if self.waiting else []
        self._reset()
        return rest


class SpokenUnits:
    """Duplex: one block per speaking unit, the cache lives as long as the turn.

    Top-p and top-k are not applied here, and the penalty starts afresh every unit.
    """

    def __init__(
        self, decoder: MiniCPMTTS, row: SpeechRow, sampling: SpeechSampling | None = None
    ) -> None:
        self.decoder = decoder
        self.row = row
        self.sampling = (sampling or decoder.config.sampling).without_filters()
        self._rows: Tensor | None = None
        self._last: tuple[Tensor, list[int]] | None = None
        self.ends_turn = False
        row.window = None
        row.forget()

    def begin(
        self, rows: Tensor | None, *, ends_turn: bool, max_new: int = TOKENS_PER_UNIT + 1
    ) -> SpeechBlock:
        """Start a unit.

        Args:
            rows: shape (L, D), from `MiniCPMTTS.condition(..., normalize=True)`; None or empty
                where the unit said nothing new.
            ends_turn: the unit holds the end of the turn, so speech may stop early.
            max_new: draws; one more than the tokens of a unit, because the last is dropped.
        """
        parts = [self.decoder.audio_bos] if rows is None else [rows, self.decoder.audio_bos]
        condition = self._rows = torch.cat(parts)
        self.ends_turn = ends_turn
        min_new = 0 if ends_turn or self.row.position == 0 else max_new
        self.row.history = []
        if not self.decoder.has_room(self.row, condition.shape[0] + max_new):
            self.row.forget()
            if self._last is not None:
                condition = _with_previous(self.decoder, *self._last, condition, max_new)
        return SpeechBlock(
            self.row, condition, BlockRule(min_new, max_new, True, True, self.sampling)
        )

    def end(self, block: SpeechBlock) -> list[int]:
        """The unit's tokens; after a turn's end the next unit begins a new turn."""
        assert self._rows is not None
        self._last = (self._rows, list(block.tokens))
        self._rows = None
        if self.ends_turn:
            self.interrupt()
        return block.tokens

    def interrupt(self) -> None:
        """Forget the turn, as its end or a forced listen does."""
        self.row.forget()
        self._last = None
        self._rows = None


def _with_previous(
    decoder: MiniCPMTTS,
    rows: Tensor | None,
    tokens: Sequence[int],
    new: Tensor,
    block_limit: int,
) -> Tensor:
    """The previous block's rows and tokens, then the new rows; without them where they do not
    fit."""
    if rows is None or rows.shape[0] + len(tokens) + new.shape[0] + block_limit > decoder.capacity:
        return new
    return torch.cat([rows, decoder.code_rows(tokens), new])
