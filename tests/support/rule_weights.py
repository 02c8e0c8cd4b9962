"""The generated weights and inputs of the golden vectors.

Every number follows a rule that any program can evaluate: a name and a flat index are hashed to a
value in (-1, 1). Nothing is stored, so a test can build the same tiny model as the program that
recorded the vectors. Source: the README of the golden vectors, sections "Weights" and "Inputs".
"""

import math
import zlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]

_ROW_FACTORS = {
    151645: 1.8,
    151704: 1.8,
    151705: 3.0,
    151706: 3.0,
    151717: 2.2,
    151718: 2.5,
    151721: 2.0,
}
"""Factors of the rows of the language head that greedy decoding must choose."""

_END_OF_SPEECH_ROW = -1


_AT_ONCE = 1 << 15
"""Number of values that are computed together, so that they stay in the processor's cache."""


def uniform(name: str, count: int, start: int = 0) -> Array:
    """`count` values of the sequence `name` from index `start`, in (-1, 1), exact in float32."""
    key = np.uint64(((zlib.crc32(name.encode()) << 32) + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF)
    out = np.empty(count, np.float32)
    with np.errstate(over="ignore"):
        first = np.arange(min(count, _AT_ONCE), dtype=np.uint64) + (key + np.uint64(start))
        shifted = np.empty_like(first)
        for begin in range(0, count, _AT_ONCE):
            end = min(begin + _AT_ONCE, count)
            z = first[: end - begin] + np.uint64(begin)
            other = shifted[: end - begin]
            z ^= np.right_shift(z, np.uint64(30), out=other)
            z *= np.uint64(0xBF58476D1CE4E5B9)
            z ^= np.right_shift(z, np.uint64(27), out=other)
            z *= np.uint64(0x94D049BB133111EB)
            z ^= np.right_shift(z, np.uint64(31), out=other)
            z >>= np.uint64(41)
            # Odd numbers of 24 bits: they and their quotients are exact in float32.
            odd = z.astype(np.int32)
            odd *= 2
            odd += 1 - 2**23
            np.multiply(odd, np.float32(2**-23), out=out[begin:end], casting="unsafe")
    return out


def shaped(name: str, shape: Sequence[int]) -> Array:
    """The sequence `name` in C order."""
    return uniform(name, math.prod(shape)).reshape(tuple(shape))


def weight(name: str, shape: Sequence[int]) -> Array:
    """A checkpoint tensor by the rules of the README; `t2w.` names follow the vocoder's rules."""
    if name.startswith("t2w."):
        return _token2wav_weight(name, shape)
    last = name.rsplit(".", 1)[-1]
    if name == "apm.embed_positions.weight":
        return _sinusoids(shape[0], shape[1])
    u = shaped(name, shape)
    if last == "original0":
        gain = np.float32(3) * (np.float32(1) + np.float32(0.2) * u)
        gain[_END_OF_SPEECH_ROW] *= np.float32(2.5)
        return gain
    if len(shape) == 1:
        return _vector(last == "weight", u)
    if name == "llm.model.embed_tokens.weight":
        u *= np.float32(2)
        return u
    if any(part in name for part in ("embed_tokens", "emb_text", "emb_code", "resampler.query")):
        return u
    if "position_embedding" in name:
        u *= np.float32(0.5)
        return u
    value = u
    value *= _spread(shape)
    if name == "llm.lm_head.weight":
        value *= np.float32(3)
        for row, factor in _ROW_FACTORS.items():
            if row < shape[0]:
                value[row] *= np.float32(factor)
    return value


def audio(seconds: float, seed: int) -> Array:
    """A synthetic clip at 16 kHz."""
    count = round(seconds * 16000)
    t = np.arange(count, dtype=np.float64) / 16000
    f0, k = 120 + 37 * seed, 90 + 11 * seed
    tone = 0.30 * np.sin(2 * np.pi * (f0 * t + 0.5 * k * t * t))
    tone += 0.15 * np.sin(2 * np.pi * (1900 * t - 30 * t * t) + 0.3 * seed)
    tone *= 0.6 + 0.4 * np.sin(2 * np.pi * 1.7 * t)
    noise = uniform(f"audio-noise-{seed}", count).astype(np.float64)
    return (tone + 0.02 * noise).astype(np.float32)


def image(width: int, height: int, seed: int) -> npt.NDArray[np.uint8]:
    """A synthetic 8-bit RGB picture, shape (height, width, 3)."""
    y, x = np.mgrid[0:height, 0:width]

    def tri(v: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return np.abs(v % 510 - 255)

    planes = (
        tri(3 * x + y + 40 * seed),
        tri(x + 5 * y + 90 * seed),
        tri(x * y // 16 + 25 * seed),
    )
    return np.stack(planes, axis=-1).astype(np.uint8)


def _token2wav_weight(name: str, shape: Sequence[int]) -> Array:
    u = shaped(name, shape)
    last = name.rsplit(".", 1)[-1]
    if last == "original0":
        gain = np.float32(1) + np.float32(0.2) * u
        return gain * np.float32(0.3) if "conv_post" in name else gain
    if last == "alpha":
        return np.float32(1) + np.float32(0.2) * u
    if name.endswith("f0_predictor.classifier.weight"):
        return np.float32(60) * u
    if name.endswith("f0_predictor.classifier.bias"):
        return np.float32(180) + np.float32(0.1) * u
    if "input_embedding" in name:
        return u
    if len(shape) == 1:
        return _vector(last == "weight", u)
    return u * _spread(shape)


def _vector(is_norm: bool, u: Array) -> Array:
    return np.float32(1) + np.float32(0.2) * u if is_norm else np.float32(0.1) * u


def _spread(shape: Sequence[int]) -> np.float32:
    return np.float32(math.sqrt(3 / math.prod(shape[1:])))


def _sinusoids(length: int, channels: int) -> Array:
    """Whisper's table: sines in the first half of the channels, cosines in the second."""
    step = math.log(10000) / (channels // 2 - 1)
    rates = np.exp(-step * np.arange(channels // 2, dtype=np.float32)).astype(np.float32)
    angles = np.arange(length, dtype=np.float32)[:, None] * rates[None]
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype(np.float32)
