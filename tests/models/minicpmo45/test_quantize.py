"""Weights in fewer bits. int4 has kernels on a GPU only and is not tested here."""

from __future__ import annotations

import sys

import pytest
import torch
from tests.support.small_minicpmo import small_config, small_network

from parley.errors import SetupError
from parley.models.minicpmo45 import weights
from parley.models.minicpmo45.caches import Span
from parley.models.minicpmo45.quantize import (
    checked,
    planned_bytes,
    quantise,
    stored_bytes,
)


def needs_torchao() -> None:
    pytest.importorskip("torchao.quantization", reason="the extra `quantize` is not installed")


def states(llm) -> torch.Tensor:
    cache, rope = llm.make_cache(1, 32), llm.make_rope(32)
    with torch.inference_mode():
        return llm(llm.embed(torch.arange(24)), [Span(0, 0, 24)], cache, rope)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_int8_layers_say_nearly_the_same_and_take_what_was_planned():
    needs_torchao()
    llm = small_network().llm
    want = states(llm)
    layers = llm.model.layers
    before = stored_bytes(layers.parameters())
    shapes = {name: tuple(tensor.shape) for name, tensor in layers.state_dict().items()}

    quantise(layers, "int8")

    got = states(llm)
    assert not torch.equal(got, want)
    likeness = torch.nn.functional.cosine_similarity(got, want, dim=-1)
    assert float(likeness.min()) > 0.99
    assert stored_bytes(layers.parameters()) < before / 3
    assert stored_bytes(layers.parameters()) == planned_bytes(shapes, "int8", 4)


def test_planned_bytes_by_hand():
    shapes = {"q_proj.weight": (256, 512), "norm.weight": (256,)}

    assert planned_bytes(shapes, "none", 2) == 2 * (256 * 512 + 256)
    assert planned_bytes(shapes, "int8", 2) == 256 * 512 + 256 * 3 + 2 * 256
    # A scale and a zero for every 128 neighbours.
    assert planned_bytes(shapes, "int4", 2) == 256 * 512 // 2 + 256 * 4 * 4 + 2 * 256


def test_the_memory_plan_knows_quantised_layers():
    config = small_config()
    plain = weights.plan(config, slots=1, context_tokens=1000)

    small = weights.plan(config, slots=1, context_tokens=1000, quantize="int8", voice_bytes=5)

    assert small.weights_bytes < plain.weights_bytes
    assert small.loading_bytes == plain.loading_bytes + 5
    assert small.parts["vpm"] == plain.parts["vpm"]
    assert small.slot_bytes == plain.slot_bytes


def test_what_cannot_be_loaded_does_not_fit_however_small_it_becomes():
    plan = weights.plan(small_config(), slots=1, context_tokens=1, quantize="int4")

    assert not plan.fits(plan.loading_bytes - 1, headroom=0.0)


def test_int4_without_a_gpu_is_refused():
    with pytest.raises(SetupError, match="NVIDIA GPU"):
        checked("int4", device=torch.device("cpu"), dtype=torch.bfloat16)


def test_an_absent_library_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchao.quantization", None)

    with pytest.raises(SetupError, match="torchao, which is not installed") as caught:
        checked("int8", device=torch.device("cpu"), dtype=torch.bfloat16)

    assert "parley[quantize]" in caught.value.hint


def test_nothing_is_asked_of_a_library_where_nothing_is_quantised(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchao.quantization", None)

    assert checked("none", device=torch.device("cpu"), dtype=torch.float32) is None
