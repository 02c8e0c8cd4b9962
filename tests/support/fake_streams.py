"""Streams of a device, on a CPU: a record of who reads and writes which memory, and in which order
the device would be free to do it.

A CPU runs everything immediately and in order, so nothing goes wrong here. `Streams` notes for
every operator which stream it was asked on, what it reads and writes, and keeps a vector clock
per stream and one for the host. `Streams.problems` then says what could have gone wrong on a
device:

- something is read that another stream wrote, with no event between them;
- something is written that another stream may still read or write;
- memory is given away by its stream's allocator while another stream may still use it;
- the host reads a copy that may not have arrived.

`FakeStream` is a `SpeechStream` over it. Names in `left_out` are the calls that do nothing: a test
leaves one out and expects a problem.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

MAIN, SPEECH, HOST = "main", "speech", "host"

READING = {"item", "tolist", "numpy", "cpu", "__bool__", "__float__", "__int__", "__array__"}

Stamp = tuple[str, int]


@dataclass
class _Memory:
    """What is known of one storage.

    Args:
        home: whose allocator gave it; HOST for copies to the host; None for what was there before.
        keeps: streams that the allocator was told of.
    """

    alive: StorageWeakRef
    home: str | None
    made_by: str
    written: Stamp | None = None
    reads: dict[str, int] = field(default_factory=dict)
    keeps: set[str] = field(default_factory=set)


class Streams:
    """See the module's text. Watches this thread while entered."""

    def __init__(self) -> None:
        self.current = MAIN
        self.problems: list[str] = []
        self.operators = {MAIN: 0, SPEECH: 0}
        self._clocks: dict[str, dict[str, int]] = {MAIN: {}, SPEECH: {}, HOST: {}}
        self._memories: dict[int, _Memory] = {}
        self._shared: dict[int, _Memory] = {}
        self._modes = (_Operators(self), _Readings(self))

    def __enter__(self) -> Streams:
        for mode in self._modes:
            mode.__enter__()
        return self

    def __exit__(self, *exc: Any) -> None:
        for mode in reversed(self._modes):
            mode.__exit__(*exc)
        self._given_away()

    @contextmanager
    def on(self, stream: str) -> Iterator[None]:
        """What is asked within belongs to a stream."""
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    # Order.

    def point(self, stream: str) -> dict[str, int]:
        """Everything that is done when a stream has come so far."""
        return dict(self._clocks[stream])

    def wait(self, stream: str, point: dict[str, int]) -> None:
        """A stream, or the host, waits for a point."""
        clock = self._clocks[stream]
        before = clock.get(SPEECH if stream == MAIN else MAIN, 0)
        for one, count in point.items():
            clock[one] = max(clock.get(one, 0), count)
        if stream != HOST and clock.get(SPEECH if stream == MAIN else MAIN, 0) > before:
            # What this stream has waited for may no longer harm it: nothing to watch until its
            # next use.
            self._shared = {
                number: memory for number, memory in self._shared.items() if self._open(memory)
            }

    def _is_behind(self, stream: str, stamp: Stamp) -> bool:
        return self._clocks[stream].get(stamp[0], 0) >= stamp[1]

    # Memory.

    def memory(self, tensor: Tensor, *, is_new: bool = False) -> _Memory:
        storage = tensor.untyped_storage()
        known = self._memories.get(storage._cdata)
        if known is None:
            # The weak reference keeps the number from being used for another storage.
            home = self.current if is_new else None
            known = _Memory(StorageWeakRef(storage), home, self.current)
            self._memories[storage._cdata] = known
        return known

    def asked(self, name: str, reads: list[Tensor], writes: list[Tensor]) -> None:
        """An operator on the current stream."""
        here = self.current
        self.operators[here] += 1
        # The host asked for it after everything that the host knows of.
        self.wait(here, self._clocks[HOST])
        count = self._clocks[here][here] = self._clocks[here].get(here, 0) + 1
        for tensor in reads:
            memory = self.memory(tensor)
            self._require(memory.written, here, f"{name} on {here} reads what {{}} may still write")
            memory.reads[here] = count
            self._share(memory, tensor)
        for tensor in writes:
            memory = self.memory(tensor)
            self._require(memory.written, here, f"{name} on {here} writes over what {{}} writes")
            for reader in memory.reads.items():
                self._require(reader, here, f"{name} on {here} writes what {{}} may still read")
            memory.written, memory.reads = (here, count), {}
            self._share(memory, tensor)
        self._given_away()

    def made(self, tensor: Tensor, home: str | None = None) -> None:
        """An operator's result that is no view."""
        memory = self.memory(tensor, is_new=True)
        memory.home = home or memory.home
        memory.written = (self.current, self._clocks[self.current][self.current])

    def keep(self, tensor: Tensor, stream: str) -> None:
        """`record_stream`."""
        self.memory(tensor).keeps.add(stream)

    def read_by_host(self, name: str, tensor: Tensor) -> None:
        """The host looks at values: its own immediately, others after this stream."""
        memory = self._memories.get(tensor.untyped_storage()._cdata)
        if memory is None:
            return
        if memory.home != HOST:
            self.asked(name, [tensor], [])
            self.wait(HOST, self.point(self.current))
        self._require(memory.written, HOST, f"the host's {name} reads what {{}} may still copy")

    def _share(self, memory: _Memory, tensor: Tensor) -> None:
        if memory.home not in (None, HOST, self.current):
            self._shared[tensor.untyped_storage()._cdata] = memory

    def _given_away(self) -> None:
        """Memory that nobody holds any more goes back to its own stream, in that one's order."""
        is_expired = torch.UntypedStorage._expired
        gone = [number for number, memory in self._shared.items() if is_expired(memory.alive.cdata)]
        for number in gone:
            memory = self._shared.pop(number)
            for stream, _ in self._open(memory):
                self.problems.append(f"{memory.home} gives away memory that {stream} may still use")

    def _open(self, memory: _Memory) -> list[Stamp]:
        """Uses that the memory's own stream neither is behind nor was told of."""
        assert memory.home is not None
        uses = [*memory.reads.items(), *([memory.written] if memory.written else [])]
        return [
            use
            for use in uses
            if use[0] not in memory.keeps and not self._is_behind(memory.home, use)
        ]

    def _require(self, stamp: Stamp | None, stream: str, problem: str) -> None:
        if stamp is not None and not self._is_behind(stream, stamp):
            self.problems.append(problem.format(stamp[0]))


class _Operators(TorchDispatchMode):
    """Tells `Streams` of every operator."""

    def __init__(self, streams: Streams) -> None:
        super().__init__()
        self._streams = streams

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        results = list(_tensors(out))
        views = {one.untyped_storage()._cdata for one in results}
        reads: list[Tensor] = []
        writes: list[Tensor] = []
        given = set()
        for number, spec in enumerate(func._schema.arguments):
            value = args[number] if number < len(args) else kwargs.get(spec.name)
            for tensor in _tensors(value):
                storage = tensor.untyped_storage()._cdata
                given.add(storage)
                if spec.alias_info is not None and spec.alias_info.is_write:
                    writes.append(tensor)
                elif spec.alias_info is None or storage not in views:
                    reads.append(tensor)
        if reads or writes or views - given:
            self._streams.asked(str(func.overloadpacket.__name__), reads, writes)
        for tensor in results:
            if tensor.untyped_storage()._cdata not in given:
                self._streams.made(tensor)
        return out


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _tensors(one)


class _Readings(TorchFunctionMode):
    """Tells `Streams` when the host looks at values."""

    def __init__(self, streams: Streams) -> None:
        super().__init__()
        self._streams = streams

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in READING and isinstance(args[0], Tensor):
            self._streams.read_by_host(name, args[0])
        return func(*args, **(kwargs or {}))


class FakeEvent:
    """A point of the speech stream. The device comes there when it was asked for so often."""

    def __init__(self, streams: Streams, patience: int, *, is_waited_for: bool) -> None:
        self._streams = streams
        self._point = streams.point(SPEECH)
        self._patience = patience
        self._is_waited_for = is_waited_for

    def query(self) -> bool:
        self._patience -= 1
        if self._patience < 0:
            self.synchronize()
        return self._patience < 0

    def synchronize(self) -> None:
        if self._is_waited_for:
            self._streams.wait(HOST, self._point)


class FakeStream:
    """See the module's text.

    Args:
        patience: how many looks at an event find it incomplete.
        left_out: calls that do nothing: wait_for_main, keep, synchronize.
    """

    is_own = True

    def __init__(self, streams: Streams, *, patience: int = 3, left_out: str = "") -> None:
        self._streams, self._patience, self._left_out = streams, patience, left_out

    def entered(self) -> Any:
        return self._streams.on(SPEECH)

    def wait_for_main(self) -> None:
        if self._left_out != "wait_for_main":
            self._streams.wait(SPEECH, self._streams.point(MAIN))

    def keep(self, tensor: Tensor) -> None:
        if self._left_out != "keep":
            self._streams.keep(tensor, SPEECH)

    def to_host(self, tensor: Tensor) -> Tensor:
        copy = tensor.clone()
        self._streams.memory(copy).home = HOST
        return copy

    def record(self) -> FakeEvent:
        is_waited_for = self._left_out != "synchronize"
        return FakeEvent(self._streams, self._patience, is_waited_for=is_waited_for)

    def comes_before(self, stream: torch.cuda.Stream) -> None:
        raise AssertionError("voices are primed on a device's stream only")
