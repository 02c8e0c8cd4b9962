"""Rate conversion, whole or as a stream; soxr at its high quality setting does the work.

From 24 to 16 kHz there is a stream that is a value, for sessions that may have to go on elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np
import soxr

from parley.media.pcm import INPUT_RATE_HZ, OUTPUT_RATE_HZ, Pcm, Samples

_QUALITY = "HQ"
_TAPS: Final = 128
"""Of the filter, at 24 kHz: 2.7 ms on either side."""
_CUTOFF_HZ: Final = 7600.0
_KAISER_BETA: Final = 8.0


def resample(pcm: Pcm, rate_hz: int) -> Pcm:
    """The same sound at another rate. Length is that of the input times the ratio, rounded."""
    if pcm.rate_hz == rate_hz:
        return pcm
    if not len(pcm):
        return Pcm.empty(rate_hz)
    samples = soxr.resample(pcm.samples, pcm.rate_hz, rate_hz, quality=_QUALITY)
    # Band limiting overshoots at clipped edges; everything in the server stays within ±1.
    return Pcm(np.clip(samples, -1.0, 1.0).astype(np.float32, copy=False), rate_hz)


class ResampleStream:
    """One sound converted piece by piece; the pieces join to what `resample` gives for the whole.

    The first pieces are shorter than their input (filter delay); `last=True` gives the rest, after
    which the stream takes nothing more.
    """

    def __init__(self, from_hz: int, to_hz: int) -> None:
        self.from_hz = from_hz
        self.to_hz = to_hz
        self._stream = soxr.ResampleStream(
            from_hz, to_hz, num_channels=1, dtype="float32", quality=_QUALITY
        )

    def feed(self, pcm: Pcm, *, last: bool = False) -> Pcm:
        """Samples that have become final. `pcm` must have the rate the stream was made for."""
        if pcm.rate_hz != self.from_hz:
            raise ValueError(f"the stream takes {self.from_hz} Hz, got {pcm.rate_hz} Hz")
        samples = self._stream.resample_chunk(pcm.samples, last=last)
        # In place: a stream that is fed ten times a second feels every copy.
        np.maximum(samples, -1.0, out=samples)
        np.minimum(samples, 1.0, out=samples)
        return Pcm(samples, self.to_hz)


def _kernels() -> Samples:
    """What two output samples take of each of `_TAPS` input samples (`_TAPS`, 2). The first is at
    the last input sample of the first half, the second one and a half samples behind it."""
    places = np.arange(_TAPS)[:, None] - (_TAPS // 2 - 1) - np.array([0.0, 1.5])
    width = 2 * _CUTOFF_HZ / OUTPUT_RATE_HZ
    inside = np.clip(1 - (places / (_TAPS / 2)) ** 2, 0, None)
    kernels = width * np.sinc(width * places) * np.i0(_KAISER_BETA * np.sqrt(inside))
    kernels *= np.abs(places) < _TAPS / 2
    # A constant stays what it is.
    found: Samples = (kernels / kernels.sum(0)).astype(np.float32)
    return found


_KERNELS: Final = _kernels()


@dataclass(slots=True, eq=False)
class DownsampleStream:
    """24 kHz to 16 kHz piece by piece, each output sample from `_TAPS` input samples around it. The
    pieces join to two thirds of the input, less the filter's delay, which is never given.

    Args:
        rest: input that later output needs, (N,).
    """

    rest: Samples = field(default_factory=lambda: np.zeros(_TAPS // 2 - 1, np.float32))

    def feed(self, pcm: Pcm) -> Pcm:
        """Samples that have become final. `pcm` must have 24 kHz."""
        if pcm.rate_hz != OUTPUT_RATE_HZ:
            raise ValueError(f"the stream takes {OUTPUT_RATE_HZ} Hz, got {pcm.rate_hz} Hz")
        samples = np.concatenate((self.rest, pcm.samples))
        count = max(0, (len(samples) - _TAPS) // 3 + 1)
        self.rest = samples[3 * count :].copy()
        if not count:
            return Pcm.empty(INPUT_RATE_HZ)
        size = samples.itemsize
        windows = np.lib.stride_tricks.as_strided(samples, (count, _TAPS), (3 * size, size))
        # A copy, because windows that overlap are multiplied slowly, and with the lock held.
        found = (windows.copy() @ _KERNELS).reshape(-1)
        np.clip(found, -1.0, 1.0, out=found)
        return Pcm(found, INPUT_RATE_HZ)
