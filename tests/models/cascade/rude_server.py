"""A server of raw HTTP: what it sends is written out byte for byte, for tests of bad manners."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

Answer = Callable[["RudeServer", int], Iterator[bytes]]
"""What is sent for the n-th request, in pieces; after it, the next request is read."""


@dataclass
class RudeServer:
    """What the server was sent.

    Args:
        connections: number of accepted connections.
        requests: bodies of requests for answers.
        headers: of these requests.
        over: set when the test ends.
        gone: set when a client closed its connection while an answer was being sent.
    """

    url: str = ""
    connections: int = 0
    requests: list[dict[str, Any]] = field(default_factory=list)
    headers: list[str] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)
    gone: threading.Event = field(default_factory=threading.Event)


@contextmanager
def rude_server(answer: Answer, *, of_get: bytes | None = None) -> Iterator[RudeServer]:
    """A server that sends the pieces of `answer`, which may close the connection by raising
    `ConnectionError`; `of_get`: its response to a GET request."""
    state = RudeServer()
    listener = socket.create_server(("127.0.0.1", 0))
    accepted: list[socket.socket] = []

    def serve(connection: socket.socket) -> None:
        with connection, contextlib.suppress(ConnectionError):
            file = connection.makefile("rb")
            while (request := _read_request(file)) is not None:
                headers, body = request
                if headers.startswith("GET"):
                    _send(connection, of_get or _NOT_FOUND, state)
                    continue
                state.headers.append(headers)
                state.requests.append(body)
                for data in answer(state, len(state.requests)):
                    _send(connection, data, state)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                state.connections += 1
                accepted.append(connection)
                threading.Thread(target=serve, args=[connection], daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    state.url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
    try:
        yield state
    finally:
        state.over.set()
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        for connection in accepted:
            # Those that were closed have no descriptor.
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


_NOT_FOUND = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"


def _read_request(file: Any) -> tuple[str, Any] | None:
    """Headers and body of the next request; None at the end of the connection, also if
    the client gives up within it."""
    lines = list(iter(lambda: file.readline().strip(), b""))
    headers = b"\n".join(lines).decode()
    length = re.search(r"^content-length: *(\d+)$", headers, re.I | re.M)
    sent = file.read(int(length[1])) if length else b""
    if not headers or (length and len(sent) < int(length[1])):
        return None
    return headers, json.loads(sent) if length else None


def _send(connection: socket.socket, data: bytes, state: RudeServer) -> None:
    try:
        connection.sendall(data)
    except OSError:
        state.gone.set()
        raise


def head(kind: str = "text/event-stream", status: str = "200 OK", *more: str) -> bytes:
    """Status and headers of a response whose body is chunked."""
    lines = (f"HTTP/1.1 {status}", f"Content-Type: {kind}", "Transfer-Encoding: chunked", *more)
    return "".join(f"{line}\r\n" for line in (*lines, "")).encode()


def chunk(data: str | bytes) -> bytes:
    """A chunk of a body."""
    data = data.encode() if isinstance(data, str) else data
    return b"%x\r\n%b\r\n" % (len(data), data)


END = b"0\r\n\r\n"
"""The end of a chunked body."""


def event(content: str, **more: Any) -> bytes:
    """A chunk with one event of an answer."""
    choice = {"index": 0, "delta": {"content": content} if content else {}, **more}
    return chunk(f"data: {json.dumps({'choices': [choice]})}\n\n")


DONE = chunk("data: [DONE]\n\n")
