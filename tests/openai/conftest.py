from collections.abc import Callable, Mapping
from typing import Any

import uvloop


def pytest_asyncio_loop_factories(
    config: Any, item: Any
) -> Mapping[str, Callable[[], uvloop.Loop]] | None:
    """The loop that the gateway runs on: its transports buffer and pause in their own way."""
    return {"uvloop": uvloop.new_event_loop}
