"""Where a card's memory goes: one table, for `--slots auto` and for `parley doctor`.

Weights and caches are counted from shapes. What steps take while they run, what captured graphs
keep and what voices of callers take are upper estimates, written out below: **calculated, not
measured on a card**.

Letters: `H` width of the language model, `I` its inner width, `V` vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import torch

from parley.models.minicpmo45.checkpoint import LAYERS
from parley.models.minicpmo45.config import MiniCPMOConfig
from parley.models.minicpmo45.quantize import Kind, planned_bytes, workspace_bytes
from parley.models.minicpmo45.runtime.eight_bits import cache_bytes
from parley.models.minicpmo45.weights import build, shapes_of

GIB: Final = 1024**3

LIBRARIES_BYTES: Final = GIB // 2
"""Workspaces of cuBLAS and cuDNN, and what fragmentation wastes."""

GRAPHS_BYTES: Final = GIB // 8
"""Captured graphs, whatever the number of slots: those of pictures, and what one needs between its
inputs and its results. Source: `tests/models/minicpmo45/test_graph_memory.py`, here and below."""

GRAPHS_SLOT_BYTES: Final = 28 * 2**20
"""Captured graphs per slot: inputs and results of all sizes of batches, which each graph keeps, and
what the largest needs in between, which all share: a window of the vocoder."""

VISION_BATCH_TOKENS: Final = 16 * 1024
"""Patches that go through the vision encoder together."""


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """Bytes on the device.

    Args:
        once: what there is one of, by name: weights, workspaces.
        per_slot: what every slot has, by name.
    """

    once: Mapping[str, int] = field(default_factory=dict)
    per_slot: Mapping[str, int] = field(default_factory=dict)

    @property
    def once_bytes(self) -> int:
        return sum(self.once.values())

    @property
    def slot_bytes(self) -> int:
        return sum(self.per_slot.values())

    def total_bytes(self, slots: int) -> int:
        """Everything, with so many slots in their worst hour."""
        return self.once_bytes + slots * self.slot_bytes

    def slots_in(self, free_bytes: int, *, most: int) -> int:
        """How many slots fit; 0 if not even one does."""
        left = free_bytes - self.once_bytes
        return max(0, min(most, left // max(1, self.slot_bytes)))

    def without(self, *names: str) -> MemoryBudget:
        """The same without things that are on the device already."""
        once = {name: size for name, size in self.once.items() if name not in names}
        return MemoryBudget(once, self.per_slot)

    def table(self, slots: int) -> list[str]:
        """Lines for people."""
        lines = [f"{name}: {size / GIB:.2f} GiB" for name, size in self.once.items() if size]
        lines += [
            f"{name}: {size / GIB:.2f} GiB per slot" for name, size in self.per_slot.items() if size
        ]
        total = self.total_bytes(slots)
        return [*lines, f"together {total / GIB:.2f} GiB with {slots} slots, all of them busy"]


def step_bytes(*, width: int, inner: int, tokens: int, size: int) -> int:
    """What the largest prefill step takes while it runs, whoever shares it: a layer holds about
    eight tensors of `H` and three of `I` per position."""
    return tokens * (8 * width + 3 * inner) * size


def choice_bytes(vocabulary: int) -> int:
    """What choosing a token takes per row: about six tensors of `V` in float32."""
    return 6 * 4 * vocabulary


def vision_bytes(*, width: int, inner: int, size: int) -> int:
    """What a full batch of the vision encoder takes while it runs."""
    return VISION_BATCH_TOKENS * (8 * width + 2 * inner) * size


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Bytes a configuration takes on the device.

    Args:
        weights_bytes: once; loading_bytes: at most while loading: the result and one matrix.
        slot_bytes: per slot, at the configured context; all kinds of state together.
        per_1000_tokens_bytes: context caches per slot and 1,000 positions.
        parts: weight bytes per part.
        unpacking_bytes: what reading one row's context of one layer takes where it is kept in 8
            bits: keys and values as numbers of the model, and float32 in between; else 0.
        has_small_caches: context, heard sound and the speech decoder's cache are kept in 8 bits.
    """

    weights_bytes: int
    loading_bytes: int
    slot_bytes: int
    per_1000_tokens_bytes: int
    parts: Mapping[str, int]
    unpacking_bytes: int = 0
    has_small_caches: bool = False


def plan(
    config: MiniCPMOConfig,
    *,
    context_tokens: int,
    dtype: torch.dtype = torch.bfloat16,
    speech_slot_bytes: int = 0,
    voice_bytes: int = 0,
    quantize: Kind = "none",
    has_small_caches: bool = False,
) -> MemoryPlan:
    """The memory plan of a configuration.

    Args:
        speech_slot_bytes: what the speech decoder and vocoder keep per slot.
        voice_bytes: the vocoder's weights.
        quantize: what becomes of the language model's layers once they are loaded.
        has_small_caches: keep context, heard sound and the speech decoder's cache in 8 bits.
    """
    size = dtype.itemsize
    shapes = shapes_of(build(config))
    parts: dict[str, int] = {}
    for name, shape in shapes.items():
        part = name.split(".", 1)[0]
        parts[part] = parts.get(part, 0) + torch.Size(shape).numel() * size
    if voice_bytes:
        parts["vocoder"] = voice_bytes
    workspace = 0
    if quantize != "none":
        layers = {name: shape for name, shape in shapes.items() if name.startswith(LAYERS)}
        before = planned_bytes(layers, "none", size)
        parts["llm"] += planned_bytes(layers, quantize, size) - before
        workspace = workspace_bytes(layers.values(), size)
    loading = sum(parts.values()) + workspace
    language = config.language
    per_token = 2 * language.num_hidden_layers * language.num_key_value_heads * config.head_dim
    audio = 2 * config.audio.encoder_layers * config.audio_positions * config.audio.d_model
    kept = partial(cache_bytes, itemsize=size, is_eight_bit=has_small_caches)
    heard_width = config.audio.d_model // config.audio.encoder_attention_heads
    return MemoryPlan(
        weights_bytes=sum(parts.values()),
        loading_bytes=loading,
        slot_bytes=kept(per_token * context_tokens, config.head_dim)
        + kept(audio, heard_width)
        + speech_slot_bytes,
        per_1000_tokens_bytes=kept(per_token * 1000, config.head_dim),
        parts=parts,
        unpacking_bytes=12 * per_token * context_tokens // language.num_hidden_layers
        if has_small_caches
        else 0,
        has_small_caches=has_small_caches,
    )
