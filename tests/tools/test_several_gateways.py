from __future__ import annotations

from collections.abc import Sequence

import pytest
from tools.several_gateways import (
    FirstToAsk,
    OneGateway,
    OwnWorkers,
    Rush,
    SharedNumbers,
    _overtakers,
    page,
    simulate,
)

from tools import several_gateways

RUSH = Rush.of(3_000, 40)


@pytest.mark.parametrize(
    ("begins", "overtakers"),
    [([1.0, 2.0, 3.0], [0, 0, 0]), ([3.0, 1.0, 2.0], [2, 0, 0]), ([2.0, 3.0, 1.0], [1, 1, 0])],
)
def test_overtakers_are_counted(begins: Sequence[float], overtakers: list[int]):
    assert _overtakers(begins) == overtakers


def test_one_gateway_lets_nobody_overtake_and_no_slot_idle():
    found = simulate(RUSH, OneGateway)

    assert max(found.overtakers) == 0
    assert found.idle_share == 0
    assert max(found.waits) > 0


def test_divided_workers_idle_while_people_wait():
    assert simulate(RUSH, OwnWorkers).idle_share > 0.05


def test_whoever_asks_first_overtakes_and_numbers_from_one_store_nearly_never():
    racing, numbered = (simulate(RUSH, rule) for rule in (FirstToAsk, SharedNumbers))

    assert racing.idle_share == numbered.idle_share == 0
    assert max(racing.overtakers) > 20 * max(1, max(numbered.overtakers))
    assert sum(racing.waits) == pytest.approx(sum(numbered.waits), rel=0.05)


def test_the_page_has_a_table_for_every_rule():
    text = several_gateways.PAGE.read_text(encoding="utf-8")

    assert page(text, "x") != text
    assert all(f"| {name} |" in text for name in several_gateways.RULES)
