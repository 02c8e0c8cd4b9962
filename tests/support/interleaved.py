"""Speech of the published interleaved chat, which parley does not serve, for its golden vectors."""

import torch
from torch import Tensor

from parley.models.minicpmo45.tts.decoder import MiniCPMTTS
from parley.models.minicpmo45.tts.rows import BlockRule, SpeechBlock, SpeechRow
from parley.models.minicpmo45.tts.sampling import SpeechSampling
from parley.models.minicpmo45.tts.turns import BLOCK_LIMIT


class Interleaved:
    """Chat with `interleaved` on: blocks of ten rows, recomputed at intervals.

    From block `window_blocks` on, every `window_blocks - recomputed_blocks` blocks the cache is
    dropped and the last `recomputed_blocks` blocks are fed again.
    """

    def __init__(
        self,
        decoder: MiniCPMTTS,
        row: SpeechRow,
        sampling: SpeechSampling | None = None,
        *,
        attention: str | None = None,
        window_blocks: int,
        recomputed_blocks: int,
        block_limit: int = BLOCK_LIMIT,
    ) -> None:
        self.decoder = decoder
        self.row = row
        self.sampling = (sampling or decoder.config.sampling).without_filters()
        self.attention = attention or decoder.config.attention_type
        self.window_blocks, self.recomputed = window_blocks, recomputed_blocks
        self.block_limit = block_limit
        self.blocks = 0
        self._past: list[tuple[Tensor, list[int]]] = []
        self._rows: Tensor | None = None
        row.window = None
        row.forget()

    def begin(self, rows: Tensor, *, is_last: bool) -> SpeechBlock:
        """Start the next block; arguments as in `SpokenTurn.begin`."""
        tail = [self.decoder.text_eos] if is_last else []
        new = self._rows = torch.cat([rows, *tail, self.decoder.audio_bos])
        self.row.history = []
        needed = new.shape[0] + self.block_limit
        starts_over = self._recomputes() or not self.decoder.has_room(self.row, needed)
        condition = self._again(new) if starts_over else new
        return SpeechBlock(
            self.row, condition, BlockRule(0, self.block_limit, True, True, self.sampling)
        )

    def _recomputes(self) -> bool:
        if self.attention != "sliding_recompute" or self.blocks < self.window_blocks:
            return False
        return (self.blocks - self.recomputed) % (self.window_blocks - self.recomputed) == 0

    def _again(self, new: Tensor) -> Tensor:
        self.row.forget()
        parts: list[Tensor] = []
        for rows, tokens in self._past[-self.recomputed :]:
            parts += [rows, self.decoder.code_rows(tokens)]
        kept = torch.cat([*parts, new])
        return kept if kept.shape[0] + self.block_limit <= self.decoder.capacity else new

    def end(self, block: SpeechBlock) -> list[int]:
        """The block's tokens."""
        assert self._rows is not None
        if self.attention == "sliding_window" and self._past:
            rows, tokens = self._past[-1]
            self.row.first = min(self.row.length, self.row.first + rows.shape[0] + len(tokens))
        self._past = [*self._past, (self._rows, list(block.tokens))][-self.recomputed :]
        self._rows = None
        self.blocks += 1
        return block.tokens
