"""Queue, worker pool and dispatcher together, on a clock that tests move."""

import random
import re
from dataclasses import dataclass, field
from unittest.mock import Mock

import msgspec
import pytest

from parley.clock import ManualClock
from parley.errors import QueueFull, ServiceUnavailable, WorkerBusy, WorkerConnectFailed
from parley.gateway.dispatcher import RETURN_S, Dispatcher
from parley.gateway.queue import STARTS, STEPS_BACK, Queue, Ticket
from parley.gateway.worker_pool import COUNTED_ON_S, Lease, Worker
from parley.protocol.control import Heartbeat, Hello, ResumeState, SessionPhase
from parley.protocol.kinds import Kind, Phase
from parley.settings import EtaSettings, QueueSettings


@dataclass
class GatewayParts:
    limit: int = 1000
    clock: ManualClock = field(default_factory=ManualClock)

    def __post_init__(self) -> None:
        queue = QueueSettings(max_size=self.limit)
        self.dispatcher = Dispatcher(self.clock, queue, EtaSettings(chat_s=20))
        self.eta, self.queue = self.dispatcher.eta, self.dispatcher.queue
        self.worker_pool = self.dispatcher.worker_pool

    def worker(self, name: str = "w0", *, slots: int = 1, pid: int = 1, **more) -> Worker:
        hello = Hello(name, f"http://{name}", slots, "parrot", "cpu", "1", pid, **more)
        return self.worker_pool.welcome(hello, object())

    def ask(self, kind="chat", name: str = "", **who) -> Ticket:
        waited_as = who.pop("waited_as", "")
        return self.dispatcher.submit(Ticket(Kind(kind), name, **who), waited_as=waited_as)

    def ask_first(self) -> Ticket:
        """For a session that another build has to continue."""
        lost = Ticket(Kind.CHAT, "lost", fingerprint="another build")
        return self.dispatcher.submit_first(lost)

    def says(self, worker: Worker, lease, phase, **more) -> None:
        self.worker_pool.phase(
            worker, SessionPhase(lease.lease_id, lease.session_id, lease.kind, Phase(phase), **more)
        )

    def heartbeats(self, worker: Worker, state="idle", free: int = 1) -> None:
        self.worker_pool.heard(worker, Heartbeat(state, free, 0, 0, 0))


@pytest.fixture
def parts() -> GatewayParts:
    return GatewayParts()


@pytest.fixture
def full(parts: GatewayParts) -> GatewayParts:
    """Its only slot is taken, and clients may return to their places for 30 s."""
    parts.dispatcher.follow(SECRET, 1, window_s=30)
    parts.worker()
    parts.ask()
    return parts


def held(ticket: Ticket) -> Lease:
    assert ticket.lease is not None
    return ticket.lease


def test_who_waited_when_a_gateway_died_has_its_place_again(full):
    first, second, third = (full.ask(name=name).ticket_id for name in ("a", "b", "c"))
    following = follower(full)
    following.worker()

    back = [following.ask(name="c", waited_as=third)]
    following.clock.advance(RETURN_S / 2)
    back += [
        following.ask(name="new"),
        following.ask(name="a", waited_as=first),
        following.ask(name="b", waited_as=second),
    ]
    before = [(one.session_id, one.state) for one in following.queue]
    following.clock.advance(RETURN_S / 2)
    following.dispatcher.run()

    assert before == [(name, "waiting") for name in ("a", "b", "c", "new")]
    assert [one.session_id for one in served(following, back)] == ["a", "b", "c", "new"]
    assert [one.ticket_id for one in back[2:]] == [first, second]
    assert re.fullmatch(r"q_[0-9a-f]{32}", first)


@pytest.mark.parametrize("had_waiting", [True, False])
def test_a_new_client_does_not_overtake_those_who_waited_before_they_are_back(full, had_waiting):
    waited_as = full.ask(name="waited").ticket_id
    following = follower(full)
    following.worker()
    if had_waiting:
        following.dispatcher.await_returns()

    new = following.ask(name="new")
    assert new.state == ("waiting" if had_waiting else "leased")

    following.clock.advance(RETURN_S / 2)
    back = following.ask(name="waited", waited_as=waited_as)
    following.clock.advance(RETURN_S / 2)
    following.dispatcher.run()
    assert back.state == ("leased" if had_waiting else "waiting")


def test_a_session_that_lost_its_worker_does_not_wait_for_clients_that_may_return(full):
    ticket_id = full.ask().ticket_id
    following = follower(full)
    worker = following.worker()

    back = following.ask(waited_as=ticket_id)
    lost = Ticket(Kind.CHAT, "lost", fingerprint=worker.hello.fingerprint)
    following.dispatcher.submit_first(lost)

    assert (back.state, lost.state) == ("waiting", "leased")


@pytest.mark.parametrize("starts", [1, STARTS - 2])
def test_a_place_far_back_is_before_those_of_the_next_gateway_too(starts: int):
    before, after = Queue(limit=1), Queue(limit=1)
    far = Ticket(Kind.CHAT, "far", address="10.0.0.1")
    before.follow(SECRET, starts)
    before.join(far, held=1000)

    after.follow(SECRET, starts + 1)

    assert after.rejoin(Ticket(Kind.CHAT, "far"), far.ticket_id)


def test_a_place_of_before_is_given_once_and_only_to_its_ticket(full):
    shown = full.ask().ticket_id
    stranger = follower(full, secret=b"another")
    following = follower(full)
    for each in (stranger, following):
        each.worker()
        each.ask(name="talks")
        each.ask(name="waits")
    own = following.ask().ticket_id

    others = [shown[:-1] + ("0" if shown[-1] != "0" else "1"), "q_", "q_é", shown[:-2], own]
    ranks = [following.ask(waited_as=one).position for one in others]
    ranks += [stranger.ask(waited_as=shown).position, following.ask(waited_as=shown).position]
    again = [
        following.ask(waited_as=one).position
        for one in (
            shown,
            f"q_{shown[2:].upper()}",
            shown[2:],
            shown.replace("q_", "q_ "),
            f"{shown}\t",
        )
    ]
    late = follower(full)
    late.worker()
    late.ask(name="talks")
    late.ask(name="waits")
    late.clock.advance(31)
    late.worker()

    assert ranks == [3, 4, 5, 6, 7, 2, 1]
    assert again == [9, 10, 11, 12, 13]
    assert late.ask(waited_as=shown).position == 2


def test_who_is_cut_off_keeps_its_place_for_a_while(full):
    first, second = full.ask(address="10.0.0.1"), full.ask(address="10.0.0.2")
    cancelled = full.ask(address="10.0.0.3")
    full.dispatcher.cut_off(first)
    full.dispatcher.cancel(cancelled)
    left = [one.position for one in (second, full.ask(address="10.0.0.4"))]

    full.worker("w1")
    full.dispatcher.cut_off(second)  # Its worker is being dialled.
    full.ask(address="10.0.0.5")
    second = full.ask(address="10.0.0.2", waited_as=second.ticket_id)
    back = full.ask(address="10.0.0.1", waited_as=first.ticket_id)
    places = [back.position, second.position]
    places += [full.ask(waited_as=one.ticket_id).position for one in (cancelled, first)]
    full.dispatcher.cut_off(second)
    full.clock.advance(31)
    full.worker()
    late = full.ask(address="10.0.0.2", waited_as=second.ticket_id)

    assert left == [1, 2]
    assert (back.ticket_id, places) == (first.ticket_id, [1, 2, 4, 5])
    assert late.position == len(full.queue)


def test_a_place_that_was_left_is_behind_if_its_caller_has_a_session_since(full):
    left = full.ask(address="10.0.0.1")
    full.dispatcher.cut_off(left)
    full.worker("w1")
    assert full.ask(address="10.0.0.1").state == "leased"

    waits = full.ask(address="10.0.0.2")
    back = full.ask(address="10.0.0.1", waited_as=left.ticket_id)

    assert (waits.position, back.position) == (1, 2)


def test_a_ticket_is_notified_of_its_own_position_only(full):
    first, second = full.ask(), full.ask()
    heard = []
    second.changed.listen(lambda: heard.append(second.position))

    full.ask()
    full.queue.leave(first)

    assert heard == [1]


def test_no_more_places_are_kept_than_clients_may_wait(full):
    full.queue.limit = 2
    shown = []
    for number in range(3):
        shown.append(full.ask(address=f"10.0.0.{number}").ticket_id)
        full.dispatcher.cut_off(full.queue.find(shown[-1]))
    waits = full.ask(address="10.0.0.9")

    for number in (1, 2):
        full.ask(address=f"10.0.0.{number}", waited_as=shown[number])

    assert [one.ticket_id for one in full.queue] == [*shown[1:], waits.ticket_id]
    with pytest.raises(QueueFull, match="3 requests"):
        full.ask(address="10.0.0.0", waited_as=shown[0])


def test_who_is_cut_off_again_and_again_takes_no_place_of_others(full):
    full.queue.limit = 3
    shown = []
    for number in (1, 2, 2, 2, 2):
        shown.append(full.ask(address=f"10.0.0.{number}").ticket_id)
        full.dispatcher.cut_off(full.queue.find(shown[-1]))
    waits = full.ask(address="10.0.0.9")

    back = full.ask(address="10.0.0.1", waited_as=shown[0])

    assert (back.position, waits.position) == (1, 2)


def test_leaving_and_returning_collects_no_places(full):
    def greedy(**more) -> Ticket:
        return full.ask(address="10.0.0.1", **more)

    shown = []
    for _ in range(3):
        shown.append(greedy().ticket_id)
        full.dispatcher.cut_off(full.queue.find(shown[-1]))
    other = full.ask(address="10.0.0.2")

    back = [greedy(waited_as=one) for one in shown]
    places = [one.position for one in (back[0], other, *back[1:])]
    full.dispatcher.cancel(back[0])
    full.dispatcher.cut_off(back[1])
    again = greedy(waited_as=shown[1])

    assert places == [1, 2, 3, 4]
    assert (other.position, again.position) == (1, 2)


SECRET = b"common to both"


def follower(parts: GatewayParts, secret: bytes = SECRET) -> GatewayParts:
    """The next gateway. Its clock is behind, which does not matter."""
    following = GatewayParts()
    following.dispatcher.follow(secret, 2, window_s=30)
    return following


def served(parts: GatewayParts, tickets: list[Ticket]) -> list[Ticket]:
    """The order in which the tickets get the only slot."""
    order: list[Ticket] = []
    while len(order) < len(tickets):
        for ticket in tickets:
            if ticket.state == "leased" and ticket not in order:
                assert ticket.position == 0
                order.append(ticket)
                held(ticket).release()
    return order


def test_of_one_caller_the_first_is_served_first_though_its_sessions_have_ended_since():
    queue = Queue(limit=4)
    tickets = [Ticket(Kind.CHAT, name, address="10.0.0.1") for name in ("a", "b", "c")]

    for ticket, held in zip(tickets, (0, 5, 0), strict=True):
        queue.join(ticket, held=held)

    assert [ticket.position for ticket in tickets] == [1, 2, 3]


def test_one_address_with_many_tickets_does_not_stand_in_front_of_the_others(parts):
    hog = [parts.ask(address="10.0.0.1") for _ in range(32)]
    guests = [parts.ask(address=f"10.0.1.{number}") for number in range(5)]
    assert [guest.position for guest in guests] == [2, 3, 4, 5, 6]
    parts.worker()

    order = served(parts, [*hog, *guests])

    assert order == [hog[0], *guests, *hog[1:]]


def test_an_address_with_a_session_stands_behind_one_without(parts):
    parts.worker()
    talking = parts.ask(address="10.0.0.1")
    again = parts.ask(address="10.0.0.1")
    guest = parts.ask(address="10.0.0.2")

    held(talking).release()

    assert (guest.state, again.state) == ("leased", "waiting")


def test_tickets_of_one_caller_are_served_as_they_came(parts):
    """Whatever it had when each of them joined; an address of IPv6 is one with its /64."""
    parts.worker()
    running = parts.ask(address="2001:db8::1")
    tickets = [parts.ask(address=f"2001:db8::{number}") for number in range(2, 6)]
    held(running).release()
    tickets += [parts.ask(address="2001:db8::9") for _ in range(3)]

    assert served(parts, tickets) == tickets


def test_keys_share_places_wherever_they_come_from(parts):
    hog = [parts.ask(address=f"10.0.0.{number}", key_id="k1") for number in range(3)]
    guest = parts.ask(address="10.0.0.0", key_id="k2")
    parts.worker()

    assert served(parts, [*hog, guest]) == [hog[0], guest, *hog[1:]]


def test_a_ticket_is_overtaken_by_so_many_at_most():
    parts = GatewayParts(limit=10_000)
    hog = [parts.ask(address="10.0.0.1") for _ in range(2)]
    guests = [parts.ask(address=f"10.1.{n // 250}.{n % 250}") for n in range(3 * STEPS_BACK)]
    parts.worker()

    order = served(parts, [*hog, *guests])

    assert order.index(hog[1]) == STEPS_BACK


def test_order_is_strict_when_only_the_second_could_be_served(parts):
    parts.worker("calls", modes=("duplex",))
    parts.ask("omni_duplex")
    call = parts.ask("omni_duplex")
    parts.worker("chats", modes=("chat",))

    chat = parts.ask("chat")

    assert (call.state, chat.state) == ("waiting", "waiting")


def test_a_heartbeat_sent_before_the_session_began_does_not_free_its_slot(parts):
    worker = parts.worker(slots=3)
    # The worker is still cleaning up one slot, and has seen neither lease when it reports.
    leases = [parts.ask(), parts.ask()]

    parts.heartbeats(worker, free=2)

    assert [ticket.state for ticket in leases] == ["leased", "leased"]
    assert worker.free_slots == 0
    assert parts.ask().state == "waiting"


@pytest.mark.parametrize("connects_again", [False, True])
def test_a_slot_stays_taken_until_the_worker_has_cleaned_up(parts, connects_again: bool):
    worker = parts.worker()
    ticket, waiting = parts.ask(), parts.ask()
    parts.says(worker, held(ticket), "active")

    held(ticket).release()
    if connects_again:
        worker = parts.worker()
    state_before = (waiting.state, worker.view)
    parts.says(worker, held(ticket), "ended")

    assert state_before == ("waiting", "cleanup")
    assert waiting.state == "leased"


def test_a_client_that_comes_back_to_a_slot_that_is_being_cleaned_up_takes_no_second_one(parts):
    worker = parts.worker(slots=2)
    ticket = parts.ask()
    parts.says(worker, held(ticket), "active")
    held(ticket).release()

    held(ticket).transfer()

    assert worker.free_slots == 1


def test_a_lease_that_was_transferred_is_released_by_its_new_holder_only(parts):
    worker = parts.worker()
    lease = held(parts.ask())

    taken = lease.transfer()
    lease.release()
    before = (worker.free_slots, list(parts.worker_pool.leases))
    taken.release()

    assert (before, worker.free_slots) == ((0, [taken]), 1)


def test_a_session_without_resume_continues_when_its_worker_connects_again(parts):
    parts.worker(slots=2)
    lease = held(parts.ask())
    parts.says(lease.worker, lease, "active")

    worker = parts.worker(slots=2)

    assert (lease.phase, lease.worker, worker.free_slots) == ("active", worker, 1)


def test_a_late_report_of_a_rebuilt_session_does_not_undo_its_result(parts):
    worker = parts.worker()
    lease = held(parts.ask("audio_duplex"))
    lease.resume = rebuilt = ResumeState("duplex", left_s=30.0, note="")

    parts.says(worker, lease, "preparing")
    told = [lease.resume]
    parts.says(worker, lease, "ended")
    told.append(lease.resume)

    assert told == [rebuilt, None]


def test_slots_that_only_the_worker_knows_to_be_taken_are_not_given_out(parts):
    worker = parts.worker(slots=3)
    parts.heartbeats(worker, free=1)
    ticket = parts.ask()
    parts.says(worker, held(ticket), "active")
    free_with_it = worker.free_slots
    held(ticket).release()
    parts.says(worker, held(ticket), "ended")
    free_after_it = worker.free_slots

    never_seen = parts.ask()
    held(never_seen).was_opened = True
    held(never_seen).release()
    parts.says(worker, held(never_seen), "ended")

    assert (free_with_it, free_after_it, worker.free_slots) == (0, 1, 1)


def test_tokens_are_counted_once_whatever_arrives_late(parts):
    worker, spent = parts.worker(), []
    parts.worker_pool.spent.listen(lambda lease, more: spent.append(more))
    lease = held(parts.ask())

    for tokens in (5, 9, 9, 7):
        parts.worker_pool.heard(
            worker, Heartbeat("busy_chat", 0, 0, 0, 0, tokens={lease.lease_id: tokens})
        )
    parts.says(worker, lease, "ended", tokens=12)

    assert spent == [5, 4, 3]


def test_a_slot_whose_end_was_never_told_is_reclaimed_after_two_idle_beats(parts):
    worker = parts.worker(slots=2)
    ticket, running, waiting = parts.ask(), parts.ask(), parts.ask()
    for each in (ticket, running):
        parts.says(worker, held(each), "active")
    held(ticket).release()

    states = []
    for free in (1, 0, 1, 1):
        parts.heartbeats(worker, free=free)
        states.append(waiting.state)

    assert states == ["waiting", "waiting", "waiting", "leased"]


def test_a_paused_session_counts_with_what_is_left_of_its_pause(parts):
    worker = parts.worker()
    running = parts.ask("omni_duplex")
    parts.says(worker, held(running), "paused", pause_left_s=12)

    waiting = parts.ask()

    assert waiting.estimated_wait_s == 12
    assert worker.view == "duplex_paused"


def test_a_slot_that_waits_for_its_client_is_expected_at_the_end_of_the_window(parts):
    worker = parts.worker(slots=2)
    away, leaving = held(parts.ask()), held(parts.ask())
    parts.says(worker, leaving, "active")
    parts.says(worker, away, "active", resume=ResumeState("duplex", left_s=90.0, note=""))
    leaving.release()

    waiting = [parts.ask() for _ in range(3)]

    # The slot that is cleaned up is free first, and again after two chats of 20 s.
    assert [one.estimated_wait_s for one in waiting] == [1, 21, 41]


def test_all_slots_of_a_worker_that_loads_are_expected(parts):
    parts.heartbeats(parts.worker(slots=2), "loading", free=0)

    assert [parts.ask().estimated_wait_s for _ in range(2)] == [30, 30]


def test_a_worker_that_takes_longer_to_load_is_expected_later_and_later(parts):
    parts.worker_pool.process_begins(0)
    ticket = parts.ask()
    parts.clock.advance(9.7)
    parts.dispatcher.refresh()
    parts.clock.advance(0.3)
    parts.dispatcher.refresh()
    in_time = ticket.estimated_wait_s
    parts.clock.advance(110)
    parts.dispatcher.refresh()

    assert (in_time, ticket.estimated_wait_s) == (20, 60)


def test_the_next_load_is_expected_to_take_as_long_as_the_last(parts):
    parts.worker_pool.process_begins(0, pid=1)
    parts.clock.advance(200)
    worker = parts.worker(pid=1)
    parts.worker_pool.process_ended(0, worker.hello.pid)
    parts.worker_pool.process_begins(0, in_s=2)

    assert parts.ask().estimated_wait_s == 202


def test_a_worker_that_ends_while_it_loads_is_not_expected_and_a_quick_one_soon(parts):
    parts.worker_pool.process_begins(0, pid=1)
    waits = parts.ask()
    expected_s = waits.estimated_wait_s
    parts.worker_pool.process_ended(0, 1)
    unexpected_s = waits.estimated_wait_s

    parts.worker_pool.process_begins(1, pid=2)
    parts.worker(pid=2, index=1)
    parts.worker_pool.process_begins(2, pid=3)

    assert (expected_s, unexpected_s, parts.ask().estimated_wait_s) == (30, None, 1)


def test_a_worker_that_falls_silent_again_is_reported_again(parts):
    worker = parts.worker()
    for _ in range(2):
        parts.clock.advance(12)
        assert [parts.worker_pool.sweep() for _ in range(2)] == [[worker], []]
        parts.heartbeats(worker, "idle", free=1)


def test_a_worker_that_hangs_is_not_one_that_loads(parts):
    parts.worker_pool.process_begins(0, pid=1)
    parts.worker(pid=1)

    parts.clock.advance(6)
    (silent,) = parts.worker_pool.sweep()

    assert silent.view == "offline"
    assert parts.worker_pool.loading_workers == 0
    assert parts.ask().estimated_wait_s is None
    parts.clock.advance(594)
    assert parts.worker_pool.sweep() == []
    assert len(parts.worker_pool) == 1
    parts.clock.advance(1)
    parts.worker_pool.sweep()
    assert len(parts.worker_pool) == 0


def test_a_worker_that_is_not_heard_is_not_counted_on_before_its_sessions_are_given_up(parts):
    worker = parts.worker()
    running = held(parts.ask())
    said = [parts.worker_pool.can_take]

    parts.clock.advance(4.5)
    parts.worker_pool.sweep()
    said.append(parts.worker_pool.can_take)
    still_held = not running.is_lost
    parts.heartbeats(worker)
    said.append(parts.worker_pool.can_take)

    assert said == [True, False, True]
    assert still_held


def test_newcomers_are_refused_a_minute_after_the_last_worker_fell_silent(parts):
    parts.worker_pool.process_begins(0, pid=1)
    parts.worker(pid=1)
    parts.clock.advance(6)
    parts.worker_pool.sweep()

    parts.clock.advance(53)
    parts.worker_pool.sweep()
    parts.ask()
    parts.clock.advance(6)
    parts.worker_pool.sweep()

    with pytest.raises(ServiceUnavailable, match="No worker is connected"):
        parts.ask()


def test_a_worker_that_ends_again_and_again_before_it_is_ready_is_not_waited_for(parts):
    parts.worker_pool.process_begins(0, pid=1)
    parts.clock.advance(20)
    parts.worker_pool.sweep()
    parts.worker_pool.process_ended(0, 1)
    parts.worker_pool.process_begins(0, in_s=1)

    assert parts.ask().estimated_wait_s is None
    parts.clock.advance(61)
    parts.worker_pool.sweep()
    with pytest.raises(ServiceUnavailable):
        parts.ask()
    parts.worker_pool.process_begins(0, pid=2)
    parts.worker(pid=2)
    assert parts.worker_pool.loading_workers == 0


def test_processes_of_two_nodes_may_have_the_same_number(parts):
    for index in (0, 1):
        parts.worker_pool.process_begins(index, pid=7)
    parts.worker("w0", pid=7, index=0)
    parts.worker("started by hand", pid=8, index=1, slots=0)
    still_loading = parts.worker_pool.loading_workers
    parts.worker("w1", pid=7, index=1)
    one, two = held(parts.ask()), held(parts.ask())

    parts.worker_pool.process_ended(0, 7)

    assert still_loading == 1
    assert not one.worker.is_usable
    assert {one.worker.worker_id: one.is_lost, two.worker.worker_id: two.is_lost} == {
        "w0": True,
        "w1": False,
    }


def test_only_an_empty_worker_is_retired_and_nobody_gets_a_slot_of_it_then(parts):
    parts.worker("w0", pid=1, index=0)
    running = held(parts.ask())

    assert not parts.worker_pool.retire(0)
    running.release()
    parts.says(running.worker, running, "ended")
    assert not parts.worker_pool.retire(1)
    assert parts.worker_pool.retire(0)
    assert parts.ask().state == "waiting"


def test_one_worker_that_cannot_load_does_not_speak_for_the_others(parts):
    parts.worker_pool.process_begins(0, pid=1)
    parts.worker_pool.process_begins(1, pid=2)
    parts.worker_pool.process_ended(0, 1)

    assert parts.ask().estimated_wait_s == 30
    parts.clock.advance(100)
    parts.worker_pool.sweep()
    assert parts.ask().estimated_wait_s is not None


def test_a_pause_of_the_gateway_is_not_held_against_workers(parts):
    worker = parts.worker()
    ticket = parts.ask()
    lost = []
    held(ticket).lost.listen(lambda: lost.append(True))

    parts.clock.advance(12)
    parts.worker_pool.forgive(11)
    parts.worker_pool.sweep()
    assert (worker.is_connected, lost) == (True, [])
    parts.clock.advance(4.5)
    parts.worker_pool.sweep()

    assert lost == [True]


def test_a_worker_that_is_connected_again_is_not_gone(parts):
    worker = parts.worker()
    lease = held(parts.ask())

    parts.worker_pool.gone(worker)
    assert not lease.is_lost

    parts.worker_pool.disconnected(worker)
    parts.worker_pool.gone(worker)
    assert lease.is_lost


@pytest.mark.parametrize("ends", ["socket", "silence", "error", "draining"])
def test_when_the_last_worker_is_gone_estimates_are_unknown_at_once(parts, ends):
    worker = parts.worker()
    parts.ask()
    waiting = parts.ask()
    assert waiting.estimated_wait_s == 20

    if ends == "socket":
        parts.worker_pool.disconnected(worker)
    elif ends == "error":
        parts.heartbeats(worker, "error", free=0)
    elif ends == "draining":
        parts.worker_pool.drain(worker, True)
    else:
        parts.clock.advance(12)
        parts.worker_pool.sweep()

    assert [waiting.estimated_wait_s, parts.ask().estimated_wait_s] == [None, None]


def test_sessions_that_never_got_ready_do_not_feed_the_average(parts):
    worker = parts.worker()

    for was_ready in (False, True):
        ticket = parts.ask()
        parts.says(worker, held(ticket), "active", was_ready=was_ready)
        parts.clock.advance(7 if was_ready else 3)
        parts.says(worker, held(ticket), "ended", was_ready=was_ready)
        held(ticket).release()

    assert parts.eta.samples[Kind.CHAT] == 1
    assert parts.eta.averages[Kind.CHAT] == 7


def test_work_spreads_over_workers_and_first_over_those_that_are_not_silent(parts):
    first, second = parts.worker("a", slots=2), parts.worker("b", slots=2)
    spread = []

    for silent_s in (0, 0, COUNTED_ON_S + 1, 0):
        parts.clock.advance(silent_s)
        parts.heartbeats(second, free=2)
        parts.ask()
        spread.append((len(first.leases), len(second.leases)))

    assert spread == [(1, 0), (1, 1), (1, 2), (2, 2)]


def test_if_no_worker_can_be_reached_all_are_told_so_and_newcomers_refused(parts):
    worker = parts.worker()
    first, *behind = [parts.ask() for _ in range(3)]
    lost = parts.ask_first()

    parts.dispatcher.worker_failed(first)

    assert isinstance(first.refusal, WorkerConnectFailed)
    assert [(one.state, type(one.refusal)) for one in behind] == [
        ("refused", ServiceUnavailable)
    ] * 2
    assert lost.state == "waiting"
    with pytest.raises(ServiceUnavailable, match="No worker can be reached"):
        parts.ask()
    parts.worker_pool.reachable(worker)
    held(parts.ask())


def test_clients_wait_while_a_worker_that_could_take_them_is_started(parts):
    parts.worker("a")
    parts.worker_pool.process_begins(1, pid=77)
    ticket = parts.ask()

    parts.dispatcher.worker_failed(ticket)

    assert ticket.state == "waiting"


def test_heartbeats_of_an_unreachable_worker_do_not_count_as_a_server_that_serves(parts):
    worker = parts.worker()
    worker.is_unreachable = True
    before = parts.worker_pool.last_alive_at
    parts.clock.advance(1)

    parts.heartbeats(worker)

    assert parts.worker_pool.last_alive_at == before


def test_a_lost_slot_is_served_again_only_by_a_new_hello(parts):
    worker = parts.worker(pid=1)
    ticket, waiting = parts.ask(), parts.ask()
    parts.says(worker, held(ticket), "active")
    parts.clock.advance(6)
    parts.worker_pool.sweep()
    held(ticket).release()
    state_before = waiting.state

    parts.worker(pid=2)

    assert (state_before, waiting.state) == ("waiting", "leased")


def test_a_new_process_under_a_known_name_has_lost_the_old_sessions(parts):
    old = parts.worker(pid=1)
    ticket = parts.ask()

    parts.worker(pid=2)
    parts.heartbeats(old)

    assert held(ticket).is_lost
    assert not held(ticket).worker.is_connected, "though its last message arrived late"


def test_a_task_that_no_worker_offers_is_refused_and_does_not_block_the_others(parts):
    both = parts.worker("a")
    waiting = [parts.ask("chat"), parts.ask("omni_duplex"), parts.ask("chat")]
    parts.worker("b", modes=("chat",))

    parts.worker_pool.left(both)

    assert [ticket.state for ticket in waiting] == ["leased", "waiting", "leased"]
    with pytest.raises(ServiceUnavailable, match="No worker supports this kind of session"):
        parts.ask("omni_duplex")


def test_a_lease_whose_owner_ended_is_reclaimed(parts):
    parts.worker()
    owner = Mock()
    parts.dispatcher.submit(Ticket(Kind.CHAT, ""), owner=owner)
    waiting = parts.ask()

    (ends,) = owner.add_done_callback.call_args.args
    ends(owner)

    assert waiting.state == "leased"


@pytest.mark.parametrize("seed", range(20))
def test_no_slot_is_lost_or_given_twice_in_a_random_day(seed: int):
    random_ = random.Random(seed)
    parts = GatewayParts(limit=20)
    workers = {name: parts.worker(name, slots=slots) for name, slots in (("a", 1), ("b", 3))}
    tickets: list[Ticket] = []

    for _ in range(400):
        match random_.randrange(7):
            case 0 | 1:
                if len(parts.queue) < 20 and not parts.worker_pool.is_cut_off:
                    tickets.append(parts.ask())
            case 2 if tickets:
                parts.dispatcher.cancel(random_.choice(tickets))
            case 3 if tickets:
                parts.dispatcher.worker_failed(random_.choice(tickets))
            case 4 if tickets:
                lease = random_.choice(tickets).lease
                if lease is not None and not lease.is_lost:
                    phase = random_.choice(["preparing", "active", "paused", "ended"])
                    parts.says(lease.worker, lease, phase, was_ready=True)
            case 5:
                _, worker = random_.choice(list(workers.items()))
                busy = sum(lease.phase is not None for lease in worker.leases.values())
                parts.heartbeats(worker, free=worker.slots - busy)
                parts.worker_pool.reachable(worker)
            case 6:
                parts.clock.advance(random_.random())
        for worker in parts.worker_pool:
            assert len(worker.leases) + len(worker.closing) <= worker.slots
        for index, ticket in enumerate(parts.queue, start=1):
            assert (ticket.position, ticket.state) == (index, "waiting")

    for ticket in tickets:
        parts.dispatcher.cancel(ticket)
    for worker in parts.worker_pool:
        parts.worker_pool.reachable(worker)
        for _ in range(2):
            parts.heartbeats(worker, free=worker.slots)
    assert [worker.free_slots for worker in parts.worker_pool] == [1, 3]


def test_a_session_that_lost_its_worker_blocks_no_one_who_can_take_another_slot(parts):
    worker = parts.worker("busy")
    parts.ask()
    lost = parts.ask_first()
    parts.worker("free")

    newcomer = parts.ask()

    assert (lost.state, newcomer.state) == ("waiting", "leased")
    assert worker.free_slots == 0


def test_a_worker_continues_logs_of_its_own_version_only(parts):
    own = parts.worker().hello
    of = [msgspec.structs.replace(own, log_version=each).fingerprint for each in (0, 1, 2)]

    assert len({*of}) == 3
    # Workers that do not know of versions wrote this into their logs.
    assert of[0] == f"parley {own.version}, {own.model}, {own.context_tokens} tokens"


def test_a_slot_is_spare_if_it_fits_and_no_ticket_waits(parts):
    worker = parts.worker()
    fits = worker.hello.fingerprint

    def is_spare(fingerprint: str = fits) -> bool:
        return parts.dispatcher.has_spare_slot(Kind.CHAT, fingerprint)

    assert (is_spare(), is_spare("another build")) == (True, False)
    parts.dispatcher.pause(True)
    first = parts.ask()
    assert (first.state, is_spare()) == ("waiting", False)
    parts.dispatcher.pause(False)
    assert (first.state, is_spare()) == ("leased", False)
    waiting = parts.ask_first()
    parts.worker("free")
    assert (waiting.state, is_spare()) == ("waiting", False)


def test_a_ticket_is_refused_after_two_workers_failed_although_a_third_is_free(parts):
    for name in ("a", "b", "c"):
        parts.worker(name)
    ticket = parts.ask()

    for _ in range(2):
        parts.dispatcher.worker_failed(ticket)

    assert ticket.state == "refused"


def test_a_ticket_is_refused_when_workers_have_refused_it_thirty_times(parts):
    worker = parts.worker()
    ticket = parts.ask()

    states = []
    for _ in range(30):
        parts.dispatcher.worker_refused(ticket)
        states.append(ticket.state)
        parts.heartbeats(worker, free=1)

    assert states == [*["waiting"] * 29, "refused"]
    assert isinstance(ticket.refusal, WorkerBusy)


def test_a_closed_dispatcher_returns_no_ticket_to_the_queue(parts):
    parts.worker()
    ticket = parts.ask()
    parts.dispatcher.close()

    parts.dispatcher.worker_refused(ticket)

    assert (ticket.state, len(parts.queue)) == ("refused", 0)


def test_a_worker_that_was_only_silent_is_not_unreachable_for_that(parts):
    worker = parts.worker()
    ticket = parts.ask()
    parts.clock.advance(6)
    parts.worker_pool.sweep()

    parts.dispatcher.worker_failed(ticket)
    parts.heartbeats(worker)

    assert ticket.state == "leased"


def test_tickets_that_return_to_the_queue_keep_the_order_in_which_they_came(parts):
    workers = [parts.worker("a"), parts.worker("b")]
    first, second, third = parts.ask(), parts.ask(), parts.ask()

    for ticket in (first, second):
        parts.dispatcher.worker_refused(ticket)

    assert [ticket.position for ticket in (first, second, third)] == [1, 2, 3]
    assert all(worker.free_slots == 0 for worker in workers)
