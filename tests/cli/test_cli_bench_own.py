"""`parley bench session` and `parley bench model`, on small numbers."""

import pytest

from parley.cli.bench import model, session
from parley.cli.bench.figures import Figures
from parley.errors import SetupError
from parley.models.parrot import Parrot


def test_figures_are_measured_values():
    figures = Figures.of([float(ms) for ms in range(1, 201)])

    assert (figures.count, figures.p50_ms, figures.p99_ms, figures.max_ms) == (200, 100, 198, 200)
    assert Figures.of([]) == Figures(0, 0.0, 0.0, 0.0)
    assert str(Figures.of([2.0])) == "p50 2.00 ms, p99 2.00 ms, max 2.00 ms"


async def test_the_house_is_measured_inside_one_process():
    figures = await session.measure(20, 1, wire=False)

    assert set(figures) == {"engine and view", "mode switch"}
    assert all(one.count == 20 for one in figures.values())


@pytest.mark.slow
async def test_the_house_is_measured_over_the_wire():
    figures = await session.measure(20, 2, wire=True)

    assert figures["over the wire, 2"].count == 40


@pytest.mark.parametrize("load_kind", ["typical", "worst"])
async def test_a_model_is_measured_at_its_pace(load_kind):
    report = await model.measure(Parrot(3), units=10, load_kind=load_kind, pace_s=0.01)

    assert (report.slots, report.units, report.answer.count) == (3, 30, 30)
    assert report.spoke == 3 * 4
    assert {"encode", "prefill", "decode", "vocode", "settle"} == set(report.stages)
    assert report.stages["decode"].count == 30
    assert "3 slots: 30 units" in model.describe(report)


async def test_a_full_context_begins_anew():
    parrot = Parrot(1, context_limit_tokens=256 + 100)

    report = await model.measure(parrot, units=16, pace_s=0.001)

    assert report.prepare.count > 1


@pytest.mark.parametrize("words", ["", "1,x", "0"])
def test_numbers_of_slots_are_checked(words):
    with pytest.raises(SetupError):
        model._counts(words)
