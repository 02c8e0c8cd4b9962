"""A duplex call in real time, used by the benches `chaos`, `hour` and `relay --resume`.

A microphone does not stop when the network fails: a unit is sent each second regardless of answers,
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
from parley.tasks import end_tasks

FOR_EVER: Final = sys.maxsize


class Told(msgspec.Struct):
    """The fields of the server's messages that are used."""

    type: str = ""
    unit_index: int = -1
    current_time: int = 0
    wall_clock_ms: float = 0.0


_decoder = msgspec.json.Decoder(Told)


class PacedCall:
    """One call; a bench overrides the methods `on_…`.

    Args:
        units: the user's audio, a second each, repeated.
        dice: choose how its connections break.
        stop: the call stops speaking when this is set.
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
        """Set when the call speaks or has failed."""
        self.sent = 0
        self.newest_unit = -1
        """Index of the newest answered unit."""
        self.spoken_s = self.answered_s = 0.0
        """Monotonic times of the end of the last unit, and of the newest answer."""
        self.ended = ""
        """Reason why it ended early, if it did."""

    @property
    def dropped(self) -> int:
        """Number of units that the client discarded."""
        return self._client.dropped

    async def talk(
        self, count: int = FOR_EVER, *, phase_s: float = 0.0, last_s: float = 0.0
    ) -> None:
        """Send `count` units, and wait for the last answer.

        Args:
            phase_s: time from ready to the first unit.
            last_s: maximum time for the last answers.
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
                    await end_tasks(hearing)
        except ParleyError as error:
            self._end(f"{error.code}: {error}")
        finally:
            self.is_speaking.set()
            self.network.finish()

    def on_sent(self, number: int) -> None:
        """Called when a unit was sent."""

    def on_message(self, told: Told) -> None:
        """Called for each received message."""

    def on_answer(self, told: Told, units: int) -> None:
        """Called for the first message that answers `units` more units."""

    def on_event(self, event: Event) -> None:
        """Called for each event of the client."""

    def _end(self, why: str) -> None:
        self.ended = self.ended or why
        self._news.set()

    async def _speak(self, count: int, phase_s: float) -> None:
        began_s = time.monotonic() + phase_s
        # The second of the last unit must pass, too.
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
            frame, _ = binary.split(frame)  # The audio follows the JSON.
        told = _decoder.decode(frame)
        self.on_message(told)
        units = told.unit_index - self.newest_unit
        if told.type == "result" and units > 0:
            self.newest_unit, self.answered_s = told.unit_index, time.monotonic()
            self.on_answer(told, units)
            self._news.set()
