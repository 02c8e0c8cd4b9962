"""Continues a session of another worker from its log."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Coroutine
from itertools import takewhile
from typing import Any, Final

from parley import logs
from parley.dialects.events import (
    DuplexSetup,
    HalfDuplexSetup,
    InputCommitted,
    ItemCreated,
    SetupChanged,
)
from parley.errors import ServiceUnavailable
from parley.protocol import codec
from parley.protocol.control import RebuildReady, RebuildResult
from parley.session import log as session_log
from parley.session.resumable import ResumableSocket
from parley.session.session import RebuildableRunner, Session
from parley.session.socket import Disconnected
from parley.session_log import state_codec
from parley.session_log.contract import (
    LogContents,
    LoggedSession,
    LogUnreadable,
    SessionLogs,
    SessionLogWriter,
)
from parley.session_log.entries import ItemsSoFar, SessionRequest
from parley.worker.lease import LeasedSlot
from parley.worker.socket import GatewaySocket

READ_S: Final = 10.0
"""Timeout for reading the log."""
REBUILD_S: Final = 120.0
"""Timeout for the replay."""
NEARLY: Final = 2
"""A worker that follows a session has nearly caught up if there were at most this many new
entries."""
FOLLOW_S: Final = 0.5
FOLLOW_REST: Final = 4.0
"""Pause before the log is read again: at least `FOLLOW_S`, and `FOLLOW_REST` times the duration of
the previous reading and replay."""

_log = logs.get(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class SessionHead:
    """The first entry of a log, which identifies the session.

    Args:
        recording_id: of its first part; "" if it is not recorded.
    """

    lease: LeasedSlot
    seed: int
    recording_id: str = ""


class RebuiltSession:
    """See the module's text.

    Args:
        socket: the gateway's; receives the result.
        stored: the backend that has the log.
        logged: the session as this worker will run it.
        follows: True if another worker still runs the session; see `FOLLOW_HEADER`.
    """

    def __init__(
        self, socket: GatewaySocket, stored: SessionLogs, logged: LoggedSession, *, follows: bool
    ) -> None:
        self._socket = socket
        self._stored = stored
        self._logged = logged
        self._follows = follows
        self._contents: LogContents | None = None
        self._writer: SessionLogWriter | None = None
        self._entries: list[Any] = []
        self._done = 0
        """Number of entries that were replayed."""
        self._state: dict[str, Any] = {}
        self.seed = 0
        self.recording_id = ""
        """Id of the recording of the session's first part; "" if it was not recorded."""

    async def read(self, lease: LeasedSlot) -> LeasedSlot:
        """Read the log, and take it over if its worker is lost. Returns the lease, completed with
        what the other worker knew of the session.

        Raises:
            ParleyError: the log cannot be read.
        """
        await (self._look() if self._follows else self._take_over())
        head = self._entries.pop(0)
        if not isinstance(head, SessionHead):
            raise ServiceUnavailable("The log of the session has no beginning.")
        if self._follows and self.has_ended:
            raise ServiceUnavailable("The session has ended.")
        self.seed, self.recording_id = head.seed, head.recording_id
        return dataclasses.replace(
            head.lease,
            lease_id=lease.lease_id,
            log_id=lease.log_id,
            note=lease.note,
            trace=lease.trace,
        )

    async def _look(self) -> None:
        async with _reading():
            self._take(await self._stored.peek(self._logged.log_id))

    async def _take_over(self) -> None:
        async with _reading():
            taken = await self._stored.take_over(self._logged.log_id, self._logged)
        contents, self._writer = taken
        self._take(contents)

    def _take(self, contents: LogContents) -> None:
        """Take over the current content of the log; known entries are kept."""
        known = len(self._entries) + (self._contents is not None)
        self._entries += session_log.decoded(contents.entries, known)
        self._contents, self._state = contents, state_codec.joined(contents.state)
        if not self._state:
            raise ServiceUnavailable("The log of the session has no state: another build wrote it.")

    @property
    def setup(self) -> SessionRequest | None:
        found: SessionRequest | None = None
        for entry in self._entries:
            match entry:
                case DuplexSetup() | HalfDuplexSetup():
                    found = entry
                case ItemsSoFar(setup=setup) | SetupChanged(setup=setup):
                    found = setup
                case _:
                    pass
        return found

    @property
    def unanswered(self) -> list[InputCommitted | ItemCreated]:
        """The newest inputs, if no other entry follows them."""
        inputs = InputCommitted | ItemCreated
        newest = takewhile(lambda entry: isinstance(entry, inputs), reversed(self._entries))
        return list(newest)[::-1]

    @property
    def entries_done(self) -> int:
        """Number of replayed entries that a recording contains, without the setup and the
        `unanswered` ones."""
        unrecorded = DuplexSetup | HalfDuplexSetup | ItemsSoFar
        done = sum(not isinstance(entry, unrecorded) for entry in self._entries)
        done -= len(self.unanswered)
        return done + sum(
            entry.entries_before for entry in self._entries if isinstance(entry, ItemsSoFar)
        )

    @property
    def dialect_name(self) -> str:
        name: str = self._state["dialect_name"]
        return name

    @property
    def has_ended(self) -> bool:
        """True if only the last messages are left of the session."""
        return self._state["closing"] is not None

    async def restore(
        self, socket: ResumableSocket, session: Session, runner: RebuildableRunner
    ) -> None:
        """Take over the other worker's state, and report to the gateway. If the session has ended,
        only its last messages are taken over, which need no slot.

        Raises:
            ParleyError: the session cannot be continued here.
            Disconnected: the gateway has changed its mind.
        """
        began_s = session.clock.monotonic()
        if self._follows:
            await self._follow(runner)
            await self._take_over()
            began_s = session.clock.monotonic()
        if not self.has_ended:
            await self._redo(runner)
            session.restore(self._state)
            await self._in_time(runner.restore(self._state["runner"]))
        assert self._contents is not None
        assert self._writer is not None
        # A session waits for its client only if a gateway knows that it is here: otherwise the next
        # gateway finds the log, and another worker continues from it.
        await self._send(RebuildResult())
        socket.restore(self._state, self._contents, self._writer)
        took_s = round(session.clock.monotonic() - began_s, 3)
        _log.info("session_rebuilt", entries=self._done, took_s=took_s)

    async def _follow(self, runner: RebuildableRunner) -> None:
        """Replay the log, including new entries, until its worker has stopped."""
        stopping = asyncio.create_task(self._socket.receive())
        try:
            is_ready = False
            while not stopping.done():
                began_s, done = asyncio.get_running_loop().time(), self._done
                await self._redo(runner)
                if not is_ready and self._done - done <= NEARLY:
                    is_ready = True
                    await self._send(RebuildReady())
                took_s = asyncio.get_running_loop().time() - began_s
                pause_s = max(FOLLOW_S, FOLLOW_REST * took_s) if is_ready else 0.0
                await asyncio.wait({stopping}, timeout=pause_s)
                # Its writer may be replacing the files that are being read.
                with contextlib.suppress(LogUnreadable):
                    await self._look()
            stopping.result()
        finally:
            stopping.cancel()

    async def _redo(self, runner: RebuildableRunner) -> None:
        fresh, self._done = self._entries[self._done :], len(self._entries)
        await self._in_time(runner.redo(fresh))

    async def _in_time(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            async with asyncio.timeout(REBUILD_S):
                await work
        except TimeoutError:
            raise ServiceUnavailable("The model took too long.") from None

    def forget(self) -> None:
        """The session has been restored: release the content of the log, which is large."""
        self._contents, self._entries, self._state = None, [], {}

    async def refuse(self, why: str) -> None:
        """Report the reason why the session cannot continue here to the gateway, if it is still
        connected."""
        with contextlib.suppress(Disconnected):
            await self._send(RebuildResult(why))

    async def _send(self, message: RebuildReady | RebuildResult) -> None:
        await self._socket.send(codec.encode(message))


@contextlib.asynccontextmanager
async def _reading() -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(READ_S):
            yield
    except TimeoutError:
        raise ServiceUnavailable("The log of the session could not be read in time.") from None
