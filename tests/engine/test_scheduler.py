import pytest
from tests.support.present import present

from parley.engine.scheduler import PATIENCE_S, ReadySlot, Step, WorkQueue, plan
from parley.engine.work import Stage


def live(row, stage, due_s, since_s=0.0):
    return ReadySlot(row, stage, due_s, since_s)


def patient(row, stage, since_s=0.0):
    return ReadySlot(row, stage, None, since_s)


LATE_S = PATIENCE_S + 10
"""Patient work that was requested at 0 is more urgent than live work that is due in a second."""

PLANS = {
    "a single row goes": ([live(3, Stage.ENCODE, 1.0)], 0.0, Step(Stage.ENCODE, (3,))),
    "the earliest deadline leads": (
        [live(0, Stage.VOCODE, 2.0), live(1, Stage.FINALIZE, 1.0)], 0.0, Step(Stage.FINALIZE, (1,)),
    ),
    "of two due together the one that waits longer leads": (
        [live(0, Stage.VOCODE, 2.0, 0.5), live(1, Stage.FINALIZE, 2.0, 0.1)],
        1.0, Step(Stage.FINALIZE, (1,)),
    ),
    "rows at the same stage join, most urgent first": (
        [live(0, Stage.DECODE, 1.2), live(1, Stage.DECODE, 1.1), patient(2, Stage.DECODE)],
        1.0, Step(Stage.DECODE, (1, 0, 2)),
    ),
    "live work joins a step of patient work": (
        [patient(0, Stage.PREFILL), live(1, Stage.PREFILL, LATE_S + 0.9)],
        LATE_S, Step(Stage.PREFILL, (0, 1)),
    ),
    "live work goes before patient work that just came": (
        [patient(0, Stage.DECODE, 5.0), live(1, Stage.PREFILL, 5.9)],
        5.0, Step(Stage.PREFILL, (1,)),
    ),
    "a live row catches up with a decoding leader that has time": (
        [live(0, Stage.DECODE, 1.0), live(1, Stage.PREFILL, 1.3)], 0.74, Step(Stage.PREFILL, (1,)),
    ),
    "a leader in a hurry waits for no other": (
        [live(0, Stage.DECODE, 1.0), live(1, Stage.PREFILL, 1.3)], 0.76, Step(Stage.DECODE, (0,)),
    ),
    "only a decoding leader waits for a live row": (
        [live(0, Stage.SPEECH, 1.0), live(1, Stage.PREFILL, 1.3)], 0.0, Step(Stage.SPEECH, (0,)),
    ),
    "a decoding leader that has time does not wait for patient work": (
        [live(0, Stage.DECODE, 1.0), patient(1, Stage.PREFILL)], 0.0, Step(Stage.DECODE, (0,)),
    ),
}  # fmt: skip


def test_nothing_ready_means_no_step():
    assert plan([], 0.0) is None


@pytest.mark.parametrize(("ready", "now_s", "step"), PLANS.values(), ids=PLANS)
def test_the_next_step_is(ready, now_s, step):
    assert plan(ready, now_s) == step


@pytest.mark.parametrize("stage", [Stage.DECODE, Stage.SPEECH])
def test_everyone_joins_a_step_that_costs_the_same_however_many_rows_it_has(stage):
    assert plan([patient(0, stage), live(1, stage, 1.0)], 0.9) == Step(stage, (1, 0))


@pytest.mark.parametrize("stage", [Stage.PREFILL, Stage.ENCODE, Stage.VOCODE])
def test_patient_work_does_not_slow_a_live_step_down(stage):
    step = plan([patient(0, stage), live(1, stage, 1.0), live(2, stage, 1.1)], 0.0)

    assert step == Step(stage, (1, 2))


def test_patient_work_never_starves_under_full_live_load():
    """Two live rows keep the device busy for ever; the chat still moves every other second."""
    now_s, chat_since_s, waits = 0.0, 0.0, []
    for _ in range(2000):
        ready = [
            live(0, Stage.DECODE, now_s + 0.5),
            live(1, Stage.SPEECH, now_s + 0.6),
            patient(2, Stage.PREFILL, chat_since_s),
        ]
        step = present(plan(ready, now_s))
        now_s += 0.02
        if 2 in step.rows:
            waits.append(now_s - chat_since_s)
            chat_since_s = now_s
    assert len(waits) > 15
    assert max(waits) < PATIENCE_S + 0.1


def test_work_of_a_row_keeps_its_order():
    order: WorkQueue[str] = WorkQueue(2)
    for item in ("a", "b"):
        order.add(0, item)
    order.add(1, "c")

    assert order.advance() == "a"
    assert order.advance() == "c"
    assert order.advance() is None
    order.finish(0)
    assert order.advance() == "b"
    assert order.current == ["b", "c"]


def test_clearing_gives_what_ran_and_what_waited():
    order: WorkQueue[str] = WorkQueue(1)
    for item in ("a", "b", "c"):
        order.add(0, item)
    order.advance()

    assert order.clear(0) == ["a", "b", "c"]
    assert order.clear(0) == []
