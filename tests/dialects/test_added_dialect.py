"""A dialect from outside, with everything a dialect may have, through a real gateway and worker."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any, ClassVar

import msgspec
import numpy as np
import pytest
import websockets
from tests.support.gateways import occupied, running_gateway
from tests.support.patience import HANG_S
from tests.support.stack import RunningStack, running_stack
from tests.support.stand_in_worker import StandInWorker
from tests.support.talking import hear, say
from websockets.asyncio.client import connect

from parley.dialects import registry
from parley.dialects.base import Dialect, Reply, SessionContext, UpgradeRequest
from parley.dialects.events import (
    AudioInput,
    ClientEvent,
    DuplexSetup,
    ServerEvent,
    SessionReady,
    StopRequested,
    UnitDone,
)
from parley.dialects.realtime import RealtimeDialect
from parley.dialects.registry import DialectRegistry
from parley.errors import ParleyError
from parley.media.pcm import Pcm
from parley.protocol import codec
from parley.protocol.kinds import Kind, Phase
from parley.protocol.legacy import CloseReason


class Note(msgspec.Struct, tag="note"):
    """All that this dialect ever says."""

    what: str
    number: int = 0


class TapeDialect(Dialect):
    """Speaks on realtime's path to clients that name a model; sound comes in chunks of any length,
    messages are numbered, and refusals are HTTP."""

    name = "tape"
    paths = ("/v1/realtime",)
    kind = Kind.AUDIO_DUPLEX
    accepts: ClassVar = {
        Phase.CONNECTED: frozenset({"configure", "close"}),
        Phase.ACTIVE: frozenset({"configure", "sound", "close"}),
    }
    precedence = 20
    parameters = frozenset({"model"})
    subprotocol = "tape"
    refuses_by_status = True

    def __init__(self, context: SessionContext) -> None:
        super().__init__(context)
        self._numbers = 0

    @classmethod
    def claims(cls, request: UpgradeRequest) -> bool:
        return "model" in request.query or "tape" in request.subprotocols

    def greet(self) -> Reply:
        return Reply((Note(f"hello from {self.context.parameters['model']}"),))

    def decode(self, frame: str, phase: Phase) -> dict[str, Any]:
        message: dict[str, Any] = codec.parse(frame)
        self.check(phase, message["type"])
        return message

    def events(self, decoded: Any, phase: Phase) -> Sequence[ClientEvent | Reply]:
        match decoded["type"]:
            case "configure" if phase is Phase.CONNECTED:
                setup = DuplexSetup(decoded["prompt"], cuts_by_time=True)
                return (setup, Reply((Note("configured"),)))
            case "configure":
                return (Reply((Note("configured again"),)),)
            case "sound":
                pcm = Pcm(np.full(decoded["samples"], 0.1, np.float32), 16_000)
                return [AudioInput(pcm)]
            case _:
                return (StopRequested(),)

    def messages(self, event: ServerEvent) -> Sequence[msgspec.Struct]:
        match event:
            case SessionReady():
                return (Note("ready"),)
            case UnitDone():
                return (Note(f"unit {event.index}"), Note("and so on"))
            case _:
                return ()

    def frame(self, message: msgspec.Struct) -> str | None:
        self._numbers += 1
        return codec.encode(msgspec.structs.replace(message, number=self._numbers))

    def error(self, failure: ParleyError) -> Note:
        return Note(failure.code)

    def closed(self, reason: CloseReason, *, elapsed_s: float = 0.0) -> Reply:
        return Reply((Note(reason),), 1000)


class FirstDialect(RealtimeDialect):
    """Realtime under other words: only the first message reports."""

    name = "first"
    first_types = frozenset({"session.begin"})
    accepts: ClassVar = {
        **RealtimeDialect.accepts,
        Phase.QUEUED: frozenset({"session.begin", "session.close"}),
        Phase.CONNECTED: frozenset({"session.begin", "session.close"}),
    }
    keeps = frozenset({"session.begin"})

    @classmethod
    def claims(cls, request: UpgradeRequest) -> bool:
        return False

    def decode(self, frame: str, phase: Phase) -> ClientEvent | None:
        if codec.type_of(frame) == "session.begin":
            self.check(phase, "session.begin")
            return DuplexSetup("Be kind.")
        return super().decode(frame, phase)

    def error(self, failure: ParleyError) -> Any:
        return Note(f"first: {failure.code}")


@pytest.fixture
def added(monkeypatch: pytest.MonkeyPatch) -> DialectRegistry:
    """Both, next to the shipped ones."""
    every = DialectRegistry([*registry.installed(), TapeDialect, FirstDialect])
    monkeypatch.setattr(registry, "installed", lambda: every)
    return every


@contextlib.asynccontextmanager
async def tape(stack: RunningStack, query: str = "?model=big", **more: Any) -> AsyncIterator[Any]:
    async with connect(stack.ws(f"/v1/realtime{query}", extensions=False), **more) as socket:
        yield socket


async def notes(socket: Any, count: int) -> list[tuple[int, str]]:
    heard = [await hear(socket) for _ in range(count)]
    return [(each["number"], each["what"]) for each in heard]


@pytest.mark.usefixtures("added")
async def test_it_holds_a_conversation_in_its_own_words():
    async with running_stack() as stack, tape(stack, subprotocols=["other", "tape"]) as socket:
        assert socket.subprotocol == "tape"
        assert await notes(socket, 1) == [(1, "hello from big")]

        await say(socket, type="sound", samples=1)
        assert await notes(socket, 1) == [(2, "invalid_event")]

        await say(socket, type="configure", prompt="Be kind.")
        assert await notes(socket, 2) == [(3, "configured"), (4, "ready")]

        for _ in range(39):
            await say(socket, type="sound", samples=400)
        await say(socket, type="configure")
        assert await notes(socket, 1) == [(5, "configured again")]
        await say(socket, type="sound", samples=400)
        assert await notes(socket, 2) == [(6, "unit 0"), (7, "and so on")]

        await say(socket, type="sound", samples=40_000)
        assert await notes(socket, 4) == [
            (8, "unit 1"),
            (9, "and so on"),
            (10, "unit 2"),
            (11, "and so on"),
        ]
        await say(socket, type="close")
        assert await notes(socket, 1) == [(12, "stopped")]
        with pytest.raises(websockets.ConnectionClosed):
            await socket.recv()
        assert socket.close_code == 1000


@pytest.mark.usefixtures("added")
async def test_others_on_its_path_are_spoken_to_as_before():
    async with running_stack() as stack, tape(stack, "?mode=audio") as socket:
        assert (await hear(socket))["type"] == "session.queue_done"
        await say(socket, type="session.update", session={"instructions": "Be kind."})
        assert (await hear(socket))["type"] == "session.created"
        await say(socket, type="configure")
        assert (await hear(socket))["error"]["code"] == "unknown_event"


@pytest.mark.usefixtures("added")
async def test_the_first_message_decides_while_the_client_waits():
    async with running_stack() as stack, occupied(stack) as busy, tape(stack, "") as socket:
        assert (await hear(socket))["type"] == "session.queued"
        await say(socket, type="session.begin")
        await say(socket, type="session.begin")
        assert (await hear(socket))["what"] == "first: invalid_event"
        await say(busy, type="stop")
        while (message := await hear(socket))["type"] == "session.queued":
            pass
        assert message["type"] == "session.queue_done"
        assert (await hear(socket))["type"] == "session.created"


@pytest.mark.usefixtures("added")
async def test_a_full_queue_is_a_429_and_no_worker_a_503_before_the_upgrade():
    async with running_gateway(queue={"no_worker_refuse_s": 0.001}) as gateway:
        away = await refused(gateway.ws("/v1/realtime?model=big"))
    async with (
        running_gateway(queue={"max_size": 1}) as gateway,
        StandInWorker(gateway.url),
        occupied(gateway),
        connect(url := gateway.ws("/v1/realtime?model=big")),
    ):
        full = await refused(url)
        forbidden = await refused(url, origin="https://elsewhere.example")

    assert (away.status_code, away.headers["Retry-After"]) == (503, "10")
    assert json.loads(away.body)["code"] == "service_unavailable"
    assert (full.status_code, full.headers["Retry-After"]) == (429, "5")
    assert json.loads(full.body) == {"detail": "Queue full (1 requests)", "code": "queue_full"}
    assert forbidden.status_code == 403
    assert "Retry-After" not in forbidden.headers


async def test_once_the_first_message_has_decided_it_is_refused_in_those_words(
    added: DialectRegistry,
):
    async with running_stack() as stack, occupied(stack) as busy, tape(stack, "") as socket:
        assert (await hear(socket))["type"] == "session.queued"
        await say(socket, type="session.begin")
        await say(socket, type="unheard of")
        assert (await hear(socket))["what"] == "first: unknown_event"
        host = stack.workers[0].host
        assert host is not None
        host.dialects = DialectRegistry([one for one in added if one.name != "realtime"])
        await say(busy, type="stop")
        while (message := await hear(socket)).get("type") == "session.queued":
            pass

    assert message["what"] == "first: service_unavailable"


async def refused(url: str, **more: Any) -> Any:
    with pytest.raises(websockets.InvalidStatus) as caught:
        async with connect(url, **more):
            pass
    return caught.value.response


async def test_a_worker_without_the_dialect_is_not_a_lost_worker(monkeypatch: pytest.MonkeyPatch):
    shipped = registry.installed()
    async with running_stack() as stack:
        host = stack.workers[0].host
        assert host is not None
        host.dialects = DialectRegistry([one for one in shipped if one.name != "realtime"])
        async with connect(stack.ws("/v1/realtime")) as socket:
            error = await hear(socket)
            async with asyncio.timeout(HANG_S):
                await socket.wait_closed()
        async with occupied(stack):
            pass

    assert error["error"]["message"] == "No worker supports this protocol."
    assert socket.close_code == 1013


def test_two_dialects_of_one_name_are_refused():
    class Other(TapeDialect):
        pass

    with pytest.raises(ParleyError, match="two dialects called 'tape'"):
        DialectRegistry([TapeDialect, Other])


def test_precedence_decides_who_is_asked_first(added: DialectRegistry):
    request = UpgradeRequest("/v1/realtime", subprotocols=("tape",))
    plain = UpgradeRequest("/v1/realtime")

    assert added.choose(request) is TapeDialect
    assert added.choose(plain) is RealtimeDialect
