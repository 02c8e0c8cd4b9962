"""Clients that break the protocol: raw bytes on a socket, and the server's answers."""

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator

from tests.support.patience import HANG_S

from parley.transport.framing import CLOSE, PONG, Control, FrameReader, Message, parse_close

WS_HEAD = (
    "Host: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n"
)


class RawClient:
    """One TCP connection. Data that the server sent before it reset the connection can still be
    read, unlike with asyncio's streams."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._loop = asyncio.get_running_loop()
        self._received = bytearray()

    async def send(self, data: bytes) -> bool:
        """Send data; returns False if the connection has ended."""
        try:
            await self._loop.sock_sendall(self._socket, data)
        except OSError:
            return False
        return True

    async def head(self) -> bytes:
        """The head of the answer; "" if the connection ends before it."""
        while (end := self._received.find(b"\r\n\r\n")) < 0:
            if not await self._receive():
                return b""
        head = bytes(self._received[: end + 4])
        del self._received[: end + 4]
        return head

    async def flood(self, piece: bytes) -> None:
        """Send `piece` repeatedly until the server ends the connection."""
        sending = True
        while sending:
            sending = await self.send(piece)

    async def until(self, part: bytes, limit_s: float = HANG_S) -> None:
        """Wait until the server has sent `part`."""
        async with asyncio.timeout(limit_s):
            while part not in self._received:
                assert await self._receive(), "the server hung up"

    async def rest(self, limit_s: float = HANG_S) -> bytes:
        """All data until the connection ends."""
        async with asyncio.timeout(limit_s):
            while await self._receive():
                pass
        return bytes(self._received)

    def abort(self) -> None:
        """Reset the connection."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.close()

    async def _receive(self) -> bool:
        try:
            piece = await self._loop.sock_recv(self._socket, 1 << 16)
        except OSError:
            return False
        self._received += piece
        return bool(piece)


@contextlib.asynccontextmanager
async def raw_client(port: int) -> AsyncIterator[RawClient]:
    sock = socket.socket()
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
    client = RawClient(sock)
    try:
        yield client
    finally:
        if sock.fileno() >= 0:
            client.abort()


@contextlib.asynccontextmanager
async def raw_websocket(port: int, path: str, headers: str = "") -> AsyncIterator[RawClient]:
    """An open WebSocket without a library at this end."""
    async with raw_client(port) as client:
        await client.send(f"GET {path} HTTP/1.1\r\n{WS_HEAD}{headers}\r\n".encode())
        head = await client.head()
        assert head.startswith(b"HTTP/1.1 101"), head
        yield client


class Answers:
    """A server's frames, by kind."""

    def __init__(self, data: bytes) -> None:
        events = FrameReader(masked=False, limit_bytes=1 << 30).feed(data)
        self.messages = [event.payload() for event in events if isinstance(event, Message)]
        controls = [event for event in events if isinstance(event, Control)]
        self.pongs = sum(one.opcode == PONG for one in controls)
        closes = [one.payload for one in controls if one.opcode == CLOSE]
        self.close_code = parse_close(closes[0])[0] if closes else None


def masked_frame(first_byte: int, content: bytes = b"", key: bytes = b"\1\2\3\4") -> bytes:
    """A client's frame with any first byte; content of at most 125 bytes."""
    masked = bytes(byte ^ key[index % 4] for index, byte in enumerate(content))
    return bytes([first_byte, 0x80 | len(content)]) + key + masked
