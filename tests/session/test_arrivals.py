"""What came late, what comes as it is said, and how much of the first may wait."""

import pytest

from parley.clock import ManualClock
from parley.session.arrivals import LATE_LIMIT_S, Arrivals


@pytest.mark.parametrize("piece_s", [0.02, 0.1, 0.5, 1.0])
def test_who_was_silent_and_talks_on_is_late_for_a_moment_only(piece_s: float) -> None:
    """The first message after the silence took 0.1 s longer than the others, which follow it as
    fast as they may: the client never falls behind what can be said in the time."""
    clock = ManualClock()
    arrivals = Arrivals(clock)
    arrivals.is_late(piece_s)
    clock.advance(60.0)
    late_s, began_s, sent_s = 0.0, clock.monotonic(), 0.0
    while sent_s < 20.0:
        arrived_s = max(began_s + 0.1, began_s + sent_s)
        clock.advance(arrived_s - clock.monotonic())
        late_s += piece_s if arrivals.is_late(piece_s) else 0.0
        sent_s += piece_s

    assert late_s <= max(1.0, 2 * piece_s)


def test_what_comes_faster_than_it_can_be_said_is_late_to_its_end() -> None:
    clock = ManualClock()
    arrivals = Arrivals(clock)
    arrivals.is_late(0.1)
    clock.advance(20.1)
    late_s = 0.0
    for _ in range(250):
        late_s += 0.1 if arrivals.is_late(0.1) else 0.0
        clock.advance(0.05)

    assert late_s == pytest.approx(20.0, abs=0.2)


def test_a_client_that_was_silent_for_long_may_not_send_all_of_it_together() -> None:
    """It waits in the worker's memory, and is computed while others talk."""
    clock = ManualClock()
    arrivals = Arrivals(clock)
    arrivals.is_late(1.0)
    clock.advance(590.0)
    for _ in range(580):
        arrivals.is_late(1.0)

    assert LATE_LIMIT_S <= arrivals.backlog_s <= LATE_LIMIT_S + 10.0
