"""The process that holds the copies of sessions: what it keeps, whom it believes, and what happens
when it ends."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any, cast, get_args

import msgspec
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.gateways import RunningGateway, running_gateway
from tests.support.patience import HANG_S

from parley.gateway import store_file, worker_control
from parley.gateway.copies import Copies
from parley.gateway.copy_store import CopyServer, CopyStore, StoreClient
from parley.gateway.copy_store_process import CopyStoreProcess
from parley.gateway.kept_sessions import NotRebuilt
from parley.gateway.lost_session import LostSession
from parley.gateway.runtime import GatewayRuntime
from parley.gateway.session_copies import KeptCopy
from parley.gateway.store_file import FILE
from parley.gateway.store_port import HANDSHAKE_LIMIT, RemotePort
from parley.gateway.tls import ensure_certificate
from parley.gateway.worker_pool import Lease
from parley.protocol.control import (
    CopiedOutput,
    CopyPart,
    CopyStoreAt,
    CopyStored,
    EndSession,
    HandOver,
    Heartbeat,
    Hello,
    SessionPhase,
    StopTurn,
)
from parley.protocol.copies import (
    VERSION,
    AcceptCopy,
    ChangeBounds,
    CopyBegun,
    CopyChallenge,
    CopyGivenUp,
    CopyHello,
    CopyKept,
    CopyPiece,
    CopyProof,
    CopyWelcome,
    DropCopy,
    FromStore,
    MessageSplitter,
    MessageTooLarge,
    MoveCopy,
    ServeCopies,
    StoreAt,
    StoreCounts,
    TakeCopy,
    ToStore,
    framed,
)
from parley.protocol.kinds import Kind
from parley.worker.control import ControlLink
from parley.worker.copy_link import CopyLink
from parley.worker.trust import GatewayTrust

pytestmark = pytest.mark.starts_python


def part(number: int, log: bytes = b"", *, lease: str = "a", series: int = 1) -> CopyPart:
    return CopyPart(lease, number, "parrot", log, state=b"state", series=series)


# ---- the pieces ----------------------------------------------------------------------------------


@given(st.lists(st.binary(max_size=40), max_size=8), st.lists(st.integers(1, 30)))
def test_messages_come_out_as_they_went_in_however_they_are_cut(
    messages: list[bytes], cuts: list[int]
) -> None:
    splitter, got = MessageSplitter(40), []
    data = b"".join(len(each).to_bytes(4, "big") + each for each in messages)
    sizes = itertools.chain(cuts, itertools.repeat(7))

    while data:
        size = next(sizes)
        got += [bytes(each) for each in splitter.feed(data[:size])]
        data = data[size:]

    assert got == messages


def test_a_message_above_the_limit_is_refused_by_its_length() -> None:
    with pytest.raises(MessageTooLarge, match="41 bytes of 40"):
        list(MessageSplitter(40).feed((41).to_bytes(4, "big")))


class FakeWorker:
    def __init__(self) -> None:
        self.answers: list[CopyStored] = []

    def answer(self, message: CopyStored) -> None:
        self.answers.append(message)


class Bench:
    """A copy store without sockets."""

    def __init__(self, *, session_bytes: int = 100, total_bytes: int = 1000) -> None:
        self.told: list[FromStore] = []
        self.worker = FakeWorker()
        self.store = CopyStore(self.told.append)
        self.store.obey(ServeCopies(session_bytes, total_bytes))

    def send(self, sent: CopyPart) -> list[CopyStored]:
        """What is answered."""
        self.worker.answers.clear()
        self.store.take_in(sent, self.worker)  # type: ignore[arg-type]
        return list(self.worker.answers)

    def take(self, lease: str = "a") -> list[CopyPiece]:
        self.told.clear()
        self.store.obey(TakeCopy(lease))
        return [each for each in self.told if isinstance(each, CopyPiece)]


def test_the_first_part_is_answered_when_the_gateway_knows_the_session() -> None:
    bench = Bench()

    assert bench.send(part(1, b"one")) == []
    assert bench.told == [CopyBegun("a", 1, "parrot")]
    bench.store.obey(AcceptCopy("a", 1))
    assert bench.worker.answers == [CopyStored("a", 1, series=1)]
    assert bench.send(part(2, b"two")) == [CopyStored("a", 2, series=1)]
    assert b"".join(piece.log for piece in bench.take()) == b"onetwo"
    # The gateway may die with it, before another worker has it.
    assert b"".join(piece.log for piece in bench.take()) == b"onetwo"
    bench.store.obey(DropCopy("a", 1))
    assert bench.store.counts.size == 0


def test_of_a_session_of_another_gateway_nothing_is_kept() -> None:
    bench = Bench()
    bench.send(part(1, b"one"))

    bench.store.obey(DropCopy("a", 1))

    assert bench.worker.answers == [CopyStored("a", 0, series=1)]
    assert bench.send(part(2, b"two")) == [CopyStored("a", 0, series=1)]
    assert bench.store.counts.size == 0


def test_an_order_about_an_earlier_series_does_not_touch_the_later_one() -> None:
    bench = Bench()
    bench.send(part(1, b"one"))
    bench.send(part(1, b"two", series=2))

    bench.store.obey(AcceptCopy("a", 1))
    bench.store.obey(DropCopy("a", 1))
    assert bench.worker.answers == []
    assert bench.send(part(2, b"late", series=1)) == [CopyStored("a", 0, series=1)]
    bench.worker.answers.clear()
    bench.store.obey(AcceptCopy("a", 2))

    assert bench.worker.answers == [CopyStored("a", 1, series=2)]
    assert [piece.log for piece in bench.take() if piece.log] == [b"two"]


def test_a_session_that_goes_on_keeps_its_copy_until_its_worker_begins_one() -> None:
    bench = Bench()
    bench.send(part(1, b"one"))
    bench.store.obey(AcceptCopy("a", 1, b"first"))

    bench.store.obey(MoveCopy("a", "b", b"second"))
    assert list(bench.store.kept()) == [CopyKept("b", 0, "parrot", b"second")]
    assert [piece.log for piece in bench.take("b") if piece.log] == [b"one"]
    bench.send(part(1, b"anew", lease="b"))
    bench.store.obey(AcceptCopy("b", 1, b"second"))
    bench.store.obey(MoveCopy("a", "b", b"late"))

    assert [piece.log for piece in bench.take("b") if piece.log] == [b"anew"]
    assert list(bench.store.kept()) == [CopyKept("b", 1, "parrot", b"second")]


def test_the_next_gateway_is_told_what_the_one_before_accepted() -> None:
    bench = Bench()
    for lease in ("again", "accepted", "asked"):
        bench.send(part(1, b"one", lease=lease))
    bench.store.obey(AcceptCopy("again", 1, b"about"))
    bench.store.obey(AcceptCopy("accepted", 1, b"about"))
    # A later series has taken the place of the one that was accepted.
    bench.send(part(1, b"two", lease="again", series=2))
    bench.worker.answers.clear()

    bench.store.gateway_left()

    assert list(bench.store.kept()) == [
        CopyKept("again", 2, "parrot", b"about"),
        CopyKept("accepted", 1, "parrot", b"about"),
    ]
    assert bench.worker.answers == [
        CopyStored("again", 0, series=2),
        CopyStored("asked", 0, series=1),
    ]
    assert len(bench.store) == 2


def test_what_takes_too_much_is_given_up_and_told() -> None:
    bench = Bench(session_bytes=100, total_bytes=150)
    for lease in ("old", "new"):
        bench.send(part(1, bytes(60), lease=lease))
        bench.store.obey(AcceptCopy(lease, 1))

    # 140 with the states of both; the largest goes first.
    assert bench.send(part(2, bytes(30), lease="new")) == [CopyStored("new", 2, False, 1)]
    assert CopyGivenUp("new", 1) in bench.told
    assert bench.send(part(2, lease="old")) == [CopyStored("old", 2, series=1)]
    assert bench.send(part(3, bytes(60), lease="old")) == [CopyStored("old", 3, False, 1)]
    assert bench.store.counts == StoreCounts(0, 2, 0)


def test_of_what_was_given_up_nothing_is_left_when_its_session_ends() -> None:
    bench, orders = Bench(), list[ToStore]()
    both = copies(orders)
    bench.send(part(1, b"one"))
    both.told(bench.told[-1])  # type: ignore[arg-type]
    bench.store.obey(orders.pop())
    bench.send(part(2, bytes(200)))
    both.told(bench.told[-1])  # type: ignore[arg-type]
    assert (len(both), both.fingerprint("a")) == (0, None)

    both.drop("a")
    bench.store.obey(orders.pop())

    assert not bench.store._begun
    assert not both._there


def test_the_next_gateway_inherits_nothing_of_what_was_given_up() -> None:
    bench = Bench()
    bench.send(part(1, b"one"))
    bench.store.obey(AcceptCopy("a", 1, b"about"))
    bench.send(part(2, bytes(200)))

    bench.store.gateway_left()

    assert not bench.store._begun


def test_what_takes_too_much_at_once_is_not_kept() -> None:
    bench = Bench()

    bench.send(part(1, bytes(200)))
    bench.store.obey(AcceptCopy("a", 1))

    assert bench.told == [CopyBegun("a", 1, "parrot"), CopyGivenUp("a", 1)]
    assert bench.worker.answers == [CopyStored("a", 1, False, 1)]


def test_bounds_may_change() -> None:
    bench = Bench()
    bench.store.obey(ChangeBounds(1000, 1000, 30.0))

    bench.send(part(1, bytes(200)))

    assert bench.told == [CopyBegun("a", 1, "parrot")]


def copies(orders: list[ToStore]) -> Copies:
    made = Copies(
        session_bytes=1000,
        total_bytes=1000,
        about=lambda lease_id: b"about a" if lease_id == "a" else None,
    )
    made.to_store.listen(orders.append)
    return made


async def test_of_two_ways_the_later_series_counts() -> None:
    orders: list[ToStore] = []
    both = copies(orders)

    assert both.store(part(1, b"here"))
    both.told(CopyBegun("a", 2, "parrot"))
    assert (len(both), both.size) == (1, 0)
    assert both.store(part(2, b"late")) is None
    assert both.store(part(1, b"back", series=3))
    both.told(CopyBegun("a", 2, "parrot"))

    assert orders == [AcceptCopy("a", 2, b"about a"), DropCopy("a", 2), DropCopy("a", 2)]
    copy = await both.take("a")
    assert copy is not None
    assert copy.log == [b"back"]
    both.drop("a")
    assert both.fingerprint("a") is None


async def test_a_copy_of_a_session_that_is_not_ours_is_dropped() -> None:
    orders: list[ToStore] = []
    both = copies(orders)

    both.told(CopyBegun("b", 1, "parrot"))

    assert orders == [DropCopy("b", 1)]
    assert both.fingerprint("b") is None


async def test_what_no_session_needs_any_more_is_swept() -> None:
    ours, orders = {"a", "b"}, list[ToStore]()
    both = Copies(
        session_bytes=1000, total_bytes=1000, about=lambda each: b"" if each in ours else None
    )
    both.to_store.listen(orders.append)
    both.store(part(1, b"here", lease="a"))
    both.told(CopyBegun("b", 1, "parrot"))
    both.sweep()
    ours.clear()

    both.sweep()
    assert len(both) == 2
    both.sweep()

    assert len(both) == 0
    assert orders == [AcceptCopy("b", 1), DropCopy("b", 1)]


async def test_a_copy_comes_in_pieces() -> None:
    orders: list[ToStore] = []
    both = copies(orders)
    both.told(CopyBegun("a", 1, "parrot"))

    taking = asyncio.create_task(both.take("a"))
    await asyncio.sleep(0)
    output = CopiedOutput.of(1, "hello")
    for piece in (
        CopyPiece("a", "parrot", log=b"one"),
        CopyPiece("a", "parrot", log=b"two"),
        CopyPiece("a", "parrot", outputs=(output,)),
        CopyPiece("a", "parrot", state=b"state", is_last=True),
    ):
        both.told(piece)

    copy = await taking
    assert copy is not None
    assert (copy.fingerprint, copy.log, copy.state) == ("parrot", [b"one", b"two"], b"state")
    assert list(copy.outputs) == [output]
    assert orders[-1] == TakeCopy("a")


async def test_a_copy_is_kept_where_it_is_until_another_worker_has_it() -> None:
    orders: list[ToStore] = []
    both = copies(orders)
    both.told(CopyKept("old", 3, "parrot", b"about old"))
    taken = KeptCopy("parrot", log=[b"said"])

    both.move("old", "a", taken)
    assert (both.fingerprint("old"), both.fingerprint("a")) == (None, "parrot")
    both.told(CopyBegun("a", 1, "parrot"))
    both.drop("a")

    assert orders == [
        MoveCopy("old", "a", b"about a"),
        AcceptCopy("a", 1, b"about a"),
        DropCopy("a", 1),
    ]


async def test_a_copy_of_which_a_worker_that_has_just_gone_began_a_later_series() -> None:
    ours, orders = {"a"}, list[ToStore]()
    both = Copies(
        session_bytes=1000, total_bytes=1000, about=lambda each: b"x" if each in ours else None
    )
    both.to_store.listen(orders.append)
    both.told(CopyBegun("a", 1, "parrot"))
    ours.clear()

    both.told(CopyBegun("a", 2, "parrot"))

    assert orders == [AcceptCopy("a", 1, b"x"), AcceptCopy("a", 2)]
    assert both.fingerprint("a") == "parrot"


async def test_whoever_waits_for_a_copy_is_told_when_the_copy_store_ends() -> None:
    both = copies([])
    both.told(CopyBegun("a", 1, "parrot"))
    both.told(StoreCounts(10, 2, 0))
    taking = asyncio.create_task(both.take("a"))
    await asyncio.sleep(0)

    both.store_ended()

    assert await taking is None
    assert (len(both), both.size, both.dropped) == (0, 0, 2)


async def test_a_machine_that_vanishes_does_not_hold_its_connection_for_ever() -> None:
    server = CopyServer(StoreAt(0, os.getpid(), "token", "secret"))
    made: list[asyncio.Transport] = []

    class Seen(StoreClient):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            made.append(cast(asyncio.Transport, transport))

    loop = asyncio.get_running_loop()
    async with await loop.create_server(
        lambda: Seen(server, server.local), "127.0.0.1", 0
    ) as listener:
        _, writer = await asyncio.open_connection(*listener.sockets[0].getsockname())
        await until(lambda: made)

        answered = made[0].get_extra_info("socket")
        assert answered.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert answered.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 30
        writer.close()
        await until(lambda: server.local.unauthenticated == 0)


# ---- the process ---------------------------------------------------------------------------------


def test_the_process_imports_little() -> None:
    heavy = {"torch", "numpy", "fastapi", "starlette", "pydantic", "uvicorn", "websockets"}
    code = f"import parley.gateway.copy_store, sys; print(sorted({heavy} & set(sys.modules)))"

    told = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)

    assert told.stdout.strip() == b"[]"


class Worker:
    """A worker of a gateway as far as copies go; `stored` has the answers."""

    def __init__(self, gateway: RunningGateway, trust: GatewayTrust | None = None) -> None:
        self.runtime = gateway.runtime
        self.stored: list[CopyStored] = []
        self.moves = 0
        url = trust.url if trust is not None else gateway.url
        self.link = ControlLink(self, gateway_url=url, trust=trust)
        self.lease_id = ""

    def hello(self) -> Hello:
        return Hello("w", "http://127.0.0.1:1", 1, "parrot", "cpu", "0", 1, dials_copy_store=True)

    def heartbeat(self) -> Heartbeat:
        return Heartbeat("idle", 1, 0, 0.0, 0)

    def living(self) -> list[SessionPhase]:
        return []

    is_looked_for = True

    def copy_stored(self, stored: CopyStored) -> None:
        self.stored.append(stored)

    def gateway_moved(self) -> None:
        self.moves += 1

    def stop_turn(self, order: StopTurn) -> bool:
        return False

    def end_session(self, order: EndSession) -> bool:
        return False

    def hand_over(self, order: HandOver) -> None:
        """Nothing is."""

    def announce_end(self, time_left_s: float) -> None:
        """Nobody is told."""

    def change_limits(self, limits: Mapping[str, Any]) -> None:
        """None are known."""

    def leave(self, grace_s: float, *, moves: bool) -> None:
        """It stays."""

    async def begin(self) -> None:
        """Have a session of which a part is kept at the gateway, so that the copy store is
        started."""
        await until(lambda: self.link.is_connected and len(self.runtime.worker_pool))
        lease = self.runtime.worker_pool.lease(Kind.AUDIO_DUPLEX, "s")
        assert lease is not None
        self.lease_id = lease.lease_id
        await self.send(part(1, b"first"))

    async def send(self, sent: CopyPart) -> CopyStored:
        """Send a part; how it was answered."""
        count = len(self.stored)
        self.link.send_part(msgspec.structs.replace(sent, lease_id=self.lease_id))
        await until(lambda: len(self.stored) > count)
        return self.stored[-1]

    @property
    def is_at_store(self) -> bool:
        return self.link._copy_link.is_connected


async def until(what: Callable[[], object]) -> None:
    async with asyncio.timeout(HANG_S):
        while not what():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def a_worker(
    gateway: RunningGateway, trust: GatewayTrust | None = None
) -> AsyncIterator[Worker]:
    worker = Worker(gateway, trust)
    running = asyncio.create_task(worker.link.run())
    try:
        await worker.begin()
        yield worker
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_parts_go_to_the_copy_store_and_the_gateway_takes_them_back() -> None:
    async with running_gateway() as gateway, a_worker(gateway) as worker:
        await until(lambda: worker.is_at_store)
        moves = worker.moves
        big = bytes(range(256)) * 8000

        assert await worker.send(part(1, big, series=2)) == CopyStored(worker.lease_id, 1, series=2)
        assert (await worker.send(part(2, b"more", series=2))).number == 2

        copy = await gateway.runtime.copies.take(worker.lease_id)
        assert copy is not None
        assert b"".join(copy.log) == big + b"more"
        assert copy.state == b"state"
        assert moves == worker.moves
        assert gateway.runtime.metrics.page().count(b"\nparley_copy_store_up 1.0") == 1


async def test_without_a_session_to_keep_there_is_no_process() -> None:
    async with running_gateway() as gateway:
        runtime = gateway.runtime
        worker = Worker(gateway)
        running = asyncio.create_task(worker.link.run())
        await until(lambda: worker.link.is_connected and len(runtime.worker_pool))

        assert runtime.copy_store.pid is None

        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_a_copy_store_that_is_killed_is_started_again_and_takes_everything_anew(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with running_gateway() as gateway, a_worker(gateway) as worker:
        store = gateway.runtime.copy_store
        await until(lambda: worker.is_at_store)
        await worker.send(part(1, b"one", series=2))
        moves, pid = worker.moves, store.pid
        assert pid is not None

        os.kill(pid, signal.SIGKILL)
        await until(lambda: not worker.is_at_store)
        assert worker.moves > moves
        assert (await worker.send(part(1, b"one by the gateway", series=3))).is_kept
        await until(lambda: worker.is_at_store)
        assert (await worker.send(part(1, b"one again", series=4))).is_kept

        assert store.starts == 2
        assert store.pid != pid
        copy = await gateway.runtime.copies.take(worker.lease_id)
        assert copy is not None
        assert copy.log == [b"one again"]
    (said,) = [line for line in capsys.readouterr().out.splitlines() if "store ended" in line]
    assert "exit_code=-9" in said


async def test_the_next_gateway_finds_the_copy_store_and_what_is_in_it(tmp_path: Path) -> None:
    storage = {"data_dir": tmp_path}
    async with running_gateway(storage=storage) as gateway, a_worker(gateway) as worker:
        await until(lambda: worker.is_at_store)
        await worker.send(part(1, b"one", series=2))
        before, lease_id = gateway.runtime.copy_store.pid, worker.lease_id
        file = tmp_path / FILE
        assert file.stat().st_mode & 0o777 == 0o600
        gateway.runtime.copy_store.leave()
    assert file.exists()

    found: list[tuple[LostSession, KeptCopy]] = []

    async def rebuild(lost: LostSession, copy: KeptCopy) -> Lease:
        found.append((lost, copy))
        raise NotRebuilt("There is no worker.")

    def make(settings: Any, **more: Any) -> GatewayRuntime:
        runtime = GatewayRuntime(settings, **more)
        runtime.kept_sessions.rebuild = rebuild
        return runtime

    async with running_gateway(storage=storage, make_runtime=make) as gateway:
        runtime = gateway.runtime
        await until(lambda: found)
        assert (runtime.copy_store.pid, runtime.copy_store.starts) == (before, 0)
        ((lost, copy),) = found
        assert (lost.session_id, lost.lease_id) == ("s", lease_id)
        assert (copy.log, copy.state) == ([b"one"], b"state")
    assert before is not None
    await until(lambda: has_ended(before))
    assert not file.exists()


async def test_a_second_gateway_in_the_same_folder_has_a_copy_store_of_its_own(
    tmp_path: Path,
) -> None:
    storage = {"data_dir": tmp_path}
    async with running_gateway(storage=storage) as gateway, a_worker(gateway) as worker:
        await until(lambda: worker.is_at_store)
        first, file = gateway.runtime.copy_store, (tmp_path / FILE).read_bytes()
        second = CopyStoreProcess(ServeCopies(9, 9), copies([]), folder=tmp_path)
        running = asyncio.create_task(second.run())
        second.want()
        await until(lambda: second.is_up)

        assert first.is_up
        assert second.pid != first.pid
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert (tmp_path / FILE).read_bytes() == file
        assert (await worker.send(part(1, b"still there", series=2))).is_kept


async def test_the_file_of_a_copy_store_that_was_killed_is_replaced(tmp_path: Path) -> None:
    with socket.socket() as taken:
        # Bound, and nobody listens. The number is one that is in use.
        taken.bind(("127.0.0.1", 0))
        gone = StoreAt(taken.getsockname()[1], os.getpid(), token="t", secret="s")
        (tmp_path / FILE).write_bytes(msgspec.json.encode(gone))
        process = CopyStoreProcess(ServeCopies(9, 9), copies([]), folder=tmp_path)
        running = asyncio.create_task(process.run())
        process.want()
        await until(lambda: process.is_up)

        at = msgspec.json.decode((tmp_path / FILE).read_bytes(), type=StoreAt)
        assert at.pid == process.pid
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@contextlib.asynccontextmanager
async def a_process(folder: Path) -> AsyncIterator[CopyStoreProcess]:
    """What a gateway has in a data folder; its copy store is there."""
    process = CopyStoreProcess(ServeCopies(9, 9), copies([]), folder=folder)
    running = asyncio.create_task(process.run())
    process.want()
    try:
        await until(lambda: process.is_up or running.done())
        assert not running.done()
        yield process
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def written(folder: Path) -> StoreAt:
    return msgspec.json.decode((folder / FILE).read_bytes(), type=StoreAt)


@pytest.mark.parametrize(
    "found",
    [
        b"",
        b"\0" * 100_000,
        b'{"port": 1, "pid": 1, "token": "\xff", "secret": "s"}',
        b'{"port": 99999, "pid": 1, "token": "t", "secret": "s"}',
        b'{"port": -1, "pid": 1, "token": "t", "secret": "s"}',
    ],
)
async def test_a_file_that_makes_no_sense_is_replaced(found: bytes, tmp_path: Path) -> None:
    path = tmp_path / FILE
    path.write_bytes(found)
    at = StoreAt(1, 1, token="t", secret="s")

    assert store_file.read(path) is None
    assert await store_file.write(path, at) == ""
    assert store_file.read(path) == at


async def test_a_pipe_in_the_place_of_the_file_is_waited_for_by_nobody(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / FILE)

    assert store_file.read(tmp_path / FILE) is None


async def test_a_copy_store_that_cannot_write_its_file_serves_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / FILE / "in the way").mkdir(parents=True)

    async with running_gateway(storage={"data_dir": tmp_path}) as gateway:
        gateway.runtime.copy_store.want()
        await until(lambda: gateway.runtime.copy_store.problem)
        async with gateway.http() as http:
            told = (await http.get("/status")).json()["copies"]

    (said,) = [line for line in capsys.readouterr().out.splitlines() if "after a crash" in line]
    assert "Is a directory" in said
    assert FILE in said
    assert told["store"] == "running"
    assert "Is a directory" in told["problem"]


async def test_a_program_that_has_the_port_of_a_dead_copy_store_is_not_taken_for_it(
    tmp_path: Path,
) -> None:
    async with await asyncio.start_server(
        lambda reader, writer: writer.close(), "127.0.0.1", 0
    ) as other:
        dead = StoreAt(other.sockets[0].getsockname()[1], os.getpid(), token="t", secret="s")
        (tmp_path / FILE).write_bytes(msgspec.json.encode(dead))
        at = StoreAt(1, 1, token="t", secret="s")

        assert await store_file.write(tmp_path / FILE, at) == ""

        assert written(tmp_path) == at


async def test_a_copy_store_of_another_release_is_ended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = "from parley.gateway import copy_store; copy_store.VERSION = 99; copy_store.main()"
    args = (sys.executable, "-c", code, str(tmp_path / FILE))
    old = await asyncio.create_subprocess_exec(*args, stdout=subprocess.PIPE)
    assert old.stdout is not None
    await old.stdout.readline()
    assert written(tmp_path).version == 99

    async with a_process(tmp_path) as process:
        assert await old.wait() == 0
        assert (written(tmp_path).pid, process.starts) == (process.pid, 1)

    assert "copy store of another release ended" in capsys.readouterr().out


def test_messages_that_change_get_another_version() -> None:
    messages = (ToStore, FromStore, CopyHello, CopyChallenge, CopyProof, CopyWelcome)
    told = re.sub(r"[\w.]+\.", "", " ".join(repr(fields(each)) for each in messages))

    # Whoever changes a message changes this, and `VERSION` with it.
    assert (VERSION, hashlib.sha256(told.encode()).hexdigest()[:8]) == (1, "aab7ba06")


def fields(message: Any) -> list[Any]:
    """What is sent: names, types and defaults."""
    members = get_args(message) or (message,)
    return [
        (
            each.__struct_config__.tag,
            [(f.encode_name, f.type) for f in msgspec.structs.fields(each)],
        )
        for each in members
    ]


async def test_a_copy_store_to_which_no_gateway_comes_ends(tmp_path: Path) -> None:
    limits = {"resume_window_s": 0.2}
    async with (
        running_gateway(storage={"data_dir": tmp_path}, limits=limits) as gateway,
        a_worker(gateway) as worker,
    ):
        await until(lambda: worker.is_at_store)
        await worker.send(part(1, b"one", series=2))
        pid = gateway.runtime.copy_store.pid
        assert pid is not None
        gateway.runtime.copy_store.leave()

    await until(lambda: has_ended(pid))
    assert not (tmp_path / FILE).exists()


def has_ended(pid: int) -> bool:
    """Also as a child of this process for which nobody waits: it is waited for then."""
    try:
        if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
            return False
    except psutil.NoSuchProcess:
        return True
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)
    return True


async def test_something_else_that_listens_there_is_left_alone(tmp_path: Path) -> None:
    heard: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.read(100))
        writer.write(framed(CopyChallenge(bytes(32), bytes(32))))
        heard.append(await reader.read(100))
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as other:
        port = other.sockets[0].getsockname()[1]
        secret = "only a copy store and its gateways know this"
        at = StoreAt(port, os.getpid(), token="t", secret=secret)
        (tmp_path / FILE).write_bytes(msgspec.json.encode(at))
        copies_of_it = copies([])
        process = CopyStoreProcess(ServeCopies(9, 9), copies_of_it, folder=tmp_path)
        running = asyncio.create_task(process.run())
        await until(lambda: len(heard) == 2)

        assert heard[1] == b""
        assert secret.encode() not in heard[0]
        process.want()
        await until(lambda: process.is_up)
        assert process.starts == 1

        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_a_copy_store_that_does_not_answer_is_done_without(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("parley.worker.copy_link.SILENCE_S", 0.1)
    monkeypatch.setattr("parley.worker.copy_link.CHECK_EVERY_S", 0.02)
    async with running_gateway() as gateway, a_worker(gateway) as worker:
        await until(lambda: worker.is_at_store)
        pid = gateway.runtime.copy_store.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        try:
            worker.link.send_part(
                msgspec.structs.replace(part(1, b"one", series=2), lease_id=worker.lease_id)
            )
            await until(lambda: not worker.is_at_store)

            assert (await worker.send(part(1, b"one", series=3))).is_kept
        finally:
            os.kill(pid, signal.SIGKILL)


async def test_where_the_copy_store_cannot_be_reached_parts_go_by_the_control_connection(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("parley.worker.copy_link.FIRST_RETRY_S", 0.01)
    async with running_gateway() as gateway:
        with socket.socket() as taken:
            # Bound, and nobody listens.
            taken.bind(("127.0.0.1", 0))
            nowhere = CopyStoreAt(taken.getsockname()[1], "token", is_local=True)
            monkeypatch.setattr(gateway.runtime.copy_store, "address", lambda is_local: nowhere)
            async with a_worker(gateway) as worker:
                await until(lambda: gateway.runtime.copy_store.is_up)
                await asyncio.sleep(0.1)

                assert (await worker.send(part(2, b"more"))).is_kept

                copy = await gateway.runtime.copies.take(worker.lease_id)
    assert copy is not None
    assert b"".join(copy.log) == b"firstmore"
    said = [
        line for line in capsys.readouterr().out.splitlines() if "copy store unreachable" in line
    ]
    assert len(said) == 1


async def test_whoever_does_not_know_the_token_is_refused_on_both_sides() -> None:
    stored: list[CopyStored] = []
    async with running_gateway() as gateway, a_worker(gateway) as worker:
        await until(lambda: worker.is_at_store)
        right = gateway.runtime.copy_store.address(is_local=True)
        assert right is not None

        # A worker with another token does not believe the store.
        link = CopyLink(stored=stored.append, moved=lambda: None)
        link.use(msgspec.structs.replace(right, token="wrong"), "", None)
        await until(lambda: link._has_complained)
        assert not link.is_connected
        link.close()

        # Somebody who goes on regardless is not believed.
        reader, writer = await asyncio.open_connection("127.0.0.1", right.port)
        wrong = framed(CopyProof(bytes(32)))
        writer.write(framed(CopyHello(bytes(32))) + 9 * wrong + framed(part(1)))
        with contextlib.suppress(ConnectionError):
            async with asyncio.timeout(HANG_S):
                await reader.read()
        writer.close()

        # Nor is who says too much before.
        reader, writer = await asyncio.open_connection("127.0.0.1", right.port)
        writer.write((1 << 30).to_bytes(4, "big"))
        with contextlib.suppress(ConnectionError):
            async with asyncio.timeout(HANG_S):
                assert await reader.read() == b""
        writer.close()
        await until(lambda: gateway.runtime.copies._counts.refused == 2)

        assert (await worker.send(part(1, b"still here", series=2))).is_kept


async def test_a_worker_of_another_machine_comes_by_tls_with_the_gateways_certificate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    tls = {"http": False, "ssl_certfile": certificate, "ssl_keyfile": key, "copies_port": port}
    monkeypatch.setattr(worker_control, "is_local", lambda peer, headers: False)
    async with running_gateway(gateway=tls) as gateway:
        url = f"https://127.0.0.1:{gateway.gateway.port}"
        trust = GatewayTrust(url, ca=certificate)
        async with a_worker(gateway, trust) as worker:
            await until(lambda: worker.is_at_store)

            assert (await worker.send(part(1, b"one", series=2))).is_kept
            assert gateway.runtime.copy_store.address(is_local=False) == CopyStoreAt(
                port, told_token(gateway), is_local=False
            )
            # Never in clear text.
            with socket.create_connection(("127.0.0.1", port), timeout=HANG_S) as plain:
                plain.sendall(framed(CopyHello(bytes(32))))
                assert b"copy" not in plain.recv(100)


async def test_strangers_who_agree_on_nothing_are_counted_and_keep_nobody_out(
    tmp_path: Path,
) -> None:
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    ensure_certificate(certificate, key)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    welcomed: list[asyncio.Protocol] = []
    refused: list[None] = []

    def welcome() -> asyncio.Protocol:
        welcomed.append(asyncio.Protocol())
        return welcomed[-1]

    port = RemotePort(welcome, refused=lambda: refused.append(None))
    at = ("127.0.0.1", await port.open("127.0.0.1", 0, tls))
    with contextlib.ExitStack() as unknown:
        for _ in range(HANDSHAKE_LIMIT + 10):
            unknown.enter_context(socket.create_connection(at, timeout=HANG_S))
            await asyncio.sleep(0)
        await until(lambda: len(refused) == 10)
    await until(lambda: len(refused) == HANDSHAKE_LIMIT + 10)

    _, writer = await asyncio.open_connection(*at, ssl=trusting(certificate))
    await until(lambda: len(welcomed) == HANDSHAKE_LIMIT + 1)
    writer.close()
    port.close()


def trusting(certificate: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=certificate)
    context.check_hostname = False
    return context


def told_token(gateway: RunningGateway) -> str:
    """What workers of this machine are told."""
    address = gateway.runtime.copy_store.address(is_local=True)
    assert address is not None
    return address.token


async def test_without_tls_nothing_goes_to_another_machine() -> None:
    link = CopyLink(stored=lambda stored: None, moved=lambda: None)

    link.use(CopyStoreAt(9, "token", is_local=False), "gateway.example", None)
    await until(lambda: link._has_complained)

    assert not link.is_connected
    link.close()
