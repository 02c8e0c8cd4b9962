"""`parley bench gpu`, at a small size on the CPU: what it tries, what it says, whom it names."""

import json
from functools import partial
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from parley.cli import fast_parts
from parley.cli.bench import app, gpu, gpu_parts
from parley.cli.bench.gpu_parts import judged, not_run
from parley.cli.bench.gpu_plan import GpuPlan, TimeBudget, plan_of_flags, read_plan
from parley.errors import SetupError
from parley.models.minicpmo45 import loading
from parley.models.minicpmo45.conversation import speech
from parley.models.minicpmo45.plan import describe
from parley.models.minicpmo45.random_model import small_sizes
from parley.models.minicpmo45.tts.turns import SpokenTurn
from parley.settings import ModelSettings

SMALL = ModelSettings(random_weights=True, device="cpu", dtype="bfloat16", context_tokens=2048)

pytestmark = pytest.mark.timeout(300)


def test_one_command_writes_one_report_for_people_and_one_for_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Random weights do not end a sentence by themselves: two seconds of each instead of twenty.
    monkeypatch.setattr(speech, "SpokenTurn", partial(SpokenTurn, block_limit=50))
    out = tmp_path / "card"
    command = ["gpu", "--size", "small", "--device", "cpu", "--slots", "1", "--units", "1"]

    ran = CliRunner().invoke(app, [*command, "--out", str(out)])

    # How fast this machine is decides whether something is out of tolerance.
    assert ran.exit_code in (0, 1), ran.output
    report = json.loads(out.with_suffix(".json").read_text(encoding="utf-8"))
    text = out.with_suffix(".txt").read_text(encoding="utf-8")
    verdicts = {check["name"]: check["verdict"] for check in report["checks"]}
    for part in (
        "language model in float32", "sound encoder in float32", "vision encoder in float32",
        "speech decoder in float32", "flow in float32", "vocoder",
        "fast part: int4", "fast part: fp8",
    ):  # fmt: skip
        assert verdicts[part] == "ok"
        assert part in text
    # What needs a card says so instead of passing.
    for name in ("graphs with 1 slots", "memory with 1 slots"):
        assert verdicts[f"as set: {name}"] == "not run"
    for part in ("kernel", "kernel, 8 bits", "kernels between products", "products", "graph"):
        assert verdicts[f"fast part: {part}"] == "not run"
    assert "as set: first audio of an answer, ms" in verdicts
    assert report["units"][0]["spoke"] == report["units"][0]["units"] == 1
    assert report["machine"]["device"] == "cpu"


def test_every_part_is_tried_in_the_precision_that_serves() -> None:
    device = torch.device("cpu")

    found = list(gpu_parts.parts(small_sizes(), device, torch.bfloat16))

    assert [check.verdict for check in found] == ["ok"] * 4
    # It is another arithmetic, and not the same computed twice.
    assert all(check.found is not None and check.found > 1e-4 for check in found)


def test_the_flow_in_bfloat16_is_held_against_float32() -> None:
    checks = {
        check.name: check
        for check in gpu_parts.voice(small_sizes(), torch.device("cpu"), torch.bfloat16)
    }

    assert checks["flow in bfloat16"].verdict == "ok"
    assert checks["flow in bfloat16"].found


def test_a_part_that_computes_something_else_is_out_of_tolerance(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = torch._weight_int4pack_mm_for_cpu
    wrong = lambda *given: 1.2 * real(*given)  # noqa: E731
    monkeypatch.setattr(torch, "_weight_int4pack_mm_for_cpu", wrong)

    checks = gpu_parts.fast_parts(SMALL, small_sizes(), torch.device("cpu"), torch.float32)

    (int4,) = (check for check in checks if check.name == "fast part: int4")
    assert int4.verdict == "out of tolerance"
    assert "are 0.2 off, at most 0.05" in int4.facts


def test_a_part_that_the_card_does_not_have_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def too_old(*_: object, **named: object) -> None:
        raise SetupError("fp8 weights need 8.9 or higher.")

    monkeypatch.setattr(fast_parts, "checked", too_old)

    *_, fp8 = gpu_parts.fast_parts(SMALL, small_sizes(), torch.device("cpu"), torch.float32)

    assert (fp8.verdict, fp8.facts) == ("not run", "refused: fp8 weights need 8.9 or higher.")


def test_what_is_no_number_is_out_of_tolerance() -> None:
    assert judged("x", float("nan"), 1.0, "nobody").verdict == "out of tolerance"


def test_a_report_says_what_is_wrong_and_whom_it_hurts() -> None:
    report = gpu.GpuReport({"card": "none"})
    report.checks = [
        judged("kernel: decode", 0.5, 0.01, "everybody's answers"),
        judged("vocoder", 0.001, 0.05, "whoever listens to it"),
        not_run("memory with 4 slots", "only a card's memory is measured", "whoever comes last"),
    ]

    text = report.as_text()

    assert "[out of tolerance] kernel: decode: 0.5 (at most 0.01)" in text
    assert "[not run] memory with 4 slots; only a card's memory is measured" in text
    assert "3 checks, 1 out of tolerance, 1 not run" in text
    assert text.endswith("out of tolerance: kernel: decode. This hurts everybody's answers.")


def test_a_graph_that_was_refused_is_out_of_tolerance() -> None:
    refused = {"decode": "(4, False, 512): operation not permitted"}

    check = gpu._captures({"speech": 8}, refused, 3.0, 4, is_active=True)

    assert check.verdict == "out of tolerance"
    assert "operation not permitted" in check.facts
    assert gpu._captures({"decode": 8}, {}, 3.0, 4, is_active=True).verdict == "ok"


@pytest.mark.parametrize(("share", "verdict"), [(0.9, "ok"), (1.1, "out of tolerance")])
def test_the_peak_of_a_card_is_compared_with_the_plan(
    monkeypatch: pytest.MonkeyPatch, share: float, verdict: str
) -> None:
    planned = describe(SMALL.model_copy(update={"slots": 4})).total_bytes or 0
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda place: round(share * planned))

    check = gpu._memory(SMALL.model_copy(update={"slots": 4}), 4, torch.device("cuda"))

    assert check.verdict == verdict
    assert check.found == pytest.approx(share, abs=0.01)
    assert f"total: {planned / 2**30:.2f} GiB with 4 slots" in check.facts


def test_a_number_of_slots_that_does_not_load_ends_the_row_with_its_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(settings: ModelSettings, sizes: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9.00 GiB.")

    monkeypatch.setattr(loading, "load", full)

    report = gpu.run(SMALL, plan_of_flags([8, 16], 1), "small")

    last = report.checks[-1]
    assert last.name == "as set: units of 8 conversations"
    assert last.verdict == "not run"
    assert "Tried to allocate 9.00 GiB" in last.facts
    assert not any("of 16 " in check.name for check in report.checks[-2:])


def test_the_plan_that_is_shipped_can_be_read_and_ends_within_ten_minutes() -> None:
    plan = read_plan(Path(__file__).parents[2] / "tools" / "gpu-plan.toml")

    assert plan.limit_s <= 580
    assert sum(len(run.slots) * run.units for run in plan.run) < plan.limit_s / 2
    kinds = {run.settings(SMALL).kv_cache_dtype for run in plan.run}
    assert kinds == {"model", "int8"}
    assert {run.settings(SMALL).quantize for run in plan.run} == {"none", "int4"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("limit_s = 5", "run: Field required"),
        ('[[run]]\nname = "a"\nslots = [1]\nrows = 3', "rows: Extra inputs"),
        ('[[run]]\nname = "a"\nslots = [1]\nmodel = { quantise = "int4" }', "quantise"),
        ("[[run]", "cannot be used"),
    ],
)
def test_a_plan_that_makes_no_sense_is_refused_before_the_card_is_touched(
    tmp_path: Path, text: str, said: str
) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(text)

    with pytest.raises(SetupError) as caught:
        read_plan(path)

    assert said in str(caught.value)


def test_what_would_end_behind_the_limit_is_not_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """The parts are still checked, and the report names what was left out and why."""
    monkeypatch.setattr(gpu, "_part_checks", lambda *_: iter([judged("part", 0.0, 1.0, "nobody")]))
    plan = GpuPlan(limit_s=20, run=plan_of_flags([1, 4], 10).run)
    kept: list[int] = []

    report = gpu.run(SMALL, plan, "small", keep=lambda so_far: kept.append(len(so_far.checks)))

    assert [check.verdict for check in report.checks] == ["ok", "not run", "not run"]
    assert report.checks[1].facts == "20 s of 20 s are left"
    # A call that is cut off has left a report after each check.
    assert kept == [1, 2, 3]


def test_time_that_loading_took_is_counted() -> None:
    now = 100.0
    budget = TimeBudget(60.0, clock=lambda: now)

    assert budget.has_room_for(30)
    now = 110.0
    assert not budget.has_room_for(30)
    budget.loading_s = 5.0
    assert budget.has_room_for(30)
