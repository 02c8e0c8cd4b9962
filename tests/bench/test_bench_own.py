"""`parley bench model`, and `session`, `recording` and `relay` of tools.bench, on small numbers."""

import pytest
from tests.support.long import long_only
from tests.support.small_minicpmo import small_model
from tools.bench import recording, relay_resume, session, units
from tools.bench.relay import RelayReport, Tally, describe, measure
from tools.bench.relay_resume import ResumeCost

from parley.cli.bench import model
from parley.cli.bench.figures import Figures
from parley.client.events import Listening, Speaking
from parley.engine.work import Window
from parley.errors import SetupError
from parley.models.parrot import Parrot


def test_figures_are_measured_values():
    figures = Figures.of([float(ms) for ms in range(1, 201)])

    assert (figures.count, figures.p50_ms, figures.p95_ms) == (200, 100, 190)
    assert (figures.p99_ms, figures.max_ms) == (198, 200)
    assert Figures.of([]) == Figures(0, 0.0, 0.0, 0.0, 0.0)
    assert str(Figures.of([])) == "none"
    assert str(Figures.of([2.0])) == "p50 2.00 ms, p95 2.00 ms, p99 2.00 ms, max 2.00 ms"


async def test_the_server_is_measured_inside_one_process():
    figures = await session.measure(20, 1, wire=False)

    assert set(figures) == {"engine and view", "mode switch"}
    assert all(one.count == 20 for one in figures.values())


async def test_the_further_piece_of_a_turns_end_is_no_answer_to_the_next_unit():
    async def events():
        yield Speaking("a", None, False, 20, 1.0)
        yield Speaking("", None, True, 20, 1.0)
        yield Listening(33, 1.0)

    answers = events()
    first = await session._answer(answers, 0)

    assert (first, await session._answer(answers, first)) == (20, 33)


@long_only
async def test_the_server_is_measured_over_the_wire():
    figures = await session.measure(20, 2, wire=True)

    assert figures["over the wire, 2"].count == 40


@pytest.mark.parametrize("load_kind", ["typical", "worst"])
async def test_a_model_is_measured_at_its_pace(load_kind):
    report = await model.measure(Parrot(3), units=10, load_kind=load_kind, pace_s=0.01)

    assert (report.slots, report.units, report.answer.count) == (3, 30, 30)
    assert report.spoke == 3 * 4
    assert {"encode", "prefill", "decode", "vocode", "finalize"} == set(report.stages)
    assert report.stages["decode"].count == 30
    assert sum(report.histograms["decode"].values()) == 30
    assert "3 slots: 30 units" in model.describe(report)


async def test_in_the_worst_case_every_unit_speaks_all_that_it_may():
    small = small_model(slots=2)

    report = await model.measure(small, units=2, load_kind="worst", pace_s=0.01)

    assert report.spoke == 4
    # 19 words chosen and fed, and the end of the unit set by the limit.
    assert report.stages["speech"].count == 4


async def test_a_long_conversation_is_measured():
    report = await units.measure(Parrot(1), count=30, window=Window("basic", 300, 200))

    assert report.listened.unit.count + report.spoke.unit.count == 30
    assert report.listened.unit.count > 0
    assert report.spoke.unit.count > 0
    assert len(report.memory_mb) == units.LOOKS
    assert f"{report.spoke.unit.count} units spoke: p50" in units.describe(report)


@long_only
async def test_a_long_conversation_of_a_small_model_slides_its_window():
    small = small_model(slots=1)

    report = await units.measure(small, count=12, window=Window("basic", 250, 150))

    assert report.slide.count > 0


@pytest.mark.parametrize("words", ["", "1,x", "0"])
def test_numbers_of_slots_are_checked(words):
    with pytest.raises(SetupError):
        model._counts(words)


async def test_units_and_lists_are_measured(tmp_path):
    figures = await recording.measure(tmp_path, 12, 30)

    assert [one.count for one in figures.values()] == [12, 12, 1, 19]
    assert all(0 < one.p50_ms <= one.max_ms for one in figures.values())


async def test_a_short_run_holds_every_session_and_counts_every_unit():
    report = await measure(5, 2.0, has_frame=True)

    assert report.through.sessions == 5
    assert report.through.broken == 0
    assert 5 <= len(report.through.answers_ms) <= 15
    assert len(report.direct.answers_ms) >= 2
    assert report.cpu_s is None or report.cpu_s >= 0


def test_the_report_says_what_was_added_and_what_a_core_carries():
    report = RelayReport(
        through=Tally(answers_ms=[2.0] * 100, sessions=10),
        direct=Tally(answers_ms=[0.5] * 20, sessions=2),
        seconds=10.0,
        cpu_s=0.02,
        rss_mb=100.0,
        rss_before_mb=80.0,
    )

    text = describe(report, has_frame=False)

    assert "10 of 10; 0 of 100 units late" in text
    assert "p50 1.50 ms" in text
    assert "0.200 ms per unit" in text
    assert "about 5000 sessions" in text


def test_what_resuming_costs_is_compared_round_by_round():
    """A machine that becomes slow in the second round says nothing about resuming."""
    cost = ResumeCost({"not offered": [1.0, 2.0, 1.0], "used": [1.04, 2.08, 1.5]})

    assert cost.percent_more("used", "not offered") == pytest.approx(4.0)
    assert "+4.0 %" in cost.describe()


@long_only
async def test_every_way_of_holding_sessions_is_measured(monkeypatch: pytest.MonkeyPatch):
    # Only figures need warm sockets and buffers.
    monkeypatch.setattr(relay_resume, "WARM_S", 1.5)
    cost = await relay_resume.measure(1, 2.0, rounds=1)

    assert cost.cpu_ms.keys() == {arm.name for arm in relay_resume.ARMS}
    assert all(figure >= 0 for figures in cost.cpu_ms.values() for figure in figures)
    assert cost.worker_ms["used"] > [0.0]
