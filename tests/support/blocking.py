"""Blocking requests and conversations with a server, without an event loop."""

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any, TypeVar

from tests.support.patience import HANG_S
from tests.support.talking import Message
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection

Found = TypeVar("Found")


def eventually(look: Callable[[], Found], what: str, limit_s: float = HANG_S) -> Found:
    """The result of `look` once it is true; fails with `what` if it never is."""
    deadline = time.monotonic() + limit_s
    while not (found := look()):
        assert time.monotonic() < deadline, what
        time.sleep(0.1)
    return found


def asked(url: str, *, method: str = "GET", body: Any = None) -> tuple[int, Any]:
    """Status and JSON of an answer; 0 and the reason if there is no answer."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"content-type": "application/json"}
    try:
        request = urllib.request.Request(url, data, headers, method=method)
        with urllib.request.urlopen(request, timeout=HANG_S) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as refused:
        return refused.code, json.load(refused)
    except OSError as error:
        return 0, str(error)


def say(client: ClientConnection, kind: str, **fields: Any) -> None:
    client.send(json.dumps({"type": kind, **fields}))


def hear(client: ClientConnection, limit_s: float = HANG_S) -> Message:
    message: Message = json.loads(client.recv(timeout=limit_s))
    return message


def hear_until(client: ClientConnection, kind: str) -> Message:
    while (message := hear(client))["type"] != kind:
        pass
    return message


def prepare(client: ClientConnection, **settings: str) -> Message:
    """Prepare a session and wait until it is ready."""
    # A client whose worker is slow to answer learns that it waits.
    hear_until(client, "queue_done")
    say(client, "prepare", **settings)
    prepared = hear(client)
    assert prepared["type"] == "prepared", prepared
    return prepared


def ending(client: ClientConnection) -> tuple[list[Message], int | None]:
    """The messages until the server closes, and its close code."""
    messages = []
    while True:
        try:
            messages.append(hear(client))
        except ConnectionClosed:
            return messages, client.close_code
