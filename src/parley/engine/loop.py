"""The engine thread: plan, run, account.

Owns the model and everything on the device. Others reach it through `ask` (from any thread), and
hear back through the `Outlet` that came with the question; `seat.py` makes outlets that lead to an
event loop.

One round of the loop: take what was asked, begin the next piece of work of every row that is free
for it, ask the scheduler, run one step, hand out what became final. A step that fails with several
rows in it is repeated row by row, so that only the row at fault loses its work.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
import uuid
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from parley.clock import Clock
from parley.engine.model import ContextMark, DeviceFault, Job, Model
from parley.engine.scheduler import Ready, plan
from parley.engine.slots import Order, Tenancy
from parley.engine.work import Piece, Result, Stage, Work
from parley.errors import BadInput, ContextFull, InferenceFailed, ParleyError, SeatLost

log = logging.getLogger(__name__)

STATS_LIMIT = 20_000
"""Durations kept between two `take_stats`; the oldest are lost beyond that."""


class Outlet(Protocol):
    """Where the engine thread puts what comes of a question. Methods return at once."""

    def pieces(self, pieces: list[Piece]) -> None:
        """Parts of an answer, in order."""
        ...

    def done(self, value: object, context_tokens: int) -> None:
        """The outcome, and how long the row's context is now."""
        ...

    def failed(self, error: ParleyError, context_tokens: int) -> None: ...


@dataclass(frozen=True, slots=True)
class Mark:
    """Remember where the row is."""


@dataclass(frozen=True, slots=True)
class CanRollBack:
    """Whether a mark can still be returned to."""

    mark: ContextMark


@dataclass(frozen=True, slots=True)
class RollBack:
    """Return to a mark."""

    mark: ContextMark


@dataclass(frozen=True, slots=True)
class Clear:
    """Forget the conversation and free what it took; the row stays held."""


Request = Work | Mark | CanRollBack | RollBack | Clear
"""What is done in the order it was asked for, row by row."""


@dataclass(eq=False, slots=True)
class Ask:
    """One request of one tenant, and what the engine thread knows about it.

    Args:
        due_s: monotonic deadline; None means no hurry.
    """

    tenancy: Tenancy
    request: Request
    outlet: Outlet
    due_s: float | None = None
    is_cancelled: bool = False
    job: Job | None = None
    waiting_since_s: float = 0.0
    spent_ms: dict[Stage, float] = field(default_factory=dict)

    @property
    def row(self) -> int:
        return self.tenancy.row


@dataclass(frozen=True, slots=True)
class Stats:
    """What happened since the last look.

    Args:
        stage_ms: per stage, the time each finished piece of work spent in it.
        steps: steps run per stage; `rows_stepped` divided by it is the mean batch.
        busy_s: time spent inside steps.
        failures: pieces of work that the model failed on.
    """

    stage_ms: dict[Stage, list[float]]
    steps: dict[Stage, int]
    rows_stepped: dict[Stage, int]
    busy_s: float
    failures: int


class EngineLoop:
    """The thread's body. `run` is what the thread executes; tests call `run_once`."""

    def __init__(
        self, model: Model, clock: Clock, *, on_fault: Callable[[], None] | None = None
    ) -> None:
        self._model = model
        self._clock = clock
        self._on_fault = on_fault
        self._order: Order[Ask] = Order(model.rows)
        self._inbox: deque[Callable[[], None]] = deque()
        self._wake = threading.Condition()
        self._is_stopping = False
        self._unloads = False
        self._fault: str | None = None
        self._stats_lock = threading.Lock()
        self._reset_stats()

    @property
    def fault(self) -> str | None:
        """Id of the device fault that broke the engine, None while it is sound."""
        return self._fault

    # From any thread.

    def ask(self, ask: Ask) -> None:
        """Put a request at the end of its row's line."""
        self._post(lambda: self._enqueue(ask))

    def cancel(self, ask: Ask) -> None:
        """Finish a request early; at once, ahead of everything that waits."""
        self._post(lambda: self._cancel(ask))

    def release(self, tenancy: Tenancy, released: Callable[[], None]) -> None:
        """Drop all work of a row and free what it took; at once. Calls `released` then."""
        self._post(lambda: self._release(tenancy, released))

    def call(self, function: Callable[[Model], None]) -> None:
        """Run something on the engine thread between two steps. It must not raise."""
        self._post(lambda: function(self._model))

    def stop(self) -> None:
        """End the loop after the step that runs; what is asked and unfinished fails."""
        with self._wake:
            self._is_stopping = True
            self._wake.notify()

    def unload_at_end(self) -> None:
        """Free the model when the loop ends."""
        self._unloads = True

    def take_stats(self) -> Stats:
        """What happened since the last call."""
        with self._stats_lock:
            stage_ms: dict[Stage, list[float]] = {}
            for stage, spent_ms in self._durations:
                stage_ms.setdefault(stage, []).append(spent_ms)
            stats = Stats(
                stage_ms,
                dict(self._steps),
                dict(self._rows_stepped),
                self._busy_s,
                self._failures,
            )
            self._reset_stats()
        return stats

    # On the engine thread.

    def run(self) -> None:
        """Until `stop`: sleep when there is nothing to do, otherwise go round."""
        try:
            while self._wait():
                self.run_once()
        except Exception:
            # Only a defect of the engine itself leads here; nobody may wait for it in vain.
            self._fault = uuid.uuid4().hex[:8]
            log.exception("error %s: the engine failed", self._fault)
            self._give_up()
        finally:
            self._end()

    def run_once(self) -> bool:
        """One round; False when there was nothing to step."""
        self._take_inbox()
        if self._fault is not None:
            return False
        for row in range(self._model.rows):
            self._begin(row)
        now_s = self._clock.monotonic()
        step = plan(self._ready(), now_s)
        if step is None:
            return False
        asks = [ask for row in step.rows if (ask := self._order.current(row)) is not None]
        self._run(step.stage, asks)
        return True

    def _post(self, action: Callable[[], None]) -> None:
        # Bounded by the seats: each has a limited number of requests under way.
        with self._wake:
            self._inbox.append(action)
            self._wake.notify()

    def _wait(self) -> bool:
        """Until there is something to do; False when it is time to end."""
        with self._wake:
            while not (self._inbox or self._is_stopping or self._has_work()):
                self._wake.wait()
            return not self._is_stopping

    def _has_work(self) -> bool:
        return self._fault is None and not self._order.idle

    def _take_inbox(self) -> None:
        while True:
            with self._wake:
                if not self._inbox:
                    return
                action = self._inbox.popleft()
            action()

    def _enqueue(self, ask: Ask) -> None:
        if self._fault is not None:
            ask.outlet.failed(SeatLost(), 0)
            return
        ask.waiting_since_s = self._clock.monotonic()
        self._order.add(ask.row, ask)

    def _cancel(self, ask: Ask) -> None:
        ask.is_cancelled = True
        if ask.job is None or self._order.current(ask.row) is not ask:
            return
        try:
            ask.job.cancel()
            self._hand_out(ask)
        except Exception as error:
            self._fail(ask, error)

    def _release(self, tenancy: Tenancy, released: Callable[[], None]) -> None:
        for ask in self._order.clear(tenancy.row):
            ask.outlet.failed(SeatLost(), 0)
        if self._fault is None:
            self._close_row(tenancy.row)
        released()

    def _begin(self, row: int) -> None:
        """Start the row's next work. What needs no step is done on the spot."""
        while (ask := self._order.advance(row)) is not None:
            try:
                self._start(ask)
            except (BadInput, ContextFull) as refusal:
                self._finish_failed(ask, refusal)
            except Exception as error:
                self._fail(ask, error)
                if self._fault is not None:
                    return

    def _start(self, ask: Ask) -> None:
        row, request = ask.row, ask.request
        match request:
            case Mark():
                self._finish(ask, self._model.mark(row))
            case CanRollBack(mark):
                self._finish(ask, self._model.can_roll_back(mark))
            case RollBack(mark):
                if not self._model.can_roll_back(mark):
                    raise InferenceFailed("The context has moved past the point to return to.")
                self._model.roll_back(mark)
                self._finish(ask, self._model.context_tokens(row))
            case Clear():
                self._model.close(row)
                self._finish(ask, None)
            case _:
                ask.job = self._model.start(row, request)
                if ask.is_cancelled:
                    ask.job.cancel()
                self._hand_out(ask)

    def _ready(self) -> list[Ready]:
        ready = []
        for row in range(self._model.rows):
            ask = self._order.current(row)
            if ask is not None and ask.job is not None and ask.job.stage is not None:
                ready.append(Ready(row, ask.job.stage, self._due_s(ask), ask.waiting_since_s))
        return ready

    def _due_s(self, ask: Ask) -> float | None:
        """Work is as urgent as what waits behind it on the same row."""
        dues = [one.due_s for one in (ask, *self._order.waiting(ask.row)) if one.due_s is not None]
        return min(dues, default=None)

    def _run(self, stage: Stage, asks: list[Ask]) -> None:
        try:
            self._step(stage, asks)
        except Exception as error:
            if len(asks) == 1 or _is_device_fault(error):
                self._fail(asks[0], error)
                return
            # No row has advanced: find the one at fault.
            log.warning("a %s step of %d rows failed, repeating row by row", stage.value, len(asks))
            for ask in asks:
                if self._fault is None:
                    self._run(stage, [ask])
            return
        for ask in asks:
            try:
                self._hand_out(ask)
            except Exception as error:
                self._fail(ask, error)

    def _step(self, stage: Stage, asks: list[Ask]) -> None:
        jobs = [ask.job for ask in asks if ask.job is not None]
        started_s = self._clock.monotonic()
        try:
            self._model.step(stage, jobs)
        finally:
            ended_s = self._clock.monotonic()
            with self._stats_lock:
                self._steps[stage] += 1
                self._rows_stepped[stage] += len(jobs)
                self._busy_s += ended_s - started_s
        for ask in asks:
            ask.spent_ms[stage] = ask.spent_ms.get(stage, 0.0) + 1000 * (ended_s - started_s)
            ask.waiting_since_s = ended_s

    def _hand_out(self, ask: Ask) -> None:
        assert ask.job is not None
        pieces = ask.job.take_pieces()
        if pieces:
            ask.outlet.pieces(pieces)
        if ask.job.stage is None:
            result = ask.job.result
            assert result is not None, "a finished job has a result"
            self._note_durations(ask)
            self._finish(ask, _with_timings(result, ask.spent_ms))

    def _finish(self, ask: Ask, value: object) -> None:
        self._order.finish(ask.row)
        ask.outlet.done(value, self._model.context_tokens(ask.row))

    def _finish_failed(self, ask: Ask, error: ParleyError) -> None:
        self._order.finish(ask.row)
        ask.outlet.failed(error, self._guarded_length(ask.row))

    def _fail(self, ask: Ask, error: Exception) -> None:
        """The model failed on this work: details to the log, an id to the client."""
        with self._stats_lock:
            self._failures += 1
        if isinstance(error, ParleyError) and not _is_device_fault(error):
            failure: ParleyError = error
            log.warning("row %d: %s: %s", ask.row, type(error).__name__, error)
        else:
            error_id = uuid.uuid4().hex[:8]
            log.error(
                "error %s: row %d failed on %s",
                error_id,
                ask.row,
                type(ask.request).__name__,
                exc_info=error,
            )
            failure = InferenceFailed(error_id=error_id)
            if _is_device_fault(error):
                self._fault = error_id
        self._finish_failed(ask, failure)
        if self._fault is not None:
            self._give_up()

    def _give_up(self) -> None:
        """The device is gone: so is every seat."""
        log.critical("error %s: the device failed, the engine gives up", self._fault)
        self._lose_all()
        if self._on_fault is not None:
            self._on_fault()

    def _lose_all(self) -> None:
        for row in range(self._model.rows):
            for ask in self._order.clear(row):
                ask.outlet.failed(SeatLost(), 0)

    def _end(self) -> None:
        self._take_inbox()
        self._lose_all()
        if self._fault is None:
            for row in range(self._model.rows):
                self._close_row(row)
        if self._unloads:
            self._guarded(self._model.unload, "unload")

    def _close_row(self, row: int) -> None:
        self._guarded(lambda: self._model.close(row), "close")

    def _guarded(self, action: Callable[[], None], what: str) -> None:
        """Cleanup goes on whatever one row's model does."""
        try:
            action()
        except Exception:
            log.exception("the model failed on %s", what)

    def _guarded_length(self, row: int) -> int:
        try:
            return self._model.context_tokens(row)
        except Exception:
            log.exception("the model does not know the length of row %d", row)
            return 0

    def _note_durations(self, ask: Ask) -> None:
        with self._stats_lock:
            self._durations.extend(ask.spent_ms.items())

    def _reset_stats(self) -> None:
        self._durations: deque[tuple[Stage, float]] = deque(maxlen=STATS_LIMIT)
        self._steps: Counter[Stage] = Counter()
        self._rows_stepped: Counter[Stage] = Counter()
        self._busy_s = 0.0
        self._failures = 0


def _with_timings(result: Result, spent_ms: dict[Stage, float]) -> Result:
    return dataclasses.replace(result, timings=spent_ms)


def _is_device_fault(error: BaseException) -> bool:
    """Models say so themselves; CUDA reports a dead context as an ordinary error of its own."""
    if isinstance(error, DeviceFault):
        return True
    name = type(error).__name__
    return name == "AcceleratorError" or (
        isinstance(error, RuntimeError)
        and name != "OutOfMemoryError"
        and "CUDA error" in str(error)
    )
