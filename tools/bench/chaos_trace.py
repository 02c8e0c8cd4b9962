"""Log lines of the servers of `python -m tools.bench chaos` while a session was not connected."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import msgspec

EARLIER_S: Final = 3.0
"""Time before the loss from which lines are included: a move starts before its client loses the
connection."""
LINES: Final = 40


@dataclass(frozen=True, slots=True)
class Recovery:
    """One session that continued after its connection was lost.

    Args:
        kind: the cause; see `ChaosReport.recovery_ms`.
        took_ms: as counted in `ChaosReport.recovery_ms`.
        lost_at, back_at: Unix seconds.
    """

    kind: str
    took_ms: float
    session_id: str
    lost_at: float
    back_at: float


def explained(recovery: Recovery, logs: Path) -> list[str]:
    """The servers' log lines of one recovery, in order, with seconds since the loss."""
    since, until = recovery.lost_at - EARLIER_S, recovery.back_at + 0.1
    found: list[tuple[float, str]] = []
    for path in sorted(logs.glob("*.log")):
        for line in _lines(path):
            at = datetime.fromisoformat(line.pop("timestamp")).timestamp()
            whose = line.pop("session_id", recovery.session_id)
            if since <= at <= until and whose == recovery.session_id:
                words = [str(line.pop("event")), *(f"{name}={line[name]}" for name in line)]
                found.append((at - recovery.lost_at, f"{path.stem}: {' '.join(words)[:200]}"))
    head = f"{recovery.kind}, {recovery.took_ms:.0f} ms: {recovery.session_id}"
    return [head, *(f"  {at:+.2f} s {text}" for at, text in sorted(found)[:LINES])]


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    for line in path.read_text(errors="replace").splitlines():
        with contextlib.suppress(msgspec.DecodeError):  # A process may print other text, too.
            yield msgspec.json.decode(line, type=dict[str, Any])
