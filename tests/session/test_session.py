import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar
from unittest.mock import Mock

import msgspec
import pytest
from tests.support.patience import HANG_S, until
from tests.support.sockets import FakeSocket

from parley.clock import ManualClock
from parley.dialects.base import Dialect, Reply, SessionContext
from parley.dialects.events import (
    ClientEvent,
    Event,
    Failed,
    ServerEvent,
    SessionEnded,
    SessionInterrupted,
    StopRequested,
)
from parley.errors import InferenceFailed, InvalidPayload, ParleyError, SlowClient, WrongPhase
from parley.protocol.kinds import Kind, Phase
from parley.session.deadlines import Deadlines
from parley.session.log import OutputBounds, SessionLog
from parley.session.outbox import OutputLimits
from parley.session.resumable import ResumableSocket
from parley.session.session import Session

OUTPUT = OutputLimits(waiting_bytes=8 * 1024 * 1024, stall_s=10.0)


class PlainMessage(msgspec.Struct):
    type: str


class PlainDialect(Dialect):
    """Every message is a stop, unless it says otherwise."""

    name = "plain"
    paths = ("/plain",)
    kind = Kind.CHAT
    accepts: ClassVar = {}

    def decode(self, frame: str, phase: Phase) -> ClientEvent | None:
        if "wrong" in frame:
            raise WrongPhase("wrong", phase)
        return None if "ignored" in frame else StopRequested()

    def messages(self, event: ServerEvent) -> list[PlainMessage]:
        return [PlainMessage("said")]

    def error(self, failure: ParleyError) -> PlainMessage:
        return PlainMessage("error")

    def answer(self, failure: ParleyError) -> Reply:
        code = 1008 if isinstance(failure, InvalidPayload) else None
        return Reply((self.error(failure),), code)

    def ending(self, ended: SessionEnded) -> Reply:
        code = ended.error.close_code if ended.error else 1000
        return Reply((PlainMessage(ended.reason),), code)


@dataclass
class PlainDriver:
    session: Session
    body: Callable[[Session], object] | None = None
    accepted: list[ClientEvent] = field(default_factory=list)
    expired: list[str] = field(default_factory=list)
    was_cancelled: bool = False
    started: asyncio.Event = field(default_factory=asyncio.Event)

    def accept(self, event: ClientEvent) -> None:
        self.accepted.append(event)
        self.session.end(SessionEnded("stopped"))

    def expire(self, deadline: str) -> None:
        self.expired.append(deadline)
        self.session.end(SessionEnded("timeout", elapsed_s=5.0))

    def stop_turn(self) -> bool:
        return True

    async def run(self) -> SessionEnded:
        try:
            self.started.set()
            if self.body is not None:
                self.body(self.session)
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.was_cancelled = True
            raise
        return SessionEnded("done")

    async def close(self) -> None: ...


@dataclass
class Stage:
    socket: FakeSocket
    session: Session
    runner: PlainDriver
    clock: ManualClock
    seen: list
    phases: list
    task: asyncio.Task

    async def over(self) -> SessionEnded:
        async with asyncio.timeout(HANG_S):
            ended = await self.task
            await self.session.finish()
        return ended


@contextlib.asynccontextmanager
async def staged(
    body: Callable[[Session], object] | None = None, output: OutputLimits | None = None
) -> AsyncIterator[Stage]:
    socket, clock = FakeSocket(), ManualClock()
    seen: list[Event] = []
    phases: list[Phase] = []

    class Watcher:
        def observe(self, event, at_s):
            seen.append(event)

    session = Session(
        socket=ResumableSocket(
            socket,
            session_id="s",
            window_s=0.0,
            output=output or OUTPUT,
            clock=clock,
            log=SessionLog(None, clock=clock, outputs=OutputBounds(0, 0.0)),
        ),
        dialect=PlainDialect(SessionContext("s", Kind.CHAT)),
        observers=[Watcher()],
        enters=phases.append,
    )
    runner = PlainDriver(session, body)
    task = asyncio.create_task(session.run(runner))
    await runner.started.wait()
    try:
        yield Stage(socket, session, runner, clock, seen, phases, task)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await session.finish()


async def test_what_the_runner_refuses_is_told_with_what_the_client_did(monkeypatch):
    async with staged() as stage:
        monkeypatch.setattr(
            stage.runner, "accept", Mock(side_effect=WrongPhase("stop", Phase.ACTIVE))
        )
        stage.socket.say("stop")

        await stage.socket.until("error")

        failed = stage.seen[-1]
        assert isinstance(failed, Failed)
        assert (type(failed.error), failed.event) == (WrongPhase, StopRequested())


async def test_only_the_first_ending_counts_and_nothing_is_said_after_it():
    def body(session: Session) -> None:
        session.end(SessionEnded("timeout"))
        session.end(SessionEnded("stopped"))
        session.emit(SessionInterrupted())

    async with staged(body) as stage:
        assert (await stage.over()).reason == "timeout"
        assert stage.socket.types == ["timeout"]


async def test_a_bug_in_a_driver_ends_its_conversation_without_telling_what_it_was():
    def body(session: Session) -> None:
        raise ZeroDivisionError("secret path /etc")

    async with staged(body) as stage:
        ended = await stage.over()

        assert isinstance(ended.error, InferenceFailed)
        assert ended.error.error_id is not None
        assert "secret" not in str(ended.error)
        assert stage.socket.close_code == 1011


async def test_the_timekeeper_notices_a_deadline_by_itself():
    async with staged() as stage:
        stage.session.deadlines.set("soon", stage.clock.monotonic())

        assert (await stage.over()).reason == "timeout"


async def test_cancelling_the_conversation_still_says_goodbye_and_leaves_no_task():
    before = asyncio.all_tasks()
    async with staged() as stage:
        stage.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await stage.task
        await stage.session.finish()

        assert stage.socket.types == ["server_shutdown"]
        assert asyncio.all_tasks() == before


@pytest.mark.parametrize(
    ("messages", "limit"), [(100, {"waiting_bytes": 200}), (1, {"stall_s": 0.01})]
)
async def test_a_client_that_does_not_read_is_disconnected(messages: int, limit: dict[str, Any]):
    def body(session: Session) -> None:
        for _ in range(messages):
            session.emit(SessionInterrupted())

    async with staged(body, replace(OUTPUT, **limit)) as stage:
        stage.socket.reads.clear()
        ended = await stage.over()

        assert isinstance(ended.error, SlowClient)
        assert stage.socket.close_code == 1008


async def test_phases_are_reported_once_each_and_never_after_the_end():
    def body(session: Session) -> None:
        for phase in (Phase.ACTIVE, Phase.ACTIVE, Phase.PAUSED):
            session.enter(phase)
        session.end(SessionEnded("stopped"))
        session.enter(Phase.ACTIVE)

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
    for at_s in (2.0, 5.0):
        deadlines.stop(at_s)
    assert deadlines.left_s(9.0) == {"c": 1.0}
    deadlines.go(9.0)
    assert deadlines.get("c") == 10.0


@pytest.mark.parametrize(
    ("frame", "on_loop"),
    [
        ("ignored" + "x" * (65_536 - 7), True),
        ("ignored" + "x" * (65_537 - 7), False),
        ("ignored" + "\N{GRINNING FACE}" * 16_384, False),
    ],
    ids=["64 KB", "more", "more in bytes"],
)
async def test_nothing_over_64_kb_is_parsed_on_the_event_loop(monkeypatch, frame, on_loop):
    parsed_by: list[int] = []

    def read(self, frame, phase):
        parsed_by.append(threading.get_ident())

    monkeypatch.setattr(PlainDialect, "decode", read)
    async with staged() as stage:
        stage.socket.say(frame)
        await until(lambda: parsed_by)

    assert (parsed_by == [threading.get_ident()]) is on_loop
