"""A fake backend of session logs in memory, which records the contents of each log after each
update."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from parley.session_log.contract import (
    AppendResult,
    LogContents,
    LoggedSession,
    LogTail,
    LogUnreadable,
    LogUpdate,
    SessionLogs,
    SessionLogWriter,
)


@dataclass(eq=False)
class FakeSessionLogs(SessionLogs):
    """See the module's docstring.

    Attributes:
        taken: contents of a log after each update, in order.
        updates: all updates.
        dropped: number of times that a writer dropped its log.
        answer: result of updates; None: they are not answered until `release`.
    """

    name: str = "fake:1"
    taken: list[LogContents] = field(default_factory=list)
    updates: list[LogUpdate] = field(default_factory=list)
    answer: AppendResult | None = "stored"
    offered: LogContents | None = None
    waiting: list[Callable[[AppendResult], None]] = field(default_factory=list)
    writers: list[_FakeWriter] = field(default_factory=list)
    dropped: int = 0

    def create(self, session: LoggedSession) -> SessionLogWriter:
        self.writers.append(_FakeWriter(self, session))
        return self.writers[-1]

    async def peek(self, log_id: str) -> LogContents:
        if self.offered is None:
            raise LogUnreadable("Nothing of the session was kept.")
        return self.offered

    async def take_over(
        self, log_id: str, session: LoggedSession
    ) -> tuple[LogContents, SessionLogWriter]:
        if self.offered is None:
            raise LogUnreadable("Nothing of the session was kept.")
        return self.offered, _FakeWriter(self, session)

    def release(self, answer: AppendResult = "stored") -> None:
        """Answer all waiting updates."""
        waiting, self.waiting = self.waiting, []
        for done in waiting:
            done(answer)


class _FakeWriter:
    wants_tail = False

    def __init__(self, owner: FakeSessionLogs, session: LoggedSession) -> None:
        self._owner = owner
        self._session = session
        self._entries = b""
        self._tail = LogTail()
        self.on_forgotten: Callable[[], None] = lambda: None

    def append(self, update: LogUpdate, done: Callable[[AppendResult], None]) -> None:
        owner = self._owner
        owner.updates.append(update)
        self._entries = update.entries if update.is_whole else self._entries + update.entries
        self._tail.apply(update)
        owner.taken.append(
            LogContents(
                self._session, self._entries, dict(self._tail.state), tuple(self._tail.outputs)
            )
        )
        if owner.answer is None:
            owner.waiting.append(done)
        else:
            done(owner.answer)

    def drop(self) -> None:
        """`taken` stays for the test."""
        self._owner.dropped += 1

    def leave(self) -> None:
        """`taken` stays for the test."""
