"""Sounds that nobody should be answered for: coughs, clicks, music, a quiet room. 16 kHz."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Samples = npt.NDArray[np.float32]
RATE_HZ = 16_000


def cough(random: np.random.Generator) -> Samples:
    """Two or three bursts of noise through the resonances of an open mouth."""
    bursts = []
    for _ in range(int(random.integers(1, 4))):
        count = int(random.uniform(0.12, 0.3) * RATE_HZ)
        time = np.arange(count) / RATE_HZ
        noise = random.standard_normal(count)
        spectrum = np.fft.rfft(noise)
        hertz = np.fft.rfftfreq(count, 1 / RATE_HZ)
        shape = sum(
            np.exp(-(((hertz - peak * random.uniform(0.85, 1.15)) / width) ** 2))
            for peak, width in ((600, 200), (1300, 300), (2600, 600))
        )
        burst = np.fft.irfft(spectrum * shape, count)
        burst *= np.minimum(1, time / 0.008) * np.exp(-time / random.uniform(0.05, 0.12))
        bursts += [burst / np.abs(burst).max(), np.zeros(int(random.uniform(0.05, 0.2) * RATE_HZ))]
    return (random.uniform(0.2, 0.7) * np.concatenate(bursts)).astype(np.float32)[:RATE_HZ]


def click(random: np.random.Generator) -> Samples:
    """A key, a cup, a switch: some milliseconds, or a few of them."""
    sound = np.zeros(RATE_HZ, np.float32)
    for _ in range(int(random.integers(1, 5))):
        start = int(random.integers(0, RATE_HZ - 1200))
        time = np.arange(1000) / RATE_HZ
        ring = np.sin(2 * np.pi * random.uniform(300, 4000) * time)
        sound[start : start + 1000] += (
            random.uniform(0.2, 0.8) * np.exp(-time / random.uniform(0.002, 0.015)) * ring
        ).astype(np.float32)
    return np.clip(sound, -1, 1)


def music(random: np.random.Generator, seconds: float = 1.0, level_db: float = -20.0) -> Samples:
    """Chords with overtones and a melody above them."""
    count = round(seconds * RATE_HZ)
    sound = np.zeros(count)
    root = 110 * 2 ** (random.integers(0, 12) / 12)
    for start in range(0, count, RATE_HZ // 4):
        note = root * 2 ** (random.choice([12, 14, 16, 19, 21, 24]) / 12)
        for hertz, share in ((root, 0.5), (root * 1.26, 0.4), (root * 1.5, 0.4), (note, 1.0)):
            time = np.arange(min(RATE_HZ // 4, count - start)) / RATE_HZ
            for overtone in range(1, 6):
                wave = np.sin(2 * np.pi * hertz * overtone * time) * np.exp(-3 * time) / overtone
                sound[start : start + len(time)] += share * wave
    loud = np.sqrt(np.mean(sound**2))
    return (sound / loud * 10 ** (level_db / 20)).astype(np.float32)
