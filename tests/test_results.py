"""A unit's result from its parts."""

import pytest

from parley.protocol.kinds import Ending
from parley.results import GenerateResult, PrefillResult, UnitResult


@pytest.mark.parametrize(
    ("ending", "end_of_turn", "expected"),
    [
        (Ending.SPOKE, False, ("said", False, False)),
        (Ending.SPOKE, True, ("said", False, True)),
        (Ending.LISTEN, False, ("", True, False)),
        (Ending.CANCELLED, False, ("", True, True)),
    ],
)
def test_a_unit_that_is_stopped_ends_its_turn(ending, end_of_turn, expected):
    decided = GenerateResult(ending, "said", end_of_turn, 1, 2, 3)

    unit = UnitResult.of(decided, PrefillResult(0, 3), (), {})

    assert (unit.text, unit.is_listen, unit.end_of_turn) == expected
