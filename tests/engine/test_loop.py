import math
import threading
from typing import Any, cast

import pytest
from structlog.testing import capture_logs
from tests.support.patience import HANG_S
from tests.support.scripted_model import STEPS, ScriptedJob, ScriptedModel

from parley.clock import ManualClock
from parley.engine.loop import EngineLoop, RowCall, SlotRequest, roll_back
from parley.engine.model import DeviceFault
from parley.engine.scheduler import PATIENCE_S
from parley.engine.segments import Text
from parley.engine.work import Ending, Finalize, Generate, Prefill, Stage, StepUnit, WholeUnit
from parley.errors import ContextFull, InferenceFailed, SlotLost

HELLO = Prefill((Text("hello"),))


class Notes:
    """A sink that writes down what it gets."""

    def __init__(self):
        self.heard = []
        self.value = None
        self.error = None
        self.context_tokens = None
        self.over = threading.Event()

    def pieces(self, pieces):
        self.heard += pieces

    def done(self, value, context_tokens):
        assert self.value is None
        assert self.error is None
        self.value, self.context_tokens = value, context_tokens
        self.over.set()

    def failed(self, error, context_tokens):
        assert self.value is None
        assert self.error is None
        self.error, self.context_tokens = error, context_tokens


def raising(error: Exception):
    """A function that raises, whatever it is given."""

    def function(*args: object):
        raise error

    return function


class Bench:
    """An engine loop that turns only when told to."""

    def __init__(self, rows=2, **options):
        self.clock = ManualClock()
        self.model = ScriptedModel(rows, clock=self.clock, **options)
        self.faults: list[int] = []
        self.loop = EngineLoop(self.model, self.clock, on_fault=lambda: self.faults.append(1))

    def submit(self, row, command, due_s=None):
        request = SlotRequest(row, command, cast(Any, Notes()), due_s)
        self.loop.submit(request)
        return request

    def run(self, limit=1000):
        for _ in range(limit):
            if not self.loop.run_once():
                return
        pytest.fail("the loop does not come to an end")


def test_results_say_where_the_time_went():
    bench = Bench(costs_s={Stage.ENCODE: 0.020, Stage.PREFILL: 0.030})
    request = bench.submit(0, HELLO)

    bench.run()

    assert request.sink.value.timings == {
        Stage.ENCODE: pytest.approx(20.0),
        Stage.PREFILL: pytest.approx(30.0),
    }
    assert request.sink.context_tokens == 1


def test_durations_are_kept_until_a_person_takes_them():
    bench = Bench(costs_s={Stage.DECODE: 0.010})
    for row in range(2):
        bench.submit(row, Generate())
    bench.run()
    bench.clock.advance(1)
    assert bench.loop.step_took_s == 0

    stats = bench.loop.take_stats()

    assert stats.stage_ms == {Stage.DECODE: [pytest.approx(50.0)] * 2}
    assert (stats.steps, stats.rows_stepped) == ({Stage.DECODE: 5}, {Stage.DECODE: 10})
    assert stats.busy_s == bench.loop.stepped_s == pytest.approx(0.05)
    assert bench.loop.take_stats().stage_ms == {}


def test_a_failing_row_is_found_and_the_others_continue():
    def fail(stage, rows):
        if 1 in rows:
            raise RuntimeError("row 1 is broken")

    bench = Bench(rows=3, on_step=fail)
    requests = [bench.submit(row, Generate()) for row in range(3)]

    with capture_logs() as logged:
        bench.run()

    assert isinstance(requests[1].sink.error, InferenceFailed)
    assert [requests[row].sink.value.text for row in (0, 2)] == ["xxxxx"] * 2
    (failed,) = [each for each in logged if each["event"] == "engine_request_failed"]
    assert failed["error_id"] == requests[1].sink.error.error_id
    assert "row 1 is broken" in str(failed["exc_info"])
    assert "row 1 is broken" not in str(requests[1].sink.error)


def test_a_failure_that_only_a_crowd_causes_costs_nobody_anything():
    def fail(stage, rows):
        if len(rows) > 2:
            raise MemoryError("too many")

    bench = Bench(rows=3, on_step=fail)
    requests = [bench.submit(row, Generate()) for row in range(3)]

    bench.run()

    assert [request.sink.value.text for request in requests] == ["xxxxx"] * 3


def test_releasing_a_row_drops_its_work_between_two_steps():
    bench = Bench()
    running, waiting, other = (
        bench.submit(0, Generate()),
        bench.submit(0, HELLO),
        bench.submit(1, Generate()),
    )
    bench.loop.run_once()
    released = []

    bench.loop.release(0, lambda: released.append(True))
    bench.run()

    assert isinstance(running.sink.error, SlotLost)
    assert isinstance(waiting.sink.error, SlotLost)
    assert (released, bench.model.closed) == ([True], [0])
    assert other.sink.value.ending is Ending.DONE


def test_a_model_that_fails_to_close_a_row_still_lets_it_go(monkeypatch):
    bench = Bench()
    monkeypatch.setattr(bench.model, "close", raising(RuntimeError("stuck")))
    released = []

    bench.loop.release(0, lambda: released.append(True))
    with capture_logs() as logged:
        bench.run()

    assert released == [True]
    assert ("model_cleanup_failed", "close") in {(e["event"], e.get("during")) for e in logged}


def test_a_checkpoint_that_no_longer_holds_is_refused():
    bench = Bench()
    bench.submit(0, HELLO)
    checkpoint = bench.submit(0, RowCall(lambda model, row: model.checkpoint(row)))
    bench.submit(0, RowCall(lambda model, row: model.close(row)))
    bench.run()

    point = checkpoint.sink.value
    back = bench.submit(0, RowCall(lambda model, row: roll_back(model, row, point)))
    bench.run()

    assert isinstance(back.sink.error, InferenceFailed)
    assert "moved past the checkpoint" in str(back.sink.error)


def test_a_long_prefill_gives_way_to_a_live_unit():
    bench = Bench(scripts={Prefill: (Stage.PREFILL,) * 20})
    bench.submit(0, HELLO)
    bench.loop.run_once()

    unit = bench.submit(1, StepUnit(), due_s=bench.clock.monotonic() + 1.0)
    bench.run()

    rows = [rows for _, rows in bench.model.steps]
    assert rows[0] == (0,)
    assert rows[1:5] == [(1,)] * 4
    assert unit.sink.value is not None


def test_what_has_just_moved_has_patience_again():
    bench = Bench(scripts={Prefill: (Stage.PREFILL,) * 20}, costs_s={Stage.PREFILL: 0.1})
    bench.submit(0, HELLO)
    while bench.clock.monotonic() < 10 * PATIENCE_S and len(bench.model.steps) < 19:
        bench.loop.run_once()

    # Submitted long ago, but moved a step ago: live work that is due in a second goes first.
    bench.submit(1, StepUnit(), due_s=bench.clock.monotonic() + 1.0)
    bench.loop.run_once()

    assert bench.model.steps[-1] == (Stage.DECODE, (1,))


@pytest.mark.parametrize("steps", [(Stage.ENCODE, Stage.PREFILL), ()])
def test_a_unit_whose_decision_is_refused_leaves_the_context_as_before_it(monkeypatch, steps):
    bench = Bench(scripts={Prefill: steps})
    bench.submit(0, HELLO)
    bench.run()
    start = bench.model.start

    def refuse_steps(row, work):
        if isinstance(work, StepUnit):
            raise ContextFull(9, 8)
        return start(row, work)

    monkeypatch.setattr(bench.model, "start", refuse_steps)
    prefill = Prefill((Text("a"), Text("b")), takes_checkpoint=True)
    unit = bench.submit(0, WholeUnit(prefill, StepUnit()))
    bench.run()

    assert isinstance(unit.sink.error, ContextFull)
    assert bench.model.lengths[0] == 1


def test_work_is_as_urgent_as_what_waits_behind_it():
    bench = Bench(scripts={Finalize: (Stage.FINALIZE,)})
    now_s = bench.clock.monotonic()
    bench.submit(0, Generate(), due_s=now_s + 0.9)
    bench.submit(1, Finalize())
    bench.submit(1, StepUnit(), due_s=now_s + 0.5)
    bench.submit(1, StepUnit(), due_s=now_s + 1.5)

    bench.run()

    assert bench.model.steps[0] == (Stage.FINALIZE, (1,))


@pytest.mark.parametrize(
    "error", [DeviceFault("gone"), RuntimeError("CUDA error: an illegal memory access")]
)
def test_a_device_fault_ends_everything(error):
    def fail(stage, rows):
        raise error

    bench = Bench(on_step=fail)
    requests = [bench.submit(row, Generate()) for row in range(2)]
    waiting = bench.submit(0, HELLO)

    bench.run()
    late = bench.submit(1, HELLO)
    bench.run()

    assert isinstance(requests[0].sink.error, InferenceFailed)
    for request in (requests[1], waiting, late):
        assert isinstance(request.sink.error, SlotLost)
    assert bench.faults == [1]
    assert bench.loop.fault is not None
    assert bench.model.steps == []


def test_out_of_memory_is_not_the_end_of_the_device():
    class OutOfMemoryError(RuntimeError):
        pass

    def fail(stage, rows):
        raise OutOfMemoryError("CUDA error: out of memory")

    bench = Bench(on_step=fail)
    request = bench.submit(0, Generate())

    bench.run()

    assert isinstance(request.sink.error, InferenceFailed)
    assert bench.loop.fault is None


def test_a_prefill_that_takes_a_checkpoint_is_undone_when_the_model_fails():
    failures: list[Exception] = []

    def fail(stage, rows):
        if failures and stage is Stage.PREFILL:
            bench.model.lengths[0] = 99  # a model that fails half way
            raise failures.pop()

    bench = Bench(rows=1, on_step=fail)
    bench.submit(0, HELLO)
    bench.run()
    failures.append(RuntimeError("broken"))
    failed = bench.submit(0, Prefill((Text("one"), Text("two")), takes_checkpoint=True))

    bench.run()

    assert isinstance(failed.sink.error, InferenceFailed)
    assert failed.sink.context_tokens == bench.model.lengths[0] == 1


def test_work_that_waits_for_a_server_takes_no_step_until_it_is_ready():
    bench = Bench()
    waiting, other = bench.submit(0, Generate()), bench.submit(1, Generate())
    bench.loop.run_once()
    assert waiting.job is not None
    waiting.job.waits_s = math.inf
    before = len(bench.model.steps)

    bench.run()

    assert other.sink.value.ending is Ending.DONE
    assert all(rows == (1,) for _, rows in bench.model.steps[before:])
    waiting.job.waits_s = 0.0
    bench.run()
    assert waiting.sink.value.ending is Ending.DONE


@pytest.mark.parametrize("wait_s", [0.01, math.inf], ids=["its time has passed", "news"])
def test_the_thread_sleeps_while_all_work_waits(monkeypatch, wait_s):
    looks: list[object] = []
    slept = threading.Event()

    def look(job: object) -> float:
        looks.append(job)
        slept.set()
        return wait_s if len(looks) == 1 else 0.0

    monkeypatch.setattr(ScriptedJob, "waits_s", property(look, lambda job, value: None))
    bench = Bench(rows=1)
    request = bench.submit(0, Generate())
    thread = threading.Thread(target=bench.loop.run)
    thread.start()
    assert slept.wait(HANG_S)
    if wait_s == math.inf:
        bench.model.report()
    assert request.sink.over.wait(HANG_S)
    bench.loop.stop(unload=False)
    thread.join(HANG_S)

    assert len(looks) == 1 + len(STEPS[Generate]), "one look found it waiting"
