"""Audio that waits for the voice detector, and the detector's results."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from parley.media.pcm import INPUT_RATE_HZ, Pcm, join
from parley.session.session import Session
from parley.vad import SpeechBegan, SpeechEnded, UtteranceFinder, VadEvent

BUFFER_S: Final = 120.0
"""Length of the audio that may wait for the detector, which is a hundred times faster than real
time; beyond it the oldest is dropped."""

PIECE_S: Final = 1.0
"""Minimum length of joined pieces."""
LOOSE: Final = 100

AT_ONCE_SAMPLES: Final = INPUT_RATE_HZ // 8
"""Audio up to this length is examined on the event loop: the detector takes a few tenths of a
millisecond for it, and passing it to a thread would take the same time. Streaming clients send
pieces of 20 to 100 ms."""

THREAD_SAMPLES: Final = 10 * INPUT_RATE_HZ
"""Maximum length of audio that is examined in a thread at a time, about a tenth of a second of
work: messages may be a thousand seconds long, and other sessions share the threads."""

QUIET: Final = "quiet"
"""The deadline that is set while the user pauses, in case the client stops sending audio."""

QUIET_SPARE_S: Final = 0.25
"""Tolerated delay of a network."""


async def find(finder: UtteranceFinder, pcm: Pcm) -> list[VadEvent]:
    """The detector's results for the next audio: computed directly for a short piece, and in a
    thread for a long one or if a pause may have to be judged."""
    if len(pcm) <= AT_ONCE_SAMPLES and not finder.may_judge(len(pcm)):
        return finder.feed(pcm)
    found: list[VadEvent] = []
    for start in range(0, max(1, len(pcm)), THREAD_SAMPLES):
        piece = pcm.slice(start, start + THREAD_SAMPLES)
        found += await asyncio.to_thread(finder.feed, piece)
    return found


def wait_for_silence(session: Session, finder: UtteranceFinder) -> None:
    """Set the deadline `QUIET`, at which a client that has stopped sending audio has been silent
    for long enough. While audio arrives, only audio ends a turn."""
    missing = finder.missing_samples
    if missing is None:
        session.deadlines.clear(QUIET)
        return
    due_s = session.clock.monotonic() + missing / INPUT_RATE_HZ + QUIET_SPARE_S
    session.deadlines.set(QUIET, due_s)


class SoundQueue:
    """Audio in order, at most `limit_s` or one piece; beyond that the oldest is dropped.

    Args:
        lost: called with the seconds of audio that were dropped.
        loose: number of pieces that are kept as they arrived; further ones are joined to pieces of
            a second. A client may send single samples, and all waiting audio is written to the
            session's log.
    """

    def __init__(
        self, lost: Callable[[float], None], *, limit_s: float = BUFFER_S, loose: int = LOOSE
    ) -> None:
        self._lost = lost
        self._limit_s = limit_s
        self._loose = loose
        self._pieces: deque[Pcm] = deque()
        self.waiting_s = 0.0
        """Length of the audio."""
        self._first = 0
        """Number of the oldest piece."""

    def __len__(self) -> int:
        return len(self._pieces)

    def joined(self) -> Pcm:
        return join(self._pieces, INPUT_RATE_HZ)

    def remembered(self) -> dict[str, Pcm]:
        """The pieces by number, for `restore`."""
        return {str(number): pcm for number, pcm in enumerate(self._pieces, self._first)}

    def restore(self, remembered: dict[str, Pcm]) -> None:
        """Take over the pieces of another one."""
        for number in sorted(remembered, key=int):
            self.put(remembered[number])
        self._first = min(map(int, remembered), default=0)

    def put(self, pcm: Pcm) -> None:
        """Add audio; a resampler returns no samples for a very short piece, which adds nothing."""
        if not len(pcm):
            return
        self.waiting_s += pcm.duration_s
        if len(self._pieces) > self._loose and self._pieces[-1].duration_s < PIECE_S:
            pcm = join((self._pieces.pop(), pcm), INPUT_RATE_HZ)
        self._pieces.append(pcm)
        while self.waiting_s > self._limit_s and len(self._pieces) > 1:
            self._lost(self.take().duration_s)

    def take(self) -> Pcm:
        """Remove the oldest piece; there must be one."""
        pcm = self._pieces.popleft()
        self._first += 1
        self.waiting_s -= pcm.duration_s
        return pcm

    def put_back(self, *pieces: Pcm, behind: int = 0) -> None:
        """Insert audio ahead of all other pieces, except the first `behind`."""
        self._first -= len(pieces)
        for place, pcm in enumerate(pieces, min(behind, len(self._pieces))):
            self._pieces.insert(place, pcm)
            self.waiting_s += pcm.duration_s

    def clear(self) -> None:
        self._first += len(self._pieces)
        self._pieces.clear()
        self.waiting_s = 0.0


class ColdStart:
    """The first seconds of audio, in which a microphone that is switched on makes noises.

    Speech that ends within them is ignored, as the source requires. Speech that continues beyond
    them counts from its start. A pause that starts within them leaves that open: if the speech
    resumes, it counts. Source: service.md 4.3, "Cold start guard".
    """

    def __init__(self, guard_s: float) -> None:
        self._guard_samples = self._left = round(guard_s * INPUT_RATE_HZ)
        self._began: SpeechBegan | None = None

    @property
    def is_over(self) -> bool:
        return self._left <= 0

    @property
    def is_undecided(self) -> bool:
        """True if the open utterance may still turn out to have ended within the guard."""
        return self._began is not None

    def remembered(self) -> dict[str, Any]:
        """Its state as values, for `restore`."""
        return {"left": self._left, "began": self._began}

    def restore(self, remembered: dict[str, Any]) -> None:
        """Take over the state of another one."""
        self._left, self._began = remembered["left"], remembered["began"]

    async def feed(self, pcm: Pcm, finder: UtteranceFinder) -> tuple[list[VadEvent], Pcm | None]:
        """Process the next audio; when the guard ends, returns the events that count and the audio
        after it."""
        rest = None
        if len(pcm) > self._left:
            rest, pcm = pcm.slice(self._left), pcm.slice(0, self._left)
        self._left -= len(pcm)
        for event in await find(finder, pcm):
            self._began = event if isinstance(event, SpeechBegan) else None
        return (self.counted([], finder) if self.is_over else []), rest

    def skip(self, finder: UtteranceFinder) -> list[VadEvent]:
        """The user has done something else: end the guard. Returns the audio that counts."""
        self._left = 0
        return self.counted([], finder)

    def counted(self, events: list[VadEvent], finder: UtteranceFinder) -> list[VadEvent]:
        """The events after the guard that count, including the start of an utterance that started
        within it."""
        began = self._began
        if began is None:
            return events
        if events and isinstance(events[0], SpeechEnded):
            self._began = None
            is_over = events[0].at_sample <= self._guard_samples
            return events[1:] if is_over else [began, *events]
        pause = finder.pause_start
        if pause is not None and pause <= self._guard_samples:
            return events
        self._began = None
        return [began, *events]
