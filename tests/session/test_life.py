from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import pytest
from tests.support.sockets import FakeSocket

from parley.clock import ManualClock
from parley.errors import InferenceFailed, InvalidPayload, SlowClient, WrongPhase
from parley.session.events import (
    ClientEvent,
    Ended,
    Event,
    Failed,
    Interrupted,
    ServerEvent,
    StopAsked,
)
from parley.session.life import Deadlines, Life, Outbox, Outgoing, OutputLimits, Phase


class PlainTranslator:
    """Every message is a stop, unless it says otherwise."""

    def read(self, frame: str, phase: Phase) -> ClientEvent | None:
        if "wrong" in frame:
            raise WrongPhase("wrong", phase)
        return None if "ignored" in frame else StopAsked()

    def name_recording(self, recording_id: str | None) -> None:
        del recording_id

    def write(self, event: ServerEvent) -> Outgoing:
        match event:
            case Failed():
                code = 1008 if isinstance(event.error, InvalidPayload) else None
                return Outgoing(('{"type": "error"}',), code)
            case Ended():
                code = event.error.close_code if event.error else 1000
                return Outgoing((json.dumps({"type": event.reason}),), code)
            case _:
                return Outgoing(('{"type": "said"}',))


@dataclass
class PlainDriver:
    life: Life
    body: Callable[[Life], object] | None = None
    accepted: list[ClientEvent] = field(default_factory=list)
    expired: list[str] = field(default_factory=list)
    was_cancelled: bool = False
    started: asyncio.Event = field(default_factory=asyncio.Event)

    def accept(self, event: ClientEvent) -> None:
        self.accepted.append(event)
        self.life.end(Ended("stopped"))

    def expire(self, deadline: str) -> None:
        self.expired.append(deadline)
        self.life.end(Ended("timeout", elapsed_s=5.0))

    def stop_turn(self) -> bool:
        return True

    async def run(self) -> Ended:
        try:
            self.started.set()
            if self.body is not None:
                self.body(self.life)
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.was_cancelled = True
            raise
        return Ended("done")

    async def close(self) -> None: ...


@dataclass
class Stage:
    socket: FakeSocket
    life: Life
    driver: PlainDriver
    clock: ManualClock
    seen: list
    phases: list
    task: asyncio.Task

    async def over(self) -> Ended:
        async with asyncio.timeout(10):
            ended = await self.task
            await self.life.finish()
        return ended


@contextlib.asynccontextmanager
async def staged(
    body: Callable[[Life], object] | None = None, output: OutputLimits | None = None
) -> AsyncIterator[Stage]:
    socket, clock = FakeSocket(), ManualClock()
    seen: list[Event] = []
    phases: list[Phase] = []

    class Watcher:
        def observe(self, event, at_s):
            seen.append(event)

    life = Life(
        socket=socket,
        translator=PlainTranslator(),
        clock=clock,
        session_id="s",
        output=output or OutputLimits(),
        observers=[Watcher()],
        enters=phases.append,
    )
    driver = PlainDriver(life, body)
    task = asyncio.create_task(life.run(driver))
    await driver.started.wait()
    try:
        yield Stage(socket, life, driver, clock, seen, phases, task)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await life.finish()


async def test_what_the_client_does_reaches_the_driver_and_its_end_reaches_the_client():
    async with staged() as stage:
        stage.socket.say("stop")

        ended = await stage.over()

        assert ended == Ended("stopped")
        assert stage.socket.types == ["stopped"]
        assert stage.socket.closed == (1000, "stopped")
        assert stage.driver.was_cancelled
        assert stage.seen == [StopAsked(), Ended("stopped")]


async def test_a_refused_message_is_answered_and_not_executed():
    async with staged() as stage:
        stage.socket.say("wrong")

        await stage.socket.until("error")

        assert stage.driver.accepted == []
        assert not stage.life.has_ended


async def test_an_ignored_message_leaves_no_trace():
    async with staged() as stage:
        stage.socket.say("ignored")
        stage.socket.say("stop")

        await stage.over()

        assert stage.driver.accepted == [StopAsked()]


async def test_a_binary_message_is_an_error():
    async with staged() as stage:
        stage.socket.say(b"\x00")

        await stage.socket.until("error")

        assert "binary" in str(stage.seen[0].error)


async def test_a_long_message_is_understood_like_a_short_one():
    async with staged() as stage:
        stage.socket.say("x" * 1_000_000)

        assert await stage.over() == Ended("stopped")


async def test_a_client_that_leaves_ends_the_conversation_silently():
    async with staged() as stage:
        stage.socket.hang_up()

        assert (await stage.over()).reason == "disconnected"
        assert stage.socket.sent == []


async def test_only_the_first_ending_counts_and_nothing_is_said_after_it():
    def body(life: Life) -> None:
        life.end(Ended("timeout"))
        life.end(Ended("stopped"))
        life.emit(Interrupted())

    async with staged(body) as stage:
        assert (await stage.over()).reason == "timeout"
        assert stage.socket.types == ["timeout"]


async def test_an_error_that_the_dialect_closes_for_ends_the_conversation():
    error = InvalidPayload("bad")

    async with staged(lambda life: life.emit(Failed(error))) as stage:
        assert await stage.over() == Ended("error", error)
        assert stage.socket.types == ["error"]
        assert stage.socket.close_code == 1008


async def test_a_bug_in_a_driver_ends_its_conversation_without_telling_what_it_was():
    def body(life: Life) -> None:
        raise ZeroDivisionError("secret path /etc")

    async with staged(body) as stage:
        ended = await stage.over()

        assert isinstance(ended.error, InferenceFailed)
        assert ended.error.error_id is not None
        assert "secret" not in str(ended.error)
        assert stage.socket.close_code == 1011


async def test_a_deadline_reaches_the_driver_when_the_clock_has_passed_it():
    async with staged(lambda life: life.deadlines.set("idle", life.clock.monotonic() + 5)) as stage:
        stage.clock.advance(4.9)
        stage.life.check_deadlines()
        assert stage.driver.expired == []

        stage.clock.advance(0.2)
        stage.life.check_deadlines()

        assert stage.driver.expired == ["idle"]
        assert (await stage.over()).elapsed_s == 5.0


async def test_the_timekeeper_notices_a_deadline_by_itself():
    async with staged() as stage:
        stage.life.deadlines.set("soon", stage.clock.monotonic())

        assert (await stage.over()).reason == "timeout"


async def test_cancelling_the_conversation_still_says_goodbye_and_leaves_no_task():
    before = asyncio.all_tasks()
    async with staged() as stage:
        stage.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await stage.task
        await stage.life.finish()

        assert stage.socket.types == ["server_shutdown"]
        assert asyncio.all_tasks() == before


async def test_a_client_that_does_not_read_is_disconnected_when_too_much_waits():
    def body(life: Life) -> None:
        for _ in range(100):
            life.emit(Interrupted())

    async with staged(body, OutputLimits(waiting_bytes=200)) as stage:
        stage.socket.reads.clear()
        ended = await stage.over()

        assert isinstance(ended.error, SlowClient)
        assert stage.socket.close_code == 1008


async def test_a_client_that_stalls_on_one_message_is_disconnected():
    async with staged(lambda life: life.emit(Interrupted()), OutputLimits(stall_s=0.01)) as stage:
        stage.socket.reads.clear()
        ended = await stage.over()

        assert isinstance(ended.error, SlowClient)


async def test_one_message_larger_than_the_limit_is_taken_when_nothing_waits():
    outbox = Outbox(OutputLimits(waiting_bytes=10))
    sent = []

    async def send(text: str) -> None:
        sent.append(text)

    outbox.put(["x" * 1000])
    outbox.close()
    await outbox.pump(send)

    assert sent == ["x" * 1000]


async def test_whoever_speaks_faster_than_the_client_reads_can_wait_for_room():
    outbox = Outbox(OutputLimits(waiting_bytes=100))
    gate = asyncio.Event()
    sent: list[str] = []

    async def send(text: str) -> None:
        await gate.wait()
        sent.append(text)

    pump = asyncio.create_task(outbox.pump(send))
    for _ in range(3):
        outbox.put(["x" * 30])
    waiting = asyncio.create_task(outbox.room())
    await asyncio.sleep(0)
    assert not waiting.done()

    gate.set()
    async with asyncio.timeout(10):
        await waiting
    assert sent
    outbox.close()
    await pump


async def test_phases_are_reported_once_each_and_never_after_the_end():
    def body(life: Life) -> None:
        for phase in ("active", "active", "paused"):
            life.enter(phase)
        life.end(Ended("stopped"))
        life.enter("active")

    async with staged(body) as stage:
        await stage.over()

        assert stage.phases == ["active", "paused"]


def test_deadlines_expire_in_order_and_once():
    deadlines = Deadlines()
    deadlines.set("b", 2.0)
    deadlines.set("a", 1.0)
    deadlines.set("c", 3.0)
    deadlines.set("gone", 0.5)
    deadlines.clear("gone", "never set")

    assert deadlines.next_due_s() == 1.0
    assert deadlines.take_expired(2.0) == ["a", "b"]
    assert deadlines.take_expired(2.0) == []
    assert deadlines.get("c") == 3.0
