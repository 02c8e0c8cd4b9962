"""Rate conversion, of whole audio or as a stream, by soxr at its high-quality setting.

For live sound at OpenAI's rates and Opus's there is a stream with a short filter; its state is a
value, for sessions that may continue on another worker.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np
import soxr

from parley.media.pcm import Pcm, Samples

_QUALITY = "HQ"
_KAISER_BETA: Final = 8.0
WINDOWS_AT_ONCE: Final = 1024
"""Windows of a `RateStream` that are copied at a time, half a megabyte: a message may have a
thousand seconds of sound, and larger products would start threads of the matrix library."""


def resample(pcm: Pcm, rate_hz: int) -> Pcm:
    """Convert to another rate. The length is the input's times the ratio, rounded."""
    if pcm.rate_hz == rate_hz:
        return pcm
    if not len(pcm):
        return Pcm.empty(rate_hz)
    samples = soxr.resample(pcm.samples, pcm.rate_hz, rate_hz, quality=_QUALITY)
    # Band limiting overshoots at clipped edges; all audio in the server stays within ±1.
    return Pcm(np.clip(samples, -1.0, 1.0).astype(np.float32, copy=False), rate_hz)


class ResampleStream:
    """Converts audio piece by piece; the concatenated pieces equal the result of `resample`.

    The first pieces are shorter than their input (soxr works in blocks and returns up to 33 ms
    late); `last=True` returns the rest, after which the stream must not be used.
    """

    def __init__(self, from_hz: int, to_hz: int) -> None:
        self.from_hz = from_hz
        self.to_hz = to_hz
        self._stream = soxr.ResampleStream(
            from_hz, to_hz, num_channels=1, dtype="float32", quality=_QUALITY
        )

    def feed(self, pcm: Pcm, *, last: bool = False) -> Pcm:
        """Returns the samples that are final. `pcm` must have the stream's input rate."""
        if pcm.rate_hz != self.from_hz:
            raise ValueError(f"the stream takes {self.from_hz} Hz, got {pcm.rate_hz} Hz")
        samples = self._stream.resample_chunk(pcm.samples, last=last)
        # In place: copies are expensive for a stream that is fed ten times a second.
        np.maximum(samples, -1.0, out=samples)
        np.minimum(samples, 1.0, out=samples)
        return Pcm(samples, self.to_hz)


def _kernels(taps: int, places: tuple[float, ...], *, from_hz: int, cutoff_hz: float) -> Samples:
    """Weights of the input samples around each output sample, shape (T, S).

    Args:
        taps: T.
        places: positions of the S output samples, in input samples after the last one of the first
            half.
    """
    around = np.arange(taps)[:, None] - (taps // 2 - 1) - np.array(places)
    width = 2 * cutoff_hz / from_hz
    inside = np.clip(1 - (around / (taps / 2)) ** 2, 0, None)
    kernels = width * np.sinc(width * around) * np.i0(_KAISER_BETA * np.sqrt(inside))
    kernels *= np.abs(around) < taps / 2
    # Normalised: constant input is unchanged.
    even: Samples = (kernels / kernels.sum(0)).astype(np.float32)
    return even


_FILTERS: Final = {
    (24_000, 16_000): (3, _kernels(128, (0.0, 1.5), from_hz=24_000, cutoff_hz=7600.0)),
    (24_000, 8_000): (3, _kernels(192, (0.0,), from_hz=24_000, cutoff_hz=3700.0)),
    (8_000, 16_000): (1, _kernels(64, (0.0, 0.5), from_hz=8_000, cutoff_hz=3700.0)),
    (48_000, 16_000): (3, _kernels(128, (0.0,), from_hz=48_000, cutoff_hz=7600.0)),
    (48_000, 24_000): (2, _kernels(128, (0.0,), from_hz=48_000, cutoff_hz=11_400.0)),
}
"""Of a conversion: the number of input samples per period of its kernels, and the kernels."""


@dataclass(slots=True, eq=False)
class RateStream:
    """Converts the rate piece by piece; each output sample is computed from the input samples
    around it (1.3 to 4 ms on either side). The concatenated pieces are the whole, without the
    filter's delay, which is never returned.

    Args:
        rest: input that is needed for later output, shape (N,).
    """

    from_hz: int
    to_hz: int
    rest: Samples = field(default_factory=lambda: np.zeros(0, np.float32))

    def __post_init__(self) -> None:
        if not len(self.rest):
            _, kernels = _FILTERS[self.from_hz, self.to_hz]
            self.rest = np.zeros(len(kernels) // 2 - 1, np.float32)

    def feed(self, pcm: Pcm) -> Pcm:
        """Returns the samples that are final. `pcm` must have the stream's input rate."""
        if pcm.rate_hz != self.from_hz:
            raise ValueError(f"the stream takes {self.from_hz} Hz, got {pcm.rate_hz} Hz")
        step, kernels = _FILTERS[self.from_hz, self.to_hz]
        taps = len(kernels)
        samples = np.concatenate((self.rest, pcm.samples))
        count = max(0, (len(samples) - taps) // step + 1)
        self.rest = samples[step * count :].copy()
        strides = (step * samples.itemsize, samples.itemsize)
        windows = np.lib.stride_tricks.as_strided(samples, (count, taps), strides)
        found = np.empty((count, kernels.shape[1]), np.float32)
        for start in range(0, count, WINDOWS_AT_ONCE):
            part = slice(start, start + WINDOWS_AT_ONCE)
            # A copy, because multiplying overlapping windows is slow and holds the interpreter
            # lock.
            np.matmul(windows[part].copy(), kernels, out=found[part])
        found = found.reshape(-1)
        np.clip(found, -1.0, 1.0, out=found)
        return Pcm(found, self.to_hz)
