"""A session that another worker held, from the copy that its gateway kept."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any, Final

import msgspec

from parley import logs
from parley.dialects.events import DuplexSetup, HalfDuplexSetup
from parley.errors import ParleyError, ServiceUnavailable
from parley.protocol.control import CopiedOutput, RebuildPart, RebuildResult
from parley.session import session_copy, state_codec
from parley.session.recorded import SessionRequest
from parley.session.resumable import ResumableSocket
from parley.session.session import RebuildableRunner, Session
from parley.worker.lease import LeasedSlot
from parley.worker.socket import GatewaySocket

RECEIVE_S: Final = 10.0
"""How long the copy may take to come."""
REBUILD_S: Final = 120.0
"""How long the model may take to do everything again."""

_log = logs.get(__name__)
_part = msgspec.msgpack.Decoder(RebuildPart)


@dataclasses.dataclass(frozen=True, slots=True)
class SessionHead:
    """The first entry of a log: whose session it is.

    Args:
        recording_id: of its beginning; "" where it is not recorded.
    """

    lease: LeasedSlot
    seed: int
    recording_id: str = ""


class RebuiltCopy:
    """See the module's text.

    Args:
        socket: brings the copy, and is told what comes of it.
    """

    def __init__(self, socket: GatewaySocket) -> None:
        self._socket = socket
        self._log: list[bytes] = []
        self._entries: list[Any] = []
        self._state: dict[str, Any] = {}
        self._outputs: list[CopiedOutput] = []
        self.seed = 0
        self.recording_id = ""
        """Of the session's beginning; "" where it was not recorded."""

    async def receive(self, lease: LeasedSlot) -> LeasedSlot:
        """Take the copy; gives `lease` with what the worker before was told of the session.

        Raises:
            ParleyError: it does not come, or cannot be read.
        """
        try:
            async with asyncio.timeout(RECEIVE_S):
                await self._receive()
        except TimeoutError:
            raise ServiceUnavailable("The copy of the session did not come.") from None
        head, *self._entries = session_copy.entries(self._log)
        if not isinstance(head, SessionHead):
            raise ServiceUnavailable("The copy of the session has no beginning.")
        self.seed, self.recording_id = head.seed, head.recording_id
        return dataclasses.replace(
            head.lease, lease_id=lease.lease_id, note=lease.note, trace=lease.trace
        )

    async def _receive(self) -> None:
        is_last = False
        while not is_last:
            frame = await self._socket.receive()
            try:
                part = _part.decode(frame if isinstance(frame, bytes) else frame.encode())
            except msgspec.MsgspecError as error:
                raise ServiceUnavailable(f"The copy cannot be read: {error}") from None
            if part.log:
                self._log.append(part.log)
            self._outputs += part.outputs
            is_last = part.is_last
        self._state = state_codec.decode(part.state)

    @property
    def setup(self) -> SessionRequest | None:
        """How the session was requested."""
        asked = self._state["runner"].get("setup") or (self._entries or [None])[0]
        return asked if isinstance(asked, DuplexSetup | HalfDuplexSetup) else None

    @property
    def dialect_name(self) -> str:
        """What the client speaks."""
        name: str = self._state["dialect_name"]
        return name

    async def restore(
        self, socket: ResumableSocket, session: Session, runner: RebuildableRunner
    ) -> None:
        """Be what the other worker's session was, and tell the gateway.

        Raises:
            ParleyError: it cannot be done here.
        """
        began_s = session.clock.monotonic()
        try:
            session.restore(self._state)
            async with asyncio.timeout(REBUILD_S):
                await runner.rebuild(self._entries, self._state["runner"])
        except TimeoutError:
            await self.refuse("The model took too long.")
            raise ServiceUnavailable("The session could not be rebuilt in time.") from None
        except ParleyError as error:
            await self.refuse(str(error))
            raise
        # Only a session that a gateway knows to be here waits for its client: where it could not be
        # told, the next one has the copy, and another worker goes on from it.
        await self._answer("")
        socket.restore(self._state, self._outputs, self._log)
        took_s = round(session.clock.monotonic() - began_s, 3)
        _log.info("session rebuilt", entries=len(self._entries), took_s=took_s)

    async def refuse(self, why: str) -> None:
        """Tell the gateway that it does not work."""
        _log.warning("session not rebuilt", why=why)
        await self._answer(why)

    async def _answer(self, problem: str) -> None:
        told = msgspec.json.encode(RebuildResult(problem)).decode()
        await self._socket.send(told)
