import pytest
from tests.support.present import present

from parley.engine.slots import SlotKey, Slots, WorkQueue


def test_rows_are_taken_until_none_is_left():
    slots = Slots(2)

    first, second, third = present(slots.take()), present(slots.take()), slots.take()

    assert (first.row, second.row) == (0, 1)
    assert third is None
    assert slots.free == 0


def test_a_new_tenant_has_a_new_generation():
    slots = Slots(1)
    old = present(slots.take())
    slots.release(old)

    new = present(slots.take())

    assert new == SlotKey(0, old.generation + 1)
    assert slots.is_current(new)
    assert not slots.is_current(old)


def test_only_the_tenant_can_release_and_only_once():
    slots = Slots(1)
    old = present(slots.take())
    assert slots.release(old)
    assert not slots.release(old)
    new = present(slots.take())

    assert not slots.release(old)
    assert slots.free == 0
    assert slots.release(new)
    assert not slots.is_current(new)


def test_the_row_that_rested_longest_is_next():
    slots = Slots(3)
    tenancies = [present(slots.take()) for _ in range(3)]
    for index in (1, 0, 2):
        slots.release(tenancies[index])

    assert [present(slots.take()).row for _ in range(3)] == [1, 0, 2]


def test_an_engine_without_rows_makes_no_sense():
    with pytest.raises(ValueError, match="at least one row, got 0"):
        Slots(0)


def test_work_of_a_row_keeps_its_order():
    order: WorkQueue[str] = WorkQueue(2)
    for item in ("a", "b"):
        order.add(0, item)
    order.add(1, "c")

    assert order.advance() == "a"
    assert order.advance() == "c"
    assert order.advance() is None
    order.finish(0)
    assert order.advance() == "b"
    assert order.current == ["b", "c"]
    assert order.count == 2


def test_clearing_gives_what_ran_and_what_waited():
    order: WorkQueue[str] = WorkQueue(1)
    for item in ("a", "b", "c"):
        order.add(0, item)
    order.advance()

    assert order.clear(0) == ["a", "b", "c"]
    assert order.count == 0
    assert order.clear(0) == []
