"""How many graphs a model captures at the published widths, and what they keep, without a card.

Everything that is captured runs once on tensors without memory. Depth is two layers per part where
it changes nothing: inputs and results of a graph do not depend on it, nor does what a layer needs
while it runs.
"""

from collections.abc import Callable, Hashable, Sequence

import pytest
import torch
from tests.support.peak import Peak
from tools.roofline.meter import Returned
from tools.roofline.steps import PaperModel
from torch import Tensor

from parley.cli.bench.gpu_parts import shallow
from parley.models.minicpmo45.config import make_config
from parley.models.minicpmo45.plan import GIB, GRAPHS_BYTES, GRAPHS_SLOT_BYTES, MOST_SLOTS
from parley.models.minicpmo45.random_model import full_sizes
from parley.models.minicpmo45.runtime.graphs import GRAPHS_LIMIT

LONGEST_CONTEXT = 31_744


@torch.inference_mode()
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
    paper.model._capture()
    paper.decoder.capture()
    paper.voice.capture()
    return found


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("slots", "context_tokens"), [(1, 8192), (MOST_SLOTS, LONGEST_CONTEXT)])
def test_graphs_fit_their_number_and_the_memory_that_the_plan_gives_them(
    slots: int, context_tokens: int
) -> None:
    found = captured(slots, context_tokens)

    kinds = {"choose", "decode", "feed", "sound", "picture", "speech", "flow", "vocoder"}
    assert {kind for kind, _ in found} == kinds
    assert len(found) < GRAPHS_LIMIT
    kept = sum(size for size, _ in found.values())
    pool = max(peak for _, peak in found.values())
    planned = GRAPHS_BYTES + slots * GRAPHS_SLOT_BYTES
    assert kept + pool < planned
    # Not so much more that slots are lost to it; a matrix in 4 or 8 bits, which is unpacked within
    # the step of a unit with a picture, is not counted here.
    assert planned < kept + pool + GIB // 8
