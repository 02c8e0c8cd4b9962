"""G.711, the codec of telephones: one byte per sample, 8 kHz. Source: ITU-T G.711.

A code is the index of the nearest of 256 values, so both laws are a table and a search in it.
"""

from __future__ import annotations

from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from parley.media.pcm import Pcm

RATE_HZ: Final = 8_000
Law = Literal["mu", "a"]


def _mu_values() -> NDArray[np.int32]:
    codes = ~np.arange(256, dtype=np.uint8)
    exponents, mantissas = (codes >> 4) & 7, (codes & 15).astype(np.int32)
    sizes = (((mantissas << 3) + 132) << exponents) - 132
    return np.where(codes & 128, -sizes, sizes)


def _a_values() -> NDArray[np.int32]:
    codes = np.arange(256, dtype=np.uint8) ^ 0x55
    exponents, mantissas = (codes >> 4) & 7, (codes & 15).astype(np.int32)
    small = (mantissas << 4) + 8
    sizes = np.where(exponents == 0, small, (small + 256) << np.maximum(exponents, 1) - 1)
    return np.where(codes & 128, sizes, -sizes)


_VALUES: Final = {"mu": _mu_values(), "a": _a_values()}
"""Values by code, on a 16-bit scale."""
_ORDER: Final = {law: np.argsort(values, kind="stable") for law, values in _VALUES.items()}


def decoded(data: bytes, law: Law) -> Pcm:
    """Decode G.711 codes to audio at 8 kHz."""
    values = _VALUES[law][np.frombuffer(data, np.uint8)]
    return Pcm((values / 32768).astype(np.float32), RATE_HZ)


def encoded(pcm: Pcm, law: Law) -> bytes:
    """Encode audio at 8 kHz.

    Raises:
        ValueError: it has another rate.
    """
    if pcm.rate_hz != RATE_HZ:
        raise ValueError(f"G.711 has {RATE_HZ} Hz, got {pcm.rate_hz} Hz")
    order = _ORDER[law]
    values = _VALUES[law][order]
    places = np.searchsorted((values[1:] + values[:-1]) / 2, pcm.samples * 32768)
    return order[places].astype(np.uint8).tobytes()
