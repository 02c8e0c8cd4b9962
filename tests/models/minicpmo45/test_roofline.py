"""The roofline table against counts of its own, and against the page that prints it."""

import sys
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.support.long import IS_LONG
from tests.support.small_minicpmo import CONFIG, small_network
from tools.roofline import table
from tools.roofline.meter import Meter
from tools.roofline.steps import META, PaperModel, Prepared
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from parley.engine.work import Stage
from parley.models.minicpmo45.config import full_size_config, make_config
from parley.models.minicpmo45.llm.steps import LanguageSteps
from parley.models.minicpmo45.quantize import Int4Linear
from parley.models.minicpmo45.runtime import fused, slot_attention
from parley.models.minicpmo45.runtime.attention import SlotAttention
from parley.models.minicpmo45.runtime.caches import PaddedBatch, Span
from parley.models.minicpmo45.runtime.graphs import GraphRunner


def test_a_product_reads_its_weights_and_views_cost_nothing() -> None:
    linear = nn.Linear(64, 32, bias=False, device="meta", dtype=torch.bfloat16)
    x = torch.empty(5, 64, device="meta", dtype=torch.bfloat16)

    with torch.inference_mode(), Meter(linear.parameters()) as meter:
        linear(x.view(5, 64)).t()[:3]

    assert meter.count.kernels == 1
    assert meter.count.weight_bytes == 64 * 32 * 2
    assert meter.count.flops == 2 * 5 * 64 * 32
    assert sum(op.other_bytes for op in meter.count.ops) == 2 * 5 * (64 + 32)


def test_of_a_table_only_what_is_looked_up_is_read() -> None:
    words = nn.Embedding(1000, 16, device="meta")
    cache = torch.empty(50, 16, device="meta")
    rows = torch.empty(3, dtype=torch.int64, device="meta")

    with torch.inference_mode(), Meter(words.parameters(), [cache]) as meter:
        found = words(rows)
        cache[rows] = found
        cache[rows]

    looked, written, read = meter.count.ops
    assert looked.weight_bytes == 3 * 16 * 4
    assert written.nbytes == 2 * 3 * 16 * 4
    assert read.cache_bytes == 3 * 16 * 4


def test_what_an_operator_costs_a_second_time_is_what_it_cost_the_first_time() -> None:
    x = torch.empty(4, 8, device="meta")
    with torch.inference_mode(), Meter() as meter:
        for _ in range(3):
            y = (x * 2).t() @ x
    assert y.shape == (8, 8)
    assert meter.count.kernels == 6
    assert len({(op.name, op.nbytes, op.flops) for op in meter.count.ops}) == 2


NO_LAUNCH = ("empty", "new_empty", "slice", "view", "select", "unsqueeze", "split", "lift_fresh")
"""Operators that make a new place in memory without filling it, or look at an old one."""


class Launches(TorchDispatchMode):
    """A count of its own: operators that make or change a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = {one.data_ptr() for one in args if isinstance(one, Tensor)}
        out = func(*args, **(kwargs or {}))
        made = out if isinstance(out, tuple | list) else [out]
        is_new = any(isinstance(one, Tensor) and one.data_ptr() not in before for one in made)
        name = func._opname
        if (is_new or name.endswith("_")) and not name.startswith(NO_LAUNCH):
            self.names.append(name)
        return out


def tiny() -> PaperModel:
    return PaperModel(slots=3, context_tokens=2048, config=make_config(dict(CONFIG)))


class Sent(TorchFunctionMode):
    """Where tensors of the host go to a device by a copy that waits for it."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        caller = sys._getframe(1).f_code.co_name
        is_sent = func is Tensor.to and not args[0].is_meta and out.is_meta
        if is_sent and caller != "to_device" and not (kwargs or {}).get("non_blocking"):
            self.waits.append(caller)
        return out


def test_numbers_of_the_host_are_sent_without_waiting_for_the_card() -> None:
    paper = tiny()
    llm, apm = paper.network.llm, paper.network.apm
    unit = paper.prepared(2)
    with torch.inference_mode():
        for step in unit:
            # Tables that are made once are sent now, and kept.
            step.run()

    with torch.inference_mode(), Sent() as sent:
        embeds = llm.embed([1, 2, 3])
        llm.forward(embeds, [Span(0, 0, 3)], paper.cache, paper.model.rope)
        apm.front(torch.zeros(1, 80, 100))
        GraphRunner(META).run("trial", 1, lambda x: (x,), [torch.zeros(3)])
        for step in unit:
            step.run()

    assert sent.waits == []


def test_a_decode_step_of_real_tensors_launches_and_reads_what_the_table_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The same step with numbers in it, watched from outside: linear layers report what they read,
    the kernels' stand-ins what they were pointed at."""
    paper = tiny()
    counted = paper.step(Prepared("decode", Stage.DECODE, 1, paper.decode(3)))
    llm = small_network().llm.bfloat16()
    llm.attention = SlotAttention(is_fused=True)
    cache = llm.make_cache(3, paper.cache.capacity)
    steps = LanguageSteps(llm, cache, llm.make_rope(paper.cache.capacity), is_padded=True)
    read: dict[str, int] = {"weights": 0, "caches": 0}

    def attend(query: Tensor, keys: Tensor, values: Tensor, slots: Tensor, **named: Any) -> Tensor:
        columns = len(slots) * named["reads"]
        read["caches"] += columns * (keys.nbytes + values.nbytes) // (len(keys) * keys.shape[2])
        return query.clone()

    def add_norm(x: Tensor, added: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        read["weights"] += weight.nbytes
        return x, added.clone()

    def place_heads(query: Tensor, *given: Any) -> Tensor:
        read["weights"] += given[2].nbytes + given[3].nbytes
        return query.clone()

    def note(module: nn.Module, *_: object) -> None:
        read["weights"] += sum(one.nbytes for one in module.parameters(recurse=False))

    monkeypatch.setattr(slot_attention, "attend", attend)
    monkeypatch.setattr(fused, "add_norm", add_norm)
    monkeypatch.setattr(fused, "place_heads", place_heads)
    monkeypatch.setattr(fused, "gate", lambda gates, ups: gates.clone())
    for module in llm.modules():
        if not isinstance(module, nn.Embedding):
            module.register_forward_hook(note)
    spans = [Span(row, 2047, 1) for row in range(3)]
    ids = torch.zeros(3, dtype=torch.int64)
    batch = PaddedBatch.of(spans, cache, batch=3, count=1, reads=2048)
    # A graph knows its rows by number.
    batch = replace(batch, rows=torch.arange(3))
    with torch.inference_mode(), Launches() as launches:
        steps._run("decode", ids, batch)

    words = 3 * int(llm.config.hidden_size) * 2
    assert counted.captured.weight_bytes == read["weights"] + words
    assert counted.captured.cache_bytes == read["caches"]
    # Of the kernel there are two, of its stand-in one operator.
    layers = len(llm.model.layers)
    assert counted.captured.kernels == len(launches.names) + layers


def test_weights_in_4_bits_are_counted_as_they_lie() -> None:
    paper = PaperModel("int4", slots=1, context_tokens=2048)
    step = paper.step(Prepared("decode", Stage.DECODE, 1, paper.decode(1)))

    packed = [one for one in paper.network.llm.modules() if isinstance(one, Int4Linear)]
    layers = sum(one.packed.nbytes + one.scales.nbytes for one in packed)
    head = paper.network.llm.lm_head.weight.nbytes
    assert len(packed) == 7 * 36
    assert layers + head < step.captured.weight_bytes < layers + head + 2_000_000
    assert step.captured.flops > 2 * 8e9


def test_contexts_are_read_once_per_step_whatever_the_number_of_rows() -> None:
    """From pages, as servers and `card.py` have them; over rows: above."""
    paper = PaperModel(slots=4, context_tokens=4096, is_paged=True)
    assert paper.cache.pages is not None
    per_token = 2 * 36 * 8 * 128 * 2
    for rows in (1, 3, 4):
        step = paper.step(Prepared("decode", Stage.DECODE, 1, paper.decode(rows)))
        # Rows of a graph are rounded up to a power of two.
        padded = {1: 1, 3: 4, 4: 4}[rows]
        assert step.captured.cache_bytes == padded * 4096 * per_token


def test_everything_is_counted_on_tensors_without_memory() -> None:
    paper = tiny()
    assert all(one.device == META for one in paper._weights)
    assert all(one.device == META for one in paper._caches())


@pytest.fixture(scope="module")
def units() -> list[table.Unit]:
    """Each takes seconds: the largest of two cards, or all of the page."""
    usual = (("H200", "none", 32), ("RTX 4090", "int4", 4))
    return [
        table.unit_of(*case)
        for case in table.CASES
        if IS_LONG or (case[0].name, *case[1:3]) in usual
    ]


def columns(text: str) -> dict[str, list[str]]:
    """The first table by its heads, and the lines after it."""
    times, _, rest = text.partition("\n\n")
    rows = [[cell.strip() for cell in row.strip("|").split("|")] for row in times.split("\n")]
    return {head: cells for head, *cells in zip(*rows, strict=True)} | {"": rest.split("\n")}


@pytest.mark.timeout(600)
def test_the_page_prints_the_table_of_the_code_as_it_is(units: list[table.Unit]) -> None:
    """`python -m tools.roofline.table --write` brings it up to date."""
    text = table.PAGE.read_text(encoding="utf-8")
    printed = text.split(table.BEGIN)[1].split(table.END)[0]

    assert columns(table.markdown(units)).items() <= columns(printed).items()
    assert len(columns(printed)) == len(table.CASES) + 2
    assert "calculated" in printed
    assert "counted" in printed


@pytest.mark.timeout(600)
def test_32_speaking_video_sessions_fit_an_h200_and_4_a_card_of_24_gb_on_paper(
    units: list[table.Unit],
) -> None:
    assert all(unit.total_s < table.WORST_S for unit in units)
    assert max(unit.rows for unit in units if unit.card.name == "H200") == 32
    assert max(unit.rows for unit in units if unit.card.name == "RTX 4090") == 4
    assert full_size_config().language.num_hidden_layers == 36
