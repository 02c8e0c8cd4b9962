"""A small vocabulary of sound for tests: 16 kHz mono."""

import numpy as np

from parley.media.pcm import Pcm, join

RATE_HZ = 16_000


def speak(seconds: float, hz: float = 300.0, level: float = 0.3) -> Pcm:
    """Somebody speaks, as far as loudness goes: a tone."""
    t = np.arange(round(seconds * RATE_HZ)) / RATE_HZ
    return Pcm((level * np.sin(2 * np.pi * hz * t)).astype(np.float32), RATE_HZ)


def silence(seconds: float) -> Pcm:
    """Nobody does."""
    return Pcm.silence(round(seconds * RATE_HZ), RATE_HZ)


def sequence(*parts: Pcm) -> Pcm:
    """One after the other."""
    return join(parts, RATE_HZ)
