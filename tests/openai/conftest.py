from collections.abc import Callable, Mapping
from typing import Any

import pytest
import uvloop
from tests.support.patience import HANG_S


def pytest_asyncio_loop_factories(
    config: Any, item: Any
) -> Mapping[str, Callable[[], uvloop.Loop]] | None:
    """The loop that the gateway runs on: its transports buffer and pause in their own way."""
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture(autouse=True)
def audio_is_live(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients of these tests speak faster than people and pause as long as a busy machine takes:
    after a second, what they say would be late and interrupt nothing."""
    monkeypatch.setattr("parley.session.arrivals.STOOD_STILL_S", HANG_S)
