"""Computes the inputs of the networks that describe a voice.

Three kinds of features: the speech tokenizer's log-mel (Whisper), the speaker network's filter bank
(Kaldi), the flow's mel (HiFi-GAN), and the resampling that was used for them (a windowed sinc). All
in numpy, computed in float64; `N` samples, `F` frames.

Source: speech.md 3.2.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from parley.media.mel_filters import mel_filters

Array = npt.NDArray[np.float32]
Wide = npt.NDArray[np.float64]

TOKENIZER_RATE_HZ = 16_000
MEL_RATE_HZ = 24_000

_SINC_WIDTH = 6
_ROLL_OFF = 0.99

_KALDI_FRAME, _KALDI_SHIFT, _KALDI_FOURIER = 400, 160, 512
_KALDI_LOW_HZ = 20.0
_KALDI_BAND_HZ = TOKENIZER_RATE_HZ / _KALDI_FOURIER
_KALDI_BINS = 80
_KALDI_FLOOR = float(np.finfo(np.float32).eps)

_MEL_FOURIER, _MEL_HOP, _MEL_BINS = 1920, 480, 80


def resampled(samples: Array, from_hz: int, to_hz: int) -> Array:
    """A Hann-windowed sinc of width 6 and roll-off 0.99; ceil(N * ratio) samples.

    Voices were tokenised after this conversion, so it is used here instead of the server's usual
    one.
    """
    common = math.gcd(from_hz, to_hz)
    old, new = from_hz // common, to_hz // common
    if old == new:
        return samples
    kernels, width = _sinc_kernels(old, new)
    padded = np.pad(samples.astype(np.float64), (width, width + old))
    blocks = (len(padded) - kernels.shape[1]) // old + 1
    windows = np.lib.stride_tricks.sliding_window_view(padded, kernels.shape[1])[::old][:blocks]
    joined = (windows @ kernels.T).reshape(-1)
    return joined[: math.ceil(new * len(samples) / old)].astype(np.float32)


@lru_cache(maxsize=8)
def _sinc_kernels(old: int, new: int) -> tuple[Wide, int]:
    """One filter per output phase, shape (new, 2 width + old), and the width."""
    cutoff = min(old, new) * _ROLL_OFF
    width = math.ceil(_SINC_WIDTH * old / cutoff)
    index = np.arange(-width, width + old, dtype=np.float64) / old
    t = (-np.arange(new)[:, None] / new + index) * cutoff
    t = np.clip(t, -_SINC_WIDTH, _SINC_WIDTH)
    window = np.cos(t * np.pi / _SINC_WIDTH / 2) ** 2
    return np.sinc(t) * window * (cutoff / old), width


def tokenizer_mel(samples: Array) -> Array:
    """Log-mel of the speech tokenizer.

    Args:
        samples: 16 kHz.

    Returns:
        Shape (128, N // 160).
    """
    power = _spectrum(np.pad(samples.astype(np.float64), 200, mode="reflect"), 400, 160) ** 2
    # The centred transform has one frame more than is used.
    mel = power[:-1] @ mel_filters(128, 400, TOKENIZER_RATE_HZ, 8000.0).T
    logs = np.log10(np.maximum(mel, 1e-10))
    logs = np.maximum(logs, logs.max() - 8)
    return ((logs + 4) / 4).T.astype(np.float32)


def speaker_bank(samples: Array) -> Array:
    """Filter bank of the speaker network, with the mean over time subtracted.

    Args:
        samples: 16 kHz, in [-1, 1], at least 400.

    Returns:
        Shape (F, 80), F = 1 + (N - 400) // 160.
    """
    frames = np.lib.stride_tricks.sliding_window_view(samples.astype(np.float64), _KALDI_FRAME)[
        ::_KALDI_SHIFT
    ]
    frames = frames - frames.mean(axis=1, keepdims=True)
    before = np.concatenate([frames[:, :1], frames[:, :-1]], axis=1)
    frames = (frames - 0.97 * before) * _povey_window()
    power = np.abs(np.fft.rfft(frames, _KALDI_FOURIER)) ** 2
    bank = np.log(np.maximum(power @ _kaldi_filters().T, _KALDI_FLOOR))
    return (bank - bank.mean(axis=0)).astype(np.float32)


def flow_mel(samples: Array) -> Array:
    """The mel of the flow.

    Args:
        samples: 24 kHz, more than 720.

    Returns:
        Shape (N // 480, 80), natural logarithm.
    """
    side = (_MEL_FOURIER - _MEL_HOP) // 2
    padded = np.pad(samples.astype(np.float64), side, mode="reflect")
    magnitude = np.sqrt(_spectrum(padded, _MEL_FOURIER, _MEL_HOP) ** 2 + 1e-9)
    mel = magnitude @ mel_filters(_MEL_BINS, _MEL_FOURIER, MEL_RATE_HZ, 8000.0).T
    return np.log(np.maximum(mel, 1e-5)).astype(np.float32)


def _spectrum(padded: Wide, size: int, hop: int) -> Wide:
    """Magnitudes of all complete frames with a periodic Hann window, shape (F, size / 2 + 1)."""
    frames = np.lib.stride_tricks.sliding_window_view(padded, size)[::hop]
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(size) / size)
    return np.abs(np.fft.rfft(frames * window))


@lru_cache(maxsize=1)
def _povey_window() -> Wide:
    """A symmetric Hann window to the power of 0.85."""
    turn = 2 * np.pi * np.arange(_KALDI_FRAME) / (_KALDI_FRAME - 1)
    return (0.5 - 0.5 * np.cos(turn)) ** 0.85


@lru_cache(maxsize=1)
def _kaldi_filters() -> Wide:
    """Triangles on Kaldi's mel axis, shape (80, 257); the highest band is not used."""

    def mel(hz: Wide | float) -> Wide:
        return np.asarray(1127.0 * np.log(1.0 + np.asarray(hz) / 700.0))

    low, high = float(mel(_KALDI_LOW_HZ)), float(mel(TOKENIZER_RATE_HZ / 2))
    step = (high - low) / (_KALDI_BINS + 1)
    left = low + np.arange(_KALDI_BINS)[:, None] * step
    bands = mel(np.arange(_KALDI_FOURIER // 2, dtype=np.float64) * _KALDI_BAND_HZ)
    rising, falling = (bands - left) / step, (left + 2 * step - bands) / step
    triangles = np.maximum(0.0, np.minimum(rising, falling))
    return np.pad(triangles, ((0, 0), (0, 1)))
