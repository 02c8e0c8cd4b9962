"""Weights in fewer bits, packed while they are read. The kernels on a GPU are not tried here."""

import itertools
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from tests.support.peak import Peak
from tests.support.small_minicpmo import CONFIG
from tests.support.tiny_checkpoint import write_small

from parley.errors import SetupError
from parley.models.minicpmo45 import ladder, quantize, trials, weights
from parley.models.minicpmo45.config import make_config
from parley.models.minicpmo45.load_choice import LoadChoice
from parley.models.minicpmo45.plan import MemoryPlan, plan_of
from parley.models.minicpmo45.quantize import (
    Int4Linear,
    Kind,
    RowQuantizedEmbedding,
    RowQuantizedLinear,
    checked,
    grouped,
    stored_bytes,
    unpack,
)
from parley.models.minicpmo45.runtime.caches import Span
from parley.models.minicpmo45.runtime.fast_paths import FastPathFailed, FastPaths
from parley.models.minicpmo45.runtime.products import FEW_ROWS, Fp8Linear, tile_of
from parley.settings import ModelSettings


def states(llm, tokens: int = 24, rows: int = 1) -> torch.Tensor:
    cache, rope = llm.make_cache(rows, 32), llm.make_rope(32)
    with torch.inference_mode():
        ids = torch.arange(tokens).repeat(rows)
        return llm(llm.embed(ids), [Span(row, 0, tokens) for row in range(rows)], cache, rope)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("small")
    write_small(folder, dtype=torch.float32)
    return folder


def loaded(folder, kind: Kind) -> weights.Network:
    return weights.load(weights.build(make_config(CONFIG)), folder, quantize=kind)


@pytest.mark.parametrize(("kind", "least"), [("int8", 0.999), ("fp8", 0.99), ("int4", 0.9)])
def test_packed_layers_say_nearly_the_same_and_take_what_was_planned(checkpoint, kind, least):
    plain, small = loaded(checkpoint, "none").llm, loaded(checkpoint, kind).llm

    likeness = torch.nn.functional.cosine_similarity(states(small), states(plain), dim=-1)

    assert float(likeness.min()) > least
    assert not torch.equal(states(small), states(plain))
    if kind != "int4":  # whose shapes are another device's
        planned = weights.build(make_config(CONFIG))
        weights.pack_without_memory(planned, kind)
        wanted = stored_bytes(planned.llm.model.layers.parameters())
        assert stored_bytes(small.model.layers.parameters()) == wanted
    assert torch.equal(small.lm_head.weight, plain.lm_head.weight)


@pytest.mark.parametrize("kind", ["int8", "int4"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_packed_row_in_company_equals_the_row_alone(kind, dtype):
    torch.manual_seed(0)
    weight = torch.randn(64, 256).to(dtype)
    layer = RowQuantizedLinear(weight) if kind == "int8" else Int4Linear(grouped(weight), dtype)
    x = torch.randn(7, 256).to(dtype)

    together = layer(x)

    for number in range(7):
        assert torch.equal(layer(x[number : number + 1])[0], together[number])


def test_int4_multiplies_with_the_weights_that_its_groups_stand_for():
    torch.manual_seed(0)
    weight = torch.randn(32, 256)
    groups = grouped(weight)
    x = torch.randn(5, 256)

    found = Int4Linear(groups, torch.float32)(x)

    assert torch.allclose(found, x @ groups.weight().T, atol=1e-4)
    # Half a step of the coarsest group is the most that a weight can be off.
    assert float((groups.weight() - weight).abs().max()) <= float(groups.scales.max()) * 0.501


@pytest.fixture
def on_a_card(monkeypatch: pytest.MonkeyPatch) -> Int4Linear:
    """A layer as on a card: few rows are multiplied by PyTorch, many by our kernel, which cannot be
    built."""

    def unbuildable(*given: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("Failed to find C compiler")

    monkeypatch.setattr(
        torch, "_weight_int4pack_mm", torch._weight_int4pack_mm_for_cpu, raising=False
    )
    monkeypatch.setattr(quantize, "product_of_tiles", unbuildable)
    torch.manual_seed(0)
    layer = Int4Linear(grouped(torch.randn(32, 256)), torch.float32)
    layer.is_on_cpu, layer.has_tiles = False, True
    return layer


def test_int4_without_our_kernels_is_unpacked_for_many_rows_only(on_a_card):
    x = torch.randn(FEW_ROWS + 1, 256)
    wanted = x @ on_a_card.unpacked().T
    with pytest.raises(FastPathFailed, match="C compiler") as caught:
        on_a_card(x)

    unpack(torch.nn.Sequential(on_a_card), caught.value.part)

    assert torch.allclose(on_a_card(x), wanted, atol=1e-4)
    assert not on_a_card.is_plain
    assert torch.allclose(on_a_card(x[:FEW_ROWS]), wanted[:FEW_ROWS], atol=1e-4)


def test_int4_kernels_that_cannot_be_built_leave_pytorchs_product_in_use(monkeypatch):
    def unbuildable(*given: object) -> None:
        raise RuntimeError("Failed to find C compiler")

    monkeypatch.setattr(trials, "int4", lambda *given: None)
    monkeypatch.setattr(trials, "int4_kernels", unbuildable)
    card = torch.device("cuda", 0)
    chosen = LoadChoice(ModelSettings(), card, make_config(CONFIG), kind="int4")
    paths = FastPaths()

    assert ladder._unpacks(chosen, paths) == ("int4_kernels",)

    assert paths.in_words()["int4"] == "fast"
    assert paths.in_words()["int4_kernels"] == "plain: RuntimeError: Failed to find C compiler"


def test_the_trial_compiles_every_program_that_a_product_in_four_bits_may_need() -> None:
    def programs(rows: Iterable[int], outs: Iterable[int]) -> set[tuple[int, int, int, int]]:
        found = set()
        for count, out in itertools.product(rows, outs):
            block, more = quantize.row_blocks(count)
            blocks = -(-count // (block + more))
            found.add((block, more, *quantize.tile_outs(out, blocks, is_split=more > 0)))
        return found

    tried = [rows for rows in trials.INT4_ROWS if rows > FEW_ROWS]
    needed = programs(range(FEW_ROWS + 1, 2048), (1024, 4096, 6144, 12288, 24576))
    assert programs(tried, [trials.INT4_SHAPE[0]]) == needed


@pytest.mark.parametrize(
    ("trial", "layer", "published"),
    [("fp8", "Fp8Linear", (4096, 6144, 24576)), ("int4_kernels", "RowQuantizedLinear", (151748,))],
)
def test_the_trial_compares_every_program_of_few_rows(monkeypatch, trial, layer, published) -> None:
    tried, made = set(), getattr(trials, layer)

    def noted(weight: torch.Tensor) -> torch.nn.Module:
        tried.add(tile_of(len(weight), 16, is_small=True))
        return made(weight)

    monkeypatch.setattr(trials, layer, noted)

    getattr(trials, trial)(torch.device("cpu"), torch.bfloat16)

    assert tried == {tile_of(outs, 16, is_small=True) for outs in published}


def test_fp8_multiplies_with_the_weights_it_stands_for():
    torch.manual_seed(0)
    weight = torch.randn(32, 256) * torch.rand(32, 1)
    weight[5] = 0.0
    layer = Fp8Linear(weight)
    x = torch.randn(5, 256) * torch.tensor([1e-3, 1.0, 1e4, 0.0, 1.0])[:, None]

    found = layer(x)

    assert torch.allclose(found, x @ layer.unpacked().T, rtol=1e-3, atol=1e-4)
    # Three bits of mantissa: a number is off by a sixteenth at most, small ones by a fixed step.
    step = layer.scales * 2.0**-9
    assert bool(((layer.unpacked() - weight).abs() <= weight.abs() / 16 + step).all())
    assert not found[3].any()
    assert not found[:, 5].any()


def test_something_that_is_not_a_number_stays_in_its_row():
    layer = Fp8Linear(torch.randn(32, 256))
    x = torch.randn(3, 256)
    x[1, 7] = torch.nan

    found = layer(x)

    assert bool(found[1].isnan().all())
    assert bool(found[[0, 2]].isfinite().all())


def test_the_smallest_model_keeps_embeddings_and_head_in_eight_bits(checkpoint):
    plain, small = loaded(checkpoint, "none").llm, loaded(checkpoint, "smallest").llm
    four = loaded(checkpoint, "int4").llm
    ids = torch.arange(24)

    assert isinstance(small.model.embed_tokens, RowQuantizedEmbedding)
    assert isinstance(small.lm_head, RowQuantizedLinear)
    # A number is off by half a step of its row at most.
    rows = plain.embed(ids)
    step = rows.abs().amax(1, keepdim=True) / 127
    assert bool(((small.embed(ids) - rows).abs() <= 0.51 * step).all())
    likeness = torch.nn.functional.cosine_similarity(states(small), states(four), dim=-1)
    assert float(likeness.min()) > 0.99


def test_a_matrix_that_is_unpacked_in_pieces_multiplies_alike(monkeypatch):
    monkeypatch.setattr(quantize, "_UNPACKED_ROWS", 24)
    torch.manual_seed(0)
    layer, x = RowQuantizedLinear(torch.randn(64, 256)), torch.randn(5, 256)

    assert torch.allclose(layer.in_pieces(x), layer(x), atol=1e-4)


def planned(config: Any, kind: Kind = "none", dtype: torch.dtype = torch.bfloat16) -> MemoryPlan:
    settings = ModelSettings(random_weights=True)
    return plan_of(LoadChoice(settings, torch.device("cpu"), config, dtype=dtype, kind=kind))


def test_loading_never_holds_more_than_the_result_and_one_matrix():
    raw = {**CONFIG, "hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 12}
    raw["tts_config"] = {**CONFIG["tts_config"], "llm_dim": 256}
    config = make_config(raw)
    plan, plain = planned(config, "int4", torch.float32), planned(config, dtype=torch.float32)
    vocoder = plan.parts["vocoder"]

    with Peak() as held:
        network = weights.build(config)
        weights.randomise(network, device="cpu", dtype=torch.float32, quantize="int4")

    assert held.most < plain.weights_bytes - vocoder
    assert held.most <= (plan.loading_bytes - vocoder) * 1.05


def test_bytes_of_a_packed_matrix_by_hand():
    weight = torch.empty(256, 512, dtype=torch.bfloat16, device="meta")

    def packed(kind: Kind) -> int:
        module = quantize.packed(weight, kind)
        assert module is not None
        return stored_bytes(module.parameters())

    assert packed("int8") == 256 * 512 + 256 * 2
    assert packed("fp8") == 256 * 512 + 256 * 4
    # A scale and a zero for every 128 neighbours.
    assert packed("int4") == 256 * 512 // 2 + 256 * 4 * 4


def test_int8_on_a_gpu_is_refused_because_it_would_be_slower():
    with pytest.raises(SetupError, match="slower than bfloat16 on a GPU") as caught:
        checked("int8", device=torch.device("cuda"), dtype=torch.bfloat16)

    assert "int4" in caught.value.hint


@pytest.mark.parametrize("kind", ["int4", "fp8"])
def test_small_weights_on_a_gpu_need_bfloat16(kind, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))

    with pytest.raises(SetupError, match=f"{kind} weights on a GPU need bfloat16"):
        checked(kind, device=torch.device("cuda"), dtype=torch.float32)


def test_fp8_on_a_card_that_cannot_multiply_it_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 6))

    with pytest.raises(SetupError, match=r"8\.9 or higher, this card has 8\.6"):
        checked("fp8", device=torch.device("cuda"), dtype=torch.bfloat16)
