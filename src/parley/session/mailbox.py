"""Units that wait for a duplex runner: few, the newest, and no wish for silence lost.

Pure. A live conversation prefers the newest sound: when units come faster than they are processed,
the oldest are dropped without a word. Source: service.md 3.5, 4.5 "Flood"; realtime protocol,
"Silent Drop".
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from parley.dialects.events import AudioInput
from parley.media.pcm import Pcm, join

REST_SAMPLES = 4000
"""What remains of a long piece of sound and is shorter than this waits for the next piece: a unit
of its own would hold too little to hear. Source: realtime protocol, minimum append."""


@dataclass(frozen=True, slots=True, eq=False)
class PendingUnit:
    """Sound for one unit, and when its message came (monotonic seconds)."""

    heard: AudioInput
    received_s: float


class Mailbox:
    """Pending units, at most `limit`, or as many as the newest message alone holds."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._units: deque[PendingUnit] = deque()
        self._forces_listen = False
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._units)

    def put(self, units: Sequence[PendingUnit]) -> None:
        """Add the units of one message, dropping the oldest ones where there is no room."""
        while self._units and len(self._units) + len(units) > max(self._limit, len(units)):
            self._drop(self._units.popleft())
        self._units.extend(units)

    def take(self) -> PendingUnit | None:
        """The oldest unit; it listens if that was asked of it or of any unit dropped before it."""
        if not self._units:
            return None
        unit = self._units.popleft()
        if self._forces_listen:
            self._forces_listen = False
            heard = dataclasses.replace(unit.heard, force_listen=True)
            unit = dataclasses.replace(unit, heard=heard)
        return unit

    def force_listen(self) -> None:
        """The next unit taken listens."""
        self._forces_listen = True

    def clear(self) -> None:
        """Drop everything that waits; a wish for silence stays."""
        while self._units:
            self._drop(self._units.popleft())

    def _drop(self, unit: PendingUnit) -> None:
        self.dropped += 1
        self._forces_listen = self._forces_listen or unit.heard.force_listen


class Cutter:
    """Cuts sound into units: at most one unit's length each, frames with the first of a message.

    Nothing is lost between messages: a short rest is put in front of the next one.
    """

    def __init__(self, unit_samples: int) -> None:
        self._unit_samples = unit_samples
        self._rest: Pcm | None = None

    def cut(self, heard: AudioInput) -> list[AudioInput]:
        """The units of one message, at least one, in order."""
        pcm = heard.pcm
        if not len(pcm):
            # Frames alone: the rest of earlier sound is not theirs.
            return [heard]
        if self._rest is not None:
            pcm = join([self._rest, pcm], pcm.rate_hz)
            self._rest = None
        size = self._unit_samples
        pieces = [pcm.slice(start, start + size) for start in range(0, len(pcm), size)]
        if len(pieces) > 1 and len(pieces[-1]) < REST_SAMPLES:
            self._rest = pieces.pop()
        return [
            dataclasses.replace(heard, pcm=piece, frames=() if index else heard.frames)
            for index, piece in enumerate(pieces)
        ]

    def reset(self) -> None:
        """Forget the rest."""
        self._rest = None
