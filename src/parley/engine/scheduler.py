"""The work waiting per row, and the choice of the rows and the stage of the next step.

Pure bookkeeping: values and a clock reading. Knows nothing of tensors, threads or sockets, so a
whole day of traffic can be replayed in a test.

Rules of `plan`, in this order:

1. One stage per step. The most urgent row leads: earliest deadline first.
2. Work without a deadline becomes as urgent as live work due now after `PATIENCE_S` without a step,
   so it never starves.
3. Rows at the leader's stage join it. At stages whose cost grows with every row (encoding, prefill,
   vocoding), work without a deadline does not join live work, because the live row would have to
   wait for a long prefill of another row. Decoding reads all weights once for any number of rows,
   so all rows join.
4. If the leader decodes and has enough time, live rows that must still prefill their unit go first:
   two cheap steps later they share every decoding step with the leader.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from parley.engine.work import Stage

PATIENCE_S = 1.5
"""Live work is due within a second. This must be longer, or chats would delay live units, and short
enough that a starved chat still advances about once a second."""

MARGIN_S = 0.25
"""A leader with less time than this does not wait for others."""

_SHARED = frozenset({Stage.DECODE, Stage.SPEECH})
_CATCH_UP = frozenset({Stage.ENCODE, Stage.PREFILL})

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class ReadySlot:
    """A row that is ready for a step.

    Args:
        due_s: monotonic deadline; None means no hurry.
        waiting_since_s: time at which it was requested or last advanced.
    """

    row: int
    stage: Stage
    due_s: float | None
    waiting_since_s: float

    @property
    def urgency_s(self) -> float:
        """The effective deadline."""
        return self.waiting_since_s + PATIENCE_S if self.due_s is None else self.due_s


@dataclass(frozen=True, slots=True)
class Step:
    """One batched forward pass: these rows, most urgent first, at this stage."""

    stage: Stage
    rows: tuple[int, ...]


def plan(ready: Sequence[ReadySlot], now_s: float) -> Step | None:
    """The next step; None if no row is ready."""
    if len(ready) <= 1:
        return Step(ready[0].stage, (ready[0].row,)) if ready else None
    in_order = sorted(ready, key=lambda one: (one.urgency_s, one.waiting_since_s, one.row))
    leader = in_order[0]
    if leader.stage is Stage.DECODE and leader.urgency_s - now_s >= MARGIN_S:
        behind = [one for one in in_order if one.due_s is not None and one.stage in _CATCH_UP]
        leader = behind[0] if behind else leader
    joining = [one for one in in_order if one.stage is leader.stage]
    if leader.stage not in _SHARED and leader.due_s is not None:
        joining = [one for one in joining if one.due_s is not None]
    return Step(leader.stage, tuple(one.row for one in joining))


class WorkQueue(Generic[Item]):
    """Work waiting per row, first come, first served, with one piece in progress at a time.

    `current` contains the piece in progress of each row, `waiting` the following ones. Read-only
    for others.
    """

    def __init__(self, rows: int) -> None:
        self.waiting: list[deque[Item]] = [deque() for _ in range(rows)]
        self.current: list[Item | None] = [None] * rows

    def add(self, row: int, item: Item) -> None:
        """Append to the row's queue."""
        self.waiting[row].append(item)

    def advance(self) -> Item | None:
        """Start the next piece of the first row with work waiting and none in progress; returns it,
        or None."""
        for row, waiting in enumerate(self.waiting):
            if waiting and self.current[row] is None:
                self.current[row] = waiting.popleft()
                return self.current[row]
        return None

    def finish(self, row: int) -> None:
        """The piece in progress is finished."""
        self.current[row] = None

    def clear(self, row: int) -> list[Item]:
        """Drop the row's work; returns the piece in progress and the waiting ones."""
        current = self.current[row]
        dropped = ([] if current is None else [current]) + list(self.waiting[row])
        self.current[row] = None
        self.waiting[row].clear()
        return dropped
