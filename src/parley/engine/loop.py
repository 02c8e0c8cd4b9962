"""The engine thread: plan, run, account.

Owns the model and everything on the device. Other threads use `submit`, and receive the result of a
request through its `PendingResult`.

One iteration: take new requests, start the next command of every slot that is free for it, ask the
scheduler, run one step, deliver what became final. A step that fails with several slots in it is
repeated slot by slot, so that only the slot at fault loses its work. Work that waits for another
server takes no steps, and no time of the others.
"""

from __future__ import annotations

import dataclasses
import math
import threading
import uuid
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from parley import logs
from parley.clock import Clock
from parley.engine.model import DeviceFault, Job, Model, PreparesAhead, WaitsForServers
from parley.engine.scheduler import ReadySlot, WorkQueue, plan
from parley.engine.work import (
    Checkpoint,
    GenerateResult,
    OutputPiece,
    Prefill,
    PrefillResult,
    Result,
    Stage,
    UnitResult,
    WholeUnit,
    Work,
)
from parley.errors import BadInput, ContextFull, InferenceFailed, ParleyError, SlotLost

if TYPE_CHECKING:
    from parley.engine.engine import PendingResult

log = logs.get(__name__)

STATS_LIMIT = 20_000
"""Maximum number of durations kept between two calls of `take_stats`; the oldest are dropped."""


@dataclass(frozen=True, slots=True)
class RowCall:
    """A call of the model about a slot's row that needs no step. Its result is that of the
    request."""

    function: Callable[[Model, int], object]


def roll_back(model: Model, row: int, checkpoint: Checkpoint) -> int:
    """Roll a row back to a checkpoint; returns the context length in tokens.

    Raises:
        InferenceFailed: the checkpoint is no longer valid.
    """
    if not model.can_roll_back(checkpoint):
        raise InferenceFailed("The context has moved past the checkpoint.")
    model.roll_back(checkpoint)
    return model.context_tokens(row)


Command = Work | WholeUnit | RowCall
"""Work for a slot. Each slot's work runs in the order of submission."""


@dataclass(eq=False, slots=True)
class SlotRequest:
    """One command for one slot, and its state in the engine thread.

    Args:
        sink: receives the results.
        pieces: of the answer of a whole unit, which are delivered with its result.
        due_s: monotonic deadline; None means no hurry.
    """

    row: int
    command: Command
    sink: PendingResult[Any]
    due_s: float | None = None
    is_cancelled: bool = False
    job: Job | None = None
    checkpoint: Checkpoint | None = None
    prefilled: PrefillResult | None = None
    pieces: list[OutputPiece] = field(default_factory=list)
    waiting_since_s: float = 0.0
    spent_ms: dict[Stage, float] = field(default_factory=dict)


@dataclass(slots=True)
class Stats:
    """Counts since the previous call of `take_stats`.

    Args:
        durations: the time in ms that each finished piece of work spent in a stage.
        steps: steps run per stage; `rows_stepped` divided by it is the mean batch.
        busy_s: time spent inside steps.
    """

    durations: deque[tuple[Stage, float]] = field(default_factory=lambda: deque(maxlen=STATS_LIMIT))
    steps: Counter[Stage] = field(default_factory=Counter)
    rows_stepped: Counter[Stage] = field(default_factory=Counter)
    busy_s: float = 0.0

    @property
    def stage_ms(self) -> dict[Stage, list[float]]:
        """`durations` by stage."""
        found: dict[Stage, list[float]] = {}
        for stage, spent_ms in self.durations:
            found.setdefault(stage, []).append(spent_ms)
        return found


class EngineLoop:
    """The engine thread. The thread executes `run`; tests call `run_once`."""

    def __init__(
        self, model: Model, clock: Clock, *, on_fault: Callable[[], None] | None = None
    ) -> None:
        self._model = model
        self._prepare_ahead = model.prepare_ahead if isinstance(model, PreparesAhead) else None
        self._clock = clock
        self._on_fault = on_fault
        self._order: WorkQueue[SlotRequest] = WorkQueue(model.rows)
        self._inbox: deque[tuple[Callable[..., None], tuple[object, ...]]] = deque()
        self._wake = threading.Condition()
        self._rest_s = math.inf
        """Time in which there is nothing to do without further requests or news."""
        self._is_stopping = False
        self._unloads = False
        self.fault: str | None = None
        """Id of the device fault that broke the engine; None while the device works."""
        self._step_began_s: float | None = None
        self._stepped_s = 0.0
        self._stats_lock = threading.Lock()
        self._stats = Stats()
        self._has_servers = isinstance(model, WaitsForServers)
        if isinstance(model, WaitsForServers):
            model.report_news(lambda: self.call(_nothing))

    # Called from any thread.

    @property
    def step_took_s(self) -> float:
        """Time since the start of the current step; 0 between steps."""
        began_s = self._step_began_s
        return 0.0 if began_s is None else self._clock.monotonic() - began_s

    @property
    def stepped_s(self) -> float:
        """Total time spent in steps, the current one included."""
        # In this order a step that ends meanwhile counts twice rather than not at all.
        return self.step_took_s + self._stepped_s

    def submit(self, request: SlotRequest) -> None:
        """Add a request to its slot's queue."""
        if self._prepare_ahead is not None:
            command = request.command
            prefill = command.prefill if isinstance(command, WholeUnit) else command
            if isinstance(prefill, Prefill):
                self._prepare_ahead(prefill)
        # Bounded: each slot handle has a limited number of requests in flight.
        with self._wake:
            self._inbox.append((self._enqueue, (request,)))
            self._wake.notify()

    def cancel(self, request: SlotRequest) -> None:
        """Finish a request early, ahead of all waiting requests."""
        self._post(self._cancel, request)

    def release(self, row: int, released: Callable[[], None]) -> None:
        """Drop all work of a slot and free its memory, ahead of all waiting requests; then call
        `released`."""
        self._post(self._release, row, released)

    def call(self, function: Callable[[Model], None]) -> None:
        """Run a function on the engine thread between two steps. It must not raise."""
        self._post(function, self._model)

    def stop(self, *, unload: bool) -> None:
        """End the loop after the current step, and free the model if `unload`; unfinished requests
        fail."""
        with self._wake:
            self._is_stopping, self._unloads = True, unload
            self._wake.notify()

    def take_stats(self) -> Stats:
        """The counts since the previous call."""
        with self._stats_lock:
            stats, self._stats = self._stats, Stats()
        return stats

    # Called on the engine thread.

    def run(self) -> None:
        """Run until `stop`; sleep while there is nothing to do."""
        try:
            while self._wait():
                self.run_once()
        except Exception:
            # Only a bug of the engine itself leads here; pending requests must still fail.
            error_id = uuid.uuid4().hex[:8]
            log.exception("engine_failed", error_id=error_id)
            self._give_up(error_id)
        finally:
            self._end()

    def run_once(self) -> bool:
        """One iteration; returns False if there was no step to run."""
        # Only this thread removes items, and appending is atomic.
        while self._inbox:
            function, arguments = self._inbox.popleft()
            function(*arguments)
        while self.fault is None and (request := self._order.advance()) is not None:
            self._begin(request)
        self._rest_s = math.inf
        if self.fault is not None:
            return False
        step = plan(self._ready(), self._clock.monotonic())
        if step is None:
            return False
        self._rest_s = 0.0
        current = self._order.current
        self._run(step.stage, [one for row in step.rows if (one := current[row]) is not None])
        return True

    def _post(self, function: Callable[..., None], *arguments: object) -> None:
        with self._wake:
            self._inbox.append((function, arguments))
            self._wake.notify()

    def _wait(self) -> bool:
        """Wait until there is something to do; returns False when the loop must end."""
        with self._wake:
            while not (self._inbox or self._is_stopping):
                rest_s = None if self._rest_s == math.inf else self._rest_s
                if rest_s == 0 or not self._wake.wait(rest_s):
                    break
            return not self._is_stopping

    def _enqueue(self, request: SlotRequest) -> None:
        if self.fault is not None:
            request.sink.failed(SlotLost(), 0)
            return
        request.waiting_since_s = self._clock.monotonic()
        self._order.add(request.row, request)

    def _cancel(self, request: SlotRequest) -> None:
        request.is_cancelled = True
        if request.job is None or self._order.current[request.row] is not request:
            return
        try:
            request.job.cancel()
            self._hand_out(request)
        except Exception as error:
            self._fail(request, error)

    def _release(self, row: int, released: Callable[[], None]) -> None:
        for request in self._order.clear(row):
            request.sink.failed(SlotLost(), 0)
        if self.fault is None:
            self._close_row(row)
        released()

    def _begin(self, request: SlotRequest) -> None:
        """Start a row's next work. Work that needs no step is done immediately."""
        try:
            self._start(request)
        except (BadInput, ContextFull) as refusal:
            if request.prefilled is not None:
                self._guarded(lambda: self._undo(request), "roll_back")
            self._finish_failed(request, refusal)
        except Exception as error:
            self._fail(request, error)

    def _start(self, request: SlotRequest) -> None:
        match request.command:
            case RowCall(function):
                self._finish(request, function(self._model, request.row))
            case WholeUnit(prefill):
                self._work(request, prefill)
            case command:
                self._work(request, command)

    def _work(self, request: SlotRequest, work: Work) -> None:
        """Have the model start the next piece of work of this request."""
        row = request.row
        if isinstance(work, Prefill) and work.takes_checkpoint:
            request.checkpoint = self._model.checkpoint(row)
        request.job = self._model.start(row, work)
        if request.is_cancelled:
            request.job.cancel()
        self._hand_out(request)

    def _ready(self) -> list[ReadySlot]:
        ready = []
        for row, request in enumerate(self._order.current):
            job = None if request is None else request.job
            stage = None if job is None else job.stage
            if request is None or job is None or stage is None:
                continue
            if self._has_servers and (waits_s := job.waits_s):
                self._rest_s = min(self._rest_s, waits_s)
                continue
            # Work is as urgent as the most urgent request behind it on the same row.
            line = (request, *self._order.waiting[row])
            dues = [one.due_s for one in line if one.due_s is not None]
            due_s = min(dues, default=None)
            ready.append(ReadySlot(row, stage, due_s, request.waiting_since_s))
        return ready

    def _run(self, stage: Stage, requests: list[SlotRequest]) -> None:
        try:
            self._step(stage, requests)
        except Exception as error:
            if len(requests) == 1 or _is_device_fault(error):
                self._fail(requests[0], error)
                return
            # No row has advanced: find the one at fault. Repeated row by row.
            log.warning("engine_step_failed", stage=stage.value, rows=len(requests))
            for request in requests:
                if self.fault is None:
                    self._run(stage, [request])
            return
        for request in requests:
            try:
                self._hand_out(request)
            except Exception as error:
                self._fail(request, error)

    def _step(self, stage: Stage, requests: list[SlotRequest]) -> None:
        jobs = [request.job for request in requests if request.job is not None]
        started_s = self._step_began_s = self._clock.monotonic()
        try:
            self._model.step(stage, jobs)
        finally:
            ended_s = self._clock.monotonic()
            self._stepped_s += ended_s - started_s
            self._step_began_s = None
            with self._stats_lock:
                self._stats.steps[stage] += 1
                self._stats.rows_stepped[stage] += len(jobs)
                self._stats.busy_s += ended_s - started_s
        for request in requests:
            request.spent_ms[stage] = request.spent_ms.get(stage, 0.0) + 1000 * (
                ended_s - started_s
            )
            request.waiting_since_s = ended_s

    def _hand_out(self, request: SlotRequest) -> None:
        assert request.job is not None
        pieces = request.job.take_pieces()
        if isinstance(request.command, WholeUnit):
            request.pieces += pieces
        elif pieces:
            request.sink.pieces(pieces)
        if request.job.stage is None:
            result = request.job.result
            assert result is not None, "a finished job has a result"
            if isinstance(request.command, WholeUnit) and isinstance(result, PrefillResult):
                request.prefilled = dataclasses.replace(result, checkpoint=request.checkpoint)
                self._work(request, request.command.step)
                return
            with self._stats_lock:
                self._stats.durations.extend(request.spent_ms.items())
            self._finish(request, _completed(result, request))

    def _finish(self, request: SlotRequest, value: object) -> None:
        self._order.finish(request.row)
        request.sink.done(value, self._model.context_tokens(request.row))

    def _finish_failed(self, request: SlotRequest, error: ParleyError) -> None:
        self._order.finish(request.row)
        request.sink.failed(error, self._guarded_length(request.row))

    def _fail(self, request: SlotRequest, error: Exception) -> None:
        """The model failed on this work: log the details, and send the client an id."""
        if isinstance(error, ParleyError) and not _is_device_fault(error):
            failure: ParleyError = error
            log.warning(
                "engine_request_refused",
                row=request.row,
                error=f"{type(error).__name__}: {error}",
            )
        else:
            error_id = uuid.uuid4().hex[:8]
            log.error(
                "engine_request_failed",
                error_id=error_id,
                row=request.row,
                command=type(request.command).__name__,
                exc_info=error,
            )
            failure = InferenceFailed(error_id=error_id)
            if _is_device_fault(error):
                self._give_up(error_id)
        if self.fault is None and request.checkpoint is not None:
            self._guarded(lambda: self._undo(request), "roll_back")
        self._finish_failed(request, failure)
        if self.fault is not None:
            self._lose_all()

    def _undo(self, request: SlotRequest) -> None:
        if request.checkpoint is not None and self._model.can_roll_back(request.checkpoint):
            self._model.roll_back(request.checkpoint)

    def _give_up(self, error_id: str) -> None:
        """The device has failed, and with it all sessions: call `on_fault` before they are
        notified."""
        self.fault = error_id
        log.critical("device_failed", error_id=error_id)
        if self._on_fault is not None:
            self._on_fault()

    def _lose_all(self) -> None:
        for row in range(self._model.rows):
            for request in self._order.clear(row):
                request.sink.failed(SlotLost(), 0)

    def _end(self) -> None:
        while self._inbox:
            function, arguments = self._inbox.popleft()
            function(*arguments)
        self._lose_all()
        if self.fault is None:
            for row in range(self._model.rows):
                self._close_row(row)
        if self._unloads:
            self._guarded(self._model.unload, "unload")

    def _close_row(self, row: int) -> None:
        self._guarded(lambda: self._model.close(row), "close")

    def _guarded(self, action: Callable[[], None], what: str) -> None:
        """Release a row; an exception of the model must not stop the cleanup."""
        try:
            action()
        except Exception:
            log.exception("model_cleanup_failed", during=what)

    def _guarded_length(self, row: int) -> int:
        try:
            return self._model.context_tokens(row)
        except Exception:
            log.exception("context_length_unknown", row=row)
            return 0


def _nothing(model: Model) -> None:
    """Something has arrived for a job that waits: the next iteration finds it."""


def _completed(result: Result, request: SlotRequest) -> Result:
    """A model's result, completed with the engine's timings."""
    if isinstance(result, GenerateResult) and request.prefilled is not None:
        return UnitResult.of(result, request.prefilled, request.pieces, request.spent_ms)
    if isinstance(result, PrefillResult):
        return dataclasses.replace(result, timings=request.spent_ms, checkpoint=request.checkpoint)
    return dataclasses.replace(result, timings=request.spent_ms)


def _is_device_fault(error: BaseException) -> bool:
    """True if the error means that the device failed: models raise `DeviceFault`, but CUDA reports
    a dead context as an ordinary error."""
    if isinstance(error, DeviceFault):
        return True
    name = type(error).__name__
    return name == "AcceleratorError" or (
        isinstance(error, RuntimeError)
        and name != "OutOfMemoryError"
        and "CUDA error" in str(error)
    )
