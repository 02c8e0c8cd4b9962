"""Waveforms for the ears: rooms, noise, bands, levels; and the log-mel they are heard as.

`N` samples at 16 kHz, `F` mel frames at 100 Hz, `B` batch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from random import Random

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from transformers.audio_utils import mel_filter_bank

Samples = npt.NDArray[np.float32]
RATE_HZ = 16_000
HOP = 160


def log_mel(waves: Sequence[Samples], *, is_floored: Sequence[bool]) -> tuple[Tensor, Tensor]:
    """Whisper's features of each wave, right-padded: (B, F, 80) and frames (B,).

    `is_floored` says per wave whether values lie at most 8 (log10) below the loudest, as in the
    offline path and in streams from 5 s on; otherwise only the absolute floor of -10 holds.
    """
    window, bank = _mel_tools()
    features = []
    for wave, floored in zip(waves, is_floored, strict=True):
        spectrum = torch.stft(
            torch.from_numpy(wave), 400, HOP, window=window, center=True, return_complex=True
        )
        power = spectrum[:, :-1].abs().square()
        logs = (bank @ power).clamp(min=1e-10).log10()
        if floored:
            logs = logs.maximum(logs.max() - 8)
        features.append(((logs + 4) / 4).T)
    frames = torch.tensor([len(f) for f in features])
    # A few lengths only: kernels are chosen per shape.
    length = int(frames.max())
    length += -length % 40
    batch = torch.zeros(len(features), length, features[0].shape[1])
    for row, feature in zip(batch, features, strict=True):
        row[: len(feature)] = feature
    return batch, frames


@functools.cache
def _mel_tools() -> tuple[Tensor, Tensor]:
    bank = mel_filter_bank(201, 80, 0.0, 8000.0, RATE_HZ, norm="slaney", mel_scale="slaney")
    return torch.hann_window(400), torch.from_numpy(np.ascontiguousarray(bank.T)).float()


def warp(samples: Samples, factor: float) -> Samples:
    """Played `factor` times as fast: pitch and formants move together, another speaker's size."""
    positions = np.arange(0, len(samples) - 1, factor, dtype=np.float64)
    return np.interp(positions, np.arange(len(samples)), samples).astype(np.float32)


def in_a_place(samples: Samples, random: Random, *, snr_db: float | None = None) -> Samples:
    """The same sound as a microphone somewhere would give it. `snr_db` fixes the noise level."""
    out = samples
    if random.random() < 0.35:
        out = reverberate(out, random)
    if random.random() < 0.25:
        out = tilt(out, random)
    peak = float(np.abs(out).max()) or 1.0
    out = out * (10 ** random.uniform(-1.4, -0.05) / peak)
    if snr_db is None and random.random() < 0.75:
        snr_db = random.choice((random.uniform(3, 20), random.uniform(15, 45)))
    if snr_db is not None:
        out = add_noise(out, noise(len(out), random), snr_db)
    return out.astype(np.float32)


def noise(count: int, random: Random) -> Samples:
    """White, pink, brown or humming noise of `count` samples, about unit power, not steady."""
    draw = np.random.default_rng(random.getrandbits(32))
    white = draw.standard_normal(count).astype(np.float32)
    kind = random.random()
    if kind < 0.35:
        made = white
    else:
        slope = random.choice((0.5, 1.0))
        spectrum = np.fft.rfft(white)
        spectrum /= np.maximum(np.arange(len(spectrum)), count / 400) ** slope
        made = np.fft.irfft(spectrum, count).astype(np.float32)
        if kind > 0.85:
            hertz = random.choice((50, 60, 100, 120))
            t = np.arange(count) / RATE_HZ
            hum = sum(np.sin(2 * np.pi * hertz * k * t) / k for k in range(1, 5))
            made = made / (made.std() + 1e-9) + hum.astype(np.float32)
    made = made / (made.std() + 1e-9)
    if random.random() < 0.3:
        swell = np.interp(np.arange(count), np.linspace(0, count, 8), draw.uniform(0.2, 1.5, 8))
        made = made * swell.astype(np.float32)
    return made.astype(np.float32)


def add_noise(samples: Samples, disturbance: Samples, snr_db: float) -> Samples:
    """`disturbance` at `snr_db` below the power of the parts of `samples` that are not silent."""
    loud = samples[np.abs(samples) > 0.02 * (np.abs(samples).max() + 1e-9)]
    power = float((loud**2).mean()) if len(loud) else 1e-4
    gain = np.sqrt(power / 10 ** (snr_db / 10) / (float((disturbance**2).mean()) + 1e-12))
    return (samples + gain * disturbance[: len(samples)]).astype(np.float32)


def reverberate(samples: Samples, random: Random) -> Samples:
    """A small room: exponentially dying noise after the direct sound."""
    length = int(RATE_HZ * random.uniform(0.08, 0.3))
    draw = np.random.default_rng(random.getrandbits(32))
    tail = draw.standard_normal(length) * np.exp(-np.arange(length) / (length / 5))
    tail *= random.uniform(0.05, 0.35) / (np.abs(tail).sum() ** 0.5)
    tail[0] = 1.0
    return _filter(samples, lambda n: np.fft.rfft(tail, n))


def tilt(samples: Samples, random: Random) -> Samples:
    """A band limit (telephone, cheap microphone) or a slope over frequency."""
    low, high = random.choice(((0, 8000), (200, 3600), (80, 6000), (300, 8000)))
    slope = random.uniform(-0.6, 0.6)

    def response(n: int) -> npt.NDArray[np.float64]:
        hertz = np.fft.rfftfreq(n, 1 / RATE_HZ)
        edge = 1 / (1 + (np.maximum(low, 1) / np.maximum(hertz, 1)) ** 6)
        edge = edge / (1 + (hertz / high) ** 12)
        return edge * ((hertz + 200) / 1500) ** slope

    return _filter(samples, response)


def _filter(samples: Samples, response: Callable[[int], npt.NDArray]) -> Samples:
    n = 1 << (len(samples) + 8000).bit_length()
    out = np.fft.irfft(np.fft.rfft(samples, n) * response(n), n)[: len(samples)]
    return out.astype(np.float32)
