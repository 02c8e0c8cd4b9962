"""The speech decoder's batched step, over its network and slot caches.

Source: speech.md 2.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

import torch

from parley.models.minicpmo45.runtime.attention import plainly
from parley.models.minicpmo45.tts import passes
from parley.models.minicpmo45.tts.network import SpeechNetwork
from parley.models.minicpmo45.tts.rows import SpeechBlock, Watch
from parley.models.minicpmo45.tts.sampling import SpeechSampling


class MiniCPMTTS(SpeechNetwork):
    """The speech decoder of a checkpoint: the network with its batched step."""

    @torch.inference_mode()
    def step(
        self,
        blocks: Sequence[SpeechBlock],
        tokens: int = 1,
        *,
        watch: Watch | None = None,
        is_plain: bool = False,
    ) -> bool:
        """Advance every block by up to `tokens` speech tokens, all rows in one batch.

        The first call of a block feeds its condition. The device is waited for once, at the end;
        tokens behind a row's end code are thrown away, so a larger `tokens` costs work, not
        correctness. Nothing of a row is changed before the end, so a step that raised may be
        repeated.

        Args:
            blocks: unfinished blocks of distinct rows.
            is_plain: without graphs and without our own attention kernel.

        Returns:
            False if a score was not finite; no block has advanced then.
        """
        blocks = [block for block in blocks if not block.finished]
        if not blocks:
            return True
        for block in blocks:
            self._save(block.row, block.row.length)
        tokens = min(tokens, max(block.rule.max_new - block.sampled for block in blocks))
        walk = passes.SpeechPasses(self, list(blocks), tokens, watch, is_plain=is_plain)
        with plainly(self) if is_plain else nullcontext():
            walk.run()
        return walk.commit()

    @torch.inference_mode()
    def capture(self, sampling: SpeechSampling | None = None) -> None:
        """Capture the passes of rows that sample so, in every shape; nothing without graphs."""
        passes.capture(self, sampling or self.config.sampling)
