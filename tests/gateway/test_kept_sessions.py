"""What a gateway knows of sessions without a connection, above all just after it has begun."""

from __future__ import annotations

import asyncio
import json

import pytest
from tests.support.gateways import RunningGateway, end_of, running_gateway, until
from tests.support.stand_in_worker import StandInWorker
from websockets.asyncio.client import ClientConnection, connect

from parley.clock import ManualClock
from parley.gateway.admission import Admission
from parley.gateway.copies import Copies
from parley.gateway.eta import EtaTracker
from parley.gateway.kept_sessions import KeptSessions, NotYetKnown
from parley.gateway.runtime import GatewayRuntime
from parley.gateway.session_copies import KeptCopy
from parley.gateway.worker_pool import Lease, WorkerPool
from parley.protocol.control import (
    RESUME_HEADER,
    SESSION_HEADER,
    CopyPart,
    Heartbeat,
    Hello,
    ResumeState,
    SessionPhase,
)
from parley.protocol.kinds import Kind, Phase
from parley.settings import EtaSettings, SecuritySettings

WINDOW_S = 30.0


def of_session(phase: Phase, lease_id: str = "lease") -> SessionPhase:
    resume = ResumeState("duplex", left_s=WINDOW_S, note="")
    return SessionPhase(lease_id, "call", Kind.AUDIO_DUPLEX, phase, was_ready=True, resume=resume)


def hello(*sessions: SessionPhase, worker_id: str = "w") -> Hello:
    return Hello(worker_id, "http://127.0.0.1:1", 2, "parrot", "cpu", "1", 7, sessions=sessions)


class Young:
    """What a gateway that has just begun knows."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.pool = WorkerPool(self.clock, EtaTracker(EtaSettings()))
        self.copies = Copies(session_bytes=99, total_bytes=99, is_ours=self.pool.holds)
        self.kept = KeptSessions(
            worker_pool=self.pool,
            admission=Admission(SecuritySettings(), sessions_per_client=8, own_names=()),
            clock=self.clock,
            copies=self.copies,
            window_s=WINDOW_S,
            hold_s=0.01,
        )

    def free_slots(self) -> int:
        (worker,) = self.pool
        return worker.free_slots


async def test_a_session_is_unknown_only_when_its_window_must_be_over() -> None:
    gateway = Young()

    for at_s in (0.0, 11.0, 29.0):
        gateway.clock.advance(at_s - gateway.clock.monotonic())
        with pytest.raises(NotYetKnown):
            await gateway.kept.find("call")
    gateway.clock.advance(2.0)

    assert await gateway.kept.find("call") is None


async def test_a_worker_may_bring_a_session_late() -> None:
    gateway = Young()
    gateway.clock.advance(26.0)

    gateway.pool.welcome(hello(of_session(Phase.ACTIVE)), object())

    lease = await gateway.kept.find("call")
    assert lease is not None
    assert lease.is_held
    assert (len(gateway.kept), gateway.free_slots()) == (1, 1)


async def test_a_session_that_ended_without_a_gateway_has_last_words() -> None:
    gateway = Young()

    gateway.pool.welcome(hello(of_session(Phase.ENDED)), object())

    lease = await gateway.kept.find("call")
    assert lease is not None
    assert gateway.kept.take(lease) is None, "it has no slot any more"
    assert (len(gateway.kept), gateway.free_slots()) == (0, 2)


async def test_a_session_of_which_its_worker_says_nothing_more_gives_its_slot_back() -> None:
    gateway = Young()
    gateway.pool.welcome(hello(of_session(Phase.ACTIVE)), object())

    worker = gateway.pool.welcome(hello(), object())
    gateway.pool.heard(worker, Heartbeat("idle", 2, 0, 0.0, 0))

    assert (len(gateway.kept), gateway.free_slots()) == (0, 2)


async def test_a_worker_that_is_lost_before_it_has_begun_a_copy_of_what_it_rebuilt() -> None:
    gateway = Young()
    first = gateway.pool.welcome(hello(of_session(Phase.ACTIVE)), object())
    gateway.copies.store(CopyPart("lease", 1, fingerprint="m", log=b"said", state=b"now"))
    rebuilt: list[tuple[list[bytes], bytes]] = []

    async def rebuild(lost: Lease, copy: KeptCopy) -> Lease:
        rebuilt.append((copy.log, copy.state))
        lease = gateway.pool.lease(Kind.AUDIO_DUPLEX, "call")
        assert lease is not None
        lease.resume = lost.resume
        return lease.transfer()

    gateway.kept.rebuild = rebuild
    others = [hello(worker_id=name) for name in ("v", "u")]
    for lost, other in zip((first.worker_id, "v"), others, strict=True):
        gateway.pool.welcome(other, object())
        worker = gateway.pool.find(lost)
        assert worker is not None
        gateway.pool.disconnected(worker)
        gateway.pool.gone(worker)
        assert await gateway.kept.find("call") is not None

    assert rebuilt == [([b"said"], b"now")] * 2
    assert gateway.kept.why_lost("call", None) is None


# ---- over real sockets ---------------------------------------------------------------------


async def come_back(gateway: RunningGateway) -> ClientConnection:
    """A client that asks for its session."""
    client = await connect(gateway.ws("/ws/duplex/omni_1?resume=true"))
    request = {"session_id": "omni_1", "resume_token": "t", "seq": 1}
    await client.send(json.dumps({"type": "session.resume", **request}))
    return client


async def test_a_client_is_told_to_try_again_and_at_last_that_there_is_nothing() -> None:
    clock = ManualClock()

    def make(settings: object, **more: object) -> GatewayRuntime:
        return GatewayRuntime(settings, clock=clock, **more)  # type: ignore[arg-type]

    async with running_gateway(make_runtime=make) as gateway:
        gateway.runtime.kept_sessions._hold_s = 0.05
        clock.advance(11.0)
        early, early_code = await end_of(await come_back(gateway))
        clock.advance(WINDOW_S)
        late, late_code = await end_of(await come_back(gateway))
        page = gateway.runtime.metrics.page().decode()

    assert (early, early_code) == ([], 1012)
    assert [message["reason"] for message in late] == ["unknown"]
    assert late_code == 4404
    assert 'parley_resumptions_total{result="not_yet_known"} 1.0' in page


async def test_whoever_gave_up_does_not_take_the_session_from_its_next_attempt() -> None:
    async with running_gateway() as gateway:
        worker = StandInWorker(gateway.url, name="late")
        worker.kept = (
            SessionPhase(
                *("lease", "omni_1", Kind.AUDIO_DUPLEX, Phase.ACTIVE),
                resume=ResumeState("duplex", left_s=WINDOW_S, note=""),
            ),
        )
        gave_up = await come_back(gateway)
        await gave_up.close()
        stays = await come_back(gateway)
        live = gateway.runtime.connection_handler.live
        await until(lambda: len(live) == 1)

        async with worker:
            await until(lambda: worker.headers)
            await asyncio.sleep(0)
            await stays.send(json.dumps({"type": "stop"}))
            said, code = await end_of(stays)

    resumed = [each for each in worker.headers if RESUME_HEADER in each]
    assert [each[SESSION_HEADER] for each in resumed] == ["omni_1"]
    assert (said[-1]["type"], code) == ("stopped", 1000)
