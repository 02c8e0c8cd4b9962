"""The graph runner's bookkeeping, with a fake capture that replays callables on static buffers.

No GPU is needed and none is used: what a real capture does on a device is not tested here.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from structlog.testing import capture_logs
from tests.contracts.conversations import Cast, Style, assert_same, closing
from tests.support.fake_capture import FakeCapture, InPlace
from tests.support.small_minicpmo import small_model
from tests.support.tiny_voice import tiny_token2wav, tiny_voice

from parley.models.minicpmo45.runtime import attention as runtime_attention
from parley.models.minicpmo45.runtime.graphs import (
    CudaGraphCapture,
    GraphRunner,
    bucket,
    buckets,
)
from parley.models.minicpmo45.token2wav.windows import VocoderWindow

FORBIDDEN = torch.AcceleratorError("CUDA error: operation not permitted when stream is capturing")


@pytest.fixture
def runner() -> GraphRunner:
    return GraphRunner(capture=FakeCapture())


def numbers(*values: float) -> torch.Tensor:
    return torch.tensor(values)


def test_a_replay_works_on_new_inputs_and_gives_tensors_of_its_own(runner):
    double = lambda x: (2 * x,)  # noqa: E731

    (first,) = runner.run("step", 1, double, [numbers(1.0)])
    (second,) = runner.run("step", 1, double, [numbers(5.0)])

    assert first.tolist() == [2.0]
    assert second.tolist() == [10.0]
    assert runner.counts == {"step": 1}


def test_a_replay_knows_only_the_tensors_of_the_capture(runner):
    """The stand-in behaves as a graph: it does not run the Python of a step again."""
    found = {"table": numbers(2.0)}

    def step(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (x * found["table"],)

    runner.run("step", 1, step, [numbers(1.0)])
    found["table"].fill_(3.0)
    (changed,) = runner.run("step", 1, step, [numbers(1.0)])
    found["table"] = numbers(4.0)
    (replaced,) = runner.run("step", 1, step, [numbers(1.0)])

    assert (changed.item(), replaced.item()) == (3.0, 3.0)


def test_what_a_step_keeps_is_overwritten_by_the_next_replay(runner):
    """A graph's memory belongs to all graphs."""
    kept = []

    def step(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        kept.append(x + 1)
        return (kept[-1] * 2,)

    runner.run("step", 1, step, [numbers(1.0)])
    runner.run("other", 1, lambda x: (x,), [numbers(1.0)])

    assert kept[-1].isnan().all()


def test_shapes_have_graphs_of_their_own(runner):
    for factor in (3, 4):
        (out,) = runner.run("step", factor, lambda x, f=factor: (f * x,), [numbers(1.0)])
        assert out.tolist() == [float(factor)]

    assert runner.counts == {"step": 2}


def test_without_a_capture_the_function_is_called():
    runner = GraphRunner()

    assert runner.run("step", 1, lambda x: (x + 1,), [numbers(1.0)])[0].tolist() == [2.0]
    assert not runner.is_active
    assert runner.counts == {}


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x * float(x[0]),),
        lambda x: (x[x > 0],),
        lambda x: (x * torch.tensor([2.0]),),
    ],
    ids=["reads a value", "shape depends on values", "brings data from the host"],
)
def test_a_step_that_cannot_be_captured_runs_as_it_is_and_the_log_says_why(runner, function):
    with capture_logs() as logged, torch.inference_mode():
        first = runner.run("step", 1, function, [numbers(3.0)])
        second = runner.run("step", 1, function, [numbers(4.0)])

    assert torch.equal(first[0], function(numbers(3.0))[0])
    assert torch.equal(second[0], function(numbers(4.0))[0])
    assert "not permitted" in runner.refusals["step"]
    assert [each["event"] for each in logged].count("graph_capture_failed") == 1


class Cuda:
    """`torch.cuda` of a card. When a capture fails, its stream stays the current one, and before
    PyTorch 2.13 its pool stays in use, with which no other capture can begin."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, ends_captures: bool) -> None:
        self.stream = "usual"
        self.pools = {"unused": 0, "recording": 0}
        self._ends_captures = ends_captures
        stand_ins = {
            "CUDAGraph": lambda: SimpleNamespace(replay=None),
            "Stream": lambda device: "captures",
            "graph": self._graph,
            "graph_pool_handle": self._new_pool,
            "current_stream": lambda device: self.stream,
            "stream": self._on,
        }
        for name, stand_in in stand_ins.items():
            monkeypatch.setattr(torch.cuda, name, stand_in)
        monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", self._end)

    def _new_pool(self) -> int:
        self.pools["unused"] += 1
        return self.pools["unused"]

    def _end(self, device: int, pool: int) -> None:
        if self.pools["recording"] != pool:
            raise RuntimeError("endAllocatePool: not currently recording to mempool_id")
        self.pools["recording"] = 0

    @contextmanager
    def _on(self, stream: str) -> Iterator[None]:
        before, self.stream = self.stream, stream
        try:
            yield
        finally:
            self.stream = before

    @contextmanager
    def _graph(self, graph: object, *, pool: int, stream: str, **_: str) -> Iterator[None]:
        if self.pools["recording"]:
            raise RuntimeError("captures_underway.empty() INTERNAL ASSERT FAILED")
        self.pools["recording"] = pool
        before, self.stream = self.stream, stream
        has_failed = True
        try:
            yield
            has_failed = False
        finally:
            if not has_failed:
                self.stream = before
            if self._ends_captures or not has_failed:
                self._end(0, pool)


@pytest.mark.parametrize("ends_captures", [False, True], ids=["before 2.13", "2.13"])
def test_a_step_that_cuda_cannot_capture_leaves_the_others_alone(monkeypatch, ends_captures):
    cuda = Cuda(monkeypatch, ends_captures=ends_captures)
    capture = CudaGraphCapture(torch.device("cuda", 0))
    streams = []

    def good() -> tuple[torch.Tensor, ...]:
        streams.append(cuda.stream)
        return (numbers(1.0),)

    def bad() -> tuple[torch.Tensor, ...]:
        raise FORBIDDEN

    for step in (good, bad, bad, good):
        if step is bad:
            with pytest.raises(torch.AcceleratorError):
                capture.record(step)
        else:
            assert capture.record(step)[1][0].tolist() == [1.0]
        assert cuda.stream == "usual"

    assert streams == ["captures", "captures"]
    assert not cuda.pools["recording"]


def test_what_cuda_forbids_in_a_capture_does_not_fail_the_card():
    class Forbidding(FakeCapture):
        def record(self, step):
            raise FORBIDDEN

    runner = GraphRunner(capture=Forbidding())

    (out,) = runner.run("step", 1, lambda x: (2 * x,), [numbers(3.0)])

    assert out.tolist() == [6.0]
    assert "not permitted when stream is capturing" in runner.refusals["step"]


def test_a_graph_that_gives_something_else_is_not_used(runner):
    calls = iter(range(100))

    def changing(x: torch.Tensor):
        return (x + next(calls),)

    with capture_logs() as logged:
        runner.run("step", 1, changing, [numbers(1.0)])

    assert runner.counts == {}
    assert "something else" in logged[0]["why"]


def test_a_failing_kind_leaves_the_others_alone(runner):
    runner.run("bad", 1, lambda x: (x * float(x[0]),), [numbers(3.0)])
    runner.run("good", 1, lambda x: (x * 2,), [numbers(3.0)])

    assert runner.counts == {"good": 1}
    assert list(runner.refusals) == ["bad"]


def test_after_sealing_nothing_more_is_captured(runner):
    runner.run("step", 1, lambda x: (x * 2,), [numbers(3.0)])
    runner.seal()

    (out,) = runner.run("step", 2, lambda x: (x * 3,), [numbers(3.0)])

    assert out.tolist() == [9.0]
    assert runner.counts == {"step": 1}


def test_there_are_so_many_graphs_and_no_more():
    runner = GraphRunner(capture=FakeCapture(), limit=2)

    for shape in range(4):
        (out,) = runner.run("step", shape, lambda x, s=shape: (x * s,), [numbers(3.0)])
        assert out.tolist() == [3.0 * shape]

    assert sum(runner.counts.values()) <= 2


def test_batches_are_rounded_up_to_powers_of_two():
    assert [bucket(count, 6) for count in range(1, 7)] == [1, 2, 4, 4, 6, 6]
    assert buckets(6) == [6, 4, 2, 1]
    assert buckets(1) == [1]


@pytest.mark.timeout(900)
def test_conversations_with_graphs_say_what_they_say_without(monkeypatch):
    """Every captured step, in batches of all sizes, against the model without graphs."""
    monkeypatch.setattr(runtime_attention, "_Compared", lambda what: InPlace())
    plain = small_model(slots=3)
    capture = FakeCapture()
    captured = small_model(slots=3, capture=capture)
    assert captured.speech_output is not None
    for network in (captured.network.llm, captured.speech_output.decoder):
        network.attention = InPlace()
    captured.warm_up()
    assert captured.graphs.refusals == {}
    kinds = {"choose", "decode", "feed", "speech", "flow", "vocoder", "sound", "picture"}
    assert set(captured.graphs.counts) == kinds
    style = Style(max_new_tokens=12)
    parts = [(style.chat, style.turns, style.units)[row % 3](seed=20 + row) for row in range(3)]
    delays = {row: 5 * row for row in range(3)}

    with closing(plain), closing(captured):
        alone = Cast(plain).play_together(dict(enumerate(parts)), delays=delays)
        before = capture.replays
        together = Cast(captured).play_together(dict(enumerate(parts)), delays=delays)

    assert capture.replays > before + 50
    for row, outcomes in alone.items():
        assert_same(outcomes, together[row], 2e-3)
    plain.unload()
    captured.unload()


@pytest.mark.parametrize("is_causal", [False, True], ids=["classic", "causal"])
def test_windows_with_graphs_sound_as_they_do_without(is_causal):
    capture = FakeCapture()
    graphs = GraphRunner(capture=capture)
    # Graphs are of 1, 2 and 4 rows: three of four slots are filled up.
    plain = tiny_token2wav(slots=4, is_causal=is_causal)
    captured = tiny_token2wav(slots=4, is_causal=is_causal, graphs=graphs)
    captured.capture()
    assert graphs.refusals == {}
    graphs.seal()
    before = capture.replays
    for speech in (plain, captured):
        for slot in range(3):
            speech.begin(slot, speech.prime(tiny_voice(seed=slot)))

    random = np.random.default_rng(5)
    for slots in ([0, 1, 2], [2, 0], [1], [0, 1, 2], [0, 2], [0, 1, 2]):
        windows = [VocoderWindow(tuple(random.integers(0, 60, 28).tolist()), False) for _ in slots]
        want = plain.decode(slots, windows)
        got = captured.decode(slots, windows)
        for mine, theirs in zip(got, want, strict=True):
            np.testing.assert_allclose(mine, theirs, atol=2e-3)

    # The Euler loop every time; the vocoder wherever a row gave a whole window.
    assert capture.replays >= before + 10
