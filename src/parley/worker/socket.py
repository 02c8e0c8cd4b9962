"""A gateway's connection as the socket of a session."""

from __future__ import annotations

import asyncio
from typing import Final

from parley.errors import TooLarge
from parley.session.socket import Disconnected
from parley.transport import LARGE_BYTES, Connection, ConnectionClosed, Message

TURN_MESSAGES: Final = 8
"""Number of messages of one session that are read before other sessions get a turn."""


class GatewaySocket:
    """A connection that the gateway opened, as the session's `SessionSocket`.

    Args:
        limit_bytes: maximum size of a message of this kind of session.
    """

    def __init__(self, connection: Connection, limit_bytes: int) -> None:
        self._connection = connection
        self._limit_bytes = limit_bytes
        self._received = 0

    async def receive(self) -> str | bytes:
        self._received += 1
        if self._received % TURN_MESSAGES == 0:
            # Messages that have already arrived are returned without waiting: let other sessions
            # run.
            await asyncio.sleep(0)
        try:
            message = await self._connection.receive()
        except ConnectionClosed as end:
            raise Disconnected(end.closure.code) from end
        if message.size > self._limit_bytes:
            raise TooLarge("The message", message.size, self._limit_bytes)
        if message.size <= LARGE_BYTES:
            return self._content(message, message.payload())
        # Piece by piece, so that other sessions run in between.
        payload = await asyncio.to_thread(message.large_payload)
        return await asyncio.to_thread(self._content, message, payload)

    def _content(self, message: Message, payload: bytes | bytearray) -> str | bytes:
        if not message.is_text:
            return bytes(payload)
        try:
            return payload.decode()
        except UnicodeDecodeError as error:
            # The gateway never forwards such text.
            self._connection.close(1007, "Text must be UTF-8.")
            raise Disconnected from error

    async def send(self, frame: str | bytes) -> None:
        await self._connection.room()
        if not self._connection.is_open:
            closed = self._connection.closed
            raise Disconnected(closed.result().code if closed.done() else 1006)
        if isinstance(frame, bytes):
            self._connection.send_binary(frame)
        else:
            self._connection.send_text(frame.encode())

    async def close(self, code: int, reason: str) -> bool:
        self._connection.close(code, reason)
        return (await asyncio.shield(self._connection.closed)).is_clean
