"""Steps captured as graphs: one launch instead of hundreds.

A small network on a fast GPU spends its time in being launched. A *graph* is a step recorded once
for fixed shapes and replayed with other numbers in the same places. `GraphRunner` is the one owner
of all graphs of a model: the text decode step, the speech-token step, the flow's Euler loop and the
vocoder go through it. Where nothing captures (on a CPU, or switched off) it calls the function,
nothing more.

What may be captured is a function of tensors that

- looks at no value and copies nothing from the host (shapes and everything else that the host
  decides belong into the key);
- does not change its inputs;
- may write into caches, if doing so twice is the same as once: capturing runs it several times.

Nothing is captured while people talk: `seal` ends the capturing, and shapes that come later run as
they are. What a graph returns is compared with what the function returns when it is captured, on
caches filled with numbers (`filled`). A graph that fails, or returns something else, is dropped,
and its kind of step runs eagerly from then on. So does one whose replay fails while it serves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from parley import logs
from parley.models.minicpmo45.runtime.fast_paths import (
    GRAPH,
    FastPaths,
    described,
    guarded,
    hold,
)
from parley.models.minicpmo45.runtime.transfer import to_device

log = logs.get(__name__)

GRAPHS_LIMIT = 256
"""Most graphs of a model. Each keeps its inputs and outputs; the space in between is shared."""

LIKENESS = 2e-2
"""How far a graph's results may be from the function's, relative to the largest one. Kernels
chosen in another order of work differ in last bits of bfloat16; a wrong graph differs by all."""

PLAIN_LIKENESS = 0.15
"""How far the function's results may be from those of its plain form, by their lengths as vectors.
Every layer rounds in another order, a few hundredths in bfloat16; a kernel that reads another slot
is off by about 1 (small random weights)."""

CHECKED_ROWS = 8
"""Graphs of more rows are not compared with the plain form, which takes rows one by one."""

Function = Callable[..., tuple[Tensor, ...]]


class GraphCapture(Protocol):
    """What captures. `CudaGraphCapture` is the real one; tests bring one that works on a CPU."""

    def warm_up(self, step: Callable[[], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        """Run a step as often as it takes until its libraries have chosen kernels and memory."""
        ...

    def record(
        self, step: Callable[[], tuple[Tensor, ...]]
    ) -> tuple[Callable[[], None], tuple[Tensor, ...]]:
        """Capture: what replays the step, and the tensors that hold its results then."""
        ...


class CudaGraphCapture:
    """CUDA graphs of one device, in one memory pool.

    Graphs in one pool may use each other's space, so the results of a replay are good until the
    next replay of any of them.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()

    def warm_up(self, step: Callable[[], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        # On a stream of its own, as captures require of what runs before them.
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
        # Other threads may continue to use the device; only this one must not.
        with torch.cuda.graph(
            graph, pool=self._pool, stream=self._side, capture_error_mode="thread_local"
        ):
            results = step()
        return graph.replay, results


@dataclass(slots=True, eq=False)
class _Graph:
    """A captured step: fill the inputs, replay, read the results."""

    replay: Callable[[], None]
    inputs: tuple[Tensor, ...]
    results: tuple[Tensor, ...]


class GraphRunner:
    """Runs steps, by graphs where it has them.

    Args:
        device: where the functions compute; inputs may be on the host.
        capture: None runs everything as it is.
        paths: learns which kinds are captured; None: not recorded.
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
        """True if steps are captured at all: then it pays to round shapes up."""
        return self._capture is not None

    @property
    def counts(self) -> dict[str, int]:
        """Graphs per kind of step."""
        return dict(Counter(kind for kind, _ in self._graphs))

    @property
    def refusals(self) -> dict[str, str]:
        """Kinds of steps that are not captured any more, and why."""
        return dict(self._refused)

    def run(
        self,
        kind: str,
        shape: Hashable,
        function: Function,
        inputs: Sequence[Tensor],
        *,
        reference: Function | None = None,
    ) -> tuple[Tensor, ...]:
        """`function(*inputs)`.

        Args:
            kind, shape: everything that the function depends on other than its inputs; a graph is
                used for equal ones.
            reference: its plain form, asked once when it is captured.

        Returns:
            Tensors of their own: nothing overwrites them later.

        Raises:
            FastPathFailed: a replay failed; or, while capturing, the function differs from its
                plain form.
        """
        capture = self._capture
        if capture is None:
            return function(*self._moved(inputs))
        graph = self._graphs.get((kind, shape))
        if graph is None:
            if self._is_sealed or kind in self._refused:
                return function(*self._moved(inputs))
            graph = self._captured(capture, kind, shape, function, inputs, reference)
            if graph is None:
                return function(*self._moved(inputs))
        with guarded(GRAPH + kind):
            return _replayed(graph, inputs)

    def seal(self) -> None:
        self._is_sealed = True
        for kind in self.counts:
            self._paths.settle(GRAPH + kind, "fast")
        if self._capture is not None:
            log.info("graphs_captured", counts=self.counts)

    def clear(self) -> None:
        """Let go of all graphs; nothing is captured any more."""
        self._graphs.clear()
        self._is_sealed = True

    def forget(self, *kinds: str, reason: str = "") -> None:
        """Drop the graphs of some kinds: their steps are launched one by one.

        Kinds that are dropped before `seal` are captured again when they next run.

        Args:
            reason: what their state says after `seal`.
        """
        for kind in kinds:
            dropped = [key for key in self._graphs if key[0] == kind]
            for key in dropped:
                del self._graphs[key]
            if dropped and self._is_sealed:
                self._paths.settle(GRAPH + kind, "plain", reason)

    def _moved(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        return [to_device(tensor, self._device) for tensor in inputs]

    def _captured(
        self,
        capture: GraphCapture,
        kind: str,
        shape: Hashable,
        function: Function,
        inputs: Sequence[Tensor],
        reference: Function | None,
    ) -> _Graph | None:
        if len(self._graphs) >= self._limit:
            self._refuse(kind, f"{self._limit} graphs are enough")
            return None
        mine = tuple(tensor.to(self._device, copy=True) for tensor in inputs)

        def step() -> tuple[Tensor, ...]:
            return function(*mine)

        wanted = tuple(result.clone() for result in capture.warm_up(step))
        if reference is not None:
            what = f"{kind} steps of shape {shape}"
            for found, plain in zip(wanted, reference(*mine), strict=True):
                if found.is_floating_point():
                    hold("attention", found, plain, PLAIN_LIKENESS, what)
        try:
            replay, results = capture.record(step)
            graph = _Graph(replay, mine, results)
            made = _replayed(graph, inputs)
        except torch.AcceleratorError:
            raise
        except Exception as error:
            # Capturing may fail in as many ways as there are libraries in a step.
            self._refuse(kind, f"{shape}: {described(error)}")
            return None
        if not all(map(_alike, made, wanted)):
            self._refuse(kind, f"{shape}: a replay gave something else than the step itself")
            return None
        self._graphs[kind, shape] = graph
        self._progress.step(graphs=len(self._graphs))
        return graph

    def _refuse(self, kind: str, reason: str) -> None:
        """One shape that fails is reason enough to leave its kind alone."""
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
    """Caches hold made-up numbers within it, and zeros afterwards. Nobody may remember anything.

    What a step reads decides what it returns then: a graph, or a kernel, that reads another slot or
    a column too few is found out.
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
    """How many rows a captured step of `count` rows has: powers of two up to `most`."""
    return min(power(count), most)


def buckets(most: int) -> list[int]:
    """All numbers of rows of captured steps, the largest first: its space serves all others."""
    return sorted({bucket(count, most) for count in range(1, most + 1)}, reverse=True)


def reaches(least: int, most: int) -> list[int]:
    """Numbers of cache columns that steps read: `most`, and smaller doublings of `least`, largest
    first."""
    columns = []
    while least < most:
        columns.append(least)
        least *= 2
    return [most, *reversed(columns)]


def uneven(size: int, reads: int) -> list[int]:
    """Last column of each of `size` rows: the edges of a kernel's blocks, and `reads`."""
    return [(reads - 1, 0, 63, 64, reads // 2)[row % 5] for row in range(size)]


def power(number: int) -> int:
    return 1 << (number - 1).bit_length()
