"""When a cluster is asked for more workers, and when one is given back."""

import random

from parley.executor.scaling import Demand, Scaling


def scaling(least: int = 1, most: int = 4) -> Scaling:
    return Scaling(least, most, up_after_s=10, down_after_s=100)


def test_a_person_must_have_waited_a_moment_before_more_is_asked_for():
    policy = scaling()
    busy = Demand(waiting=1, running=1)

    assert policy.wanted(busy, 1, 0) == 1
    assert policy.wanted(busy, 1, 9) == 1
    assert policy.wanted(busy, 1, 10) == 2
    # A queue that was empty in between begins again.
    assert policy.wanted(Demand(waiting=0, running=1), 1, 15) == 1
    assert policy.wanted(busy, 1, 22) == 1


def test_as_many_as_serve_everybody_who_waits_and_what_loads_is_counted():
    policy = scaling(most=8)
    rush = Demand(waiting=9, running=4, slots=4)
    policy.wanted(rush, 1, 0)

    assert policy.wanted(rush, 1, 10) == 4
    assert policy.wanted(rush, 4, 20) == 4, "three of them load still"
    assert policy.wanted(Demand(waiting=90, running=4, slots=4), 4, 21) == 8


def test_one_is_given_back_after_nobody_needed_it_for_long_and_never_the_last():
    policy = scaling()
    quiet = Demand(waiting=0, running=1)

    assert policy.wanted(quiet, 3, 0) == 3
    assert policy.wanted(quiet, 3, 99) == 3
    assert policy.wanted(quiet, 3, 100) == 2
    assert policy.wanted(quiet, 2, 101) == 1
    assert policy.wanted(Demand(0, 0), 1, 1000) == 1
    # A rush in between keeps them.
    assert policy.wanted(quiet, 3, 2000) == 3
    assert policy.wanted(Demand(0, 3), 3, 2050) == 3
    assert policy.wanted(quiet, 3, 2120) == 3


def test_the_bounds_hold_whatever_comes():
    chance = random.Random(4)
    policy, workers, now = scaling(least=2, most=5), 2, 0.0
    for _ in range(2000):
        now += chance.random() * 30
        demand = Demand(chance.choice((0, 0, 1, 7)), chance.randrange(8), chance.choice((1, 4)))
        workers = policy.wanted(demand, workers, now)
        assert 2 <= workers <= 5
