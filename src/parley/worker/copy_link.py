"""A worker's connection to the copy store of a gateway: parts of copies go there, and no longer
through the process that relays.

Dialled when the gateway says where it is, and again whenever it breaks. While there is none, parts
go by the control connection; whenever that changes, everything is sent anew.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Final, cast

import msgspec

from parley import logs
from parley.protocol.control import CopyPart, CopyStoreAt, CopyStored
from parley.protocol.copies import (
    MessageSplitter,
    MessageTooLarge,
    NotOurStore,
    StoreGreeting,
    framed,
)

OPEN_S: Final = 5.0
FIRST_RETRY_S: Final = 0.2
LAST_RETRY_S: Final = 30.0
SETTLED_S: Final = 10.0
SILENCE_S: Final = 10.0
"""A copy store that answers nothing for so long, although it was sent something, is given up."""
STUCK_S: Final = 60.0
"""... and so is one that answers others, and one part not."""
CHECK_EVERY_S: Final = 2.0
ANSWER_LIMIT_BYTES: Final = 1024
"""Largest message of the copy store."""
LOOPBACK: Final = "127.0.0.1"

_log = logs.get(__name__)
_stored = msgspec.msgpack.Decoder(CopyStored)


class CopyLink:
    """See the module's text. Belongs to the event loop.

    Args:
        stored: called with every answer.
        moved: called when parts begin to come here, and when they do not any more.
    """

    def __init__(self, *, stored: Callable[[CopyStored], None], moved: Callable[[], None]) -> None:
        self._stored = stored
        self._moved = moved
        self._keeping: asyncio.Task[None] | None = None
        self._current: _StoreConnection | None = None
        self._has_complained = False

    @property
    def is_connected(self) -> bool:
        """Whether parts go there."""
        return self._current is not None

    def use(self, address: CopyStoreAt, host: str, tls: ssl.SSLContext | None) -> None:
        """Dial it from now on, and no other.

        Args:
            host: the gateway's.
            tls: how the gateway is trusted.
        """
        self.close()
        self._keeping = asyncio.create_task(self._keep(address, host, tls), name="copy link")
        self._keeping.add_done_callback(logs.report_failure)

    def close(self) -> None:
        """Dial none any more. Safe to repeat."""
        if self._keeping is not None:
            self._keeping.cancel()
            self._keeping = None
        self._part_from(self._current)

    def send(self, part: CopyPart) -> None:
        """Send a part; only while connected."""
        assert self._current is not None
        self._current.send_part(part)

    async def _keep(self, address: CopyStoreAt, host: str, tls: ssl.SSLContext | None) -> None:
        loop, retry_s = asyncio.get_running_loop(), FIRST_RETRY_S
        while True:
            began_s = loop.time()
            try:
                await self._serve(address, host, tls)
                retry_s = FIRST_RETRY_S if loop.time() - began_s > SETTLED_S else retry_s
                _log.warning("copy store gone", hint="Copies go by the control connection.")
            except (OSError, _Refused) as error:
                self._complain(address, host, error)
            await asyncio.sleep(retry_s)
            retry_s = min(2 * retry_s, LAST_RETRY_S)

    def _complain(self, address: CopyStoreAt, host: str, error: Exception) -> None:
        """Once, until it works."""
        if not self._has_complained:
            self._has_complained = True
            _log.warning(
                "copy store unreachable",
                host=LOOPBACK if address.is_local else host,
                port=address.port,
                why=str(error) or type(error).__name__,
                hint="Copies of sessions go by the control connection, which costs the gateway "
                "more. A firewall may be closed: see gateway.copies_port.",
            )

    async def _serve(self, address: CopyStoreAt, host: str, tls: ssl.SSLContext | None) -> None:
        """One connection, to its end.

        Raises:
            OSError, _Refused: there is none.
        """
        if not address.is_local and tls is None:
            raise _Refused("It is on another machine, and there is no TLS.")
        connection = _StoreConnection(address.token, self._stored)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(OPEN_S):
                await loop.create_connection(
                    lambda: connection,
                    LOOPBACK if address.is_local else host,
                    address.port,
                    ssl=None if address.is_local else tls,
                )
                await connection.ready
            self._current, self._has_complained = connection, False
            _log.info("copy store connected", port=address.port)
            self._moved()
            await connection.until_over()
        finally:
            connection.abort()
            self._part_from(connection)

    def _part_from(self, connection: _StoreConnection | None) -> None:
        if connection is not None and connection is self._current:
            self._current = None
            connection.abort()
            self._moved()


class _Refused(Exception):
    """What listens there is not our copy store, or does not take us."""


class _StoreConnection(asyncio.Protocol):
    """One connection. `ready` is done once both have proved who they are."""

    def __init__(self, token: str, stored: Callable[[CopyStored], None]) -> None:
        self._greeting = StoreGreeting(token)
        self._stored = stored
        self._loop = asyncio.get_running_loop()
        self.ready: asyncio.Future[None] = self._loop.create_future()
        self._over: asyncio.Future[None] = self._loop.create_future()
        self._transport: asyncio.Transport | None = None
        self._splitter = MessageSplitter(ANSWER_LIMIT_BYTES)
        self._waiting: dict[str, float] = {}
        """When parts were sent that are not answered, by session."""
        self._answered_s = self._loop.time()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not asyncio's.
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(self._greeting.hello)

    def data_received(self, data: bytes) -> None:
        try:
            for message in self._splitter.feed(data):
                if self.ready.done():
                    self._answered(_stored.decode(message))
                else:
                    self._greeted(message)
        except (ValueError, MessageTooLarge):
            self._refuse("It does not speak as a copy store does.")

    def connection_lost(self, exc: Exception | None) -> None:
        self._refuse("It closed the connection.")
        if not self._over.done():
            self._over.set_result(None)

    def send_part(self, part: CopyPart) -> None:
        """Send it."""
        assert self._transport is not None
        self._waiting[part.lease_id] = self._loop.time()
        self._transport.write(framed(part))

    def abort(self) -> None:
        """Safe to repeat."""
        if self._transport is not None:
            self._transport.abort()

    async def until_over(self) -> None:
        """Until it breaks, or the other end answers no more."""
        while not self._over.done():
            await asyncio.wait({self._over}, timeout=CHECK_EVERY_S)
            if not self._waiting:
                continue
            now_s, sent_s = self._loop.time(), min(self._waiting.values())
            if now_s - max(sent_s, self._answered_s) > SILENCE_S or now_s - sent_s > STUCK_S:
                _log.warning("copy store does not answer", waited_s=round(now_s - sent_s, 1))
                return

    def _answered(self, stored: CopyStored) -> None:
        self._waiting.pop(stored.lease_id, None)
        self._answered_s = self._loop.time()
        self._stored(stored)

    def _greeted(self, message: bytes | memoryview) -> None:
        assert self._transport is not None
        try:
            reply = self._greeting.answer(message)
        except NotOurStore:
            self._refuse("It does not know the gateway's token.")
            return
        if reply is None:
            self.ready.set_result(None)
        else:
            self._transport.write(reply)

    def _refuse(self, why: str) -> None:
        if not self.ready.done():
            self.ready.set_exception(_Refused(why))
            # Retrieved here, so that it is not reported as forgotten where nobody waits any more.
            self.ready.exception()
        if self._transport is not None:
            self._transport.abort()
