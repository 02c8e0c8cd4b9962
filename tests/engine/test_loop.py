# mypy: disable-error-code="union-attr, arg-type, method-assign, var-annotated"

import logging

import pytest
from tests.support.scripted_model import ScriptedModel

from parley.clock import ManualClock
from parley.engine.loop import Ask, CanRollBack, Clear, EngineLoop, Mark, RollBack
from parley.engine.model import DeviceFault
from parley.engine.segments import Text
from parley.engine.slots import Tenancy
from parley.engine.work import (
    Answer,
    Decoded,
    Ending,
    Opening,
    Prefill,
    Prefilled,
    Reply,
    Settle,
    Settled,
    Stage,
)
from parley.errors import ContextFull, InferenceFailed, SeatLost

HELLO = Prefill((Text("hello"),))


class Notes:
    """An outlet that writes down what it gets."""

    def __init__(self):
        self.heard = []
        self.value = None
        self.error = None
        self.context_tokens = None

    def pieces(self, pieces):
        self.heard += pieces

    def done(self, value, context_tokens):
        assert self.value is None
        assert self.error is None
        self.value, self.context_tokens = value, context_tokens

    def failed(self, error, context_tokens):
        assert self.value is None
        assert self.error is None
        self.error, self.context_tokens = error, context_tokens


class Bench:
    """An engine loop that turns only when told to."""

    def __init__(self, rows=2, **options):
        self.clock = ManualClock()
        self.model = ScriptedModel(rows, clock=self.clock, **options)
        self.faults = []
        self.loop = EngineLoop(self.model, self.clock, on_fault=lambda: self.faults.append(1))

    def ask(self, row, request, due_s=None, generation=1):
        ask = Ask(Tenancy(row, generation), request, Notes(), due_s)
        self.loop.ask(ask)
        return ask

    def run(self, limit=1000):
        for _ in range(limit):
            if not self.loop.run_once():
                return
        pytest.fail("the loop does not come to an end")


def test_rows_at_the_same_stage_share_a_step():
    bench = Bench(rows=3)
    for row in range(3):
        bench.ask(row, Reply())

    bench.run()

    assert bench.model.steps == [(Stage.DECODE, (0, 1, 2))] * 5


def test_work_on_a_row_runs_in_the_order_it_was_asked_for():
    bench = Bench(rows=1)
    asks = [bench.ask(0, request) for request in (Opening("chat"), HELLO, Reply(), Settle())]

    bench.run()

    assert [work for _, work in bench.model.started] == [ask.request for ask in asks]
    assert isinstance(asks[1].outlet.value, Prefilled)
    assert isinstance(asks[3].outlet.value, Settled)


def test_results_say_where_the_time_went():
    bench = Bench(costs_s={Stage.ENCODE: 0.020, Stage.PREFILL: 0.030})
    ask = bench.ask(0, HELLO)

    bench.run()

    assert ask.outlet.value.timings == {
        Stage.ENCODE: pytest.approx(20.0),
        Stage.PREFILL: pytest.approx(30.0),
    }
    assert ask.outlet.context_tokens == 1


def test_durations_are_kept_until_somebody_takes_them():
    bench = Bench(costs_s={Stage.DECODE: 0.010})
    for row in range(2):
        bench.ask(row, Reply())
    bench.run()

    stats = bench.loop.take_stats()

    assert stats.stage_ms == {Stage.DECODE: [pytest.approx(50.0)] * 2}
    assert (stats.steps, stats.rows_stepped) == ({Stage.DECODE: 5}, {Stage.DECODE: 10})
    assert stats.busy_s == pytest.approx(0.05)
    assert bench.loop.take_stats().stage_ms == {}


def test_pieces_come_as_they_become_final():
    bench = Bench()
    ask = bench.ask(0, Reply())

    bench.loop.run_once()
    bench.loop.run_once()

    assert [piece.text for piece in ask.outlet.heard] == ["x", "x"]
    assert ask.outlet.value is None


def test_a_failing_row_is_found_and_the_others_go_on(caplog):
    def fail(stage, rows):
        if 1 in rows:
            raise RuntimeError("row 1 is broken")

    bench = Bench(rows=3, on_step=fail)
    asks = [bench.ask(row, Reply()) for row in range(3)]

    with caplog.at_level(logging.ERROR):
        bench.run()

    assert isinstance(asks[1].outlet.error, InferenceFailed)
    assert [asks[row].outlet.value.text for row in (0, 2)] == ["xxxxx"] * 2
    error_id = asks[1].outlet.error.error_id
    assert error_id in caplog.text
    assert "row 1 is broken" in caplog.text
    assert "row 1 is broken" not in str(asks[1].outlet.error)


def test_a_failure_that_only_a_crowd_causes_costs_nobody_anything():
    def fail(stage, rows):
        if len(rows) > 2:
            raise MemoryError("too many")

    bench = Bench(rows=3, on_step=fail)
    asks = [bench.ask(row, Reply()) for row in range(3)]

    bench.run()

    assert [ask.outlet.value.text for ask in asks] == ["xxxxx"] * 3


def test_work_after_a_failure_still_runs():
    failures = [RuntimeError("once")]

    def fail(stage, rows):
        if failures:
            raise failures.pop()

    bench = Bench(on_step=fail)
    first, second = bench.ask(0, HELLO), bench.ask(0, HELLO)

    bench.run()

    assert isinstance(first.outlet.error, InferenceFailed)
    assert isinstance(second.outlet.value, Prefilled)


def test_a_refusal_reaches_the_asker_as_it_is():
    bench = Bench()
    bench.model.start = lambda row, work: (_ for _ in ()).throw(ContextFull(9000, 8192))
    ask = bench.ask(0, HELLO)

    bench.run()

    assert isinstance(ask.outlet.error, ContextFull)
    assert bench.loop.take_stats().failures == 0


def test_a_cancelled_answer_ends_at_once_with_what_was_said():
    bench = Bench()
    ask = bench.ask(0, Reply())
    bench.loop.run_once()

    bench.loop.cancel(ask)
    bench.run()

    assert ask.outlet.value.ending is Ending.CANCELLED
    assert len(bench.model.steps) == 1


def test_an_answer_cancelled_before_its_turn_says_nothing():
    bench = Bench()
    bench.ask(0, HELLO)
    ask = bench.ask(0, Reply())

    bench.loop.cancel(ask)
    bench.run()

    assert ask.outlet.value == Decoded(Ending.CANCELLED, "", True, 0, 0, 1)


def test_cancelling_what_has_ended_changes_nothing():
    bench = Bench()
    first = bench.ask(0, Reply())
    bench.run()
    second = bench.ask(0, Reply())
    bench.loop.run_once()

    bench.loop.cancel(first)
    bench.run()

    assert second.outlet.value.ending is Ending.DONE


def test_releasing_a_row_drops_its_work_between_two_steps():
    bench = Bench()
    running, waiting, other = bench.ask(0, Reply()), bench.ask(0, HELLO), bench.ask(1, Reply())
    bench.loop.run_once()
    released = []

    bench.loop.release(Tenancy(0, 1), lambda: released.append(True))
    bench.run()

    assert isinstance(running.outlet.error, SeatLost)
    assert isinstance(waiting.outlet.error, SeatLost)
    assert (released, bench.model.closed) == ([True], [0])
    assert other.outlet.value.ending is Ending.DONE


def test_a_model_that_fails_to_close_a_row_still_lets_it_go(caplog):
    bench = Bench()
    bench.model.close = lambda row: (_ for _ in ()).throw(RuntimeError("stuck"))
    released = []

    bench.loop.release(Tenancy(0, 1), lambda: released.append(True))
    bench.run()

    assert released == [True]
    assert "stuck" in caplog.text


def test_marks_are_taken_and_returned_to_in_order():
    bench = Bench()
    bench.ask(0, HELLO)
    mark = bench.ask(0, Mark())
    bench.ask(0, HELLO)
    bench.run()

    can = bench.ask(0, CanRollBack(mark.outlet.value))
    back = bench.ask(0, RollBack(mark.outlet.value))
    bench.run()

    assert can.outlet.value is True
    assert back.outlet.value == 1
    assert bench.model.lengths[0] == 1


def test_a_mark_that_no_longer_holds_is_refused():
    bench = Bench()
    bench.ask(0, HELLO)
    mark = bench.ask(0, Mark())
    bench.ask(0, Clear())
    bench.run()

    back = bench.ask(0, RollBack(mark.outlet.value))
    bench.run()

    assert isinstance(back.outlet.error, InferenceFailed)
    assert "moved past the point to return to" in str(back.outlet.error)


def test_a_long_prefill_gives_way_to_a_live_unit():
    bench = Bench(scripts={Prefill: (Stage.PREFILL,) * 20})
    bench.ask(0, HELLO)
    bench.loop.run_once()

    unit = bench.ask(1, Answer(), due_s=bench.clock.monotonic() + 1.0)
    bench.run()

    rows = [rows for _, rows in bench.model.steps]
    assert rows[0] == (0,)
    assert rows[1:5] == [(1,)] * 4
    assert unit.outlet.value is not None


def test_work_is_as_urgent_as_what_waits_behind_it():
    bench = Bench(scripts={Settle: (Stage.SETTLE,)})
    now_s = bench.clock.monotonic()
    bench.ask(0, Reply(), due_s=now_s + 0.9)
    bench.ask(1, Settle())
    bench.ask(1, Answer(), due_s=now_s + 0.5)

    bench.run()

    assert bench.model.steps[0] == (Stage.SETTLE, (1,))


@pytest.mark.parametrize(
    "error", [DeviceFault("gone"), RuntimeError("CUDA error: an illegal memory access")]
)
def test_a_device_fault_ends_everything(error):
    def fail(stage, rows):
        raise error

    bench = Bench(on_step=fail)
    asks = [bench.ask(row, Reply()) for row in range(2)]
    waiting = bench.ask(0, HELLO)

    bench.run()
    late = bench.ask(1, HELLO)
    bench.run()

    assert isinstance(asks[0].outlet.error, InferenceFailed)
    for ask in (asks[1], waiting, late):
        assert isinstance(ask.outlet.error, SeatLost)
    assert bench.faults == [1]
    assert bench.loop.fault is not None
    assert bench.model.steps == []


def test_out_of_memory_is_not_the_end_of_the_device():
    class OutOfMemoryError(RuntimeError):
        pass

    def fail(stage, rows):
        raise OutOfMemoryError("CUDA error: out of memory")

    bench = Bench(on_step=fail)
    ask = bench.ask(0, Reply())

    bench.run()

    assert isinstance(ask.outlet.error, InferenceFailed)
    assert bench.loop.fault is None
