"""Calls of `python -m tools.bench chaos` that speak in real time and never wait for an answer.

A microphone does not stop because a network did. Each call sends a unit every second, whatever
happens to its connection; every unit must be answered, and once the connection is back what had
accumulated must be caught up within seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import time
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from tools.bench.breakable import BreakableNetwork
from tools.bench.chaos_talks import hum
from tools.bench.told import read

from parley.client.duplex import DuplexClient
from parley.client.events import Ended, Listening, Reconnecting, Speaking
from parley.errors import ParleyError
from parley.media.pcm import INPUT_RATE_HZ, Pcm
from parley.protocol.values import DuplexConfig

DOWN_S: Final = (2.0, 6.0, 12.0)
"""For so long each network is down, in turn."""
BETWEEN_S: Final = 8
"""Units between two cuts."""
UNITS: Final = (30, 90)
"""Length of a call that is not cut."""
LAST_S: Final = 60.0
"""How long the last answers may take: a worker may have to be started."""
CAUGHT_UP_S: Final = 5.0
"""After its last unit a call has all its answers within this time, unless a server was away."""
_HUMS: Final = [
    Pcm(np.round(hum(0.05 * level).samples * 32768) / np.float32(32768), INPUT_RATE_HZ)
    for level in range(5)
]
"""As a microphone has it: whole steps of 16 bits."""


@dataclass(slots=True)
class LiveReport:
    """What became of the calls.

    Args:
        sent, answered: units. `dropped`: those that a client gave up; `twice`: answers that came
            again.
        cuts: of connections.
        lag_s: of each call, from its last unit to its last answer.
        silence_ms: each time a connection was lost: from the last answer before to the first one
            after, less the second that lies between answers anyway.
    """

    calls: int = 0
    sent: int = 0
    answered: int = 0
    dropped: int = 0
    twice: int = 0
    cuts: int = 0
    lag_s: list[float] = field(default_factory=list)
    silence_ms: list[float] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)

    def faults(self) -> list[str]:
        """What is not as it should be."""
        found = [f"a live call ended early: {reason}" for reason in self.ended]
        if self.answered != self.sent:
            found.append(f"{self.sent - self.answered} of {self.sent} live units were not answered")
        if self.twice:
            found.append(f"{self.twice} live units were answered twice")
        if self.dropped:
            found.append(f"{self.dropped} live units were dropped by their client")
        return found


class LiveCall:
    """One call, cut once for each of `DOWN_S`; or not cut, and as long as calls are.

    Args:
        url: the server.
        dice: decide how connections break.
        report: is added to.
        stop: not to be cut; when to stop speaking at the latest.
    """

    def __init__(
        self,
        url: str,
        dice: random.Random,
        report: LiveReport,
        stop: asyncio.Event | None = None,
    ) -> None:
        self._url = url
        self._network = BreakableNetwork(dice, self._heard)
        self._report = report
        self._newest_unit = -1
        self._passed_on = 0
        """Answers that the client passed on."""
        self._news = asyncio.Event()
        self._answered_s = 0.0
        self._silent_since_s: float | None = None
        self._stop = stop
        self._units = dice.randint(*UNITS)
        self.is_speaking = asyncio.Event()

    async def run(self) -> None:
        """Speak, be cut, and wait for the last answer."""
        report = self._report
        report.calls += 1
        client = DuplexClient(
            self._url,
            transport=self._network,
            record=False,
            config=DuplexConfig(decode_mode="greedy"),
        )
        sent = 0
        try:
            async with client:
                await client.ready()
                self.is_speaking.set()
                hearing = asyncio.create_task(self._hear(client))
                try:
                    sent = await self._speak(client, {} if self._stop else _cuts())
                    await self._wait_for_the_last(sent)
                finally:
                    hearing.cancel()
                    await asyncio.gather(hearing, return_exceptions=True)
        except ParleyError as error:
            report.ended.append(f"{error.code}: {error}")
        finally:
            self.is_speaking.set()
            self._network.finish()
            report.sent += sent
            report.answered += min(self._passed_on, self._newest_unit + 1)
            report.twice += max(0, self._passed_on - self._newest_unit - 1)
            report.dropped += client.dropped
            report.cuts += self._network.breaks

    async def _speak(self, client: DuplexClient, cuts: dict[int, float]) -> int:
        """A unit each second; the connection is cut in the middle of some."""
        count = max(cuts) + int(DOWN_S[-1]) + BETWEEN_S if cuts else self._units
        began_s = time.monotonic()
        for number in itertools.count():
            await asyncio.sleep(max(0.0, began_s + number - time.monotonic()))
            if number == count or (self._stop is not None and self._stop.is_set()):
                break
            client.send_unit(_HUMS[number % len(_HUMS)])
            if number in cuts:
                later = asyncio.get_running_loop().call_later
                later(0.5, self._network.break_off, cuts[number])
        return number

    async def _wait_for_the_last(self, sent: int) -> None:
        last_s = time.monotonic()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_S):
                while self._newest_unit + 1 < sent:
                    self._news.clear()
                    await self._news.wait()
        self._report.lag_s.append(max(0.0, self._answered_s - last_s))

    async def _hear(self, client: DuplexClient) -> None:
        try:
            async for event in client:
                if isinstance(event, Ended):
                    self._report.ended.append(event.reason)
                self._passed_on += isinstance(event, Listening | Speaking)
                if isinstance(event, Reconnecting) and self._silent_since_s is None:
                    self._silent_since_s = self._answered_s
        except ParleyError as error:
            self._report.ended.append(f"{error.code}: {error}")

    def _heard(self, frame: str | bytes) -> None:
        told = read(frame)
        if told.type == "result" and told.unit_index > self._newest_unit:
            self._newest_unit = told.unit_index
            self._answered_s = time.monotonic()
            if self._silent_since_s is not None:
                silent_s = max(0.0, self._answered_s - self._silent_since_s - 1.0)
                self._report.silence_ms.append(1000 * silent_s)
                self._silent_since_s = None
            self._news.set()


def _cuts() -> dict[int, float]:
    """After which units a network goes down, and for how long."""
    cuts = {BETWEEN_S // 2: DOWN_S[0]}
    for before_s, down_s in itertools.pairwise(DOWN_S):
        cuts[max(cuts) + int(before_s) + BETWEEN_S] = down_s
    return cuts
