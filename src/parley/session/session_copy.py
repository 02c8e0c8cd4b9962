"""The copy of a session that is kept beside its gateway, so that another worker can go on with it.

What was done (inputs, and what came of them) is a log that grows; what is remembered besides is one
state, replaced each time. One part is under way at a time, and what a client is told waits for the
part that tells of it. Where there is no gateway nothing waits; the next one is sent everything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from parley import logs
from parley.protocol.control import CopiedOutput, CopyPart
from parley.session import state_codec
from parley.session.journal import JournalEntry

QUIET_S: Final = 1.0
"""Where there is nothing to tell, the state is brought up to date no more often than this."""

LIGHTEN_BYTES: Final = 2 << 20
LIGHTEN_GROWTH: Final = 1.25
"""A log of this size (a minute of sound at 16 kHz) is relieved of sound that nobody needs any
more, and again when it is so much larger, and so many times as large, as it was then."""
LENGTH_BYTES: Final = 4
"""Of each entry of a log, in front of it."""
LIGHTEN_TAIL: Final = 64
"""So many of the newest entries are looked at again the next time."""

_log = logs.get(__name__)


class CopyChannel(Protocol):
    """The way to the gateway and its copy store."""

    @property
    def is_open(self) -> bool:
        """Whether there is a gateway."""
        ...

    def send(self, part: CopyPart) -> None:
        """Send a part; `SessionCopy.stored` is called when it has arrived."""
        ...


class NoCopies:
    """There is no gateway."""

    is_open = False

    def send(self, part: CopyPart) -> None:
        """Nobody takes it."""


@dataclass(frozen=True, slots=True)
class CopyContext:
    """What all copies of a worker have alike.

    Args:
        fingerprint: what a worker must be to go on with a copy: version and model.
        limit_bytes: most that one copy may take; 0: there are none.
    """

    channel: CopyChannel
    fingerprint: str
    limit_bytes: int


@dataclass(slots=True)
class _UnderWay:
    number: int
    last_seq: int
    received: int


@dataclass(slots=True, eq=False)
class SessionCopy:
    """See the module's text. Belongs to the event loop.

    Args:
        head: the first entry of the log.
        stored: called when what was under way has arrived, or need not be waited for.
    """

    lease_id: str
    context: CopyContext
    head: Callable[[], Any]
    stored: Callable[[], None] = lambda: None
    lighten: Callable[[list[Any]], list[Any]] = list
    """The entries of a log without what is not needed any more, see `RebuildableRunner`."""
    is_on: bool = False
    has_given_up: bool = False
    """Whether there will be no copy of this session."""
    released_seq: int = 0
    """Messages up to this one may be told."""
    received: int = 0
    """So many of the client's messages are in the copy."""
    taken_received: int = 0
    """... or will be with what is under way."""
    _number: int = 0
    _series: int = 0
    _pending: list[bytes] = field(default_factory=list)
    """Entries with their lengths in front, as in `_kept`: those that were sent."""
    _kept: list[bytes] = field(default_factory=list)
    _kept_bytes: int = 0
    _light: int = 1
    """So many entries, the head the first of them, are not looked at again."""
    _lighten_at: int = field(default_factory=lambda: LIGHTEN_BYTES)
    _taken_seq: int = 0
    _under_way: _UnderWay | None = None

    def log(self, entry: Any) -> None:
        """Something was done."""
        if self.has_given_up:
            return
        if not self._kept_bytes:
            self._add(self.head())
        self._add(entry)
        if self._kept_bytes > self._lighten_at and self._under_way is None:
            self._shed()
        if self._kept_bytes > self.context.limit_bytes:
            self.give_up("too large")

    def _add(self, entry: Any) -> None:
        data = _framed(state_codec.encode(entry))
        self._pending.append(data)
        self._kept_bytes += len(data)

    def _shed(self) -> None:
        """Relieve the log of what is not needed any more. The gateway is sent it anew."""
        before = self._kept_bytes
        pending = len(self._pending)
        log = [*self._kept, *self._pending]
        tail = [state_codec.decode(_content(each)) for each in log[self._light :]]
        # Most of the work, for what is as it was.
        encoded = {id(each): data for each, data in zip(tail, log[self._light :], strict=True)}
        log[self._light :] = [
            encoded.get(id(each)) or _framed(state_codec.encode(each))
            for each in self.lighten(tail)
        ]
        self._light = max(self._light, len(log) - LIGHTEN_TAIL)
        count = len(log) - pending
        self._kept, self._pending = log[:count], log[count:]
        self._kept_bytes = sum(map(len, log))
        room = max(LIGHTEN_BYTES, LIGHTEN_GROWTH * self._kept_bytes - self._kept_bytes)
        self._lighten_at = self._kept_bytes + round(room)
        if self._kept_bytes < before:
            self._number = 0
        _log.info("copy of the session relieved", bytes=self._kept_bytes, before=before)

    def begin(self, seq: int) -> None:
        """From message `seq` + 1 on, what the client is told has to be in the copy."""
        if self._kept_bytes and not self.has_given_up:
            self.is_on = True
            self.released_seq = self._taken_seq = seq

    def give_up(self, why: str) -> None:
        """There is no copy from here on."""
        if self.is_on:
            _log.info("no copy of the session", why=why, bytes=self._kept_bytes)
        self.is_on = False
        self._pending.clear()
        self._kept.clear()
        self._under_way = None
        self.has_given_up = True
        self.stored()

    def adopt(self, log: Iterable[bytes], seq: int) -> None:
        """Go on from the copy that another worker made."""
        self._pending = [_framed(each) for each in _split(log)]
        self._kept_bytes = sum(map(len, self._pending))
        self.is_on = True
        self.released_seq = self._taken_seq = seq

    @property
    def is_waiting(self) -> bool:
        """Whether a part is under way."""
        return self._under_way is not None

    @property
    def begins_anew(self) -> bool:
        """Whether the next part is the first of a series: nothing is there yet, or what is there is
        to be replaced."""
        return self._number == 0

    @property
    def is_waited_for(self) -> bool:
        """Whether what the client is told waits for the gateway."""
        return self.is_on and self.context.channel.is_open

    def released(self, last_seq: int) -> int:
        """Up to which message the client may be told."""
        return self.released_seq if self.is_waited_for else last_seq

    def send(
        self,
        outputs: Iterable[JournalEntry],
        last_seq: int,
        *,
        state: bytes | None,
        received: int,
        settled: int,
    ) -> None:
        """Send what is new; nothing may be under way.

        Args:
            outputs: all that is kept for the client.
            state: None where it cannot be told now: the log waits for it.
        """
        is_first = self._number == 0
        log = b""
        if state is not None:
            log = b"".join(self._pending)
            if is_first:
                log = b"".join((*self._kept, log))
            self._kept += self._pending
            self._pending = []
            self.taken_received = received
        elif is_first:
            return
        since = 0 if is_first else self._taken_seq
        self._number += 1
        self._series += is_first
        self._under_way = _UnderWay(self._number, last_seq, self.taken_received)
        self._taken_seq = last_seq
        self.context.channel.send(
            CopyPart(
                lease_id=self.lease_id,
                number=self._number,
                fingerprint=self.context.fingerprint,
                log=log,
                state=state,
                outputs=tuple(
                    CopiedOutput.of(one.seq, one.text) for one in outputs if one.seq > since
                ),
                settled=settled,
                series=self._series,
            )
        )

    def arrived(self, number: int, *, is_kept: bool, series: int = 0) -> None:
        """A part was answered. `series`: of which; 0: it was not told."""
        if series and series != self._series:
            return
        if not is_kept:
            self.give_up("not kept")
            return
        under_way = self._under_way
        if under_way is None or under_way.number != number:
            return
        self._under_way = None
        self.released_seq, self.received = under_way.last_seq, under_way.received
        self.stored()

    def moved(self) -> None:
        """Parts go another way from here on: nothing is there yet."""
        self._number = 0
        self._under_way = None
        self.stored()


def entries(log: Iterable[bytes]) -> list[Any]:
    """What was logged, of pieces in their order.

    Raises:
        InvalidPayload: it cannot be read.
    """
    return [state_codec.decode(each) for each in _split(log)]


def _framed(entry: bytes) -> bytes:
    """With its length in front: pieces of a log are joined."""
    return len(entry).to_bytes(LENGTH_BYTES, "big") + entry


def _content(framed: bytes) -> bytes:
    return framed[LENGTH_BYTES:]


def _split(log: Iterable[bytes]) -> list[bytes]:
    """Entries, still encoded."""
    data, found, at = b"".join(log), [], 0
    while at < len(data):
        begin = at + LENGTH_BYTES
        at = begin + int.from_bytes(data[at:begin], "big")
        found.append(data[begin:at])
    return found
