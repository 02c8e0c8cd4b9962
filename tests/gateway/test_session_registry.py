"""What a gateway knows of sessions without a connection, above all just after it has started."""

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, Mock

import msgspec
import pytest
from structlog.testing import capture_logs
from tests.support.gateways import RunningGateway, running_gateway, until
from tests.support.patience import HANG_S
from tests.support.present import present
from tests.support.stand_in_worker import StandInWorker
from tests.support.talking import end_of
from websockets.asyncio.client import ClientConnection, connect

from parley.clock import ManualClock
from parley.errors import SessionIdInUse
from parley.gateway import sessions
from parley.gateway.admission import Admission
from parley.gateway.dispatcher import Dispatcher
from parley.gateway.moving import Moving
from parley.gateway.queue import Ticket
from parley.gateway.rebuilding import NotRebuilt
from parley.gateway.resumption import Resumption
from parley.gateway.runtime import GatewayRuntime
from parley.gateway.session_relay import RelayEnd, SessionRelay, relay
from parley.gateway.sessions import OVER_LIMIT, RETURNS_S, NotYetKnown, Sessions, SessionState
from parley.gateway.successor import LostSession, ReservedSlot
from parley.gateway.worker_pool import Lease, WorkerPool
from parley.protocol.control import (
    RESUME_HEADER,
    RESUME_STATUSES,
    SESSION_HEADER,
    SILENCE_LIMIT_S,
    WHY_HEADER,
    Heartbeat,
    Hello,
    ResumeState,
    SessionPhase,
)
from parley.protocol.kinds import Kind, Phase
from parley.protocol.resume import AGAIN_CODE, REFUSED_CODE, REPLACED_CODE, ResumeRequest
from parley.session_log.contract import LoggedSession, StoredLog
from parley.settings import EtaSettings, LimitSettings, QueueSettings, SecuritySettings
from parley.transport import Closure, DialFailed, Traffic

WINDOW_S = 30.0


def of_session(
    phase: Phase, lease_id: str = "lease", session_id: str = "call", *, note: str = "", **more: Any
) -> SessionPhase:
    resume = ResumeState("duplex", left_s=WINDOW_S, note=note, log_id=lease_id, **more)
    return SessionPhase(
        lease_id, session_id, Kind.AUDIO_DUPLEX, phase, was_ready=True, tokens=7, resume=resume
    )


def hello(*sessions: SessionPhase, worker_id: str = "w") -> Hello:
    return Hello(worker_id, "http://127.0.0.1:1", 2, "parrot", "cpu", "1", 7, sessions=sessions)


def lease_of(pool: WorkerPool, lease_id: str) -> Lease:
    held = [{**worker.closing, **worker.leases} for worker in pool]
    return next(leases[lease_id] for leases in held if lease_id in leases)


async def never(lost: LostSession, slot: ReservedSlot | None, left: set[str]) -> Lease:
    """No worker continues it."""
    await asyncio.Event().wait()
    raise AssertionError


class Young:
    """What a gateway that has just started knows."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.dispatcher = Dispatcher(self.clock, QueueSettings(max_size=8), EtaSettings())
        self.pool = self.dispatcher.worker_pool
        self.dropped: list[str] = []
        self.gone: set[str] = set()
        self.leaving = asyncio.Event()
        self.admission = Admission(SecuritySettings(), sessions_per_client=8, own_names=())
        limits = LimitSettings(resume_window_s=WINDOW_S)
        self.rebuilding = Mock(rebuild=never, limits=limits)
        self.kept = Sessions(
            dispatcher=self.dispatcher,
            rebuilding=self.rebuilding,
            admission=self.admission,
            is_gone=self._is_gone,
            drop_log=self.dropped.append,
            hold_s=0.2,
        )

    async def _is_gone(self, url: str) -> bool:
        return url in self.gone

    def rebuilds(self, phase: Phase = Phase.ACTIVE) -> list[str]:
        """Leases of sessions that are rebuilt from here on, each at another worker."""
        rebuilt: list[str] = []

        async def rebuild(lost: LostSession, slot: ReservedSlot | None, left: set[str]) -> Lease:
            rebuilt.append(lost.lease_id)
            lease = present(self.pool.lease(lost.kind, lost.session_id))
            lease.resume = ResumeState("duplex", left_s=WINDOW_S, note="", log_id=lost.log_id)
            lease.phase = phase
            return lease.transfer()

        self.kept.rebuilding.rebuild = rebuild  # type: ignore[method-assign]
        return rebuilt

    def resumption(self, *, moving: Any = None, relay: Any = None) -> Resumption:
        return Resumption(
            sessions=self.kept,
            moving=moving or Mock(),
            relay=relay or Mock(),
            upstream_settings=Mock(),
            metrics=Mock(),
        )

    def free_slots(self) -> int:
        (worker,) = self.pool
        return worker.free_slots


@pytest.fixture
async def young() -> AsyncIterator[Young]:
    made = Young()
    yield made
    await made.kept.close()


async def test_a_session_is_unknown_only_when_its_window_must_be_over(young: Young) -> None:
    for at_s in (0.0, 11.0, 29.0):
        young.clock.advance(at_s - young.clock.monotonic())
        with pytest.raises(NotYetKnown):
            await young.kept.find("call")
    young.clock.advance(2.0)

    assert await young.kept.find("call") is None


async def test_the_moment_in_which_all_is_known_is_not_waited_in(
    young: Young, monkeypatch: pytest.MonkeyPatch
) -> None:
    young.kept.hold_s = 1e6
    moments = itertools.chain([WINDOW_S - 1e-6], itertools.repeat(WINDOW_S))
    monkeypatch.setattr(young.clock, "monotonic", lambda: next(moments))

    async with asyncio.timeout(HANG_S):
        assert await young.kept.find("call") is None


async def test_a_worker_may_bring_a_session_late(young: Young) -> None:
    young.clock.advance(26.0)

    young.pool.welcome(hello(of_session(Phase.ACTIVE)), object())

    lease = present(await young.kept.find("call"))
    assert lease.is_held
    assert (young.kept.away, young.free_slots()) == (1, 1)


async def test_a_session_that_ended_without_a_gateway_has_last_words(young: Young) -> None:
    many = [of_session(Phase.ENDED, str(number), str(number)) for number in range(OVER_LIMIT)]
    worker = young.pool.welcome(hello(*many, of_session(Phase.ENDED)), object())

    lease = present(await young.kept.find("call"))
    assert young.kept.take(lease) is None, "it has no slot any more"
    assert (young.kept.count(), young.free_slots()) == ({"ended": OVER_LIMIT}, 2)
    assert worker.total_requests == 0, "its slot was never leased here"


async def ended_and_lost(gateway: Young) -> Lease:
    """A session that its worker ended just before it died."""
    worker = gateway.pool.welcome(hello(of_session(Phase.ACTIVE)), object())
    lease = present(await gateway.kept.find("call"))
    assert not gateway.kept.seek_last_words(lease), "it has not ended"
    gateway.pool.phase(worker, of_session(Phase.ENDED))
    gateway.pool.disconnected(worker)
    gateway.pool.gone(worker)
    gateway.pool.welcome(hello(worker_id="v"), object())
    return lease


@pytest.mark.parametrize("phase", [Phase.ACTIVE, Phase.ENDED])
async def test_last_words_of_a_worker_that_died_are_told_by_another(
    young: Young, phase: Phase
) -> None:
    rebuilt = young.rebuilds(phase)
    assert young.kept.seek_last_words(await ended_and_lost(young))
    if phase == Phase.ENDED:
        await asyncio.sleep(0)

    found = present(await young.kept.find("call"))

    assert (rebuilt, found.worker.worker_id) == (["lease"], "v")
    if phase == Phase.ENDED:
        assert found.worker.free_slots == 2, "they need none"
        assert young.kept.take(found) is None


@pytest.mark.parametrize(
    ("code", "is_held", "is_kept"),
    [(1000, True, False), (1001, True, False), (1006, True, True), (1006, False, False)],
)
def test_a_session_whose_client_leaves_while_it_moves_is_over(
    code: int, is_held: bool, is_kept: bool
) -> None:
    lease = SimpleNamespace(resume=object(), is_held=is_held, is_lost=True, log_id="log")
    relays = SessionRelay(sessions=Mock(), metrics=Mock(), message_arrives=Mock())

    assert relays._is_cut(RelayEnd("client", Closure(code)), lease) is is_kept  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changed", "is_kept"),
    [
        ({}, True),
        ({"resume": None}, False),
        ({"is_held": False}, False),
        ({"is_lost": True}, False),
    ],
)
def test_a_replaced_connection_keeps_the_session_for_the_one_that_replaces_it(
    changed: dict[str, Any], is_kept: bool
) -> None:
    lease: Any = SimpleNamespace(
        **{"resume": object(), "is_held": True, "is_lost": False} | changed
    )
    relays = SessionRelay(sessions=Mock(), metrics=Mock(), message_arrives=Mock())

    assert relays._is_replaced(RelayEnd("worker", Closure(REPLACED_CODE)), lease) is is_kept
    assert not relays._is_replaced(RelayEnd("worker", Closure(1000)), lease)
    assert not relays._is_replaced(RelayEnd("client", Closure(REPLACED_CODE)), lease)


CLIENT: Any = SimpleNamespace(address="127.0.0.1", key_id="key")


async def test_a_resumed_session_that_ends_gives_its_slot_back(young: Young) -> None:
    worker = young.pool.welcome(hello(of_session(Phase.ACTIVE)), object())
    upstream = Mock(lease=lease_of(young.pool, "lease"))
    resumption = young.resumption(relay=Mock(run=AsyncMock()))

    with ExitStack() as held:
        held.enter_context(young.admission.visit("127.0.0.1", returns=True))
        await resumption._continue(Mock(), CLIENT, upstream, Mock(), held)
        with pytest.raises(SessionIdInUse), young.admission.claim("call"):
            pass
        # It counts as what it has become.
        assert young.admission.sessions_by_address == {"127.0.0.1": 1, "key key": 1}
        assert not young.admission._returning
    assert not young.admission.sessions_by_address

    upstream.hold.assert_called_once()
    assert not worker.leases


async def test_a_resumed_session_waits_until_its_previous_connection_is_gone(
    young: Young, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("parley.gateway.resumption.TAKE_OVER_S", 10 * HANG_S)
    young.pool.welcome(hello(of_session(Phase.ACTIVE)), object())
    connection, relayed = Mock(), AsyncMock()
    resumption = young.resumption(relay=Mock(run=relayed))
    upstream = Mock(lease=young.kept.take(lease_of(young.pool, "lease")))

    with ExitStack() as held:
        with young.admission.claim("call"):
            work = resumption._continue(connection, CLIENT, upstream, Mock(), held)
            continuing = asyncio.create_task(work)
            await asyncio.sleep(0.01)
            relayed.assert_not_called()
        await asyncio.wait_for(continuing, HANG_S)

    relayed.assert_awaited_once()
    connection.close.assert_not_called()


async def test_a_client_that_its_old_worker_answers_too_late_is_asked_to_try_again(
    young: Young,
) -> None:
    young.pool.welcome(hello(of_session(Phase.ACTIVE)), object())
    lease, connection, relayed = lease_of(young.pool, "lease"), Mock(), AsyncMock()
    Moving(sessions=young.kept, worker_control=Mock())._part(lease)

    with ExitStack() as held:
        resumption = young.resumption(relay=Mock(run=relayed))
        await resumption._continue(connection, CLIENT, Mock(lease=lease), Mock(), held)

    connection.close.assert_called_once_with(AGAIN_CODE, "try again")
    relayed.assert_not_called()


@pytest.mark.parametrize(
    ("changed", "code"),
    [({}, None), ({"is_held": False}, AGAIN_CODE), ({"is_held": False, "resume": None}, None)],
)
def test_a_lost_worker_is_reported_by_the_connection_that_holds_the_lease(
    changed: dict[str, Any], code: int | None
) -> None:
    lease: Any = SimpleNamespace(
        **{"resume": object(), "is_held": True, "was_ready": True} | changed
    )
    relays = SessionRelay(sessions=Mock(), metrics=Mock(), message_arrives=Mock())
    client, dialect = Mock(), Mock(frames=lambda answer: [])
    dialect.answer.return_value.close_code = None

    relays._finish(client, Mock(), dialect, RelayEnd("lost", Closure(1006)), lease)

    assert dialect.answer.called == (code is None)
    if code is not None:
        client.close.assert_called_once_with(code, "resume")


async def test_neither_side_is_joined_to_the_other_when_a_worker_is_lost() -> None:
    loop = asyncio.get_running_loop()
    client, worker = (Mock(closed=loop.create_future()) for _ in range(2))
    lost = loop.create_future()
    lost.set_result(None)

    end = await relay(client, worker, lost=lost, up=Traffic(), down=Traffic())

    assert end == RelayEnd("lost", Closure(1006))
    client.part.assert_called_once_with()
    worker.part.assert_called_once_with()


async def test_a_session_that_ended_is_not_called_lost_when_its_last_words_are_gone(
    young: Young,
) -> None:
    failing = AsyncMock(side_effect=NotRebuilt("Nothing of the session was kept."))
    young.kept.rebuilding.rebuild = failing  # type: ignore[method-assign]
    lease = await ended_and_lost(young)
    assert young.kept.seek_last_words(lease)

    assert await young.kept.find("call") is None

    found = present(young.kept.known_to(None, "call"))
    assert (found.state, found.has_ended) == (SessionState.ENDED, True)
    assert young.kept.known_to("another's", "call") is None


async def test_a_session_of_which_its_worker_says_nothing_more_gives_its_slot_back(
    young: Young,
) -> None:
    young.pool.welcome(hello(of_session(Phase.ACTIVE)), object())

    worker = young.pool.welcome(hello(), object())
    young.pool.heard(worker, Heartbeat("idle", 2, 0, 0.0, 0))

    assert (young.kept.away, young.free_slots()) == (0, 2)


async def test_a_worker_that_is_lost_after_it_rebuilt_a_session_is_followed_by_another(
    young: Young,
) -> None:
    first = young.pool.welcome(hello(of_session(Phase.ACTIVE)), object())
    rebuilt = young.rebuilds()
    others = [hello(worker_id=name) for name in ("v", "u")]
    for lost, other in zip((first.worker_id, "v"), others, strict=True):
        young.pool.welcome(other, object())
        worker = present(young.pool.find(lost))
        young.pool.disconnected(worker)
        young.pool.gone(worker)
        assert await young.kept.find("call") is not None

    assert len(rebuilt) == 2
    assert young.dropped == []
    assert present(young.kept.get("call")).state is SessionState.AWAY


async def test_what_a_lost_worker_still_ends_moves_all_the_same(young: Young) -> None:
    worker = young.pool.welcome(hello(of_session(Phase.ACTIVE)), object())
    young.pool.left(worker)

    young.pool.phase(worker, of_session(Phase.ENDED))

    assert (young.kept.count(), young.dropped) == ({"moving": 1}, [])


async def test_after_a_loss_the_rest_of_the_window_counts(
    young: Young, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "RETURNS_S", 0.0)
    young.rebuilding.limits = LimitSettings(resume_window_s=10 * HANG_S)
    worker = young.pool.welcome(hello(of_session(Phase.ACTIVE)), object())
    young.clock.advance(WINDOW_S - 0.01)

    young.pool.left(worker)

    await until(lambda: young.kept.count() == {"lost": 1})


async def test_a_fault_while_a_session_is_rebuilt_loses_it_and_nothing_else(young: Young) -> None:
    worker = young.pool.welcome(hello(of_session(Phase.ACTIVE)), object())

    young.kept.rebuilding.rebuild = AsyncMock(side_effect=KeyError("a mistake of ours"))  # type: ignore[method-assign]
    young.pool.left(worker)
    await until(lambda: young.kept.moving("call") is None)
    young.clock.advance(WINDOW_S + 1)
    assert await young.kept.find("call") is None

    why = present(young.kept.get("call")).why
    assert why == "The server made a mistake; its log has more."
    assert young.dropped == ["lease"]
    with young.kept.admission.claim("call"):
        """Its id is free again."""


async def test_a_worker_that_was_thought_lost_may_bring_hundreds_of_sessions_again(
    young: Young,
) -> None:
    doubled = list[str]()
    young.rebuilds()
    young.kept.doubled.listen(lambda lease: doubled.append(lease.lease_id))
    leases = [str(number) for number in range(600)]
    brought = [of_session(Phase.ACTIVE, each, each) for each in leases]
    frozen = young.pool.welcome(hello(*brought), object())
    young.pool.welcome(msgspec.structs.replace(hello(worker_id="v"), slots=600), object())
    young.pool.left(frozen)
    await until(lambda: young.kept.away == 600)

    young.pool.welcome(hello(*brought), object())

    assert doubled == leases
    assert young.kept.away == 600


async def test_a_gateway_that_ends_leaves_what_it_rebuilds_to_the_next_one(young: Young) -> None:
    began = asyncio.Event()
    workers = [
        young.pool.welcome(hello(of_session(Phase.ACTIVE, name, call), worker_id=name), object())
        for name, call in (("first", "call"), ("later", "another"))
    ]

    async def rebuild(lost: LostSession, slot: ReservedSlot | None, left: set[str]) -> Lease:
        began.set()
        # As the queue does, which is closed then.
        await young.leaving.wait()
        raise NotRebuilt("The server is shutting down.")

    young.kept.rebuilding.rebuild = rebuild  # type: ignore[method-assign]
    young.pool.left(workers[0])
    await began.wait()
    rebuilds = present(present(young.kept.get("call")).rebuilding)
    young.kept.hold_s = 2 * HANG_S
    asking = asyncio.create_task(young.kept.find("call"))
    await asyncio.sleep(0)
    young.kept.leave()
    young.leaving.set()
    young.pool.left(workers[1])

    with pytest.raises(NotYetKnown):
        await asyncio.wait_for(asking, HANG_S)
    await young.kept.close()
    assert rebuilds.cancelled()
    assert young.dropped == []


async def test_a_session_in_flight_to_another_worker_is_not_ended_where_it_was(
    young: Young, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("parley.gateway.moving.LOOK_EVERY_S", 0.01)
    ended = list[str]()
    young.pool.welcome(
        hello(*(of_session(Phase.ACTIVE, each, each) for each in ("on its way", "there"))), object()
    )
    unlogged = lease_of(young.pool, "there")
    assert unlogged.resume is not None
    unlogged.resume = msgspec.structs.replace(unlogged.resume, log_id="")

    control = Mock(end_doubled=lambda lease: ended.append(lease.session_id))
    moving = Moving(sessions=young.kept, worker_control=control)
    for name in ("on its way", "there"):
        lease = lease_of(young.pool, name)
        moving._part(lease)

    moving.leave()
    young.kept.leave()
    await young.kept.close()
    await asyncio.sleep(0.05)

    # The other one had arrived, or nobody could continue it.
    assert ended == ["there"]


@pytest.mark.parametrize(
    ("others", "is_connected", "goes"),
    [
        (("parrot",), False, True),
        (("parrot",), True, False),
        (("crow",), False, False),
        ((), False, False),
    ],
    ids=["there is room", "its client is connected", "another model", "nobody else"],
)
async def test_a_session_whose_worker_cannot_be_reached_goes_where_it_can(
    young: Young, others: tuple[str, ...], is_connected: bool, goes: bool
) -> None:
    ended = list[str]()
    rebuilt = young.rebuilds()
    young.pool.welcome(hello(of_session(Phase.ACTIVE)), object())
    for model in others:
        there = msgspec.structs.replace(hello(worker_id="other"), model=model)
        young.pool.welcome(there, object())
    control = Mock(end_doubled=lambda lease: ended.append(lease.lease_id))
    moving = Moving(sessions=young.kept, worker_control=control)
    lease = lease_of(young.pool, "lease")
    if is_connected:
        lease = present(young.kept.take(lease))

    moving.move_unreachable(lease)

    assert not lease.worker.is_usable
    await until(lambda: bool(rebuilt) == goes)
    assert young.kept.is_away(lease) == (not goes and not is_connected)
    moving.leave()
    assert ended == (["lease"] if goes else []), "where it was"


@pytest.mark.parametrize(
    ("status", "is_lost", "told"),
    [(None, False, 1), (500, False, 0), (400, False, 0), (404, False, 0), (None, True, 0)],
)
async def test_only_a_worker_that_gives_no_answer_is_unreachable(
    status: int | None, is_lost: bool, told: int
) -> None:
    gateway, connection, said = Young(), Mock(), list[Lease]()
    gateway.pool.welcome(hello(of_session(Phase.ACTIVE)), object())
    lease = lease_of(gateway.pool, "lease")
    lease.is_lost = is_lost
    # Another process, which knows nothing of the session, may have a dead worker's address.
    lease.worker.is_connected = status != RESUME_STATUSES["unknown"]
    resumption = gateway.resumption(moving=Mock(move_unreachable=said.append))

    resumption._not_opened(connection, lease, DialFailed("no", status=status))

    assert len(said) == told
    connection.close.assert_called_once_with(AGAIN_CODE, "try again")


@pytest.mark.parametrize(("reason", "status"), RESUME_STATUSES.items())
async def test_the_reason_of_a_workers_refusal_reaches_the_client(reason: str, status: int) -> None:
    gateway, connection = Young(), Mock()
    gateway.pool.welcome(hello(of_session(Phase.ACTIVE)), object())
    resumption = gateway.resumption()

    head = f"{WHY_HEADER}: It is over.".encode()
    failure = DialFailed("no", status=status, head=head)
    resumption._not_opened(connection, lease_of(gateway.pool, "lease"), failure)

    ((text,), _) = connection.send_text.call_args
    refusal = json.loads(text)
    assert (refusal["reason"], "It is over." in refusal["message"]) == (reason, True)
    connection.close.assert_called_once_with(REFUSED_CODE, reason)


async def test_who_leaves_while_a_session_is_rebuilt_keeps_no_slot(gateway: RunningGateway) -> None:
    runtime, ended, session_id = gateway.runtime, asyncio.Event(), "adx_0123456789abcdef0123"

    async def rebuild(lost: LostSession, slot: ReservedSlot | None, left: set[str]) -> Lease:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        raise AssertionError

    runtime.sessions.rebuilding.rebuild = rebuild  # type: ignore[method-assign]
    keyless = f"{session_id}4"
    note = '{"address":"127.0.0.1","key_id":"key"}'
    for found in (left(note=note, session_id=session_id), left(session_id=keyless)):
        runtime.sessions.found(found)
    await until(lambda: runtime.sessions.moving(session_id))
    await until(lambda: runtime.sessions.moving(keyless))
    for one in runtime.sessions:
        one.asked.set()
    async with gateway.http() as http:
        stranger = await http.post(f"/api/sessions/{session_id}/end")
        assert runtime.sessions.moving(session_id)
        client = await http.post(f"/api/sessions/{keyless}/end")

    assert (stranger.status_code, client.status_code) == (404, 200)
    async with asyncio.timeout(HANG_S):
        await ended.wait()
    await until(lambda: not runtime.sessions.moving(keyless))
    assert present(runtime.sessions.known_to(None, keyless)).why == "Its client had left."


async def test_a_client_whose_session_was_lost_is_refused_immediately_with_the_reason(
    gateway: RunningGateway,
) -> None:
    why = "It began on another model."

    sessions = gateway.runtime.sessions
    sessions.rebuilding.rebuild = AsyncMock(side_effect=NotRebuilt(why))  # type: ignore[method-assign]
    sessions.found(left(note='{"address":"127.0.0.1"}'))
    for one in sessions:
        one.asked.set()
    await until(lambda: present(sessions.get("call")).state is SessionState.LOST)
    with capture_logs() as lines:
        async with connect(gateway.ws("/ws/duplex/call?resume=true")) as client:
            request = ResumeRequest(session_id="call", resume_token="secret", seq=1)
            await client.send(msgspec.json.encode(request).decode())
            (refusal,), code = await end_of(client)

    assert (refusal["reason"], code) == ("lost", REFUSED_CODE)
    assert why in refusal["message"]
    (line,) = [each for each in lines if each["event"] == "resume_refused"]
    assert (line["session_id"], line["reason"], line["why"]) == ("call", "lost", why)


# ---- what an earlier gateway left behind ---------------------------------------------------


def left(
    lease_id: str = "lease",
    *,
    session_id: str = "call",
    pid: int = 7,
    note: str = '{"address":"127.0.0.1","granted_time":0.0}',
    age_s: float = 11.0,
) -> StoredLog:
    """A session of worker `w` whose log was found."""
    logged = LoggedSession(
        *(lease_id, lease_id, session_id, Kind.AUDIO_DUPLEX, "duplex", "w", "http://127.0.0.1:1"),
        worker_pid=pid,
        fingerprint=hello().fingerprint,
        note=note,
    )
    return StoredLog(logged, size_bytes=100, age_s=age_s, has_writer=False)


async def test_sessions_that_wait_for_their_clients_take_no_place_of_their_address(
    young: Young,
) -> None:
    young.gone.add("http://127.0.0.1:1")
    rebuilt = young.rebuilds()
    for number in range(9):
        young.kept.found(left(session_id=f"call{number}"))
    await until(lambda: young.kept.count() == {"away": 9})

    with young.admission.visit("127.0.0.1"):
        await asyncio.sleep(0)
    young.pool.welcome(hello(worker_id="other"), object())
    lease = present(await young.kept.find("call3"))

    assert len(rebuilt) == 1
    assert young.admission.sessions_by_address == {"127.0.0.1": 1}

    young.pool.phase(lease.worker, of_session(Phase.ENDED, lease.lease_id, "call3"))
    with young.admission.claim("call3"):
        assert young.admission.sessions_by_address == {}


async def test_who_shows_another_key_does_not_call_a_moving_session_to_a_slot(young: Young) -> None:
    young.gone.add("http://127.0.0.1:1")
    rebuilt = young.rebuilds()
    young.kept.found(left(note='{"address":"127.0.0.1","key_id":"key"}'))
    await until(lambda: young.kept.count() == {"away": 1})
    young.pool.welcome(hello(worker_id="other"), object())

    with pytest.raises(NotYetKnown):
        await young.kept.find("call", "another")
    assert rebuilt == []

    assert await young.kept.find("call", "key") is not None
    assert rebuilt == ["lease"]
    assert young.admission.sessions_by_address == {"127.0.0.1": 1, "key key": 1}


@pytest.mark.parametrize("jump_s", [-3600.0, 3600.0])
async def test_what_a_session_ran_is_charged_whatever_the_clock_was_set_to(
    young: Young, jump_s: float
) -> None:
    granted = young.clock.time() - 600 + jump_s
    note = f'{{"address":"127.0.0.1","key_id":"key","granted_time":{granted},"ran_s":60.0}}'

    young.pool.welcome(hello(of_session(Phase.ACTIVE, note=note, ran_s=540.0)), object())

    (lease,) = young.pool.leases
    ran_s = young.clock.monotonic() - lease.granted_at
    assert (ran_s, lease.counted_s, lease.tokens) == (600.0, 600.0, 7)
    assert young.admission.sessions_by_address == {"127.0.0.1": 1, "key key": 1}


@pytest.mark.parametrize(
    ("lease_id", "worker_id"), [("lease", "w"), ("after", "v")], ids=["its worker", "another"]
)
async def test_a_session_that_a_worker_brings_stays_there(
    young: Young, lease_id: str, worker_id: str
) -> None:
    rebuilt = young.rebuilds()
    young.kept.found(left())
    with pytest.raises(NotYetKnown):
        await young.kept.find("call")

    young.pool.welcome(hello(of_session(Phase.ACTIVE, lease_id), worker_id=worker_id), object())

    assert present(await young.kept.find("call")).worker.worker_id == worker_id
    assert young.kept.count() == {"away": 1}
    assert (rebuilt, young.dropped) == ([], [])


def at(worker_id: str, *, granted_time: float = 0.0, ran_s: float = 0.0) -> Hello:
    """A worker of two slots with a session that was leased there at `granted_time + ran_s`."""
    note = {"address": "127.0.0.1", "granted_time": granted_time, "ran_s": ran_s}
    session = of_session(Phase.ACTIVE, f"lease of {worker_id}", note=json.dumps(note))
    return hello(session, worker_id=worker_id)


@pytest.mark.parametrize("order", [("w", "v"), ("v", "w")])
async def test_of_two_sessions_with_one_id_only_the_newer_one_keeps_its_slot(
    young: Young, order: tuple[str, str]
) -> None:
    doubled = list[str]()
    young.kept.doubled.listen(lambda lease: doubled.append(lease.lease_id))
    # `w` was considered lost and did not notice that the session has moved to `v`.
    hellos = {"w": at("w", granted_time=100.0), "v": at("v", granted_time=100.0, ran_s=60.0)}
    for worker_id in order:
        young.pool.welcome(hellos[worker_id], object())

    young.pool.phase(present(young.pool.find("w")), of_session(Phase.ENDED, "lease of w"))

    assert doubled == ["lease of w"]
    assert present(await young.kept.find("call")).lease_id == "lease of v"
    assert {each.worker_id: each.free_slots for each in young.pool} == {"w": 2, "v": 1}
    assert young.kept.count() == {"away": 1}
    assert young.admission.sessions_by_address == {"127.0.0.1": 1}


async def test_an_older_session_with_the_id_of_one_that_was_lost_is_ended(young: Young) -> None:
    doubled = list[str]()
    young.kept.doubled.listen(lambda lease: doubled.append(lease.lease_id))
    young.pool.left(young.pool.welcome(at("v", granted_time=200.0), object()))

    young.pool.welcome(at("w", granted_time=100.0), object())

    assert doubled == ["lease of w"]


async def test_a_session_that_began_again_is_not_replaced_by_a_late_report_of_the_first(
    young: Young,
) -> None:
    young.pool.welcome(hello(worker_id="v"), object())
    young.clock.advance(3.0)
    again = present(young.pool.lease(Kind.AUDIO_DUPLEX, "call"))
    again.resume = ResumeState("duplex")
    young.kept.connect(again)

    young.pool.welcome(at("w", granted_time=young.clock.time() - 60), object())

    assert young.kept.count() == {"connected": 1}
    young.kept.keep(again, ExitStack())
    assert present(await young.kept.find("call")).lease_id == again.lease_id
    assert [lease.lease_id for lease in young.pool.leases] == [again.lease_id]


async def test_a_connection_to_the_older_of_two_sessions_does_not_replace_the_newer_one(
    young: Young,
) -> None:
    young.pool.welcome(at("w", granted_time=100.0), object())
    older = present(young.kept.take(lease_of(young.pool, "lease of w")))
    with young.admission.claim("call"):
        """The connection has the session's id."""
        young.pool.welcome(at("v", granted_time=200.0), object())
        (held := ExitStack()).callback(released := Mock())
        young.kept.keep(older, held)

    released.assert_called_once_with()
    assert young.admission.sessions_by_address == {"127.0.0.1": 1}
    assert present(await young.kept.find("call")).lease_id == "lease of v"
    assert [lease.lease_id for lease in young.pool.leases] == ["lease of v"]


@pytest.mark.parametrize("is_first", [False, True])
async def test_a_session_that_its_worker_does_not_know_any_more_has_ended(
    young: Young, is_first: bool
) -> None:
    rebuilt = young.rebuilds()
    if is_first:
        young.pool.welcome(hello(), object())
    young.kept.found(left())
    if not is_first:
        young.pool.welcome(hello(), object())

    assert young.kept.get("call") is None
    assert (rebuilt, young.dropped) == ([], ["lease"])


@pytest.mark.parametrize("how", ["its process is gone", "another process has its name", "silent"])
async def test_a_session_whose_worker_is_gone_too_continues_at_another(
    young: Young, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rebuilt = young.rebuilds()
    young.pool.welcome(hello(worker_id="v"), object())
    match how:
        case "its process is gone":
            young.gone.add("http://127.0.0.1:1")
        case "silent":
            monkeypatch.setattr("parley.gateway.sessions.COMES_S", 0.0)
    young.kept.found(left(pid=6))
    if how == "another process has its name":
        young.pool.welcome(hello(), object())

    await until(lambda: young.kept.count() == {"away": 1})
    assert rebuilt == [], "its client is not there"
    assert await young.kept.find("call") is not None
    assert rebuilt == ["lease"]
    assert young.dropped == []


@pytest.mark.parametrize(("away_s", "is_rebuilt"), [(1.0, True), (11.0, False), (WINDOW_S, False)])
async def test_only_sessions_whose_clients_are_expected_take_slots(
    young: Young, away_s: float, is_rebuilt: bool
) -> None:
    rebuilt = young.rebuilds()
    worker = young.pool.welcome(hello(of_session(Phase.ACTIVE)), object())
    young.pool.welcome(hello(worker_id="v"), object())
    # That its client asked for it once, and was there, does not count any more.
    resumed = present(young.kept.take(present(await young.kept.find("call"))))
    young.kept.keep(resumed, ExitStack())
    young.clock.advance(away_s)

    young.pool.disconnected(worker)
    young.pool.gone(worker)
    await asyncio.sleep(0.01)
    await until(lambda: len(rebuilt) >= is_rebuilt)

    assert rebuilt == (["lease"] if is_rebuilt else [])
    assert young.kept.count() == {"away": 1}
    found = present(await young.kept.find("call"))
    assert found.worker.worker_id == "v"


@pytest.mark.parametrize(("age_s", "is_rebuilt"), [(1.0, True), (11.0, False)])
async def test_a_session_whose_client_is_away_takes_a_slot_that_no_client_waits_for(
    young: Young, monkeypatch: pytest.MonkeyPatch, age_s: float, is_rebuilt: bool
) -> None:
    monkeypatch.setattr("parley.gateway.sessions.SPARE_EVERY_S", 0.01)
    young.dispatcher.pause(True)
    rebuilt = young.rebuilds()
    young.gone.add("http://127.0.0.1:1")
    young.pool.welcome(hello(worker_id="v"), object())
    young.kept.found(left(age_s=age_s))
    await asyncio.sleep(0.05)
    await until(lambda: len(rebuilt) >= is_rebuilt)
    assert rebuilt == (["lease"] if is_rebuilt else []), "its client was there a moment ago"

    young.dispatcher.pause(False)

    await until(lambda: young.kept.away == 1)
    assert rebuilt == ["lease"]
    # It waits there for the rest of its window, as any session does.
    assert young.admission.sessions_by_address == {"127.0.0.1": 1}
    present(young.kept.get("call")).held.close()
    with young.admission.claim("call"):
        assert not young.admission.sessions_by_address


async def test_how_long_a_found_session_waits_is_what_the_settings_say_now(young: Young) -> None:
    young.kept.rebuilding.limits = LimitSettings(resume_window_s=0.01)
    young.gone.add("http://127.0.0.1:1")

    young.kept.found(left(age_s=11.0))

    async with asyncio.timeout(WINDOW_S / 2):
        await until(lambda: young.kept.count() == {"lost": 1})
    assert young.dropped == ["lease"]


@pytest.mark.parametrize("age_s", [1.0, 11.0])
async def test_a_session_whose_client_was_there_gets_a_slot_before_new_clients(
    young: Young, age_s: float
) -> None:
    young.dispatcher.follow(b"secret", 2, window_s=WINDOW_S)
    young.gone.add("http://127.0.0.1:1")
    young.kept.found(left(age_s=age_s))
    young.pool.welcome(msgspec.structs.replace(hello(worker_id="v"), slots=1), object())
    new = young.dispatcher.submit(Ticket(Kind.CHAT, "new"))
    assert new.state == ("waiting" if age_s < RETURNS_S else "leased")

    lost = Ticket(Kind.AUDIO_DUPLEX, "call", fingerprint=hello().fingerprint)
    young.dispatcher.submit_first(lost)

    assert {new.state, lost.state} == {"waiting", "leased"}


async def test_a_session_that_has_moved_is_not_sought_at_its_old_worker(young: Young) -> None:
    young.rebuilds()
    old = young.pool.welcome(hello(of_session(Phase.ACTIVE)), object())
    young.pool.welcome(hello(worker_id="v"), object())
    lease = lease_of(young.pool, "lease")
    lease.is_lost = True
    lease.lost.notify()
    await until(lambda: young.kept.away)

    # It reports that its client has left, and has not heard that it is to end the session.
    young.pool.phase(old, of_session(Phase.ACTIVE))

    found = present(await young.kept.find("call"))
    assert found.worker.worker_id == "v"


async def test_one_whose_worker_comes_after_all_is_told_to_end_it(young: Young) -> None:
    young.rebuilds()
    doubled: list[Lease] = []
    young.kept.doubled.listen(doubled.append)
    young.gone.add("http://127.0.0.1:1")
    young.pool.welcome(hello(worker_id="v"), object())
    young.kept.found(left())
    await until(lambda: young.kept.moving("call"))
    assert await young.kept.find("call")

    young.pool.welcome(hello(of_session(Phase.ACTIVE)), object())

    assert [lease.lease_id for lease in doubled] == ["lease"]


@pytest.mark.parametrize("is_silent", [False, True])
async def test_a_worker_that_returns_while_another_rebuilds_its_session_ends_it(
    young: Young, is_silent: bool
) -> None:
    doubled: list[Lease] = []
    young.kept.doubled.listen(doubled.append)
    worker = young.pool.welcome(hello(of_session(Phase.ACTIVE)), object())
    if is_silent:
        young.clock.advance(SILENCE_LIMIT_S + 1)
        young.pool.sweep()
    else:
        young.pool.left(worker)

    young.pool.welcome(hello(of_session(Phase.ACTIVE)), object())

    assert [lease.lease_id for lease in doubled] == ["lease"]
    assert young.kept.moving("call")


async def test_a_log_of_a_session_that_its_worker_has_reported_is_left_alone(young: Young) -> None:
    young.pool.welcome(hello(of_session(Phase.ACTIVE)), object())

    young.kept.found(left())

    assert young.kept.count() == {"away": 1}


async def test_a_log_with_a_note_that_is_not_a_gateways_is_dropped(young: Young) -> None:
    young.kept.found(left(note="[]"))

    assert young.kept.get("call") is None
    assert young.dropped == ["lease"]


# ---- over real sockets ---------------------------------------------------------------------


async def come_back(gateway: RunningGateway) -> ClientConnection:
    """A client that asks for its session."""
    client = await connect(gateway.ws("/ws/duplex/omni_1?resume=true"))
    request = {"session_id": "omni_1", "resume_token": "t", "seq": 1}
    await client.send(json.dumps({"type": "session.resume", **request}))
    return client


async def test_a_client_is_asked_to_try_again_and_at_last_that_there_is_nothing() -> None:
    clock = ManualClock()

    def make(settings: object, **more: object) -> GatewayRuntime:
        return GatewayRuntime(settings, clock=clock, **more)  # type: ignore[arg-type]

    async with running_gateway(make_runtime=make) as gateway:
        gateway.runtime.sessions.hold_s = 0.05
        clock.advance(11.0)
        early, early_code = await end_of(await come_back(gateway))
        clock.advance(WINDOW_S)
        late, late_code = await end_of(await come_back(gateway))
        page = gateway.runtime.metrics.page().decode()

    assert (early, early_code) == ([], 1012)
    assert [message["reason"] for message in late] == ["unknown"]
    assert late_code == 4404
    assert 'parley_resumptions_total{result="not_yet_known"} 1.0' in page


async def test_anyone_who_gave_up_does_not_take_the_session_from_its_next_attempt(
    gateway: RunningGateway,
) -> None:
    worker = StandInWorker(gateway.url, name="late")
    worker.kept = (of_session(Phase.ACTIVE, session_id="omni_1"),)
    gave_up = await come_back(gateway)
    await gave_up.close()
    stays = await come_back(gateway)
    live = gateway.runtime.serving.connection_handler.live
    await until(lambda: len(live) == 1)

    async with worker:
        await until(lambda: worker.headers)
        await asyncio.sleep(0)
        await stays.send(json.dumps({"type": "stop"}))
        said, code = await end_of(stays)

    resumed = [each for each in worker.headers if RESUME_HEADER in each]
    assert [each[SESSION_HEADER] for each in resumed] == ["omni_1"]
    assert (said[-1]["type"], code) == ("stopped", 1000)


async def test_the_registry_says_where_every_session_is(young: Young) -> None:
    young.rebuilds()
    seen: list[SessionState] = []

    def note() -> None:
        found = young.kept.get("call")
        if found is not None and seen[-1:] != [found.state]:
            seen.append(found.state)

    young.kept.changed.listen(note)
    first = young.pool.welcome(hello(of_session(Phase.ACTIVE)), object())
    lease = lease_of(young.pool, "lease")
    assert young.kept.take(lease) is not None
    current = lease_of(young.pool, "lease")
    young.kept.keep(current, ExitStack())
    second = young.pool.welcome(hello(worker_id="v"), object())
    young.pool.left(first)
    await until(lambda: young.kept.away == 1)
    moved = next(iter(second.leases))
    young.pool.phase(second, of_session(Phase.ENDED, moved))

    assert seen == ["away", "connected", "away", "moving", "away", "ended"]
    assert young.kept.count() == {"ended": 1}


async def test_a_connected_session_that_cannot_be_resumed_leaves_the_registry(young: Young) -> None:
    young.pool.welcome(hello(), object())
    lease = present(young.pool.lease(Kind.CHAT, "chat"))

    young.kept.connect(lease)
    assert young.kept.count() == {"connected": 1}
    young.kept.disconnect(lease)

    assert young.kept.count() == {}


async def test_a_connection_that_was_replaced_takes_nothing_with_it(young: Young) -> None:
    young.pool.welcome(hello(of_session(Phase.ACTIVE)), object())
    first = lease_of(young.pool, "lease")
    first = present(young.kept.take(first))

    second = young.kept.take(first)
    young.kept.disconnect(first)

    assert second is not None
    assert young.kept.count() == {"connected": 1}
