"""The worker's session sockets."""

import asyncio
from typing import Any, cast

from starlette.websockets import WebSocket

from parley.worker.app import TURN_MESSAGES, _Socket


class Ready:
    """A socket on which everything is there already."""

    async def receive(self) -> dict[str, Any]:
        return {"type": "websocket.receive", "text": "{}"}


async def test_a_crowd_of_messages_leaves_other_sessions_their_turns():
    socket = _Socket(cast(WebSocket, Ready()), limit_bytes=100)
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(others())
    for _ in range(100 * TURN_MESSAGES):
        await socket.receive()
    other.cancel()

    assert turns >= 99
