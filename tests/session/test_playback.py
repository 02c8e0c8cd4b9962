"""What has been heard of an answer: by the clock, and by what a client says of its loudspeaker."""

import pytest
from tests.support.patience import HANG_S

from parley.clock import ManualClock
from parley.protocol.values import PlaybackReport
from parley.session.playback import ARRIVED_S, LATEST_S, Playback


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def playback(clock: ManualClock) -> Playback:
    return Playback(clock)


def told(received_ms: float, buffered_ms: float) -> PlaybackReport:
    return PlaybackReport(received_ms=received_ms, buffered_ms=buffered_ms)


def heard_ms(playback: Playback) -> int:
    return playback.heard()[0]


def test_what_has_been_heard_follows_the_clock(clock, playback):
    playback.send("One two three four ", 2000)
    playback.send("five six seven eight", 2000)

    clock.advance(2.0)
    assert playback.heard() == (2000, "One two three four")
    clock.advance(1.0)
    left_before = playback.is_heard
    playback.cut()
    assert (left_before, playback.is_heard) == (True, False)
    assert playback.heard() == (3000, "One two three four five six")
    clock.advance(HANG_S)
    assert playback.heard() == (3000, "One two three four five six")


def test_what_a_client_says_counts_and_time_continues_from_there(clock, playback):
    playback.send("One two three four", 2000)
    clock.advance(1.0)

    later_s = playback.report(told(2000, 1400))

    assert later_s == pytest.approx(0.4)
    assert heard_ms(playback) == 600
    clock.advance(1.0)
    assert heard_ms(playback) == 1600
    assert playback.is_heard
    clock.advance(0.5)
    assert not playback.is_heard


def test_what_is_in_flight_has_not_been_played(clock, playback):
    playback.send("One", 1000)
    clock.advance(0.9)
    playback.send("two", 1000)
    # It was said before the second one came.
    playback.report(told(1000, 300))

    assert heard_ms(playback) == 700


def test_what_a_network_delays_is_not_believed(clock, playback):
    playback.send("One", 3000)
    for buffered_ms in (2900, 2800, 2900, 2600):
        clock.advance(0.1)
        playback.report(told(3000, buffered_ms))

    # The third was said long before it came.
    assert heard_ms(playback) == 400
    for buffered_ms in range(2590, 1000, -100):
        clock.advance(0.1)
        playback.report(told(3000, buffered_ms))
    # Anyone who really plays later says so for longer.
    assert heard_ms(playback) == 1910


def test_what_was_said_while_sound_was_in_flight_does_not_say_when_it_came(clock, playback):
    playback.send("One", 1000)
    clock.advance(0.01)
    playback.report(told(0, 0))
    clock.advance(0.1)
    # It took 90 ms.
    playback.report(told(1000, 980))

    assert heard_ms(playback) == 20
    clock.advance(0.1)
    playback.report(told(1000, 880))
    assert heard_ms(playback) == 120


def test_a_coding_that_adds_some_sound_is_no_matter_in_the_next_answer(clock, playback):
    for answer in range(1, 21):
        playback.begin()
        playback.send("One", 1000)
        clock.advance(1.0 + ARRIVED_S)
        playback.report(told(answer * 1020, 0))
    playback.begin()
    playback.send("two", 1000)
    clock.advance(0.1)
    playback.report(told(20 * 1020, 0))

    assert heard_ms(playback) == 0


def test_what_was_never_sent_is_not_missed(clock, playback):
    playback.send("One", 3000)
    clock.advance(0.5)
    playback.cut()
    playback.unsend(2000)
    clock.advance(0.5)
    playback.begin()
    playback.send("two", 1000)
    clock.advance(0.5)
    playback.report(told(2000, 600))

    assert heard_ms(playback) == 400


def test_what_was_said_before_the_fence_is_no_news_behind_it(clock, playback):
    playback.send("One", 2000)
    clock.advance(0.5)
    playback.cut()

    assert playback.report(told(2000, 1500)) == 0.0
    assert not playback.is_heard


def test_nobody_waits_for_ever_for_a_client_that_never_plays(clock, playback):
    playback.send("One", 1000)
    for _ in range(100):
        clock.advance(1.0)
        playback.report(told(1000, 60_000))

    assert playback.ends_s <= max(clock.monotonic(), 1.0 + LATEST_S)


def test_what_was_said_before_the_fence_does_not_count_for_the_next_answer(clock, playback):
    playback.send("One", 1000)
    clock.advance(0.5)
    playback.report(told(1000, 100))
    playback.cut()
    playback.begin()
    playback.send("Two", 1000)
    clock.advance(0.2)

    playback.report(told(2000, 1000))

    assert playback.ends_s == pytest.approx(clock.monotonic() + 1.0)
