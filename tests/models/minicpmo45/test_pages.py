"""The block table: conversations take pages as they grow, and say bit for bit what they say without
it."""

import itertools
import random
from typing import Any

import numpy as np
import pytest
import torch
from tests.contracts.conversations import Cast, Outcome, Style, closing
from tests.support.fake_capture import FakeCapture
from tests.support.long import long_only
from tests.support.small_minicpmo import small_model
from tests.support.small_talk import together

from parley.engine.context import ContextLedger
from parley.engine.segments import Audio, Mark, Marker, Text
from parley.engine.work import Ending, Finalize, Generate, Prefill, StartSession, StepUnit, Window
from parley.errors import ContextFull
from parley.media.pcm import Pcm
from parley.models.minicpmo45 import stages
from parley.models.minicpmo45.model import MiniCPMO45
from parley.models.minicpmo45.runtime.caches import RopeTable, SlotCache, Span
from parley.models.minicpmo45.runtime.pages import RESERVED, PagePool, PageTable

pytestmark = pytest.mark.usefixtures("voices_are_waited_for")

PAGE = 16
CONTEXT = 1000
WIDTH = -(-(CONTEXT + 1024) // PAGE)
"""Pages of a row at its longest."""


@pytest.fixture
def is_scattered(monkeypatch: pytest.MonkeyPatch) -> None:
    """No page follows its predecessor, as after a day of conversations."""
    chosen = random.Random(3)

    def anywhere(self: PageTable, held: list[int]) -> int:
        free = [page for page in sorted(self._free) if not held or page != held[-1] + 1]
        page = chosen.choice(free)
        self._free.remove(page)
        return page

    monkeypatch.setattr(PageTable, "_next", anywhere)


def pooled(slots: int = 3, *, share: int = 400, spare: int = 40, **options: Any) -> MiniCPMO45:
    """A small model whose rows share a pool."""
    pages = WIDTH + (slots - 1) * -(-share // PAGE) + spare
    pool = PagePool(pages, share, page_positions=PAGE)
    return small_model(slots=slots, context_tokens=CONTEXT, pool=pool, **options)


def assert_same_bits(mine: list[Outcome], theirs: list[Outcome]) -> None:
    assert len(mine) == len(theirs)
    for found, wanted in zip(mine, theirs, strict=True):
        assert found.text == wanted.text
        assert np.array_equal(found.samples, wanted.samples)


# -------------------------------------------------------------------------------- bookkeeping


@pytest.mark.parametrize("seed", range(20))
def test_no_page_has_two_rows_and_shares_are_kept(seed: int) -> None:
    chance = random.Random(seed)
    rows, capacity, share = 6, 900, 130
    pool = PagePool(57 + 5 * 9 + chance.randrange(20), share, page_positions=PAGE)
    table = PageTable(pool, rows=rows, capacity=capacity)
    lengths = [0] * rows
    for _ in range(400):
        row = chance.randrange(rows)
        reach = table.reach(row)
        assert reach >= share
        wanted = chance.choice([chance.randrange(1, capacity + 1), lengths[row] + 5])
        wanted = min(wanted, capacity)
        if chance.random() < 0.4:
            lengths[row] = min(lengths[row], wanted)
            table.release(row, lengths[row])
        elif wanted <= reach:
            table.reserve(row, wanted)
            lengths[row] = max(lengths[row], wanted)
        else:
            before = [list(held) for held in table.held]
            with pytest.raises(ContextFull):
                table.reserve(row, wanted)
            assert table.held == before
        held = [page for pages in table.held for page in pages]
        assert len(held) == len(set(held))
        assert len(held) + table.free == pool.pages
        assert all(RESERVED <= page < RESERVED + pool.pages for page in held)
        assert all(
            len(pages) * PAGE >= length for pages, length in zip(table.held, lengths, strict=True)
        )


def test_a_row_takes_no_page_that_another_one_is_sure_of() -> None:
    table = PageTable(PagePool(12 + 8, 64, page_positions=PAGE), rows=3, capacity=192)

    table.reserve(0, 192)
    assert table.reach(1) == 64
    with pytest.raises(ContextFull) as caught:
        table.reserve(1, 65)

    assert (caught.value.needed, caught.value.limit) == (65, 64)
    table.reserve(1, 64)
    table.reserve(2, 64)
    table.release(0, 100)
    assert table.reach(2) == 64 + 5 * PAGE


def test_a_pool_that_keeps_no_promise_is_refused() -> None:
    with pytest.raises(ValueError, match="3 rows need 20 pages, the pool has 19"):
        PageTable(PagePool(19, 64, page_positions=PAGE), rows=3, capacity=192)


# ------------------------------------------------------------------------------------- caches


def caches(*, is_eight_bit: bool) -> tuple[SlotCache, SlotCache]:
    """One with a pool and one without."""
    made = [
        SlotCache(
            layers=2, rows=3, heads=2, capacity=200, head_dim=16, dtype=torch.float32,
            device=torch.device("cpu"), is_eight_bit=is_eight_bit, pool=pool,
        )
        for pool in (PagePool(40, 100, page_positions=PAGE), None)
    ]  # fmt: skip
    return made[0], made[1]


@pytest.mark.parametrize("is_eight_bit", [False, True])
@pytest.mark.usefixtures("is_scattered")
def test_a_paged_cache_remembers_what_a_plain_one_does(is_eight_bit: bool) -> None:
    rope = RopeTable(head_dim=16, base=1e4, positions=200, device=torch.device("cpu"))
    numbers = torch.Generator().manual_seed(1)
    chance = random.Random(5)
    both = caches(is_eight_bit=is_eight_bit)
    for _ in range(120):
        row = chance.randrange(3)
        length = both[0].lengths[row]
        match chance.randrange(4):
            case 0 if length > 20:
                start = chance.randrange(5)
                for one in both:
                    one.drop(row, start, 9, rope)
            case 1 if length > 5:
                for one in both:
                    one.truncate(row, length - 5)
            case 2 if length:
                for one in both:
                    checkpoint = one.checkpoint(row, length)
                    one.empty(row)
                    one.roll_back(row, checkpoint)
            case _:
                span = Span(row, length, chance.randrange(1, 30))
                if span.end > min(200, both[0].reach(row)):
                    continue
                given = torch.randn(2, 2, 2, span.count, 16, generator=numbers)
                for one in both:
                    one.reserve(row, span.end)
                    for layer in range(2):
                        one.write(layer, span, *given[layer])
                    one.commit([span])
        for layer in range(2):
            for mine, theirs in zip(
                both[0].view(layer, row, both[0].lengths[row]),
                both[1].view(layer, row, both[1].lengths[row]),
                strict=True,
            ):
                assert torch.equal(mine, theirs)
    assert both[0].pages is not None
    assert any(b - a != 1 for pages in both[0].pages.held for a, b in itertools.pairwise(pages))


def test_a_page_that_was_anothers_holds_nothing_of_it() -> None:
    cache, _ = caches(is_eight_bit=False)
    cache.reserve(0, 100)
    cache.keys.fill_(torch.nan)
    cache.truncate(0, 0)

    cache.reserve(1, 100)

    assert torch.equal(cache.view(0, 1, 100)[0], torch.zeros(2, 100, 16))


# --------------------------------------------------------------------------------- conversations


@pytest.mark.usefixtures("is_scattered")
@pytest.mark.parametrize("has_small_caches", [False, True])
def test_conversations_in_pages_say_the_same_bits(has_small_caches: bool) -> None:
    style = Style(max_new_tokens=12)
    parts = [(style.chat, style.turns, style.units)[row](seed=20 + row) for row in range(3)]
    delays = {row: 5 * row for row in range(3)}
    said = []
    for model in (
        small_model(slots=3, context_tokens=CONTEXT, has_small_caches=has_small_caches),
        pooled(has_small_caches=has_small_caches),
    ):
        with closing(model):
            said.append(Cast(model).play_together(dict(enumerate(parts)), delays=delays))
        for row in range(3):
            model.close(row)
        if model.context.pages is not None:
            assert model.context.pages.free == model.context.keys.shape[2] // PAGE - RESERVED
        model.unload()

    for row, outcomes in said[0].items():
        assert_same_bits(said[1][row], outcomes)


@long_only
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("is_scattered")
def test_captured_steps_over_pages_say_what_they_say_over_rows() -> None:
    style = Style(max_new_tokens=12)
    parts = [(style.chat, style.turns, style.units)[row](seed=20 + row) for row in range(3)]
    said = []
    for make in (small_model, pooled):
        options: dict[str, Any] = {"context_tokens": CONTEXT} if make is small_model else {}
        capture = FakeCapture()
        model = make(slots=3, capture=capture, **options)
        model.warm_up()
        assert model.graphs.refusals == {}
        before = capture.replays
        with closing(model):
            said.append(Cast(model).play_together(dict(enumerate(parts))))
        assert capture.replays > before + 50
        model.unload()

    for row, outcomes in said[0].items():
        assert_same_bits(said[1][row], outcomes)


def opened(model: MiniCPMO45, row: int, window: Window | None = None, mode: Any = "chat") -> None:
    job = model.start(row, StartSession(mode, speak=False, seed=1, window=window or Window()))
    assert job.stage is None


def fed(model: MiniCPMO45, row: int, words: str) -> None:
    text = (Marker(Mark.TURN_START, "user"), Text(words), Marker(Mark.TURN_END, "user"))
    together(model, [model.start(row, Prefill(text))])


def test_a_long_conversation_is_refused_before_another_one_loses_its_share() -> None:
    model = pooled(slots=2, share=400, spare=0)
    opened(model, 0)
    opened(model, 1)
    # The first takes all that there is beyond the second one's share.
    fed(model, 0, "a" * 900)
    fed(model, 1, "b" * 100)

    with pytest.raises(ContextFull) as caught:
        fed(model, 1, "b" * 900)

    assert model.context_tokens(1) < 300
    assert caught.value.limit is not None
    fed(model, 1, "b" * 20)
    model.close(0)
    fed(model, 1, "b" * 600)
    assert model.context_tokens(1) > 700
    model.unload()


def test_answers_that_outgrow_the_memory_end_at_a_limit_and_nobody_fails() -> None:
    model = pooled(slots=3, share=400, spare=0)
    for row in range(3):
        opened(model, row)
        fed(model, row, "a" * 300)
    ask = Generate(max_new_tokens=1000, do_sample=False, speak=False)

    results = together(model, [model.start(row, ask) for row in range(3)])

    # Whatever random weights say, they never end by themselves.
    assert [result.ending for result in results] == [Ending.LIMIT] * 3
    pages = model.context_pages
    assert pages is not None
    assert pages[1] == 0
    # What each was sure of, each has had.
    assert all(model.context_tokens(row) >= 400 for row in range(3))
    assert model.context_tokens(0) + model.context_tokens(1) + model.context_tokens(2) > 2400
    model.unload()


def test_a_call_forgets_when_others_take_the_memory_instead_of_ending() -> None:
    model = pooled(slots=2, share=600, spare=0)
    opened(model, 0, Window("basic", high_tokens=900, low_tokens=700), mode="duplex")
    unit = Prefill((Marker(Mark.UNIT), Audio(Pcm.silence(16_000, 16_000), "live")))

    def talked() -> int:
        for work in (unit, StepUnit(), Finalize()):
            together(model, [model.start(0, work)])
        return model.context_tokens(0)

    while talked() < 800:
        pass
    # Between two units another one takes all that it is not sure of, as a long answer may.
    model.context.reserve(1, model.context.reach(1))

    lengths = [talked() for _ in range(20)]

    assert lengths[0] < 600
    assert min(lengths) > 250
    model.unload()


def test_a_unit_has_room_for_its_answer_whatever_others_take_meanwhile() -> None:
    model = pooled(slots=2, share=PAGE, spare=0)
    opened(model, 0, mode="duplex")
    opened(model, 1)
    unit = Prefill((Marker(Mark.UNIT), Audio(Pcm.silence(16_000, 16_000), "live")))
    for _ in range(10):
        together(model, [model.start(0, unit)])
        # Whatever there is, another row takes while this one answers.
        taken = model.context.reach(1)
        model.context.reserve(1, taken)
        together(model, [model.start(0, StepUnit())])
        together(model, [model.start(0, Finalize())])
        model.context.release(1)

    assert model.context_tokens(0) > 100
    model.unload()


def test_a_window_slides_earlier_where_memory_is_short() -> None:
    ledger = ContextLedger(8192, Window("basic"))
    for _ in range(100):
        ledger.append(70)
        ledger.end_entry()
    assert ledger.plan() is None

    ledger.room_tokens = 4192

    gone = ledger.plan()
    assert gone is not None
    # The low mark is as far below the high one as ever: three quarters.
    assert 2930 < gone.length_tokens <= 3000


def test_a_window_that_cannot_be_rewritten_leaves_the_context_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What dropped units said goes through the model, which may fail."""
    model = pooled(slots=1)
    opened(model, 0)
    fed(model, 0, "a context of some words")
    before = model.context.lift(0, 0, model.context.lengths[0])
    head = 6
    plan = type("Plan", (), {})()
    plan.keep = ((0, head), (12, before.length))
    plan.length_tokens = before.length

    def fails(*_: Any, **__: Any) -> None:
        model.context.keys[:, :, model.context._columns(0, head, head + 4)] = 7.0
        raise RuntimeError("the card is gone")

    monkeypatch.setattr(model.network.llm, "forward", fails)
    with pytest.raises(RuntimeError):
        stages._rewrite(model, 0, plan, [1, 2])

    after = model.context.lift(0, 0, model.context.lengths[0])
    assert all(map(torch.equal, before.tensors, after.tensors))
    model.unload()
