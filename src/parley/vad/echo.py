"""Does the microphone hear what the assistant plays? Compares the two; pure, as `interruption.py`.

What sounds like what was played in the last seconds is the assistant's echo: the normalised
cross-correlation of the two finds it at any delay and level. Times are monotonic seconds.

Source: docs/understand/interruptions.md.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from parley.media.pcm import Pcm, Samples
from parley.media.resample import resample
from parley.vad.base import RATE_HZ

ECHO_ALIKE: Final = 0.6
"""Correlation from which a sound is what was played. Of 97 in 100 echoes it is above 0.85, above
0.64 in a reverberant room; of two speakers it stays below 0.56."""

ECHO_S: Final = 5.0
"""How long after playing an echo may come: what clients buffer, and the room."""

KNOWN_ECHO_S: Final = 0.4
"""The same where the client says what it has played: its devices, and the room."""

EARLY_S: Final = 1.0
"""How much sooner than computed a client may play: it may have thrown away what came before."""

WAITING_S: Final = 90.0
"""Sound that may wait to be played, sent ahead; beyond it the oldest is forgotten."""

PAUSE_S: Final = 0.05
"""Sound that begins no later than this behind other sound belongs to it."""

ECHO_RATE_HZ: Final = 4000
"""Echoes are looked for below 2 kHz, where voices are strong: a twentieth of the work."""


@dataclass(frozen=True, slots=True, eq=False)
class _Piece:
    """Sound at `ECHO_RATE_HZ`, and when its first sample is played."""

    samples: Samples
    starts_s: float

    @property
    def ends_s(self) -> float:
        return self.starts_s + len(self.samples) / ECHO_RATE_HZ

    def between(self, start_s: float, end_s: float) -> Samples:
        """What of it is played in that time."""
        first, last = (round((at_s - self.starts_s) * ECHO_RATE_HZ) for at_s in (start_s, end_s))
        return self.samples[max(0, first) : max(0, last)]


class PlayedSound:
    """What a client has been sent and when it plays it. Memory is bounded by `WAITING_S` of sound,
    1.4 MB."""

    def __init__(self) -> None:
        self._pieces: deque[_Piece] = deque()
        self._samples = 0
        self._echo_s = ECHO_S

    def play(self, pcm: Pcm, starts_s: float) -> None:
        """The next sound, of any rate; its first sample is played at `starts_s`."""
        piece = _Piece(resample(pcm, ECHO_RATE_HZ).samples, starts_s)
        self._pieces.append(piece)
        self._samples += len(piece.samples)
        while self._samples > WAITING_S * ECHO_RATE_HZ and len(self._pieces) > 1:
            self._drop()

    def cut(self, at_s: float) -> None:
        """What is not played by then never will be."""
        self._pieces = deque(
            _Piece(piece.between(piece.starts_s, at_s), piece.starts_s)
            for piece in self._pieces
            if piece.starts_s < at_s
        )
        self._samples = sum(len(piece.samples) for piece in self._pieces)

    def move(self, seconds: float) -> None:
        """The client says that it plays what it was sent last so much later than it was taken
        to."""
        self._echo_s = KNOWN_ECHO_S
        moved: deque[_Piece] = deque()
        while self._pieces:
            piece = self._pieces.pop()
            moved.appendleft(replace(piece, starts_s=piece.starts_s + seconds))
            if not self._pieces or piece.starts_s - self._pieces[-1].ends_s > PAUSE_S:
                break
        self._pieces += moved

    def is_heard_in(self, heard: Sequence[Samples], at_s: float) -> bool:
        """Whether the microphone's last windows, 16 kHz, the last of which ended at `at_s`, are an
        echo."""
        since_s = at_s - self._echo_s - sum(map(len, heard)) / RATE_HZ
        while self._pieces and self._pieces[0].ends_s <= since_s:
            self._drop()
        if not self._pieces:
            return False
        sound = resample(Pcm(np.concatenate(heard), RATE_HZ), ECHO_RATE_HZ).samples
        return likeness(sound, self._between(since_s, at_s + EARLY_S, len(sound))) >= ECHO_ALIKE

    def _between(self, start_s: float, end_s: float, pause_samples: int) -> Samples:
        """What is played in that time; pauses are shortened to `pause_samples`."""
        found: list[Samples] = []
        pause = np.zeros(pause_samples, np.float32)
        last_s = start_s
        for piece in self._pieces:
            near = piece.between(start_s, end_s)
            if len(near):
                gap_s = min(piece.starts_s - last_s, pause_samples / ECHO_RATE_HZ)
                found += [pause[: max(0, round(gap_s * ECHO_RATE_HZ))], near]
                last_s = piece.ends_s
        return np.concatenate(found) if found else pause[:0]

    def _drop(self) -> None:
        self._samples -= len(self._pieces.popleft().samples)


def likeness(heard: Samples, played: Samples) -> float:
    """The largest normalised cross-correlation of `heard` with any stretch of `played`, 0 to 1."""
    if len(played) < len(heard) or not heard.any():
        return 0.0
    size = 1 << (len(played) + len(heard) - 1).bit_length()
    products = np.fft.irfft(np.fft.rfft(played, size) * np.conj(np.fft.rfft(heard, size)), size)[
        : len(played) - len(heard) + 1
    ]
    powers = np.cumsum(np.concatenate([[0.0], played.astype(np.float64) ** 2]))
    power = powers[len(heard) :] - powers[: -len(heard)]
    # Silence is like nothing.
    least = 1e-6 * len(heard)
    norm = np.sqrt(
        np.maximum(power, least) * max(float(np.sum(heard.astype(np.float64) ** 2)), 1e-12)
    )
    return float(np.max(np.abs(products) / norm))
