"""Reads media in JSON without long calls into C.

A JSON parser holds the interpreter lock while it reads a string: 0.1 s for 100 MB, in any thread.
So long runs of base64 are cut out before the rest is parsed, and decoded later, both in pieces. The
rest (all texts, names, numbers and white space) may have `REST_BYTES`; a message with more text is
refused without being parsed.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any, Final

from parley.errors import InvalidJson, InvalidPayload

WINDOW_BYTES: Final = 4096
"""Run length above which base64 is surely cut out: a run that covers such a stretch of the
message."""

REST_BYTES: Final = 4 << 20
"""Maximum size of a message without long base64: many times the size of a context."""

PREFIX_CHARS: Final = 65_537
"""One more than the maximum length of any text, so that long base64 in place of a text is refused
as too long."""

PIECE_CHARS: Final = 1 << 20
"""A multiple of 4: pieces decode separately. Each takes about 5 ms."""

_ALPHABET: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/="
_HEAD_CHARS: Final = 256

Raw = bytes | bytearray | str


class LongBase64(str):
    """The base64 between two quotes of `raw`, including a `data:` prefix.

    As a `str` it consists of only its first `PREFIX_CHARS`. Only its length, and `partition` at the
    comma of a prefix, refer to the whole. msgspec refuses to encode it; `codec.encode_media` can.
    """

    _raw: Raw
    _start: int
    _stop: int

    @classmethod
    def of(cls, raw: Raw, start: int, stop: int) -> str:
        """The value at `raw[start:stop]`; a plain `str` if it could be a text."""
        if stop - start < PREFIX_CHARS:
            return _ascii(raw[start:stop])
        made = cls(_ascii(raw[start : start + PREFIX_CHARS]))
        made._raw, made._start, made._stop = raw, start, stop
        return made

    def __len__(self) -> int:
        return self._stop - self._start

    def partition(self, sep: str, /) -> tuple[str, str, str]:
        """See `str.partition`; the last part is `LongBase64` again."""
        head, found, _ = str.partition(self, sep)
        if not found:
            return self, "", ""
        return head, found, LongBase64.of(self._raw, self._start + len(head) + 1, self._stop)

    def pieces(self) -> Iterator[str]:
        """The whole value, in pieces of at most `PIECE_CHARS`."""
        for at in range(self._start, self._stop, PIECE_CHARS):
            yield _ascii(self._raw[at : min(at + PIECE_CHARS, self._stop)])


def cut_out(raw: Raw) -> tuple[Raw, dict[str, str]]:
    """The message with a short mark in place of each long base64, and the values of the marks.

    Raises:
        InvalidPayload: it has too much text.
    """
    rest: list[Any] = []
    found: dict[str, str] = {}
    key, done, rest_bytes = secrets.token_hex(16), 0, 0
    for start, stop in _runs(raw):
        mark = f"base64-{key}-{len(found)}"
        found[mark] = LongBase64.of(raw, start, stop)
        rest += [raw[done:start], mark if isinstance(raw, str) else mark.encode()]
        rest_bytes += start - done + len(mark)
        done = stop
        _check_rest(rest_bytes)
    rest_bytes += len(raw) - done
    _check_rest(rest_bytes)
    if not found:
        return raw, found
    rest.append(raw[done:])
    return ("" if isinstance(raw, str) else b"").join(rest), found


def put_back(value: Any, found: dict[str, str]) -> Any:
    """A parsed message with its marks replaced by the long base64.

    Raises:
        InvalidJson: a mark is not in the place of a value.
    """
    left = dict(found)
    waiting: list[Any] = [value]
    while waiting:
        one = waiting.pop()
        items = one.items() if isinstance(one, dict) else enumerate(one)
        for place, item in items:
            if isinstance(item, dict | list):
                waiting.append(item)
            elif isinstance(item, str) and item in left:
                one[place] = left.pop(item)
    if left:
        raise InvalidJson
    return value


class Marks:
    """Replaces long base64 by marks while a message is encoded; `spliced` inserts it."""

    def __init__(self) -> None:
        self.found: dict[bytes, LongBase64] = {}
        self._key = secrets.token_hex(16)

    def __call__(self, value: Any) -> str:
        """An `enc_hook` of msgspec."""
        if not isinstance(value, LongBase64):
            raise NotImplementedError
        mark = f"base64-{self._key}-{len(self.found)}-"
        self.found[mark.encode()] = value
        return mark


def whole(value: Any) -> str:
    """An `enc_hook` of msgspec for messages that normally contain no long base64."""
    if not isinstance(value, LongBase64):
        raise NotImplementedError
    return "".join(value.pieces())


def spliced(encoded: bytes, found: dict[bytes, LongBase64]) -> bytearray:
    """An encoded message with its marks replaced by long base64."""
    whole, done = bytearray(), 0
    places = sorted((encoded.index(mark), mark) for mark in found)
    for at, mark in places:
        whole += encoded[done:at]
        for piece in found[mark].pieces():
            whole += piece.encode()
        done = at + len(mark)
    whole += encoded[done:]
    return whole


def _runs(raw: Raw) -> Iterator[tuple[int, int]]:
    """Positions of long base64, each between two quotes."""
    quote: Any = '"' if isinstance(raw, str) else b'"'
    at, size = 0, len(raw)
    while at + WINDOW_BYTES <= size:
        if raw.find(quote, at, at + WINDOW_BYTES) >= 0:
            at += WINDOW_BYTES
            continue
        start = raw.rfind(quote, max(0, at - WINDOW_BYTES), at) + 1
        stop = raw.find(quote, at + WINDOW_BYTES)
        if stop < 0:
            return
        if start and _is_base64(raw, start, stop):
            yield start, stop
        at = stop + 1


def _is_base64(raw: Raw, start: int, stop: int) -> bool:
    """True if a string consists only of base64, or of a `data:` prefix without escapes and
    base64."""
    head: Any = _ascii(raw[max(0, start - 2) : min(stop, start + _HEAD_CHARS)])
    if start >= 2 and head[0] == "\\":
        return False
    text = head[min(2, start) :]
    if text.startswith("data:"):
        comma = text.find(",")
        if comma < 0 or "\\" in text[:comma]:
            return False
        start += comma + 1
    for at in range(start, stop, 16 * WINDOW_BYTES):
        piece = raw[at : min(at + 16 * WINDOW_BYTES, stop)]
        if not piece.isascii():
            return False
        plain = piece.encode() if isinstance(piece, str) else piece
        if plain.translate(None, _ALPHABET):
            return False
    return True


def _check_rest(size: int) -> None:
    if size > REST_BYTES:
        raise InvalidPayload(
            f"The message has more than {REST_BYTES >> 20} MiB of text outside of base64."
        )


def _ascii(piece: Raw) -> str:
    return piece if isinstance(piece, str) else piece.decode("latin-1")
