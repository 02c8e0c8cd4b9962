from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import httpx
import pytest
import uvloop
from tests.support.gateways import RunningGateway, running_gateway
from tests.support.stand_in_worker import StandInWorker


def pytest_asyncio_loop_factories(
    config: Any, item: Any
) -> Mapping[str, Callable[[], uvloop.Loop]] | None:
    """The loop that the gateway runs on: its transports buffer and pause in their own way."""
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture
async def gateway(request: pytest.FixtureRequest) -> AsyncIterator[RunningGateway]:
    """A gateway with the settings of `@pytest.mark.gateway(limits={…})`."""
    async with running_gateway(**_marked(request)) as running:
        yield running


@pytest.fixture
async def worker(
    request: pytest.FixtureRequest, gateway: RunningGateway
) -> AsyncIterator[StandInWorker]:
    """Its worker; `@pytest.mark.worker(slots=2)` describes it."""
    async with StandInWorker(gateway.url, **_marked(request)) as joined:
        yield joined


@pytest.fixture
async def http(gateway: RunningGateway) -> AsyncIterator[httpx.AsyncClient]:
    async with gateway.http() as client:
        yield client


def _marked(request: pytest.FixtureRequest) -> dict[str, Any]:
    """What the mark with a fixture's name says."""
    mark = request.node.get_closest_marker(str(request.fixturename))
    return {} if mark is None else dict(mark.kwargs)
