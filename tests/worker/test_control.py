import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, cast

import pytest
from structlog.testing import capture_logs
from tests.support.certificates import self_signed
from tests.support.gateway_control import fake_gateway_control
from tests.support.patience import until
from websockets import Headers, InvalidStatus, Response

from parley.errors import SetupError
from parley.protocol.control import (
    CONTROL_PATH,
    SECRET_HEADER,
    EndSession,
    Goodbye,
    HandOver,
    Heartbeat,
    Hello,
    Leave,
    SessionPhase,
    StopResult,
    StopTurn,
    Welcome,
)
from parley.protocol.kinds import Kind, Phase
from parley.worker.control import ControlLink, socket_url
from parley.worker.trust import GatewayTrust, remedy

HELLO = Hello("w", "http://127.0.0.1:1", 1, "parrot", "cpu", "0", 1)
PHASE = SessionPhase("lease", "session", Kind.CHAT, Phase.ACTIVE)


class Reporter:
    def __init__(self) -> None:
        self.orders: list[object] = []
        self.sessions: list[SessionPhase] = []
        self.heartbeats = 0

    def hello(self) -> Hello:
        return HELLO

    def heartbeat(self) -> Heartbeat:
        self.heartbeats += 1
        return Heartbeat("idle", 1, self.heartbeats, 0.0, 0)

    def living(self) -> list[SessionPhase]:
        return self.sessions

    @property
    def is_looked_for(self) -> bool:
        return any(session.resume is not None for session in self.sessions)

    def stop_turn(self, order: StopTurn) -> bool:
        self.orders.append(order)
        return order.lease_id == "here"

    def announce_end(self, time_left_s: float) -> None:
        self.announced = time_left_s

    def hand_over(self, order: HandOver) -> None:
        self.orders.append(order)

    def change_limits(self, limits: Mapping[str, Any]) -> None:
        self.orders.append(limits)

    def end_session(self, order: EndSession) -> bool:
        self.orders.append(order)
        return order.lease_id == "here"

    def leave(self, grace_s: float, *, moves: bool) -> None:
        self.orders.append(grace_s)


@contextlib.asynccontextmanager
async def linked(
    url: str, reporter: Reporter, *, ca: Path | None = None, **more
) -> AsyncIterator[ControlLink]:
    link = ControlLink(cast(Any, reporter), trust=GatewayTrust(url, ca=ca), **more)
    task = asyncio.create_task(link.run())
    try:
        yield link
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr("parley.worker.control.BEAT_EVERY_S", 0.01)
    monkeypatch.setattr("parley.worker.control.FIRST_RETRY_S", 0.01)


async def test_a_worker_says_hello_with_the_secret_then_beats():
    async with fake_gateway_control() as gateway, linked(gateway.url, Reporter(), secret="s3"):
        await gateway.until(Heartbeat, 3)

        assert gateway.heard[0] == HELLO
        assert gateway.headers[0][SECRET_HEADER] == "s3"


async def test_after_a_break_the_worker_says_again_who_it_is_and_what_lives():
    reporter = Reporter()
    async with fake_gateway_control() as gateway, linked(gateway.url, reporter) as link:
        await gateway.until(Heartbeat)
        reporter.sessions = [PHASE]
        await gateway.drop()
        await gateway.until(Hello, 2)
        await gateway.until(SessionPhase)

        assert gateway.connections == 2
        assert link._socket is not None


async def test_a_gateway_that_comes_later_is_found():
    async with fake_gateway_control() as first:
        url = first.url
    reporter = Reporter()
    async with linked(url, reporter) as link:
        link.report(PHASE)  # nobody to tell: not kept
        async with fake_gateway_control(int(url.rsplit(":", 1)[1])) as gateway:
            await gateway.until(Heartbeat)

            assert gateway.heard[0] == HELLO
            assert not any(isinstance(m, SessionPhase) for m in gateway.heard)


async def test_orders_are_obeyed_and_stops_answered():
    reporter = Reporter()
    async with fake_gateway_control() as gateway, linked(gateway.url, reporter):
        await gateway.until(Heartbeat)
        stops = StopTurn("a", "here"), StopTurn("b", "elsewhere")
        ends = EndSession("here", "stopped", "c"), EndSession("here"), Leave(3.0)
        with capture_logs() as lines:
            for message in (Welcome("1"), "{}", "{}", *stops, *ends):
                await gateway.say(message)
            await gateway.until(StopResult, 3)

        answers = [m for m in gateway.heard if isinstance(m, StopResult)]
        assert answers == [StopResult("a", True), StopResult("b", False), StopResult("c", True)]
        assert [each["event"] for each in lines] == ["gateway_welcomed", "gateway_order_unknown"]
        await until(lambda: len(reporter.orders) == 5)
        assert reporter.orders[3:] == [EndSession("here"), 3.0]


async def test_goodbye_comes_last():
    async with fake_gateway_control() as gateway, linked(gateway.url, Reporter()) as link:
        await gateway.until(Heartbeat)
        link.report(PHASE)
        await link.say_goodbye("shutdown")
        await gateway.until(Goodbye)

        before = gateway.heard[: gateway.heard.index(Goodbye("shutdown"))]
        assert PHASE in before


async def test_goodbye_without_a_gateway_is_harmless():
    nowhere = GatewayTrust("http://127.0.0.1:9")

    await ControlLink(cast(Any, Reporter()), trust=nowhere).say_goodbye("shutdown")


@pytest.mark.parametrize(
    ("url", "socket"),
    [
        ("http://127.0.0.1:8006", "ws://127.0.0.1:8006"),
        ("https://gateway:8006/", "wss://gateway:8006"),
    ],
)
def test_the_control_socket_of_a_gateway(url, socket):
    assert socket_url(url) == socket + CONTROL_PATH


@pytest.mark.parametrize("url", ["nonsense", "localhost:8006", "ftp://host:1", "http://", ""])
def test_what_is_not_an_address_is_a_set_up_error_with_an_example(url: str):
    with pytest.raises(SetupError) as caught:
        socket_url(url)

    assert "http://host:8006" in caught.value.hint


async def test_a_gateways_own_certificate_is_trusted_and_no_other(tmp_path):
    (tmp_path / "ours").mkdir()
    (tmp_path / "other").mkdir()
    context, ours = self_signed(tmp_path / "ours")
    _, other = self_signed(tmp_path / "other")
    async with fake_gateway_control(tls=context) as gateway:
        stranger = linked(gateway.url, Reporter(), ca=other)
        friend = linked(gateway.url, Reporter(), ca=ours)
        async with stranger as refused, friend as link:
            await gateway.until(Heartbeat, 2)

            assert link._socket is not None
            assert refused._socket is None
        assert gateway.connections == 1


def test_a_gateway_that_refuses_plain_http_is_asked_by_tls():
    refused = InvalidStatus(Response(400, "Bad Request", Headers()))

    assert "use wss://" in remedy(refused, GatewayTrust("ws://gateway:8006"))


async def test_plain_http_needs_no_trust():
    assert await GatewayTrust("http://127.0.0.1:8006").context() is None
