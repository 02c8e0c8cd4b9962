"""Audio as a timeline of named parts, and a detector that follows such a script.

`sound(silence(1), speak(0.8), silence(1.2))` is a signal; `Script(...)` of the same parts is a
detector that returns the parts' probabilities for any input.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from parley.media.pcm import INPUT_RATE_HZ, Pcm
from parley.vad.base import WINDOW_SAMPLES

WINDOW_S = WINDOW_SAMPLES / INPUT_RATE_HZ


@dataclass(frozen=True)
class Part:
    seconds: float
    probability: float
    loudness: float


def speak(seconds: float, probability: float = 0.95) -> Part:
    return Part(seconds, probability, 0.3)


def murmur(seconds: float, probability: float = 0.7) -> Part:
    """A part whose probability is between the threshold and the end of its hysteresis."""
    return Part(seconds, probability, 0.05)


def silence(seconds: float) -> Part:
    return Part(seconds, 0.02, 0.0)


def click(seconds: float = 0.1) -> Part:
    return Part(seconds, 0.9, 0.8)


def sound(*parts: Part) -> Pcm:
    """The parts as a signal: a 220 Hz tone with each part's loudness."""
    pieces = []
    for part in parts:
        count = round(part.seconds * INPUT_RATE_HZ)
        time_s = np.arange(count) / INPUT_RATE_HZ
        pieces.append(part.loudness * np.sin(2 * np.pi * 220 * time_s))
    return Pcm(np.concatenate(pieces or [np.empty(0)]).astype(np.float32), INPUT_RATE_HZ)


def windows(count: int, probability: float) -> Part:
    """A part of exactly `count` detector windows."""
    return Part(count * WINDOW_S, probability, 0.3 if probability >= 0.5 else 0.0)


def chunks(pcm: Pcm, seconds: float = 0.5) -> list[Pcm]:
    size = round(seconds * pcm.rate_hz)
    return [pcm.slice(start, start + size) for start in range(0, len(pcm), size)]


class Script:
    """A detector whose probability is that of the part in which a window starts; silence after the
    last.

    With `is_looping` a reset starts the script again (as the next turn of a conversation would).
    """

    def __init__(self, *parts: Part, is_looping: bool = False) -> None:
        self._script: Sequence[float] = [
            part.probability
            for part in parts
            for _ in range(round(part.seconds * INPUT_RATE_HZ / WINDOW_SAMPLES))
        ]
        self._heard_samples = 0
        self.resets = 0
        self._is_looping = is_looping

    def probabilities(self, windows: np.ndarray) -> list[float]:
        assert WINDOW_SAMPLES % windows.shape[1] == 0
        starts = self._heard_samples + windows.shape[1] * np.arange(len(windows))
        self._heard_samples += windows.size
        at = [int(start) // WINDOW_SAMPLES for start in starts]
        return [self._script[index] if index < len(self._script) else 0.0 for index in at]

    def reset(self) -> None:
        self.resets += 1
        if self._is_looping:
            self._heard_samples = 0
