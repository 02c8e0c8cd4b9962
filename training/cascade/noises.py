"""Sounds that deserve no answer, and distortions of speech. 16 kHz."""

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


def telephone(speech: Samples, random: np.random.Generator) -> Samples:
    """What a telephone leaves: 300 to 3,400 Hz, eight bits of mu-law at 8 kHz."""
    del random
    spectrum = np.fft.rfft(speech)
    hertz = np.fft.rfftfreq(len(speech), 1 / RATE_HZ)
    spectrum[(hertz < 300) | (hertz > 3400)] = 0
    narrow = np.fft.irfft(spectrum, len(speech))
    loud = np.sign(narrow) * np.log1p(255 * np.minimum(np.abs(narrow), 1)) / np.log(256)
    coarse = np.round(loud * 127) / 127
    return (np.sign(coarse) * (256 ** np.abs(coarse) - 1) / 255).astype(np.float32)


def reverberated(speech: Samples, random: np.random.Generator, seconds: float = 0.5) -> Samples:
    """In a room whose echo has fallen by 60 dB after `seconds`; a quarter of it is direct sound."""
    count = round(seconds * RATE_HZ)
    tail = random.standard_normal(count) * 10 ** (-3 * np.arange(count) / count)
    tail[: RATE_HZ // 200] = 0
    tail *= np.sqrt(3 / np.sum(tail**2))
    tail[0] = 1
    size = len(speech) + count
    wet = np.fft.irfft(np.fft.rfft(speech, size) * np.fft.rfft(tail, size), size)[: len(speech)]
    return (wet * (np.abs(speech).max() / np.abs(wet).max())).astype(np.float32)


def noisy(speech: Samples, random: np.random.Generator, ratio_db: float = 10.0) -> Samples:
    """With pink noise `ratio_db` below the speech's mean power."""
    spectrum = np.fft.rfft(random.standard_normal(len(speech)))
    spectrum /= np.sqrt(np.maximum(1, np.arange(len(spectrum))))
    noise = np.fft.irfft(spectrum, len(speech))
    power = np.mean(speech**2) / np.mean(noise**2) * 10 ** (-ratio_db / 10)
    return np.clip(speech + np.sqrt(power) * noise, -1, 1).astype(np.float32)
