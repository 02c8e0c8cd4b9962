"""The language model: Qwen3 over slot caches.

Parameter names, norms and MLPs are Qwen3's; attention runs over the preallocated caches of
`caches.SlotCache`. We differ from `Qwen3ForCausalLM` in that one forward processes a *packed*
sequence: new positions of several rows, any number of each, one after the other. Prefill of ragged
lengths and decode of a few rows are the same call, and other rows do not change.

Shapes: `T` new positions of all rows together, `H` width, `V` vocabulary. Source: model.md 9.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from parley.models.minicpmo45.config import LanguageConfig
from parley.models.minicpmo45.device import to_device
from parley.models.minicpmo45.runtime.attention import FusedAttention
from parley.models.minicpmo45.runtime.caches import PaddedBatch, RopeTable, SlotCache, Span
from parley.models.minicpmo45.runtime.decoder import DecoderStack
from parley.models.minicpmo45.runtime.layers import outputs_together
from parley.models.minicpmo45.runtime.products import of_all


class LanguageModel(nn.Module):
    """The language model. Parameter names are the checkpoint's below `llm.`; `attention` is the
    kernel in use."""

    def __init__(self, config: LanguageConfig) -> None:
        super().__init__()
        self.config = config
        self.attention = FusedAttention()
        self.model = DecoderStack(config, words=config.vocab_size)
        self.make_cache = self.model.make_cache
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def rebuild_buffers(self, device: torch.device) -> None:
        """Arrange the head in memory; call once after the weights are loaded."""
        head: nn.Module = self.lm_head
        # Shorter numbers and our own kernel need it by outputs.
        if isinstance(head, nn.Linear) and device.type == "cpu" and self.dtype is torch.float32:
            outputs_together(head)

    @property
    def device(self) -> torch.device:
        return self.model.norm.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.model.norm.weight.dtype

    def make_rope(self, positions: int, *, rounds: bool = False) -> RopeTable:
        return RopeTable(
            head_dim=self.config.head_dim,
            base=self.config.rope_theta,
            positions=positions,
            device=self.device,
            rounds=rounds,
        )

    def embed(self, ids: Sequence[int] | Tensor) -> Tensor:
        """Token embeddings (n, H)."""
        if not isinstance(ids, Tensor):
            ids = torch.tensor(list(ids), dtype=torch.int64)
        return self.model.embed_tokens(to_device(ids, self.device))

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores (n, V) of hidden states (n, H), in the model's dtype."""
        return of_all(hidden, self.lm_head, has_kernel=self.attention.has_products)[0]

    def forward(
        self,
        embeds: Tensor,
        spans: Sequence[Span],
        cache: SlotCache,
        rope: RopeTable,
    ) -> Tensor:
        """Run new positions through all layers and write them into the caches.

        The rows' lengths do not change until `cache.commit(spans)`, so a forward that fails or is
        discarded has changed nothing.

        Args:
            embeds: (T, H), the positions of one span after the other.
            spans: row and positions of each; a span starts at its row's length.

        Returns:
            States after the final norm, (T, H).

        Raises:
            ContextFull: the cache's pool has no room for a span.
        """
        for span in spans:
            cache.reserve(span.row, span.end)
        places = [torch.arange(span.start, span.end, dtype=torch.int64) for span in spans]
        positions = to_device(torch.cat(places), embeds.device)
        cos, sin = rope.at(positions, embeds.dtype)
        cos, sin = cos[:, None], sin[:, None]
        groups = self.config.num_attention_heads // self.config.num_key_value_heads
        # Rows are read as views, whichever kernel is in use.
        plain, counts = FusedAttention(), [span.count for span in spans]
        batches = [
            plain.prepared(
                PaddedBatch(None, here[None], here[None], span.end, (span.row,)), cache, groups
            )
            for span, here in zip(spans, torch.split(positions, counts), strict=True)
        ]
        x = embeds
        layer: Any
        for index, layer in enumerate(self.model.layers):
            query, keys, values = layer.asked(x, (cos, sin))
            mixed, first = torch.empty_like(query), 0
            for span, batch in zip(spans, batches, strict=True):
                mine = slice(first, first + span.count)
                first += span.count
                cache.write(index, span, keys[mine].transpose(0, 1), values[mine].transpose(0, 1))
                mixed[mine] = plain.padded(index, query[mine][None], batch, cache)[0]
            x = layer.answered(x, mixed)
        return self.model.norm(x)

    def forward_even(
        self, embeds: Tensor, batch: PaddedBatch, cache: SlotCache, rope: RopeTable
    ) -> Tensor:
        """`forward` for a batch of fixed shape: (B, n, H) to states (B, n, H).

        A pure function of tensors and of the batch's shape, so it can be captured as a graph.
        Results at padding are undefined.
        """
        cos, sin = rope.at(batch.turns.flatten(), embeds.dtype)
        cos, sin = cos[:, None], sin[:, None]
        config = self.config
        groups = config.num_attention_heads // config.num_key_value_heads
        batch = self.attention.prepared(cache.placed(batch), cache, groups)
        return self.model(embeds, batch, (cos, sin), cache, self.attention)
