from collections.abc import Callable, Mapping
from typing import Any

import pytest
import uvloop
from tests.support.patience import HANG_S

from parley.gateway import acquisition


def pytest_asyncio_loop_factories(
    config: Any, item: Any
) -> Mapping[str, Callable[[], uvloop.Loop]] | None:
    """The loop that the gateway runs on: its transports buffer and pause in their own way."""
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture(autouse=True)
def no_client_waits_for_a_slow_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that is reached half a second late, because other tests compute, puts no client's
    `queued` before the message that a test expects."""
    monkeypatch.setattr(acquisition, "QUIET_S", HANG_S)
