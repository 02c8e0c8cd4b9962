"""Sound that waits for the voice detector, and what the detector finds in the first of it."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, Final

from parley.media.pcm import INPUT_RATE_HZ, Pcm
from parley.vad import SpeechBegan, SpeechEnded, UtteranceFinder, VadEvent

BUFFER_S: Final = 120.0
"""Sound that may wait for the detector, which is a hundred times faster than speech; beyond it the
oldest is dropped."""

AT_ONCE_SAMPLES: Final = INPUT_RATE_HZ // 8
"""Sound of at most this length is listened to on the event loop: the detector takes a few tenths of
a millisecond for it, and handing it to a thread takes as long again. Clients that stream send
pieces of 20 to 100 ms."""


async def find(finder: UtteranceFinder, pcm: Pcm) -> list[VadEvent]:
    """What the detector finds in the next sound: at once in a short piece, in a thread in a long
    one."""
    if len(pcm) <= AT_ONCE_SAMPLES:
        return finder.feed(pcm)
    return await asyncio.to_thread(finder.feed, pcm)


class SoundQueue:
    """Sound in order, at most `BUFFER_S` of it or one piece; beyond that the oldest is dropped."""

    def __init__(self) -> None:
        self._pieces: deque[Pcm] = deque()
        self._waiting_s = 0.0

    def __bool__(self) -> bool:
        return bool(self._pieces)

    @property
    def pieces(self) -> tuple[Pcm, ...]:
        """What waits, oldest first."""
        return tuple(self._pieces)

    def put(self, pcm: Pcm) -> None:
        """Add what came last."""
        self._pieces.append(pcm)
        self._waiting_s += pcm.duration_s
        while self._waiting_s > BUFFER_S and len(self._pieces) > 1:
            self._waiting_s -= self._pieces.popleft().duration_s

    def take(self) -> Pcm:
        """Remove what came first; something must be there."""
        pcm = self._pieces.popleft()
        self._waiting_s -= pcm.duration_s
        return pcm

    def put_back(self, pcm: Pcm) -> None:
        """Put before all others what was taken and not used."""
        self._pieces.appendleft(pcm)
        self._waiting_s += pcm.duration_s

    def clear(self) -> None:
        """Forget all of it."""
        self._pieces.clear()
        self._waiting_s = 0.0


class ColdStart:
    """The first seconds of sound, in which a microphone that opens makes noises.

    The text wants the detector's results ignored for so long, not the sound: whoever speaks at
    once, or sends a file without pauses, is heard from the first word.
    Source: service.md 4.3, "Cold start guard".
    """

    def __init__(self, guard_s: float) -> None:
        self._left = round(guard_s * INPUT_RATE_HZ)
        self._events: list[VadEvent] = []

    @property
    def is_over(self) -> bool:
        """Whether enough has been heard."""
        return self._left <= 0

    def remembered(self) -> dict[str, Any]:
        """What it knows, as values; for `restore`."""
        return {"left": self._left, "events": list(self._events)}

    def restore(self, remembered: dict[str, Any]) -> None:
        """Know what another one knew."""
        self._left, self._events = remembered["left"], remembered["events"]

    async def feed(self, pcm: Pcm, finder: UtteranceFinder) -> Pcm | None:
        """Hear the next sound; gives what lies behind the guard, if anything does."""
        rest = None
        if len(pcm) > self._left:
            rest, pcm = pcm.slice(self._left), pcm.slice(0, self._left)
        self._left -= len(pcm)
        self._events += await find(finder, pcm)
        return rest

    def events(self, finder: UtteranceFinder) -> list[VadEvent]:
        """What was found, without bursts too short to be an utterance."""
        finder.drop_noise()
        kept: list[VadEvent] = []
        for event in self._events:
            match event:
                case SpeechEnded(utterance=None):
                    kept.pop()
                case _:
                    kept.append(event)
        if kept and isinstance(kept[-1], SpeechBegan) and not finder.is_speaking:
            kept.pop()
        return kept
