"""Copies of sessions: what is kept, and for how long it may grow."""

from __future__ import annotations

import contextlib
from collections import deque
from typing import Any

import msgspec
import pytest
from starlette.websockets import WebSocket
from tests.support.gateways import running_gateway
from tests.support.stand_in_worker import StandInWorker

from parley.gateway.kept_sessions import NotRebuilt
from parley.gateway.lost_session import LostSession
from parley.gateway.session_copies import KeptCopy, SessionCopies
from parley.protocol.control import CopiedOutput, CopyPart, Hello, RebuildResult
from parley.protocol.kinds import Kind


def part(lease_id: str, number: int, log: bytes = b"", **more: Any) -> CopyPart:
    return CopyPart(lease_id, number, "parrot", log, **more)


def output(seq: int, size: int = 10) -> CopiedOutput:
    return CopiedOutput.of(seq, "x" * size)


def test_a_log_grows_and_a_state_is_replaced() -> None:
    copies = SessionCopies(session_bytes=1000, total_bytes=1000)

    assert copies.store(part("a", 1, b"one", state=b"first", outputs=(output(1), output(2))))
    assert copies.store(part("a", 2, b"two", outputs=(output(3),), settled=2))
    assert copies.store(part("a", 3, state=b"2nd"))

    copy = copies.find("a")
    assert copy is not None
    assert (copy.log, copy.state) == ([b"one", b"two"], b"2nd")
    assert [each.seq for each in copy.outputs] == [3]
    assert copies.size == copy.size == 3 + 3 + 3 + 10


def test_a_session_that_takes_too_much_is_given_up_and_told() -> None:
    copies = SessionCopies(session_bytes=100, total_bytes=1000)
    assert copies.store(part("a", 1, bytes(60)))

    assert not copies.store(part("a", 2, bytes(60)))
    assert not copies.store(part("a", 3, b"more"))

    assert copies.find("a") is None
    assert (copies.size, copies.dropped) == (0, 1)


def test_beyond_the_limit_of_all_the_largest_goes() -> None:
    copies = SessionCopies(session_bytes=100, total_bytes=150)
    assert copies.store(part("small", 1, bytes(30)))
    assert copies.store(part("large", 1, bytes(80)))

    assert copies.store(part("new", 1, bytes(50)))

    assert copies.find("large") is None
    assert not copies.store(part("large", 2, b"more"))
    assert copies.store(part("small", 2, b"more"))
    assert (len(copies), copies.size, copies.dropped) == (2, 84, 1)


def test_a_whole_copy_is_kept_within_the_limits_and_replaced_by_a_first_part() -> None:
    copies = SessionCopies(session_bytes=100, total_bytes=150)
    copies.keep("a", KeptCopy("m", log=[b"x" * 40], state=b"s" * 10, outputs=deque([output(1)])))
    assert copies.size == 60

    copies.store(part("a", 1, b"y" * 5))
    assert copies.size == 5
    copies.keep("b", KeptCopy("m", log=[b"x" * 101]))

    assert (copies.find("b"), copies.size, copies.dropped) == (None, 5, 1)


def test_a_copy_that_begins_anew_replaces_what_was_there() -> None:
    copies = SessionCopies(session_bytes=100, total_bytes=100)
    copies.store(part("a", 1, bytes(80)))

    assert copies.store(part("a", 1, bytes(90)))
    assert copies.size == 90
    copies.drop("a")
    assert (copies.size, len(copies)) == (0, 0)


async def test_another_model_or_version_is_refused_with_its_reason() -> None:
    async with (
        running_gateway(limits={"resume_window_s": 0.2}) as gateway,
        StandInWorker(gateway.url),
    ):
        runtime = gateway.runtime
        lease = runtime.worker_pool.lease(Kind.AUDIO_DUPLEX, "s")
        assert lease is not None
        lease.dialect = "duplex"
        assert runtime.kept_sessions.rebuild is not None

        with pytest.raises(NotRebuilt, match=r"another model or version \(parley 0, other"):
            await runtime.kept_sessions.rebuild(LostSession.of(lease), KeptCopy("parley 0, other"))

        lease.release()
        assert len(runtime.queue) == 0
        assert 'parley_sessions_rebuilt_total{outcome="lost"} 1.0' in (
            runtime.metrics.page().decode()
        )


class Rebuilder(StandInWorker):
    """Rebuilds a session without a question, or dies of it while there is one of `deaths`."""

    deaths: list[str]

    async def _answer(self, socket: WebSocket, dialect: str, session_id: str, message: Any) -> bool:
        if not isinstance(message, bytes):
            return await super()._answer(socket, dialect, session_id, message)
        if self.deaths:
            self.deaths.pop()
            self.kill()
            return True
        await socket.send_text(msgspec.json.encode(RebuildResult()).decode())
        return False


@pytest.mark.parametrize("dying", [1, 2])
async def test_a_session_whose_second_worker_dies_too_is_tried_once_more(dying: int) -> None:
    async with contextlib.AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(running_gateway())
        first = await stack.enter_async_context(StandInWorker(gateway.url, name="first"))
        pool = gateway.runtime.worker_pool
        lease = pool.lease(Kind.AUDIO_DUPLEX, "s")
        assert lease is not None
        lease.dialect = "duplex"
        lost = LostSession.of(lease)
        copy = KeptCopy(lease.worker.hello.fingerprint, log=[b"said"])
        first.kill()
        deaths = ["death"] * dying
        workers = [Rebuilder(gateway.url, name=f"worker {number}") for number in range(3)]
        for worker in workers:
            worker.deaths = deaths
            await stack.enter_async_context(worker)
        rebuild = gateway.runtime.kept_sessions.rebuild
        assert rebuild is not None

        if dying == 1:
            taken = await rebuild(lost, copy)
            assert taken.session_id == "s"
            taken.release()
        else:
            with pytest.raises(NotRebuilt, match="worker"):
                await rebuild(lost, copy)
        assert sum(worker.is_dead for worker in workers) == dying
        lease.release()


def test_a_fingerprint_tells_what_must_be_alike() -> None:
    hello = Hello("w", "http://h:1", 1, "parrot", "cpu", "1.0", 7, context_tokens=8192)
    assert hello.fingerprint == "parley 1.0, parrot, 8192 tokens"
