"""The stream that speech is made on, and what orders it with the stream of everything else.

The language model and the encoders work on the device's default stream, the *main* one. The speech
decoder and the vocoder work on the stream of a `SpeechStream`: the same one (`OneStream`, the
default, and wherever a device has no streams), or one of its own (`OwnStream`), so that they run
beside the decode steps of others.

Who touches what decides which events are needed:

| memory | touched by | ordered by |
|---|---|---|
| caches, graphs and tables of speech | the speech stream only | the stream itself |
| weights, and what loading made | main writes, speech reads | `wait_for_main` at each start |
| states of text tokens | main writes, speech reads | `wait_for_main` before a condition is made |
| the same, when nobody holds them | main's allocator gives them away | `keep` |
| tokens and sound | speech writes, the host reads | an event in their `Arrival` |

Nothing that speech writes is read on the main stream: what it makes goes through the host.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Generic, Protocol, TypeVar, cast

import torch
from torch import Tensor

SPEECH_KINDS = ("speech", "flow", "vocoder")
"""Kinds of steps (`runtime/graphs.py`) that run on the stream of speech."""

T = TypeVar("T")


class Event(Protocol):
    """A point in a stream."""

    def query(self) -> bool:
        """Whether the device has come so far."""
        ...

    def synchronize(self) -> None:
        """Wait until it has."""
        ...


class Arrival(Generic[T]):
    """A result that the device is making for the host.

    Args:
        event: behind the copies to the host; None where asking for the value waits by itself.
        value: reads them.
    """

    def __init__(self, event: Event | None, value: Callable[[], T]) -> None:
        self._event, self._read = event, value
        self._value: T | None = None
        self._is_read = False

    @property
    def is_complete(self) -> bool:
        """Whether `take` returns at once. True of what has failed: `take` says how."""
        if self._event is None:
            return True
        try:
            return self._event.query()
        except torch.AcceleratorError:
            return True

    def take(self) -> T:
        """The value; waits for it, and reads it once."""
        if not self._is_read:
            if self._event is not None:
                self._event.synchronize()
            self._value, self._is_read = self._read(), True
        return cast(T, self._value)


class SpeechStream(Protocol):
    """See the module's text. Belongs to the engine thread."""

    @property
    def is_own(self) -> bool:
        """Whether steps of speech go on while others are asked for."""
        ...

    def entered(self) -> AbstractContextManager[object]:
        """What is asked of the device within it belongs to this stream."""
        ...

    def wait_for_main(self) -> None:
        """What is asked of this stream from now on begins after what was asked of the main one."""
        ...

    def keep(self, tensor: Tensor) -> None:
        """Something made on the main stream is read on this one: its memory is not given away
        before what has been asked of this stream so far, and is asked until it is dropped, is
        done."""
        ...

    def to_host(self, tensor: Tensor) -> Tensor:
        """Begin to copy to the host; readable behind the next `record`."""
        ...

    def record(self) -> Event | None:
        """This point of the stream; None where reading from the device waits by itself."""
        ...

    def comes_before(self, stream: torch.cuda.Stream) -> None:
        """What is asked of another stream from now on begins after what was asked of this one."""
        ...


class OneStream:
    """Speech on the main stream: everything is in order as it is."""

    is_own = False

    def entered(self) -> AbstractContextManager[object]:
        return nullcontext()

    def wait_for_main(self) -> None:
        """It is the main one."""

    def keep(self, tensor: Tensor) -> None:
        """One stream's memory is given away in its order."""

    def to_host(self, tensor: Tensor) -> Tensor:
        return tensor

    def record(self) -> None:
        return None

    def comes_before(self, stream: torch.cuda.Stream) -> None:
        stream.wait_stream(torch.cuda.default_stream(stream.device))


class OwnStream:
    """Speech on a CUDA stream of its own."""

    is_own = True

    def __init__(self, device: torch.device) -> None:
        self._main = torch.cuda.default_stream(device)
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def entered(self) -> AbstractContextManager[object]:
        return torch.cuda.stream(self._stream)

    def wait_for_main(self) -> None:
        self._stream.wait_event(self._main.record_event())

    def keep(self, tensor: Tensor) -> None:
        tensor.record_stream(self._stream)

    def to_host(self, tensor: Tensor) -> Tensor:
        # Into pinned memory, or the host would wait here. Its allocator knows of the copy.
        host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        return host.copy_(tensor, non_blocking=True)

    def record(self) -> Event:
        event: Event = self._stream.record_event()
        return event

    def comes_before(self, stream: torch.cuda.Stream) -> None:
        # What loading made on the main stream came before everything on this one.
        stream.wait_stream(self._stream)
