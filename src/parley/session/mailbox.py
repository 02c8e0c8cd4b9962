"""Bounded queue of pending units: splits audio into units, drops the oldest, keeps `force_listen`.

Pure. In a live conversation the newest audio matters most: if units arrive faster than they are
processed, the oldest are dropped. Source: service.md 3.5 and 4.5 ("Flood").
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from parley.dialects.events import AudioInput
from parley.media.pcm import join
from parley.protocol.values import FRAMES_LIMIT

OWN_MESSAGE: Final = 0.25
"""A message with at least this part of a unit becomes a unit of its own, as published; a shorter
one is too short to understand. Source: service.md 4.5, minimum append."""

OWN_BY_TIME: Final = 0.75
"""The same for clients that send chunks of any length: their units are cut by media time, and only
a nearly complete unit does not wait for the rest."""


@dataclass(frozen=True, slots=True, eq=False)
class PendingUnit:
    """Audio for one unit, and the monotonic time at which its message arrived."""

    heard: AudioInput
    received_s: float


class Mailbox:
    """Splits audio into units, and keeps at most `limit` of them, or those of the newest message.

    A unit is at most `unit_samples` long. Nothing is lost between messages: a remainder waits for
    the next message, with its frames and its request to listen.

    Args:
        own: the minimum part of a unit at which the end of a message becomes a unit of its own.
        lost: called with the seconds of audio that were dropped.
    """

    def __init__(
        self,
        limit: int,
        unit_samples: int,
        *,
        own: float = OWN_MESSAGE,
        lost: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        self._lost = lost
        self._limit = limit
        self._unit_samples = unit_samples
        self.own = own
        self.units: deque[PendingUnit] = deque()
        """Waiting units, oldest first; read-only for others."""
        self.forces_listen = False
        """True if the next unit must listen."""
        self.partial: AudioInput | None = None
        """Input that does not fill a unit yet."""

    def hear(self, heard: AudioInput, now_s: float, *, backlog: int = 0) -> bool:
        """Add the units that this message completes, with the frames in the first one; returns True
        if there is any. If there is no room, the oldest are dropped.

        Args:
            backlog: number of additional units that may wait now, without their pictures, because a
                client that was cut off sends the audio of that time.
        """
        is_unit = len(heard.pcm) == self._unit_samples and self.partial is None
        units = [heard] if is_unit else self._cut(heard)
        limit = self._limit + backlog
        while self.units and len(self.units) + len(units) > limit:
            oldest = self.units.popleft()
            self._drop(oldest.heard)
            self._lost(oldest.heard.pcm.duration_s)
        self.units.extend(PendingUnit(unit, now_s) for unit in units)
        if len(self.units) > self._limit:
            for at in range(len(self.units) - max(self._limit, len(units))):
                self.units[at] = _without_frames(self.units[at])
        return bool(units)

    def close_unit(self, now_s: float) -> bool:
        """Make a unit of the remainder; returns False if there is none, or no room for it."""
        if self.partial is None or len(self.units) >= self._limit:
            return False
        self.units.append(PendingUnit(self.partial, now_s))
        self.partial = None
        return True

    def restore(self, units: Sequence[AudioInput], now_s: float) -> None:
        """Take over the waiting units of another mailbox."""
        self.units.extend(PendingUnit(unit, now_s) for unit in units)

    def take(self) -> PendingUnit | None:
        """Take the oldest unit. It must listen if that was requested for it or for a unit dropped
        before it."""
        if not self.units:
            return None
        unit = self.units.popleft()
        if self.forces_listen:
            self.forces_listen = False
            heard = dataclasses.replace(unit.heard, force_listen=True)
            unit = dataclasses.replace(unit, heard=heard)
        return unit

    def clear(self) -> None:
        """Drop all waiting units; a request to listen is kept."""
        while self.units:
            self._drop(self.units.popleft().heard)
        if self.partial is not None:
            self._drop(self.partial)
        self.partial = None

    def _drop(self, heard: AudioInput) -> None:
        self.forces_listen = self.forces_listen or heard.force_listen

    def _cut(self, heard: AudioInput) -> list[AudioInput]:
        """The units that this message completes, in order."""
        message_samples, size = len(heard.pcm), self._unit_samples
        if not message_samples:
            # Frames alone do not belong to the remainder of earlier audio.
            return [heard]
        if self.partial is not None:
            heard, self.partial = _joined(self.partial, heard), None
        pcm = heard.pcm
        pieces = [pcm.slice(start, start + size) for start in range(0, len(pcm), size)]
        inputs = [
            dataclasses.replace(heard, pcm=piece)
            if index == 0
            else AudioInput(piece, force_listen=heard.force_listen, max_slices=heard.max_slices)
            for index, piece in enumerate(pieces)
        ]
        last = len(pieces[-1])
        if last < size and min(last, message_samples) < round(self.own * size):
            self.partial = inputs.pop()
        return inputs


def _without_frames(unit: PendingUnit) -> PendingUnit:
    if not unit.heard.frames:
        return unit
    return dataclasses.replace(unit, heard=dataclasses.replace(unit.heard, frames=()))


def _joined(waiting: AudioInput, heard: AudioInput) -> AudioInput:
    return AudioInput(
        join([waiting.pcm, heard.pcm], heard.pcm.rate_hz),
        frames=(*waiting.frames, *heard.frames)[-FRAMES_LIMIT:],
        force_listen=waiting.force_listen or heard.force_listen,
        max_slices=waiting.max_slices if heard.max_slices is None else heard.max_slices,
    )
