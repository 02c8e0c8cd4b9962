"""A session's handle on its slot: the contracts that views are written against.

The engine's own classes satisfy them; tests may pass a fake.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Protocol, TypeVar

from parley.engine.model import ModelSpec
from parley.engine.segments import Segment
from parley.engine.work import (
    Checkpoint,
    FinalizeResult,
    Generate,
    GenerateResult,
    OutputPiece,
    PrefillResult,
    StartResult,
    StartSession,
    StepUnit,
    UnitResult,
    WholeUnit,
)

R = TypeVar("R", bound=GenerateResult, covariant=True)


class AwaitedResult(Protocol[R]):
    """An answer in progress; `result` waits for its end."""

    def cancel(self) -> None:
        """Ask the model to finish now. Safe from any task, any number of times."""
        ...

    async def result(self) -> R:
        """The outcome, once all pieces are there (they stay readable).

        Raises:
            InferenceFailed: the model failed; roll back to a checkpoint before the next command.
            SlotLost: the slot was closed meanwhile.
        """
        ...


class Decoding(AwaitedResult[GenerateResult], Protocol):
    """An answer that comes in pieces: iterate for them.

    Abandoning the iteration (break, cancellation of the task) does not stop the model: call
    `cancel`, then await `result`, which ends within a few steps.
    """

    def __aiter__(self) -> AsyncIterator[OutputPiece]: ...


class SlotHandle(Protocol):
    """One slot, held by one session until `close`. Commands run in the order they were given.

    Every method may raise `SlotLost` (closed, or engine stopped), `InferenceFailed` (the model
    failed on this command), `BadInput` or `ContextFull` (refused, the context is unchanged).
    `due_s` is a monotonic deadline that orders this command against those of other slots; None
    means no hurry. Cancelling an awaiting task abandons the wait, not the command: later commands
    still run after it.
    """

    @property
    def spec(self) -> ModelSpec: ...

    @property
    def row(self) -> int:
        """The slot's place in the engine's batch."""
        ...

    @property
    def generation(self) -> int:
        """How many sessions have held the slot, this one included."""
        ...

    @property
    def context_tokens(self) -> int:
        """Length of the context as of the last completed command."""
        ...

    async def start(self, command: StartSession) -> StartResult: ...

    async def prefill(
        self,
        segments: Sequence[Segment],
        *,
        takes_checkpoint: bool = False,
        due_s: float | None = None,
        again: object = None,
    ) -> PrefillResult:
        """Append segments. With `takes_checkpoint` the result has the checkpoint before them, and a
        failure of the model rolls the slot back to it. `again`: see `Prefill`."""
        ...

    def generate(self, command: Generate, *, due_s: float | None = None) -> Decoding: ...

    def step_unit(self, command: StepUnit, *, due_s: float | None = None) -> Decoding: ...

    def unit(self, command: WholeUnit, *, due_s: float | None = None) -> AwaitedResult[UnitResult]:
        """Prefill and decision in one request."""
        ...

    async def finalize(self, *, due_s: float | None = None) -> FinalizeResult: ...

    async def checkpoint(self) -> Checkpoint: ...

    async def can_roll_back(self, checkpoint: Checkpoint) -> bool: ...

    async def roll_back(self, checkpoint: Checkpoint) -> int:
        """Return to `checkpoint`; returns the context length in tokens."""
        ...

    async def clear(self) -> None:
        """Forget the session and give back what it took; the slot stays held, `start` begins the
        next session."""
        ...

    async def close(self) -> None:
        """Cancel what runs, free the slot. Returns when the model has let go of it. Safe to
        repeat."""
        ...
