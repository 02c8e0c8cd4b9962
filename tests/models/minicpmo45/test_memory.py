"""The memory table, against the page that prints it, and cards with a limit.

Nothing here has run on a card: what steps take is the product's own upper estimate.
"""

import functools
from pathlib import Path

import pytest
import torch
from tests.support.small_minicpmo import small_model

from parley.engine.segments import Mark, Marker, Text
from parley.engine.work import Prefill, Stage, StartSession
from parley.models.minicpmo45 import stages
from parley.models.minicpmo45.config import full_size_config
from parley.models.minicpmo45.load_choice import LoadChoice
from parley.models.minicpmo45.measuring import SPARE_SHARE
from parley.models.minicpmo45.plan import GIB, SHARE_TOKENS, MemoryPlan, plan_of
from parley.models.minicpmo45.quantize import Kind
from parley.models.minicpmo45.runtime.attention import SlotAttention
from parley.settings import ModelSettings

CONFIG = full_size_config()


@functools.cache
def planned(
    kind: Kind,
    context_tokens: int = 8192,
    *,
    has_small_caches: bool = False,
    is_paged: bool = False,
) -> MemoryPlan:
    slots = "auto" if is_paged else 1
    settings = ModelSettings(random_weights=True, context_tokens=context_tokens, slots=slots)
    chosen = LoadChoice(
        settings,
        torch.device("cuda"),
        CONFIG,
        kind=kind,
        has_small_caches=has_small_caches,
        attention=SlotAttention(),
    )
    return plan_of(chosen)


def free_of(gigabytes: int) -> int:
    """Bytes of a card once a driver and a desktop have taken their share."""
    return gigabytes * 10**9 - GIB // 2


def test_a_conversation_takes_what_the_page_says():
    """GiB of a slot at 8,192 tokens, part by part; the page prints these."""
    budget = planned("none")

    parts = {name: round(size / GIB, 2) for name, size in budget.per_slot.items()}
    assert parts == {
        "context and sound": 1.4,
        "speech": 0.45,
        "choosing a token": 0.0,
        "captured graphs of a slot": 0.03,
    }
    assert budget.slot_bytes / GIB < 1.9
    page = Path(__file__).parents[3] / "docs" / "understand" / "minicpmo45.md"
    assert f"**{budget.slot_bytes / GIB:.2f} GiB**" in page.read_text(encoding="utf-8")


def test_caches_in_eight_bits_take_what_the_page_says():
    full, small = planned("none"), planned("none", has_small_caches=True)

    page = Path(__file__).parents[3] / "docs" / "understand" / "minicpmo45.md"
    assert f"**{small.slot_bytes / GIB:.2f} GiB** with" in page.read_text(encoding="utf-8")
    assert small.per_slot["context and sound"] < 0.51 * full.per_slot["context and sound"]


def test_the_page_prints_what_auto_chooses_on_each_card():
    sizes = (12, 16, 24, 48, 80, 141)
    text = (Path(__file__).parents[3] / "docs" / "understand" / "minicpmo45.md").read_text("utf-8")

    rows: list[tuple[Kind, int, bool, str]] = [
        ("none", 8192, False, "bfloat16, 8,192 tokens"),
        ("none", 8192, True, "bfloat16, 8,192 tokens in 8 bits"),
        ("int4", 8192, False, "int4, 8,192 tokens"),
        ("int4", 8192, True, "int4, 8,192 tokens in 8 bits"),
        ("int4", 2048, True, "int4, 2,048 tokens in 8 bits"),
        ("smallest", 2048, True, "smallest, 2,048 tokens in 8 bits"),
        ("fp8", 8192, True, "fp8, 8,192 tokens in 8 bits"),
    ]
    for kind, context_tokens, is_eight_bit, name in rows:
        plan = planned(kind, context_tokens, has_small_caches=is_eight_bit, is_paged=True)
        found = [plan.slots_in(free_of(size)) for size in sizes]
        assert f"| {name} | {' | '.join(map(str, found))} |" in text


def test_a_card_of_12_gb_holds_one_conversation_and_keeps_something_free():
    plan = planned("smallest", 2048, has_small_caches=True)
    spare = int(SPARE_SHARE * 12 * 10**9)

    assert plan.slots_in(free_of(12) - spare) == 1
    assert plan.loading_bytes < free_of(12)


@pytest.mark.parametrize("has_small_caches", [False, True])
def test_pages_make_room_for_half_as_many_slots_again(has_small_caches):
    """At 3,000 tokens each, with room for some that are at their longest."""
    whole = planned("none", has_small_caches=has_small_caches)
    paged = planned("none", has_small_caches=has_small_caches, is_paged=True)
    free = free_of(80)

    slots = paged.slots_in(free, most=1000)

    assert slots >= 1.5 * whole.slots_in(free, most=1000)
    pool = paged.pool(slots, free)
    assert pool is not None
    held = slots * -(-3000 // pool.page_positions) * pool.page_positions
    assert pool.pages * pool.page_positions - held >= 3 * (8192 - 3000)
    assert pool.share_positions == SHARE_TOKENS


def test_a_prefill_step_of_many_rows_is_bounded(monkeypatch):
    """64 rows that all bring as much as they may take no more positions in than a few do."""
    taken = []
    loaded = small_model(slots=8)
    prefill = loaded.steps.prefill

    def noted(embeds, spans):
        taken.append(sum(span.count for span in spans))
        return prefill(embeds, spans)

    monkeypatch.setattr(loaded.steps, "prefill", noted)
    monkeypatch.setattr(stages, "PREFILL_STEP_TOKENS", 40)
    jobs = []
    for row in range(8):
        opening = loaded.start(row, StartSession("chat", speak=False, seed=1))
        assert opening.stage is None
        words = (Marker(Mark.TURN_START, "user"), Text("hello " * 9), Marker(Mark.TURN_END, "user"))
        jobs.append(loaded.start(row, Prefill(words)))
    while waiting := [job for job in jobs if job.stage is not None]:
        loaded.step(Stage.PREFILL, waiting)

    assert max(taken) <= 40
    assert len(taken) > 8


def test_the_table_names_everything_and_adds_up():
    budget = planned("none")

    lines = budget.table(4)

    named = " ".join(lines)
    for name in (
        "weights of llm", "weights of vocoder", "voices kept ready", "captured graphs",
        "context and sound", "speech", "choosing a token", "largest step",
    ):  # fmt: skip
        assert name in named
    assert "choosing a token: 3.5 MiB per slot" in lines
    assert lines[-1].startswith(f"total: {budget.total_bytes(4) / GIB:.2f} GiB with 4 slots")
    assert budget.total_bytes(4) == budget.once_bytes + 4 * budget.slot_bytes
