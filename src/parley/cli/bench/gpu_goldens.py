"""The golden vectors of the repository on a card, as a part of `parley bench gpu`.

An installed package does not contain them, so this needs a checkout, and the packages of its tests.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

import torch

from parley.cli.bench.gpu_parts import Check, judged, not_run

ROOT: Final = Path(__file__).resolve().parents[4]
"""Root of the checkout."""

LIMIT_S: Final = 300.0

HURTS: Final = "every user: rounding changes what is said more often than it should"


def goldens(place: torch.device, dtype: torch.dtype, *, small_caches: bool) -> Check:
    """Check all golden vectors on a card in the precision used for serving, which is another than
    they were recorded in.

    Args:
        small_caches: contexts in 8 bits.
    """
    kind = str(dtype).removeprefix("torch.")
    name = f"golden vectors in {kind}{', caches in 8 bits' if small_caches else ''}"
    if place.type != "cuda":
        return not_run(name, "without a card: python -m tests.golden --dtype bfloat16", HURTS)
    if not (ROOT / "tests" / "golden" / "runner.py").is_file():
        return not_run(name, "needs a checkout of the repository", HURTS)
    with tempfile.TemporaryDirectory(prefix="parley-bench-") as folder:
        out = Path(folder) / "goldens.json"
        words = ["--dtype", kind, "--device", str(place), "--out", str(out)]
        words += ["--caches", "int8"] if small_caches else []
        try:
            ran = subprocess.run(
                [sys.executable, "-m", "tests.golden", *words],
                cwd=ROOT,
                capture_output=True,
                text=True,
                timeout=LIMIT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return not_run(name, f"not done within {LIMIT_S:g} s", HURTS)
        if not out.is_file():
            last = ran.stderr.strip().splitlines() or ["no words"]
            return not_run(name, last[-1][:300], HURTS)
        found: dict[str, dict[str, Any]] = json.loads(out.read_text(encoding="utf-8"))
    return _check(name, found)


def _check(name: str, found: dict[str, dict[str, Any]]) -> Check:
    """One check for all sections: the number of vectors out of tolerance."""
    facts = "; ".join(
        f"{section} {one['distance']:.2e} ({one['at']}), {one['changed']} of {one['tokens']} tokens"
        for section, one in found.items()
    )
    broken = [text for one in found.values() for text in one["problems"]]
    return judged(name, float(len(broken)), 0.0, HURTS, "; ".join([facts, *broken]))
