"""Audio samples with their rate.

`N` is the number of samples. Everything is mono float32 in [-1, 1]. Different rates cannot be mixed
by accident, because concatenating refuses them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from parley.errors import InvalidPayload

INPUT_RATE_HZ = 16_000
"""Sample rate of clients' audio. Source: service.md 4.1."""

OUTPUT_RATE_HZ = 24_000
"""Sample rate of the server's audio. Source: as above."""

Samples = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class Pcm:
    """Mono audio.

    Args:
        samples: float32, shape (N,), any length including 0. Treated as immutable once wrapped.
        rate_hz: samples per second.
    """

    samples: Samples
    rate_hz: int

    def __post_init__(self) -> None:
        if self.samples.ndim != 1 or self.samples.dtype != np.float32:
            raise ValueError(
                "Pcm must be mono float32 of shape (N,), "
                f"got {self.samples.dtype} {self.samples.shape}"
            )

    def __len__(self) -> int:
        return int(self.samples.shape[0])

    @property
    def duration_s(self) -> float:
        """Length in seconds."""
        return len(self) / self.rate_hz

    @property
    def duration_ms(self) -> int:
        """Length in whole milliseconds, rounded."""
        return round(1000 * self.duration_s)

    def slice(self, start: int, stop: int | None = None) -> Pcm:
        """Samples `start` up to `stop`, without a copy."""
        return Pcm(self.samples[start:stop], self.rate_hz)

    @classmethod
    def silence(cls, samples: int, rate_hz: int) -> Pcm:
        """`samples` zeros."""
        return cls(np.zeros(samples, np.float32), rate_hz)

    def silenced(self) -> Pcm:
        return Pcm.silence(len(self), self.rate_hz)

    @classmethod
    @functools.cache
    def empty(cls, rate_hz: int) -> Pcm:
        """Empty audio."""
        return cls.silence(0, rate_hz)


def join(parts: Sequence[Pcm], rate_hz: int) -> Pcm:
    """Concatenate audio, all of which must have `rate_hz`; without parts the result is empty."""
    for part in parts:
        if part.rate_hz != rate_hz:
            raise ValueError(f"cannot join {part.rate_hz} Hz to {rate_hz} Hz")
    if not parts:
        return Pcm.empty(rate_hz)
    return Pcm(np.concatenate([part.samples for part in parts]), rate_hz)


def in_pieces(pcm: Pcm | None, length_ms: int = 1000, *, first_ms: int = 0) -> list[Pcm]:
    """Audio in pieces of at most this length; empty if there is no audio. `first_ms`: length of the
    first one, if there are several.

    No delta has more than a second of audio, even if a model returns more at a time: at the end of
    a turn the speech decoder returns its buffered audio. Source: service.md 4.5.
    """
    if pcm is None:
        return []
    size = pcm.rate_hz * length_ms // 1000
    first = pcm.rate_hz * first_ms // 1000 if first_ms and len(pcm) > size else 0
    begin = [pcm.slice(0, first)] if first else []
    return begin + [pcm.slice(start, start + size) for start in range(first, len(pcm), size)]


def from_float32_bytes(data: bytes, rate_hz: int = INPUT_RATE_HZ) -> Pcm:
    """Raw little-endian float32 samples, as they cross the wire. Values beyond ±1 are clipped.

    Raises:
        InvalidPayload: the length is not a multiple of the sample size, a sample is not a finite
            number, or the samples are 16-bit ones that were scaled wrongly or not converted at all.
    """
    if len(data) % 4:
        raise InvalidPayload(
            f"Audio must be float32 samples of 4 bytes each, got {len(data)} bytes."
        )
    samples = np.frombuffer(data, dtype="<f4").astype(np.float32)
    # False also if a sample is not a number.
    is_in_scale = samples.min(initial=0.0) >= -1.0 and samples.max(initial=0.0) <= 1.0
    if not is_in_scale:
        _check_scale(samples)
        np.clip(samples, -1.0, 1.0, out=samples)
    return Pcm(samples, rate_hz)


LOUDEST = 16.0
"""Above any overdriven float32 audio, and below everything except silence in 16-bit samples."""

WILD = 1e6
"""Beyond the range of 16-bit numbers: the bytes are not float32."""

WILD_KINDS = 8
"""Number of distinct values that a faulty filter would not produce by accident."""


def _check_scale(samples: Samples) -> None:
    """Distinguish 16-bit samples from float32 ones; clipped, they would be unexplained noise.

    Two mistakes are common: integers converted to float32 without dividing by 32768, and bytes of
    16-bit samples sent unchanged. Two such samples form a float32 whose exponent comes from the
    second one, so it is not a number or gigantic if that sample is negative.

    Raises:
        InvalidPayload: it is one of these, or contains samples that are not numbers.
    """
    with np.errstate(invalid="ignore"):
        is_wild = ~(np.abs(samples) < WILD)
    if is_wild.any():
        if len(np.unique(samples.view(np.uint32)[is_wild])) >= WILD_KINDS:
            raise InvalidPayload(
                "Audio looks like 16-bit samples sent as they are: "
                "send float32 samples between -1 and 1."
            )
        if not np.isfinite(samples).all():
            raise InvalidPayload("Audio contains samples that are not finite numbers.")
    loudest = float(np.abs(samples).max(initial=0.0))
    if loudest > LOUDEST or (loudest > 1.0 and bool((samples == np.rint(samples)).all())):
        raise InvalidPayload(
            f"Audio has the scale of 16-bit samples (largest value {loudest:g}): "
            "divide by 32768, float32 samples lie between -1 and 1."
        )


def to_float32_bytes(pcm: Pcm) -> bytes:
    """Samples as raw little-endian float32."""
    return pcm.samples.astype("<f4", copy=False).tobytes()


def from_pcm16_bytes(data: bytes, rate_hz: int) -> Pcm:
    """Little-endian 16-bit samples.

    Raises:
        InvalidPayload: the length is not a multiple of the sample size.
    """
    if len(data) % 2:
        raise InvalidPayload(f"Audio must be 16-bit samples, got {len(data)} bytes.")
    return Pcm(np.frombuffer(data, "<i2").astype(np.float32) / np.float32(32768), rate_hz)


def to_pcm16_bytes(pcm: Pcm) -> bytes:
    """Samples as little-endian 16-bit integers."""
    scaled = np.clip(np.rint(pcm.samples * 32767.0), -32768, 32767)
    data: bytes = scaled.astype("<i2").tobytes()
    return data


def level_dbfs(pcm: Pcm) -> float:
    """Root mean square level; 0 dB is a full-scale square wave, silence is -inf."""
    if not len(pcm):
        return -math.inf
    mean_square = float(np.mean(np.square(pcm.samples, dtype=np.float64)))
    return 10 * math.log10(mean_square) if mean_square > 0 else -math.inf


def peak(pcm: Pcm) -> float:
    """Largest magnitude; 0 for empty audio."""
    return float(np.abs(pcm.samples).max()) if len(pcm) else 0.0
