"""Measures the memory that the largest steps take on a card, before slots are counted.

Weights and caches are counted from shapes (`plan.py`). The memory of running steps and of libraries
differs between cards and versions, so it is measured: the largest steps run once on a loaded
network, and the allocator reports its peak.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import torch

from parley.models.minicpmo45.audio_encoder.mel import RATE_HZ
from parley.models.minicpmo45.audio_encoder.sound_encoder import SoundEncoder
from parley.models.minicpmo45.config import MiniCPMOConfig
from parley.models.minicpmo45.llm.network import LanguageModel
from parley.models.minicpmo45.llm.steps import LanguageSteps
from parley.models.minicpmo45.runtime.caches import SlotCache, Span
from parley.models.minicpmo45.stages import PREFILL_STEP_TOKENS
from parley.models.minicpmo45.vision_encoder.network import PictureEncoder
from parley.models.minicpmo45.vision_encoder.pictures import cut
from parley.models.minicpmo45.weights import Network

SPARE_SHARE: Final = 0.06
"""Fraction of the card's memory that is kept free: for fragmentation, other processes and
unforeseen needs."""

VISION_BATCH_TOKENS: Final = 16 * 1024
"""Number of patches that the vision encoder processes together."""

CLIPS: Final = 4
"""Number of whole clips of 30 s that one step encodes."""


class Allocator(Protocol):
    def total_bytes(self) -> int:
        """Size of the card."""
        ...

    def free_bytes(self) -> int:
        """Free bytes after unused blocks were returned."""
        ...

    def peak_bytes(self, run: Callable[[], object]) -> int:
        """Peak of additional bytes while `run` runs."""
        ...


class CudaAllocator:
    """PyTorch's allocator of one card."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def total_bytes(self) -> int:
        return int(torch.cuda.mem_get_info(self._device)[1])

    def free_bytes(self) -> int:
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()
        return int(torch.cuda.mem_get_info(self._device)[0])

    def peak_bytes(self, run: Callable[[], object]) -> int:
        self.free_bytes()
        before = torch.cuda.memory_reserved(self._device)
        torch.cuda.reset_peak_memory_stats(self._device)
        run()
        torch.cuda.synchronize(self._device)
        # Reserved, not allocated, so that fragmentation is included.
        return int(torch.cuda.max_memory_reserved(self._device)) - before


@dataclass(frozen=True, slots=True)
class Measured:
    """The results of a measurement.

    Args:
        steps: peak bytes of each largest step, by name.
        libraries_bytes: bytes that remain in use after them: modules, workspaces.
        free_bytes: free bytes afterwards. total_bytes: of the card.
    """

    steps: dict[str, int]
    libraries_bytes: int
    free_bytes: int
    total_bytes: int

    @property
    def largest_bytes(self) -> int:
        """Peak of the largest step; steps run one after the other."""
        return max(self.steps.values(), default=0)

    @property
    def spare_bytes(self) -> int:
        return int(SPARE_SHARE * self.total_bytes)

    @property
    def left_bytes(self) -> int:
        """Bytes for slots and for everything that is not loaded yet."""
        return self.free_bytes - self.largest_bytes - self.spare_bytes


@torch.inference_mode()
def measure(network: Network, config: MiniCPMOConfig, allocator: Allocator) -> Measured:
    """Run the largest step of each part of a loaded network, and free its memory.

    Raises:
        torch.OutOfMemoryError: a step does not fit.
    """
    before = allocator.free_bytes()
    steps = _largest(network, config, allocator)
    after = allocator.free_bytes()
    return Measured(steps, max(0, before - after), after, allocator.total_bytes())


def _largest(network: Network, config: MiniCPMOConfig, allocator: Allocator) -> dict[str, int]:
    # A real step writes to caches that are already counted from their shapes.
    cache = network.llm.make_cache(1, PREFILL_STEP_TOKENS)
    return {
        "prefill": allocator.peak_bytes(lambda: _prefill(network.llm, cache)),
        "pictures": allocator.peak_bytes(lambda: _pictures(network, config)),
        "sound": allocator.peak_bytes(lambda: _sound(network, config)),
    }


def _prefill(llm: LanguageModel, cache: SlotCache) -> object:
    tokens, width = PREFILL_STEP_TOKENS, int(llm.config.hidden_size)
    embeds = torch.zeros(tokens, width, dtype=llm.dtype, device=llm.device)
    steps = LanguageSteps(llm, cache, llm.make_rope(tokens))
    return llm.logits(steps.prefill(embeds, [Span(0, 0, tokens)])[-1:])


def _pictures(network: Network, config: MiniCPMOConfig) -> object:
    pieces = cut(np.zeros((720, 1280, 3), np.uint8), 1, config.slices)
    encoder = PictureEncoder(network.vpm, network.resampler, batch=config.vision_batch)
    height, width = pieces.sizes[0]
    count = max(1, VISION_BATCH_TOKENS // (height * width))
    return encoder.tokens(list(pieces.patches) * count, pieces.sizes[0])


def _sound(network: Network, config: MiniCPMOConfig) -> object:
    encoder = SoundEncoder(network.apm, network.audio_projection_layer, config)
    return encoder.hear([np.zeros(30 * RATE_HZ, np.float32)] * CLIPS, chunked=True)
