"""`python -m tools.bench session` and `parley bench model`, on small numbers."""

import pytest
from tests.support.long import long_only
from tests.support.small_minicpmo import small_model
from tools.bench import session, units

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


@pytest.mark.slow
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
