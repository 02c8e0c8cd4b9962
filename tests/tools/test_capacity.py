import pytest
from tools.capacity import Demand, cards, erlang_c, simulate, slots_needed, slots_of_card, within

from tools import capacity


@pytest.mark.parametrize(("load", "slots"), [(1.0, 2), (10.0, 13), (40.0, 45)])
def test_the_simulation_agrees_with_the_formula_for_exponential_calls(load: float, slots: int):
    demand = Demand(users=100, calls_per_hour=load * 60 / (100 * 5), minutes=5)

    found = simulate(demand, slots, calls=300_000)

    assert found.waited_share == pytest.approx(erlang_c(load, slots), abs=0.02)
    assert found.within_limit == pytest.approx(within(load, slots, 5, 10), abs=0.02)


def test_known_values_of_the_formula():
    # One slot: everybody waits who meets a call, i.e. the load itself.
    assert erlang_c(0.5, 1) == pytest.approx(0.5)
    assert erlang_c(2.0, 3) == pytest.approx(4 / 9)
    assert erlang_c(3.0, 3) == 1.0


def test_the_fewest_slots_that_keep_the_promise():
    demand = Demand(50, 2, 6)
    slots = slots_needed(demand)

    assert within(demand.load, slots, demand.minutes, 10) >= 0.95
    assert within(demand.load, slots - 1, demand.minutes, 10) < 0.95


def test_calls_that_are_alike_wait_less():
    alike = simulate(Demand(50, 2, 6, spread=0.3), 12)
    different = simulate(Demand(50, 2, 6, spread=1.0), 12)

    assert alike.mean_s < 0.8 * different.mean_s


def test_cards_from_measured_unit_times():
    measured = [(1, 180.0), (4, 310.0), (8, 790.0), (16, 1400.0)]

    assert slots_of_card(measured) == 8
    assert cards(16, 8) == 2
    assert cards(17, 8) == 3
    assert slots_of_card([(1, 900.0)]) == 0


def test_the_page_is_current():
    assert capacity.main(["--check"]) == 0, "run python -m tools.capacity --write"
