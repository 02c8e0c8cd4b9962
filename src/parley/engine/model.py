"""The Model contract: what a model must implement so that the engine can run several conversations
on it.

A model is immutable after loading, except for its rows: `rows` slots, each with everything that
differs between two conversations (contexts, caches, sample buffers, random state). The engine never
looks inside them.

The engine gives a model one piece of work per row at a time (`start`), and the model returns a
`Job`: a small state machine that names the stage it needs next. The engine then gathers all jobs
that are ready for the same stage and calls `step` once for all of them, until every job is
finished. All calls are made on the engine thread.

Obligations that `tests/contracts/model.py` checks for every model:

- alone equals in company: what a row produces does not depend on who shares a step (token for token
  in float32 on CPU);
- streaming equals one-shot: the pieces of a streamed reply join to the reply that is not streamed;
- checkpoints: after `roll_back(checkpoint)` the row behaves as if nothing had happened since,
  random state included;
- a failed or dropped job harms its own row only; it is never stepped again, the next `start` on its
  row replaces it, and `StartSession` makes any row usable again;
- lengths commit last: a `step` that raises has not advanced any row, so it may be repeated with
  fewer jobs;
- `close` gives back what a conversation took; a thousand conversations take no more memory than
  one;
- a step is short: prefills are cut into pieces of at most `spec.prefill_piece_tokens`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from parley.engine.work import Checkpoint, OutputPiece, Result, Stage, Work
from parley.media.pcm import Pcm
from parley.protocol.kinds import Mode
from parley.protocol.values import CONTEXT_TOKENS


class DeviceFault(Exception):
    """Raised by a model if the device itself has failed: nothing on it can be used any more. The
    engine then invalidates all handles, and the process must be restarted.
    """


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Facts about a model for code that must not load it.

    Args:
        name: short name, as in `--model`.
        unit_s: length of a duplex unit.
        context_limit_tokens: maximum length of a context without a window (`ContextFull`).
        image_tokens: context tokens of one image slice.
        audio_tokens_per_s: context tokens of one second of audio.
        can_speak: True if this loaded model has a voice; False: text only, e.g. because the
            vocoder's files are missing.
        prompt_voice: the voice that is used if a client sends none, as audio at 16 kHz, for models
            that have a voice in their prompt.
        slots: number of conversations that it answers in time, if fewer than its rows; known
            after `warm_up`.
        details: facts for operators: `device`, `voice_problem` if there is no default voice, and
            `slots_limit`: why not all rows are offered.
        transcribes: True if results contain the words that were heard (`PrefillResult.heard`,
            `GenerateResult.heard`).
        transcription_prompt: the prompt with which the model transcribes audio; "" if it has none.
        reads_in_units: True if a duplex unit may contain written text.
        answers_short_units: True if a duplex unit may end, and be answered, when the user stops
            speaking.
        reads_aloud: True if it can speak a given text (`Generate.say`).
        calls_tools: True if it was trained to call functions, in the format of `views/tools.py`.
        must_call_tools: True if it can be forced to call one (`Tool.must_call`).
        keeps_formats: True if answers follow a given format (`Generate.answer_format`).
        takes_penalties: True if it supports presence and frequency penalties (`Generation`).
        reports_logprobs: True if it reports the probabilities of its tokens
            (`Generate.top_logprobs`).
        answers_early: True if an answer may be started before the user has surely finished, and be
            discarded; False if each request costs money.
    """

    name: str
    modes: tuple[Mode, ...] = ("chat", "half_duplex", "duplex")
    unit_s: float = 1.0
    context_limit_tokens: int = CONTEXT_TOKENS
    prefill_piece_tokens: int = 512
    image_tokens: int = 64
    audio_tokens_per_s: int = 10
    can_speak: bool = True
    prompt_voice: Pcm | None = None
    transcribes: bool = False
    transcription_prompt: str = ""
    reads_aloud: bool = False
    calls_tools: bool = False
    must_call_tools: bool = False
    keeps_formats: bool = False
    takes_penalties: bool = False
    reports_logprobs: bool = False
    reads_in_units: bool = False
    answers_short_units: bool = False
    answers_early: bool = True
    slots: int | None = None
    details: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes on the device: `weights_bytes` once, `row_bytes` per slot, `used_bytes` currently in
    use."""

    weights_bytes: int
    row_bytes: int
    used_bytes: int


class Job(Protocol):
    """One piece of work on one row. Owned by the model, read by the engine."""

    @property
    def row(self) -> int:
        """The slot it belongs to."""
        ...

    @property
    def stage(self) -> Stage | None:
        """Its next stage; None when finished."""
        ...

    @property
    def waits_s(self) -> float:
        """0: it is ready for a step. Otherwise it waits for another server, and gets no step for
        this time, which may be infinite, unless the model reports news (`WaitsForServers`)."""
        ...

    @property
    def result(self) -> Result | None:
        """The result; set exactly if `stage` is None. The engine fills in `timings`."""
        ...

    def take_pieces(self) -> list[OutputPiece]:
        """Pieces of an answer that became final since the previous call."""
        ...

    def cancel(self) -> None:
        """Finish early: the job ends with as few further stages as possible, and the context stays
        consistent."""
        ...


@runtime_checkable
class PreparesAhead(Protocol):
    """A model that can do part of a piece of work before its turn."""

    def prepare_ahead(self, work: Work) -> None:
        """Work was submitted: start the part that needs neither the device nor the conversation.

        Called in the submitting thread; returns immediately, never raises, and is only a hint.
        """
        ...


@runtime_checkable
class WaitsForServers(Protocol):
    """A model whose jobs may wait for other servers."""

    def report_news(self, report: Callable[[], None]) -> None:
        """From now on, call `report`, in any thread, when something arrives for a job that
        waits."""
        ...


@runtime_checkable
class HasServers(Protocol):
    """A model with parts on other servers."""

    @property
    def problem(self) -> str:
        """Why they cannot be used, as a sentence for everyone; "" if they can, as far as is known.
        May be called in any thread; returns immediately."""
        ...


@runtime_checkable
class HasFastPaths(Protocol):
    """A model with fast parts that may fall back to a slower form while it serves."""

    @property
    def fast_paths(self) -> Mapping[str, str]:
        """The state of every part: `fast`, `plain: why`, `refused: why`. May be called in any
        thread; returns immediately."""
        ...


@runtime_checkable
class SharesPages(Protocol):
    """A model whose conversations take pages from one pool as they grow."""

    @property
    def context_pages(self) -> tuple[int, int] | None:
        """Used and free pages; None: every conversation has its own memory. May be called in any
        thread."""
        ...


class Model(Protocol):
    """See the module's text."""

    @property
    def spec(self) -> ModelSpec: ...

    @property
    def rows(self) -> int:
        """Batch size: number of conversations; fixed at load."""
        ...

    def start(self, row: int, work: Work) -> Job:
        """Start a piece of work. Must be cheap: decoding, tokenising and device work belong in
        steps.

        Raises:
            BadInput: the work is not possible for this model or mode; the row is unchanged.
            ContextFull: it does not fit; the row is unchanged.
        """
        ...

    def step(self, stage: Stage, jobs: Sequence[Job]) -> None:
        """Advance all `jobs` (distinct rows, all at `stage`) by one bounded piece of work, in one
        batch."""
        ...

    def checkpoint(self, row: int) -> Checkpoint:
        """Save the state of the row."""
        ...

    def can_roll_back(self, checkpoint: Checkpoint) -> bool:
        """True if `checkpoint` still describes a state the row can return to."""
        ...

    def roll_back(self, checkpoint: Checkpoint) -> None:
        """Roll back to `checkpoint`, which stays valid."""
        ...

    def context_tokens(self, row: int) -> int:
        """Length of the row's context."""
        ...

    def close(self, row: int) -> None:
        """The conversation is over: free its memory. Harmless on an empty row."""
        ...

    def warm_up(self) -> None:
        """Run every kind of step once, so that the first conversation is as fast as the second."""
        ...

    def memory(self) -> Memory: ...

    def unload(self) -> None:
        """Free everything; no call may follow."""
        ...
