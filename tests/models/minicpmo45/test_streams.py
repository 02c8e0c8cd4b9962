"""Speech on a stream of its own: what is said is the same, and every read is behind its write.

No GPU is used: `tests/support/fake_streams.py` works out which orders a device would be free to
take. What a device makes of them is not tested here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import pytest
import torch
from tests.contracts.conversations import Style
from tests.support.fake_capture import FakeCapture
from tests.support.fake_streams import MAIN, SPEECH, FakeStream, Streams
from tests.support.small_minicpmo import small_model

from parley.clock import ManualClock
from parley.engine.loop import EngineLoop, SlotRequest
from parley.engine.model import RunsBeside
from parley.engine.slots import SlotKey
from parley.engine.work import Ending, OutputPiece, Stage, Work
from parley.models.job import ModelJob
from parley.models.minicpmo45.model import MiniCPMO45
from parley.models.minicpmo45.runtime.graphs import GraphRunner
from parley.models.minicpmo45.runtime.streams import SPEECH_KINDS, Arrival
from parley.models.minicpmo45.stages.speech import speak
from parley.models.minicpmo45.tts.rows import SpeechBlock
from parley.models.minicpmo45.tts.turns import SpokenTurn

STYLE = Style(max_new_tokens=12)


class Sink:
    """What came of one request."""

    def __init__(self) -> None:
        self.sounds: list[np.ndarray] = []
        self.text = ""
        self.value: object = None

    def pieces(self, pieces: list[OutputPiece]) -> None:
        self.text += "".join(piece.text for piece in pieces)
        self.sounds += [piece.pcm.samples for piece in pieces if piece.pcm is not None]

    def done(self, value: object, context_tokens: int) -> None:
        self.value = value

    def failed(self, error: Exception, context_tokens: int) -> None:
        raise error


class Talk:
    """Conversations on an engine loop that turns in this thread."""

    def __init__(self, model: MiniCPMO45) -> None:
        self.model = model
        self.loop = EngineLoop(model, ManualClock())
        self.stages: list[tuple[Stage, tuple[int, ...]]] = []
        step = model.step

        def noted(stage, jobs):
            self.stages.append((stage, tuple(job.row for job in jobs)))
            step(stage, jobs)

        model.step = noted  # type: ignore[method-assign]

    def ask(self, row: int, works: Sequence[Work]) -> list[Sink]:
        requests = [SlotRequest(SlotKey(row, 1), work, Sink()) for work in works]
        for request in requests:
            self.loop.submit(request)
        self.requests = requests
        return [request.sink for request in requests]  # type: ignore[misc]

    def run(self, until: Callable[[], bool] = lambda: False) -> None:
        while not until() and self.loop.run_once():
            pass


def played(
    model: MiniCPMO45, until: Callable[[], bool] = lambda: False
) -> tuple[list[list[Sink]], Talk]:
    """Two conversations at once, one of each way of talking aloud; to their end, or `until`."""
    talk = Talk(model)
    parts = [STYLE.units(seed=22, count=3), STYLE.turns(seed=21)]
    sinks = [talk.ask(row, works) for row, works in enumerate(parts)]
    talk.run(until)
    return sinks, talk


def speaking(talk: Talk) -> ModelJob:
    """Runs until speech of the last request is under way."""
    request = talk.requests[-1]
    while request.job is None or not talk.model.is_under_way(request.job):
        assert talk.loop.run_once()
    assert isinstance(request.job, ModelJob)
    return request.job


@pytest.fixture(scope="module")
def plain() -> list[list[Sink]]:
    return played(small_model(slots=2))[0]


def test_speech_beside_decoding_says_what_it_says_behind_it(plain):
    with Streams() as streams:
        found, talk = played(small_model(slots=2, stream=FakeStream(streams)))

    assert streams.problems == []
    assert min(streams.operators.values()) > 500
    sounds = 0
    for mine, theirs in zip(found, plain, strict=True):
        for one, other in zip(mine, theirs, strict=True):
            assert one.text == other.text
            assert [len(sound) for sound in one.sounds] == [len(sound) for sound in other.sounds]
            for sound, wanted in zip(one.sounds, other.sounds, strict=True):
                np.testing.assert_allclose(sound, wanted, atol=1e-4)
            sounds += len(one.sounds)
    assert sounds > 2
    # Between the halves of a row's speech, others moved.
    assert any(
        stage in (Stage.SPEECH, Stage.VOCODE) and others[0] is Stage.DECODE
        for (stage, _), others in zip(talk.stages, talk.stages[1:], strict=False)
    )


@pytest.mark.parametrize(
    ("left_out", "problem"),
    [
        ("wait_for_main", "on speech writes over what main writes"),
        ("synchronize", "the host's numpy reads what speech may still copy"),
    ],
)
def test_each_wait_is_needed(left_out, problem):
    with Streams() as streams:

        def found() -> bool:
            return any(problem in one for one in streams.problems)

        played(small_model(slots=2, stream=FakeStream(streams, left_out=left_out)), found)

    assert found(), streams.problems[:5]


class StatesJob:
    """Speaks what the main stream was asked for a moment ago."""

    block = windows = under_way = None

    def __init__(self, model: MiniCPMO45) -> None:
        assert model.speech_output is not None
        self.made: list[torch.Tensor] = []
        self.output = model.speech_output

    def open_block(self) -> SpeechBlock:
        states = [state * 2 for state in self.made]
        rows = self.output.condition([1, 2], states)
        return SpokenTurn(self.output.decoder, self.output.decoder.rows[0]).begin(
            rows, is_last=False
        )


@pytest.mark.parametrize("left_out", ["", "wait_for_main"])
def test_a_condition_waits_for_the_states_that_it_is_made_of(left_out):
    model = small_model(slots=1)
    with Streams() as streams, torch.inference_mode():
        assert model.speech_output is not None
        model.speech_output.work_on(FakeStream(streams, left_out=left_out))
        job = StatesJob(model)
        job.made = [torch.ones(128) * number for number in range(2)]
        speak(model, [cast(Any, job)])

    assert bool(streams.problems) is (left_out == "wait_for_main")
    assert all("on speech reads what main may still write" in one for one in streams.problems)


@pytest.mark.parametrize("left_out", ["", "keep"])
def test_states_that_nobody_holds_any_more_are_kept_until_speech_has_read_them(left_out):
    """Whoever is cancelled lets go of them before the device has come so far."""
    with Streams() as streams:
        model = small_model(slots=1, stream=FakeStream(streams, patience=1000, left_out=left_out))
        talk = Talk(model)
        turns = STYLE.turns(seed=21)
        talk.ask(0, turns[:4])
        speaking(talk)
        talk.loop.cancel(talk.requests[-1])
        talk.requests = []
        talk.ask(0, turns[4:5])
        talk.run()

    kept = [one for one in streams.problems if "gives away memory that speech" in one]
    assert bool(kept) is (left_out == "keep")


def test_a_cancelled_answer_leaves_its_speech_on_the_way_and_the_row_speaks_on():
    with Streams() as streams:
        model = small_model(slots=1, stream=FakeStream(streams, patience=1000))
        talk = Talk(model)
        turns = STYLE.turns(seed=21)
        talk.ask(0, turns[:4])
        reply = talk.requests[-1]
        assert speaking(talk).stage is Stage.SPEECH
        talk.loop.cancel(reply)
        later = talk.ask(0, turns[4:])
        talk.run()
        model.close(0)
        fresh = talk.ask(0, turns[:4])
        talk.run()

    assert reply.sink.value.ending is Ending.CANCELLED  # type: ignore[attr-defined]
    assert later[1].sounds
    assert streams.problems == []
    # What the cancelled step left behind is nobody's: a session after it speaks as on a new model.
    again = Talk(small_model(slots=1))
    expected = again.ask(0, turns[:4])
    again.run()
    for one, other in zip(fresh, expected, strict=True):
        assert one.text == other.text
        for sound, right in zip(one.sounds, other.sounds, strict=True):
            np.testing.assert_allclose(sound, right, atol=1e-4)


def test_on_one_stream_a_step_is_complete_when_it_returns():
    model = small_model(slots=1)
    assert isinstance(model, RunsBeside)
    talk = Talk(model)
    talk.ask(0, STYLE.units(seed=20, count=2))

    while talk.loop.run_once():
        for request in talk.requests:
            assert request.job is None or getattr(request.job, "under_way", None) is None


def test_what_cannot_be_asked_for_leaves_every_job_where_it_was(monkeypatch):
    with Streams() as streams:
        model = small_model(slots=1, stream=FakeStream(streams))
        talk = Talk(model)
        talk.ask(0, STYLE.turns(seed=21)[:4])
        request = talk.requests[-1]
        while request.job is None or request.job.stage is not Stage.SPEECH:
            assert talk.loop.run_once()
        job: Any = request.job
        assert model.speech_output is not None
        decoder = model.speech_output.decoder
        monkeypatch.setattr(decoder, "ask", None)

        with pytest.raises(TypeError):
            speak(model, [job])
        assert job.under_way is None
        monkeypatch.undo()
        with torch.inference_mode():
            speak(model, [job])

    assert job.under_way is not None


def test_an_arrival_is_read_once_and_only_when_it_is_complete():
    reads: list[int] = []
    with Streams() as streams:
        stream = FakeStream(streams, patience=2)

        def read() -> int:
            reads.append(1)
            return len(reads)

        arrival = Arrival(stream.record(), read)

        looks = [arrival.is_complete for _ in range(4)]

        assert looks == [False, False, True, True]
        assert (arrival.take(), arrival.take(), reads) == (1, 1, [1])


class PooledCapture(FakeCapture):
    """Replays of one capture share memory, as graphs of one pool do."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = torch.zeros(1)

    def record(self, step):
        replay, results = super().record(step)

        def pooled() -> None:
            self.pool.add_(1)
            replay()

        return pooled, results


@pytest.mark.parametrize("is_shared", [False, True])
def test_graphs_that_may_run_at_once_have_captures_of_their_own(is_shared):
    capture = PooledCapture()
    captures = None if is_shared else {"speech": PooledCapture()}
    runner = GraphRunner(capture=capture, captures=captures)
    for kind in ("decode", "speech"):
        runner.run(kind, 1, lambda x: (2 * x,), [torch.ones(1)])

    with Streams() as streams:
        for kind, stream in (("decode", MAIN), ("speech", SPEECH)):
            with streams.on(stream):
                runner.run(kind, 1, lambda x: (2 * x,), [torch.ones(1)])

    assert bool(streams.problems) is is_shared


def test_the_kinds_of_speech_are_those_that_speech_captures():
    model = small_model(slots=1, capture=FakeCapture())
    assert model.speech_output is not None

    model.speech_output.capture()

    assert set(model.graphs.counts) == set(SPEECH_KINDS)


def test_speech_is_asked_for_on_its_own_stream_only():
    """Nothing else touches what the speech stream owns."""
    with Streams() as streams:
        model = small_model(slots=1, stream=FakeStream(streams))
        talk = Talk(model)
        talk.ask(0, STYLE.units(seed=20, count=3))
        talk.run()
        before = dict(streams.operators)
        model.close(0)

    assert streams.operators[SPEECH] > before[SPEECH]
    assert streams.operators[MAIN] == before[MAIN]
