"""Attention over slot caches, by the kernel that the settings name.

| kernel              | what                                                                       |
|---------------------|----------------------------------------------------------------------------|
| `sdpa`              | PyTorch's fused attention; everywhere                                      |
| `triton`            | our kernel (`slot_attention.py`): reads the slots where they lie, for any  |
|                     | subset of rows, and divides long contexts over the card; NVIDIA GPUs       |
| `eager`             | two matrix products and a softmax in float32; for comparison               |
| `flash_attention_2` | the package flash-attn: reads the slots where they lie, without a copy;    |
|                     | NVIDIA GPUs, 16-bit weights                                                |

`auto` is `triton` on a GPU where the package is installed, else `sdpa`. A kernel belongs to the
language model of a process and is chosen once, at load.

Shapes: `R` rows, `K` key/value heads, `L` columns seen, `D` head width, `T` new tokens of one row,
`B` rows of a padded batch with `n` new tokens each.
"""

from __future__ import annotations

import importlib
import math
from dataclasses import replace
from typing import Any, Literal, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from parley.errors import SetupError
from parley.models.minicpmo45.runtime import slot_attention
from parley.models.minicpmo45.runtime.caches import PaddedBatch, SlotCache

Kernel = Literal["auto", "triton", "sdpa", "eager", "flash_attention_2"]


class AttentionMethod(Protocol):
    """One way of computing it."""

    @property
    def reads_in_place(self) -> bool:
        """Whether any subset of rows is read without copying what they remember."""
        ...

    def prepared(self, batch: PaddedBatch, cache: SlotCache, groups: int) -> PaddedBatch:
        """A batch with what all layers of a step share, made once.

        Args:
            groups: query heads per key head.
        """
        ...

    def one(self, query: Tensor, keys: Tensor, values: Tensor, *, start: int | None) -> Tensor:
        """Attention of one row's new tokens over what the row remembers.

        Args:
            query: (heads, T, D), heads a multiple of K.
            keys, values: (K, L, D).
            start: position of the first query; token t sees keys [0, start + t], and L is
                start + T. None: all see all.

        Returns:
            (heads, T, D).
        """
        ...

    def padded(self, layer: int, query: Tensor, batch: PaddedBatch, cache: SlotCache) -> Tensor:
        """Attention of a padded batch, whose keys and values are in the cache already.

        Args:
            query: (B, n, heads, D).

        Returns:
            (B, n, heads, D).
        """
        ...


class FusedAttention:
    """PyTorch's `scaled_dot_product_attention`.

    Rows that the host knows by number are read one by one, as views. Rows that are known to the
    device only, as in a captured graph, are copied first; whoever makes such batches prefers all
    rows, which are a view.
    """

    reads_in_place = False

    def prepared(self, batch: PaddedBatch, cache: SlotCache, groups: int) -> PaddedBatch:
        count = batch.turns.shape[1]
        columns = torch.arange(batch.reads, device=cache.keys.device)
        seen = columns <= batch.turns[:, :, None]
        # The queries that share a key head become one longer query.
        mask = seen[:, None].expand(-1, groups, count, batch.reads).flatten(1, 2)[:, None]
        return replace(batch, mask=mask)

    def one(self, query: Tensor, keys: Tensor, values: Tensor, *, start: int | None) -> Tensor:
        heads, tokens, width = query.shape
        groups = heads // keys.shape[0]
        # The queries that share a key head become one longer query: no repeated keys in memory.
        grouped = query.reshape(keys.shape[0], groups * tokens, width)
        mask = None
        if start is not None and tokens > 1:
            seen = torch.arange(keys.shape[1], device=query.device)
            mine = torch.arange(start, start + tokens, device=query.device)
            mask = (seen[None, :] <= mine[:, None]).repeat(groups, 1)[None, None]
        out = self._attend(grouped[None], keys[None], values[None], mask)[0]
        return out.reshape(heads, tokens, width)

    def padded(self, layer: int, query: Tensor, batch: PaddedBatch, cache: SlotCache) -> Tensor:
        size, count, heads, width = query.shape
        key_heads = int(cache.keys.shape[2])
        groups = heads // key_heads
        mask = batch.mask
        if mask is None:
            mask = self.prepared(batch, cache, groups).mask
        assert mask is not None
        grouped = query.permute(0, 2, 1, 3).reshape(size, key_heads, groups * count, width)
        # What is kept in 8 bits is unpacked row by row where the host knows the rows: all rows at
        # once would take a copy of every context.
        if batch.rows is None and (batch.slots is None or not cache.is_eight_bit):
            out = self._attend(grouped, *cache.columns(layer, None, batch.reads), mask)
        elif batch.slots is not None:
            out = torch.empty_like(grouped)
            for at, slot in enumerate(batch.slots):
                one = slice(at, at + 1)
                found = cache.columns(layer, slice(slot, slot + 1), batch.reads)
                out[one] = self._attend(grouped[one], *found, mask[one])
        else:
            out = self._attend(grouped, *cache.columns(layer, batch.rows, batch.reads), mask)
        return out.reshape(size, heads, count, width).permute(0, 2, 1, 3)

    def _attend(self, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        """Shapes (R, K, T, D), (R, K, L, D) twice, and (R, 1, T, L), true where a key is seen."""
        return F.scaled_dot_product_attention(query, keys, values, attn_mask=mask)


class SlotAttention(FusedAttention):
    """The kernel of `slot_attention.py` for a few new tokens per row, PyTorch's for many."""

    reads_in_place = True

    def prepared(self, batch: PaddedBatch, cache: SlotCache, groups: int) -> PaddedBatch:
        width = int(cache.keys.shape[-1])
        if not slot_attention.fits(groups * batch.turns.shape[1], width):
            return super().prepared(batch, cache, groups)
        rows = batch.rows
        numbers = torch.arange(cache.rows, device=cache.keys.device) if rows is None else rows
        return replace(batch, numbers=numbers, first=torch.zeros_like(numbers))

    def padded(self, layer: int, query: Tensor, batch: PaddedBatch, cache: SlotCache) -> Tensor:
        groups = query.shape[2] // cache.keys.shape[2]
        if batch.numbers is None:
            batch = self.prepared(batch, cache, groups)
        if batch.numbers is None or batch.first is None:
            return super().padded(layer, query, batch, cache)
        return slot_attention.attend(
            query,
            cache.keys[layer],
            cache.values[layer],
            batch.numbers,
            first=batch.first,
            last=batch.turns,
            reads=batch.reads,
            scales=cache.scales(layer),
        )


class PlainAttention(FusedAttention):
    """The same by hand: products in the weights' dtype, softmax in float32."""

    def _attend(self, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        scores = query @ keys.transpose(-1, -2) / math.sqrt(query.shape[-1])
        if mask is not None:
            scores = scores.masked_fill(~mask, -torch.inf)
        weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(values.dtype)
        return weights @ values


class FlashAttention:
    """The package flash-attn over the slots as they lie.

    Its causal mask is aligned at the last query and the last key it is told of. A padded batch
    therefore says of every row that it ends with its last, perhaps padded, token: the true ones
    then see exactly what is theirs, and the padding sees rubbish that nobody looks at. A padded row
    must not reach beyond its cache; who makes batches sees to that.

    Args:
        package: the module; brought by tests.
    """

    reads_in_place = True

    def prepared(self, batch: PaddedBatch, cache: SlotCache, groups: int) -> PaddedBatch:
        return batch

    def __init__(self, package: Any) -> None:
        self._whole = package.flash_attn_func
        self._cached = package.flash_attn_with_kvcache

    def one(self, query: Tensor, keys: Tensor, values: Tensor, *, start: int | None) -> Tensor:
        out: Tensor = self._whole(
            query.transpose(0, 1)[None],
            keys.transpose(0, 1)[None],
            values.transpose(0, 1)[None],
            causal=start is not None,
        )
        return out[0].transpose(0, 1)

    def padded(self, layer: int, query: Tensor, batch: PaddedBatch, cache: SlotCache) -> Tensor:
        rows = batch.rows
        lengths = (batch.turns[:, 0] + query.shape[1]).to(torch.int32)
        out: Tensor = self._cached(
            query,
            cache.keys[layer].transpose(1, 2),
            cache.values[layer].transpose(1, 2),
            cache_seqlens=lengths,
            cache_batch_idx=None if rows is None else rows.to(torch.int32),
            causal=True,
        )
        return out


def make_attention(
    kernel: Kernel, *, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
) -> AttentionMethod:
    """The kernel that a setting names.

    Raises:
        SetupError: it cannot run here.
    """
    match kernel:
        case "auto":
            is_possible = torch.device(device).type == "cuda" and slot_attention.is_installed()
            return SlotAttention() if is_possible else FusedAttention()
        case "sdpa":
            return FusedAttention()
        case "triton":
            return SlotAttention() if _has_triton(torch.device(device)) else FusedAttention()
        case "eager":
            return PlainAttention()
        case "flash_attention_2":
            return FlashAttention(_flash(torch.device(device), dtype))


def _has_triton(device: torch.device) -> bool:
    hint = "Set model.attention to auto."
    if device.type != "cuda":
        raise SetupError("The triton kernel needs an NVIDIA GPU.", hint=hint)
    if not slot_attention.is_installed():
        raise SetupError("The triton kernel needs the package triton.", hint=hint)
    return True


def _flash(device: torch.device, dtype: torch.dtype) -> Any:
    hint = "Set model.attention to auto."
    if device.type != "cuda":
        raise SetupError("flash_attention_2 needs an NVIDIA GPU.", hint=hint)
    if dtype not in (torch.bfloat16, torch.float16):
        raise SetupError(
            "flash_attention_2 needs 16-bit weights.", hint=f"{hint} Or model.dtype to bfloat16."
        )
    try:
        return importlib.import_module("flash_attn")
    except ImportError as error:
        raise SetupError(
            "flash_attention_2 needs the package flash-attn, which is not installed.",
            hint=f"Install flash-attn next to parley. {hint}",
        ) from error
