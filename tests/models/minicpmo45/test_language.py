"""The brain over slot caches: company, batches of fixed shape, gaps, and rotary positions."""

import pytest
import torch
from numpy.testing import assert_allclose
from tests.support.fake_capture import FakeCapture, InPlace
from tests.support.small_minicpmo import small_network

from parley.models.minicpmo45.llm.steps import LanguageSteps
from parley.models.minicpmo45.runtime import attention as runtime_attention
from parley.models.minicpmo45.runtime.attention import attending
from parley.models.minicpmo45.runtime.caches import RopeTable, SlotCache, Span
from parley.models.minicpmo45.runtime.graphs import GraphRunner
from parley.models.minicpmo45.runtime.pages import PagePool

CAPACITY = 96


@pytest.fixture(scope="module")
def llm():
    return small_network().llm


@pytest.fixture(autouse=True)
def _inference():
    with torch.inference_mode():
        yield


def fresh(llm, rows=4) -> tuple[SlotCache, RopeTable]:
    return llm.make_cache(rows, CAPACITY), llm.make_rope(CAPACITY)


def words(count: int, seed: int = 0) -> list[int]:
    return torch.randint(0, 256, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def feed(llm, cache, rope, row, ids):
    span = Span(row, cache.lengths[row], len(ids))
    hidden = llm(llm.embed(ids), [span], cache, rope)
    cache.commit([span])
    return hidden


@pytest.mark.parametrize("rows", [(0, 1, 2, 3), (2, 0), (3,), (1, 2, 3)])
def test_an_even_decode_step_equals_the_packed_one(llm, rows):
    packed, rope = fresh(llm)
    padded, _ = fresh(llm)
    for row in range(4):
        for cache in (packed, padded):
            feed(llm, cache, rope, row, words(3 + 7 * row, row))
    ids = words(len(rows), 9)
    spans = [Span(row, packed.lengths[row], 1) for row in rows]

    want = LanguageSteps(llm, packed, rope, is_padded=False).decode(ids, spans)
    got = LanguageSteps(llm, padded, rope, is_padded=True).decode(ids, spans)

    for mine, theirs in zip(got, want, strict=True):
        assert_allclose(mine, theirs, atol=2e-5, rtol=1e-4)
    for row in range(4):
        padded.lengths[row] = packed.lengths[row] = packed.lengths[row] + (row in rows)
        one_keys, other_keys = (
            one.lift(row, 0, one.lengths[row]).tensors[0] for one in (padded, packed)
        )
        assert_allclose(one_keys, other_keys, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("pool", [None, PagePool(24, 32, page_positions=16)], ids=["rows", "pages"])
@pytest.mark.parametrize("rows", [(0,), (3, 1), (0, 1, 3), (0, 1, 2, 3)])
def test_every_number_of_rows_decodes_by_a_graph(llm, monkeypatch, rows, pool):
    """Pages are taken after the capture."""
    monkeypatch.setattr(runtime_attention, "_Compared", lambda what: InPlace())
    capture = FakeCapture()
    graphs = GraphRunner("cpu", capture)
    cache, packed = llm.make_cache(4, CAPACITY, pool=pool), llm.make_cache(4, CAPACITY)
    rope = llm.make_rope(CAPACITY)
    ids = words(len(rows), 9)
    with attending(llm, InPlace()):
        steps = LanguageSteps(llm, cache, rope, graphs=graphs)
        steps.capture()
        graphs.seal()
        before = capture.replays
        for row in range(4):
            for one in (cache, packed):
                feed(llm, one, rope, row, words(3 + 7 * row, row))
        spans = [Span(row, cache.lengths[row], 1) for row in rows]

        got = steps.decode(ids, spans)

    assert capture.replays == before + 1
    assert graphs.refusals == {}
    want = LanguageSteps(llm, packed, rope, is_padded=False).decode(ids, spans)
    for mine, theirs in zip(got, want, strict=True):
        assert_allclose(mine, theirs, atol=2e-5, rtol=1e-4)


def test_an_even_prefill_equals_the_packed_one(llm):
    packed, rope = fresh(llm)
    padded, _ = fresh(llm)
    for cache in (packed, padded):
        feed(llm, cache, rope, 2, words(12))
    spans = [Span(2, 12, 11), Span(0, 0, 13)]
    embeds = llm.embed(words(24, 3))

    want = LanguageSteps(llm, packed, rope, is_padded=False).prefill(embeds, spans)
    got = LanguageSteps(llm, padded, rope, is_padded=True).prefill(embeds, spans)

    assert_allclose(got, want, atol=2e-5, rtol=1e-4)


def test_a_batch_that_is_padded_beyond_a_cache_equals_the_packed_one(llm):
    cache, rope = llm.make_cache(2, 20), llm.make_rope(20)
    feed(llm, cache, rope, 0, words(18))
    spans = [Span(0, 18, 2), Span(1, 0, 3)]
    embeds = llm.embed(words(5))

    got = LanguageSteps(llm, cache, rope, is_padded=True).prefill(embeds, spans)
    want = llm(embeds, spans, cache, rope)

    assert_allclose(got, want, atol=2e-5, rtol=1e-4)


def test_moving_keys_equals_having_rotated_them_for_the_new_place():
    rope = RopeTable(
        head_dim=32, base=1e6, positions=9000, device=torch.device("cpu"), rounds=False
    )
    keys = torch.randn(1, 1, 2, 5, 32, generator=torch.Generator().manual_seed(1))
    cache = SlotCache(
        layers=1,
        rows=1,
        heads=2,
        capacity=9000,
        head_dim=32,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )

    def rotated(start: int) -> torch.Tensor:
        positions = torch.arange(start, start + 5, dtype=torch.float64)
        steps = 1e6 ** (-torch.arange(0, 32, 2, dtype=torch.float64) / 32)
        angles = torch.cat([positions[:, None] * steps] * 2, -1)
        wide = keys[0, 0].double()
        turned = torch.cat([-wide[..., 16:], wide[..., :16]], -1)
        return wide * angles.cos() + turned * angles.sin()

    cache.paged(0).keys[0, :, 8000:8005] = rotated(8000).float()
    cache.move(0, 8000, 5, 17, rope)

    assert_allclose(cache.paged(0).keys[0, :, 17:22].double(), rotated(17), atol=2e-3, rtol=0)


def test_a_closed_gap_is_a_context_that_never_had_it_where_nothing_looked_at_it(llm):
    """With one layer, keys and values depend on their own token only, so the maths agree exactly:
    a slid cache gives the logits of a fresh prefill of what is left."""
    cache, rope = fresh(llm)
    ids = words(30)
    feed(llm, cache, rope, 0, ids)
    cache.drop(0, 5, 10, rope)
    left = [*ids[:5], *ids[15:]]
    feed(llm, cache, rope, 1, left)

    assert cache.lengths[0] == cache.lengths[1] == 20
    slid, fresh_keys = cache.paged(0).keys[:2, :, :20]
    assert_allclose(slid, fresh_keys, atol=1e-5, rtol=1e-4)
    assert torch.equal(*cache.paged(0).values[:2, :, :20])


def test_frequencies_may_be_rounded_as_the_public_demo_does():
    exact = RopeTable(head_dim=128, base=1e6, positions=4, device=torch.device("cpu"))
    rounded = RopeTable(
        head_dim=128, base=1e6, positions=4, device=torch.device("cpu"), rounds=True
    )

    assert exact.frequencies[1].item() == pytest.approx(0.8058, abs=1e-4)
    # model.md 9: 1.0, 0.8047, 0.6484, 0.5234
    assert rounded.frequencies[:4].tolist() == pytest.approx(
        [1.0, 0.8047, 0.6484, 0.5234], abs=1e-4
    )
