"""Pitch of a recording, by autocorrelation."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def pitch_track(wave: npt.NDArray[np.float32], rate_hz: int) -> npt.NDArray[np.float32]:
    """Pitch in Hz every 10 ms by autocorrelation, 0 where unvoiced (F,)."""
    step = rate_hz // 8000
    usable = len(wave) // step * step
    slow = wave[:usable].reshape(-1, step).mean(1).astype(np.float32)  # 8 kHz
    frames = len(slow) // 80
    if frames == 0:
        return np.zeros(0, np.float32)
    padded = np.pad(slow, (320, 640))
    pieces = padded[np.arange(frames)[:, None] * 80 + np.arange(640)]
    pieces = pieces - pieces.mean(1, keepdims=True)
    power = np.abs(np.fft.rfft(pieces, 2048)) ** 2
    similar = np.fft.irfft(power)[:, :140]
    energy = similar[:, :1] + 1e-6
    similar = similar / energy * (640 / (640 - np.arange(140)))
    inside = similar[:, 20:110]
    # Of nearly equal peaks the shortest lag is the period; the others are its multiples.
    is_peak = (inside >= similar[:, 19:109]) & (inside >= similar[:, 21:111])
    is_good = is_peak & (inside > 0.85 * inside.max(1, keepdims=True))
    lag = is_good.argmax(1) + 20
    rows = np.arange(frames)
    before, here, after = (similar[rows, lag + d] for d in (-1, 0, 1))
    bend = before - 2 * here + after
    exact = lag + np.where(bend < -1e-6, 0.5 * (before - after) / np.minimum(bend, -1e-6), 0)
    is_voiced = is_good.any(1) & (here > 0.5) & (energy[:, 0] > 0.02)
    return np.where(is_voiced, 8000 / exact, 0).astype(np.float32)
