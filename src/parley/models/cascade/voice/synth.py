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
def _envelope_tables(count: int) -> tuple[Floats, Floats]:
    """Inverse cosine transform (C, 513 mel points), and each bin's position on the mel axis
    (K,)."""
    mel = 1127.01048 * np.log(np.arange(BINS) * RATE_HZ / FFT / 700 + 1)
    places = np.clip((mel - MEL_LOW) / (MEL_TOP - MEL_LOW) * (BINS - 1), 0, BINS - 1)
    k = np.arange(count)[:, None]
    return np.cos(math.pi * (np.arange(BINS) + 0.5) * k / BINS), places


def envelope(coefficients: Floats) -> Floats:
    """Coefficients (F, C) to the natural logarithm of power (F, K)."""
    table, places = _envelope_tables(coefficients.shape[1])
    mel = coefficients @ table
    low = np.floor(places).astype(int)
    high = np.minimum(low + 1, mel.shape[1] - 1)
    part = places - low
    result: Floats = mel[:, low] * (1 - part) + mel[:, high] * part
    return result


def aperiodicity(bands: Floats) -> Floats:
    """Bands in decibels (F, A), 3 kHz apart, to the noise share of the amplitude (F, K)."""
    hertz = np.arange(BINS) * RATE_HZ / FFT
    axis = np.array([0.0, *(3000.0 * (n + 1) for n in range(bands.shape[1])), RATE_HZ / 2])
    full = np.concatenate((np.full((len(bands), 1), -60.0), bands, np.zeros((len(bands), 1))), 1)
    place = np.clip(np.searchsorted(axis, hertz, side="right") - 1, 0, len(axis) - 2)
    part = (hertz - axis[place]) / (axis[place + 1] - axis[place])
    decibels = full[:, place] * (1 - part) + full[:, place + 1] * part
    result: Floats = 10 ** (np.clip(decibels, -60, 0) / 20)
    return result


def minimum_phase(log_power: Floats) -> npt.NDArray[np.complex128]:
    """Log power spectra (P, K) to spectra of the minimum-phase response with that power (P, K)."""
    full = np.concatenate((log_power, log_power[:, -2:0:-1]), 1) / 2
    cepstrum = np.fft.ifft(full, axis=1).real
    cepstrum[:, 1 : FFT // 2] *= 2
    cepstrum[:, FFT // 2 + 1 :] = 0
    result: npt.NDArray[np.complex128] = np.exp(np.fft.rfft(cepstrum, axis=1))
    return result


def synthesise(hertz: Floats, log_power: Floats, noise_share: Floats, *, seed: int = 1) -> Samples:
    """Synthesise a voice.

    Args:
        hertz: pitch (F,); 0 for frames that are only noise.
        log_power: natural logarithm of power (F, K).
        noise_share: share of noise in amplitude (F, K).
    """
    frames = len(hertz)
    count = frames * HOP
    is_voiced = hertz > 0
    share = np.where(is_voiced[:, None], noise_share, 1.0)
    out = np.zeros(count + 2 * FFT)
    _add_pulses(out, hertz, is_voiced, log_power, share)
    _add_noise(out, log_power, share, seed)
    return out[:count].astype(np.float32)


def _add_pulses(
    out: Floats, hertz: Floats, is_voiced: npt.NDArray[np.bool_], log_power: Floats, share: Floats
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
    low = np.floor(spot).astype(int)
    high = np.minimum(low + 1, frames - 1)
    part = (spot - low)[:, None]
    power = log_power[low] * (1 - part) + log_power[high] * part
    noise = share[low] * (1 - part) + share[high] * part
    spectra = minimum_phase(power + np.log(np.maximum(1 - noise**2, 1e-6)))
    turns = np.exp(2j * np.pi * np.arange(BINS)[None] / FFT * late[:, None])
    # A pulse is `late` samples before the sample at which it was detected.
    rings = np.fft.irfft(spectra * turns, FFT, axis=1)
    rings[:, -8:] = 0
    rings *= np.sqrt(RATE_HZ / pitch[crossed])[:, None]
    np.add.at(out, crossed[:, None] + np.arange(FFT), rings)


def _add_noise(out: Floats, log_power: Floats, share: Floats, seed: int) -> None:
    frames = len(log_power)
    size, hop = 256, 75
    count = frames * HOP // hop
    noise = np.random.default_rng(seed).standard_normal(count * hop + size)
    pieces = np.lib.stride_tricks.sliding_window_view(noise, size)[::hop][:count]
    window = np.hanning(size + 1)[:-1]
    gains = np.exp(0.5 * log_power) * share
    # 256-point spectra are enough for noise: every fourth bin of the 1024-point one.
    coarse = gains[:, ::4]
    spot = np.clip((np.arange(count) * hop + size / 2) / HOP - 0.5, 0, frames - 1)
    low = np.floor(spot).astype(int)
    high = np.minimum(low + 1, frames - 1)
    part = (spot - low)[:, None]
    gain = coarse[low] * (1 - part) + coarse[high] * part
    waves = np.fft.irfft(np.fft.rfft(pieces * window, axis=1) * gain, size, axis=1) * window
    places = np.arange(count)[:, None] * hop + np.arange(size)
    # Squared Hann windows at 75 of 256 samples sum to 1.28.
    np.add.at(out, places, waves / 1.28)
