"""Simple audio for tests: 16 kHz mono."""

import numpy as np

from parley.cli import files
from parley.media.pcm import Pcm, join
from parley.media.resample import resample

RATE_HZ = 16_000


def speak(seconds: float, hz: float = 300.0, level: float = 0.3) -> Pcm:
    """A tone as loud as a user's speech."""
    t = np.arange(round(seconds * RATE_HZ)) / RATE_HZ
    return Pcm((level * np.sin(2 * np.pi * hz * t)).astype(np.float32), RATE_HZ)


def silence(seconds: float) -> Pcm:
    """Silence of this length."""
    return Pcm.silence(round(seconds * RATE_HZ), RATE_HZ)


def sequence(*parts: Pcm) -> Pcm:
    """The parts, one after the other."""
    return join(parts, RATE_HZ)


def question(rate_hz: int = 24_000) -> bytes:
    """A spoken question as 16-bit samples. Under semantic_vad words interrupt, while tones are
    treated as echo and short sounds as acknowledgements."""
    samples = resample(files.sample(), rate_hz).samples[: round(2.2 * rate_hz)]
    data: bytes = (samples * 32767).astype("<i2").tobytes()
    return data
