"""What the engine sees of a piece of work, as models keep it: a row, the stage it needs next, and
what came of it. Satisfies `engine.model.Job`; models add how a step is computed.
"""

from __future__ import annotations

from parley.engine.work import OutputPiece, Result, Stage


class ModelJob:
    """One piece of work on one row.

    Args:
        row: the slot it belongs to.
        stage: what it needs first; None when it is finished at once.
    """

    def __init__(self, row: int, stage: Stage | None) -> None:
        self._row = row
        self._stage = stage
        self._result: Result | None = None
        self._pieces: list[OutputPiece] = []

    @property
    def row(self) -> int:
        return self._row

    @property
    def stage(self) -> Stage | None:
        return self._stage

    @property
    def result(self) -> Result | None:
        return self._result

    def take_pieces(self) -> list[OutputPiece]:
        pieces, self._pieces = self._pieces, []
        return pieces

    def cancel(self) -> None:
        """Work that says nothing is short, and is simply finished."""

    def go(self, stage: Stage) -> None:
        """Another stage comes next."""
        self._stage = stage

    def finish(self, result: Result) -> None:
        """No step is left."""
        self._stage = None
        self._result = result
