"""A session that another worker ran, continued from its log."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from typing import Any, Final

import msgspec

from parley import logs
from parley.dialects.events import DuplexSetup, HalfDuplexSetup, SetupChanged
from parley.errors import ServiceUnavailable
from parley.protocol.control import RebuildResult
from parley.session import log as session_log
from parley.session import state_codec
from parley.session.entries import ItemsSoFar, SessionRequest
from parley.session.resumable import ResumableSocket
from parley.session.session import RebuildableRunner, Session
from parley.session.socket import Disconnected
from parley.session_log.contract import (
    LoggedSession,
    SessionLogs,
    SessionLogWriter,
    StoredOutput,
)
from parley.worker.lease import LeasedSlot
from parley.worker.socket import GatewaySocket

READ_S: Final = 10.0
"""How long reading the log may take."""
REBUILD_S: Final = 120.0
"""How long the model may take to do everything again."""

_log = logs.get(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class SessionHead:
    """The first entry of a log: whose session it is.

    Args:
        recording_id: of its beginning; "" where it is not recorded.
    """

    lease: LeasedSlot
    seed: int
    recording_id: str = ""


class RebuiltSession:
    """See the module's text.

    Args:
        socket: the gateway's; it is sent the result.
    """

    def __init__(self, socket: GatewaySocket) -> None:
        self._socket = socket
        self._log = b""
        self._entries: list[Any] = []
        self._state: dict[str, Any] = {}
        self._outputs: tuple[StoredOutput, ...] = ()
        self.seed = 0
        self.recording_id = ""
        """Of the session's beginning; "" where it was not recorded."""

    async def read(
        self, stored: SessionLogs, logged: LoggedSession, lease: LeasedSlot
    ) -> tuple[LeasedSlot, SessionLogWriter]:
        """Take the session's log over. Returns the lease with what the lost worker knew of the
        session, and the writer that continues the log.

        Raises:
            ParleyError: the log cannot be read.
        """
        try:
            async with asyncio.timeout(READ_S):
                contents, writer = await stored.take_over(logged.log_id, logged)
        except TimeoutError:
            raise ServiceUnavailable("The log of the session could not be read in time.") from None
        self._log, self._outputs = contents.entries, contents.outputs
        self._state = state_codec.joined(contents.state)
        head, *self._entries = session_log.decoded(contents.entries)
        if not isinstance(head, SessionHead):
            raise ServiceUnavailable("The log of the session has no beginning.")
        if not self._state:
            raise ServiceUnavailable("The log of the session has no state: another build wrote it.")
        self.seed, self.recording_id = head.seed, head.recording_id
        known = dataclasses.replace(
            head.lease,
            lease_id=lease.lease_id,
            log_id=lease.log_id,
            note=lease.note,
            trace=lease.trace,
        )
        return known, writer

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
    def entries_done(self) -> int:
        """Number of entries that a recording has of what was done again, without the setup."""
        unrecorded = DuplexSetup | HalfDuplexSetup | ItemsSoFar
        done = sum(not isinstance(entry, unrecorded) for entry in self._entries)
        return done + sum(
            entry.entries_before for entry in self._entries if isinstance(entry, ItemsSoFar)
        )

    @property
    def dialect_name(self) -> str:
        """What the client speaks."""
        name: str = self._state["dialect_name"]
        return name

    @property
    def has_ended(self) -> bool:
        """True if only the last words are left of the session."""
        return self._state["closing"] is not None

    async def deliver_last_words(self, socket: ResumableSocket) -> None:
        """Tell the gateway that they are here, and wait until the client has them."""
        await self._answer("")
        socket.restore(self._state, self._outputs, self._log)
        await socket.until_told()

    async def restore(
        self, socket: ResumableSocket, session: Session, runner: RebuildableRunner
    ) -> None:
        """Take over the other worker's state, and report to the gateway.

        Raises:
            ParleyError: it cannot be done here.
        """
        began_s = session.clock.monotonic()
        try:
            session.restore(self._state)
            async with asyncio.timeout(REBUILD_S):
                await runner.rebuild(self._entries, self._state["runner"])
        except TimeoutError:
            raise ServiceUnavailable("The model took too long.") from None
        # Only a session that a gateway knows to be here waits for its client: otherwise the next
        # gateway finds the log, and another worker continues from it.
        await self._answer("")
        socket.restore(self._state, self._outputs, self._log)
        took_s = round(session.clock.monotonic() - began_s, 3)
        _log.info("session_rebuilt", entries=len(self._entries), took_s=took_s)

    async def refuse(self, why: str) -> None:
        """Report to the gateway, unless it has left, why the session cannot continue here."""
        with contextlib.suppress(Disconnected):
            await self._answer(why)

    async def _answer(self, problem: str) -> None:
        told = msgspec.json.encode(RebuildResult(problem)).decode()
        await self._socket.send(told)
