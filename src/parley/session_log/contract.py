"""The contract of a session's log: its entries, its one writer, its readers.

The worker that runs a session is the only writer of its log. Its readers are another worker, which
takes over the log when the first one is lost, and the gateway, which lists and drops logs. A log
consists of append-only entries (`entries.py`, encoded by `state_codec.py`), a state of named parts,
of which an update contains those that changed, and the numbered messages that the client has not
acknowledged. A backend interprets neither entries nor parts.

Each take-over starts a new epoch. A writer of an older epoch can no longer append.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol

import msgspec

from parley.errors import ServiceUnavailable
from parley.protocol.kinds import Kind

LOG_VERSION: Final = 3
"""Increase it when entries mean something else, or a session or a model draws something else from
them: workers continue only logs of their own version. See tests/worker/test_recorded_logs.py."""

ENTRY_LENGTH_BYTES: Final = 4
"""Size of the length in front of each entry of a log."""

AppendResult = Literal["stored", "unavailable", "refused", "fenced", "dropped", "full"]
"""Result of an update.

- stored: another process can read it.
- unavailable: the backend does not answer; a later update may be stored.
- refused: the backend answers with an error: it is full, or read-only. That may last.
- fenced: another worker has taken over the log.
- dropped: the gateway removed the log.
- full: the disk has no room; nothing is stored any more.
"""


class LogUnreadable(ServiceUnavailable):
    """The log of a session is missing, damaged or already taken over."""


class LoggedSession(msgspec.Struct, frozen=True):
    """The session of a log: what a gateway needs to find it another worker.

    Args:
        log_id: id of its log: that of its first lease.
        lease_id: id of the lease under which its worker runs it.
        fingerprint: version, model and log version that a worker must have to continue it.
        note: the gateway's own notes, as it sent them with the lease (`LeaseNote` as JSON).
    """

    log_id: str
    lease_id: str
    session_id: str
    kind: Kind
    dialect: str
    worker_id: str
    worker_url: str
    worker_pid: int
    fingerprint: str
    note: str = ""


class StoredOutput(msgspec.Struct, frozen=True, array_like=True):
    """A numbered message of a session to its client."""

    seq: int
    data: bytes
    is_text: bool

    @classmethod
    def of(cls, seq: int, frame: str | bytes) -> StoredOutput:
        """The message as it was sent."""
        is_text = isinstance(frame, str)
        return cls(seq, frame.encode() if isinstance(frame, str) else frame, is_text)

    @property
    def frame(self) -> str | bytes:
        return self.data.decode() if self.is_text else self.data


@dataclass(frozen=True, slots=True)
class LogUpdate:
    """One append. It is stored whole or not at all.

    Args:
        is_whole: True: replaces the whole content of the log.
        is_tail_whole: True: replaces the state and the messages; also set if `is_whole`.
        entries: new entries, each with its length in front.
        state: parts of the state that have changed; an empty part was removed. None: no change.
        outputs: new messages to the client.
        settled: the client has received all messages up to this number.
    """

    is_whole: bool
    is_tail_whole: bool
    entries: bytes
    state: Mapping[str, bytes] | None
    outputs: tuple[StoredOutput, ...]
    settled: int


@dataclass(slots=True)
class LogTail:
    """State and unacknowledged messages of a log, collected from its updates."""

    state: dict[str, bytes] = field(default_factory=dict)
    outputs: deque[StoredOutput] = field(default_factory=deque)

    def apply(self, update: LogUpdate) -> None:
        if update.is_tail_whole:
            self.state.clear()
            self.outputs.clear()
        self.state |= update.state or {}
        self.outputs += update.outputs
        while self.outputs and self.outputs[0].seq <= update.settled:
            self.outputs.popleft()


@dataclass(frozen=True, slots=True)
class LogContents:
    """Content of a log when it was taken over."""

    session: LoggedSession
    entries: bytes
    state: dict[str, bytes]
    outputs: tuple[StoredOutput, ...]


@dataclass(frozen=True, slots=True)
class StoredLog:
    """A log as the gateway lists it.

    Args:
        age_s: seconds since its last update.
        has_writer: True if the process that writes it is alive.
        ran_s: seconds since its first update; None: unknown.
    """

    session: LoggedSession
    size_bytes: int
    age_s: float
    has_writer: bool
    ran_s: float | None = None


class SessionLogWriter(Protocol):
    """The writing end of one log. Belongs to the event loop."""

    on_forgotten: Callable[[], None]
    """Called when the backend may have lost the log: the next update should be whole, and soon."""

    wants_tail: bool
    """True if the log has become much larger than its content: the next update with a state should
    set `is_tail_whole`."""

    def append(self, update: LogUpdate, done: Callable[[AppendResult], None]) -> None:
        """Store an update and call `done`, immediately or later. Append nothing else until then."""
        ...

    def drop(self) -> None:
        """The session has ended: remove the log. Safe to repeat."""
        ...

    def leave(self) -> None:
        """Another worker continues the session: leave the log as it is. Safe to repeat."""
        ...


class SessionLogs:
    """A backend that stores logs. One contract suite tests all backends. This base class stores
    nothing: sessions end with their worker."""

    name = ""
    """Equal for processes that see the same logs; "" for no logs."""
    place = ""
    """Folder or server, for people."""
    space_bytes = math.inf
    """Size of the file system that the logs share with others."""

    def create(self, session: LoggedSession) -> SessionLogWriter | None:
        """Create the writer of a new log; None if sessions are not logged. Nothing is stored before
        its first update."""
        return None

    async def peek(self, log_id: str) -> LogContents:
        """Read a log without taking it over.

        Raises:
            LogUnreadable: there is no such log, or it cannot be read at the moment.
        """
        raise LogUnreadable("Sessions are not logged here.")

    async def take_over(
        self, log_id: str, session: LoggedSession
    ) -> tuple[LogContents, SessionLogWriter]:
        """Read a log and become its only writer, in a new epoch. The log is unchanged until the new
        writer's first update, which must be whole.

        Raises:
            LogUnreadable: there is no such log, it is damaged, or another worker was faster.
        """
        raise LogUnreadable("Sessions are not logged here.")

    async def stored(self) -> list[StoredLog]:
        return []

    async def drop(self, log_id: str) -> None:
        """Remove a log. The result of its writer's next update shows this. Safe to repeat."""

    async def touch(self, log_id: str) -> None:
        """Prevent a log that currently has no writer from expiring."""

    def keep_for(self, window_s: float) -> None:
        """Keep the log of a session whose processes have died long enough for a client that has
        this long to return."""

    def claim(self) -> bool:
        """Become the gateway that lists and removes logs here; returns False if another one is.
        Safe to repeat."""
        return True

    async def close(self) -> None:
        """Release connections and locks."""


def framed(entry: bytes) -> bytes:
    """An entry with its length in front."""
    return len(entry).to_bytes(ENTRY_LENGTH_BYTES, "big") + entry


def split_entries(data: bytes) -> Iterator[bytes]:
    """The entries of `data`, still encoded, without their lengths.

    Raises:
        LogUnreadable: the last one is incomplete.
    """
    at = 0
    while at < len(data):
        start = at + ENTRY_LENGTH_BYTES
        at = start + int.from_bytes(data[at:start], "big")
        if at > len(data):
            raise LogUnreadable("The log of the session is damaged.")
        yield data[start:at]
