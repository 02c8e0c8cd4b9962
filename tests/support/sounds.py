"""A small vocabulary of sound for tests: 16 kHz mono."""

import numpy as np

from parley.cli import files
from parley.media.pcm import Pcm, join
from parley.media.resample import resample

RATE_HZ = 16_000


def speak(seconds: float, hz: float = 300.0, level: float = 0.3) -> Pcm:
    """The user speaks, as far as loudness goes: a tone."""
    t = np.arange(round(seconds * RATE_HZ)) / RATE_HZ
    return Pcm((level * np.sin(2 * np.pi * hz * t)).astype(np.float32), RATE_HZ)


def silence(seconds: float) -> Pcm:
    """Nobody does."""
    return Pcm.silence(round(seconds * RATE_HZ), RATE_HZ)


def sequence(*parts: Pcm) -> Pcm:
    """One after the other."""
    return join(parts, RATE_HZ)


def question(rate_hz: int = 24_000) -> bytes:
    """A spoken question as 16-bit samples. Words interrupt under semantic_vad; tones are taken for
    echo there, and what is short for an acknowledgement."""
    samples = resample(files.sample(), rate_hz).samples[: round(2.2 * rate_hz)]
    data: bytes = (samples * 32767).astype("<i2").tobytes()
    return data
