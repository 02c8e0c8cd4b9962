"""The engine and the handles of its slots: the bridge between the event loop and the engine thread.

Views are written against `SlotHandle` and `PendingResult`.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future
from typing import Generic, TypeVar, TypeVarTuple, cast

from parley import logs
from parley.clock import Clock, SystemClock
from parley.engine import work
from parley.engine.loop import Command, EngineLoop, RowCall, SlotRequest, Stats, roll_back
from parley.engine.model import (
    HasFastPaths,
    HasServers,
    Memory,
    Model,
    ModelSpec,
    SharesPages,
)
from parley.engine.segments import Segment, Text
from parley.errors import InferenceFailed, ParleyError, ServiceUnavailable, SetupError, SlotLost
from parley.media.room import require_text_room

log = logs.get(__name__)

PENDING_LIMIT = 64
"""Maximum number of requests in flight per slot; more are refused. Runners have two or three."""

T = TypeVar("T")
Args = TypeVarTuple("Args")
R = TypeVar("R", bound=work.GenerateResult, covariant=True)


class Engine:
    """Runs several conversations on one model.

    Belongs to one event loop: `start`, `take_slot` and `stop` are called there. Only the engine
    thread uses the model, from its warm-up to its unloading.
    """

    def __init__(self, model: Model, clock: Clock | None = None) -> None:
        self.spec: ModelSpec = model.spec
        self.slots = model.rows
        """Maximum number of conversations."""
        self._free = deque(range(model.rows))
        """Free rows, the one that has been free longest first."""
        self._fast_paths = model if isinstance(model, HasFastPaths) else None
        self._servers = model if isinstance(model, HasServers) else None
        self._pages = model if isinstance(model, SharesPages) else None
        self._loop = EngineLoop(
            model, clock or SystemClock(), on_fault=lambda: self._post(self._break)
        )
        self._thread: threading.Thread | None = None
        self._events: asyncio.AbstractEventLoop | None = None
        self._waiting: deque[asyncio.Future[SlotHandle]] = deque()
        self._handles: set[SlotHandle] = set()
        self.broken = asyncio.Event()
        """Set when the device has failed. The engine cannot be used after that."""
        self.on_broken: Callable[[], None] = lambda: None
        """Called when the device has failed, before the error reaches callers that wait for
        results."""
        self._is_stopped = False

    async def __aenter__(self) -> Engine:
        self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()

    @property
    def free_slots(self) -> int:
        return len(self._free) if self.is_running else 0

    @property
    def is_running(self) -> bool:
        """True if it was started, was not stopped, and the device has not failed."""
        return self._thread is not None and not self._is_stopped and self._loop.fault is None

    @property
    def context_tokens(self) -> int:
        """Total length of the contexts of all conversations."""
        return sum(handle.context_tokens for handle in self._handles)

    @property
    def fast_paths(self) -> dict[str, str]:
        """The state of every fast part of the model; empty if it has none."""
        return {} if self._fast_paths is None else dict(self._fast_paths.fast_paths)

    @property
    def problem(self) -> str:
        """Why servers behind the model cannot be used; "" if there are none, or they can."""
        return "" if self._servers is None else self._servers.problem

    @property
    def context_pages(self) -> tuple[int, int] | None:
        """Used and free pages of the pool that contexts share; None if they share none."""
        return None if self._pages is None or not self.is_running else self._pages.context_pages

    def start(self) -> None:
        if self._thread is not None:
            raise SetupError("The engine was already started.")
        self._events = asyncio.get_running_loop()
        # A daemon: a step that never returns must not prevent the process from exiting.
        self._thread = threading.Thread(target=self._loop.run, name="engine", daemon=True)
        self._thread.start()

    async def warm_up(self) -> None:
        """Run every kind of step once. Call before the first handle is taken.

        Raises:
            SetupError: the model fails.
        """
        try:
            await self.call(lambda model: model.warm_up())
            # Warming up may change the spec, e.g. if the default voice turns out to be broken.
            self.spec = await self.call(lambda model: model.spec)
            if self.spec.slots is not None:
                self.slots = min(self.spec.slots, self.slots)
                self._free = deque(range(self.slots))
        except ParleyError:
            raise
        except Exception as error:
            raise SetupError(f"The model failed while warming up: {error}") from error

    async def memory(self) -> Memory:
        return await self.call(lambda model: model.memory())

    @property
    def step_took_s(self) -> float:
        """Time since the start of the current step; 0 between steps."""
        return self._loop.step_took_s

    @property
    def stepped_s(self) -> float:
        """Total time spent in steps, the current one included."""
        return self._loop.stepped_s

    def take_stats(self) -> Stats:
        """Durations and counts since the previous call."""
        return self._loop.take_stats()

    def try_take_slot(self) -> SlotHandle | None:
        """A handle, if one is free and no other caller is waiting for it; else None."""
        if not self.is_running or self._waiting:
            return None
        return self._handle()

    async def take_slot(self) -> SlotHandle:
        """Wait for a handle; first come, first served.

        Raises:
            ServiceUnavailable: the engine is not running, or stopped meanwhile.
        """
        if not self.is_running:
            raise ServiceUnavailable("The model is not running.")
        handle = self.try_take_slot()
        if handle is not None:
            return handle
        assert self._events is not None
        future: asyncio.Future[SlotHandle] = self._events.create_future()
        self._waiting.append(future)
        try:
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and future.exception() is None:
                # The handle arrived at the same moment: pass it on.
                await future.result().close()
            raise

    async def stop(self, *, limit_s: float = 10.0, unload: bool = True) -> None:
        """Fail all running requests, free all rows, and end the thread. Safe to repeat.

        Args:
            unload: True to also free the model, which must not be used afterwards.
        """
        if self._thread is None or self._is_stopped:
            return
        self._is_stopped = True
        self._refuse_waiting()
        self._loop.stop(unload=unload)
        await asyncio.to_thread(self._thread.join, limit_s)
        if self._thread.is_alive():
            log.error("engine_thread_stuck", limit_s=limit_s)
        for handle in self._handles:
            handle._lose()

    async def call(self, function: Callable[[Model], T]) -> T:
        """Run a function on the engine thread, between two steps."""
        if not self.is_running:
            raise ServiceUnavailable("The model is not running.")
        done: Future[T] = Future()
        # Cancelling the caller abandons the wait, not the work.
        done.set_running_or_notify_cancel()

        def run(model: Model) -> None:
            try:
                done.set_result(function(model))
            except Exception as error:
                done.set_exception(error)

        self._loop.call(run)
        return await asyncio.wrap_future(done)

    def _handle(self) -> SlotHandle | None:
        if not self._free:
            return None
        handle = SlotHandle(self, self._free.popleft())
        self._handles.add(handle)
        return handle

    def _give_back(self, handle: SlotHandle) -> None:
        """The model has released the handle's row."""
        self._handles.discard(handle)
        self._free.append(handle.row)
        while self._waiting and self.is_running:
            future = self._waiting.popleft()
            if future.done():
                continue
            next_handle = self._handle()
            if next_handle is None:
                self._waiting.appendleft(future)
                return
            future.set_result(next_handle)

    def _break(self) -> None:
        self.on_broken()
        self._refuse_waiting()
        for handle in self._handles:
            # The engine thread fails its pending requests, because it knows the reason.
            handle._is_open = False
        self.broken.set()

    def _refuse_waiting(self) -> None:
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_exception(ServiceUnavailable("The model is not running."))

    def _post(self, function: Callable[[*Args], None], *arguments: *Args) -> None:
        """Call a function on the event loop, from the engine thread."""
        assert self._events is not None
        try:
            self._events.call_soon_threadsafe(function, *arguments)
        except RuntimeError:
            log.warning("late_result_dropped")


class SlotHandle:
    """One slot, held by one session until `close`. Commands run in the order in which they were
    given.

    Every method may raise `SlotLost` (closed, or engine stopped), `InferenceFailed` (the model
    failed on this command), `BadInput` or `ContextFull` (refused, the context is unchanged).
    `due_s` is a monotonic deadline that orders this command relative to those of other slots; None
    means no hurry. Cancelling an awaiting task abandons the wait, not the command: later commands
    still run after it.
    """

    def __init__(self, engine: Engine, row: int) -> None:
        self._engine = engine
        self.row = row
        """The slot's index in the engine's batch."""
        self.spec = engine.spec
        self._is_open = True
        self._released: asyncio.Future[None] | None = None
        self._pending: set[PendingResult[work.GenerateResult]] = set()
        self.context_tokens = 0
        """Length of the context as of the last completed command."""

    async def start(self, command: work.StartSession) -> work.StartResult:
        return await self._run(command, work.StartResult)

    async def prefill(
        self,
        segments: Sequence[Segment],
        *,
        takes_checkpoint: bool = False,
        due_s: float | None = None,
        again: object = None,
    ) -> work.PrefillResult:
        """Append segments. With `takes_checkpoint`, the result contains the checkpoint before them,
        and if the model fails, the slot is rolled back to it. `again`: see `Prefill`."""
        self._require_room(segments)
        command = work.Prefill(tuple(segments), takes_checkpoint, again)
        return await self._run(command, work.PrefillResult, due_s)

    def generate(
        self, command: work.Generate | work.StepUnit, *, due_s: float | None = None
    ) -> PendingResult[work.GenerateResult]:
        return self._submit(command, due_s)

    def unit(
        self, command: work.WholeUnit, *, due_s: float | None = None
    ) -> PendingResult[work.UnitResult]:
        """Prefill and decision in one request."""
        segments = command.prefill.segments
        if any(isinstance(segment, Text) for segment in segments):
            self._require_room(segments)
        return cast(PendingResult[work.UnitResult], self._submit(command, due_s))

    async def finalize(self, *, due_s: float | None = None) -> work.FinalizeResult:
        return cast(work.FinalizeResult, await self._submit(work.Finalize(), due_s).value)

    async def checkpoint(self) -> work.Checkpoint:
        return await self._call(lambda model, row: model.checkpoint(row))

    async def can_roll_back(self, checkpoint: work.Checkpoint) -> bool:
        return await self._call(lambda model, row: model.can_roll_back(checkpoint))

    async def roll_back(self, checkpoint: work.Checkpoint) -> int:
        """Roll back to `checkpoint`; returns the context length in tokens."""
        return await self._call(lambda model, row: roll_back(model, row, checkpoint))

    async def clear(self) -> None:
        """End the session and free its memory; the slot stays held, and `start` starts the next
        session."""
        await self._call(lambda model, row: model.close(row))

    async def close(self) -> None:
        """Cancel running commands and free the slot. Returns when the model has released it. Safe
        to repeat."""
        if self._is_open:
            self._lose()
            self._released = asyncio.get_running_loop().create_future()
            if self._engine.is_running:
                self._engine._loop.release(self.row, lambda: self._engine._post(self._was_released))
            else:
                self._was_released()
        if self._released is not None:
            # Shielded: other callers may be waiting for the release.
            await asyncio.shield(self._released)

    async def __aenter__(self) -> SlotHandle:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    def _require_room(self, segments: Sequence[Segment]) -> None:
        chars = sum(len(segment.text) for segment in segments if isinstance(segment, Text))
        require_text_room(self.spec.context_limit_tokens, chars=chars)

    async def _call(self, function: Callable[[Model, int], T]) -> T:
        return cast(T, await self._submit(RowCall(function)).value)

    async def _run(self, command: Command, kind: type[T], due_s: float | None = None) -> T:
        value = await self._submit(command, due_s).value
        assert isinstance(value, kind)
        return value

    def _submit(
        self, command: Command, due_s: float | None = None
    ) -> PendingResult[work.GenerateResult]:
        if not self._is_open:
            raise SlotLost()
        if len(self._pending) >= PENDING_LIMIT:
            raise InferenceFailed("Too much work is waiting for this session.")
        pending = PendingResult[work.GenerateResult](self, command, due_s)
        self._pending.add(pending)
        self._engine._loop.submit(pending.request)
        return pending

    def _lose(self) -> None:
        """Invalidate the handle: all pending requests fail."""
        self._is_open = False
        self.context_tokens = 0
        for pending in list(self._pending):
            pending.fail(SlotLost(), 0)

    def _was_released(self) -> None:
        self._engine._give_back(self)
        assert self._released is not None, "`close` waits for it"
        self._released.set_result(None)


class PendingResult(Generic[R]):
    """Result of one request, on the event loop. Iterate over an answer to get its pieces.

    Abandoning the iteration (break, cancellation of the task) does not stop the model: call
    `cancel`, then await `result`, which ends within a few steps.

    The engine thread calls `pieces`, `done` and `failed`, which return immediately; everything else
    belongs to the event loop. Results that arrive after the end are dropped, because the slot may
    have a new holder by then.
    """

    def __init__(self, handle: SlotHandle, command: Command, due_s: float | None) -> None:
        self.request = SlotRequest(handle.row, command, self, due_s)
        self.value: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self._handle = handle
        self._engine = handle._engine
        self._pieces: list[work.OutputPiece] = []
        self._has_ended = False
        self._changed = asyncio.Event()

    # On the engine thread. These return immediately.

    def pieces(self, pieces: list[work.OutputPiece]) -> None:
        """Parts of an answer, in order."""
        self._engine._post(self._add, pieces)

    def done(self, value: object, context_tokens: int) -> None:
        """The result, and the current length of the slot's context."""
        self._engine._post(self._end, value, None, context_tokens)

    def failed(self, error: ParleyError, context_tokens: int) -> None:
        self._engine._post(self.fail, error, context_tokens)

    # On the event loop.

    async def __aiter__(self) -> AsyncIterator[work.OutputPiece]:
        """Pieces as they arrive, for one reader at a time. Raises the answer's error, if it has
        one."""
        index = 0
        while True:
            while index < len(self._pieces):
                index += 1
                yield self._pieces[index - 1]
            if self._has_ended:
                break
            await self._changed.wait()
            self._changed.clear()
        await self.result()

    def cancel(self) -> None:
        """Ask the model to finish now. Safe from any task, any number of times."""
        if not self._has_ended:
            self._engine._loop.cancel(self.request)

    async def result(self) -> R:
        """The result of an answer, once it is complete (its pieces stay readable).

        Raises:
            InferenceFailed: the model failed; roll back to a checkpoint before the next command.
            SlotLost: the slot was closed meanwhile.
        """
        # Shielded: if this reader is cancelled, the next one still gets the result.
        result = await asyncio.shield(self.value)
        assert isinstance(result, work.GenerateResult)
        return cast(R, result)

    def fail(self, error: ParleyError, context_tokens: int) -> None:
        self._end(None, error, context_tokens)

    def _add(self, pieces: list[work.OutputPiece]) -> None:
        if not self._has_ended:
            self._pieces += pieces
            self._changed.set()

    def _end(self, value: object, error: ParleyError | None, context_tokens: int) -> None:
        if self._has_ended:
            return
        self._has_ended = True
        # The request refers to this object, and its pictures and sounds may be large.
        del self.request
        self._handle._pending.discard(self)
        if self._handle._is_open:
            self._handle.context_tokens = context_tokens
        self._changed.set()
        if self.value.done():
            return
        if error is None:
            self.value.set_result(value)
        else:
            self.value.set_exception(error)
            # A caller that stopped waiting does not need the error, which was logged where it
            # occurred.
            self.value.exception()
