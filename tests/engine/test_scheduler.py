import pytest
from tests.support.present import present

from parley.engine.scheduler import PATIENCE_S, ReadySlot, Step, WorkQueue, plan
from parley.engine.work import Stage


def live(row, stage, due_s, since_s=0.0):
    return ReadySlot(row, stage, due_s, since_s)


def patient(row, stage, since_s=0.0):
    return ReadySlot(row, stage, None, since_s)


def test_nothing_ready_means_no_step():
    assert plan([], 0.0) is None
    assert plan([live(3, Stage.ENCODE, 1.0)], 0.0) == Step(Stage.ENCODE, (3,))


def test_the_earliest_deadline_leads():
    step = plan([live(0, Stage.VOCODE, 2.0), live(1, Stage.FINALIZE, 1.0)], 0.0)

    assert step == Step(Stage.FINALIZE, (1,))


def test_of_two_that_are_due_together_the_one_that_waits_longer_leads():
    step = plan([live(0, Stage.VOCODE, 2.0, 0.5), live(1, Stage.FINALIZE, 2.0, 0.1)], 1.0)

    assert step == Step(Stage.FINALIZE, (1,))


def test_rows_at_the_same_stage_join_most_urgent_first():
    step = plan(
        [live(0, Stage.DECODE, 1.2), live(1, Stage.DECODE, 1.1), patient(2, Stage.DECODE)], 1
    )

    assert step == Step(Stage.DECODE, (1, 0, 2))


@pytest.mark.parametrize("stage", [Stage.DECODE, Stage.SPEECH])
def test_everyone_joins_a_step_that_costs_the_same_however_many_rows_it_has(stage):
    step = plan([patient(0, stage), live(1, stage, 1.0)], 0.9)

    assert step == Step(stage, (1, 0))


@pytest.mark.parametrize("stage", [Stage.PREFILL, Stage.ENCODE, Stage.VOCODE])
def test_patient_work_does_not_slow_a_live_step_down(stage):
    step = plan([patient(0, stage), live(1, stage, 1.0), live(2, stage, 1.1)], 0.0)

    assert step == Step(stage, (1, 2))


def test_live_work_joins_a_step_of_patient_work():
    now_s = PATIENCE_S + 10
    step = plan([patient(0, Stage.PREFILL, 0.0), live(1, Stage.PREFILL, now_s + 0.9)], now_s)

    assert step == Step(Stage.PREFILL, (0, 1))


def test_live_work_goes_before_patient_work_that_just_came():
    step = plan([patient(0, Stage.DECODE, 5.0), live(1, Stage.PREFILL, 5.9)], 5.0)

    assert step == Step(Stage.PREFILL, (1,))


def test_a_live_row_catches_up_with_a_decoding_leader_that_has_time():
    ready = [live(0, Stage.DECODE, 1.0), live(1, Stage.PREFILL, 1.3)]

    assert plan(ready, 0.74) == Step(Stage.PREFILL, (1,))


def test_only_a_decoding_leader_waits_for_a_live_row():
    ready = [live(0, Stage.SPEECH, 1.0), live(1, Stage.PREFILL, 1.3)]

    assert plan(ready, 0.0) == Step(Stage.SPEECH, (0,))


def test_a_decoding_leader_that_has_time_does_not_wait_for_patient_work():
    ready = [live(0, Stage.DECODE, 1.0), patient(1, Stage.PREFILL, 0.0)]

    assert plan(ready, 0.0) == Step(Stage.DECODE, (0,))


def test_a_leader_in_a_hurry_waits_for_nobody():
    ready = [live(0, Stage.DECODE, 1.0), live(1, Stage.PREFILL, 1.3)]

    assert plan(ready, 0.76) == Step(Stage.DECODE, (0,))


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
    assert order.count == 2


def test_clearing_gives_what_ran_and_what_waited():
    order: WorkQueue[str] = WorkQueue(1)
    for item in ("a", "b", "c"):
        order.add(0, item)
    order.advance()

    assert order.clear(0) == ["a", "b", "c"]
    assert order.count == 0
    assert order.clear(0) == []
