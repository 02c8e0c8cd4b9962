"""The clients that misbehave in `parley bench attack`, one process each.

`python -m parley.cli.bench.attackers KIND URL SECONDS`: prints a line when it is ready, then does
its worst against a server on this machine, and on no other, for so long. Everything is bounded:
seconds, and the number of connections. A connection that the server ends is opened again.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import io
import json
import random
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, Final
from urllib.parse import urlsplit

from parley.gateway.admission import is_loopback
from parley.transport.framing import BINARY, CONTINUATION, PING, TEXT, frame

LONGEST_S: Final = 60.0
CONNECTIONS: Final = 40
JSON_BYTES: Final = 100 << 20
PIECE: Final = 1 << 16
HEAD_BYTES: Final = 60_000
FULL_HEAD_BYTES: Final = 15_000
"""Just below the server's limit, so that it parses the whole head."""
CLIP_FRAMES: Final = 60
OWN_ADDRESS: Final = "127.0.0.2"

Address = tuple[str, int]


def _frame(first_byte: int, content: bytes = b"") -> bytes:
    return bytes([first_byte, 0x80 | len(content)]) + bytes(4) + content


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


def _pour(address: Address, path: str, piece: bytes, until: float, first: bytes = b"") -> None:
    """Send `piece` as fast as the server reads it; reconnect when it closes the connection."""
    number = 0
    while time.monotonic() < until:
        number += 1
        with contextlib.suppress(OSError), _upgraded(address, path.format(number)) as sock:
            sock.sendall(first)
            while time.monotonic() < until:
                sock.sendall(piece)
                # What comes back is taken, so that it is not ended for being slow.
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
    """Empty JSON objects in one session."""
    prepare = frame(TEXT, b'{"type":"prepare"}', mask=True)
    _pour(address, "/ws/duplex/adx_a{}", _frame(0x81, b"{}") * 10_000, until, first=prepare)


def nokey(address: Address, until: float) -> None:
    """Pings on the workers' socket by a client without the worker secret."""
    _pour(address, "/internal/worker", _frame(0x80 | PING) * 10_000, until)


def items(address: Address, until: float) -> None:
    """`POST /api/chat` with a 100 MB array of numbers."""
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
            _connect(address) as sock,
        ):
            sock.sendall(head + begin)
            left = JSON_BYTES - len(begin)
            while left > 1 and time.monotonic() < until:
                sock.sendall(piece[: left - 1])
                left -= min(len(piece), left - 1)
            sock.sendall(b"]")
            sock.recv(PIECE)


def escapes(address: Address, until: float) -> None:
    """`POST /api/chat` with a text of 100 MB of escapes."""
    begin = b'{"messages":[{"role":"user","content":"'
    _post(address, begin, rb"\u00e9" * (PIECE // 6), until)


def nested(address: Address, until: float) -> None:
    """`POST /api/chat` with 100 MB of brackets."""
    _post(address, b'{"messages":', b"[" * PIECE, until)


def slow_body(address: Address, until: float) -> None:
    """Many bodies of 100 MB: half of each immediately, the rest one byte at a time."""
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
    """Many requests for a large file whose answers are not read."""
    words = b"GET /static/pages/call.js HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 8
    with _many(address, words, until):
        while time.monotonic() < until:
            time.sleep(0.1)


def unread_answers(address: Address, until: float) -> None:
    """Many spoken answers to a minute of sound, which are read byte by byte."""
    sound = base64.b64encode(_noise_wav(60)).decode()
    message = {"role": "user", "content": [{"type": "audio", "data": sound}]}
    words = _chat({"messages": [message], "tts": {"enabled": True}})
    with _many(address, words, until) as socks:
        while time.monotonic() < until:
            for sock in socks:
                with contextlib.suppress(OSError):
                    sock.recv(1)
            time.sleep(0.1)


def damaged_picture(address: Address, until: float) -> None:
    """Pictures whose heads have hundreds of thousands of empty parts."""
    data = base64.b64encode(b"\xff\xd8" + b"\xff\xe1\0\x08Exif\0\0" * 300_000).decode()
    message = {"role": "user", "content": [{"type": "image", "data": data}]}
    words = _chat({"messages": [message]})
    while time.monotonic() < until:
        with contextlib.suppress(OSError), _connect(address) as sock:
            while time.monotonic() < until:
                sock.sendall(words)
                if not sock.recv(PIECE):
                    break


def _chat(asked: dict[str, Any]) -> bytes:
    """`POST /api/chat`."""
    body = json.dumps(asked).encode()
    return (
        b"POST /api/chat HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
    )


def _noise_wav(seconds: int) -> bytes:
    """A WAV file of 8-bit samples, 8 kHz."""
    rate_hz, size = 8000, 8000 * seconds
    form = struct.pack("<IHHIIHH", 16, 1, 1, rate_hz, rate_hz, 1, 8)
    head = struct.pack("<4sI8s", b"RIFF", 36 + size, b"WAVEfmt ")
    return head + form + struct.pack("<4sI", b"data", size) + random.Random(0).randbytes(size)


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


def cookie(address: Address, until: float) -> None:
    """Requests with one cookie of 60 KB of escapes."""
    _ask(address, b"/health", b'Cookie: a="' + rb"\\" * (HEAD_BYTES // 2) + b'"\r\n', until)


def cookies(address: Address, until: float) -> None:
    """Requests with as many cookies as a head may have."""
    _ask(address, b"/health", b"Cookie: " + b"a=b; " * (FULL_HEAD_BYTES // 5) + b"\r\n", until)


def head(address: Address, until: float) -> None:
    """Requests with 20,000 query fields."""
    _ask(address, b"/health?" + b"a=&" * (HEAD_BYTES // 3), b"", until)


def page(address: Address, until: float) -> None:
    """Requests for the home page in a loop."""
    _ask(address, b"/", b"", until)


def metrics(address: Address, until: float) -> None:
    """Requests for the metrics in a loop."""
    _ask(address, b"/metrics", b"", until)


def openapi(address: Address, until: float) -> None:
    """Requests for the OpenAPI document in a loop."""
    _ask(address, b"/openapi.json", b"", until)


def upgrade(address: Address, until: float) -> None:
    """WebSocket upgrades with a body."""
    fields = (
        b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
        b"Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\nContent-Length: 3\r\n"
    )
    _ask(address, b"/ws/chat", fields, until)


def churn(address: Address, until: float) -> None:
    """Sessions that are started and immediately abandoned."""
    prepare = frame(TEXT, b'{"type":"prepare","resume":true}', mask=True)
    _visit(address, "/ws/duplex/adx_churn{}", prepare, until)


def resume(address: Address, until: float) -> None:
    """Attempts to take over a session with an invalid token."""
    asked = {"type": "session.resume", "session_id": "adx_1", "resume_token": "x" * 43, "seq": 1}
    words = frame(TEXT, json.dumps(asked).encode(), mask=True)
    _visit(address, "/ws/duplex/adx_1?resume=true", words, until)


def _visit(address: Address, path: str, words: bytes, until: float) -> None:
    number = 0
    while time.monotonic() < until:
        number += 1
        with contextlib.suppress(OSError), _upgraded(address, path.format(number)) as sock:
            sock.sendall(words)
            sock.recv(PIECE)


def voices(address: Address, until: float) -> None:
    """A session that names another voice in each message."""
    number = 0

    def update() -> bytes:
        nonlocal number
        number += 1
        session = {"type": "realtime", "audio": {"output": {"voice": f"voice {number}"}}}
        words = json.dumps({"type": "session.update", "session": session}).encode()
        return frame(TEXT, words, mask=True)

    while time.monotonic() < until:
        with contextlib.suppress(OSError), _upgraded(address, "/v1/realtime?model=any") as sock:
            while time.monotonic() < until:
                sock.sendall(b"".join(update() for _ in range(50)))
                sock.settimeout(1.0)
                sock.recv(PIECE)


def tickets(address: Address, until: float) -> None:
    """As many queue tickets as one client may have."""
    number = 0
    with contextlib.ExitStack() as stack:
        while number < CONNECTIONS and time.monotonic() < until:
            number += 1
            with contextlib.suppress(OSError):
                stack.enter_context(_upgraded(address, f"/ws/duplex/adx_queued{number}"))
        while time.monotonic() < until:
            time.sleep(0.1)


def _ask(address: Address, target: bytes, fields: bytes, until: float) -> None:
    request = b"GET %s HTTP/1.1\r\nHost: 127.0.0.1\r\n%s\r\n" % (target, fields)
    while time.monotonic() < until:
        with (
            contextlib.suppress(OSError),
            _connect(address) as sock,
        ):
            while time.monotonic() < until:
                sock.sendall(request)
                if not sock.recv(PIECE):
                    break


def chunk(address: Address, until: float) -> None:
    """A chunked body in chunks of one byte."""
    _chunked(address, b"/api/chat", b"1\r\n \r\n" * 10_000, until)


def refused_chunk(address: Address, until: float) -> None:
    """A chunked body in chunks of one byte, to a route that reads no body."""
    _chunked(address, b"/nosuch", b"1\r\n \r\n" * 10_000, until)


def trailer(address: Address, until: float) -> None:
    """Bodies that end with many trailer fields, which claim another sender."""
    fields = b"X-Forwarded-For: 10.0.0.1\r\n" * 2_000
    _chunked(address, b"/api/chat", b"1\r\n{\r\n0\r\n" + fields + b"\r\n", until)


def _chunked(address: Address, path: bytes, piece: bytes, until: float) -> None:
    head = b"POST %s HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n" % path
    while time.monotonic() < until:
        with (
            contextlib.suppress(OSError),
            _connect(address) as sock,
        ):
            sock.sendall(head)
            while time.monotonic() < until:
                sock.sendall(piece)
                sock.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    if not sock.recv(PIECE):
                        break
                sock.settimeout(1.0)


def clip(address: Address, until: float) -> None:
    """Chat requests with a small clip of many large frames, two at a time."""
    data = base64.b64encode(_large_clip()).decode()
    asked = {"messages": [{"role": "user", "content": [{"type": "video", "data": data}]}]}
    request = _chat(asked)
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


ATTACKS: Final[dict[str, Callable[[Address, float], None]]] = {
    "ping": ping,
    "fragment": fragment,
    "text": text,
    "nokey": nokey,
    "items": items,
    "long-text": long_text,
    "escapes": escapes,
    "nested": nested,
    "slow-body": slow_body,
    "slow-reader": slow_reader,
    "slow-session": slow_session,
    "cookie": cookie,
    "cookies": cookies,
    "head": head,
    "page": page,
    "metrics": metrics,
    "openapi": openapi,
    "upgrade": upgrade,
    "chunk": chunk,
    "refused-chunk": refused_chunk,
    "trailer": trailer,
    "clip": clip,
    "churn": churn,
    "resume": resume,
    "tickets": tickets,
    "voices": voices,
    "unread-answers": unread_answers,
    "damaged-picture": damaged_picture,
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
