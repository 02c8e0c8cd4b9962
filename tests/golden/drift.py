"""How far results move in another precision than the vectors were made in.

Numbers are compared as a whole: the distance of an array from the recorded one, relative to it. Of
tokens that the model chooses it is counted how many were compared and how many changed; behind a
changed token a conversation is another one, so its case ends there. Sums and single numbers are not
compared: what rounds does not keep them.
"""

import re
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from tests.golden.case import TOLERANCE, Case, Checker, Skipped, _array, _plain
from tests.golden.sections import handler
from tests.golden.tiny import Precision

_CHOSEN = re.compile(r"decided|generated_ids|argmax_each|tokens\d*$|tokens_no_stop|chunk \d+ ids")
"""Comparisons of tokens that the model chose."""

_CACHED = {"llm", "chat", "half_duplex", "duplex", "audio_encoder", "tts"}
_ANSWERED = {"llm", "chat", "half_duplex", "duplex"}
_COMPUTED = {*_CACHED, "vision"}
_TABLES = re.compile(r"_table$|/condition|/offline|audio_encoder/(layers|batch)")
"""Cases without a cache."""


class Diverged(Exception):
    """From here on the conversation is another one."""


@dataclass
class Drift(Checker):
    """Measures instead of judging.

    Args:
        distance, at: the largest relative distance, and of what.
        tokens, changed: how many chosen tokens were compared, and how many of them differ.
    """

    distance: float = 0.0
    at: str = ""
    tokens: int = 0
    changed: int = 0
    ends: list[str] = field(default_factory=list)

    def equal(self, what: str, got: Any, want: Any) -> bool:
        self.checks += 1
        got, want = _plain(got), _plain(want)
        is_chosen = _CHOSEN.search(what) is not None and isinstance(want, list)
        if got == want:
            self.tokens += len(want) if is_chosen else 0
            return True
        if what == "argmax_each":
            # Every token is given; none depends on another.
            self.tokens += len(want)
            self.changed += sum(a != b for a, b in zip(got, want, strict=True))
            return False
        if is_chosen:
            pairs = zip(got, want, strict=False)
            self.tokens += next((n for n, (a, b) in enumerate(pairs) if a != b), 0)
        self.tokens += 1
        self.changed += 1
        raise Diverged(what)

    def close(self, what: str, got: Any, want: Any, tolerance: float = TOLERANCE) -> bool:
        self.checks += 1
        a, b = _array(got), _array(want)
        if a.shape != b.shape:
            self.note(f"{what}: shape {list(a.shape)}, want {list(b.shape)}")
            return False
        if b.ndim and b.size:
            found = float(np.linalg.norm(a - b) / max(float(np.linalg.norm(b)), 1e-12))
            if not found <= self.distance:
                self.distance, self.at = found, what
        return True

    def summary(self, what: str, got: Any, want: dict[str, Any]) -> bool:
        return self.equal(f"{what} shape", list(_array(got).shape), want["shape"])

    def total(self, what: str, got: float, want: float | None) -> bool:
        return True

    def top(self, what: str, logits: Any, ids: Any, values: Any) -> bool:
        return self.close(f"{what} logits", _array(logits).reshape(-1)[list(ids)], values)


@dataclass(frozen=True)
class Limits:
    """What a precision may change.

    Args:
        distance: relative, of any array.
        changed: share of the chosen tokens of all sections together.
    """

    distance: float
    changed: float


LIMITS = {
    "int8": Limits(0.02, 0.02),
    "bfloat16": Limits(0.08, 0.06),
    "bfloat16, int8": Limits(0.08, 0.06),
    "fp8 weights": Limits(0.39, 0.1),
    "bfloat16, fp8 weights": Limits(0.31, 0.14),
    "bfloat16, int4 weights": Limits(0.42, 0.22),
}
"""About twice what was measured on a CPU (docs/log/minicpmo45.md)."""


def name_of(precision: Precision) -> str:
    """As `LIMITS` calls it."""
    dtype = str(precision.dtype).removeprefix("torch.")
    words = [dtype] if dtype != "float32" else []
    words += [f"{precision.weights} weights"] if precision.weights != "none" else []
    return ", ".join([*words, *(["int8"] if precision.has_small_caches else [])])


def concerns(case: Case, precision: Precision) -> bool:
    """True if a case can show anything of it."""
    if precision.weights != "none":
        return case.section in _ANSWERED and not _TABLES.search(case.title)
    if precision.dtype is torch.float32:
        return case.section in _CACHED and not _TABLES.search(case.title)
    return case.section in _COMPUTED and not case.title.endswith("_table")


def measure(case: Case) -> Drift:
    """One case.

    Raises:
        Skipped: it cannot be judged here.
    """
    drift = Drift()
    run = handler(case.section)
    assert run is not None, case.section
    try:
        run(case, drift)
    except Diverged as end:
        drift.ends.append(str(end))
    return drift


def joined(drifts: Sequence[Drift]) -> Drift:
    """Of several cases."""
    worst = max(drifts, key=lambda drift: drift.distance)
    return Drift(
        differences=[text for drift in drifts for text in drift.differences],
        checks=sum(drift.checks for drift in drifts),
        distance=worst.distance,
        at=worst.at,
        tokens=sum(drift.tokens for drift in drifts),
        changed=sum(drift.changed for drift in drifts),
    )


def problems(drift: Drift, limits: Limits) -> list[str]:
    """Where it moved further than it may."""
    found = list(drift.differences)
    if not drift.distance <= limits.distance:
        found.append(f"{drift.at}: off by {drift.distance:.3g}, at most {limits.distance:g}")
    return found


def too_many_changed(drift: Drift, limits: Limits) -> list[str]:
    """True if more tokens changed than may; one of a few says nothing."""
    if drift.changed <= max(1.0, limits.changed * drift.tokens):
        return []
    return [f"{drift.changed} of {drift.tokens} tokens changed, at most {limits.changed:.1%}"]


def report(cases: Sequence[Case], precision: Precision) -> int:
    """Every case and every section; gives the exit status: 0 if all sections keep the limits."""
    limits = LIMITS[name_of(precision)]
    by_section: dict[str, list[Drift]] = {}
    for case in cases:
        if not concerns(case, precision):
            continue
        began = time.monotonic()
        try:
            drift = measure(case)
        except Skipped as reason:
            print(f"skip  {case.title:48} {reason}", flush=True)
            continue
        except Exception as error:
            traceback.print_exc(file=sys.stderr)
            drift = Drift(differences=[f"{case.name}: {type(error).__name__}: {error}"])
        by_section.setdefault(case.section, []).append(drift)
        end = f"; another from {drift.ends[0]} on" if drift.ends else ""
        took_s = time.monotonic() - began
        print(
            f"{case.title:46} {took_s:6.2f} s  {drift.distance:.2e} ({drift.at}), "
            f"{drift.changed} of {drift.tokens} tokens{end}",
            flush=True,
        )
    found = {section: joined(drifts) for section, drifts in by_section.items()}
    failures = {section: problems(drift, limits) for section, drift in found.items()}
    if found:
        found["all"] = joined(list(found.values()))
        failures["all"] = too_many_changed(found["all"], limits)
    print(f"\n| {name_of(precision)} | largest relative distance | of | tokens changed |")
    print("|---|---|---|---|")
    for section, one in found.items():
        print(f"| {section} | {one.distance:.2e} | {one.at} | {one.changed} of {one.tokens} |")
    for section, texts in failures.items():
        for text in texts:
            print(f"FAIL  {section}: {text}")
    return int(not found or any(failures.values()))
