"""Steps captured as graphs: one launch instead of hundreds.

A small network on a fast GPU spends most of its time on launches. A *graph* is a step recorded once
for fixed shapes and replayed with other values in the same tensors. `GraphRunner` owns all graphs
of a model: it runs the text decode step, the speech-token step, the flow's Euler loop and the
vocoder. Without capturing (on a CPU, or switched off) it only calls the function.

A function of tensors may be captured if it

- reads no value and copies nothing from the host (shapes and everything else that the host decides
  belong in the key);
- does not change its inputs;
- writes into caches only if doing so twice is the same as once: capturing runs it several times.

Nothing is captured during conversations: `seal` ends the capturing, and steps with new shapes then
run eagerly. When a graph is captured, its results are compared with those of the function, on
caches filled with random numbers (`filled`). A graph that fails, or returns a different result, is
dropped, and its kind of step runs eagerly from then on. So does one whose replay fails while it
serves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from parley import logs
from parley.models.minicpmo45.device import to_device
from parley.models.minicpmo45.runtime.fast_paths import (
    GRAPH,
    FastPaths,
    check_card,
    described,
    guarded,
)

log = logs.get(__name__)

GRAPHS_LIMIT = 256
"""Maximum number of graphs of a model. Each keeps its inputs and outputs; intermediate memory is
shared."""

LIKENESS = 2e-2
"""Maximum difference of a graph's results from the function's, relative to the largest one. Kernels
that work in another order differ in the last bits of bfloat16; a wrong graph is off by far more."""

CHECKED_ROWS = 8
"""Graphs of more rows are not compared with the plain form, which processes rows one by one."""

Function = Callable[..., tuple[Tensor, ...]]


class GraphCapture(Protocol):
    """Interface for capturing. `CudaGraphCapture` is the real one; tests use one that works on a
    CPU."""

    def warm_up(self, step: Callable[[], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        """Run a step until its libraries have chosen kernels and memory."""
        ...

    def record(
        self, step: Callable[[], tuple[Tensor, ...]]
    ) -> tuple[Callable[[], None], tuple[Tensor, ...]]:
        """Capture a step; returns the function that replays it, and the tensors that then contain
        its results."""
        ...


class CudaGraphCapture:
    """CUDA graphs of one device, in one memory pool.

    Graphs in one pool may use each other's memory, so the results of a replay are valid until the
    next replay of any of them.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()
        self._abandoned: list[torch.cuda.CUDAGraph] = []

    def warm_up(self, step: Callable[[], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        # On a separate stream, as CUDA requires for warm-up before a capture.
        current = torch.cuda.current_stream(self._device)
        self._side.wait_stream(current)
        with torch.cuda.stream(self._side):
            for _ in range(2):
                results = step()
        current.wait_stream(self._side)
        return results

    def record(
        self, step: Callable[[], tuple[Tensor, ...]]
    ) -> tuple[Callable[[], None], tuple[Tensor, ...]]:
        graph = torch.cuda.CUDAGraph()
        # After a failed capture, PyTorch leaves its stream the current one.
        here = torch.cuda.stream(torch.cuda.current_stream(self._device))
        # Other threads may continue to use the device; only this one must not.
        recording = torch.cuda.graph(
            graph, pool=self._pool, stream=self._side, capture_error_mode="thread_local"
        )
        try:
            with here, recording:
                results = step()
        except Exception:
            self._abandon(graph)
            raise
        return graph.replay, results

    def _abandon(self, graph: torch.cuda.CUDAGraph) -> None:
        """Clean up after a failed capture. Before 2.13, PyTorch's allocator takes it for still
        running: it frees no memory, and every later capture fails."""
        # The allocator for pinned memory may still refer to it.
        self._abandoned.append(graph)
        failed, self._pool = self._pool, torch.cuda.graph_pool_handle()
        with suppress(RuntimeError):  # raised if PyTorch has already ended it
            torch._C._cuda_endAllocateToPool(self._device.index, failed)


@dataclass(slots=True, eq=False)
class _Graph:
    """A captured step: fill the inputs, replay, read the results."""

    replay: Callable[[], None]
    inputs: tuple[Tensor, ...]
    results: tuple[Tensor, ...]


class GraphRunner:
    """Runs steps, by graphs if they have been captured.

    Args:
        device: where the functions compute; inputs may be on the host.
        capture: None runs everything eagerly.
        paths: records which kinds are captured; None: not recorded.
    """

    def __init__(
        self,
        device: torch.device | str = "cpu",
        capture: GraphCapture | None = None,
        *,
        paths: FastPaths | None = None,
        limit: int = GRAPHS_LIMIT,
    ) -> None:
        self._paths = paths or FastPaths()
        self._device = torch.device(device)
        self._capture = capture
        self._limit = limit
        self._graphs: dict[tuple[str, Hashable], _Graph] = {}
        self._refused: dict[str, str] = {}
        self._is_sealed = False
        self._progress = logs.Steps(log, "graph_capture_progressed")

    @property
    def is_active(self) -> bool:
        """True if steps are captured; callers then round shapes up."""
        return self._capture is not None

    @property
    def counts(self) -> dict[str, int]:
        """Number of graphs per kind of step."""
        return dict(Counter(kind for kind, _ in self._graphs))

    @property
    def refusals(self) -> dict[str, str]:
        """Kinds of steps that are no longer captured, with the reasons."""
        return dict(self._refused)

    def run(
        self,
        kind: str,
        shape: Hashable,
        function: Function,
        inputs: Sequence[Tensor],
    ) -> tuple[Tensor, ...]:
        """The results of `function(*inputs)`, by a graph if possible.

        Args:
            kind, shape: everything that the function depends on other than its inputs; a graph is
                used for equal values of both.

        Returns:
            Separate tensors, which later replays do not overwrite.

        Raises:
            FastPathFailed: a replay failed.
        """
        graph = self._graphs.get((kind, shape))
        if graph is None and not (self._is_sealed or kind in self._refused):
            graph = self._captured(kind, shape, function, inputs)
        if graph is None:
            return function(*[to_device(tensor, self._device) for tensor in inputs])
        with guarded(GRAPH + kind):
            return _replayed(graph, inputs)

    def seal(self) -> None:
        self._is_sealed = True
        for kind in self.counts:
            self._paths.settle(GRAPH + kind, "fast")
        if self._capture is not None:
            log.info("graphs_captured", counts=self.counts)

    def clear(self) -> None:
        """Drop all graphs and capture no more."""
        self._graphs.clear()
        self._is_sealed = True

    def forget(self, *kinds: str, reason: str = "") -> None:
        """Drop the graphs of some kinds: their steps are launched one by one.

        Kinds that are dropped before `seal` are captured again when they next run.

        Args:
            reason: recorded in their state, if `seal` was called before.
        """
        for kind in kinds:
            dropped = [key for key in self._graphs if key[0] == kind]
            for key in dropped:
                del self._graphs[key]
            if dropped and self._is_sealed:
                self._paths.settle(GRAPH + kind, "plain", reason)

    def _captured(
        self, kind: str, shape: Hashable, function: Function, inputs: Sequence[Tensor]
    ) -> _Graph | None:
        if (capture := self._capture) is None:
            return None
        if len(self._graphs) >= self._limit:
            self._refuse(kind, f"{self._limit} graphs are enough")
            return None
        mine = tuple(tensor.to(self._device, copy=True) for tensor in inputs)

        def step() -> tuple[Tensor, ...]:
            return function(*mine)

        wanted = tuple(result.clone() for result in capture.warm_up(step))
        try:
            replay, results = capture.record(step)
            graph = _Graph(replay, mine, results)
            made = _replayed(graph, inputs)
        except Exception as error:
            # Every library that a step uses may fail in its own way during capturing.
            check_card()
            self._refuse(kind, f"{shape}: {described(error)}")
            return None
        if not all(map(_alike, made, wanted)):
            self._refuse(kind, f"{shape}: a replay gave something else than the step itself")
            return None
        self._graphs[kind, shape] = graph
        self._progress.step(graphs=len(self._graphs))
        return graph

    def _refuse(self, kind: str, reason: str) -> None:
        """Stop capturing a kind of step after one of its shapes failed."""
        self._refused[kind] = reason
        self.forget(kind, reason=reason)
        log.warning("graph_capture_failed", steps=kind, why=reason)
        self._paths.step_down(GRAPH + kind, reason)


def _replayed(graph: _Graph, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    for mine, given in zip(graph.inputs, inputs, strict=True):
        mine.copy_(given, non_blocking=True)
    graph.replay()
    return tuple(result.clone() for result in graph.results)


@contextmanager
def filled(tensors: Iterable[Tensor]) -> Iterator[None]:
    """Within the context, caches contain random numbers; afterwards, zeros. All rows must be empty.

    The results of a step then depend on what it reads, so that a graph or a kernel that reads
    another slot or one column too few is detected.
    """
    held = list(tensors)
    try:
        for number, tensor in enumerate(held):
            _fill(tensor, number)
        yield
    finally:
        for tensor in held:
            tensor.zero_()


def _fill(tensor: Tensor, seed: int) -> None:
    if tensor.is_meta:
        return
    random = torch.Generator(device=tensor.device).manual_seed(seed)
    if tensor.dtype is torch.int8:
        tensor.random_(-127, 128, generator=random)
    elif tensor.dtype is torch.float16:
        # Scales of caches in 8 bits: numbers of about 1.
        tensor.uniform_(0.005, 0.015, generator=random)
    else:
        tensor.normal_(generator=random)


def _alike(made: Tensor, wanted: Tensor) -> bool:
    if not wanted.is_floating_point():
        return torch.equal(made, wanted)
    made, wanted = made.float(), wanted.float()
    scale = float(wanted.abs().nan_to_num(0.0, 0.0, 0.0).amax()) if wanted.numel() else 0.0
    return torch.allclose(made, wanted, rtol=LIKENESS, atol=LIKENESS * scale + 1e-6, equal_nan=True)


def bucket(count: int, most: int) -> int:
    """Number of rows of the captured step for `count` rows: a power of two, or `most`."""
    return min(power(count), most)


def buckets(most: int) -> list[int]:
    """All numbers of rows of captured steps, the largest first: the others reuse its memory."""
    return sorted({bucket(count, most) for count in range(1, most + 1)}, reverse=True)


def reaches(least: int, most: int) -> list[int]:
    """Numbers of cache columns that steps read: `most`, and the smaller doublings of `least`,
    largest first."""
    columns = []
    while least < most:
        columns.append(least)
        least *= 2
    return [most, *reversed(columns)]


def uneven(size: int, reads: int) -> list[int]:
    """Last column of each of `size` rows: the edges of a kernel's blocks, and the last of
    `reads`."""
    return [(reads - 1, 0, 63, 64, reads // 2)[row % 5] for row in range(size)]


def power(number: int) -> int:
    return 1 << (number - 1).bit_length()
