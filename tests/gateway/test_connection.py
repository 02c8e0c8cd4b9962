"""Keep-alive and limits of one connection, on a transport that does nothing by itself."""

import asyncio
import contextlib
import socket
import struct
import sys
from typing import Any, cast
from unittest.mock import Mock

import pytest
from tests.support.gateways import until
from tests.support.patience import HANG_S

from parley.clock import ManualClock
from parley.settings import LimitSettings
from parley.transport.acknowledged import acknowledged_bytes
from parley.transport.allowance import Allowance
from parley.transport.client import DialFailed, dial
from parley.transport.connection import INBOX_MESSAGES, TURN_FRAMES, Connection
from parley.transport.framing import (
    BINARY,
    CLOSE,
    PING,
    PONG,
    TEXT,
    FrameReader,
    Message,
    close_payload,
    frame,
)
from parley.transport.keepalive import Keepalive
from parley.transport.limits import Budget, ConnectionLimits, Traffic
from parley.transport.state import Closure, ConnectionClosed, ConnectionState


class Wire:
    """A transport: remembers what was written and how reading stands."""

    def __init__(self) -> None:
        self.sent = bytearray()
        self.stuck_bytes = 0
        self.is_reading = True
        self.is_closed = False
        self.is_aborted = False

    def write(self, data: bytes) -> None:
        self.sent += data

    def get_write_buffer_size(self) -> int:
        return self.stuck_bytes

    def get_extra_info(self, name: str) -> None: ...

    def set_write_buffer_limits(self, high: int, low: int) -> None: ...

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True

    def is_closing(self) -> bool:
        return self.is_closed or self.is_aborted

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_aborted = True

    @property
    def frames(self) -> list[tuple[int, bytes]]:
        reader = FrameReader(masked=False, limit_bytes=1 << 30)
        return [
            (event.opcode, event.payload if isinstance(event.payload, bytes) else event.payload())
            for event in reader.feed(bytes(self.sent))
        ]


def open_connection(
    *,
    is_server: bool = True,
    keepalive: Keepalive | None = None,
    budget: Budget | None = None,
    **limits: Any,
) -> tuple[Connection, Wire]:
    connection = Connection(
        is_server=is_server,
        limits=ConnectionLimits(**limits),
        keepalive=Keepalive() if keepalive is None else keepalive,
        budget=budget,
    )
    wire = Wire()
    connection._opened(cast(asyncio.Transport, wire))
    return connection, wire


def client_says(connection: Connection, opcode: int, payload: bytes = b"") -> None:
    connection.data_received(frame(opcode, payload, mask=True))


async def test_a_peer_is_pinged_and_dropped_when_it_does_not_answer():
    connection, wire = open_connection(ping_every_s=20, ping_limit_s=20)
    now = asyncio.get_running_loop().time()

    connection.tick(now + 19)
    before = list(wire.frames)
    connection.tick(now + 21)
    pinged = list(wire.frames)
    connection.tick(now + 42)

    assert before == []
    assert pinged == [(PING, b"parley")]
    assert wire.is_aborted
    assert connection.closed.result().code == 1006


async def test_a_peer_that_answers_pings_stays():
    connection, wire = open_connection(ping_every_s=20, ping_limit_s=20)
    now = asyncio.get_running_loop().time()

    connection.tick(now + 21)
    client_says(connection, PONG, b"parley")
    connection.tick(now + 22)

    assert connection.is_open
    assert not wire.is_aborted


@pytest.mark.parametrize(
    ("rates", "code"),
    [
        ([5000] * 500, None),
        ([5000] * 700, 1008),
        ([1] * 55, 1008),
        ([8000] * 100 + [1] * 35 + [8000] * 10, None),
        ([8000] * 100 + [1] * 45, 1008),
    ],
)
async def test_a_message_may_come_slowly_and_pause_but_has_an_end(rates, code):
    connection, _ = open_connection(ping_every_s=20, ping_limit_s=20)
    now = asyncio.get_running_loop().time()
    message, at = frame(BINARY, bytes(sum(rates)), mask=True), 0
    connection.on_slow_message = on_slow_message = Mock()
    reports = []

    for second, rate in enumerate(rates):
        connection.data_received(message[at : at + rate])
        at += rate
        connection.tick(now + second)
        reports.append(on_slow_message.call_count)

    assert (connection.closed.result().code if connection.closed.done() else None) == code
    assert (reports[0], reports[21]) == (0, reports[20] + 1)


async def test_only_a_direction_that_is_silent_needs_a_ping():
    connection, wire = open_connection(ping_every_s=20, ping_limit_s=20)
    now = asyncio.get_running_loop().time()

    for second in range(60):
        client_says(connection, TEXT, b"sound")
        await connection.receive()
        connection.send_text(b"answer")
        connection.tick(now + second)
    busy = [opcode for opcode, _ in wire.frames]
    for second in range(60, 110):  # the client speaks, and nothing is sent
        client_says(connection, TEXT, b"sound")
        await connection.receive()
        connection.tick(now + second)

    assert set(busy) == {TEXT}
    assert [opcode for opcode, _ in wire.frames].count(PING) == 2
    assert connection.is_open


async def test_a_process_of_ours_is_neither_counted_nor_checked():
    guarded, _ = open_connection(message_burst=3, messages_per_s=0.001)
    trusted, _ = open_connection(message_burst=3, messages_per_s=0.001, is_trusted=True)

    for connection in (guarded, trusted):
        for _ in range(10):
            client_says(connection, TEXT, b"\xff")

    assert guarded.closed.result().code == 1007
    assert trusted.is_open
    assert [(await trusted.receive()).payload() for _ in range(10)] == [b"\xff"] * 10


async def test_there_is_room_when_the_peer_has_read_or_is_gone():
    connection, wire = open_connection()
    await connection.room()

    connection.pause_writing()
    first = asyncio.create_task(connection.room())
    await asyncio.sleep(0)
    assert not first.done()
    connection.resume_writing()
    await first

    connection.pause_writing()
    second = asyncio.create_task(connection.room())
    connection.connection_lost(None)
    await second
    assert not connection.is_open
    assert wire.frames == []


async def test_output_that_does_not_move_for_the_limit_ends_the_connection():
    # By default a program may block in a handler for 20 s.
    connection, wire = open_connection(stall_s=LimitSettings().output_stall_s, ping_every_s=100)
    now = asyncio.get_running_loop().time()
    connection.send_text(b"x" * 1000)
    wire.stuck_bytes = 1000

    connection.tick(now + 1)
    connection.tick(now + 30)
    still_open = connection.is_open
    connection.tick(now + 31.1)

    assert still_open
    assert connection.closed.result().is_slow
    assert wire.frames[-1] == (CLOSE, close_payload(1008, "too slow"))


class Kernel:
    """A socket whose kernel says what is in flight and what was acknowledged."""

    family = socket.AF_INET

    def __init__(self) -> None:
        self.in_flight, self.acknowledged = 0, 0

    def getsockopt(self, level: int, option: int, size: int) -> bytes:
        told = bytearray(size)
        struct.pack_into("=I", told, 24, self.in_flight)
        struct.pack_into("=Q", told, 120, self.acknowledged)
        return bytes(told)


async def test_a_path_that_carries_nothing_ends_the_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(socket, "TCP_INFO", 11, raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    connection, wire = open_connection(in_flight_s=5, ping_every_s=100)
    kernel = Kernel()
    monkeypatch.setattr(wire, "get_extra_info", lambda name: kernel, raising=False)
    now = asyncio.get_running_loop().time()

    for second in range(1, 10):  # slowly, but something arrives
        kernel.in_flight, kernel.acknowledged = 9, second
        connection.tick(now + 4 * second)
    kernel.in_flight = 0
    connection.tick(now + 60)  # nothing to be acknowledged
    kernel.in_flight = 9
    for second in (63, 66):
        connection.tick(now + second)
    still_open = connection.is_open
    connection.tick(now + 69)

    assert still_open
    assert connection.closed.result().code == 1006
    assert "acknowledged" in connection.closed.result().reason
    assert wire.is_aborted


@pytest.mark.parametrize("place", ["here", "in flight"])
async def test_a_close_frame_may_take_as_long_as_the_output_before_it_is_read(
    monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.setattr("parley.transport.connection.CLOSE_LIMIT_S", 0.0)
    monkeypatch.setattr(socket, "TCP_INFO", 11, raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    connection, wire = open_connection()
    kernel = Kernel()
    monkeypatch.setattr(wire, "get_extra_info", lambda name: kernel, raising=False)
    connection.send_text(b"x" * 1000)
    kernel.in_flight, wire.stuck_bytes = (9, 0) if place == "in flight" else (0, 1000)

    connection.close(1000, "done")
    for _ in range(9):
        await asyncio.sleep(0)
    was_aborted = wire.is_aborted
    kernel.in_flight = wire.stuck_bytes = 0
    await until(lambda: wire.is_aborted)

    assert not was_aborted


async def test_what_stands_still_before_a_close_frame_ends_with_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("parley.transport.connection.CLOSE_LIMIT_S", 0.0)
    connection, wire = open_connection(stall_s=0.0)
    wire.stuck_bytes = 1000

    connection.close(1000, "done")

    await until(lambda: wire.is_aborted)


@pytest.mark.skipif(sys.platform != "linux", reason="the system does not tell")
async def test_output_that_a_peer_does_not_read_is_not_in_flight() -> None:
    leave = asyncio.Event()

    async def reads_nothing(reader: object, writer: asyncio.StreamWriter) -> None:
        await leave.wait()
        writer.close()

    server = await asyncio.start_server(reads_nothing, "127.0.0.1", 0, limit=1)
    _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())

    writer.write(b"x" * (64 << 20))
    transport = writer.transport
    await until(
        lambda: transport.get_write_buffer_size() > 0 and acknowledged_bytes(transport) is None
    )

    leave.set()
    transport.abort()
    server.close()


@pytest.mark.parametrize("error", [OSError(9, "bad"), ValueError("negative file descriptor")])
def test_a_closed_socket_acknowledges_nothing(error):
    closed = Mock(family=socket.AF_INET, getsockopt=Mock(side_effect=error))

    assert acknowledged_bytes(Mock(get_extra_info=lambda _: closed)) is None


async def test_slow_but_moving_output_is_patience():
    connection, wire = open_connection(stall_s=10)
    now = asyncio.get_running_loop().time()
    connection.send_text(b"x" * 1000)

    for second in range(1, 60):
        wire.stuck_bytes = 1000 - second
        connection.tick(now + second)

    assert connection.is_open


async def test_too_much_output_ends_the_connection_immediately():
    connection, wire = open_connection(output_bytes=1000)
    connection.pause_writing()
    wire.stuck_bytes = 1001

    connection.send_text(b"more")

    assert connection.closed.result().is_slow


async def test_a_full_inbox_stops_reading_until_it_is_emptied():
    connection, wire = open_connection()

    for _ in range(INBOX_MESSAGES):
        client_says(connection, TEXT, b"x")
    was_reading = wire.is_reading
    await connection.receive()

    assert not was_reading
    assert wire.is_reading


async def test_joined_ports_pass_messages_on_in_order_and_stop_at_congestion():
    left, left_wire = open_connection()
    right, right_wire = open_connection()
    traffic = Traffic()
    client_says(left, TEXT, b"one")

    left.join(right, traffic)
    client_says(left, TEXT, b"two")
    right.pause_writing()
    was_reading = left_wire.is_reading
    right.resume_writing()

    assert (traffic.messages, traffic.bytes) == (2, 6)
    # The client's own masked frames, byte for byte.
    reader = FrameReader(masked=True, limit_bytes=100)
    passed = [cast(Message, event).payload() for event in reader.feed(bytes(right_wire.sent))]
    assert passed == [b"one", b"two"]
    assert not was_reading
    assert left_wire.is_reading

    right.pause_writing()
    right.connection_lost(None)

    assert left_wire.is_reading, "to hear that its peer closes"


async def test_large_messages_share_one_budget_until_they_are_passed_on():
    budget = Budget(3 << 20)
    connections = [open_connection(budget=budget)[0] for _ in range(2)]
    large = frame(TEXT, b"x" * (2 << 20), mask=True)

    connections[0].data_received(large)
    connections[1].data_received(large[:20])
    announced = budget.used_bytes
    connections[1].data_received(large[20 : 3 << 19])
    refused = connections[1].closed.result().code
    used_before = budget.used_bytes
    connections[1].connection_lost(None)
    connections[0].join(connections[1], Traffic())

    assert announced < (2 << 20) + 20, "what has not arrived takes no memory"
    assert (refused, used_before, budget.used_bytes) == (1013, announced, 0)


async def test_a_message_is_forgotten_alone_and_whole_and_once():
    budget = Budget(8 << 20)
    connection, _ = open_connection(budget=budget, byte_burst=1 << 30)
    half, last = bytes(900_000), frame(BINARY, bytes(900_000), mask=True)
    data = b"\x02" + frame(BINARY, half, mask=True)[1:] + b"\x80" + last[1:]

    connection.data_received(data + frame(BINARY, bytes(3 << 20), mask=True)[: 14 + 100])
    message = await connection.receive()
    connection.forget(message)
    arrived_bytes = budget.used_bytes
    connection.connection_lost(None)
    connection.forget(message)

    assert (arrived_bytes, budget.used_bytes, budget.owners) == (100, 0, 0)


async def test_cancelling_a_receive_loses_nothing():
    connection, _ = open_connection()
    receiving = asyncio.create_task(connection.receive())
    await asyncio.sleep(0)

    receiving.cancel()
    client_says(connection, TEXT, b"kept")
    await asyncio.wait({receiving})

    message = receiving.result() if not receiving.cancelled() else await connection.receive()
    assert message.payload() == b"kept"


async def test_a_connection_whose_tick_fails_does_not_keep_the_others_from_their_pings(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr("parley.transport.keepalive.TICK_S", 0.01)
    keepalive = Keepalive()
    connections, wires = zip(
        *(open_connection(keepalive=keepalive, ping_every_s=0) for _ in range(3)), strict=True
    )

    def broken() -> int:
        raise RuntimeError("the handler is closed")

    for wire in wires[:2]:
        wire.get_write_buffer_size = broken
    async with asyncio.timeout(HANG_S):
        while not wires[2].frames:  # noqa: ASYNC110
            await asyncio.sleep(0.005)

    assert len(keepalive) == 1
    assert [connection.closed.done() for connection in connections] == [True, True, False]
    connections[2].connection_lost(None)


async def test_an_aborted_connection_is_forgotten_though_its_transport_never_says_so(monkeypatch):
    monkeypatch.setattr("parley.transport.keepalive.TICK_S", 0.01)
    keepalive = Keepalive()
    connection, _ = open_connection(keepalive=keepalive)

    connection.abort()

    assert len(keepalive) == 0
    assert connection.closed.result() == Closure(1006, "aborted")
    # The next one is watched again.
    ticked = asyncio.Event()
    monkeypatch.setattr(Connection, "tick", lambda *_: ticked.set())
    open_connection(keepalive=keepalive)
    timer = keepalive._timer
    open_connection(keepalive=keepalive)
    assert keepalive._timer is timer, "one for all"
    await asyncio.wait_for(ticked.wait(), HANG_S)


async def test_a_connection_aborted_during_its_handshake_is_not_watched():
    keepalive = Keepalive()
    connection = Connection(is_server=False, limits=ConnectionLimits(), keepalive=keepalive)
    wire = Wire()

    connection.abort()
    connection._opened(cast(asyncio.Transport, wire))

    assert len(keepalive) == 0
    assert wire.is_aborted


@pytest.mark.parametrize(("stuck_bytes", "ends_s"), [(5, 92), (0, 101)])
async def test_the_time_in_which_this_process_stood_still_counts_for_nobody(stuck_bytes, ends_s):
    keepalive = Keepalive()
    connection, wire = open_connection(
        keepalive=keepalive, ping_every_s=20, ping_limit_s=20, stall_s=10
    )
    now = asyncio.get_running_loop().time()
    connection.tick(now + 21)
    wire.stuck_bytes = stuck_bytes
    connection.tick(now + 22)

    keepalive._due_at = now - 60
    keepalive._heartbeat()
    connection.tick(now + ends_s - 1)

    assert not wire.is_aborted
    connection.tick(now + ends_s + 1)
    assert wire.is_aborted


def test_no_owner_takes_more_than_its_share():
    budget = Budget(10, share_bytes=4)

    taken = [budget.take(3, "a"), budget.take(3, "a"), budget.take(4, "b"), budget.take(4, "c")]
    budget.give(3, "a")

    assert taken == [True, False, True, False]
    assert budget.take(4, "c")
    assert (budget.used_bytes, budget.peak_bytes, budget.owners) == (8, 8, 2)


def test_who_was_idle_for_an_hour_has_one_burst():
    clock = ManualClock()
    sent = Allowance(2, 1, clock.monotonic())
    clock.advance(3600)

    # The clock is only read, and the allowance refilled, once the first two are used up.
    assert [sent.take(1, clock.monotonic) for _ in range(6)] == [0, 0, 0, 0, 0, 1]


async def test_a_crowd_of_frames_is_handled_some_at_a_time():
    connection, wire = open_connection(message_burst=1e9)
    other, other_wire = open_connection()
    traffic = Traffic()
    connection.join(other, traffic)
    counts = []

    connection.data_received(frame(TEXT, b"x", mask=True) * 1000)
    while traffic.messages < 1000:
        counts.append(traffic.messages)
        assert not wire.is_reading
        await asyncio.sleep(0)
    await asyncio.sleep(0)

    assert counts[0] == TURN_FRAMES
    assert len(counts) == 1000 // TURN_FRAMES
    assert wire.is_reading
    assert len(other_wire.sent) == 1000 * 7


async def test_what_was_forwarded_does_not_count_once_two_connections_part(monkeypatch):
    monkeypatch.setattr("parley.transport.connection.INBOX_BYTES", 100)
    connection, wire = open_connection()
    client_says(connection, TEXT, b"x" * 101)
    assert not wire.is_reading
    connection.join(other := open_connection()[0], Traffic())
    other.pause_writing()

    connection.part()
    client_says(connection, TEXT, b"x")

    assert wire.is_reading


async def test_a_server_that_does_not_answer_is_hung_up_on(monkeypatch: pytest.MonkeyPatch):
    received: list[bytes] = []
    limit = asyncio.timeout(None)

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            received.append(await reader.readuntil(b"\r\n\r\n"))
            limit.reschedule(0.0)
            received.append(await reader.read())

    async with await asyncio.start_server(accept, "127.0.0.1", 0) as server:
        url = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        known: Any = {"headers": {}, "limits": ConnectionLimits(), "keepalive": Keepalive()}
        with monkeypatch.context() as patched:
            patched.setattr(asyncio, "timeout", {0.05: limit}.get)
            with pytest.raises(DialFailed, match=r"within 0\.05 s"):
                await dial(url, **known, open_limit_s=0.05, tls=None)
        await until(lambda: len(received) == 2)

    assert b"Upgrade: websocket" in received[0]


async def test_what_a_stopped_connection_had_read_is_handled_once_it_continues():
    connection, wire = open_connection(message_burst=1e9)
    connection.data_received(frame(TEXT, b"x", mask=True) * 300)

    received = 0
    while received < 300:
        held = len(connection._inbox)
        assert held <= INBOX_MESSAGES + TURN_FRAMES
        await connection.receive()
        received += 1
    await asyncio.sleep(0)

    assert wire.is_reading


async def test_large_messages_that_nobody_takes_stop_reading_sooner():
    connection, wire = open_connection()

    client_says(connection, TEXT, b"x" * (1 << 20))
    was_reading = wire.is_reading
    client_says(connection, TEXT, b"x" * 100)
    await asyncio.sleep(0)
    is_reading = wire.is_reading
    await connection.receive()
    await asyncio.sleep(0)
    await asyncio.sleep(0)

    assert not was_reading  # a large read ends the turn
    assert not is_reading
    assert wire.is_reading
    assert (await connection.receive()).size == 100


async def test_more_bytes_than_a_connections_share_are_read_later():
    connection, wire = open_connection(byte_burst=1000, bytes_per_s=5_000)

    client_says(connection, TEXT, b"x" * 2000)
    was_reading = wire.is_reading
    message = await connection.receive()

    assert not was_reading
    assert message.size == 2000
    assert wire.is_reading
    assert connection.is_open


@pytest.mark.parametrize(
    ("opcode", "content", "limits"),
    [
        (PING, b"", {"control_burst": 100, "controls_per_s": 10}),
        (PONG, b"", {"control_burst": 100, "controls_per_s": 10}),
        (TEXT, b"{}", {"message_burst": 100, "messages_per_s": 10}),
    ],
)
async def test_the_hundredth_is_taken_and_a_flood_is_not(opcode, content, limits):
    connection, wire = open_connection(**limits)
    for _ in range(100):
        client_says(connection, opcode, content)
        if connection._inbox:
            await connection.receive()
    was_open = connection.is_open

    connection.data_received(frame(opcode, content, mask=True) * 50)
    while connection.is_open and connection._inbox:
        await connection.receive()

    assert was_open
    assert connection.closed.result().code == 1008
    assert wire.frames[-1] == (CLOSE, close_payload(1008, "too many messages"))


async def test_a_connection_moves_towards_its_end_only():
    connection, wire = open_connection()
    seen = [connection.state]
    connection.close(1000)
    seen.append(connection.state)
    client_says(connection, TEXT, b"too late")
    client_says(connection, CLOSE, close_payload(1000, ""))
    connection.connection_lost(None)
    seen.append(connection.state)
    connection.close(1011)

    assert seen == [ConnectionState.OPEN, ConnectionState.CLOSING, ConnectionState.CLOSED]
    assert connection.state is ConnectionState.CLOSED
    assert [frame for frame in wire.frames if frame[0] == CLOSE] == [
        (CLOSE, close_payload(1000, ""))
    ]
    with pytest.raises(ConnectionClosed):
        await connection.receive()
