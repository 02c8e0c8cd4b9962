"""Queue, worker_pool and dispatcher together, on a clock that tests move."""

import random
import re
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from parley.clock import ManualClock
from parley.errors import QueueFull, ServiceUnavailable, WorkerConnectFailed
from parley.gateway.dispatcher import Dispatcher
from parley.gateway.eta import EtaTracker
from parley.gateway.queue import Queue, Ticket
from parley.gateway.worker_pool import Lease, Worker, WorkerPool
from parley.protocol.control import Heartbeat, Hello, SessionPhase
from parley.protocol.kinds import Kind, Phase
from parley.settings import EtaSettings


@dataclass
class House:
    limit: int = 1000
    clock: ManualClock = field(default_factory=ManualClock)

    def __post_init__(self) -> None:
        self.eta = EtaTracker(EtaSettings(chat_s=20))
        self.worker_pool = WorkerPool(self.clock, self.eta)
        self.queue = Queue(self.limit)
        self.dispatcher = Dispatcher(
            queue=self.queue, worker_pool=self.worker_pool, eta=self.eta, clock=self.clock
        )

    def worker(self, name: str = "w0", *, slots: int = 1, pid: int = 1, **more) -> Worker:
        hello = Hello(name, f"http://{name}", slots, "parrot", "cpu", "1", pid, **more)
        return self.worker_pool.welcome(hello, object())

    def ask(self, kind="chat", name: str = "") -> Ticket:
        return self.dispatcher.submit(Kind(kind), session_id=name)

    def says(self, worker: Worker, lease, phase, **more) -> None:
        self.worker_pool.phase(
            worker, SessionPhase(lease.lease_id, lease.session_id, lease.kind, Phase(phase), **more)
        )

    def heartbeats(self, worker: Worker, state="idle", free: int = 1) -> None:
        self.worker_pool.heard(worker, Heartbeat(state, free, 0, 0, 0))


def held(ticket: Ticket) -> Lease:
    assert ticket.lease is not None
    return ticket.lease


def test_an_idle_worker_is_given_at_once_without_waiting():
    runtime = House()
    runtime.worker()

    ticket = runtime.ask()

    assert (ticket.state, ticket.position, ticket.estimated_wait_s) == ("leased", 0, 0)
    assert re.fullmatch(r"q_[0-9a-f]{32}", ticket.ticket_id)


def test_order_is_strict_across_kinds_of_tasks():
    runtime = House()
    worker = runtime.worker()
    first = runtime.ask("omni_duplex")
    others = [runtime.ask("chat"), runtime.ask("half_duplex_audio"), runtime.ask("audio_duplex")]
    positions = [ticket.position for ticket in others]

    held(first).release()

    assert positions == [1, 2, 3]
    assert [ticket.state for ticket in others] == ["leased", "waiting", "waiting"]
    assert [ticket.position for ticket in others] == [0, 1, 2]
    assert len(worker.leases) == 1


def test_a_newcomer_does_not_overtake_when_a_worker_is_idle():
    runtime = House()
    worker = runtime.worker()
    runtime.heartbeats(worker, "loading", free=0)
    waiting = runtime.ask()

    runtime.heartbeats(worker, "idle", free=1)
    newcomer = runtime.ask()

    assert (waiting.state, newcomer.state) == ("leased", "waiting")


def test_one_more_than_the_limit_is_refused():
    runtime = House(limit=3)
    runtime.worker()
    for _ in range(4):
        runtime.ask()

    with pytest.raises(QueueFull, match=re.escape("Queue full (3 requests)")):
        runtime.ask()


def test_cancelling_moves_the_others_up_and_tells_them():
    runtime = House()
    runtime.worker()
    runtime.ask()
    first, second = runtime.ask(), runtime.ask()
    told = []
    second.changed.listen(lambda: told.append(second.position))

    runtime.dispatcher.cancel(first)

    assert told == [1]
    assert first.state == "cancelled"


def test_a_client_that_left_between_assignment_and_use_gives_the_slot_back():
    runtime = House()
    runtime.worker()
    leased, waiting = runtime.ask(), runtime.ask()

    runtime.dispatcher.cancel(leased)

    assert waiting.state == "leased"


def test_releasing_twice_frees_one_slot():
    runtime = House()
    worker = runtime.worker(slots=2)
    leases = [held(runtime.ask()), held(runtime.ask())]
    runtime.ask(), runtime.ask()

    leases[0].release()
    leases[0].release()

    assert len(worker.leases) == 2
    assert len(runtime.queue) == 1


def test_a_slot_stays_taken_until_the_worker_has_cleaned_up():
    runtime = House()
    worker = runtime.worker()
    ticket, waiting = runtime.ask(), runtime.ask()
    runtime.says(worker, held(ticket), "active", was_ready=True)

    held(ticket).release()
    state_before = (waiting.state, worker.view)
    runtime.says(worker, held(ticket), "ended", was_ready=True)

    assert state_before == ("waiting", "cleanup")
    assert waiting.state == "leased"


def test_a_slot_whose_end_was_never_told_is_reclaimed_after_two_idle_beats():
    runtime = House()
    worker = runtime.worker()
    ticket, waiting = runtime.ask(), runtime.ask()
    runtime.says(worker, held(ticket), "active")
    held(ticket).release()

    runtime.heartbeats(worker, free=1)
    after_one = waiting.state
    runtime.heartbeats(worker, free=1)

    assert (after_one, waiting.state) == ("waiting", "leased")


def test_a_late_beat_does_not_hand_out_a_slot_twice():
    runtime = House()
    worker = runtime.worker()
    runtime.ask()

    runtime.heartbeats(worker, free=1)  # written before the worker saw the session
    second = runtime.ask()

    assert second.state == "waiting"


def test_estimates_fall_as_time_passes():
    runtime = House()
    runtime.worker()
    runtime.ask()
    waiting = runtime.ask()
    at_first = waiting.estimated_wait_s

    runtime.clock.advance(5)
    runtime.dispatcher.refresh()

    assert (at_first, waiting.estimated_wait_s) == (20, 15)


def test_a_paused_session_counts_with_what_is_left_of_its_pause():
    runtime = House()
    worker = runtime.worker()
    running = runtime.ask("omni_duplex")
    runtime.says(worker, held(running), "paused", pause_left_s=12)

    waiting = runtime.ask()

    assert waiting.estimated_wait_s == 12
    assert worker.view == "duplex_paused"


def test_a_loading_worker_counts_thirty_seconds():
    runtime = House()
    runtime.worker_pool.process_begins(0)

    assert runtime.ask().estimated_wait_s == 30


def test_a_worker_that_takes_longer_to_load_is_expected_later_and_later():
    runtime = House()
    runtime.worker_pool.process_begins(0)
    ticket = runtime.ask()
    runtime.clock.advance(10)
    runtime.dispatcher.refresh()
    in_time = ticket.estimated_wait_s
    runtime.clock.advance(110)
    runtime.dispatcher.refresh()

    assert (in_time, ticket.estimated_wait_s) == (20, 60)


def test_the_next_load_is_expected_to_take_as_long_as_the_last():
    runtime = House()
    runtime.worker_pool.process_begins(0, pid=1)
    runtime.clock.advance(200)
    worker = runtime.worker(pid=1)
    runtime.worker_pool.process_ended(0, worker.hello.pid)
    runtime.worker_pool.process_begins(0, in_s=2)

    assert runtime.ask().estimated_wait_s == 202


def test_a_worker_that_hangs_is_not_one_that_loads():
    runtime = House()
    runtime.worker_pool.process_begins(0, pid=1)
    runtime.worker(pid=1)

    runtime.clock.advance(6)
    (silent,) = runtime.worker_pool.sweep()

    assert silent.view == "offline"
    assert runtime.worker_pool.loading_workers == 0
    assert runtime.ask().estimated_wait_s is None
    assert runtime.worker_pool.sweep() == []


def test_a_worker_that_is_not_heard_is_not_counted_on_before_its_sessions_are_given_up():
    runtime = House()
    worker = runtime.worker()
    running = held(runtime.ask())
    said = [runtime.worker_pool.can_take]

    runtime.clock.advance(4.5)
    runtime.worker_pool.sweep()
    said.append(runtime.worker_pool.can_take)
    still_held = not running.is_lost
    runtime.heartbeats(worker)
    said.append(runtime.worker_pool.can_take)

    assert said == [True, False, True]
    assert still_held


def test_newcomers_are_refused_a_minute_after_the_last_worker_fell_silent():
    runtime = House()
    runtime.worker_pool.process_begins(0, pid=1)
    runtime.worker(pid=1)
    runtime.clock.advance(6)
    runtime.worker_pool.sweep()

    runtime.clock.advance(53)
    runtime.worker_pool.sweep()
    runtime.ask()
    runtime.clock.advance(6)
    runtime.worker_pool.sweep()

    with pytest.raises(ServiceUnavailable, match="No worker is connected"):
        runtime.ask()


def test_a_worker_that_ends_again_and_again_before_it_is_ready_is_not_waited_for():
    runtime = House()
    runtime.worker_pool.process_begins(0, pid=1)
    runtime.clock.advance(20)
    runtime.worker_pool.sweep()
    runtime.worker_pool.process_ended(0, 1)
    runtime.worker_pool.process_begins(0, in_s=1)

    assert runtime.ask().estimated_wait_s is None
    runtime.clock.advance(61)
    runtime.worker_pool.sweep()
    with pytest.raises(ServiceUnavailable):
        runtime.ask()
    runtime.worker_pool.process_begins(0, pid=2)
    runtime.worker(pid=2)
    assert runtime.worker_pool.loading_workers == 0


def test_processes_of_two_nodes_may_have_the_same_number():
    runtime = House()
    for index in (0, 1):
        runtime.worker_pool.process_begins(index, pid=7)
    runtime.worker("w0", pid=7, index=0)
    still_loading = runtime.worker_pool.loading_workers
    runtime.worker("w1", pid=7, index=1)
    one, two = held(runtime.ask()), held(runtime.ask())

    runtime.worker_pool.process_ended(0, 7)

    assert still_loading == 1
    assert {one.worker.worker_id: one.is_lost, two.worker.worker_id: two.is_lost} == {
        "w0": True,
        "w1": False,
    }


def test_only_an_empty_worker_is_retired_and_nobody_gets_a_slot_of_it_then():
    runtime = House()
    runtime.worker("w0", pid=1, index=0)
    running = held(runtime.ask())

    assert not runtime.worker_pool.retire(0)
    running.release()
    runtime.says(running.worker, running, "ended")
    assert not runtime.worker_pool.retire(1)
    assert runtime.worker_pool.retire(0)
    assert runtime.ask().state == "waiting"


def test_one_worker_that_cannot_load_does_not_speak_for_the_others():
    runtime = House()
    runtime.worker_pool.process_begins(0, pid=1)
    runtime.worker_pool.process_begins(1, pid=2)
    runtime.worker_pool.process_ended(0, 1)

    assert runtime.ask().estimated_wait_s == 30
    runtime.clock.advance(100)
    runtime.worker_pool.sweep()
    assert runtime.ask().estimated_wait_s is not None


def test_a_pause_of_the_gateway_is_not_held_against_workers():
    runtime = House()
    worker = runtime.worker()
    ticket = runtime.ask()
    lost = []
    held(ticket).lost.listen(lambda: lost.append(True))

    runtime.clock.advance(12)
    runtime.worker_pool.forgive(11)
    runtime.worker_pool.sweep()
    assert (worker.is_connected, lost) == (True, [])
    runtime.clock.advance(4.5)
    runtime.worker_pool.sweep()

    assert lost == [True]


def test_without_a_usable_worker_the_estimate_is_unknown():
    runtime = House()
    worker = runtime.worker()
    runtime.heartbeats(worker, "error", free=0)

    assert runtime.ask().estimated_wait_s is None


def test_sessions_that_never_got_ready_do_not_feed_the_average():
    runtime = House()
    worker = runtime.worker()

    for was_ready in (False, True):
        ticket = runtime.ask()
        runtime.says(worker, held(ticket), "active", was_ready=was_ready)
        runtime.clock.advance(7)
        runtime.says(worker, held(ticket), "ended", was_ready=was_ready)
        held(ticket).release()

    assert runtime.eta.samples[Kind.CHAT] == 1
    assert runtime.eta.averages[Kind.CHAT] == 7


def test_slots_of_one_worker_are_leased_one_by_one():
    runtime = House()
    runtime.worker(slots=3)

    tickets = [runtime.ask() for _ in range(4)]

    assert [ticket.state for ticket in tickets] == ["leased"] * 3 + ["waiting"]
    assert tickets[3].estimated_wait_s == 20


def test_work_spreads_over_workers():
    runtime = House()
    first, second = runtime.worker("a", slots=2), runtime.worker("b", slots=2)

    runtime.ask(), runtime.ask()

    assert (len(first.leases), len(second.leases)) == (1, 1)


def test_an_unreachable_worker_does_not_drain_the_queue():
    runtime = House()
    worker = runtime.worker("a")
    runtime.worker("b")
    tickets = [runtime.ask() for _ in range(10)]
    on_a, on_b, *behind = tickets
    if held(on_a).worker is not worker:
        on_a, on_b = on_b, on_a

    runtime.dispatcher.worker_failed(on_a)

    assert worker.view == "offline"
    assert on_b.state == "leased"
    assert [ticket.position for ticket in (on_a, *behind)] == list(range(1, 10))
    assert all(ticket.state == "waiting" for ticket in (on_a, *behind))


def test_if_no_worker_can_be_reached_all_are_told_so_and_newcomers_refused():
    runtime = House()
    worker = runtime.worker()
    first, *behind = [runtime.ask() for _ in range(3)]

    runtime.dispatcher.worker_failed(first)

    assert isinstance(first.refusal, WorkerConnectFailed)
    assert all(isinstance(one.refusal, ServiceUnavailable) for one in behind)
    with pytest.raises(ServiceUnavailable, match="No worker can be reached"):
        runtime.ask()
    runtime.worker_pool.reachable(worker)
    held(runtime.ask())


def test_clients_wait_while_a_worker_that_could_take_them_is_started():
    runtime = House()
    runtime.worker("a")
    runtime.worker_pool.process_begins(1, pid=77)
    ticket = runtime.ask()

    runtime.dispatcher.worker_failed(ticket)

    assert ticket.state == "waiting"


def test_heartbeats_of_an_unreachable_worker_do_not_count_as_a_server_that_serves():
    runtime = House()
    worker = runtime.worker()
    runtime.worker_pool.unreachable(worker)
    before = runtime.worker_pool.last_alive_at
    runtime.clock.advance(1)

    runtime.heartbeats(worker)

    assert runtime.worker_pool.last_alive_at == before


def test_a_ticket_is_refused_after_the_second_worker_failed():
    runtime = House()
    runtime.worker("a")
    runtime.worker("b")
    ticket = runtime.ask()

    runtime.dispatcher.worker_failed(ticket)
    state_between = ticket.state
    runtime.dispatcher.worker_failed(ticket)

    assert state_between == "leased"  # by the other worker
    assert ticket.state == "refused"
    assert isinstance(ticket.refusal, WorkerConnectFailed)


def test_a_silent_worker_is_offline_and_its_leases_are_lost():
    runtime = House()
    worker = runtime.worker()
    ticket = runtime.ask()
    lost = []
    held(ticket).lost.listen(lambda: lost.append(True))

    runtime.clock.advance(5.1)
    runtime.worker_pool.sweep()
    held(ticket).release()

    assert lost == [True]
    assert worker.view == "offline"
    assert runtime.ask().state == "waiting"


def test_a_lost_slot_is_served_again_only_by_a_new_hello():
    runtime = House()
    worker = runtime.worker(pid=1)
    ticket, waiting = runtime.ask(), runtime.ask()
    runtime.says(worker, held(ticket), "active")
    runtime.clock.advance(6)
    runtime.worker_pool.sweep()
    held(ticket).release()
    state_before = waiting.state

    runtime.worker(pid=2)

    assert (state_before, waiting.state) == ("waiting", "leased")


def test_a_worker_that_reconnects_keeps_its_sessions():
    runtime = House()
    worker = runtime.worker(pid=1)
    ticket = runtime.ask()
    runtime.says(worker, held(ticket), "active")

    runtime.worker_pool.disconnected(worker)
    again = runtime.worker(pid=1)

    assert not held(ticket).is_lost
    assert again.free_slots == 0


def test_a_new_process_under_a_known_name_has_lost_the_old_sessions():
    runtime = House()
    runtime.worker(pid=1)
    ticket = runtime.ask()

    runtime.worker(pid=2)

    assert held(ticket).is_lost


def test_newcomers_are_refused_when_no_worker_lived_for_a_minute():
    runtime = House()
    worker = runtime.worker()
    runtime.worker_pool.left(worker)
    early = runtime.ask()

    runtime.clock.advance(61)
    runtime.worker_pool.sweep()

    assert early.state == "waiting"
    with pytest.raises(ServiceUnavailable, match="No worker is connected"):
        runtime.ask()


def test_a_task_nobody_offers_is_refused_and_does_not_block_the_others():
    runtime = House()
    both = runtime.worker("a")
    waiting = [runtime.ask("chat"), runtime.ask("omni_duplex"), runtime.ask("chat")]
    runtime.worker("b", modes=("chat",))

    runtime.worker_pool.left(both)

    assert [ticket.state for ticket in waiting] == ["leased", "waiting", "leased"]
    with pytest.raises(ServiceUnavailable, match="No worker offers this way of talking"):
        runtime.ask("omni_duplex")


class _Owner:
    def __init__(self) -> None:
        self.end: Callable = lambda _: None

    def add_done_callback(self, callback):
        self.end = callback


def test_a_lease_whose_owner_ended_is_reclaimed():
    runtime = House()
    runtime.worker()
    owner = _Owner()
    runtime.dispatcher.submit(Kind.CHAT, session_id="", owner=owner)
    waiting = runtime.ask()

    owner.end(owner)

    assert waiting.state == "leased"


@pytest.mark.parametrize("seed", range(20))
def test_no_slot_is_lost_or_given_twice_in_a_random_day(seed: int):
    random_ = random.Random(seed)
    runtime = House(limit=20)
    workers = {name: runtime.worker(name, slots=slots) for name, slots in (("a", 1), ("b", 3))}
    tickets: list[Ticket] = []

    for _ in range(400):
        match random_.randrange(7):
            case 0 | 1:
                if len(runtime.queue) < 20 and not runtime.worker_pool.is_cut_off:
                    tickets.append(runtime.ask())
            case 2 if tickets:
                runtime.dispatcher.cancel(random_.choice(tickets))
            case 3 if tickets:
                runtime.dispatcher.worker_failed(random_.choice(tickets))
            case 4 if tickets:
                lease = random_.choice(tickets).lease
                if lease is not None and not lease.is_lost:
                    phase = random_.choice(["preparing", "active", "paused", "ended"])
                    runtime.says(lease.worker, lease, phase, was_ready=True)
            case 5:
                _, worker = random_.choice(list(workers.items()))
                busy = sum(lease.phase is not None for lease in worker.leases.values())
                runtime.heartbeats(worker, free=worker.slots - busy)
                runtime.worker_pool.reachable(worker)
            case 6:
                runtime.clock.advance(random_.random())
        for worker in runtime.worker_pool:
            assert len(worker.leases) + len(worker.closing) <= worker.slots
        for index, ticket in enumerate(runtime.queue, start=1):
            assert (ticket.position, ticket.state) == (index, "waiting")

    for ticket in tickets:
        runtime.dispatcher.cancel(ticket)
    for worker in runtime.worker_pool:
        runtime.worker_pool.reachable(worker)
        for _ in range(2):
            runtime.heartbeats(worker, free=worker.slots)
    assert [worker.free_slots for worker in runtime.worker_pool] == [1, 3]
