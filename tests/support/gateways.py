"""A real gateway on a loopback port, in the test's own event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

from parley.gateway.house import House
from parley.gateway.leg import DialPolicy
from parley.gateway.main import Gateway
from parley.settings import GatewaySettings, Settings

QUICK = DialPolicy(attempts=3, pause_s=0.02, open_limit_s=1.0)


def settings(**parts: dict[str, Any]) -> Settings:
    """Settings for tests: plain HTTP on a free loopback port, parts as given."""
    gateway = {"host": "127.0.0.1", "port": 0, "http": True, **parts.pop("gateway", {})}
    return Settings.model_validate({"gateway": GatewaySettings(**gateway), **parts})


class RunningGateway:
    """A gateway and how to reach it."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway

    @property
    def house(self) -> House:
        return self.gateway.house

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.gateway.port}"

    def ws(self, path: str) -> str:
        return f"ws://127.0.0.1:{self.gateway.port}{path}"


@contextlib.asynccontextmanager
async def running_gateway(
    policy: DialPolicy = QUICK, make_house: Callable[..., House] = House, **parts: Any
) -> AsyncIterator[RunningGateway]:
    """Serve while the block runs; stops at once afterwards."""
    gateway = Gateway(
        settings(**parts),
        make_house=lambda s: make_house(s, dial_policy=policy, probe_every_s=0.05),
    )
    started = asyncio.Event()
    serving = asyncio.create_task(gateway.serve(started.set))
    waiting = asyncio.create_task(started.wait())
    try:
        await asyncio.wait({serving, waiting}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if serving.done():
            serving.result()
        yield RunningGateway(gateway)
    finally:
        gateway.stop_now()
        await serving
