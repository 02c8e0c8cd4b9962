"""A duplex call in real time, which the benches `chaos`, `hour` and `relay --resume` hold.

A microphone does not stop because a network did: a unit is sent each second, whatever comes back,
and every unit must be answered.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
import time
from collections.abc import Sequence
from typing import Final

import msgspec
from tools.bench.breakable import BreakableNetwork

from parley.client.duplex import DuplexClient
from parley.client.events import Ended, Event
from parley.errors import ParleyError
from parley.media.pcm import Pcm
from parley.protocol import binary
from parley.protocol.values import DuplexConfig

FOR_EVER: Final = sys.maxsize


class Told(msgspec.Struct):
    """What of the server's messages is looked at."""

    type: str = ""
    unit_index: int = -1
    current_time: int = 0
    wall_clock_ms: float = 0.0


_decoder = msgspec.json.Decoder(Told)


class PacedCall:
    """One call; a bench overrides the methods `on_…`.

    Args:
        units: what is said, a second each, again and again.
        dice: decide how its connections break.
        stop: when to stop speaking at the latest.
        config, resume: of the client.
    """

    def __init__(
        self,
        url: str,
        units: Sequence[Pcm],
        dice: random.Random | None = None,
        stop: asyncio.Event | None = None,
        *,
        config: DuplexConfig | None = None,
        resume: bool = True,
    ) -> None:
        self.network = BreakableNetwork(dice, self._heard)
        self._client = DuplexClient(
            url, transport=self.network, record=False, config=config, resume=resume
        )
        self._units = units
        self._stop = stop or asyncio.Event()
        self._news = asyncio.Event()
        self.is_speaking = asyncio.Event()
        """Set when it speaks, or failed."""
        self.sent = 0
        self.newest_unit = -1
        """The newest unit that was answered."""
        self.spoken_s = self.answered_s = 0.0
        """When the last unit was over, and when the newest answer came; monotonic."""
        self.ended = ""
        """Why it ended early, if it did."""

    @property
    def dropped(self) -> int:
        """Units that the client gave up."""
        return self._client.dropped

    async def talk(
        self, count: int = FOR_EVER, *, phase_s: float = 0.0, last_s: float = 0.0
    ) -> None:
        """Say so many units, and wait for the last answer.

        Args:
            phase_s: from its being ready to the first unit.
            last_s: how long the last answers may take.
        """
        try:
            async with self._client:
                await self._client.ready()
                self.is_speaking.set()
                hearing = asyncio.create_task(self._hear())
                try:
                    await self._speak(count, phase_s)
                    await self._wait_for_the_last(last_s)
                finally:
                    hearing.cancel()
                    await asyncio.gather(hearing, return_exceptions=True)
        except ParleyError as error:
            self._end(f"{error.code}: {error}")
        finally:
            self.is_speaking.set()
            self.network.finish()

    def on_sent(self, number: int) -> None:
        """A unit was sent."""

    def on_message(self, told: Told) -> None:
        """Any message came."""

    def on_answer(self, told: Told, units: int) -> None:
        """The first message came that answers so many more units."""

    def on_event(self, event: Event) -> None:
        """The client passed something on."""

    def _end(self, why: str) -> None:
        self.ended = self.ended or why
        self._news.set()

    async def _speak(self, count: int, phase_s: float) -> None:
        began_s = time.monotonic() + phase_s
        # Behind the last unit, too, its second passes.
        while not self._stop.is_set():
            await asyncio.sleep(max(0.0, began_s + self.sent - time.monotonic()))
            if self.sent == count or self.ended or self._stop.is_set():
                break
            self._client.send_unit(self._units[self.sent % len(self._units)])
            self.sent += 1
            self.on_sent(self.sent - 1)
        self.spoken_s = time.monotonic()

    async def _wait_for_the_last(self, limit_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                while self.newest_unit + 1 < self.sent and not self.ended:
                    self._news.clear()
                    await self._news.wait()

    async def _hear(self) -> None:
        try:
            async for event in self._client:
                self.on_event(event)
                if isinstance(event, Ended):
                    self._end(event.reason)
        except ParleyError as error:
            self._end(f"{error.code}: {error}")

    def _heard(self, frame: str | bytes) -> None:
        if isinstance(frame, bytes) and not frame.startswith(b"{"):
            frame, _ = binary.split(frame)  # Its sound is behind it.
        told = _decoder.decode(frame)
        self.on_message(told)
        units = told.unit_index - self.newest_unit
        if told.type == "result" and units > 0:
            self.newest_unit, self.answered_s = told.unit_index, time.monotonic()
            self.on_answer(told, units)
            self._news.set()
