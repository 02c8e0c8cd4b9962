"""`parley bench gpu`: measures and checks of the full-size model that need a card.

Run it on your card, and read or send its report. Parts are compared with the CPU, kernels with
their fallback, graphs with the steps that they captured, memory with the plan, and units with their
second.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import torch
import typer

from parley.cli.bench import gpu_parts
from parley.cli.bench import model as bench_model
from parley.cli.bench.gpu_parts import Check, judged, not_run
from parley.cli.bench.gpu_plan import GpuPlan, GpuRun, TimeBudget, plan_of_flags, read_plan
from parley.cli.bench.model import ModelReport, made_up_speech, make_talkative
from parley.clock import SystemClock
from parley.engine.engine import Engine
from parley.errors import ParleyError
from parley.models.minicpmo45 import loading
from parley.models.minicpmo45.device import choose_device, set_precision
from parley.models.minicpmo45.plan import GIB, describe
from parley.models.minicpmo45.random_model import Sizes, full_sizes, small_sizes
from parley.models.minicpmo45.runtime.slot_attention import is_installed
from parley.protocol.values import Generation
from parley.settings import ModelSettings, load
from parley.views.content import AudioPart, Message
from parley.views.half_duplex import HalfDuplexView, TurnRequest

FIRST_AUDIO_MS: Final = 1000.0
"""Limit of the time from the end of a turn to the first sound of its answer."""

MEMORY_TOLERANCE: Final = 1.0
"""Highest ratio of measured peak to planned memory: the plan is an upper estimate."""

Size = Literal["full", "small"]


@dataclass(slots=True)
class GpuReport:
    """Results of one run.

    Args:
        machine: card, driver, builds.
        units: one entry per number of slots that could be loaded.
    """

    machine: dict[str, str] = field(default_factory=dict)
    checks: list[Check] = field(default_factory=list)
    units: list[ModelReport] = field(default_factory=list)

    @property
    def failed(self) -> list[Check]:
        return [check for check in self.checks if check.verdict == "out of tolerance"]

    def as_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=1)

    def as_text(self) -> str:
        """Text report: the machine, every check, the units, and the conclusions."""
        lines = [f"{name}: {value}" for name, value in self.machine.items()]
        lines += ["", *(_line(check) for check in self.checks), ""]
        lines += [bench_model.describe(report) for report in self.units]
        untried = sum(check.verdict == "not run" for check in self.checks)
        lines += [
            "",
            f"{len(self.checks)} checks, {len(self.failed)} out of tolerance, {untried} not run",
        ]
        lines += [f"out of tolerance: {one.name}. This hurts {one.hurts}." for one in self.failed]
        return "\n".join(lines)


def gpu(
    model: Annotated[
        str | None, typer.Option(help="Checkpoint folder or hub id; default: random weights.")
    ] = None,
    slots: Annotated[
        str, typer.Option(help="Numbers of conversations to try, separated by commas.")
    ] = "1,4,8,16,32",
    units: Annotated[int, typer.Option(min=1, help="Seconds per conversation.")] = 20,
    size: Annotated[
        Size, typer.Option(help="Size of the random weights: full (the published size) or small.")
    ] = "full",
    quantize: Annotated[str | None, typer.Option(help="none, or int4.")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda or cuda:N.")] = None,
    plan: Annotated[
        Path | None,
        typer.Option(
            help="Plan of runs (TOML, see tools/gpu-plan.toml) in place of --slots and --units."
        ),
    ] = None,
    config: Annotated[Path | None, typer.Option(help="Settings file (TOML).")] = None,
    out: Annotated[
        Path, typer.Option(help="Write the reports to this name with .txt and .json.")
    ] = Path("gpu-report"),
) -> None:
    """Check and measure everything that needs a GPU, and list what is out of tolerance."""
    settings = load(
        config,
        {
            "model.name": model,
            "model.device": device,
            "model.quantize": quantize,
            "model.random_weights": True if model is None else None,
        },
    ).model
    chosen = plan_of_flags(bench_model._counts(slots), units) if plan is None else read_plan(plan)

    def keep(report: GpuReport) -> None:
        out.with_suffix(".txt").write_text(report.as_text() + "\n", encoding="utf-8")
        out.with_suffix(".json").write_text(report.as_json() + "\n", encoding="utf-8")

    report = run(settings, chosen, size, keep=keep)
    typer.echo(report.as_text())
    typer.echo(f"written to {out.with_suffix('.txt')} and {out.with_suffix('.json')}")
    if report.failed:
        raise typer.Exit(1)


def run(
    settings: ModelSettings,
    plan: GpuPlan,
    size: Size,
    *,
    keep: Callable[[GpuReport], None] = lambda _: None,
) -> GpuReport:
    """All checks, those of parts first.

    Args:
        keep: stores the report so far; called after each step, because a run may be aborted.
    """
    budget = TimeBudget(plan.limit_s)
    place = choose_device(settings.device)
    sizes = small_sizes() if size == "small" else full_sizes()
    report = GpuReport(_machine(place, settings, size))
    for check in _part_checks(settings, sizes, place):
        report.checks.append(check)
        keep(report)
    for number, one in enumerate(plan.run):
        with _card_of(one.card_gb, place):
            for check in _one_run(report, settings, one, sizes, budget, number == 0):
                report.checks.append(check)
                keep(report)
    return report


def _part_checks(settings: ModelSettings, sizes: Sizes, place: torch.device) -> Iterator[Check]:
    is_card = place.type == "cuda"
    is_half = is_card if settings.dtype == "auto" else settings.dtype == "bfloat16"
    dtype = torch.bfloat16 if is_half else torch.float32
    if is_card:
        set_precision(settings.token2wav_precision)
    is_short = is_card and settings.token2wav_precision == "bfloat16"
    yield from gpu_parts.fast_parts(settings, sizes, place, dtype)
    yield from gpu_parts.parts(sizes, place, dtype)
    yield from gpu_parts.voice(sizes, place, torch.bfloat16 if is_short else torch.float32)


@contextmanager
def _card_of(card_gb: float | None, place: torch.device) -> Iterator[None]:
    """Limit torch's allocator to the memory of a smaller card."""
    if card_gb is None or place.type != "cuda":
        yield
        return
    total = torch.cuda.get_device_properties(place).total_memory
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(min(1.0, card_gb * 1e9 / total), place)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, place)


def _one_run(
    report: GpuReport,
    settings: ModelSettings,
    one: GpuRun,
    sizes: Sizes,
    budget: TimeBudget,
    is_first: bool,
) -> Iterator[Check]:
    """Try a run's numbers of slots until one does not load or the time is up."""
    hurts = "clients beyond that number"
    for number, count in enumerate(one.slots):
        name = f"{one.name}: units of {count} conversations"
        if not budget.has_room_for(one.units):
            why = f"{budget.left_s:.0f} s of {budget.limit_s:.0f} s are left"
            yield not_run(name, why, hurts)
            continue
        here = one.settings(settings).model_copy(update={"slots": count})
        begin_s = time.monotonic()
        try:
            is_first = is_first and number == 0
            for check in _slots(report, here, sizes, one.units, is_first=is_first):
                yield replace(check, name=f"{one.name}: {check.name}")
        except (ParleyError, torch.OutOfMemoryError) as error:
            yield not_run(name, " ".join(str(error).split())[:300], hurts)
            return
        # The next one takes about the same time to load.
        budget.loading_s = max(0.0, time.monotonic() - begin_s - one.units)


def _slots(
    report: GpuReport,
    settings: ModelSettings,
    sizes: Sizes,
    units: int,
    *,
    is_first: bool,
) -> Iterator[Check]:
    """Checks and measurements of the loaded model with one number of slots."""
    count = settings.slots
    assert isinstance(count, int)
    place = choose_device(settings.device)
    if place.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(place)
    if is_first:
        yield asyncio.run(_first_audio(loading.load(settings, sizes)))
    loaded = loading.load(settings, sizes)
    begin_s = time.monotonic()
    loaded.warm_up()
    took_s = time.monotonic() - begin_s
    yield _captures(
        loaded.graphs.counts, loaded.graphs.refusals, took_s, count, loaded.graphs.is_active
    )
    measured = asyncio.run(bench_model.measure(loaded, units=units, load_kind="worst"))
    report.units.append(measured)
    yield _memory(settings, count, place)
    facts = f"answers {measured.answer}; {measured.spoke} of {measured.units} spoken"
    hurts = f"conversations on a card with {count} at a time: they stutter"
    late = measured.late / measured.units
    yield judged(f"units of {count} conversations answered late", late, 0.0, hurts, facts)


def _captures(
    counts: dict[str, int], refusals: dict[str, str], took_s: float, count: int, is_active: bool
) -> Check:
    name = f"graphs with {count} slots"
    hurts = "every session: a step without its graph waits for the processor"
    if not is_active:
        return not_run(name, "nothing is captured without a GPU or with model.compile off", hurts)
    facts = f"{counts} in {took_s:.0f} s"
    if refusals:
        facts += f"; refused: {refusals}"
    return judged(name, float(len(refusals)), 0.0, hurts, facts)


def _memory(settings: ModelSettings, count: int, place: torch.device) -> Check:
    name, hurts = f"memory with {count} slots", "sessions that run when the card is full"
    if place.type != "cuda":
        return not_run(name, "only a card's memory is measured", hurts)
    planned = describe(settings)
    if planned.total_bytes is None:
        return not_run(name, "; ".join(planned.problems), hurts)
    peak = torch.cuda.max_memory_allocated(place)
    facts = f"peak {peak / GIB:.2f} GiB; plan: {'; '.join(planned.notes)}"
    return judged(name, peak / planned.total_bytes, MEMORY_TOLERANCE, hurts, facts)


async def _first_audio(loaded: Any) -> Check:
    """Milliseconds from the end of a spoken turn to the first sound of its answer; the model is
    unloaded afterwards."""
    name, hurts = "first audio of an answer, ms", "users of half-duplex and chat"
    make_talkative(loaded)
    clock = SystemClock()
    async with Engine(loaded, clock) as engine:
        await engine.warm_up()
        view = HalfDuplexView(await engine.take_slot())
        await view.reset_session("bench", seed=1)
        question = AudioPart(made_up_speech(3))
        messages = (Message.of("system", "You are helpful."), Message.of("user", question))
        await view.prefill(TurnRequest("bench", messages))
        begin_s = clock.monotonic()
        async for chunk in view.generate("bench", Generation(max_new_tokens=60)):
            if chunk.audio is not None and len(chunk.audio):
                found_ms = 1000 * (clock.monotonic() - begin_s)
                return judged(name, found_ms, FIRST_AUDIO_MS, hurts)
    return judged(name, float("inf"), FIRST_AUDIO_MS, hurts, "nothing was said")


def _machine(place: torch.device, settings: ModelSettings, size: Size) -> dict[str, str]:
    facts = {
        "system": platform.platform(),
        "torch": torch.__version__,
        "triton": "installed" if is_installed() else "not installed",
        "device": str(place),
        "model": f"random weights, {size}" if settings.random_weights else settings.name,
        "settings": f"quantize {settings.quantize}, attention {settings.attention}, "
        f"context_tokens {settings.context_tokens}, token2wav {settings.token2wav_precision}",
    }
    if place.type == "cuda":
        card = torch.cuda.get_device_properties(place)
        facts["card"] = f"{card.name}, {card.total_memory / GIB:.1f} GiB, CUDA {torch.version.cuda}"
    return facts


def _line(check: Check) -> str:
    figures = "" if check.found is None else f": {check.found:.4g} (at most {check.tolerance:.4g})"
    facts = f"; {check.facts}" if check.facts else ""
    return f"[{check.verdict}] {check.name}{figures}{facts}"
