"""Queue, fleet and dispatcher together, on a clock that tests move."""

import random
import re
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from parley.clock import ManualClock
from parley.errors import QueueFull, ServiceUnavailable, WorkerConnectFailed
from parley.gateway.dispatcher import Dispatcher
from parley.gateway.eta import EtaTracker
from parley.gateway.fleet import Fleet, Lease, Worker
from parley.gateway.queue import Queue, Ticket
from parley.protocol.control import Beat, Hello, SessionPhase
from parley.settings import EtaSettings


@dataclass
class House:
    limit: int = 1000
    clock: ManualClock = field(default_factory=ManualClock)

    def __post_init__(self) -> None:
        self.eta = EtaTracker(EtaSettings(chat_s=20))
        self.fleet = Fleet(self.clock, self.eta)
        self.queue = Queue(self.limit)
        self.dispatcher = Dispatcher(
            queue=self.queue, fleet=self.fleet, eta=self.eta, clock=self.clock
        )

    def worker(self, name: str = "w0", *, slots: int = 1, pid: int = 1, **more) -> Worker:
        hello = Hello(name, f"http://{name}", slots, "parrot", "cpu", "1", pid, **more)
        return self.fleet.welcome(hello, object())

    def ask(self, task="chat", name: str = "") -> Ticket:
        return self.dispatcher.submit(task, session_id=name)

    def says(self, worker: Worker, lease, phase, **more) -> None:
        self.fleet.phase(
            worker, SessionPhase(lease.lease_id, lease.session_id, lease.task, phase, **more)
        )

    def beats(self, worker: Worker, state="idle", free: int = 1) -> None:
        self.fleet.heard(worker, Beat(state, free, 0, 0, 0))


def held(ticket: Ticket) -> Lease:
    assert ticket.lease is not None
    return ticket.lease


def test_an_idle_worker_is_given_at_once_without_waiting():
    house = House()
    house.worker()

    ticket = house.ask()

    assert (ticket.state, ticket.position, ticket.estimated_wait_s) == ("leased", 0, 0)
    assert re.fullmatch(r"q_[0-9a-f]{12}", ticket.ticket_id)


def test_order_is_strict_across_kinds_of_tasks():
    house = House()
    worker = house.worker()
    first = house.ask("omni_duplex")
    others = [house.ask("chat"), house.ask("half_duplex_audio"), house.ask("audio_duplex")]
    positions = [ticket.position for ticket in others]

    held(first).release()

    assert positions == [1, 2, 3]
    assert [ticket.state for ticket in others] == ["leased", "waiting", "waiting"]
    assert [ticket.position for ticket in others] == [0, 1, 2]
    assert len(worker.leases) == 1


def test_a_newcomer_does_not_overtake_when_a_worker_is_idle():
    house = House()
    worker = house.worker()
    house.beats(worker, "loading", free=0)
    waiting = house.ask()

    house.beats(worker, "idle", free=1)
    newcomer = house.ask()

    assert (waiting.state, newcomer.state) == ("leased", "waiting")


def test_one_more_than_the_limit_is_refused():
    house = House(limit=3)
    house.worker()
    for _ in range(4):
        house.ask()

    with pytest.raises(QueueFull, match=re.escape("Queue full (3 requests)")):
        house.ask()


def test_cancelling_moves_the_others_up_and_tells_them():
    house = House()
    house.worker()
    house.ask()
    first, second = house.ask(), house.ask()
    told = []
    second.changed = lambda: told.append(second.position)

    house.dispatcher.cancel(first)

    assert told == [1]
    assert first.state == "cancelled"


def test_a_client_that_left_between_assignment_and_use_gives_the_slot_back():
    house = House()
    house.worker()
    leased, waiting = house.ask(), house.ask()

    house.dispatcher.cancel(leased)

    assert waiting.state == "leased"


def test_releasing_twice_frees_one_slot():
    house = House()
    worker = house.worker(slots=2)
    leases = [held(house.ask()), held(house.ask())]
    house.ask(), house.ask()

    leases[0].release()
    leases[0].release()

    assert len(worker.leases) == 2
    assert len(house.queue) == 1


def test_a_slot_stays_taken_until_the_worker_has_cleaned_up():
    house = House()
    worker = house.worker()
    ticket, waiting = house.ask(), house.ask()
    house.says(worker, held(ticket), "active", was_ready=True)

    held(ticket).release()
    state_before = (waiting.state, worker.view)
    house.says(worker, held(ticket), "ended", was_ready=True)

    assert state_before == ("waiting", "cleanup")
    assert waiting.state == "leased"


def test_a_slot_whose_end_was_never_told_is_reclaimed_after_two_idle_beats():
    house = House()
    worker = house.worker()
    ticket, waiting = house.ask(), house.ask()
    house.says(worker, held(ticket), "active")
    held(ticket).release()

    house.beats(worker, free=1)
    after_one = waiting.state
    house.beats(worker, free=1)

    assert (after_one, waiting.state) == ("waiting", "leased")


def test_a_late_beat_does_not_hand_out_a_slot_twice():
    house = House()
    worker = house.worker()
    house.ask()

    house.beats(worker, free=1)  # written before the worker saw the session
    second = house.ask()

    assert second.state == "waiting"


def test_estimates_fall_as_time_passes():
    house = House()
    house.worker()
    house.ask()
    waiting = house.ask()
    at_first = waiting.estimated_wait_s

    house.clock.advance(5)
    house.dispatcher.refresh()

    assert (at_first, waiting.estimated_wait_s) == (20, 15)


def test_a_paused_session_counts_with_what_is_left_of_its_pause():
    house = House()
    worker = house.worker()
    running = house.ask("omni_duplex")
    house.says(worker, held(running), "paused", pause_left_s=12)

    waiting = house.ask()

    assert waiting.estimated_wait_s == 12
    assert worker.view == "duplex_paused"


def test_a_loading_worker_counts_thirty_seconds():
    house = House()
    house.fleet.expected_workers = 1

    assert house.ask().estimated_wait_s == 30


def test_without_a_usable_worker_the_estimate_is_unknown():
    house = House()
    worker = house.worker()
    house.beats(worker, "error", free=0)

    assert house.ask().estimated_wait_s is None


def test_sessions_that_never_got_ready_do_not_feed_the_average():
    house = House()
    worker = house.worker()

    for was_ready in (False, True):
        ticket = house.ask()
        house.says(worker, held(ticket), "active", was_ready=was_ready)
        house.clock.advance(7)
        house.says(worker, held(ticket), "ended", was_ready=was_ready)
        held(ticket).release()

    assert house.eta.samples["chat"] == 1
    assert house.eta.averages["chat"] == 7


def test_slots_of_one_worker_are_leased_one_by_one():
    house = House()
    house.worker(slots=3)

    tickets = [house.ask() for _ in range(4)]

    assert [ticket.state for ticket in tickets] == ["leased"] * 3 + ["waiting"]
    assert tickets[3].estimated_wait_s == 20


def test_work_spreads_over_workers():
    house = House()
    first, second = house.worker("a", slots=2), house.worker("b", slots=2)

    house.ask(), house.ask()

    assert (len(first.leases), len(second.leases)) == (1, 1)


def test_an_unreachable_worker_does_not_drain_the_queue():
    house = House()
    worker = house.worker()
    tickets = [house.ask() for _ in range(10)]

    house.dispatcher.worker_failed(tickets[0])

    assert worker.view == "offline"
    assert [ticket.position for ticket in tickets] == list(range(1, 11))
    assert all(ticket.state == "waiting" for ticket in tickets)


def test_a_ticket_is_refused_after_the_second_worker_failed():
    house = House()
    house.worker("a")
    house.worker("b")
    ticket = house.ask()

    house.dispatcher.worker_failed(ticket)
    state_between = ticket.state
    house.dispatcher.worker_failed(ticket)

    assert state_between == "leased"  # by the other worker
    assert ticket.state == "refused"
    assert isinstance(ticket.refusal, WorkerConnectFailed)


def test_a_silent_worker_is_offline_and_its_leases_are_lost():
    house = House()
    worker = house.worker()
    ticket = house.ask()
    lost = []
    held(ticket).lost = lambda: lost.append(True)

    house.clock.advance(5.1)
    house.fleet.sweep()
    held(ticket).release()

    assert lost == [True]
    assert worker.view == "offline"
    assert house.ask().state == "waiting"


def test_a_lost_slot_is_served_again_only_by_a_new_hello():
    house = House()
    worker = house.worker(pid=1)
    ticket, waiting = house.ask(), house.ask()
    house.says(worker, held(ticket), "active")
    house.clock.advance(6)
    house.fleet.sweep()
    held(ticket).release()
    state_before = waiting.state

    house.worker(pid=2)

    assert (state_before, waiting.state) == ("waiting", "leased")


def test_a_worker_that_reconnects_keeps_its_sessions():
    house = House()
    worker = house.worker(pid=1)
    ticket = house.ask()
    house.says(worker, held(ticket), "active")

    house.fleet.disconnected(worker)
    again = house.worker(pid=1)

    assert not held(ticket).is_lost
    assert again.free_slots == 0


def test_a_new_process_under_a_known_name_has_lost_the_old_sessions():
    house = House()
    house.worker(pid=1)
    ticket = house.ask()

    house.worker(pid=2)

    assert held(ticket).is_lost


def test_newcomers_are_refused_when_no_worker_lived_for_a_minute():
    house = House()
    worker = house.worker()
    house.fleet.left(worker)
    early = house.ask()

    house.clock.advance(61)
    house.fleet.sweep()

    assert early.state == "waiting"
    with pytest.raises(ServiceUnavailable, match="No worker is connected"):
        house.ask()


def test_a_task_nobody_offers_is_refused_and_does_not_block_the_others():
    house = House()
    both = house.worker("a")
    waiting = [house.ask("chat"), house.ask("omni_duplex"), house.ask("chat")]
    house.worker("b", modes=("chat",))

    house.fleet.left(both)

    assert [ticket.state for ticket in waiting] == ["leased", "waiting", "leased"]
    with pytest.raises(ServiceUnavailable, match="No worker offers this way of talking"):
        house.ask("omni_duplex")


class _Owner:
    def __init__(self) -> None:
        self.end: Callable = lambda _: None

    def add_done_callback(self, callback):
        self.end = callback


def test_a_lease_whose_owner_ended_is_reclaimed():
    house = House()
    house.worker()
    owner = _Owner()
    house.dispatcher.submit("chat", session_id="", owner=owner)
    waiting = house.ask()

    owner.end(owner)

    assert waiting.state == "leased"


@pytest.mark.parametrize("seed", range(20))
def test_no_slot_is_lost_or_given_twice_in_a_random_day(seed: int):
    random_ = random.Random(seed)
    house = House(limit=20)
    workers = {name: house.worker(name, slots=slots) for name, slots in (("a", 1), ("b", 3))}
    tickets: list[Ticket] = []

    for _ in range(400):
        match random_.randrange(7):
            case 0 | 1:
                if len(house.queue) < 20:
                    tickets.append(house.ask())
            case 2 if tickets:
                house.dispatcher.cancel(random_.choice(tickets))
            case 3 if tickets:
                house.dispatcher.worker_failed(random_.choice(tickets))
            case 4 if tickets:
                lease = random_.choice(tickets).lease
                if lease is not None and not lease.is_lost:
                    phase = random_.choice(["preparing", "active", "paused", "ended"])
                    house.says(lease.worker, lease, phase, was_ready=True)
            case 5:
                _, worker = random_.choice(list(workers.items()))
                busy = sum(lease.phase is not None for lease in worker.leases.values())
                house.beats(worker, free=worker.slots - busy)
                house.fleet.reachable(worker)
            case 6:
                house.clock.advance(random_.random())
        for worker in house.fleet:
            assert len(worker.leases) + len(worker.closing) <= worker.slots
        for index, ticket in enumerate(house.queue, start=1):
            assert (ticket.position, ticket.state) == (index, "waiting")

    for ticket in tickets:
        house.dispatcher.cancel(ticket)
    for worker in house.fleet:
        house.fleet.reachable(worker)
        for _ in range(2):
            house.beats(worker, free=worker.slots)
    assert [worker.free_slots for worker in house.fleet] == [1, 3]
