"""Slaney's mel filters: for the audio encoders (Whisper, MiniCPM-o) and its vocoder."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from parley.media.pcm import Samples

Wide = npt.NDArray[np.float64]

_SLANEY_STEP_HZ = 200.0 / 3
_SLANEY_BREAK_HZ = 1000.0
_SLANEY_LOG_STEP = math.log(6.4) / 27


@lru_cache(maxsize=8)
def mel_filters(bins: int, size: int, rate_hz: int, high_hz: float) -> Wide:
    """Slaney's triangular filters of equal area, shape (bins, size / 2 + 1)."""
    points = _slaney_hz(np.linspace(0.0, _slaney_mel(high_hz), bins + 2))
    bands = np.linspace(0.0, rate_hz / 2, size // 2 + 1)
    rising = (bands - points[:-2, None]) / np.diff(points)[:-1, None]
    falling = (points[2:, None] - bands) / np.diff(points)[1:, None]
    triangles = np.maximum(0.0, np.minimum(rising, falling))
    area: Wide = 2.0 / (points[2:] - points[:-2])
    return triangles * area[:, None]


def whisper_features(padded: Samples, frames: int) -> Samples:
    """Whisper's log-mel features, shape (80, frames), of audio at 16 kHz that is padded by half a
    window (200 samples) on both sides (N,)."""
    windows = np.lib.stride_tricks.sliding_window_view(padded, 400)[::160][:frames]
    spectra = np.fft.rfft(windows * np.hanning(401)[:-1].astype(np.float32))
    powers = (spectra.real**2 + spectra.imag**2).astype(np.float32)
    filters = mel_filters(80, 400, 16_000, 8000.0).astype(np.float32)
    logs = np.log10(np.maximum(powers @ filters.T, 1e-10)).T
    found = (np.maximum(logs, logs.max() - 8.0) + 4.0) / 4.0
    return np.ascontiguousarray(found, np.float32)


def _slaney_mel(hz: float) -> float:
    """Linear below 1 kHz, logarithmic above."""
    if hz < _SLANEY_BREAK_HZ:
        return hz / _SLANEY_STEP_HZ
    return _SLANEY_BREAK_HZ / _SLANEY_STEP_HZ + math.log(hz / _SLANEY_BREAK_HZ) / _SLANEY_LOG_STEP


def _slaney_hz(mel: Wide) -> Wide:
    edge = _SLANEY_BREAK_HZ / _SLANEY_STEP_HZ
    linear = mel * _SLANEY_STEP_HZ
    return np.where(mel < edge, linear, _SLANEY_BREAK_HZ * np.exp(_SLANEY_LOG_STEP * (mel - edge)))
