import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parley.engine.context import ContextLedger
from parley.engine.work import Window
from parley.errors import ContextFull

BASIC = Window("basic", high_tokens=100, low_tokens=70)
CONTEXT = Window("context", max_units=3, previous_max_tokens=5)


def book_with(window=None, system=20, suffix=2, marker=4, limit=8192):
    book = ContextLedger(limit, window, marker_tokens=marker)
    book.append(system)
    book.protect(suffix_tokens=suffix)
    return book


def unit(book, tokens=13, said=()):
    book.append(tokens)
    book.end_entry(said)


def test_lengths_add_up():
    book = book_with()
    unit(book, 13)
    book.append(5)

    assert (book.protected_tokens, book.open_tokens, book.length_tokens) == (20, 5, 38)


def test_what_does_not_fit_is_refused():
    book = book_with(limit=30)
    book.require(10)

    with pytest.raises(ContextFull, match="31 tokens, the limit is 30"):
        book.require(11)


def test_without_a_window_nothing_is_dropped():
    book = book_with()
    for _ in range(1000):
        unit(book)

    assert book.plan() is None


def test_the_basic_window_drops_whole_oldest_units_down_to_the_low_mark():
    book = book_with(BASIC)
    for _ in range(6):
        unit(book)
    assert book.plan() is None
    unit(book)

    plan = book.plan()

    assert plan.keep == ((0, 20), (20 + 4 * 13, 111))
    assert (plan.dropped_entries, plan.dropped_tokens, plan.length_tokens) == (4, 52, 59)
    assert plan.previous is None
    book.commit(plan)
    assert book.length_tokens == 59
    assert book.plan() is None


def test_the_open_entry_is_never_dropped():
    book = book_with(BASIC)
    unit(book, 10)
    book.append(90)

    plan = book.plan()

    assert plan.keep == ((0, 20), (30, 120))
    book.commit(plan)
    assert book.plan() is None
    assert book.length_tokens == 110


def test_a_system_prompt_inside_the_conversation_stays():
    book = book_with(BASIC)
    unit(book, 30)
    book.append(10)
    book.protect()
    unit(book, 50)

    plan = book.plan()

    assert plan.keep == ((0, 20), (50, 60))
    assert plan.length_tokens == 30


def test_the_context_window_keeps_the_newest_units():
    book = book_with(CONTEXT)
    for _ in range(3):
        unit(book)
    assert book.plan() is None
    unit(book)

    plan = book.plan()

    assert plan.keep == ((0, 20), (33, 72))
    assert plan.previous is None
    assert plan.length_tokens == 20 + 39


def test_what_dropped_units_said_is_carried_over_in_front_of_the_suffix():
    book = book_with(CONTEXT)
    unit(book, 15, said=(1, 2))
    for _ in range(3):
        unit(book)

    plan = book.plan()

    assert plan.keep == ((0, 18), (35, 74))
    assert plan.previous == (1, 2)
    assert plan.length_tokens == 18 + (4 + 2) + 2 + 39
    book.commit(plan)
    assert (book.protected_tokens, book.length_tokens) == (26, 65)


def test_what_is_carried_over_has_a_limit_and_loses_the_oldest():
    book = book_with(CONTEXT)
    unit(book, 20, said=(1, 2, 3))
    for _ in range(3):
        unit(book)
    book.commit(book.plan())
    unit(book, 20, said=(4, 5, 6))
    carried = []
    for _ in range(3):
        unit(book)
        plan = book.plan()
        carried.append(plan.previous)
        book.commit(plan)

    assert carried == [None, None, (2, 3, 4, 5, 6)]


def test_a_listening_unit_that_is_dropped_leaves_what_was_carried_alone():
    book = book_with(CONTEXT)
    unit(book, 15, said=(1, 2))
    for _ in range(3):
        unit(book)
    book.commit(book.plan())
    unit(book)

    plan = book.plan()

    assert plan.previous is None
    assert plan.keep == ((0, 26), (39, 78))
    assert plan.length_tokens == 26 + 39


def test_a_mark_brings_everything_back():
    book = book_with()
    unit(book)
    book.append(3)
    mark = book.mark()
    book.append(4)
    book.end_entry()
    unit(book)

    dropped = book.roll_back(mark)

    assert dropped == 4 + 13
    assert (book.length_tokens, book.open_tokens, len(book.entries)) == (36, 3, 1)
    assert book.can_roll_back(mark)


def test_a_mark_of_an_abandoned_history_is_void():
    book = book_with()
    early = book.mark()
    unit(book, 30)
    late = book.mark()
    book.roll_back(early)
    unit(book, 40)

    assert not book.can_roll_back(late)
    assert book.can_roll_back(early)
    with pytest.raises(ValueError, match="moved past"):
        book.roll_back(late)
    newer = book.mark()
    assert book.can_roll_back(newer)


def test_marks_are_void_once_the_window_has_moved():
    book = book_with(BASIC)
    for _ in range(7):
        unit(book)
    mark = book.mark()

    book.commit(book.plan())

    assert not book.can_roll_back(mark)


def test_no_more_than_the_open_entry_can_be_taken_back():
    book = book_with()
    book.append(5)
    book.cut(2)

    assert book.open_tokens == 3
    with pytest.raises(ValueError, match="cannot take back 4 of 3"):
        book.cut(4)


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from([BASIC, CONTEXT, Window()]),
    st.lists(st.tuples(st.integers(1, 60), st.lists(st.integers(0, 9), max_size=4)), max_size=40),
)
def test_plans_describe_exactly_what_is_left(window, units):
    """A list of positions stands for the cache: after every plan its length is the book's."""
    book = book_with(window)
    cache: list[object] = [*["system"] * 18, *["suffix"] * 2]
    for index, (tokens, said) in enumerate(units):
        cache += [index] * tokens
        unit(book, tokens, tuple(said))
        plan = book.plan()
        if plan is None:
            continue
        kept = [cache[start:stop] for start, stop in plan.keep]
        if plan.previous is not None:
            kept.insert(1, [*["marker"] * 4, *plan.previous, *["suffix"] * 2])
        cache = [position for part in kept for position in part]
        book.commit(plan)
        assert len(cache) == plan.length_tokens == book.length_tokens
        assert cache[:18] == ["system"] * 18
        assert cache[book.protected_tokens - 1] == "suffix"
        assert cache[-1] == index or book.length_tokens == book.protected_tokens
