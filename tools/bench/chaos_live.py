"""Calls of `python -m tools.bench chaos` that speak in real time and never wait for an answer.

Once the connection is restored, the accumulated units must be answered within seconds.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from tools.bench.chaos_talks import hum
from tools.bench.paced_call import PacedCall, Told

from parley.client.events import Event, Listening, Reconnecting, Speaking
from parley.media.pcm import INPUT_RATE_HZ, Pcm
from parley.protocol.values import DuplexConfig

DOWN_S: Final = (2.0, 6.0, 12.0)
"""Times for which each network is down, in turn."""
BETWEEN_S: Final = 8
"""Number of units between two cuts."""
UNITS: Final = (30, 90)
"""Range of the length of an uncut call, in units."""
LAST_S: Final = 60.0
"""Maximum time for the last answers: a worker may have to be started."""
CAUGHT_UP_S: Final = 5.0
"""Time after its last unit within which a call must have all answers, unless a server was down."""
_HUMS: Final = [
    Pcm(np.round(hum(0.05 * level).samples * 32768) / np.float32(32768), INPUT_RATE_HZ)
    for level in range(5)
]
"""Quantised to 16 bits, like the audio of a microphone."""


@dataclass(slots=True)
class LiveReport:
    """Results of the calls.

    Args:
        sent, answered: number of units. `dropped`: units that a client discarded; `twice`: answers
            that were received again.
        cuts: number of cut connections.
        lag_s: for each call, time from its last unit to its last answer.
        silence_ms: for each lost connection, time from the last answer before it to the first one
            after it, less the second that always passes between answers.
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
        """Descriptions of all deviations from the expected result."""
        found = [f"a live call ended early: {reason}" for reason in self.ended]
        if self.answered != self.sent:
            found.append(f"{self.sent - self.answered} of {self.sent} live units were not answered")
        if self.twice:
            found.append(f"{self.twice} live units were answered twice")
        if self.dropped:
            found.append(f"{self.dropped} live units were dropped by their client")
        return found


class LiveCall(PacedCall):
    """One call: either cut once for each of `DOWN_S`, or uncut with a random length.

    Args:
        url: the server.
        dice: choose the length of the call and how connections break.
        report: receives the results.
        stop: if given, the call is uncut, and stops speaking when this is set.
    """

    def __init__(
        self,
        url: str,
        dice: random.Random,
        report: LiveReport,
        stop: asyncio.Event | None = None,
    ) -> None:
        super().__init__(url, _HUMS, dice, stop, config=DuplexConfig(decode_mode="greedy"))
        self._report = report
        self._passed_on = 0
        """Number of answers that the client delivered."""
        self._silent_since_s: float | None = None
        self._cuts = {} if stop else _cuts()
        whole = max(self._cuts, default=0) + int(DOWN_S[-1]) + BETWEEN_S
        self._count = whole if self._cuts else dice.randint(*UNITS)

    async def run(self) -> bool:
        """Speak, be cut, and wait for the last answer. Returns whether the call ended early."""
        report = self._report
        report.calls += 1
        await self.talk(self._count, last_s=LAST_S)
        if self.spoken_s:
            report.lag_s.append(max(0.0, self.answered_s - self.spoken_s))
        if self.ended:
            report.ended.append(self.ended)
        report.sent += self.sent
        report.answered += min(self._passed_on, self.newest_unit + 1)
        report.twice += max(0, self._passed_on - self.newest_unit - 1)
        report.dropped += self.dropped
        report.cuts += self.network.breaks
        return bool(self.ended)

    def on_sent(self, number: int) -> None:
        """Cut the connection in the middle of the scheduled units."""
        if number in self._cuts:
            later = asyncio.get_running_loop().call_later
            later(0.5, self.network.break_off, self._cuts[number])

    def on_event(self, event: Event) -> None:
        self._passed_on += isinstance(event, Listening | Speaking)
        if isinstance(event, Reconnecting) and self._silent_since_s is None:
            self._silent_since_s = self.answered_s

    def on_answer(self, told: Told, units: int) -> None:
        if self._silent_since_s is not None:
            silent_s = max(0.0, self.answered_s - self._silent_since_s - 1.0)
            self._report.silence_ms.append(1000 * silent_s)
            self._silent_since_s = None


def _cuts() -> dict[int, float]:
    """Unit after which the network goes down → time for which it is down."""
    cuts = {BETWEEN_S // 2: DOWN_S[0]}
    for before_s, down_s in itertools.pairwise(DOWN_S):
        cuts[max(cuts) + int(before_s) + BETWEEN_S] = down_s
    return cuts
