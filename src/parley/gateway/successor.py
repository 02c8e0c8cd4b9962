"""Another worker that continues a session, as the gateway sees it.

A worker that is drained or asked to stop still runs its sessions. Another one follows their logs
meanwhile, so that at the end only the last entries have to be done again, however long the
conversation was.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import msgspec

from parley.gateway.queue import Ticket
from parley.protocol.control import RebuildReady, RebuildResult, TakeOver
from parley.transport import ClientConnection

ANSWER_S: Final = 150.0
"""Time limit for a worker to rebuild a session."""

_answer = msgspec.json.Decoder(RebuildReady | RebuildResult)


class Successor:
    """A worker that is to continue a session, and has the slot for it.

    Args:
        connection: to the worker. `hang_up`: closes it.
        follows: True if the session still runs at another worker, whose log this one follows.

    Attributes:
        ready: set when it has nearly caught up, or cannot continue the session.
    """

    def __init__(
        self, connection: ClientConnection, hang_up: Callable[[], None], *, follows: bool
    ) -> None:
        self._connection = connection
        self._hang_up = hang_up
        self.follows = follows
        self.ready = asyncio.Event()
        self._answer = asyncio.create_task(self._read(), name="successor")

    async def take_over(self) -> RebuildResult:
        """The other worker has stopped: the result of continuing the session.

        Raises:
            ConnectionClosed: the worker is gone.
            TimeoutError: it takes too long.
            msgspec.MsgspecError, ParleyError: its answer makes no sense.
        """
        if self.follows:
            self._connection.send_text(msgspec.json.encode(TakeOver()))
        async with asyncio.timeout(ANSWER_S):
            return await asyncio.shield(self._answer)

    async def _read(self) -> RebuildResult:
        try:
            while True:
                answer = _answer.decode((await self._connection.receive()).payload())
                if isinstance(answer, RebuildResult):
                    return answer
                self.ready.set()
        finally:
            self.ready.set()

    async def close(self) -> None:
        """Safe to repeat. A session that it has continued waits for its client."""
        self._answer.cancel()
        await asyncio.gather(self._answer, return_exceptions=True)
        self._hang_up()


@dataclass(slots=True, eq=False)
class ReservedSlot:
    """A slot that was taken for a session before it was stopped where it was.

    Args:
        successor: the worker of that slot, once it was asked to continue the session.
    """

    ticket: Ticket
    successor: Successor | None = None

    @property
    def is_behind(self) -> bool:
        """True if its successor has not caught up."""
        return self.successor is not None and not self.successor.ready.is_set()

    async def wait(self, limit_s: float) -> None:
        """Wait until the successor has caught up or failed, but not longer than `limit_s`."""
        if self.successor is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(limit_s):
                    await self.successor.ready.wait()

    async def close(self) -> None:
        """Give the successor up; the ticket stays. Safe to repeat."""
        successor, self.successor = self.successor, None
        if successor is not None:
            await successor.close()
