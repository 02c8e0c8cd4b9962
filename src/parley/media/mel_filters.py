"""Slaney's mel filters: for the audio encoders (Whisper, MiniCPM-o) and its vocoder."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import numpy.typing as npt

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


def _slaney_mel(hz: float) -> float:
    """Linear below 1 kHz, logarithmic above."""
    if hz < _SLANEY_BREAK_HZ:
        return hz / _SLANEY_STEP_HZ
    return _SLANEY_BREAK_HZ / _SLANEY_STEP_HZ + math.log(hz / _SLANEY_BREAK_HZ) / _SLANEY_LOG_STEP


def _slaney_hz(mel: Wide) -> Wide:
    edge = _SLANEY_BREAK_HZ / _SLANEY_STEP_HZ
    linear = mel * _SLANEY_STEP_HZ
    return np.where(mel < edge, linear, _SLANEY_BREAK_HZ * np.exp(_SLANEY_LOG_STEP * (mel - edge)))
