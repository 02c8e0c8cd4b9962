"""Reads media in JSON without one long call into C.

A reader of JSON keeps the interpreter for as long as a string is: 0.1 s for 100 MB, in any thread.
So long runs of base64 are cut out before the rest is parsed, piece by piece, and decoded piece by
piece later. What is left (all texts, names, numbers and white space) may have `REST_BYTES`: a
message whose text alone is larger is refused unread.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any, Final

from parley.errors import InvalidJson, InvalidPayload

WINDOW_BYTES: Final = 4096
"""A run of base64 is cut out if it covers one such stretch of the message at least."""

REST_BYTES: Final = 4 << 20
"""Everything but long base64, in one message: many times what a context holds."""

PREFIX_CHARS: Final = 65_537
"""One more than any text may have, so that long base64 in the place of a text is refused as too
long."""

PIECE_CHARS: Final = 1 << 20
"""A multiple of 4: pieces decode separately. Each takes about 5 ms."""

_ALPHABET: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/="
_HEAD_CHARS: Final = 256

Raw = bytes | bytearray | str


class LongBase64(str):
    """The base64 between two quotes of `raw`, a `data:` head included.

    As a `str` it is its own first `PREFIX_CHARS`. Its length and `partition` at the comma of a head
    refer to the whole; nothing else does. msgspec refuses to encode it; `codec.encode_media` can.
    """

    _raw: Raw
    _start: int
    _stop: int

    @classmethod
    def of(cls, raw: Raw, start: int, stop: int) -> str:
        """What is at `raw[start:stop]`; a plain `str` if it could be a text."""
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
        """All of it, in pieces of at most `PIECE_CHARS`."""
        for at in range(self._start, self._stop, PIECE_CHARS):
            yield _ascii(self._raw[at : min(at + PIECE_CHARS, self._stop)])


def cut_out(raw: Raw) -> tuple[Raw, dict[str, str]]:
    """The message with a short mark in the place of each long base64, and what the marks stand for.

    Raises:
        InvalidPayload: it has more text than any message needs.
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
    """A parsed message with its long base64 where the marks are.

    Raises:
        InvalidJson: a mark is somewhere else than in the place of a value.
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
    """Puts marks into the place of long base64 while a message is encoded, for `spliced`."""

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
    """An `enc_hook` of msgspec for messages that should not hold long base64, but may."""
    if not isinstance(value, LongBase64):
        raise NotImplementedError
    return "".join(value.pieces())


def spliced(encoded: bytes, found: dict[bytes, LongBase64]) -> bytearray:
    """An encoded message with long base64 in the place of its marks."""
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
    """Where long base64 is, between two quotes each."""
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
    """True if a string is nothing but base64 behind a `data:` head, and has no escape before it."""
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
