from parley.clock import Backoff


def test_each_pause_is_twice_the_previous_one_up_to_the_longest():
    backoff = Backoff(1.0, 5.0)

    assert [backoff.take() for _ in range(5)] == [1.0, 2.0, 4.0, 5.0, 5.0]


def test_what_ran_long_enough_is_started_again_after_the_shortest_pause():
    backoff = Backoff(1.0, 30.0, settled_s=60.0)
    backoff.take()
    backoff.take()

    assert backoff.take(ran_s=59.0) == 4.0
    assert backoff.take(ran_s=60.0) == 1.0


def test_a_reset_begins_with_the_shortest_pause():
    backoff = Backoff(0.5, 30.0)
    backoff.take()

    backoff.reset()

    assert backoff.take() == 0.5
