"""Rate conversion, whole or as a stream; soxr at its high quality setting does the work."""

from __future__ import annotations

import numpy as np
import soxr

from parley.media.pcm import Pcm

_QUALITY = "HQ"


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
