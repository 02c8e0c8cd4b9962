"""Units that wait for a duplex runner: few, the newest, and no wish for silence lost.

Pure. A live conversation prefers the newest sound: when units come faster than they are processed,
the oldest are dropped without a word. Source: service.md 3.5 and 4.5
("Flood").
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from parley.dialects.events import AudioInput
from parley.media.pcm import join
from parley.protocol.values import FRAMES_LIMIT

OWN_MESSAGE: Final = 0.25
"""A message of at least this part of a unit makes a unit of its own, as published: a shorter one
holds too little to hear. Source: service.md 4.5, minimum append."""

OWN_BY_TIME: Final = 0.75
"""The same for clients that send chunks as they like: their units are cut by media time, and only
what is nearly a whole unit already does not wait for the rest."""


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

    def put(self, units: Sequence[PendingUnit], *, backlog: int = 0) -> None:
        """Add the units of one message, dropping the oldest ones where there is no room.

        Args:
            backlog: number of further units that may wait now, without their pictures: a client
                that was cut off sends what was said meanwhile.
        """
        limit = max(self._limit + backlog, len(units))
        while self._units and len(self._units) + len(units) > limit:
            self._drop(self._units.popleft())
        self._units.extend(units)
        for at in range(len(self._units) - max(self._limit, len(units))):
            self._units[at] = _without_frames(self._units[at])

    @property
    def waiting(self) -> tuple[PendingUnit, ...]:
        """What waits, oldest first."""
        return tuple(self._units)

    @property
    def forces_listen(self) -> bool:
        """Whether the next unit taken listens."""
        return self._forces_listen

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


def _without_frames(unit: PendingUnit) -> PendingUnit:
    if not unit.heard.frames:
        return unit
    return dataclasses.replace(unit, heard=dataclasses.replace(unit.heard, frames=()))


class Cutter:
    """Cuts sound into units: at most one unit's length each.

    Nothing is lost between messages: what makes no unit yet waits for the next message, with its
    frames and its wish for silence.

    Args:
        own: the part of a unit from which on the end of a message makes a unit of its own.
    """

    def __init__(self, unit_samples: int, *, own: float = OWN_MESSAGE) -> None:
        self._unit_samples = unit_samples
        self._own_samples = round(own * unit_samples)
        self._waiting: AudioInput | None = None

    @property
    def waiting(self) -> AudioInput | None:
        """What makes no unit yet."""
        return self._waiting

    def restore(self, waiting: AudioInput | None) -> None:
        """Begin with what another one had waiting."""
        self._waiting = waiting

    def cut(self, heard: AudioInput) -> list[AudioInput]:
        """The units that are complete with this message, in order; frames with the first."""
        message_samples = len(heard.pcm)
        if not message_samples:
            # Frames alone: the rest of earlier sound is not theirs.
            return [heard]
        if self._waiting is not None:
            heard = _joined(self._waiting, heard)
            self._waiting = None
        size, pcm = self._unit_samples, heard.pcm
        pieces = [pcm.slice(start, start + size) for start in range(0, len(pcm), size)]
        inputs = [
            dataclasses.replace(heard, pcm=piece)
            if index == 0
            else AudioInput(piece, force_listen=heard.force_listen, max_slices=heard.max_slices)
            for index, piece in enumerate(pieces)
        ]
        last = len(pieces[-1])
        if last < size and min(last, message_samples) < self._own_samples:
            self._waiting = inputs.pop()
        return inputs

    def reset(self) -> None:
        """Forget what waits."""
        self._waiting = None


def _joined(waiting: AudioInput, heard: AudioInput) -> AudioInput:
    return AudioInput(
        join([waiting.pcm, heard.pcm], heard.pcm.rate_hz),
        frames=(*waiting.frames, *heard.frames)[-FRAMES_LIMIT:],
        force_listen=waiting.force_listen or heard.force_listen,
        max_slices=waiting.max_slices if heard.max_slices is None else heard.max_slices,
    )
