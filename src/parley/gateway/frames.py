"""WebSocket frames as bytes: where one ends and the next begins.

Sans-IO and blind to content. Data messages come out whole, as the very bytes that came in, so a
relay can pass them on untouched. That includes the mask: a client's frames already carry a mask and
its key, which is exactly what the gateway, being the worker's client, has to send. Only control
frames are opened here, because ping, pong and close belong to one hop. Source: RFC 6455, section 5.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from websockets.frames import apply_mask  # type: ignore[attr-defined]  # C, where it was built

LARGE_BYTES = 1 << 20
"""Messages above this are announced before they are read."""

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0x0, 0x1, 0x2, 0x8, 0x9, 0xA

Bytes = bytes | memoryview


class FrameError(Exception):
    """The peer broke the framing rules; the connection ends with `code`."""

    def __init__(self, code: int, sentence: str) -> None:
        super().__init__(sentence)
        self.code = code


@dataclass(frozen=True, slots=True)
class Message:
    """One whole data message, still in its frames.

    `parts` are consecutive wire bytes, headers included; `size` counts payload bytes.
    """

    opcode: int
    parts: Sequence[Bytes]
    size: int

    @property
    def is_text(self) -> bool:
        return self.opcode == TEXT

    def payload(self) -> bytes:
        """The content, unmasked and joined: a copy, for the few who read messages."""
        return _open(b"".join(self.parts))


@dataclass(frozen=True, slots=True)
class Control:
    """A ping, pong or close frame."""

    opcode: int
    payload: bytes


class FrameReader:
    """Cuts a byte stream into messages.

    Args:
        masked: whether the peer must mask (true at the server's end).
        limit_bytes: largest payload of one message; beyond it `FrameError` 1009.
        claim: asked for that many bytes before a large message is read; may raise `FrameError`.
    """

    def __init__(
        self,
        *,
        masked: bool,
        limit_bytes: int,
        claim: Callable[[int], None] = lambda size: None,
    ) -> None:
        self.limit_bytes = limit_bytes
        self._claim = claim
        self._masked = masked
        self._rest = b""
        self._frame_left = 0
        self._is_last_frame = False
        self._opcode = 0
        self._parts: list[Bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> Sequence[Message | Control]:
        """Take what the socket gave; return what became complete.

        Raises:
            FrameError: the stream is unusable from here on.
        """
        left = self._frame_left
        if left > len(data):
            # The middle of a large frame: nothing to look at.
            self._parts.append(data)
            self._frame_left = left - len(data)
            return ()
        if self._rest:
            data = self._rest + data
            self._rest = b""
        events: list[Message | Control] = []
        view = memoryview(data)
        position, end = 0, len(data)
        while position < end:
            if self._frame_left:
                taken = min(self._frame_left, end - position)
                self._take(view[position : position + taken], taken, events)
                position += taken
                continue
            header_bytes, payload_bytes, opcode = self._header(data, position, end)
            if not header_bytes:
                break
            if opcode >= CLOSE:
                control_end = position + header_bytes + payload_bytes
                if control_end > end:
                    break
                events.append(Control(opcode, _open(data[position:control_end])))
                position = control_end
                continue
            self._begin(opcode, payload_bytes, is_last=bool(data[position] & 0x80))
            taken = min(payload_bytes, end - position - header_bytes)
            stop = position + header_bytes + taken
            self._frame_left = payload_bytes
            self._take(view[position:stop], taken, events)
            position = stop
        self._rest = data[position:]
        return events

    def _header(self, data: bytes, position: int, end: int) -> tuple[int, int, int]:
        """Header length, payload length and opcode at `position`; zeros when more is needed."""
        if end - position < 2:
            return 0, 0, 0
        first, second = data[position], data[position + 1]
        if first & 0x70:
            raise FrameError(1002, "Reserved bits are set.")
        opcode = first & 0x0F
        if opcode not in (CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG):
            raise FrameError(1002, "Unknown opcode.")
        if bool(second & 0x80) != self._masked:
            raise FrameError(1002, "Wrong masking.")
        length, header = second & 0x7F, 2
        if opcode >= CLOSE and (length > 125 or not first & 0x80):
            raise FrameError(1002, "Malformed control frame.")
        if length == 126:
            header = 4
            if end - position < header:
                return 0, 0, 0
            (length,) = struct.unpack_from("!H", data, position + 2)
        elif length == 127:
            header = 10
            if end - position < header:
                return 0, 0, 0
            (length,) = struct.unpack_from("!Q", data, position + 2)
        header += 4 if self._masked else 0
        if end - position < header:
            return 0, 0, 0
        return header, length, opcode

    def _begin(self, opcode: int, payload_bytes: int, *, is_last: bool) -> None:
        if (opcode == CONTINUATION) != bool(self._opcode):
            raise FrameError(1002, "Fragments out of order.")
        self._size += payload_bytes
        if self._size > self.limit_bytes:
            raise FrameError(1009, f"A message may have {self.limit_bytes} bytes.")
        if self._size > LARGE_BYTES:
            self._claim(payload_bytes)
        self._opcode = self._opcode or opcode
        self._is_last_frame = is_last

    def _take(self, piece: Bytes, payload_bytes: int, events: list[Message | Control]) -> None:
        self._parts.append(piece)
        self._frame_left -= payload_bytes
        if self._frame_left == 0 and self._is_last_frame:
            events.append(Message(self._opcode, self._parts, self._size))
            self._parts, self._size, self._opcode = [], 0, 0


def frame(opcode: int, payload: bytes, *, mask: bool) -> bytes:
    """One unfragmented frame; `mask` at the client's end."""
    length = len(payload)
    bit = 0x80 if mask else 0
    if length < 126:
        header = struct.pack("!BB", 0x80 | opcode, bit | length)
    elif length < 65536:
        header = struct.pack("!BBH", 0x80 | opcode, bit | 126, length)
    else:
        header = struct.pack("!BBQ", 0x80 | opcode, bit | 127, length)
    if not mask:
        return header + payload
    key = os.urandom(4)
    return header + key + apply_mask(payload, key)


def close_payload(code: int, reason: str) -> bytes:
    """A close frame's content; the reason is cut to the 123 bytes that fit, at a character."""
    return struct.pack("!H", code) + reason.encode()[:123].decode(errors="ignore").encode()


def parse_close(payload: bytes) -> tuple[int, str]:
    """Code and reason of a close frame; 1005 when it carries none.

    Raises:
        FrameError: 1002 for one byte or a code that must not travel, 1007 for broken text.
    """
    if not payload:
        return 1005, ""
    if len(payload) < 2:
        raise FrameError(1002, "Malformed close frame.")
    (code,) = struct.unpack_from("!H", payload)
    if not can_travel(code):
        raise FrameError(1002, "Close code that must not travel.")
    try:
        return code, payload[2:].decode()
    except UnicodeDecodeError:
        raise FrameError(1007, "The close reason is not UTF-8.") from None


def can_travel(code: int) -> bool:
    """Whether a close code may appear on the wire."""
    return 1000 <= code <= 1003 or 1007 <= code <= 1014 or 3000 <= code <= 4999


def _open(data: bytes) -> bytes:
    """The payload of the whole frames in `data`, unmasked."""
    position, end = 0, len(data)
    pieces: list[bytes] = []
    while position < end:
        second = data[position + 1]
        length = second & 0x7F
        position += 2
        if length == 126:
            (length,) = struct.unpack_from("!H", data, position)
            position += 2
        elif length == 127:
            (length,) = struct.unpack_from("!Q", data, position)
            position += 8
        if second & 0x80:
            key = data[position : position + 4]
            position += 4
            pieces.append(apply_mask(data[position : position + length], key))
        else:
            pieces.append(data[position : position + length])
        position += length
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)
