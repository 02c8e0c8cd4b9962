"""One golden case, and how results are compared with it.

A case is `<section>/<name>.json` and/or `.npz`: inputs, settings and what the public implementation
gave. A `Checker` notes every difference and continues, so that one run shows them all.
"""

import json
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

TOLERANCE = 1e-3
"""Absolute plus relative; "comfortable" by the vectors' README, "Conventions"."""

SUM_TOLERANCE = 1.0
"""For sums over a whole cache or a whole row of logits; same source."""


class Skipped(Exception):
    """A case that cannot be judged here; the text says why."""


@dataclass(frozen=True)
class Case:
    """One case of a folder of vectors."""

    folder: Path
    section: str
    name: str

    @property
    def title(self) -> str:
        return f"{self.section}/{self.name}"

    @cached_property
    def json(self) -> dict[str, Any]:
        path = self.folder / self.section / f"{self.name}.json"
        return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}

    @cached_property
    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        path = self.folder / self.section / f"{self.name}.npz"
        if not path.is_file():
            return {}
        with np.load(path) as archive:
            return {key: archive[key] for key in archive.files}


def find_cases(folder: Path) -> list[Case]:
    """All cases of a folder, in a stable order."""
    names = {
        (path.parent.name, path.stem)
        for pattern in ("*/*.json", "*/*.npz")
        for path in folder.glob(pattern)
    }
    return [Case(folder, section, name) for section, name in sorted(names)]


@dataclass
class Checker:
    """Collects differences; `checks` counts comparisons, so that a case without any is noticed."""

    differences: list[str] = field(default_factory=list)
    checks: int = 0

    def note(self, text: str) -> None:
        self.differences.append(text)

    def equal(self, what: str, got: Any, want: Any) -> bool:
        """Exactly the same value (tuples count as lists)."""
        self.checks += 1
        got, want = _plain(got), _plain(want)
        if got != want:
            self.note(f"{what}: got {_short(got)}, want {_short(want)}")
            return False
        return True

    def close(self, what: str, got: Any, want: Any, tolerance: float = TOLERANCE) -> bool:
        """Numbers or arrays within `tolerance`, absolute plus relative."""
        self.checks += 1
        a, b = _array(got), _array(want)
        if a.shape != b.shape:
            self.note(f"{what}: shape {list(a.shape)}, want {list(b.shape)}")
            return False
        if a.size == 0:
            return True
        error = np.abs(a - b)
        worst = float((error - tolerance * np.abs(b)).max())
        if not np.isfinite(a).all() or worst > tolerance:
            self.note(f"{what}: off by up to {float(error.max()):.3g}")
            return False
        return True

    def summary(self, what: str, got: Any, want: dict[str, Any]) -> bool:
        """An array against `{shape, sum, abs_sum, min, max}`."""
        self.checks += 1
        a = _array(got)
        fine = True
        if list(a.shape) != list(want["shape"]):
            self.note(f"{what}: shape {list(a.shape)}, want {want['shape']}")
            return False
        slack = TOLERANCE + 1e-4 * abs(want["abs_sum"])
        for key, value in (
            ("sum", a.sum()),
            ("abs_sum", np.abs(a).sum()),
            ("min", a.min() if a.size else 0.0),
            ("max", a.max() if a.size else 0.0),
        ):
            if key not in want or want[key] is None:
                continue
            limit = slack if "sum" in key else TOLERANCE * (1 + abs(want[key]))
            if not abs(float(value) - want[key]) <= limit:
                self.note(f"{what}.{key}: got {float(value):.6g}, want {want[key]:.6g}")
                fine = False
        return fine

    def total(self, what: str, got: float, want: float | None) -> bool:
        """A sum over a cache or a row of logits."""
        if want is None:
            return True
        self.checks += 1
        if not abs(got - want) <= SUM_TOLERANCE:
            self.note(f"{what}: got {got:.6g}, want {want:.6g}")
            return False
        return True

    def top(self, what: str, logits: Any, ids: Any, values: Any) -> bool:
        """The largest logits: each listed value is at its id, and the order holds where values
        differ by more than the tolerance."""
        row = _array(logits).reshape(-1)
        fine = self.close(f"{what} logits", row[list(ids)], values)
        mine = _largest(row, len(ids))
        for place, (got, want) in enumerate(zip(mine, ids, strict=True)):
            if got != want and abs(row[got] - row[want]) > 2 * TOLERANCE * (1 + abs(row[want])):
                self.note(f"{what}: place {place} is {got}, want {want}")
                return False
        return fine


def strided(values: Any) -> npt.NDArray[Any]:
    """The vectors' `_strided` sample of an array."""
    flat = _array(values).reshape(-1)
    return flat[:: max(1, flat.size // 96)][:96]


def _largest(row: npt.NDArray[Any], count: int) -> list[int]:
    """Places of the largest values, the earlier of equals first."""
    if count == 0:
        return []
    # A vocabulary is not sorted for a few of its words.
    least = -np.partition(-row, count - 1)[count - 1]
    found = np.flatnonzero(row >= least)
    places: list[int] = found[np.argsort(-row[found], kind="stable")][:count].tolist()
    return places


def _array(value: Any) -> npt.NDArray[Any]:
    if hasattr(value, "detach"):
        value = value.detach().cpu().float().numpy()
    return np.asarray(value, dtype=np.float64)


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 160 else text[:150] + f"... ({len(text)} characters)"
