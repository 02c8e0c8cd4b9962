"""Comparing numbers with recorded ones, in words.

A case collects every difference instead of stopping at the first, so that one line says how far off
it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch


class Differences:
    """Collects what does not agree; `lines` is empty when everything does."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def same(self, name: str, found: Any, wanted: Any) -> None:
        """Exactly equal."""
        found, wanted = _plain(found), _plain(wanted)
        if found != wanted:
            self.lines.append(f"{name}: found {_short(found)}, wanted {_short(wanted)}")

    def close(
        self, name: str, found: Any, wanted: Any, *, atol: float = 1e-3, rtol: float = 1e-3
    ) -> None:
        """Equal within `atol + rtol * |wanted|`, with the same shape."""
        a, b = _array(found), _array(wanted)
        if a.shape != b.shape:
            self.lines.append(f"{name}: shape {a.shape}, wanted {b.shape}")
            return
        if a.size == 0:
            return
        excess = np.abs(a - b) - (atol + rtol * np.abs(b))
        if not np.isfinite(a).all() or excess.max() > 0:
            worst = float(np.abs(a - b).max())
            share = float((excess > 0).mean())
            self.lines.append(f"{name}: off by up to {worst:.3g}, {share:.1%} of the values")

    def summary(self, name: str, found: Any, wanted: Mapping[str, Any]) -> None:
        """`{shape, sum, abs_sum, min, max}`. Sums gather noise; the README allows 1.0 absolute."""
        a = _array(found)
        self.same(f"{name}.shape", list(a.shape), wanted["shape"])
        for key, value in (("sum", a.sum()), ("abs_sum", np.abs(a).sum())):
            self.close(f"{name}.{key}", value, wanted[key], atol=1.0)
        for key, value in (("min", a.min()), ("max", a.max())):
            self.close(f"{name}.{key}", value, wanted[key])


def _plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().numpy()
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def _array(value: Any) -> np.ndarray[Any, np.dtype[np.float64]]:
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().numpy()
    return np.asarray(value, dtype=np.float64)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 160 else f"{text[:150]}... ({len(text)} characters)"
