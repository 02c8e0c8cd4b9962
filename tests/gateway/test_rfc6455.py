"""The strict cases of RFC 6455 on a client's connection that is joined to a worker's.

What must be answered is compared with the answer; what must be tolerated comes back when the worker
sends it back; what must be refused ends with the close code of RFC 6455, section 7.4.1. Section
numbers in the tests are those of the RFC.
"""

import base64
import os
import struct

import pytest
from tests.gateway.test_connection import open_connection
from tests.support.raw_sockets import raw_client

from parley.transport.framing import FrameReader, Message, parse_close
from parley.transport.limits import Traffic

CONT, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
PROTOCOL, INVALID, POLICY, TOO_LARGE = 1002, 1007, 1008, 1009
LIMIT_BYTES = 1 << 20


def frame(
    opcode: int,
    payload: bytes = b"",
    *,
    fin: bool = True,
    rsv: int = 0,
    masked: bool = True,
    length_form: int = 0,
    claimed: int | None = None,
) -> bytes:
    """One WebSocket frame as a client sends it, or, on purpose, as it must not.

    Args:
        rsv: the three reserved bits.
        length_form: 0 shortest, 16 or 64: that many bits whatever the length.
        claimed: a length that the payload does not have.
    """
    length = len(payload) if claimed is None else claimed
    head = bytes([fin << 7 | rsv << 4 | opcode])
    bit = masked << 7
    if length_form == 64 or (not length_form and length > 0xFFFF):
        head += bytes([bit | 127]) + struct.pack("!Q", length)
    elif length_form == 16 or (not length_form and length > 125):
        head += bytes([bit | 126]) + struct.pack("!H", length)
    else:
        head += bytes([bit | length])
    if not masked:
        return head + payload
    key = os.urandom(4)
    return head + key + bytes(byte ^ key[index % 4] for index, byte in enumerate(payload))


class Raw:
    """A client's connection and that of a worker, joined as in a session."""

    def __init__(self) -> None:
        self.client, self._wire = open_connection(message_bytes=LIMIT_BYTES)
        self._worker, self._passed = open_connection(is_server=False)
        self.client.join(self._worker, Traffic())
        self._worker.join(self.client, Traffic())

    def send(self, *frames: bytes) -> list[tuple[int, bytes]]:
        """All that the client has received once the worker has sent back what it received."""
        self.client.data_received(b"".join(frames))
        while self.client._turn is not None:
            self.client._next_turn()
        reader = FrameReader(masked=True, limit_bytes=1 << 30)
        for event in reader.feed(bytes(self._passed.sent)):
            assert isinstance(event, Message)
            self._worker.data_received(frame(event.opcode, event.payload(), masked=False))
        self._passed.sent.clear()
        return self._wire.frames

    def end(self, *frames: bytes) -> int | None:
        """The code of the close frame that ends the connection, or None if it does not end."""
        self.send(*frames)
        if self.client.closed.done():
            self.client.close()
        closes = [payload for opcode, payload in self._wire.frames if opcode == CLOSE]
        assert len(closes) <= 1
        assert not closes or self._wire.frames[-1][0] == CLOSE, "nothing follows it (5.5.1)"
        return parse_close(closes[0])[0] if closes else None


@pytest.fixture
async def raw() -> Raw:
    return Raw()


def handshake(path: str, *, without: str = "", line: str = "", **changed: str) -> bytes:
    """A client's opening handshake, changed as told."""
    headers = {
        "Host": "localhost",
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Key": base64.b64encode(bytes(16)).decode(),
        "Sec-WebSocket-Version": "13",
    } | {name.replace("_", "-"): value for name, value in changed.items()}
    headers.pop(without, None)
    lines = [line or f"GET {path} HTTP/1.1", *(f"{k}: {v}" for k, v in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode()


def refused(cases: dict[str, bytes], *codes: int) -> None:
    """Every case ends its connection with one of `codes`."""
    ended = {name: Raw().end(stream) for name, stream in cases.items()}
    assert {name: code for name, code in ended.items() if code not in codes} == {}


# 4.2: the opening handshake


async def test_4_2_a_bad_opening_handshake_is_refused_with_http(gateway):
    path = "/ws/duplex/rfc_handshake"
    cases = {
        "no Upgrade": (handshake(path, without="Upgrade"), {400, 404, 426}),
        "no Connection": (handshake(path, without="Connection"), {400, 404, 426}),
        "no key": (handshake(path, without="Sec-WebSocket-Key"), {400}),
        "key of 15 bytes": (
            handshake(path, Sec_WebSocket_Key=base64.b64encode(bytes(15)).decode()),
            {400},
        ),
        "key that is no base64": (handshake(path, Sec_WebSocket_Key="*" * 24), {400}),
        "no version": (handshake(path, without="Sec-WebSocket-Version"), {400, 426}),
        "version 8": (handshake(path, Sec_WebSocket_Version="8"), {400, 426}),
        "version 99": (handshake(path, Sec_WebSocket_Version="99"), {400, 426}),
        "no host": (handshake(path, without="Host"), {400}),
        "HTTP/1.0": (handshake(path, line=f"GET {path} HTTP/1.0"), {400, 426, 505}),
        "POST": (handshake(path, line=f"POST {path} HTTP/1.1"), {400, 405}),
    }
    wrong = {}
    for name, (request, allowed) in cases.items():
        async with raw_client(gateway.gateway.port) as client:
            await client.send(request)
            status = (await client.head()).split()[1]
        if int(status) not in allowed:
            wrong[name] = status

    assert wrong == {}


async def test_4_2_2_the_accept_header_proves_that_the_key_was_read(gateway):
    request = handshake("/ws/duplex/rfc_accept", Sec_WebSocket_Key="dGhlIHNhbXBsZSBub25jZQ==")
    async with raw_client(gateway.gateway.port) as client:
        await client.send(request)
        head = (await client.head()).decode().lower()

    # The sample of section 1.3.
    assert "sec-websocket-accept: s3pplmbitxaq9kygzzhzrbk+xoo=" in head
    assert "sec-websocket-extensions" not in head
    assert "sec-websocket-protocol" not in head


# 5: framing


async def test_5_1_frames_without_a_mask_are_refused():
    cases = {
        f"opcode {opcode}": frame(opcode, b"\x03\xe8" if opcode == CLOSE else b"hi", masked=False)
        for opcode in (TEXT, BINARY, PING, PONG, CLOSE)
    }
    cases["empty"] = frame(TEXT, masked=False)
    cases["second fragment"] = frame(TEXT, b"{", fin=False) + frame(CONT, b"}", masked=False)
    refused(cases, PROTOCOL)


async def test_5_2_reserved_bits_are_refused_on_every_kind_of_frame():
    cases = {
        f"bits {rsv:03b} on opcode {opcode}": frame(opcode, b"x", rsv=rsv)
        for rsv in range(1, 8)
        for opcode in (TEXT, BINARY, PING, PONG, CLOSE)
    }
    cases |= {
        f"bits {rsv:03b} on a continuation": frame(TEXT, b"x", fin=False)
        + frame(CONT, b"y", rsv=rsv)
        for rsv in (1, 2, 4)
    }
    refused(cases, PROTOCOL)


async def test_5_2_reserved_opcodes_are_refused():
    cases = {
        f"opcode {opcode:x}, fin {fin}": frame(opcode, b"x", fin=fin)
        for opcode in (3, 4, 5, 6, 7, 11, 12, 13, 14, 15)
        for fin in (True, False)
    }
    refused(cases, PROTOCOL)


async def test_5_2_lengths_must_be_written_in_the_shortest_form():
    cases = {
        f"{length} bytes in {form} bits": frame(opcode, b"x" * length, length_form=form)
        for opcode, length, form in (
            (TEXT, 0, 16),
            (TEXT, 1, 16),
            (BINARY, 125, 16),
            (TEXT, 0, 64),
            (TEXT, 125, 64),
            (BINARY, 126, 64),
            (BINARY, 65535, 64),
        )
    }
    refused(cases, PROTOCOL)


async def test_5_2_every_form_of_length_is_read(raw):
    for length in (0, 1, 124, 125, 126, 127, 128, 65535, 65536, 65537):
        payload = os.urandom(length)
        assert raw.send(frame(BINARY, payload))[-1] == (BINARY, payload)


async def test_5_2_lengths_over_the_limit_end_with_1009_before_the_bytes_come():
    cases = {
        str(length): frame(BINARY, b"", claimed=length, length_form=64)
        for length in (LIMIT_BYTES + 1, 1 << 32, 1 << 40, (1 << 62) - 1, (1 << 63) - 1)
    }
    cases["in two fragments"] = frame(BINARY, bytes(LIMIT_BYTES // 2), fin=False) + frame(
        CONT, b"", claimed=LIMIT_BYTES // 2 + 1, length_form=64
    )
    refused(cases, TOO_LARGE)


# 5.4: fragmentation


async def test_5_4_fragments_out_of_order_are_refused():
    cases = {
        "continuation of nothing": frame(CONT, b"x"),
        "unfinished continuation of nothing": frame(CONT, b"x", fin=False),
        "text in a text": frame(TEXT, b"x", fin=False) + frame(TEXT, b"y"),
        "binary in a text": frame(TEXT, b"x", fin=False) + frame(BINARY, b"y"),
        "text in a binary": frame(BINARY, b"x", fin=False) + frame(TEXT, b"y", fin=False),
        "continuation after the last": frame(BINARY, b"x", fin=False)
        + frame(CONT, b"y")
        + frame(CONT, b"z"),
        "continuation after a whole message": frame(BINARY, b"x") + frame(CONT, b"y"),
    }
    refused(cases, PROTOCOL)


async def test_5_4_empty_fragments_and_control_frames_in_between_are_tolerated(raw):
    heard = raw.send(
        frame(BINARY, b"", fin=False),
        frame(PING, b"in between"),
        frame(CONT, b"ab", fin=False),
        frame(PONG, b"unasked"),
        frame(CONT, b"", fin=False),
        frame(CONT, b"cd", fin=False),
        frame(CONT, b""),
    )

    assert heard == [(PONG, b"in between"), (BINARY, b"abcd")]


# 5.5: control frames


async def test_5_5_control_frames_are_short_and_whole():
    cases = {
        f"{length} bytes on opcode {opcode}": frame(opcode, b"\x03\xe8" + b"x" * (length - 2))
        for opcode in (PING, PONG, CLOSE)
        for length in (126, 127, 70_000)
    }
    cases |= {
        f"opcode {opcode} in fragments": frame(opcode, b"\x03\xe8", fin=False)
        for opcode in (PING, PONG, CLOSE)
    }
    cases["a ping continued"] = frame(PING, b"a", fin=False) + frame(CONT, b"b")
    refused(cases, PROTOCOL)


async def test_5_5_2_pings_are_answered_in_order_with_their_payload(raw):
    payloads = [b"", b"x", b"\x00\xff\xfe", bytes(124), os.urandom(125)]

    heard = raw.send(*(frame(PING, payload) for payload in payloads))

    assert heard == [(PONG, payload) for payload in payloads]


# 5.5.1 and 7: closing


@pytest.mark.parametrize("code", [*range(1000, 1004), *range(1007, 1015), 3000, 3999, 4000, 4999])
async def test_7_4_a_close_is_answered_with_a_close(raw, code):
    stream = frame(CLOSE, struct.pack("!H", code) + "bye ü".encode())

    assert raw.end(stream) in {code, 1000}


async def test_5_5_1_a_close_without_a_code_is_answered(raw):
    assert raw.end(frame(CLOSE)) in {1000, 1005}


async def test_7_4_codes_that_must_not_travel_are_refused():
    cases = {
        str(code): frame(CLOSE, struct.pack("!H", code))
        for code in (0, 1, 999, 1004, 1005, 1006, 1015, 1016, 1100, 1999, 2000, 2999, 5000, 65535)
    }
    cases["one byte"] = frame(CLOSE, b"\x03")
    refused(cases, PROTOCOL)


async def test_5_5_1_a_reason_must_be_utf_8():
    cases = {
        "broken": frame(CLOSE, b"\x03\xe8\xff\xfe"),
        "cut": frame(CLOSE, b"\x03\xe8" + "ü".encode()[:1]),
        "surrogate": frame(CLOSE, b"\x03\xe8\xed\xa0\x80"),
    }
    refused(cases, PROTOCOL, INVALID)


async def test_7_1_what_follows_a_close_is_ignored_and_the_connection_ends(raw):
    close = frame(CLOSE, struct.pack("!H", 1000))

    assert raw.end(close, frame(BINARY, b"late"), frame(PING, b"late")) in {1000, 1005}


# 8.1: text is UTF-8

INVALID_TEXTS = {
    "a lone continuation byte": b"\x80",
    "two lone continuation bytes": b"\xbf\xbf",
    "a lone start byte": b"\xc3",
    "a start byte before ascii": b"\xc3(",
    "three bytes cut": b"\xe2\x82",
    "three bytes broken": b"\xe2(\xa1",
    "four bytes cut": b"\xf0\x9f\x98",
    "four bytes broken": b"\xf0(\x8c\xbc",
    "overlong slash, two bytes": b"\xc0\xaf",
    "overlong slash, three bytes": b"\xe0\x80\xaf",
    "overlong slash, four bytes": b"\xf0\x80\x80\xaf",
    "overlong NUL": b"\xc0\x80",
    "overlong maximum, two bytes": b"\xc1\xbf",
    "overlong maximum, three bytes": b"\xe0\x9f\xbf",
    "overlong maximum, four bytes": b"\xf0\x8f\xbf\xbf",
    "first surrogate": b"\xed\xa0\x80",
    "last surrogate": b"\xed\xbf\xbf",
    "a pair of surrogates": b"\xed\xa0\xbd\xed\xb8\x80",
    "above the last code point": b"\xf4\x90\x80\x80",
    "five bytes": b"\xf8\x88\x80\x80\x80",
    "six bytes": b"\xfc\x84\x80\x80\x80\x80",
    "byte fe": b"\xfe",
    "byte ff": b"\xff",
}


async def test_8_1_text_that_is_not_utf_8_ends_with_1007():
    cases = {
        name: frame(TEXT, b'{"x":"' + content + b'"}') for name, content in INVALID_TEXTS.items()
    }
    cases |= {
        f"{name}, in fragments": frame(TEXT, b'{"x":"' + content[:1], fin=False)
        + frame(CONT, content[1:] + b'"}')
        for name, content in INVALID_TEXTS.items()
    }
    cases["cut by the end of the text"] = frame(TEXT, b"\xe2\x82")
    refused(cases, INVALID)


async def test_8_1_text_of_every_kind_comes_back_as_it_went(raw):
    texts = [
        "",
        "\x7f",
        "\u0080\u07ff",
        "\u0800\ud7ff\ue000\uffff",
        "\U00010000\U0010ffff",
        "\ufeffwith a mark",
        "κόσμε 你好 שלום 👩\u200d👩\u200d👧",
        "\ufdd0\ufffe non-characters",
    ]
    for text in texts:
        heard = raw.send(frame(TEXT, text.encode()))
        assert heard[-1] == (TEXT, text.encode())


async def test_8_1_a_character_may_be_cut_between_fragments(raw):
    message = "ü€😀".encode()
    for cut in range(1, len(message)):
        fragments = frame(TEXT, message[:cut], fin=False), frame(CONT, message[cut:])
        assert raw.send(*fragments)[-1] == (TEXT, message)
