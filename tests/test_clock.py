from parley.clock import Backoff


def test_each_pause_is_twice_the_previous_one_up_to_the_longest():
    backoff = Backoff(1.0, 5.0)

    assert [backoff.take() for _ in range(5)] == [1.0, 2.0, 4.0, 5.0, 5.0]


def test_what_ran_long_enough_or_was_reset_is_started_again_after_the_shortest_pause():
    backoff = Backoff(1.0, 30.0, settled_s=60.0)

    assert [backoff.take(ran_s=ran_s) for ran_s in (0.0, 0.0, 59.0, 60.0, 0.0)] == [1, 2, 4, 1, 2]
    backoff.reset()
    assert backoff.take() == 1.0
