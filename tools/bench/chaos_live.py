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

from tools.bench.breakable import BreakableNetwork
from tools.bench.chaos_talks import hum
from tools.bench.told import read

from parley.client.duplex import DuplexClient
from parley.client.events import Ended
from parley.errors import ParleyError
from parley.protocol.values import DuplexConfig

DOWN_S: Final = (2.0, 6.0, 12.0)
"""For so long each network is down, in turn."""
BETWEEN_S: Final = 8
"""Units between two cuts."""
LAST_S: Final = 60.0
"""How long the last answers may take: a worker may have to be started."""
CAUGHT_UP_S: Final = 5.0
"""After its last unit a call has all its answers within this time, unless a server was away."""


@dataclass(slots=True)
class LiveReport:
    """What became of the calls.

    Args:
        sent, answered: units. `dropped`: those that a client gave up.
        cuts: of connections.
        lag_s: of each call, from its last unit to its last answer.
    """

    calls: int = 0
    sent: int = 0
    answered: int = 0
    dropped: int = 0
    cuts: int = 0
    lag_s: list[float] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)

    def faults(self) -> list[str]:
        """What is not as it should be."""
        found = [f"a live call ended early: {reason}" for reason in self.ended]
        if self.answered != self.sent:
            found.append(f"{self.sent - self.answered} of {self.sent} live units were not answered")
        if self.dropped:
            found.append(f"{self.dropped} live units were dropped by their client")
        return found


class LiveCall:
    """One call, cut once for each of `DOWN_S`.

    Args:
        url: the server.
        dice: decide how connections break.
        report: is added to.
    """

    def __init__(self, url: str, dice: random.Random, report: LiveReport) -> None:
        self._url = url
        self._network = BreakableNetwork(dice, self._heard)
        self._report = report
        self._newest_unit = -1
        self._news = asyncio.Event()
        self._answered_s = 0.0

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
                hearing = asyncio.create_task(self._hear(client))
                try:
                    sent = await self._speak(client)
                    await self._wait_for_the_last(sent)
                finally:
                    hearing.cancel()
                    await asyncio.gather(hearing, return_exceptions=True)
        except ParleyError as error:
            report.ended.append(f"{error.code}: {error}")
        finally:
            self._network.finish()
            report.sent += sent
            report.answered += self._newest_unit + 1
            report.dropped += client.dropped
            report.cuts += self._network.breaks

    async def _speak(self, client: DuplexClient) -> int:
        """A unit each second; the connection is cut in the middle of one."""
        cuts = {BETWEEN_S // 2: DOWN_S[0]}
        for before_s, down_s in itertools.pairwise(DOWN_S):
            cuts[max(cuts) + int(before_s) + BETWEEN_S] = down_s
        count = max(cuts) + int(DOWN_S[-1]) + BETWEEN_S
        began_s = time.monotonic()
        for number in range(count):
            await asyncio.sleep(max(0.0, began_s + number - time.monotonic()))
            client.send_unit(hum(0.05 * (number % 5)))
            if number in cuts:
                later = asyncio.get_running_loop().call_later
                later(0.5, self._network.break_off, cuts[number])
        return count

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
        except ParleyError as error:
            self._report.ended.append(f"{error.code}: {error}")

    def _heard(self, frame: str | bytes) -> None:
        told = read(frame)
        if told.type == "result" and told.unit_index > self._newest_unit:
            self._newest_unit = told.unit_index
            self._answered_s = time.monotonic()
            self._news.set()
