"""What `/metrics` reported over the last hour, once a minute: for the operator's page.

A monitoring system keeps more, for longer; this is for a look without one. Bounded: 60 pages of the
few metrics that the page draws.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from parley.clock import Clock

EVERY_S: Final = 60.0
KEPT: Final = 60
DRAWN: Final = (
    "parley_sessions",
    "parley_slots",
    "parley_queue_length",
    "parley_relay_bytes_total",
    "parley_errors_total",
    "parley_answer_seconds_bucket",
)


class Look(NamedTuple):
    """The metrics at one time, in Prometheus' text format."""

    at_s: float
    """Unix time."""
    text: str


class MetricsHistory:
    """Belongs to the event loop."""

    def __init__(self, page: Callable[[], bytes], clock: Clock) -> None:
        self._page = page
        self._clock = clock
        self._looks: deque[Look] = deque(maxlen=KEPT)

    @property
    def looks(self) -> list[Look]:
        """Oldest first."""
        return list(self._looks)

    def note(self) -> None:
        lines = self._page().decode().splitlines()
        text = "\n".join(line for line in lines if line.partition("{")[0].split(" ")[0] in DRAWN)
        self._looks.append(Look(self._clock.time(), text))

    async def run(self) -> None:
        while True:
            self.note()
            await asyncio.sleep(EVERY_S)
