"""Which dialect a client speaks, and the refusal where none is spoken."""

import asyncio
import json
from importlib.metadata import EntryPoint
from typing import Any

import pytest
import websockets
from tests.contracts.dialect import DialectContract
from tests.support.gateways import occupied, running_gateway
from tests.support.patience import HANG_S
from tests.support.present import present
from tests.support.stack import running_stack
from tests.support.stand_in_worker import StandInWorker
from tests.support.talking import hear
from websockets.asyncio.client import connect
from websockets.typing import Subprotocol

from parley.dialects import registry
from parley.dialects.base import UpgradeRequest
from parley.dialects.realtime import RealtimeDialect
from parley.dialects.registry import DialectRegistry, installed
from parley.errors import ParleyError, SetupError


class EagerDialect(RealtimeDialect):
    """Realtime under another name, for who offers it."""

    name = "eager"
    precedence = 20

    @classmethod
    def claims(cls, request: UpgradeRequest) -> bool:
        return "eager" in request.subprotocols


async def refused(url: str, **more: Any) -> Any:
    with pytest.raises(websockets.InvalidStatus) as caught:
        async with connect(url, **more):
            pass
    return caught.value.response


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
    assert json.loads(away.body)["error"]["code"] == "service_unavailable"
    assert (full.status_code, full.headers["Retry-After"]) == (429, "5")
    assert json.loads(full.body)["error"]["message"] == "Queue full (1 requests)"
    assert forbidden.status_code == 403
    assert "Retry-After" not in forbidden.headers


async def test_the_subprotocol_that_a_page_offers_is_accepted_and_names_the_dialect():
    async with (
        running_gateway() as gateway,
        StandInWorker(gateway.url),
        connect(gateway.ws("/v1/realtime"), subprotocols=[Subprotocol("realtime")]) as client,
    ):
        assert client.subprotocol == "realtime"


async def test_a_worker_without_the_dialect_is_not_a_lost_worker(monkeypatch: pytest.MonkeyPatch):
    shipped = registry.installed()
    async with running_stack() as stack:
        host = present(stack.workers[0].host)
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
    with pytest.raises(ParleyError, match="two dialects called 'eager'"):
        DialectRegistry([EagerDialect, type("Other", (EagerDialect,), {})])


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("eager", f"{__name__}:LazyDialect", "cannot be loaded"),
        ("eager", f"{__name__}:refused", "is not a class of a dialect"),
        ("eager", f"{__name__}:DialectContract", "is not a class of a dialect"),
        ("lazy", f"{__name__}:EagerDialect", "calls itself 'eager'"),
    ],
)
def test_a_plug_in_that_cannot_be_a_dialect_is_refused_by_name(name: str, value: str, problem: str):
    with pytest.raises(SetupError, match=f"'{name}' .*{problem}"):
        registry._load(EntryPoint(name, value, registry.GROUP))


def test_precedence_decides_who_is_asked_first():
    added = DialectRegistry([*registry.installed(), EagerDialect])

    assert added.choose(UpgradeRequest("/v1/realtime", subprotocols=("eager",))) is EagerDialect
    assert added.choose(UpgradeRequest("/v1/realtime")) is RealtimeDialect


for _spoken in installed():
    _name = "Test" + _spoken.__name__
    globals()[_name] = type(_name, (DialectContract,), {"spoken": _spoken})
