"""Who has a file decoded next: timelines of jobs that take no time, with the real order."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tests.support.patience import HANG_S

from parley.errors import ServiceUnavailable
from parley.media.decoding_order import WAITING_PER_OWNER, DecodingOrder, Stop


class Jobs:
    """Jobs in threads of their own; `started` lists those that had their turn, in order."""

    def __init__(self, order: DecodingOrder) -> None:
        self.order = order
        self.begun: list[str] = []
        self._threads: list[threading.Thread] = []
        self._ends: dict[str, threading.Event] = {}
        self._changed = threading.Condition()

    def start(self, name: str, owner: str, cost: float) -> None:
        self._ends[name] = threading.Event()
        thread = threading.Thread(target=self._work, args=(name, owner, cost))
        self._threads.append(thread)
        before = self.order._joined
        thread.start()
        while self.order._joined == before:
            assert thread.is_alive()

    def _work(self, name: str, owner: str, cost: float) -> None:
        with self.order.turn(owner, cost, Stop(), wait_s=HANG_S):
            with self._changed:
                self.begun.append(name)
                self._changed.notify_all()
            assert self._ends[name].wait(HANG_S)

    def end(self, name: str) -> None:
        self.until_begun(name)
        self._ends[name].set()

    def until_begun(self, name: str) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: name in self.begun, HANG_S)

    def close(self) -> None:
        for end in self._ends.values():
            end.set()
        for thread in self._threads:
            thread.join(HANG_S)


@contextmanager
def jobs(places: int) -> Iterator[Jobs]:
    running = Jobs(DecodingOrder(places))
    try:
        yield running
    finally:
        running.close()


@pytest.mark.parametrize(
    ("started", "order"),
    [
        # An address with many files stands behind one with one.
        (
            [("hog 0", 1), ("hog 1", 1), ("hog 2", 1), ("guest", 9)],
            ["hog 0", "guest", "hog 1", "hog 2"],
        ),
        # Small jobs go first.
        ([("a", 1), ("b", 50), ("c", 2)], ["a", "c", "b"]),
    ],
)
def test_who_is_next(started: list[tuple[str, float]], order: list[str]) -> None:
    with jobs(1) as running:
        for name, cost in started:
            running.start(name, name.split()[0], cost)
        for name in order:
            running.end(name)

        assert running.begun == order


def test_an_address_has_one_job_at_a_time_though_places_are_free() -> None:
    with jobs(2) as running:
        running.start("first", "hog", 1.0)
        running.start("second", "hog", 1.0)
        running.start("guest", "guest", 1.0)

        running.until_begun("guest")
        assert running.begun == ["first", "guest"]
        running.end("first")
        running.until_begun("second")


def test_one_address_may_let_only_so_many_wait() -> None:
    with jobs(1) as running:
        for index in range(1 + WAITING_PER_OWNER):
            running.start(str(index), "hog", 1.0)

        with (
            pytest.raises(ServiceUnavailable, match="16 files of yours wait"),
            running.order.turn("hog", 1.0, Stop(), wait_s=0.0),
        ):
            pytest.fail("it had a turn")
        running.start("guest", "guest", 1.0)


def test_who_gave_up_leaves_nothing_behind() -> None:
    order = DecodingOrder(1)

    with (
        order.turn("a", 1.0, Stop(), wait_s=0.0),
        pytest.raises(ServiceUnavailable, match="The decoder is busy with other files"),
        order.turn("b", 1.0, Stop(), wait_s=0.001),
    ):
        pytest.fail("it had a turn")

    assert (order._waiting, order._running, order._served, order._free) == ([], {}, {}, 1)


def test_a_job_that_is_cancelled_leaves_the_queue_and_has_no_turn() -> None:
    order, stop = DecodingOrder(1), Stop()

    def ask() -> None:
        with (
            pytest.raises(ServiceUnavailable, match="cancelled"),
            order.turn("b", 1.0, stop, wait_s=10 * HANG_S),
        ):
            pytest.fail("it had a turn")

    with order.turn("a", 1.0, Stop(), wait_s=0.0):
        waiting = threading.Thread(target=ask)
        waiting.start()
        while order._joined == 1:
            assert waiting.is_alive()
        stop.set()
        waiting.join(HANG_S)
        assert not waiting.is_alive()
    ask()

    assert (order._waiting, order._running, order._served, order._free) == ([], {}, {}, 1)
