"""The clients that misbehave in `parley bench attack`, one process each.

`python -m parley.cli.bench.attackers KIND URL SECONDS`: does its worst against a server on this
machine, and on no other, for so long. Everything is bounded: seconds, and the number of
connections. A connection that the server ends is opened again.
"""

from __future__ import annotations

import contextlib
import json
import socket
import sys
import time
from collections.abc import Callable, Iterator
from typing import Final
from urllib.parse import urlsplit

from parley.gateway.admission import is_loopback
from parley.transport.framing import BINARY, CONTINUATION, PING, TEXT, frame

LONGEST_S: Final = 60.0
CONNECTIONS: Final = 40
JSON_BYTES: Final = 100 << 20
PIECE: Final = 1 << 16

Address = tuple[str, int]


def _frame(first_byte: int, content: bytes = b"") -> bytes:
    return bytes([first_byte, 0x80 | len(content)]) + bytes(4) + content


def _upgraded(address: Address, path: str) -> socket.socket:
    sock = socket.create_connection(address, timeout=5.0)
    sock.sendall(
        f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n\r\n".encode()
    )
    return sock


def _pour(address: Address, path: str, piece: bytes, until: float, first: bytes = b"") -> None:
    """Send `piece` as fast as it is taken, on one connection after the other."""
    number = 0
    while time.monotonic() < until:
        number += 1
        with contextlib.suppress(OSError), _upgraded(address, path.format(number)) as sock:
            sock.sendall(first)
            while time.monotonic() < until:
                sock.sendall(piece)
                # What comes back is taken, so that nobody ends this for being slow.
                sock.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    while sock.recv(PIECE):
                        pass
                sock.settimeout(1.0)


def ping(address: Address, until: float) -> None:
    """Empty pings on a chat socket."""
    _pour(address, "/ws/chat", _frame(0x80 | PING) * 10_000, until)


def fragment(address: Address, until: float) -> None:
    """A message of empty fragments."""
    _pour(address, "/ws/chat", _frame(CONTINUATION) * 10_000, until, first=_frame(BINARY))


def text(address: Address, until: float) -> None:
    """Empty objects in a session of its own."""
    prepare = frame(TEXT, b'{"type":"prepare"}', mask=True)
    _pour(address, "/ws/duplex/adx_a{}", _frame(0x81, b"{}") * 10_000, until, first=prepare)


def nokey(address: Address, until: float) -> None:
    """Pings on the workers' socket, by somebody who is no worker and has no secret."""
    _pour(address, "/internal/worker", _frame(0x80 | PING) * 10_000, until)


def items(address: Address, until: float) -> None:
    """`POST /api/chat` with 100 MB of numbers."""
    _post(
        address, b'{"messages":[{"role":"user","content":"hi"}],"x":[', b"0," * (PIECE // 2), until
    )


def long_text(address: Address, until: float) -> None:
    """`POST /api/chat` with one word of 100 MB."""
    _post(address, b'{"messages":[{"role":"user","content":"hi"}],"x":"', b"a" * PIECE, until)


def _post(address: Address, begin: bytes, piece: bytes, until: float) -> None:
    head = (
        f"POST /api/chat HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {JSON_BYTES}\r\n\r\n"
    ).encode()
    while time.monotonic() < until:
        with (
            contextlib.suppress(OSError),
            socket.create_connection(address, timeout=5.0) as sock,
        ):
            sock.sendall(head + begin)
            left = JSON_BYTES - len(begin)
            while left > 1 and time.monotonic() < until:
                sock.sendall(piece[: left - 1])
                left -= min(len(piece), left - 1)
            sock.sendall(b"]")
            sock.recv(PIECE)


def slow_body(address: Address, until: float) -> None:
    """Many bodies of 100 MB: half of each immediately, the rest a byte at a time."""
    head = (
        f"POST /api/chat HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {JSON_BYTES}\r\n\r\n"
    ).encode()
    piece = b" " * PIECE
    with _many(address, head, until) as socks:
        left = dict.fromkeys(socks, JSON_BYTES // 2)
        while time.monotonic() < until and socks:
            for sock in list(socks):
                try:
                    taken = sock.send(piece if left[sock] > 0 else b" ")
                    left[sock] -= taken
                except BlockingIOError:
                    continue
                except OSError:
                    socks.remove(sock)
            time.sleep(0.5 if all(count <= 0 for count in left.values()) else 0.001)


def slow_reader(address: Address, until: float) -> None:
    """Many requests for a large file whose answers nobody reads."""
    words = b"GET /static/pages/call.js HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 8
    with _many(address, words, until):
        while time.monotonic() < until:
            time.sleep(0.1)


def slow_session(address: Address, until: float) -> None:
    """A session that asks for a lot and reads nothing."""
    sound = "A" * 85_336
    unit = frame(
        TEXT, json.dumps({"type": "audio_chunk", "audio_base64": sound}).encode(), mask=True
    )
    number = 0
    while time.monotonic() < until:
        number += 1
        path = f"/ws/duplex/adx_slow{number}"
        with contextlib.suppress(OSError), _upgraded(address, path) as sock:
            sock.settimeout(0.5)
            sock.sendall(frame(TEXT, b'{"type":"prepare"}', mask=True))
            while time.monotonic() < until:
                sock.sendall(unit)


@contextlib.contextmanager
def _many(address: Address, words: bytes, until: float) -> Iterator[list[socket.socket]]:
    socks: list[socket.socket] = []
    try:
        for _ in range(CONNECTIONS):
            with contextlib.suppress(OSError):
                sock = socket.create_connection(address, timeout=2.0)
                sock.sendall(words)
                sock.setblocking(False)
                socks.append(sock)
            if time.monotonic() > until:
                break
        yield socks
    finally:
        for sock in socks:
            sock.close()


ATTACKS: Final[dict[str, Callable[[Address, float], None]]] = {
    "ping": ping,
    "fragment": fragment,
    "text": text,
    "nokey": nokey,
    "items": items,
    "long-text": long_text,
    "slow-body": slow_body,
    "slow-reader": slow_reader,
    "slow-session": slow_session,
}


def main(words: list[str]) -> None:
    """One attack."""
    kind, url, seconds = words
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or 80
    if not is_loopback(socket.gethostbyname(host)):
        raise SystemExit("Only servers on this machine are attacked.")
    ATTACKS[kind](("127.0.0.1", port), time.monotonic() + min(LONGEST_S, float(seconds)))


if __name__ == "__main__":
    main(sys.argv[1:])
