"""A session's asynchronous handle on its slot; the only bridge between the event loop and the
engine thread.

`Seat` and `Decoding` are contracts: views are written against them, tests may pass a fake, and the
engine's own classes satisfy them. `Engine` hands out seats.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Protocol, TypeVar

from parley.clock import Clock, SystemClock
from parley.engine.loop import (
    Ask,
    CanRollBack,
    Clear,
    EngineLoop,
    Mark,
    Request,
    RollBack,
    Stats,
)
from parley.engine.model import ContextMark, Memory, Model, ModelSpec
from parley.engine.segments import Segment
from parley.engine.slots import Slots, Tenancy
from parley.engine.work import (
    Answer,
    Decoded,
    Opened,
    Opening,
    Piece,
    Prefill,
    Prefilled,
    Reply,
    Settle,
    Settled,
)
from parley.errors import InferenceFailed, ParleyError, SeatLost, ServiceUnavailable, SetupError

log = logging.getLogger(__name__)

PENDING_LIMIT = 64
"""Requests one seat may have under way; more are refused. Drivers have two or three."""

T = TypeVar("T")


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

    async def clear(self) -> None:
        """Forget the conversation and give back what it took; the seat stays held, `open` begins
        the next."""
        ...

    async def close(self) -> None:
        """Cancel what runs, free the slot. Returns when the model has let go of it. Safe to
        repeat."""
        ...


class Engine:
    """Holds a model, and several conversations on it.

    Belongs to one event loop: `start`, `take_seat` and `stop` are called there. The model is
    touched by the engine thread only, from its warm-up to its unloading.
    """

    def __init__(self, model: Model, clock: Clock | None = None) -> None:
        self._spec = model.spec
        self._slots = Slots(model.rows)
        self._loop = EngineLoop(model, clock or SystemClock(), on_fault=self._fault_from_thread)
        self._thread: threading.Thread | None = None
        self._events: asyncio.AbstractEventLoop | None = None
        self._waiting: deque[asyncio.Future[EngineSeat]] = deque()
        self._seats: set[EngineSeat] = set()
        self._broken = asyncio.Event()
        self._is_stopped = False

    async def __aenter__(self) -> Engine:
        self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()

    @property
    def spec(self) -> ModelSpec:
        return self._spec

    @property
    def slots(self) -> int:
        """How many conversations at once."""
        return self._slots.rows

    @property
    def free_slots(self) -> int:
        """How many seats can be taken now."""
        return self._slots.free if self.is_running else 0

    @property
    def is_running(self) -> bool:
        """Started, not stopped, and the device is sound."""
        return self._thread is not None and not self._is_stopped and self._loop.fault is None

    @property
    def context_tokens(self) -> int:
        """Of all conversations together."""
        return sum(seat.context_tokens for seat in self._seats)

    def start(self) -> None:
        """Start the engine thread."""
        if self._thread is not None:
            raise SetupError("The engine was started before.")
        self._events = asyncio.get_running_loop()
        # A daemon: a step that never returns must not keep the process from ending.
        self._thread = threading.Thread(target=self._loop.run, name="engine", daemon=True)
        self._thread.start()

    async def warm_up(self) -> None:
        """Run every kind of step once; do this before the first seat is taken.

        Raises:
            SetupError: the model cannot even do that.
        """
        try:
            await self.call(lambda model: model.warm_up())
        except ParleyError:
            raise
        except Exception as error:
            raise SetupError(f"The model failed while warming up: {error}") from error

    async def memory(self) -> Memory:
        """What the model takes on the device now."""
        return await self.call(lambda model: model.memory())

    def take_stats(self) -> Stats:
        """Durations and counts since the last call."""
        return self._loop.take_stats()

    def try_take_seat(self) -> EngineSeat | None:
        """A seat if one is free and nobody waits for it."""
        if not self.is_running or self._waiting:
            return None
        return self._seat()

    async def take_seat(self) -> EngineSeat:
        """A seat, as soon as one is free; first come, first served.

        Raises:
            ServiceUnavailable: the engine is not running, or ended meanwhile.
        """
        if not self.is_running:
            raise ServiceUnavailable("The model is not running.")
        seat = self.try_take_seat()
        if seat is not None:
            return seat
        assert self._events is not None
        future: asyncio.Future[EngineSeat] = self._events.create_future()
        self._waiting.append(future)
        try:
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and future.exception() is None:
                # The seat arrived in the same moment: pass it on.
                await future.result().close()
            raise

    async def wait_broken(self) -> None:
        """Returns when the device has failed. Nothing can be done with this engine then."""
        await self._broken.wait()

    async def stop(self, *, limit_s: float = 10.0, unload: bool = True) -> None:
        """Fail what runs, free every row, end the thread. Safe to repeat.

        Args:
            unload: also free the model, which nobody may use afterwards.
        """
        if self._thread is None or self._is_stopped:
            return
        self._is_stopped = True
        self._refuse_waiting()
        if unload:
            self._loop.unload_at_end()
        self._loop.stop()
        await asyncio.to_thread(self._thread.join, limit_s)
        if self._thread.is_alive():
            log.error("the engine thread did not end within %g s", limit_s)
        for seat in list(self._seats):
            seat._lose()
        self._seats.clear()

    async def call(self, function: Callable[[Model], T]) -> T:
        """Run something on the engine thread, between two steps."""
        if not self.is_running:
            raise ServiceUnavailable("The model is not running.")
        assert self._events is not None
        future: asyncio.Future[T] = self._events.create_future()

        def run(model: Model) -> None:
            try:
                value = function(model)
            except Exception as error:
                self._post(_set_exception, future, error)
            else:
                self._post(_set_result, future, value)

        self._loop.call(run)
        return await future

    def _seat(self) -> EngineSeat | None:
        tenancy = self._slots.take()
        if tenancy is None:
            return None
        seat = EngineSeat(self, tenancy)
        self._seats.add(seat)
        return seat

    def _give_back(self, seat: EngineSeat) -> None:
        """The model has let go of the seat's row."""
        self._seats.discard(seat)
        self._slots.release(seat.tenancy)
        while self._waiting and self.is_running:
            future = self._waiting.popleft()
            if future.done():
                continue
            next_seat = self._seat()
            if next_seat is None:
                self._waiting.appendleft(future)
                return
            future.set_result(next_seat)

    def _fault_from_thread(self) -> None:
        self._post(self._break)

    def _break(self) -> None:
        self._refuse_waiting()
        for seat in list(self._seats):
            seat._lose()
        self._broken.set()

    def _refuse_waiting(self) -> None:
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_exception(ServiceUnavailable("The model is not running."))

    def _post(self, function: Callable[..., None], *arguments: object) -> None:
        """From the engine thread to the event loop."""
        assert self._events is not None
        try:
            self._events.call_soon_threadsafe(function, *arguments)
        except RuntimeError:
            log.warning("a result came after the event loop had closed")


class EngineSeat:
    """A held row of an `Engine`. See `Seat` for what its methods promise."""

    def __init__(self, engine: Engine, tenancy: Tenancy) -> None:
        self._engine = engine
        self.tenancy = tenancy
        self._is_open = True
        self._released: asyncio.Future[None] | None = None
        self._pending: set[_Answer] = set()
        self._context_tokens = 0

    @property
    def spec(self) -> ModelSpec:
        return self._engine.spec

    @property
    def row(self) -> int:
        return self.tenancy.row

    @property
    def generation(self) -> int:
        return self.tenancy.generation

    @property
    def context_tokens(self) -> int:
        return self._context_tokens

    async def open(self, opening: Opening) -> Opened:
        return await self._ask(opening, None, Opened)

    async def prefill(
        self, segments: Sequence[Segment], *, due_s: float | None = None
    ) -> Prefilled:
        return await self._ask(Prefill(tuple(segments)), due_s, Prefilled)

    def reply(self, reply: Reply, *, due_s: float | None = None) -> EngineDecoding:
        return EngineDecoding(self._begin(reply, due_s), self._engine._loop.cancel)

    def answer(self, answer: Answer, *, due_s: float | None = None) -> EngineDecoding:
        return EngineDecoding(self._begin(answer, due_s), self._engine._loop.cancel)

    async def settle(self, *, due_s: float | None = None) -> Settled:
        return await self._ask(Settle(), due_s, Settled)

    async def mark(self) -> ContextMark:
        # ContextMark is a protocol: any object the model gives is one.
        mark: ContextMark = await self._begin(Mark(), None).value  # type: ignore[assignment]
        return mark

    async def can_roll_back(self, mark: ContextMark) -> bool:
        return await self._ask(CanRollBack(mark), None, bool)

    async def roll_back(self, mark: ContextMark) -> int:
        return await self._ask(RollBack(mark), None, int)

    async def clear(self) -> None:
        await self._begin(Clear(), None).value

    async def close(self) -> None:
        if self._is_open:
            self._lose()
            self._released = asyncio.get_running_loop().create_future()
            if self._engine.is_running:
                self._engine._loop.release(
                    self.tenancy, lambda: self._engine._post(self._was_released)
                )
            else:
                self._was_released()
        if self._released is not None:
            # Shielded: a caller that gives up must not take the release from the others.
            await asyncio.shield(self._released)

    async def __aenter__(self) -> EngineSeat:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def _ask(self, request: Request, due_s: float | None, kind: type[T]) -> T:
        value = await self._begin(request, due_s).value
        assert isinstance(value, kind)
        return value

    def _begin(self, request: Request, due_s: float | None) -> _Answer:
        if not self._is_open or not self._engine.is_running:
            raise SeatLost()
        if len(self._pending) >= PENDING_LIMIT:
            raise InferenceFailed("Too much work is waiting for this session.")
        answer = _Answer(self, Ask(self.tenancy, request, _Bridge(), due_s))
        self._pending.add(answer)
        self._engine._loop.ask(answer.ask)
        return answer

    def _lose(self) -> None:
        """From now on nothing reaches this seat; whoever waits hears so."""
        self._is_open = False
        self._context_tokens = 0
        for answer in list(self._pending):
            answer.fail(SeatLost(), 0)

    def _was_released(self) -> None:
        self._engine._give_back(self)
        if self._released is not None and not self._released.done():
            self._released.set_result(None)


class _Bridge:
    """An outlet whose far end is on the event loop. `connect` comes first."""

    _answer: _Answer
    _post: Callable[..., None]

    def connect(self, answer: _Answer, post: Callable[..., None]) -> None:
        self._answer = answer
        self._post = post

    def pieces(self, pieces: list[Piece]) -> None:
        self._post(self._answer.add, pieces)

    def done(self, value: object, context_tokens: int) -> None:
        self._post(self._answer.complete, value, context_tokens)

    def failed(self, error: ParleyError, context_tokens: int) -> None:
        self._post(self._answer.fail, error, context_tokens)


class _Answer:
    """What one request came to, on the event loop. What arrives after its end is dropped: the slot
    may have changed hands since."""

    def __init__(self, seat: EngineSeat, ask: Ask) -> None:
        self.seat = seat
        self.ask = ask
        self.value: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self.collected: list[Piece] = []
        self._has_ended = False
        self._changed = asyncio.Event()
        assert isinstance(ask.outlet, _Bridge)
        ask.outlet.connect(self, seat._engine._post)

    @property
    def has_ended(self) -> bool:
        return self._has_ended

    def add(self, pieces: list[Piece]) -> None:
        if not self._has_ended:
            self.collected += pieces
            self._changed.set()

    def complete(self, value: object, context_tokens: int) -> None:
        if self._end(context_tokens) and not self.value.done():
            self.value.set_result(value)

    def fail(self, error: ParleyError, context_tokens: int) -> None:
        if self._end(context_tokens) and not self.value.done():
            self.value.set_exception(error)
            # A caller that stopped waiting has no use for the error; it is logged where it arose.
            self.value.exception()

    async def changed(self) -> None:
        """Returns when there is more than before."""
        await self._changed.wait()
        self._changed.clear()

    def _end(self, context_tokens: int) -> bool:
        if self._has_ended:
            return False
        self._has_ended = True
        self.seat._pending.discard(self)
        if self.seat._is_open:
            self.seat._context_tokens = context_tokens
        self._changed.set()
        return True


class EngineDecoding:
    """An answer in progress on an `Engine`. See `Decoding`."""

    def __init__(self, answer: _Answer, cancel: Callable[[Ask], None]) -> None:
        self._answer = answer
        self._cancel = cancel

    async def __aiter__(self) -> AsyncIterator[Piece]:
        """One reader at a time. Ends with the answer's error, if it has one."""
        index = 0
        while True:
            while index < len(self._answer.collected):
                index += 1
                yield self._answer.collected[index - 1]
            if self._answer.has_ended:
                break
            await self._answer.changed()
        await self.result()

    def cancel(self) -> None:
        if not self._answer.has_ended:
            self._cancel(self._answer.ask)

    async def result(self) -> Decoded:
        # Shielded: a reader that is cancelled must not take the outcome from the next.
        decoded = await asyncio.shield(self._answer.value)
        assert isinstance(decoded, Decoded)
        return decoded


def _set_result(future: asyncio.Future[T], value: T) -> None:
    if not future.done():
        future.set_result(value)


def _set_exception(future: asyncio.Future[T], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
