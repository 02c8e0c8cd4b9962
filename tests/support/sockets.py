"""A socket whose other end is the test."""

import asyncio
import json
from typing import Any

from tests.support.patience import HANG_S

from parley.protocol import binary
from parley.session.socket import Disconnected


def _text_of(frame: str | bytes) -> str:
    """A message as JSON; a binary one contains its audio in `audio_data` or `audio`."""
    if isinstance(frame, str):
        return frame
    head = frame[4 : 4 + int.from_bytes(frame[:4], "big")]
    return binary.unpack(frame, "audio_data" if b'"audio_data"' in head else "audio")


class FakeSocket:
    """Messages enter by `say` and leave in `sent`; `closed` records `close`, and `hang_up`
    disconnects the client.

    While `reads` is cleared the client does not read, and sends wait. `confirms`: result of
    `close`.
    """

    def __init__(self) -> None:
        self.confirms = True
        self.sent: list[dict[str, Any]] = []
        self.sent_bytes = 0
        self.closed: tuple[int, str] | None = None
        self.reads = asyncio.Event()
        self.reads.set()
        self._left = 1006
        self._incoming: asyncio.Queue[str | bytes | None] = asyncio.Queue()
        self._is_receiving = False
        self._changed = asyncio.Event()

    # ---- the session's side ----

    async def receive(self) -> str | bytes:
        self._is_receiving = True
        frame = await self._incoming.get()
        self._is_receiving = False
        if frame is None:
            self._incoming.put_nowait(None)
            raise Disconnected(self._left)
        return frame

    async def send(self, frame: str | bytes) -> None:
        await self.reads.wait()
        assert self.closed is None, "sent after close"
        self.sent_bytes += len(frame)
        self.sent.append(json.loads(_text_of(frame)))
        self._changed.set()

    async def close(self, code: int, reason: str) -> bool:
        if self.closed is None:
            self.closed = (code, reason)
        self._changed.set()
        return self.confirms

    # ---- the client's side ----

    def say(self, message: dict[str, Any] | str | bytes) -> None:
        self._incoming.put_nowait(json.dumps(message) if isinstance(message, dict) else message)

    def hang_up(self, code: int = 1006) -> None:
        self._left = code
        self._incoming.put_nowait(None)

    def leave(self) -> None:
        """Disconnect with a regular close."""
        self.hang_up(1000)

    @property
    def is_drained(self) -> bool:
        """True if the session has handled every message and waits for another. Receiving the last
        one is not enough, because a thread may still decode it."""
        return self._is_receiving and self._incoming.empty()

    @property
    def types(self) -> list[str]:
        return [message["type"] for message in self.sent]

    @property
    def close_code(self) -> int | None:
        return self.closed[0] if self.closed else None

    async def until(
        self, type_name: str, count: int = 1, limit_s: float = HANG_S
    ) -> dict[str, Any]:
        """Wait for the `count`-th message of a type; fails when the socket closes without it."""
        async with asyncio.timeout(limit_s):
            while True:
                found = [message for message in self.sent if message["type"] == type_name]
                if len(found) >= count:
                    return found[count - 1]
                assert self.closed is None, (
                    f"no {type_name}: closed {self.closed} after {self.sent}"
                )
                self._changed.clear()
                await self._changed.wait()

    async def until_closed(self, limit_s: float = HANG_S) -> int:
        async with asyncio.timeout(limit_s):
            while self.closed is None:
                self._changed.clear()
                await self._changed.wait()
        return self.closed[0]
