"""A conversation with a server without an event loop: each call waits."""

import json

from tests.support.patience import HANG_S
from tests.support.talking import Message
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection


def hear(client: ClientConnection, limit_s: float = HANG_S) -> Message:
    message: Message = json.loads(client.recv(timeout=limit_s))
    return message


def prepare(client: ClientConnection, **settings: str) -> None:
    """A session of its own, until it is ready."""
    assert hear(client)["type"] == "queue_done"
    client.send(json.dumps({"type": "prepare", **settings}))
    assert hear(client)["type"] == "prepared"


def ending(client: ClientConnection) -> tuple[list[Message], int | None]:
    """What comes until the server closes, and its close code."""
    messages = []
    while True:
        try:
            messages.append(hear(client))
        except ConnectionClosed:
            return messages, client.close_code
