"""Attention that reads slots where they lie: the kernel in Triton's interpreter, and what a step
copies."""

import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.long import IS_LONG, long_only
from tests.support.small_minicpmo import small_network
from tests.support.tiny_decoder import make, speak_units
from torch import Tensor
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from parley.models.minicpmo45 import quantize, trials
from parley.models.minicpmo45.audio_encoder.sound_encoder import LiveSteps
from parley.models.minicpmo45.llm.steps import LanguageSteps
from parley.models.minicpmo45.load_choice import LoadChoice, asked
from parley.models.minicpmo45.random_model import small_sizes
from parley.models.minicpmo45.runtime import fused, products, slot_attention
from parley.models.minicpmo45.runtime.attention import FusedAttention, SlotAttention
from parley.models.minicpmo45.runtime.caches import PaddedBatch, SlotCache, Span
from parley.models.minicpmo45.runtime.graphs import GraphRunner
from parley.settings import ModelSettings

SLOTS = 8


INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
"""Triton decides when it is imported whether kernels are interpreted, so they have a process of
their own."""

interpreted = pytest.mark.skipif(
    not INTERPRETED, reason="runs in the process of test_the_kernels_in_tritons_interpreter"
)


@pytest.fixture(autouse=True)
def _indices_of_older_tritons(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton 3.6 converts arrays of one number to integers, which NumPy refuses from 2.4 on."""
    if not INTERPRETED:
        return
    from triton.runtime import interpreter  # type: ignore[import-untyped]

    patch = interpreter._patch_lang_tensor

    def patched(tensor: Any, *scope: Any) -> None:
        patch(tensor, *scope)
        tensor.__index__ = lambda self: self.handle.data.item()

    monkeypatch.setattr(interpreter, "_patch_lang_tensor", patched)


@pytest.mark.timeout(300)
def test_the_kernels_in_tritons_interpreter() -> None:
    """Every test below that is marked `interpreted`."""
    if not slot_attention.is_installed():
        pytest.skip("the package triton is not installed")
    ran = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-n",
            "0",
            "-o",
            "addopts=",
            "--import-mode=importlib",
            "-k",
            "not tritons_interpreter and not copie and not mask_of_a_step",
            __file__,
        ],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        check=False,
    )

    assert ran.returncode == 0, ran.stdout[-4000:]
    summary = ran.stdout.strip().splitlines()[-1]
    assert " passed" in summary
    assert ("skipped" in summary) is not IS_LONG


def small_choice(dtype: torch.dtype) -> LoadChoice:
    """Of heads that the kernel takes."""
    sizes = small_sizes()
    flow = replace(sizes.flow, estimator_head_width=16)
    return asked(ModelSettings(), torch.device("cpu"), sizes.config, flow, dtype)


@interpreted
@pytest.mark.parametrize("is_eight_bit", [False, True], ids=["float32", "8 bits"])
def test_more_queries_than_a_block_holds_are_several_blocks(is_eight_bit: bool) -> None:
    """A unit with a picture; here one block and a half."""
    random = torch.Generator().manual_seed(1)
    cache = SlotCache(
        layers=1, rows=3, heads=2, capacity=300, head_dim=16,
        dtype=torch.float32, device=torch.device("cpu"), is_eight_bit=is_eight_bit,
    )  # fmt: skip
    cache._store(0, torch.arange(900), *torch.randn(2, 2, 900, 16, generator=random))
    query = torch.randn(2, 24, 8, 16, generator=random)
    turns = torch.tensor([[230], [3]]) + torch.arange(24)
    batch = PaddedBatch(torch.tensor([2, 0]), turns, turns, 300)

    found, wanted = (
        kernel.padded(0, query, kernel.prepared(batch, cache, 4), cache)
        for kernel in (SlotAttention(), FusedAttention())
    )

    torch.testing.assert_close(found, wanted)


def is_right(
    query: Tensor, keys: Tensor, values: Tensor, slots: Any, first: Any, last: Any
) -> None:
    """The kernel gives over all columns what the sum written out gives."""
    slots, first, last = (torch.as_tensor(one) for one in (slots, first, last))
    case = trials.Case(query, keys, values, slots, first, last, keys.shape[2])

    found = slot_attention.attend(**case._asdict())

    assert found.dtype is query.dtype
    assert torch.allclose(found.double(), trials.by_hand(case), atol=1e-5)


@interpreted
@pytest.mark.parametrize("rows", [1, 2, 17, 64])
@pytest.mark.parametrize("is_small", [False, True], ids=["float16", "fp8"])
def test_few_rows_are_multiplied_with_several_matrices_at_once(is_small: bool, rows: int) -> None:
    """The interpreter multiplies no bfloat16."""
    torch.manual_seed(rows)
    weights = [torch.randn(size, 512) * torch.rand(size, 1) for size in (64, 128, 20)]
    x = torch.randn(rows, 512).half()
    x[rows // 2] = 0.0
    packed = [products.Fp8Linear(weight) for weight in weights]
    matrices = [one.packed.data for one in packed] if is_small else [one.half() for one in weights]
    scales = [one.scales.data for one in packed] if is_small else []

    found = products.few_rows(x, matrices, scales)

    assert found.dtype is torch.float16
    wanted = torch.cat([one.unpacked() for one in packed] if is_small else weights)
    torch.testing.assert_close(found.float(), x.float() @ wanted.T, rtol=1e-2, atol=3e-2)
    assert not found[rows // 2].any()


@interpreted
@pytest.mark.parametrize("rows", [1, 17])
def test_few_rows_are_multiplied_with_a_head_in_eight_bits(rows: int) -> None:
    torch.manual_seed(rows)
    head = quantize.RowQuantizedLinear((torch.randn(40, 512) * torch.rand(40, 1)).half())
    x = torch.randn(rows, 512).half()

    found = products.few_rows(x, [head.packed.data], [head.scales.data])

    torch.testing.assert_close(found, head.in_pieces(x), rtol=1e-2, atol=3e-2)


@interpreted
def test_a_row_in_company_is_multiplied_as_alone() -> None:
    torch.manual_seed(0)
    matrix, x = torch.randn(40, 256).half(), torch.randn(7, 256).half()

    together = products.few_rows(x, [matrix], [])

    for row in range(7):
        alone = products.few_rows(x[row : row + 1], [matrix], [])
        assert torch.equal(alone[0], together[row])


@interpreted
@pytest.mark.parametrize("has_small_caches", [False, True])
def test_the_kernels_between_products_compute_what_pytorchs_operators_do(
    has_small_caches: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a model is loaded, but fewer tokens; with norms of queries and keys, and without.
    Rounding in between is the same to the bit where the interpreter rounds as a card."""
    monkeypatch.setattr(trials, "SLOTS", (0,))
    monkeypatch.setattr(trials, "UNIT_TOKENS", 2)
    trials.fused(small_choice(torch.float16), has_small_caches=has_small_caches)
    x, added, weight = torch.randn(3, 5, 96).half().unbind()
    gates, ups = torch.randn(5, 192).half().chunk(2, -1)

    total, normed = fused.add_norm(x, added, weight[0], 1e-6)

    assert torch.equal(total, x + added)
    assert torch.equal(normed, F.rms_norm(total, (96,), weight[0], 1e-6))
    assert torch.equal(fused.gate(gates, ups), F.silu(gates) * ups)


@interpreted
def test_a_matrix_in_e4m3_is_unpacked_with_the_scales_of_its_rows() -> None:
    torch.manual_seed(2)
    packed = products.Fp8Linear(torch.randn(3, 4200) * torch.rand(3, 1))

    found = products.unpacked_rows(packed.packed.data, packed.scales.data, torch.float16)

    assert torch.equal(found, packed.unpacked().half())


@interpreted
@pytest.mark.parametrize(("group", "rows"), [(32, 5), (128, 79), (64, 130), (128, 91)])
def test_rows_are_multiplied_with_tiles_of_four_bits_in_any_order(group: int, rows: int) -> None:
    torch.manual_seed(group)
    q = torch.randint(0, 16, (72, 256))
    scales, zeros = torch.rand(72, 256 // group), torch.randn(72, 256 // group)
    order = torch.randperm(1024)
    # (tiles of rows, tiles of columns, places in the tile), every place's number elsewhere in it.
    tiles = q.view(9, 8, 2, 128).transpose(1, 2).reshape(9, 2, 1024)
    halves = torch.empty_like(tiles)
    halves[..., order] = tiles
    packed = (halves[..., ::2] | halves[..., 1::2] << 4).to(torch.uint8)
    both = torch.stack([scales, zeros], -1).transpose(0, 1).contiguous()
    x = torch.randn(rows, 256)

    found = quantize.product_in_order(x, packed, both, order.int())

    wanted = quantize.Groups(q, scales, zeros).weight()
    torch.testing.assert_close(found, x @ wanted.T, rtol=1e-4, atol=1e-3)


@interpreted
@pytest.mark.parametrize("has_small_caches", [False, True])
def test_the_kernel_gives_what_attention_by_hand_gives(
    has_small_caches: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every use of it, as when a model is loaded, of fewer columns and tokens: shuffled slots,
    pages all over a pool, a mask, rows that end at the edges of blocks, NaN where no row looks."""
    chosen = small_choice(torch.float32)
    uses = [replace(use, tokens=min(2, use.tokens)) for use in trials.uses_of(chosen)]
    names = ["decode", "decode by row", "unit", "sound", "speech", "flow"]
    assert [use.name for use in uses] == names
    assert slot_attention.splits_of(1, uses[0].key_heads, 300) > 1
    monkeypatch.setattr(trials, "uses_of", lambda _: uses)
    monkeypatch.setattr(trials, "READS", (200,))
    monkeypatch.setattr(trials, "LONG_READS", 300)

    trials.attention(chosen, has_small_caches=has_small_caches)


@interpreted
def test_the_kernel_computes_in_the_queries_dtype_whatever_is_kept() -> None:
    """As the flow uses it: float32 over a history of 16 bits."""
    numbers = torch.Generator().manual_seed(6)
    query = torch.randn(1, 3, 2, 16, generator=numbers)
    keys, values = torch.randn(2, 2, 2, 90, 16, generator=numbers).half()

    is_right(query, keys, values, [1], [0], [[89] * 3])


@interpreted
def test_slots_may_be_a_column_of_a_table() -> None:
    """As the speech decoder has them: every number of a row next to the others."""
    numbers = torch.Generator().manual_seed(7)
    query = torch.randn(2, 1, 2, 16, generator=numbers)
    keys, values = torch.randn(2, 4, 2, 150, 16, generator=numbers)
    table = torch.tensor([[3, 5, 149], [1, 0, 70]])

    is_right(query, keys, values, table[:, 0], table[:, 1], table[:, 2:])


@interpreted
@long_only
@pytest.mark.parametrize("is_eight_bit", [False, True])
def test_the_speech_decoder_says_by_the_kernel_what_it_says_without(is_eight_bit: bool) -> None:
    spoken = []
    for attention in (FusedAttention(), SlotAttention(is_fused=True)):
        one_head = {"num_attention_heads": 1, "num_key_value_heads": 1}
        tts = make(None, slots=2, is_eight_bit=is_eight_bit, **one_head)
        tts.attention = attention
        tts.open(0, seed=1)
        spoken.append(speak_units(tts, tts.open(1, seed=2), 3, 2))

    assert spoken[0] == spoken[1]
    assert len(spoken[0][0]) >= 5


@interpreted
def test_rows_hear_by_the_kernel_what_they_hear_one_by_one() -> None:
    """Three of four slots, with different pasts, two chunks each."""
    heard = []
    for in_place in (False, True):
        encoder = small_network().apm
        encoder.layers = encoder.layers[:1]
        encoder.heads, encoder.head_dim = 1, 16
        for layer in encoder.layers:
            attention: Any = layer.self_attn
            attention.heads, attention.head_dim = 1, 16
        encoder.attention = SlotAttention() if in_place else FusedAttention()
        encoder.positions = 300
        cache = encoder.make_cache(4)
        numbers = torch.Generator().manual_seed(8)
        cache.keys.normal_(generator=numbers)
        cache.values.normal_(generator=numbers)
        cache.lengths = [7, 0, 90, 33]
        parts = []
        for _ in range(2):
            mel = torch.randn(3, 80, 40, generator=numbers)
            with torch.inference_mode():
                steps = LiveSteps(encoder, cache, GraphRunner())
                states, spans = steps.hear(mel, [3, 0, 2], trim=(1, 1))
            cache.commit(spans)
            parts.append(states)
        heard.append(torch.cat(parts, 1))

    assert torch.allclose(heard[0], heard[1], atol=1e-5)


def filled(llm: object) -> tuple[LanguageSteps, list[int]]:
    """Steps over eight slots that remember different numbers of positions."""
    cache = llm.make_cache(SLOTS, 700)  # type: ignore[attr-defined]
    numbers = torch.Generator().manual_seed(3)
    cache.keys.normal_(generator=numbers)
    cache.values.normal_(generator=numbers)
    cache.lengths = [30 + 80 * row for row in range(SLOTS)]
    steps = LanguageSteps(llm, cache, llm.make_rope(701), is_padded=True)  # type: ignore[attr-defined,arg-type]
    return steps, cache.lengths


def subsets() -> Iterator[tuple[int, ...]]:
    for count in range(1, SLOTS + 1):
        yield from itertools.combinations(range(SLOTS), count)


@interpreted
@pytest.mark.parametrize("rows", [(5,), (1, 6), (7, 2, 4)] if IS_LONG else [(7, 2, 4)])
def test_a_decode_step_by_the_kernel_equals_one_by_pytorch(rows: tuple[int, ...]) -> None:
    llm = small_network().llm
    found = []
    for attention in (FusedAttention(), SlotAttention(), SlotAttention(is_fused=True)):
        llm.attention = attention
        steps, lengths = filled(llm)
        with torch.inference_mode():
            hidden, _ = steps.decode([9] * len(rows), [Span(r, lengths[r], 1) for r in rows])
        found.append(torch.stack(list(hidden)))

    assert torch.allclose(found[0], found[1], atol=1e-5)
    assert torch.allclose(found[0], found[2], atol=1e-5)


@interpreted
def test_a_prefill_of_all_rows_may_be_several_blocks_of_each() -> None:
    """No graph holds such a step, and none names the rows."""
    llm = small_network().llm
    heads, key_heads = llm.config.num_attention_heads, llm.config.num_key_value_heads
    count = slot_attention.QUERIES // (heads // key_heads) + 4
    found = []
    for attention in (FusedAttention(), SlotAttention()):
        llm.attention = attention
        steps = LanguageSteps(llm, llm.make_cache(2, 300), llm.make_rope(301), is_padded=True)
        with torch.inference_mode():
            embeds = llm.embed(range(2 * count))
            found.append(steps.prefill(embeds, [Span(row, 0, count) for row in range(2)]))

    assert torch.allclose(found[0], found[1], atol=1e-5)


class Copies(TorchDispatchMode):
    """Bytes that were made from a cache and lie outside of it."""

    def __init__(self, *caches: Tensor) -> None:
        super().__init__()
        self._caches = {cache.untyped_storage().data_ptr() for cache in caches}
        self.nbytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        reads = any(self._is_cache(one) for one in args)
        is_attention = "scaled_dot_product" in str(func)
        for made in out if isinstance(out, tuple | list) else (out,):
            is_new = isinstance(made, Tensor) and not self._is_cache(made)
            if reads and is_new and not is_attention:
                self.nbytes += made.nbytes
        return out

    def _is_cache(self, one: object) -> bool:
        return isinstance(one, Tensor) and one.untyped_storage().data_ptr() in self._caches


def test_no_subset_of_eight_slots_is_copied_before_it_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # What the kernel computes is tested above; here counts what is made around it.
    monkeypatch.setattr(slot_attention, "attend", lambda query, *rest, **named: query)
    llm = small_network().llm
    llm.attention = SlotAttention()
    steps, lengths = filled(llm)

    copied = {}
    for rows in subsets():
        with torch.inference_mode(), Copies(steps._cache.keys, steps._cache.values) as copies:
            steps.decode([9] * len(rows), [Span(r, lengths[r], 1) for r in rows])
        copied[rows] = copies.nbytes

    assert len(copied) == 255
    assert set(copied.values()) == {0}


def test_the_mask_of_a_step_is_made_once_for_all_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    prepared = FusedAttention.prepared

    def counted(self, batch, cache, groups):
        made.append(groups)
        return prepared(self, batch, cache, groups)

    monkeypatch.setattr(FusedAttention, "prepared", counted)
    llm = small_network().llm
    llm.attention = FusedAttention()
    steps, lengths = filled(llm)

    with torch.inference_mode():
        steps.decode([9, 9], [Span(2, lengths[2], 1), Span(4, lengths[4], 1)])

    assert len(llm.model.layers) == 2
    assert len(made) == 1
