"""A session's asynchronous handle on its slot; the only bridge between the event loop and the
engine thread.

`Seat` and `Decoding` are contracts: views are written against them, tests may pass a fake, and the
engine's own classes satisfy them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from parley.engine.model import ContextMark, ModelSpec
from parley.engine.segments import Segment
from parley.engine.work import Answer, Decoded, Opened, Opening, Piece, Prefilled, Reply, Settled


class Decoding(Protocol):
    """An answer in progress. Iterate for its pieces; `result` waits for its end.

    Abandoning the iteration (break, cancellation of the task) does not stop the model: call
    `cancel`, then await `result`, which ends within a few steps.
    """

    def __aiter__(self) -> AsyncIterator[Piece]: ...

    def cancel(self) -> None:
        """Ask the model to finish now. Safe from any task, any number of times."""
        ...

    async def result(self) -> Decoded:
        """The outcome, once all pieces are there (they stay readable).

        Raises:
            InferenceFailed: the model failed; roll back to a mark before going on.
            SeatLost: the seat was closed meanwhile.
        """
        ...


class Seat(Protocol):
    """One slot, held by one session until `close`. Work runs in the order it was asked for.

    Every method may raise `SeatLost` (closed, or engine stopped), `InferenceFailed` (the model
    failed on this work), `BadInput` or `ContextFull` (refused, the context is unchanged). `due_s`
    is a monotonic deadline that orders this work against other slots' work; None means no hurry.
    Cancelling an awaiting task abandons the wait, not the order of work: later work still runs
    after it.
    """

    @property
    def spec(self) -> ModelSpec: ...

    @property
    def row(self) -> int: ...

    @property
    def generation(self) -> int: ...

    @property
    def context_tokens(self) -> int:
        """Length of the context as of the last completed work."""
        ...

    async def open(self, opening: Opening) -> Opened: ...

    async def prefill(
        self, segments: Sequence[Segment], *, due_s: float | None = None
    ) -> Prefilled: ...

    def reply(self, reply: Reply, *, due_s: float | None = None) -> Decoding: ...

    def answer(self, answer: Answer, *, due_s: float | None = None) -> Decoding: ...

    async def settle(self, *, due_s: float | None = None) -> Settled: ...

    async def mark(self) -> ContextMark: ...

    async def can_roll_back(self, mark: ContextMark) -> bool: ...

    async def roll_back(self, mark: ContextMark) -> int:
        """Return to `mark`; gives the context length in tokens."""
        ...

    async def close(self) -> None:
        """Cancel what runs, free the slot. Returns when the model has let go of it. Safe to
        repeat."""
        ...
