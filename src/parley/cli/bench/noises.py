"""Generated sounds: a quiet room, coughs and clicks, music; and speech in a crowd and from a
loudspeaker.

All are mono float32 at 16 kHz; levels in dB of full scale (RMS).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from parley.media.pcm import INPUT_RATE_HZ, Samples


def at_level(samples: npt.NDArray[np.floating], dbfs: float) -> Samples:
    power = float(np.mean(samples.astype(np.float64) ** 2))
    scaled = samples * (10 ** (dbfs / 20) / np.sqrt(max(power, 1e-12)))
    return np.asarray(scaled, np.float32)


def room(seconds: float, dbfs: float = -60.0, seed: int = 1) -> Samples:
    """The noise of a quiet room."""
    rng = np.random.default_rng(seed)
    return at_level(rng.standard_normal(round(seconds * INPUT_RATE_HZ)), dbfs)


def coughs(seconds: float) -> Samples:
    """A cough or a click every two seconds, in a quiet room."""
    rng = np.random.default_rng(2)
    sound = room(seconds, seed=2)
    for index, start_s in enumerate(np.arange(1.0, seconds - 1.0, 2.0).tolist()):
        burst = _cough(rng) if index % 3 else _click(rng)
        start = round(start_s * INPUT_RATE_HZ)
        sound[start : start + len(burst)] += burst
    return sound


def _cough(rng: np.random.Generator) -> Samples:
    count = round(INPUT_RATE_HZ * rng.uniform(0.15, 0.4))
    blast = rng.standard_normal(count) * np.exp(-np.arange(count) / (0.08 * INPUT_RATE_HZ))
    sound = np.concatenate([blast, np.zeros(INPUT_RATE_HZ // 20), 0.6 * blast])
    hz = np.fft.rfftfreq(len(sound), 1 / INPUT_RATE_HZ)
    throat = 1 / (1 + ((hz - 900) / 700) ** 2) + 0.3 / (1 + ((hz - 2500) / 900) ** 2)
    return at_level(np.fft.irfft(np.fft.rfft(sound) * throat, len(sound)), -22)


def _click(rng: np.random.Generator) -> Samples:
    sound = np.zeros(INPUT_RATE_HZ // 50, np.float32)
    sound[:40] = 0.6 * rng.standard_normal(40) * np.exp(-np.arange(40) / 10)
    return sound


def music(seconds: float) -> Samples:
    """Chords with decaying overtones, two per second."""
    rng = np.random.default_rng(3)
    sound = np.zeros(round(seconds * INPUT_RATE_HZ))
    for start in range(0, len(sound), INPUT_RATE_HZ // 2):
        root_hz = 220 * 2 ** (rng.choice([0, 2, 4, 5, 7, 9, 11, 12]) / 12)
        time_s = np.arange(min(len(sound) - start, round(0.9 * INPUT_RATE_HZ))) / INPUT_RATE_HZ
        for ratio, part in ((1, 1.0), (1.25, 0.7), (1.5, 0.7), (2, 0.4), (3, 0.2)):
            tone = np.sin(2 * np.pi * root_hz * ratio * time_s) * np.exp(-3 * time_s)
            sound[start : start + len(time_s)] += part * tone
    return at_level(sound, -26.0)


def crowd(
    seconds: float, talks: Sequence[Samples], dbfs: float = -36.0, voices: int = 6
) -> Samples:
    """Several people who talk continuously at the same time.

    Args:
        talks: their speech, in turn; each person starts at a different position.
    """
    count = round(seconds * INPUT_RATE_HZ)
    sound = np.zeros(count)
    for index in range(voices):
        talk = talks[index % len(talks)]
        start = index * len(talk) // voices
        sound += np.tile(talk, 2 + count // len(talk))[start : start + count]
    return at_level(sound, dbfs)


def echo(played: Samples, delay_s: float = 0.25, drop_db: float = 20.0) -> Samples:
    """A loudspeaker as a microphone records it."""
    late = np.concatenate([np.zeros(round(delay_s * INPUT_RATE_HZ)), played])[: len(played)]
    return np.asarray(late * 10 ** (-drop_db / 20), np.float32)


def in_room(dry: Samples, seconds: float = 0.4, direct_db: float = 6.0, seed: int = 4) -> Samples:
    """The same in a reverberant room, at the same level.

    Args:
        seconds: reverberation time (decay by 60 dB).
        direct_db: level of the direct sound relative to all reflections.
    """
    rng = np.random.default_rng(seed)
    count = round(seconds * INPUT_RATE_HZ)
    walls = rng.standard_normal(count) * 10 ** (-3 * np.arange(count) / count)
    walls[: INPUT_RATE_HZ // 500] = 0
    walls *= 10 ** (-direct_db / 20) / np.sqrt(np.sum(walls**2))
    walls[0] = 1.0
    size = 1 << (len(dry) + count - 1).bit_length()
    wet = np.fft.irfft(np.fft.rfft(dry, size) * np.fft.rfft(walls, size), size)[: len(dry)]
    return at_level(wet, 10 * np.log10(max(float(np.mean(dry.astype(np.float64) ** 2)), 1e-12)))
