"""Caches in 8 bits: what they keep exactly, and how far the rest may be off."""

from types import SimpleNamespace

import pytest
import torch
from tests.contracts.conversations import unit, voice
from tests.support.small_minicpmo import small_model, small_network
from tests.support.small_talk import do, duplex
from torch import Tensor

from parley.engine.work import Finalize, StepUnit
from parley.models.minicpmo45.llm.steps import LanguageSteps
from parley.models.minicpmo45.load_choice import keeps_eight_bits
from parley.models.minicpmo45.runtime.caches import (
    RopeTable,
    SlotCache,
    Span,
    from_eight_bits,
    to_eight_bits,
)
from parley.settings import ModelSettings

LOGITS_TOLERANCE = 0.02
"""Relative distance of logits over caches in 8 bits from those over float32."""


def distance(found: Tensor, wanted: Tensor) -> float:
    return float((found - wanted).norm() / wanted.norm())


def cache(rows: int = 2, *, is_eight_bit: bool = True) -> SlotCache:
    return SlotCache(
        layers=2, rows=rows, heads=3, capacity=64, head_dim=16, dtype=torch.float32,
        device=torch.device("cpu"), is_eight_bit=is_eight_bit,
    )  # fmt: skip


def filled(kept: SlotCache, row: int, count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Write random vectors of very different lengths; gives keys and values of layer 1."""
    numbers = torch.Generator().manual_seed(seed)
    span = Span(row, 0, count)
    lengths = torch.logspace(-3, 3, count)[:, None]
    for layer in range(kept.layers):
        keys, values = torch.randn(2, 3, count, 16, generator=numbers) * lengths
        kept.write(layer, span, keys, values)
    kept.commit([span])
    return keys, values


def test_a_number_is_off_by_half_a_scale_at_most():
    vectors = torch.randn(50, 16, generator=torch.Generator().manual_seed(1))
    vectors *= torch.logspace(-3, 4, 50)[:, None]
    vectors[7] = 0.0

    numbers, scales = to_eight_bits(vectors)

    off = (from_eight_bits(numbers, scales, torch.float32) - vectors).abs().amax(-1)
    assert (off <= 0.5 * scales.float() * 1.001 + 1e-9).all()
    assert (off <= vectors.abs().amax(-1) / 250 + 1e-6).all()
    assert not off[7]


def test_what_is_read_is_what_was_written_within_the_rounding_of_each_vector():
    kept = cache()

    keys, values = filled(kept, 1, 40)

    for found, given in zip(kept.view(1, 1, 40), (keys, values), strict=True):
        assert ((found - given).abs().amax(-1) <= given.abs().amax(-1) / 250).all()
    assert kept.nbytes < 0.32 * cache(is_eight_bit=False).nbytes


def test_keys_that_moved_often_are_still_near():
    """A key is moved each time the window drops something in front of it, and rounded each time."""
    rope = RopeTable(head_dim=16, base=10000.0, positions=64, device=torch.device("cpu"))
    small, full = cache(), cache(is_eight_bit=False)
    for one in (small, full):
        filled(one, 0, 50)
        for _ in range(20):
            one.drop(0, 4, 2, rope)

    found, wanted = small.view(1, 0, 10)[0], full.view(1, 0, 10)[0]

    assert full.lengths == small.lengths == [10, 0]
    off = (found - wanted).norm(dim=-1) / wanted.norm(dim=-1)
    assert off.mean() < 0.03
    assert off.max() < 0.08


def test_logits_stay_near_and_a_row_in_company_is_like_the_row_alone():
    llm = small_network().llm
    numbers = torch.Generator().manual_seed(3)
    ids = torch.randint(0, 256, (3, 60), generator=numbers)
    logits: dict[str, Tensor] = {}
    for name, is_eight_bit, rows in (("full", False, [0, 1, 2]), ("small", True, [0, 1, 2]),
                                     ("alone", True, [1])):  # fmt: skip
        caches = llm.make_cache(3, 80, is_eight_bit=is_eight_bit)
        steps = LanguageSteps(llm, caches, llm.make_rope(80))
        with torch.inference_mode():
            for row in rows:
                span = Span(row, 0, 60)
                steps.prefill(llm.embed(ids[row]), [span])
                caches.commit([span])
            spans = [Span(row, 60, 1) for row in rows]
            logits[name] = torch.stack(list(steps.decode([5 + row for row in rows], spans)[1]))

    assert 0 < distance(logits["small"], logits["full"]) < LOGITS_TOLERANCE
    # Sums of one row and of three differ in their last bits, with any cache.
    assert torch.allclose(logits["alone"][0], logits["small"][1], atol=1e-3)


def test_a_conversation_listens_answers_slides_and_returns_to_a_checkpoint():
    """Everything that touches the caches, with the model's own classes."""
    model = small_model(slots=2, has_small_caches=True, context_tokens=600)
    duplex(model)

    def answered() -> object:
        do(model, unit(voice(1.1)))
        result = do(model, StepUnit()).result
        do(model, Finalize())
        return result

    answered()
    checkpoint = model.checkpoint(0)
    first = [answered() for _ in range(2)]
    length = model.context_tokens(0)
    model.roll_back(checkpoint)
    again = [answered() for _ in range(2)]

    assert again == first
    assert model.context_tokens(0) == length
    assert model.context.keys.dtype is model.audio_cache.keys.dtype is torch.int8
    model.unload()


@pytest.mark.parametrize(
    ("chosen", "gibibytes", "wanted"),
    [("auto", 24, True), ("auto", 48, False), ("model", 12, False), ("int8", 80, True)],
)
def test_small_cards_keep_small_caches_unless_told_otherwise(
    chosen, gibibytes, wanted, monkeypatch
):
    card = SimpleNamespace(total_memory=gibibytes * 2**30)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: card)

    found = keeps_eight_bits(ModelSettings(kv_cache_dtype=chosen), torch.device("cuda:0"))

    assert found is wanted


def test_on_a_cpu_auto_keeps_them_as_the_model_computes():
    assert not keeps_eight_bits(ModelSettings(), torch.device("cpu"))
