"""Attention over slot caches, by the kernel that the settings name.

| kernel   | description                                                                |
|----------|----------------------------------------------------------------------------|
| `sdpa`   | PyTorch's fused attention; everywhere                                      |
| `triton` | our kernel (`slot_attention.py`): reads any subset of rows in place, and   |
|          | divides long contexts over the card; NVIDIA GPUs                           |

`auto` is `triton` on a GPU where the package is installed, else `sdpa`. The kernel is tried at load
and steps down to `sdpa` if it fails (`fast_paths.py`).

Shapes: `R` rows, `K` key/value heads, `L` columns seen, `D` head width, `T` queries that share a
key head, `B` rows of a padded batch with `n` new tokens each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Literal, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from parley.errors import SetupError
from parley.models.minicpmo45.runtime import slot_attention
from parley.models.minicpmo45.runtime.caches import PaddedBatch, SlotCache
from parley.models.minicpmo45.runtime.fast_paths import hold

Kernel = Literal["auto", "triton", "sdpa"]

LAYER_LIKENESS = 5e-2
"""Maximum relative distance between the kernel's results of one layer and PyTorch's, as vectors.
Rounding of bfloat16 is below 1e-2; a kernel that reads another slot is off by about 1."""


class FusedAttention:
    """PyTorch's `scaled_dot_product_attention`.

    Rows whose numbers the host knows are read one by one, as views. Rows whose numbers only the
    device knows, as in a captured graph, are copied first; such batches should contain all rows,
    which are read as a view.
    """

    reads_in_place = False
    """True if any subset of rows is read without copying keys and values."""

    is_fused = False
    """True if layers use the kernels of `fused.py` between their products."""

    has_products = False
    """True if the kernel of `products.py` then multiplies small numbers of rows."""

    def prepared(self, batch: PaddedBatch, cache: SlotCache, groups: int) -> PaddedBatch:
        """A copy of the batch with the tensors that all layers of a step share, computed once.

        Args:
            groups: query heads per key head.
        """
        count = batch.turns.shape[1]
        columns = torch.arange(batch.reads, device=cache.keys.device)
        seen = columns <= batch.turns[:, :, None]
        if batch.first is not None:
            seen &= columns >= batch.first[:, None, None]
        # The queries that share a key head become one longer query.
        seen = seen[:, None].expand(-1, groups, count, batch.reads).flatten(1, 2)[:, None]
        return replace(batch, mask=added(seen, cache.dtype))

    def padded(self, layer: int, query: Tensor, batch: PaddedBatch, cache: SlotCache) -> Tensor:
        """Attention of a padded batch whose keys and values have already been written to the cache.

        Args:
            query: (B, n, heads, D).
            batch: after `prepared`.

        Returns:
            (B, n, heads, D).
        """
        size, count, heads, width = query.shape
        key_heads = cache.heads
        groups = heads // key_heads
        mask = batch.mask
        assert mask is not None
        # With one token per row, heads and tokens are already in this order.
        grouped = query if count == 1 else query.transpose(1, 2)
        grouped = grouped.reshape(size, key_heads, groups * count, width)
        # 8-bit caches are unpacked row by row if the host knows the rows: unpacking all rows
        # together would need memory for a copy of every context.
        if batch.slots is not None and size == 1:
            keys, values = cache.view(layer, batch.slots[0], batch.reads)
            out = self._attend(grouped, keys[None], values[None], mask)
        elif batch.rows is None and (batch.slots is None or not cache.is_eight_bit):
            out = self._attend(grouped, *cache.columns(layer, None, batch.reads), mask)
        elif batch.slots is not None:
            # Slices, because iterating over a tensor's rows takes longer than attention over a
            # short one.
            parts = [
                self._attend(asks, keys[None], values[None], here)
                for slot, asks, here in zip(
                    batch.slots, grouped.chunk(size), mask.chunk(size), strict=True
                )
                for keys, values in [cache.view(layer, slot, batch.reads)]
            ]
            out = torch.cat(parts)
        else:
            out = self._attend(grouped, *cache.columns(layer, batch.rows, batch.reads), mask)
        if count == 1:
            return out.reshape(query.shape)
        return out.reshape(size, heads, count, width).transpose(1, 2)

    def _attend(self, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        """Shapes: query (R, K, T, D), keys and values (R, K, L, D), mask (R, 1, T, L), from
        `added`."""
        return F.scaled_dot_product_attention(query, keys, values, attn_mask=mask)


def added(seen: Tensor, dtype: torch.dtype) -> Tensor:
    """The additive mask of scores under which only keys with a true `seen` are seen, computed once
    per step. PyTorch would convert a boolean mask to it again in every layer."""
    return torch.zeros_like(seen, dtype=dtype).masked_fill_(~seen, -torch.inf)


class SlotAttention(FusedAttention):
    """The kernel of `slot_attention.py` for a few new tokens per row, PyTorch's for many. PyTorch's
    is used for all once `reads_in_place` is false."""

    reads_in_place = True

    def __init__(self, *, is_fused: bool = False, has_products: bool = False) -> None:
        self.is_fused, self.has_products = is_fused, has_products

    def prepared(self, batch: PaddedBatch, cache: SlotCache, groups: int) -> PaddedBatch:
        fits = slot_attention.fits(groups * batch.turns.shape[1], int(cache.keys.shape[-1]))
        if not (self.reads_in_place and fits):
            return super().prepared(batch, cache, groups)
        rows = batch.rows
        numbers = torch.arange(cache.rows, device=cache.keys.device) if rows is None else rows
        first = torch.zeros_like(numbers) if batch.first is None else batch.first
        return replace(batch, numbers=numbers, first=first)

    def padded(self, layer: int, query: Tensor, batch: PaddedBatch, cache: SlotCache) -> Tensor:
        if batch.numbers is None or batch.first is None:
            return super().padded(layer, query, batch, cache)
        kept = cache.paged(layer)
        return slot_attention.attend(
            query,
            kept.keys,
            kept.values,
            batch.numbers,
            first=batch.first,
            last=batch.turns,
            reads=batch.reads,
            key_scales=kept.key_scales,
            value_scales=kept.value_scales,
            table=kept.table,
        )


def make_attention(kernel: Kernel, *, device: torch.device | str = "cpu") -> FusedAttention:
    """The kernel that a setting names.

    Raises:
        SetupError: it cannot run here.
    """
    problem = why_no_kernel(torch.device(device))
    if kernel == "triton" and problem is not None:
        raise SetupError(f"{problem}", hint="Set model.attention to auto.")
    if kernel == "sdpa" or problem is not None:
        return FusedAttention()
    return SlotAttention(is_fused=True, has_products=True)


def why_no_kernel(device: torch.device) -> str | None:
    """The reason why the Triton kernel cannot be used; None if it may be tried."""
    if device.type != "cuda":
        return "The triton kernel needs an NVIDIA GPU."
    if not slot_attention.is_installed():
        return "The triton kernel needs the package triton."
    return None


class Attends(Protocol):
    """A network that reads caches; `attention` is the kernel in use, chosen at load."""

    attention: FusedAttention


@contextmanager
def attending(network: Attends, attention: FusedAttention) -> Iterator[None]:
    """Replace a network's attention within the context."""
    chosen, network.attention = network.attention, attention
    try:
        yield
    finally:
        network.attention = chosen


class _Compared(SlotAttention):
    """The kernel, compared in every layer with PyTorch's attention of the same inputs. Results of
    whole steps are less comparable: products in 8 bits magnify the different rounding of two
    attentions.

    Args:
        what: name of the steps that are run.
    """

    def __init__(self, what: str) -> None:
        self._what = what

    def padded(self, layer: int, query: Tensor, batch: PaddedBatch, cache: SlotCache) -> Tensor:
        found = super().padded(layer, query, batch, cache)
        plain = FusedAttention()
        batch = plain.prepared(batch, cache, query.shape[2] // cache.heads)
        wanted = plain.padded(layer, query, batch, cache)
        # Rows count the same: the mean of many columns is small next to a single one.
        sizes = wanted.float().flatten(1).norm(dim=1).clamp(min=1e-12).view(-1, 1, 1, 1)
        what = f"{self._what}, layer {layer},"
        hold("attention", found / sizes, wanted / sizes, LAYER_LIKENESS, what)
        return found


def compare(network: Attends, step: Callable[[], object], what: str) -> None:
    """Run a step, in which our kernel, if it is in use, is compared with PyTorch's attention.

    Args:
        what: name of the steps, for the error.

    Raises:
        FastPathFailed: they differ.
    """
    if network.attention.reads_in_place:
        with attending(network, _Compared(what)):
            step()
