import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parley.engine.context import UNIT_ROOM, ContextLedger
from parley.engine.work import Window
from parley.errors import ContextFull

BASIC = Window("basic", high_tokens=100, low_tokens=70)
CONTEXT = Window("context", max_units=3, previous_max_tokens=5)


def book_with(window=None, system=20, suffix=2, marker=4, limit=8192):
    ledger = ContextLedger(limit, window, marker_tokens=marker)
    ledger.append(system)
    ledger.protect(suffix_tokens=suffix)
    return ledger


def unit(ledger, tokens=13, said=()):
    ledger.append(tokens)
    ledger.end_entry(said)


def test_what_does_not_fit_is_refused():
    ledger = book_with(limit=30)
    ledger.require(10)

    with pytest.raises(ContextFull, match="length is 30 tokens, the request has 31"):
        ledger.require(11)
    ledger.room_tokens = 29
    with pytest.raises(ContextFull, match="length is 29 tokens"):
        ledger.require(10)


def test_both_marks_are_lowered_in_proportion_if_there_is_less_memory():
    ledger = book_with(Window("basic", high_tokens=200, low_tokens=100))
    ledger.room_tokens = UNIT_ROOM + 100
    for _ in range(6):
        unit(ledger)
    assert ledger.plan() is None
    unit(ledger)

    assert ledger.plan().length_tokens == 46, "the most units within half of 100"
    ledger.room_tokens = UNIT_ROOM // 2
    assert ledger.plan().dropped_entries == 7


def test_without_a_window_nothing_is_dropped():
    ledger = book_with()
    for _ in range(1000):
        unit(ledger)

    assert ledger.plan() is None


@pytest.mark.parametrize("room_tokens", [None, 10_000])
def test_the_basic_window_drops_whole_oldest_units_down_to_the_low_mark(room_tokens):
    ledger = book_with(BASIC)
    ledger.room_tokens = room_tokens
    for _ in range(6):
        unit(ledger)
    assert ledger.plan() is None
    unit(ledger)

    plan = ledger.plan()

    assert plan.keep == ((0, 20), (20 + 4 * 13, 111))
    assert (plan.dropped_entries, plan.dropped_tokens, plan.length_tokens) == (4, 52, 59)
    assert plan.previous is None
    ledger.commit(plan)
    assert ledger.length_tokens == 59
    assert ledger.plan() is None


def test_the_open_entry_is_never_dropped():
    ledger = book_with(BASIC)
    unit(ledger, 10)
    ledger.append(90)

    plan = ledger.plan()

    assert plan.keep == ((0, 20), (30, 120))
    ledger.commit(plan)
    assert ledger.plan() is None
    assert ledger.length_tokens == 110


def test_a_system_prompt_inside_the_conversation_stays():
    ledger = book_with(BASIC)
    unit(ledger, 30)
    ledger.append(10)
    ledger.protect()
    unit(ledger, 50)

    plan = ledger.plan()

    assert plan.keep == ((0, 20), (50, 60))
    assert plan.length_tokens == 30


def test_a_system_prompt_that_stays_makes_no_room():
    ledger = book_with(BASIC)
    unit(ledger, 10)
    ledger.append(20)
    ledger.protect()
    unit(ledger, 30)
    unit(ledger, 30)

    plan = ledger.plan()

    assert plan is not None
    assert (plan.dropped_entries, plan.length_tokens) == (2, 70)


def test_the_context_window_keeps_the_newest_units():
    ledger = book_with(CONTEXT)
    for _ in range(3):
        unit(ledger)
    assert ledger.plan() is None
    unit(ledger)

    plan = ledger.plan()

    assert plan.keep == ((0, 20), (33, 72))
    assert plan.previous is None
    assert plan.length_tokens == 20 + 39


def test_what_dropped_units_said_is_carried_over_in_front_of_the_suffix():
    ledger = book_with(CONTEXT)
    unit(ledger, 15, said=(1, 2))
    for _ in range(3):
        unit(ledger)

    plan = ledger.plan()

    assert plan.keep == ((0, 18), (35, 74))
    assert plan.previous == (1, 2)
    assert plan.length_tokens == 18 + (4 + 2) + 2 + 39
    ledger.commit(plan)
    assert (ledger.protected_tokens, ledger.length_tokens) == (26, 65)


def test_what_is_carried_over_has_a_limit_and_loses_the_oldest():
    ledger = book_with(CONTEXT)
    unit(ledger, 20, said=(1, 2, 3))
    for _ in range(3):
        unit(ledger)
    ledger.commit(ledger.plan())
    unit(ledger, 20, said=(4, 5, 6))
    carried = []
    for _ in range(3):
        unit(ledger)
        plan = ledger.plan()
        carried.append(plan.previous)
        ledger.commit(plan)

    assert carried == [None, None, (2, 3, 4, 5, 6)]


def test_a_copy_stays_as_it_is():
    ledger = book_with()
    unit(ledger)
    ledger.append(3)
    kept = ledger.copy()
    ledger.append(4)
    ledger.end_entry()
    unit(ledger)

    assert (kept.length_tokens, len(kept.entries)) == (20 + 13 + 3, 1)


def test_a_window_that_moves_is_counted():
    ledger = book_with(BASIC)
    for _ in range(7):
        unit(ledger)
    kept = ledger.copy()

    ledger.commit(ledger.plan())

    assert ledger.evictions == kept.evictions + 1


def test_no_more_than_the_open_entry_can_be_taken_back():
    ledger = book_with()
    ledger.append(5)
    ledger.cut(2)

    assert ledger.length_tokens == 20 + 3
    with pytest.raises(ValueError, match="cannot take back 4 of 3"):
        ledger.cut(4)


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from([BASIC, CONTEXT, Window()]),
    st.lists(st.tuples(st.integers(1, 60), st.lists(st.integers(0, 9), max_size=4)), max_size=40),
)
def test_plans_describe_exactly_what_is_left(window, units):
    """A list of positions stands for the cache: after every plan its length is the ledger's."""
    ledger = book_with(window)
    cache: list[object] = [*["system"] * 18, *["suffix"] * 2]
    for index, (tokens, said) in enumerate(units):
        cache += [index] * tokens
        unit(ledger, tokens, tuple(said))
        plan = ledger.plan()
        if plan is None:
            continue
        kept = [cache[start:stop] for start, stop in plan.keep]
        if plan.previous is not None:
            kept.insert(1, [*["marker"] * 4, *plan.previous, *["suffix"] * 2])
        cache = [position for part in kept for position in part]
        ledger.commit(plan)
        assert len(cache) == plan.length_tokens == ledger.length_tokens
        assert cache[:18] == ["system"] * 18
        assert cache[ledger.protected_tokens - 1] == "suffix"
        assert cache[-1] == index or ledger.length_tokens == ledger.protected_tokens
