from random import Random
from typing import NamedTuple

import pytest

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

    with pytest.raises(ContextFull, match="length is 30 tokens, the request has at least 31"):
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


def test_a_copy_stays_as_it_is():
    ledger = book_with()
    unit(ledger)
    ledger.append(3)
    kept = ledger.copy()
    ledger.append(4)
    ledger.end_entry()
    unit(ledger)

    assert (kept.length_tokens, len(kept.entries)) == (20 + 13 + 3, 1)


def test_no_more_than_the_open_entry_can_be_taken_back():
    ledger = book_with()
    ledger.append(5)
    ledger.cut(2)

    assert ledger.length_tokens == 20 + 3
    with pytest.raises(ValueError, match="cannot take back 4 of 3"):
        ledger.cut(4)
    with pytest.raises(ValueError, match="the suffix is longer"):
        ledger.protect(suffix_tokens=4)


class Entry(NamedTuple):
    number: int
    tokens: int
    said: tuple[int, ...]
    is_kept: bool


def dropped(window: Window, entries: list[Entry], length: int) -> list[Entry]:
    """The entries that leave a context of this length."""
    free = [entry for entry in entries if not entry.is_kept]
    if window.kind == "context":
        return free[: max(0, len(entries) - window.max_units)]
    found: list[Entry] = []
    if window.kind == "basic" and length > window.high_tokens:
        while free and length > window.low_tokens:
            found.append(free.pop(0))
            length -= found[-1].tokens
    return found


@pytest.mark.parametrize("window", [BASIC, CONTEXT, Window()], ids=lambda each: each.kind)
@pytest.mark.parametrize("seed", range(8))
def test_a_plan_leaves_what_the_rules_leave(window: Window, seed: int):
    """A list of positions stands for the cache: after every plan it is what the rules leave."""
    dice = Random(seed)
    ledger = ContextLedger(8192, window, marker_tokens=4)
    head: list[object] = []
    suffix_tokens = dice.choice((0, 2))
    for part in range(dice.randint(1, 3)):
        tokens = dice.choice((2, 20))
        ledger.append(tokens)
        ledger.protect(suffix_tokens=suffix_tokens)
        head += [("system", part)] * tokens
    front, suffix = head[: len(head) - suffix_tokens], head[len(head) - suffix_tokens :]
    cache, entries, evictions = [*head], list[Entry](), 0
    previous: tuple[int, ...] = ()

    for index in range(40):
        tokens, open_tokens = dice.choice((0, 13, dice.randint(1, 60))), dice.choice((0, 0, 50))
        said = tuple(dice.choices(range(10), k=dice.choice((0, 0, 1, 4))))
        is_kept = bool(entries) and dice.random() < 0.2
        ledger.append(tokens)
        cache += [index] * tokens
        if is_kept:
            ledger.protect()
        else:
            ledger.end_entry(said)
        if tokens:
            entries.append(Entry(index, tokens, () if is_kept else said, is_kept))
        ledger.append(open_tokens)
        cache += ["open"] * open_tokens

        if dice.random() < 0.3:
            ledger.cut(open_tokens)
            del cache[len(cache) - open_tokens :]
            continue

        plan = ledger.plan()

        gone = dropped(window, entries, len(cache))
        assert (plan is None) == (not gone)
        if plan is not None:
            kept = [cache[start:stop] for start, stop in plan.keep]
            rewrites = plan.previous is not None
            borders = zip(plan.keep[rewrites:], plan.keep[1 + rewrites :], strict=False)
            assert all(before[1] < after[0] for before, after in borders), "ranges are joined"
            assert all(start < stop for start, stop in plan.keep[1:])
            if plan.previous is not None:
                assert plan.previous != previous
                kept.insert(1, [*["marker"] * 4, *plan.previous, *suffix])
            cache = [position for part in kept for position in part]
            assert plan.dropped_tokens == sum(entry.tokens for entry in gone)
            assert (plan.dropped_entries, plan.length_tokens) == (len(gone), len(cache))
            ledger.commit(plan)
            evictions += 1
        entries = [entry for entry in entries if entry not in gone]
        if window.kind == "context":
            previous = (*previous, *(word for entry in gone for word in entry.said))
            previous = previous[-window.previous_max_tokens :]
        carried: list[object] = [*["marker"] * 4, *previous] if previous else []
        units = [entry.number for entry in entries for _ in range(entry.tokens)]
        assert cache == [*front, *carried, *suffix, *units, *["open"] * open_tokens]
        assert (ledger.length_tokens, ledger.evictions) == (len(cache), evictions)
        assert ledger.protected_tokens == len(head) + len(carried)
        ledger.cut(open_tokens)
        del cache[len(cache) - open_tokens :]
