"""The misbehaving clients of `parley bench attack`, one process each.

`python -m parley.cli.bench.attackers KIND URL SECONDS`: prints a line when it is ready, then
attacks a server on this machine, and only on this machine, for SECONDS. Time and number of
connections are bounded. A connection that the server ends is opened again.
"""

from __future__ import annotations

import contextlib
import functools
import io
import itertools
import json
import random
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, Final
from urllib.parse import urlsplit

from parley.protocol import codec
from parley.protocol.networks import is_loopback
from parley.transport.framing import BINARY, CONTINUATION, PING, TEXT, frame

LONGEST_S: Final = 60.0
CONNECTIONS: Final = 40
JSON_BYTES: Final = 100 << 20
PIECE: Final = 1 << 16
HEAD_BYTES: Final = 15_000
"""Just below the server's limit, so that it parses the whole head."""
CLIP_FRAMES: Final = 60
OWN_ADDRESS: Final = "127.0.0.2"

Address = tuple[str, int]
Attack = Callable[[Address, float], None]
"""An attack on a server until a given monotonic time."""

BODY_HEAD: Final = (
    b"POST /api/chat HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %d\r\n\r\n" % JSON_BYTES
)


def _frame(first_byte: int, content: bytes = b"") -> bytes:
    return bytes([first_byte, 0x80 | len(content)]) + bytes(4) + content


def _text(message: dict[str, Any]) -> bytes:
    return frame(TEXT, json.dumps(message).encode(), mask=True)


def _connect(address: Address) -> socket.socket:
    """Connect, if possible from a loopback address of the attacker's own, so that limits per
    address do not affect the other clients."""
    try:
        return socket.create_connection(address, 5.0, (OWN_ADDRESS, 0))
    except OSError:
        return socket.create_connection(address, 5.0)


def _upgraded(address: Address, path: str) -> socket.socket:
    sock = _connect(address)
    sock.sendall(
        f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n\r\n".encode()
    )
    return sock


def _repeat(
    address: Address, until: float, work: Callable[[socket.socket], object], path: str = ""
) -> None:
    """Do `work` on one connection after the other; a connection ends with `work` or when it breaks.

    Args:
        path: of a WebSocket, in which `{}` is the connection's number; "": no WebSocket.
    """
    number = 0
    while time.monotonic() < until:
        number += 1
        with contextlib.suppress(OSError):
            opened = _upgraded(address, path.format(number)) if path else _connect(address)
            with opened as sock:
                work(sock)


def _drain(sock: socket.socket) -> bool:
    """Read what has arrived, so that the connection is not closed for being slow; returns False at
    its end."""
    sock.setblocking(False)
    try:
        while taken := sock.recv(PIECE):
            pass
        return bool(taken)
    except BlockingIOError:
        return True
    finally:
        sock.settimeout(1.0)


def _flood(first: bytes, piece: bytes, path: str = "") -> Attack:
    """Send `first`, then `piece` as fast as the server reads it."""

    def attack(address: Address, until: float) -> None:
        def pour(sock: socket.socket) -> None:
            sock.sendall(first)
            while time.monotonic() < until:
                sock.sendall(piece)
                if not _drain(sock):
                    break

        _repeat(address, until, pour, path)

    return attack


def _pour(piece: bytes, path: str = "/ws/chat", first: bytes = b"") -> Attack:
    """WebSocket frames."""
    return _flood(first, piece * 10_000, path)


def _chunked(path: str, piece: bytes, first: bytes = b"") -> Attack:
    """A chunked body: `first`, then pieces."""
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n"
    return _flood(head.encode() + first, piece)


def _post(begin: bytes, piece: bytes) -> Attack:
    """`POST /api/chat` with 100 MB of `piece`."""

    def attack(address: Address, until: float) -> None:
        def post(sock: socket.socket) -> None:
            sock.sendall(BODY_HEAD + begin)
            left = JSON_BYTES - len(begin)
            while left > 1 and time.monotonic() < until:
                sock.sendall(piece[: left - 1])
                left -= min(len(piece), left - 1)
            sock.sendall(b"]")
            sock.recv(PIECE)

        _repeat(address, until, post)

    return attack


def _ask(target: bytes, fields: bytes = b"") -> Attack:
    """Requests in a loop."""
    request = b"GET %s HTTP/1.1\r\nHost: 127.0.0.1\r\n%s\r\n" % (target, fields)
    return _in_a_loop(lambda: request)


def _in_a_loop(request: Callable[[], bytes], path: str = "") -> Attack:
    """Send, read a part of the answer, send again."""

    def attack(address: Address, until: float) -> None:
        def ask(sock: socket.socket) -> None:
            while time.monotonic() < until:
                sock.sendall(request())
                if not sock.recv(PIECE):
                    break

        _repeat(address, until, ask, path)

    return attack


def _visit(path: str, words: bytes) -> Attack:
    """Sockets that are abandoned after the first answer."""

    def attack(address: Address, until: float) -> None:
        def visit(sock: socket.socket) -> None:
            sock.sendall(words)
            sock.recv(PIECE)

        _repeat(address, until, visit, path)

    return attack


def slow_body(address: Address, until: float) -> None:
    """Many bodies of 100 MB: half of each immediately, the rest one byte at a time."""
    piece = b" " * PIECE
    with _many(address, BODY_HEAD, until) as socks:
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
    """Many requests for a large file whose answers are not read."""
    words = b"GET /static/pages/call.js HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 8
    with _many(address, words, until):
        while time.monotonic() < until:
            time.sleep(0.1)


def unread_answers(address: Address, until: float) -> None:
    """Many spoken answers to a minute of audio, which are read byte by byte."""
    words = _chat("audio", _noise_wav(), tts={"enabled": True})
    with _many(address, words, until) as socks:
        while time.monotonic() < until:
            for sock in socks:
                with contextlib.suppress(OSError):
                    sock.recv(1)
            time.sleep(0.1)


def _chat(kind: str, file: bytes, **more: Any) -> bytes:
    """`POST /api/chat` with a file."""
    part = {"type": kind, "data": codec.to_base64(file)}
    body = json.dumps({"messages": [{"role": "user", "content": [part]}], **more}).encode()
    return (
        b"POST /api/chat HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
    )


def _noise_wav() -> bytes:
    """A minute of noise."""
    rate_hz, size = 8000, 60 * 8000
    form = struct.pack("<IHHIIHH", 16, 1, 1, rate_hz, rate_hz, 1, 8)
    head = struct.pack("<4sI8s", b"RIFF", 36 + size, b"WAVEfmt ")
    return head + form + struct.pack("<4sI", b"data", size) + random.Random(0).randbytes(size)


def slow_session(address: Address, until: float) -> None:
    """A session that requests a lot and reads nothing."""
    unit = _text({"type": "audio_chunk", "audio_base64": "A" * 85_336})

    def talk(sock: socket.socket) -> None:
        sock.settimeout(0.5)
        sock.sendall(_text({"type": "prepare"}))
        while time.monotonic() < until:
            sock.sendall(unit)

    _repeat(address, until, talk, "/ws/duplex/adx_slow{}")


def voices(address: Address, until: float) -> None:
    """A session that names another voice in each message."""
    numbers = itertools.count(1)

    def update() -> bytes:
        output = {"voice": f"voice {next(numbers)}"}
        session = {"type": "realtime", "audio": {"output": output}}
        return _text({"type": "session.update", "session": session})

    updates = _in_a_loop(lambda: b"".join(update() for _ in range(50)), "/v1/realtime?model=any")
    updates(address, until)


def tickets(address: Address, until: float) -> None:
    """As many queue tickets as one client may have, and others that come and go."""
    with contextlib.ExitStack() as stack:
        for number in range(CONNECTIONS):
            with contextlib.suppress(OSError):
                stack.enter_context(_upgraded(address, f"/ws/duplex/adx_queued{number}"))
        _visit("/ws/duplex/adx_passing{}", frame(PING, b"", mask=True))(address, until)


def clip(address: Address, until: float) -> None:
    """Chat requests with a small clip of many large frames, two at a time."""
    request = _chat("video", _large_clip())
    while time.monotonic() < until:
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            socks = [stack.enter_context(_connect(address)) for _ in range(2)]
            for sock in socks:
                sock.sendall(request)
            for sock in socks:
                sock.settimeout(max(0.1, until - time.monotonic()))
                sock.recv(PIECE)


@functools.cache
def _large_clip() -> bytes:
    """Two seconds of still 4K video: 500 million pixels in a few bytes."""
    import av
    import numpy as np

    buffer = io.BytesIO()
    with av.open(buffer, "w", format="mp4") as out:
        stream = out.add_stream("mpeg4", rate=30)
        stream.width, stream.height, stream.pix_fmt = 3840, 2160, "yuv420p"
        stream.codec_context.gop_size = 600
        picture = av.VideoFrame.from_ndarray(np.zeros((2160, 3840, 3), np.uint8), format="rgb24")
        for index in range(CLIP_FRAMES):
            picture.pts = index
            out.mux(stream.encode(picture))
        out.mux(stream.encode())
    return buffer.getvalue()


@contextlib.contextmanager
def _many(address: Address, words: bytes, until: float) -> Iterator[list[socket.socket]]:
    socks: list[socket.socket] = []
    try:
        for _ in range(CONNECTIONS):
            with contextlib.suppress(OSError):
                sock = _connect(address)
                sock.sendall(words)
                sock.setblocking(False)
                socks.append(sock)
            if time.monotonic() > until:
                break
        yield socks
    finally:
        for sock in socks:
            sock.close()


_PING: Final = _frame(0x80 | PING)
_ASKS: Final = b'{"messages":[{"role":"user","content":"hi"}],"x":'
_UPGRADE: Final = (
    b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\nContent-Length: 3\r\n"
)
_RESUME: Final = {
    "type": "session.resume",
    "session_id": "adx_1",
    "resume_token": "x" * 43,
    "seq": 1,
}

ATTACKS: Final[dict[str, Attack]] = {
    # Empty pings on a chat socket.
    "ping": _pour(_PING),
    # A message of empty fragments.
    "fragment": _pour(_frame(CONTINUATION), first=_frame(BINARY)),
    # Empty JSON objects in one session.
    "text": _pour(_frame(0x81, b"{}"), "/ws/duplex/adx_a{}", first=_text({"type": "prepare"})),
    # Pings on the workers' socket by a client without the worker secret.
    "nokey": _pour(_PING, "/internal/worker"),
    # An array of numbers, a word, a text of escapes, brackets, white space, each of 100 MB.
    "items": _post(_ASKS + b"[", b"0," * (PIECE // 2)),
    "long-text": _post(_ASKS + b'"', b"a" * PIECE),
    "escapes": _post(b'{"messages":[{"role":"user","content":"', rb"\u00e9" * (PIECE // 6)),
    "nested": _post(b'{"messages":', b"[" * PIECE),
    "white-space": _post(_ASKS, b" " * PIECE),
    "slow-body": slow_body,
    "slow-reader": slow_reader,
    "slow-session": slow_session,
    # A cookie of escapes; as many cookies, and query fields, as a head may have.
    "cookie": _ask(b"/health", b'Cookie: a="' + rb"\\" * (HEAD_BYTES // 2) + b'"\r\n'),
    "cookies": _ask(b"/health", b"Cookie: " + b"a=b; " * (HEAD_BYTES // 5) + b"\r\n"),
    "head": _ask(b"/health?" + b"a=&" * (HEAD_BYTES // 3)),
    # An address of escapes, and one at which there is nothing.
    "address": _ask(b"/" + b"%41" * (HEAD_BYTES // 3)),
    "no-page": _ask(b"/nosuch"),
    "page": _ask(b"/"),
    "metrics": _ask(b"/metrics"),
    "openapi": _ask(b"/openapi.json"),
    # WebSocket upgrades with a body.
    "upgrade": _ask(b"/ws/chat", _UPGRADE),
    # A body in chunks of one byte; the same to a route that reads no body.
    "chunk": _chunked("/api/chat", b"1\r\n \r\n" * 10_000),
    "refused-chunk": _chunked("/nosuch", b"1\r\n \r\n" * 10_000),
    # A body whose trailer is a field without end, which claims another sender.
    "trailer": _chunked("/api/chat", b"1" * PIECE, b"1\r\n{\r\n0\r\nX-Forwarded-For: "),
    "clip": clip,
    # Sessions that are started and immediately abandoned.
    "churn": _visit("/ws/duplex/adx_churn{}", _text({"type": "prepare", "resume": True})),
    # Attempts to take over a session with an invalid token.
    "resume": _visit("/ws/duplex/adx_1?resume=true", _text(_RESUME)),
    "tickets": tickets,
    "voices": voices,
    "unread-answers": unread_answers,
    # Pictures whose heads have hundreds of thousands of empty parts.
    "damaged-picture": _in_a_loop(
        functools.cache(lambda: _chat("image", b"\xff\xd8" + b"\xff\xe1\0\x08Exif\0\0" * 300_000))
    ),
}


def main(words: list[str]) -> None:
    kind, url, seconds = words
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or 80
    if not is_loopback(socket.gethostbyname(host)):
        raise SystemExit("Only servers on this machine are attacked.")
    if kind == "clip":
        _large_clip()
    print("ready", flush=True)
    ATTACKS[kind](("127.0.0.1", port), time.monotonic() + min(LONGEST_S, float(seconds)))


if __name__ == "__main__":
    main(sys.argv[1:])
