"""Synthesises the samples of a voice: pulses and noise, filtered by the spectrum of each frame.

The spectral envelope is represented by 60 coefficients (a cosine transform of the logarithm over a
mel axis), aperiodicity by three bands 3 kHz apart; both as in the WORLD vocoder, whose synthesis
this module follows in numpy: each pulse has the minimum-phase response of its moment.

Shapes: `F` frames of 12.5 ms, `N` samples at 24 kHz, `K` = 513 bins, `P` pulses.
"""

from __future__ import annotations

import functools
import math

import numpy as np
import numpy.typing as npt

from parley.media.pcm import Samples

RATE_HZ = 24_000
HOP = 300
FFT = 1024
BINS = FFT // 2 + 1
MEL_LOW, MEL_TOP = (1127.01048 * math.log(hertz / 700 + 1) for hertz in (40, RATE_HZ / 2))
"""Range of the mel axis."""

Floats = npt.NDArray[np.float64]


@functools.cache
def _envelope_table(count: int) -> Floats:
    """Inverse cosine transform, at each bin's position on the mel axis (C, K)."""
    mel = 1127.01048 * np.log(np.arange(BINS) * RATE_HZ / FFT / 700 + 1)
    places = np.clip((mel - MEL_LOW) / (MEL_TOP - MEL_LOW) * (BINS - 1), 0, BINS - 1)
    k = np.arange(count)[:, None]
    table = np.cos(math.pi * (np.arange(BINS) + 0.5) * k / BINS)
    return np.array([np.interp(places, np.arange(BINS), row) for row in table])


def envelope(coefficients: Floats) -> Floats:
    """Coefficients (F, C) to the natural logarithm of power (F, K)."""
    return coefficients @ _envelope_table(coefficients.shape[1])


@functools.cache
def _band_table(count: int) -> Floats:
    """Share of each band's edge, 3 kHz apart, in each bin (A + 2, K)."""
    axis = [*(3000.0 * n for n in range(count + 1)), RATE_HZ / 2]
    hertz = np.arange(BINS) * RATE_HZ / FFT
    return np.array([np.interp(hertz, axis, edge) for edge in np.eye(count + 2)])


def aperiodicity(bands: Floats) -> Floats:
    """Bands in decibels (F, A), 3 kHz apart, to the noise share of the amplitude (F, K)."""
    full = np.pad(bands, ((0, 0), (1, 1)), constant_values=((0, 0), (-60, 0)))
    result: Floats = 10 ** (np.clip(full @ _band_table(bands.shape[1]), -60, 0) / 20)
    return result


def _responses(log_power: Samples, late: Samples) -> Samples:
    """Minimum-phase responses (P, FFT) with the log power spectra (P, K), each moved to an earlier
    time by `late` (P,) samples."""
    cepstrum = np.fft.irfft(log_power / 2, FFT)
    cepstrum[:, 1 : FFT // 2] *= 2
    cepstrum[:, FFT // 2 + 1 :] = 0
    spectra = np.fft.rfft(cepstrum)
    angle = spectra.imag + late[:, None] * np.arange(BINS, dtype=np.float32) * (2 * np.pi / FFT)
    # Of complex numbers, `np.exp` takes several times as long.
    size = np.exp(spectra.real)
    spectra.real, spectra.imag = size * np.cos(angle), size * np.sin(angle)
    return np.fft.irfft(spectra, FFT).astype(np.float32, copy=False)


def synthesise(hertz: Floats, log_power: Floats, noise_share: Floats) -> Samples:
    """Synthesise a voice.

    Args:
        hertz: pitch (F,); 0 for frames that are only noise.
        log_power: natural logarithm of power (F, K).
        noise_share: share of noise in amplitude (F, K).
    """
    count = len(hertz) * HOP
    is_voiced = hertz > 0
    power = log_power.astype(np.float32)
    share = np.where(is_voiced[:, None], noise_share, 1.0).astype(np.float32)
    out = np.zeros(count + 2 * FFT, np.float32)
    _add_pulses(out, hertz, is_voiced, power, share)
    _add_noise(out, power, share)
    return out[:count]


def _add_pulses(
    out: Samples, hertz: Floats, is_voiced: npt.NDArray[np.bool_], power: Samples, share: Samples
) -> None:
    frames = len(hertz)
    if not is_voiced.any():
        return
    times = (np.arange(frames) + 0.5) * HOP
    samples = np.arange(frames * HOP)
    known = np.flatnonzero(is_voiced)
    pitch = np.interp(samples, times[known], hertz[known])
    gate = is_voiced[np.minimum(samples // HOP, frames - 1)]
    phase = np.cumsum(pitch / RATE_HZ)
    crossed = np.flatnonzero(np.floor(phase[1:]) > np.floor(phase[:-1])) + 1
    crossed = crossed[gate[crossed]]
    if not len(crossed):
        return
    late = (phase[crossed] % 1) / (pitch[crossed] / RATE_HZ)
    spot = np.clip(crossed / HOP - 0.5, 0, frames - 1)
    noise = _between(spot, share)
    # A pulse is `late` samples before the sample at which it was detected.
    pulses = _between(spot, power) + np.log(np.maximum(1 - noise**2, 1e-6))
    rings = _responses(pulses, late.astype(np.float32))
    rings[:, -8:] = 0
    rings *= np.sqrt(RATE_HZ / pitch[crossed])[:, None]
    for start, ring in zip(crossed.tolist(), rings, strict=True):
        out[start : start + FFT] += ring


def _add_noise(out: Samples, power: Samples, share: Samples) -> None:
    size, hop, frames = 256, 75, len(power)
    count = frames * HOP // hop
    noise = np.random.default_rng(1).standard_normal(count * hop + size).astype(np.float32)
    pieces = np.lib.stride_tricks.sliding_window_view(noise, size)[::hop][:count]
    # Squared Hann windows at 75 of 256 samples sum to 1.28.
    window = np.hanning(size + 1)[:-1].astype(np.float32)
    # 256-point spectra are enough for noise: every fourth bin of the 1024-point one.
    gains = np.exp(0.5 * power[:, ::4]) * share[:, ::4]
    spot = np.clip((np.arange(count) * hop + size / 2) / HOP - 0.5, 0, frames - 1)
    waves = np.fft.irfft(np.fft.rfft(pieces * window) * _between(spot, gains), size)
    waves *= window / 1.28
    # Pieces of the same place in their frames do not overlap.
    for start in range(0, HOP, hop):
        places = out[start : start + frames * HOP].reshape(frames, HOP)
        places[:, :size] += waves[start // hop :: HOP // hop]


def _between(spot: Floats, values: Samples) -> Samples:
    """Values (F, K), interpolated at positions between frames (P,): (P, K)."""
    low = np.floor(spot).astype(int)
    part = (spot - low).astype(np.float32)[:, None]
    high = np.minimum(low + 1, len(values) - 1)
    result: Samples = values[low] * (1 - part) + values[high] * part
    return result
