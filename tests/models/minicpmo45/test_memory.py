"""The memory table, against objects of the published size and cards with a limit.

Nothing here has run on a card: sizes of weights, caches and voices are those of the real classes,
built without memory; what steps take is the product's own upper estimate.
"""

import functools
from pathlib import Path

import pytest
import torch
from tests.support.small_minicpmo import small_model

from parley.engine.segments import Mark, Marker, Text
from parley.engine.work import Prefill, Stage, StartSession
from parley.models.minicpmo45.config import full_size_config
from parley.models.minicpmo45.measuring import SPARE_SHARE
from parley.models.minicpmo45.model import ANSWER_RESERVE
from parley.models.minicpmo45.plan import GIB, SHARE_TOKENS, LoadChoice, MemoryPlan, plan_of
from parley.models.minicpmo45.quantize import Kind
from parley.models.minicpmo45.runtime.caches import SlotCache
from parley.models.minicpmo45.runtime.pages import PagePool
from parley.models.minicpmo45.stages import language
from parley.models.minicpmo45.token2wav.flow import Flow
from parley.models.minicpmo45.token2wav.flow_memory import memory_for_prompts
from parley.models.minicpmo45.token2wav.token2wav import PROMPT_FRAMES, STEPS
from parley.models.minicpmo45.token2wav.vocoder_files import FULL_FLOW, random_token2wav
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
    settings = ModelSettings(random_weights=True, context_tokens=context_tokens)
    chosen = LoadChoice(torch.bfloat16, kind, has_small_caches, True, is_paged)
    return plan_of(settings, CONFIG, None, chosen)


class Card:
    """A card that counts, and refuses what does not fit."""

    def __init__(self, gigabytes: int) -> None:
        # A driver and a desktop take their share before anything is loaded.
        self.free = gigabytes * 10**9 - GIB // 2


@functools.cache
def full_flow() -> Flow:
    with torch.device("meta"):
        return random_token2wav(slots=1, shape=FULL_FLOW, device="meta").flow


@functools.cache
def state_bytes(
    slots: int, context_tokens: int, pool: PagePool | None, *, has_small_caches: bool = False
) -> int:
    """What all slots keep, by the classes that keep it."""
    bf16 = torch.bfloat16
    meta = torch.device("meta")
    language, audio, tts = CONFIG.language, CONFIG.audio, CONFIG.tts
    context = SlotCache(
        layers=language.num_hidden_layers, rows=slots, heads=language.num_key_value_heads,
        capacity=context_tokens + ANSWER_RESERVE, head_dim=language.head_dim, dtype=bf16,
        device=meta, is_eight_bit=has_small_caches, pool=pool,
    )  # fmt: skip
    sound = SlotCache(
        layers=audio.encoder_layers, rows=slots, heads=audio.encoder_attention_heads,
        capacity=audio.max_source_positions,
        head_dim=audio.d_model // audio.encoder_attention_heads,
        dtype=bf16, device=meta, is_eight_bit=has_small_caches,
    )  # fmt: skip
    speech = SlotCache(
        layers=int(tts["num_hidden_layers"]), rows=slots,
        capacity=int(tts["max_position_embeddings"]), heads=int(tts["num_attention_heads"]),
        head_dim=int(tts["hidden_size"]) // int(tts["num_attention_heads"]),
        dtype=bf16, device=meta, is_eight_bit=has_small_caches,
    ).nbytes  # fmt: skip
    with torch.device("meta"):
        history = memory_for_prompts(
            full_flow(), slots, steps=STEPS, prompt_frames=PROMPT_FRAMES, history=torch.bfloat16
        )
    return context.nbytes + sound.nbytes + speech + history.nbytes


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
    kept = state_bytes(1, 8192, None, has_small_caches=True)
    others = small.per_slot["choosing a token"] + small.per_slot["captured graphs of a slot"]
    assert small.slot_bytes - others == pytest.approx(kept, rel=0.01)


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
        for is_paged in (False, True):
            plan = planned(kind, context_tokens, has_small_caches=is_eight_bit, is_paged=is_paged)
            found = [plan.slots_in(Card(size).free) for size in sizes]
            line = f"{name}{', in pages' if is_paged else ''}"
            assert f"| {line} | {' | '.join(map(str, found))} |" in text


def test_a_card_of_12_gb_holds_one_conversation_and_keeps_something_free():
    plan = planned("smallest", 2048, has_small_caches=True)
    spare = int(SPARE_SHARE * 12 * 10**9)

    assert plan.slots_in(Card(12).free - spare) == 1
    assert plan.loading_bytes < Card(12).free


@pytest.mark.parametrize("has_small_caches", [False, True])
def test_pages_make_room_for_half_as_many_slots_again(has_small_caches):
    """At 3,000 tokens each, with room for some that are at their longest."""
    whole = planned("none", has_small_caches=has_small_caches)
    paged = planned("none", has_small_caches=has_small_caches, is_paged=True)
    free = Card(80).free

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
    monkeypatch.setattr(language, "PREFILL_STEP_TOKENS", 40)
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
