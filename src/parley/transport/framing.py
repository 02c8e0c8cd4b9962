"""WebSocket frames as bytes.

Sans-IO. A data message in one frame is returned as exactly the bytes that were received, so a relay
can forward it unchanged. That includes the mask: a client's frames already have a mask and its key,
which is exactly what the gateway, as the worker's client, has to send. Fragments are merged into
one frame. Control frames are parsed here, because ping, pong and close belong to one hop.

Input of clients is checked as it arrives: text must be UTF-8, and its commas are counted, because a
JSON parser needs time and memory for every item, and no useful message has that many. Source: RFC
6455, sections 5 and 8.1.
"""

from __future__ import annotations

import codecs
import os
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

try:
    from websockets.speedups import apply_mask
except ImportError:  # platforms for which websockets has no compiled extension
    from websockets.utils import apply_mask

LARGE_BYTES = 1 << 20
"""Messages above this size are claimed as they arrive."""

ITEMS_LIMIT = 100_000
"""Maximum number of commas in one text message of a client. Base64 has none, and prose with so many
is longer than any context."""

FRAGMENTS_FREE = 256
FRAGMENT_BYTES = 32
"""Number of free fragments per message, and minimum bytes per further fragment."""

SMALL_FRAGMENT_BYTES = 64
"""Fragments below this size are counted like messages; see `FrameReader.small_frames`."""

SMALL_MESSAGE_BYTES = 16 << 10
"""Messages below this size are limited by number, others by bytes."""

_SMALL_PIECE_BYTES = 16 << 10
_MERGED_PIECE_BYTES = 64 << 10
_OPENED_BYTES = 1 << 20

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0x0, 0x1, 0x2, 0x8, 0x9, 0xA

NO_MASK = bytes(4)
"""A mask key that changes nothing."""

_WHOLE_TEXT = 0x80 | TEXT
_WHOLE = frozenset((_WHOLE_TEXT, 0x80 | BINARY))
"""First bytes of unfragmented data frames."""

Bytes = bytes | bytearray | memoryview


class FrameError(Exception):
    """The peer violated the framing rules; the connection ends with `code`."""

    def __init__(self, code: int, sentence: str) -> None:
        super().__init__(sentence)
        self.code = code


class Message(msgspec.Struct, frozen=True, gc=False):
    """One whole data message, still in its frame.

    `parts` are consecutive wire bytes, header included; `size` counts payload bytes.
    """

    opcode: int
    parts: Sequence[Bytes]
    size: int

    @classmethod
    def client_text(cls, payload: bytearray) -> Message:
        """A text message of a client, made without copying its payload."""
        return client_message(TEXT, payload)

    @property
    def is_text(self) -> bool:
        return self.opcode == TEXT

    def payload(self) -> bytes:
        """The content, unmasked and joined. A copy, made only if a message is read."""
        return _open(self.parts[0] if len(self.parts) == 1 else b"".join(self.parts))

    def large_payload(self) -> bytearray:
        """The same, made in pieces, so that in a thread it does not block the interpreter for
        long."""
        begin, key = _payload_at(self.parts[0])
        plain, at = bytearray(self.size), 0
        for part in self.parts:
            whole = memoryview(part)[begin:]
            begin = 0
            for start in range(0, len(whole), _OPENED_BYTES):
                piece = whole[start : start + _OPENED_BYTES]
                if key:
                    turned = at % 4
                    piece = memoryview(apply_mask(piece, key[turned:] + key[:turned]))
                plain[at : at + len(piece)] = piece
                at += len(piece)
        return plain


@dataclass(frozen=True, slots=True)
class Control:
    """A ping, pong or close frame."""

    opcode: int
    payload: bytes


class FrameReader:
    """Cuts a byte stream into messages.

    Args:
        masked: True if the peer must mask (at the server's end).
        checks_text: True if text must be UTF-8 within the limits for parsing.
        limit_bytes: maximum payload of one message; beyond it `FrameError` 1009.
        claim: called as a large message arrives, with the number of further bytes; together they
            are the message's size. May raise `FrameError`.
    """

    def __init__(
        self,
        *,
        masked: bool,
        limit_bytes: int,
        checks_text: bool = True,
        claim: Callable[[int], None] = lambda size: None,
    ) -> None:
        self.limit_bytes = limit_bytes
        self.control_frames = 0
        """Number of pings, pongs and close frames."""
        self.small_frames = 0
        """Number of small messages and fragments, which cost time but transport little data."""
        self._claim = claim
        self._masked = masked
        self._checks_text = masked and checks_text
        self._data = b""
        self._at = 0
        self._error: FrameError | None = None
        self.is_behind = False
        """True if `read` stopped on request before the end of the data."""
        self._frame_left = 0
        self._is_last_frame = False
        self._key = b""
        self.opcode = 0
        """Opcode of the message that has arrived in part; 0 between messages."""
        self._fragments = 0
        self._parts: list[Bytes] = []
        self._merged: bytearray | None = None
        self._size = self._claimed_bytes = 0
        self._text: _TextCheck | None = None

    def whole_bytes(self, data: bytes) -> int:
        """Fast path for `data` of the socket that is exactly one unfragmented data frame, which is
        the usual case for audio: returns its payload size. Returns 0 and does nothing if it is
        anything else, or needs further checks: use `add` and `read` then.

        It makes the same checks as `read`, without its state, in a third of the time.
        """
        end = len(data)
        if self._data or self.opcode or end < 4 or data[0] not in _WHOLE:
            return 0
        second = data[1]
        length, header = second & 0x7F, 2
        if length == 126:
            length, header = int.from_bytes(data[2:4], "big"), 4
        elif length == 127:
            length, header = int.from_bytes(data[2:10], "big"), 10
        if second & 0x80:
            header += 4
        is_usual = (
            header + length == end
            and (second >= 0x80) is self._masked
            and length <= min(LARGE_BYTES, self.limit_bytes)
            and second & 0x7F == (length if length < 126 else 126 if length <= 0xFFFF else 127)
        )
        if not is_usual:
            return 0
        if self._checks_text and data[0] == _WHOLE_TEXT:
            plain = apply_mask(memoryview(data)[header:], data[header - 4 : header])
            if not plain.isascii() or (length > ITEMS_LIMIT and commas(plain) > ITEMS_LIMIT):
                return 0
        return length

    def feed(self, data: bytes) -> list[Message | Control]:
        """`add` and `read` in one call."""
        self.add(data)
        return self.read()

    def add(self, data: bytes) -> None:
        """Add data from the socket."""
        self._data = self._data[self._at :] + data if self._at < len(self._data) else data
        self._at = 0

    def read(self, most_frames: int | None = None) -> list[Message | Control]:
        """Complete messages, of a limited number of frames.

        Raises:
            FrameError: the rest of the stream is unusable. Earlier messages were returned before.
        """
        if self._error is not None:
            raise self._error
        events: list[Message | Control] = []
        try:
            self.is_behind = self._read(events, most_frames)
        except FrameError as error:
            if not events:
                raise
            self._error, self.is_behind = error, True
        if self._at == len(self._data):
            self._data, self._at = b"", 0
        return events

    @property
    def arrived_bytes(self) -> int:
        """Number of bytes of the unfinished message that have arrived."""
        return self._size - self._frame_left

    def _read(self, events: list[Message | Control], most_frames: int | None) -> bool:
        """True if it stopped at `most_frames`."""
        data, end = self._data, len(self._data)
        view = memoryview(data)
        frames = 0
        while self._at < end:
            if self._frame_left:
                stop = min(self._at + self._frame_left, end)
                piece = data if stop - self._at == end else view[self._at : stop]
                taken, self._at = stop - self._at, stop
                self._take(piece, taken, events, header_bytes=0)
                continue
            if most_frames is not None and frames >= most_frames:
                return True
            begin = self._at
            header_bytes, payload_bytes, opcode = self._header(data, begin, end)
            if not header_bytes:
                return False
            frames += 1
            if opcode >= CLOSE:
                stop = begin + header_bytes + payload_bytes
                if stop > end:
                    return False
                self.control_frames += 1
                self._at = stop
                events.append(Control(opcode, _open(data[begin:stop])))
                continue
            self._begin(opcode, payload_bytes, is_last=bool(data[begin] & 0x80))
            if self._masked:
                self._key = data[begin + header_bytes - 4 : begin + header_bytes]
            self._frame_left = payload_bytes
            taken = min(payload_bytes, end - begin - header_bytes)
            self._at = begin + header_bytes + taken
            self._take(view[begin : self._at], taken, events, header_bytes=header_bytes)
        return False

    def _header(self, data: bytes, position: int, end: int) -> tuple[int, int, int]:
        """Header length, payload length and opcode at `position`; zeros if data is missing."""
        if end - position < 2:
            return 0, 0, 0
        first, second = data[position], data[position + 1]
        if first & 0x70:  # no extension was negotiated (5.2)
            raise FrameError(1002, "The reserved bits of a frame must be 0.")
        opcode = first & 0x0F
        if opcode not in (CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG):
            raise FrameError(1002, f"Opcode {opcode} is not defined.")
        if bool(second & 0x80) != self._masked:  # 5.1
            raise FrameError(1002, f"Frames must{'' if self._masked else ' not'} be masked.")
        length, header, least = second & 0x7F, 2, 0
        if opcode >= CLOSE and (length > 125 or not first & 0x80):  # 5.5
            raise FrameError(1002, "A control frame must be whole and have at most 125 bytes.")
        if length == 126:
            header = 4
            if end - position < header:
                return 0, 0, 0
            (length,) = struct.unpack_from("!H", data, position + 2)
            least = 126
        elif length == 127:
            header = 10
            if end - position < header:
                return 0, 0, 0
            (length,) = struct.unpack_from("!Q", data, position + 2)
            least = 1 << 16
        if length < least:  # "the minimal number of bytes MUST be used" (5.2)
            raise FrameError(1002, "The length is not encoded in its shortest form.")
        header += 4 if self._masked else 0
        if end - position < header:
            return 0, 0, 0
        return header, length, opcode

    def _begin(self, opcode: int, payload_bytes: int, *, is_last: bool) -> None:
        if (opcode == CONTINUATION) != bool(self.opcode):  # 5.4
            here = "no message" if opcode == CONTINUATION else "another message"
            raise FrameError(1002, f"A frame of opcode {opcode} arrived while {here} was open.")
        if not self.opcode:
            self.opcode = opcode
            self._text = _TextCheck() if self._checks_text and opcode == TEXT else None
            self._merged = None if is_last else bytearray()
            self._fragments = 0
        self._size += payload_bytes
        if self._size > self.limit_bytes:
            raise FrameError(1009, f"The message exceeds {self.limit_bytes} bytes.")
        self._fragments += 1
        if (
            self._merged is not None
            and self._fragments > FRAGMENTS_FREE + self._size // FRAGMENT_BYTES
        ):
            raise FrameError(1008, "The fragments of the message are too small.")
        limit = SMALL_MESSAGE_BYTES if is_last else SMALL_FRAGMENT_BYTES
        self.small_frames += (self._size if is_last else payload_bytes) < limit
        self._is_last_frame = is_last

    def _take(
        self,
        piece: Bytes,
        payload_bytes: int,
        events: list[Message | Control],
        *,
        header_bytes: int,
    ) -> None:
        """Take `payload_bytes` of a frame after its header or its previous piece."""
        self._frame_left -= payload_bytes
        if self._size > LARGE_BYTES:
            # Not the announced size: it costs the peer nothing.
            arrived_bytes = self.arrived_bytes
            self._claim(arrived_bytes - self._claimed_bytes)
            self._claimed_bytes = arrived_bytes
        is_whole = self._frame_left == 0 and self._is_last_frame
        if self._text is not None or self._merged is not None:
            plain = self._opened(piece[header_bytes:] if header_bytes else piece)
            if self._text is not None:
                self._text.check(plain, is_last=is_whole)
            if self._merged is not None:
                self._merged += plain
        if self._merged is None:
            self._keep(piece)
        if is_whole:
            if self._merged is None:
                events.append(Message(self.opcode, self._parts, self._size))
            elif self._masked:
                events.append(client_message(self.opcode, self._merged))
            else:
                header = _frame_header(self.opcode, self._size, mask=False)
                events.append(Message(self.opcode, (header, self._merged), self._size))
            self._parts, self._merged, self._size, self.opcode = [], None, 0, 0
            self._claimed_bytes = 0

    def _opened(self, piece: Bytes) -> Bytes:
        """A piece of the current frame, unmasked; the key is rotated to the start of the next
        one."""
        if not self._masked:
            return piece
        plain = apply_mask(piece, self._key)
        turned = len(piece) % 4
        if turned:
            self._key = self._key[turned:] + self._key[:turned]
        return plain

    def _keep(self, piece: Bytes) -> None:
        """Join small pieces: the overhead of each would exceed its size, and a view of it would
        keep the whole read buffer alive."""
        parts = self._parts
        if len(piece) >= _SMALL_PIECE_BYTES:
            parts.append(piece)
            return
        last = parts[-1] if parts else None
        if isinstance(last, bytearray) and len(last) < _MERGED_PIECE_BYTES:
            last += piece
        else:
            parts.append(bytearray(piece))


class _TextCheck:
    """Checks in pieces that a client's text is UTF-8 and within the limits."""

    def __init__(self) -> None:
        self._decoder: codecs.IncrementalDecoder | None = None
        self._items = 0

    def check(self, piece: Bytes, *, is_last: bool) -> None:
        """Check the next piece.

        Raises:
            FrameError: 1007 or 1009.
        """
        assert isinstance(piece, (bytes, bytearray))
        self._items += commas(piece)
        if self._items > ITEMS_LIMIT:
            raise FrameError(1009, f"The message exceeds {ITEMS_LIMIT} items.")
        if self._decoder is None:
            if piece.isascii():
                return
            self._decoder = codecs.getincrementaldecoder("utf-8")()
        try:
            self._decoder.decode(piece, is_last)
        except UnicodeDecodeError:
            raise FrameError(1007, "Text must be UTF-8.") from None


FEW_COMMAS = 64


def commas(piece: bytes | bytearray) -> int:
    """Number of commas in `piece`.

    Audio has few: each is found with `memchr`, about thirty times as fast as `count`, which is used
    if there are many.
    """
    found, at = 0, piece.find(b",")
    while at >= 0:
        found += 1
        if found == FEW_COMMAS:
            return found + piece.count(b",", at + 1)
        at = piece.find(b",", at + 1)
    return found


def frame(opcode: int, payload: bytes, *, mask: bool) -> bytes:
    """An unfragmented frame; `mask` at the client's end."""
    header = _frame_header(opcode, len(payload), mask=mask)
    if not mask:
        return header + payload
    key = os.urandom(4)
    return header + key + apply_mask(payload, key)


def client_message(opcode: int, payload: bytearray) -> Message:
    """A client's message, made without copying its payload.

    Its mask key is zero, which changes nothing. Masking protects proxies from scripts, which is not
    needed between gateway and worker.
    """
    header = _frame_header(opcode, len(payload), mask=True) + NO_MASK
    return Message(opcode, (header, payload), len(payload))


def _frame_header(opcode: int, length: int, *, mask: bool) -> bytes:
    """Header of an unfragmented frame, without the key."""
    bit = 0x80 if mask else 0
    if length < 126:
        return struct.pack("!BB", 0x80 | opcode, bit | length)
    if length < 65536:
        return struct.pack("!BBH", 0x80 | opcode, bit | 126, length)
    return struct.pack("!BBQ", 0x80 | opcode, bit | 127, length)


def close_payload(code: int, reason: str) -> bytes:
    """Content of a close frame (RFC 6455, 5.5.1); the reason is cut to 123 bytes at a character
    boundary."""
    return struct.pack("!H", code) + reason.encode()[:123].decode(errors="ignore").encode()


def parse_close(payload: bytes) -> tuple[int, str]:
    """Code and reason of a close frame; 1005 if it has none.

    Raises:
        FrameError: 1002 for one byte or an invalid code, 1007 for invalid text.
    """
    if not payload:
        return 1005, ""
    if len(payload) < 2:
        raise FrameError(1002, "A close frame must be empty or have a code of 2 bytes, got 1.")
    (code,) = struct.unpack_from("!H", payload)
    if not can_travel(code):
        raise FrameError(1002, f"Close code {code} must not be sent.")
    try:
        return code, payload[2:].decode()
    except UnicodeDecodeError:
        raise FrameError(1007, "The reason of a close frame must be UTF-8.") from None


def can_travel(code: int) -> bool:
    """True if a close code may appear on the wire (RFC 6455, 7.4)."""
    return 1000 <= code <= 1003 or 1007 <= code <= 1014 or 3000 <= code <= 4999


def _payload_at(data: Bytes) -> tuple[int, bytes]:
    """Offset of a frame's payload, and its mask key, if it has one."""
    length = data[1] & 0x7F
    begin = 4 if length == 126 else 10 if length == 127 else 2
    if not data[1] & 0x80:
        return begin, b""
    key = bytes(data[begin : begin + 4])
    return begin + 4, b"" if key == NO_MASK else key


def _open(data: Bytes) -> bytes:
    """The payload of one frame, unmasked."""
    begin, key = _payload_at(data)
    payload = memoryview(data)[begin:]
    return apply_mask(payload, key) if key else bytes(payload)
