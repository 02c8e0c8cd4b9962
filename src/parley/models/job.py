"""Base classes of models on the engine's contract: pieces of work, and checks of their order.

`ModelJob` is a piece of work as the engine sees it: a row, the stage that it needs next, and its
result; models add the computation of a step. `RowModel` stores one conversation per row and rejects
work that is out of order before it asks the subclass for a job. Its jobs are stepped one after the
other (`ModelJob.run`), unless the subclass computes them together.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from parley.engine.model import Job, ModelSpec
from parley.engine.segments import Audio, Segment, Text
from parley.engine.work import (
    Checkpoint,
    FinalizeResult,
    Generate,
    OutputPiece,
    Prefill,
    Result,
    Stage,
    StartResult,
    StartSession,
    StepUnit,
    TalkWork,
    Work,
)
from parley.errors import InferenceFailed, InvalidRequest
from parley.media.pcm import INPUT_RATE_HZ, OUTPUT_RATE_HZ, join


class ModelJob:
    """One piece of work on one row. Satisfies `engine.model.Job`.

    Args:
        row: the slot it belongs to.
        stage: what it needs first; None if no step is needed.

    Args of state:
        is_streamed: pieces are returned as they are generated; otherwise all as one, at the end.
    """

    is_streamed = True

    def __init__(self, row: int, stage: Stage | None) -> None:
        self.row = row
        self.stage = stage
        self.result: Result | None = None
        self._pieces: list[OutputPiece] = []

    @property
    def waits_s(self) -> float:
        return 0.0

    def take_pieces(self) -> list[OutputPiece]:
        if not self._pieces or not (self.is_streamed or self.stage is None):
            return []
        pieces, self._pieces = self._pieces, []
        return pieces if self.is_streamed else [join_pieces(pieces)]

    def run(self) -> None:
        """Run one step of the current stage (`RowModel.step`)."""
        raise NotImplementedError

    def cancel(self) -> None:
        """Do nothing: work without output is short, and runs to its end."""

    def go(self, stage: Stage) -> None:
        """Set the next stage."""
        self.stage = stage

    def finish(self, result: Result) -> None:
        """Set the result; no more steps are needed."""
        self.stage = None
        self.result = result


class RowConversation(Protocol):
    """A conversation as `RowModel` sees it."""

    @property
    def is_duplex(self) -> bool: ...

    @property
    def awaits_finalize(self) -> bool:
        """True if the last unit was decided and not finalized."""
        ...

    @property
    def context_tokens(self) -> int: ...


@dataclass(frozen=True, slots=True, eq=False)
class Remembered:
    """A checkpoint of one conversation.

    Args:
        serial: larger for later checkpoints.
        kept: data with which the model returns to this point (`RowModel.remember`).
    """

    row: int
    conversation: RowConversation
    context_tokens: int
    serial: int
    kept: Any


Talk = TypeVar("Talk", bound=RowConversation)


class RowModel(ABC, Generic[Talk]):
    """A model whose rows are Python values: it dispatches work, and rejects what is out of order.

    Args:
        spec: the model's description for the rest of the program.
        rows: number of concurrent conversations.
    """

    def __init__(self, spec: ModelSpec, rows: int) -> None:
        self._spec = spec
        self._conversations: list[Talk | None] = [None] * rows
        self._serial = 0
        self._abandoned: list[list[tuple[int, int]]] = [[] for _ in range(rows)]
        """Serials of a row's checkpoints in an abandoned history: those above the first number, up
        to and including the second."""

    @property
    def spec(self) -> ModelSpec:
        return self._spec

    @property
    def rows(self) -> int:
        return len(self._conversations)

    def start(self, row: int, work: Work) -> Job:
        if isinstance(work, StartSession):
            return self.job_of_start(row, work)
        conversation = self.conversation(row)
        if isinstance(work, Prefill):
            if conversation.awaits_finalize:
                raise InvalidRequest("The last unit has not been finalized.")
            require_input_rate(work.segments)
        elif isinstance(work, StepUnit) and not conversation.is_duplex:
            raise InvalidRequest("Units are answered in duplex only.")
        elif isinstance(work, Generate) and conversation.is_duplex:
            raise InvalidRequest("Turns are answered in chat and half-duplex only.")
        return self.job_of(row, conversation, work)

    def job_of_start(self, row: int, work: StartSession) -> Job:
        return _StartJob(self, row, work)

    def open(self, row: int, opening: StartSession, seed: int) -> None:
        """Start a new conversation in the row; the default `job_of_start` calls it."""
        raise NotImplementedError

    @abstractmethod
    def job_of(self, row: int, conversation: Talk, work: TalkWork) -> Job: ...

    @abstractmethod
    def remember(self, row: int, conversation: Talk) -> Any:
        """Data for `return_to`. It must not change later."""

    def can_return(self, conversation: Talk, kept: Any) -> bool:
        """True if the context can still return to that point."""
        return True

    @abstractmethod
    def return_to(self, row: int, conversation: Talk, kept: Any) -> None: ...

    def step(self, stage: Stage, jobs: Sequence[Job]) -> None:
        for job in jobs:
            assert isinstance(job, ModelJob)
            # A step that failed for another row is repeated: jobs that have already moved on stay
            # there.
            if job.stage is stage:
                job.run()

    def checkpoint(self, row: int) -> Remembered:
        conversation = self.conversation(row)
        kept = self.remember(row, conversation)
        self._serial += 1
        tokens = conversation.context_tokens
        return Remembered(row, conversation, tokens, self._serial, kept)

    def can_roll_back(self, checkpoint: Checkpoint) -> bool:
        conversation = self._conversations[checkpoint.row]
        if conversation is None or not isinstance(checkpoint, Remembered):
            return False
        if checkpoint.conversation is not conversation:
            return False
        abandoned, serial = self._abandoned[checkpoint.row], checkpoint.serial
        is_past = any(start < serial <= stop for start, stop in abandoned)
        return not is_past and self.can_return(conversation, checkpoint.kept)

    def roll_back(self, checkpoint: Checkpoint) -> None:
        if not self.can_roll_back(checkpoint):
            raise InferenceFailed("The context has moved past the point to return to.")
        assert isinstance(checkpoint, Remembered)
        row, serial = checkpoint.row, checkpoint.serial
        self.return_to(row, self.conversation(row), checkpoint.kept)
        before = [one for one in self._abandoned[row] if one[0] < serial]
        self._abandoned[row] = [*before, (serial, self._serial)]

    def conversation(self, row: int) -> Talk:
        """The row's conversation.

        Raises:
            InvalidRequest: there is none.
        """
        conversation = self._conversations[row]
        if conversation is None:
            raise InvalidRequest("The conversation has not been opened.")
        return conversation

    def context_tokens(self, row: int) -> int:
        conversation = self._conversations[row]
        return 0 if conversation is None else conversation.context_tokens

    def close(self, row: int) -> None:
        self._conversations[row] = None
        self._abandoned[row] = []

    def unload(self) -> None:
        for row in range(self.rows):
            self.close(row)


class _StartJob(ModelJob):
    """Starts a new conversation."""

    def __init__(self, model: RowModel[Any], row: int, opening: StartSession) -> None:
        super().__init__(row, Stage.VOCODE)
        self._model, self._opening = model, opening

    def run(self) -> None:
        seed = seed_of(self._opening)
        self._model.open(self.row, self._opening, seed)
        self.finish(StartResult(seed))


class FinalizeJob(ModelJob):
    """Finalizes the last unit, if it was not finalized yet.

    Args:
        finalize: returns the number of tokens that the window dropped.
    """

    def __init__(
        self, row: int, conversation: RowConversation, finalize: Callable[[], int]
    ) -> None:
        super().__init__(row, Stage.FINALIZE if conversation.awaits_finalize else None)
        self._conversation, self._finalize = conversation, finalize
        if self.stage is None:
            self.finish(FinalizeResult(conversation.context_tokens))

    def run(self) -> None:
        dropped = self._finalize()
        self.finish(FinalizeResult(self._conversation.context_tokens, dropped))


def seed_of(opening: StartSession) -> int:
    """The requested seed, or a random one."""
    return random.randrange(2**63) if opening.seed is None else opening.seed


def require_input_rate(segments: Sequence[Segment]) -> None:
    """Raises `InvalidRequest` for audio whose sample rate is not the models' input rate."""
    for segment in segments:
        if isinstance(segment, Audio) and segment.pcm.rate_hz != INPUT_RATE_HZ:
            raise InvalidRequest(
                f"Sound must have {INPUT_RATE_HZ} Hz here, got {segment.pcm.rate_hz} Hz."
            )


def merge_texts(segments: Sequence[Segment]) -> list[Segment]:
    """Merge adjacent texts."""
    merged: list[Segment] = []
    for segment in segments:
        if isinstance(segment, Text) and merged and isinstance(merged[-1], Text):
            merged[-1] = Text(merged[-1].text + segment.text)
        else:
            merged.append(segment)
    return merged


def join_pieces(pieces: Sequence[OutputPiece]) -> OutputPiece:
    """Join several pieces of an answer into one."""
    sounds = [piece.pcm for piece in pieces if piece.pcm is not None]
    return OutputPiece(
        "".join(piece.text for piece in pieces),
        join(sounds, OUTPUT_RATE_HZ) if sounds else None,
        tuple(each for piece in pieces for each in piece.logprobs),
    )
