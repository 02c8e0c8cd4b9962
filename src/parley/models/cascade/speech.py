"""Speech of one conversation, clause by clause, by a local voice or one on a server.

A server's audio is taken as it arrives, so that no other conversation waits for it. While the
server fails, the local voice that stands in for it speaks.
"""

from __future__ import annotations

import math
import time
from typing import Final, NamedTuple

import numpy as np

from parley.clock import Backoff
from parley.media.pcm import Samples
from parley.models.cascade.parts import Speaker
from parley.models.cascade.remote_voice import RemoteSpeaker, SpeechStream

FIRST_REST_S: Final = 5.0
LAST_REST_S: Final = 60.0
"""Time for which a conversation does not ask a server that has failed: at first, and at most."""


class ClauseAudio(NamedTuple):
    """Audio of a clause (N,) that has arrived; `is_last`: nothing of it follows."""

    samples: Samples
    is_last: bool


class Synthesis:
    """See the module's docstring.

    Args:
        speaker: None for text only.
    """

    def __init__(self, speaker: Speaker | None) -> None:
        self._speaker = speaker
        self._clause = ""
        self._running: SpeechStream | None = None
        self._received: list[Samples] = []
        self._has_audio = False
        self._backoff = Backoff(FIRST_REST_S, LAST_REST_S)
        self._asks_from_s = 0.0
        self._has_failed = False

    @property
    def waits_s(self) -> float:
        """Infinity if a server has sent nothing since the last call; else 0 (`Job.waits_s`)."""
        return math.inf if self._running is not None and self._running.is_waiting else 0.0

    def take_failure(self) -> bool:
        """True if the server has failed since the last call."""
        has_failed, self._has_failed = self._has_failed, False
        return has_failed

    def cancel(self) -> None:
        """Close the request for a clause whose rest is not needed."""
        if self._running is not None:
            self._running.cancel()
        self._running, self._received = None, []

    def whole(self, clause: str, voice: int) -> ClauseAudio | None:
        """A clause in one portion; None if it is not complete yet."""
        portion = self.next(clause, voice)
        if portion is None:
            return None
        self._received.append(portion.samples)
        if not portion.is_last:
            return None
        received, self._received = self._received, []
        return ClauseAudio(np.concatenate(received), is_last=True)

    def next(self, clause: str, voice: int) -> ClauseAudio | None:
        """What has arrived of a clause since the last call; None: nothing."""
        assert self._speaker is not None
        if self._running is None or self._clause != clause:
            self.cancel()
            asks = isinstance(self._speaker, RemoteSpeaker) and any(map(str.isalnum, clause))
            if not asks or time.monotonic() < self._asks_from_s:
                return ClauseAudio(self._speaker.say(clause, voice), is_last=True)
            assert isinstance(self._speaker, RemoteSpeaker)
            self._running, self._clause = self._speaker.begin(clause), clause
            self._has_audio = False
            return None
        pieces, is_last = self._running.taken()
        self._has_audio |= bool(pieces)
        if is_last:
            problem, self._running = self._running.problem, None
            if problem is None:
                self._backoff.reset()
            else:
                self._has_failed = True
                self._asks_from_s = time.monotonic() + self._backoff.take()
                if not self._has_audio:
                    pieces = [self._speaker.say(clause, voice)]
        if not (pieces or is_last):
            return None
        return ClauseAudio(np.concatenate([*pieces, np.zeros(0, np.float32)]), is_last)
