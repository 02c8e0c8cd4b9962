"""Keep-alive and limits of one connection, on a transport that does nothing by itself."""

import asyncio
from typing import Any, cast

import pytest

from parley.gateway.frames import (
    CLOSE,
    PING,
    PONG,
    TEXT,
    FrameReader,
    Message,
    close_payload,
    frame,
)
from parley.gateway.port import INBOX_MESSAGES, Budget, Port, PortClosed, PortLimits, Pulse, Traffic


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

    def writelines(self, parts: Any) -> None:
        for part in parts:
            self.sent += part

    def get_write_buffer_size(self) -> int:
        return self.stuck_bytes

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


def open_port(**limits: Any) -> tuple[Port, Wire]:
    port = Port(is_server=True, limits=PortLimits(**limits), pulse=Pulse())
    wire = Wire()
    port._opened(cast(asyncio.Transport, wire))
    return port, wire


def client_says(port: Port, opcode: int, payload: bytes = b"") -> None:
    port.data_received(frame(opcode, payload, mask=True))


async def test_a_peer_is_pinged_and_dropped_when_it_does_not_answer():
    port, wire = open_port(ping_every_s=20, ping_limit_s=20)
    now = asyncio.get_running_loop().time()

    port.tick(now + 19)
    before = list(wire.frames)
    port.tick(now + 21)
    pinged = list(wire.frames)
    port.tick(now + 42)

    assert before == []
    assert pinged == [(PING, b"parley")]
    assert wire.is_aborted
    assert port.closed.result().code == 1006


async def test_a_peer_that_answers_pings_stays():
    port, wire = open_port(ping_every_s=20, ping_limit_s=20)
    now = asyncio.get_running_loop().time()

    port.tick(now + 21)
    client_says(port, PONG, b"parley")
    port.tick(now + 22)

    assert port.is_open
    assert not wire.is_aborted


async def test_pings_are_answered_with_their_payload():
    port, wire = open_port()

    client_says(port, PING, b"abc")

    assert wire.frames == [(PONG, b"abc")]


async def test_output_that_does_not_move_for_the_limit_ends_the_connection():
    port, wire = open_port(stall_s=10)
    now = asyncio.get_running_loop().time()
    port.send_text(b"x" * 1000)
    wire.stuck_bytes = 1000

    port.tick(now + 1)
    port.tick(now + 10)
    still_open = port.is_open
    port.tick(now + 11.1)

    assert still_open
    assert port.closed.result().is_slow
    assert wire.frames[-1] == (CLOSE, close_payload(1008, "too slow"))


async def test_slow_but_moving_output_is_patience():
    port, wire = open_port(stall_s=10)
    now = asyncio.get_running_loop().time()
    port.send_text(b"x" * 1000)

    for second in range(1, 60):
        wire.stuck_bytes = 1000 - second
        port.tick(now + second)

    assert port.is_open


async def test_too_much_output_ends_the_connection_at_once():
    port, wire = open_port(output_bytes=1000)
    port.pause_writing()
    wire.stuck_bytes = 1001

    port.send_text(b"more")

    assert port.closed.result().is_slow


async def test_a_full_inbox_stops_reading_until_it_is_emptied():
    port, wire = open_port()

    for _ in range(INBOX_MESSAGES):
        client_says(port, TEXT, b"x")
    was_reading = wire.is_reading
    await port.receive()

    assert not was_reading
    assert wire.is_reading


async def test_joined_ports_pass_messages_on_in_order_and_stop_at_congestion():
    left, left_wire = open_port()
    right, right_wire = open_port()
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


async def test_what_came_before_the_close_is_still_delivered():
    port, wire = open_port()

    client_says(port, TEXT, b"last")
    client_says(port, CLOSE, close_payload(4000, "bye"))
    message = await port.receive()
    with pytest.raises(PortClosed) as end:
        await port.receive()
    await asyncio.sleep(0)

    assert message.payload() == b"last"
    assert (end.value.closure.code, end.value.closure.reason) == (4000, "bye")
    assert wire.frames == [(CLOSE, close_payload(4000, ""))]
    assert wire.is_closed


async def test_large_messages_share_one_budget_until_they_are_passed_on():
    budget = Budget(3 << 20)
    ports = [
        Port(is_server=True, limits=PortLimits(), pulse=Pulse(), budget=budget) for _ in range(2)
    ]
    wires = [Wire(), Wire()]
    for port, wire in zip(ports, wires, strict=True):
        port._opened(cast(asyncio.Transport, wire))
    large = frame(TEXT, b"x" * (2 << 20), mask=True)

    ports[0].data_received(large)
    ports[1].data_received(large[:20])
    refused = ports[1].closed.result().code
    used_before = budget.used_bytes
    ports[0].join(ports[1], Traffic())

    assert (refused, used_before, budget.used_bytes) == (1013, 2 << 20, 0)


async def test_nothing_is_sent_after_the_close_frame():
    port, wire = open_port()

    port.close(1013, "later")
    port.send_text(b"too late")
    port.close(1000)

    assert wire.frames == [(CLOSE, close_payload(1013, "later"))]


async def test_broken_framing_is_answered_with_its_code():
    port, wire = open_port()

    port.data_received(frame(TEXT, b"not masked", mask=False))

    assert wire.frames[-1][1][:2] == (1002).to_bytes(2, "big")
    assert port.closed.result().code == 1002


async def test_cancelling_a_receive_loses_nothing():
    port, _ = open_port()
    receiving = asyncio.create_task(port.receive())
    await asyncio.sleep(0)

    receiving.cancel()
    client_says(port, TEXT, b"kept")
    await asyncio.wait({receiving})

    message = receiving.result() if not receiving.cancelled() else await port.receive()
    assert message.payload() == b"kept"
