"""How many graphs a model captures at the published widths, and what they keep, without a card.

Everything that is captured runs once on tensors without memory. Depth is two layers per part where
it changes nothing: inputs and results of a graph do not depend on it, nor does what a layer needs
while it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tools.roofline.meter import Returned, tensors_of
from tools.roofline.steps import PaperModel
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from parley.cli.bench.gpu_parts import shallow
from parley.models.minicpmo45.audio_encoder.live_steps import LiveSteps
from parley.models.minicpmo45.audio_encoder.mel import LiveMelOptions
from parley.models.minicpmo45.config import make_config
from parley.models.minicpmo45.plan import GRAPHS_BYTES, GRAPHS_SLOT_BYTES, MOST_SLOTS
from parley.models.minicpmo45.random_model import full_sizes
from parley.models.minicpmo45.runtime.graphs import GRAPHS_LIMIT
from parley.models.minicpmo45.stages.encode import capture_encoders
from parley.models.minicpmo45.vision_encoder.network import PictureEncoder

LONGEST_CONTEXT = 31_744


class Peak(TorchDispatchMode):
    """The most bytes that were alive at once, of what was made within.

    Args:
        returned: what operators are known to return; layers repeat the same ones.
    """

    def __init__(self, returned: Returned) -> None:
        super().__init__()
        self.most = 0
        self._alive: dict[int, tuple[StorageWeakRef, int]] = {}
        self._returned = returned

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        inputs = tensors_of((args, kwargs))
        key = self._returned.key(func, args, kwargs, inputs)
        out = self._returned.run(func, args, kwargs, key)
        given = {tensor.untyped_storage()._cdata for tensor in inputs}
        made = False
        for tensor in tensors_of(out):
            storage = tensor.untyped_storage()
            if storage._cdata not in given:
                self._alive[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
                made = True
        if made:
            for number, (reference, _) in list(self._alive.items()):
                if reference.expired():
                    del self._alive[number]
            self.most = max(self.most, sum(size for _, size in self._alive.values()))
        return out


def captured(slots: int, context_tokens: int) -> dict[tuple[str, Hashable], tuple[int, int]]:
    """Of every graph: what its inputs and results take, and the most while it runs."""
    sizes = full_sizes()
    raw = dict(shallow(sizes).config.raw) | {"vocab_size": sizes.config.raw["vocab_size"]}
    config = make_config(raw)
    paper = PaperModel(slots=slots, context_tokens=context_tokens, config=config)
    found: dict[tuple[str, Hashable], tuple[int, int]] = {}
    returned = Returned()

    def run(
        kind: str,
        shape: Hashable,
        function: Callable[..., tuple[Tensor, ...]],
        inputs: Sequence[Tensor],
        reference: object = None,
    ) -> tuple[Tensor, ...]:
        mine = [torch.empty_like(tensor, device="meta") for tensor in inputs]
        with torch.inference_mode(), Peak(returned) as peak:
            results = function(*mine)
        found[kind, shape] = (sum(one.nbytes for one in (*mine, *results)), peak.most)
        return tuple(result.clone() for result in results)

    paper.graphs.run = run  # type: ignore[method-assign]
    paper.steps.capture()
    paper.decoder.capture()
    paper.voice.capture()
    pictures = PictureEncoder(
        paper.network.vpm, paper.network.resampler, batch=config.vision_batch, graphs=paper.graphs
    )
    sound = LiveSteps(paper.network.apm, paper.sounds, paper.graphs)
    parts = SimpleNamespace(
        config=config,
        unit_mel=LiveMelOptions(redundancy_frames=2),
        picture_encoder=pictures,
        live_steps=sound,
    )
    capture_encoders(parts)
    return found


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("slots", "context_tokens"), [(1, 8192), (MOST_SLOTS, LONGEST_CONTEXT)])
def test_graphs_fit_their_number_and_the_memory_that_the_plan_gives_them(
    slots: int, context_tokens: int
) -> None:
    found = captured(slots, context_tokens)

    kinds = {"decode", "feed", "sound", "picture", "speech", "flow", "vocoder"}
    assert {kind for kind, _ in found} == kinds
    assert len(found) < GRAPHS_LIMIT
    kept = sum(size for size, _ in found.values())
    pool = max(peak for _, peak in found.values())
    planned = GRAPHS_BYTES + slots * GRAPHS_SLOT_BYTES
    assert kept + pool < planned
    # Not so much more that slots are lost to it.
    assert planned < 1.5 * (kept + pool)
