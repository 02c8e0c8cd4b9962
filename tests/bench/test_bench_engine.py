"""`python -m tools.bench engine` at a small size: it runs, and measures lock waits."""

import dataclasses
import sys
import threading
import time

import pytest
from tools.bench import engine
from tools.bench.host_waits import HostWaits, IdleDevice, ThreadTimes
from tools.bench.paced_model import (
    LOOKS,
    TOKENS,
    PacedModel,
    Timings,
    paper_costs,
)

from parley.cli.bench.figures import Figures
from parley.engine.segments import Audio, Mark, Marker
from parley.engine.work import Prefill, Stage, StartSession, StepUnit
from parley.media.pcm import Pcm
from parley.protocol.values import DuplexConfig

QUICK = {2: dict.fromkeys(Stage, (1e-5, 1e-5, 1e-4))}


def done(model, work):
    """Do a piece of work to its end; returns the stages it went through."""
    job, stages = model.start(0, work), []
    while job.stage is not None:
        stages.append(job.stage)
        model.step(job.stage, [job])
    assert job.result is not None
    return stages


def started(costs=QUICK):
    model = PacedModel(1, costs)
    done(model, StartSession("duplex", duplex=DuplexConfig(force_listen_count=0)))
    done(model, Prefill((Marker(Mark.UNIT), Audio(Pcm.silence(16000, 16000), "live"))))
    model.take_timings()
    return model


def test_a_unit_takes_the_steps_of_one_that_speaks():
    stages = done(started(), StepUnit())

    assert stages.count(Stage.DECODE) == TOKENS + 1
    assert stages.count(Stage.SPEECH) == LOOKS


def test_a_step_waits_for_the_device_that_it_gave_work():
    model = started({1: dict.fromkeys(Stage, (0.001, 0.02))})

    done(model, StepUnit())

    for step in model.take_timings().steps:
        assert step.device_s == pytest.approx(0.021)
        assert step.took_s >= 0.021
        assert step.idle.total_s < step.took_s


def test_the_lock_that_another_thread_holds_is_seen():
    model = started({1: dict.fromkeys(Stage, (0.02,))})
    is_over = False

    def compute():
        while not is_over:
            pass

    before_s = sys.getswitchinterval()
    other = threading.Thread(target=compute)
    try:
        other.start()
        # Whoever wants the lock asks for it after this, and sooner it is not let go.
        sys.setswitchinterval(0.05)
        job = model.start(0, StepUnit())
        for _ in range(3):
            model.step(job.stage, [job])
    finally:
        is_over = True
        sys.setswitchinterval(before_s)
        other.join()

    assert max(step.lock_s for step in model.take_timings().steps) > 0.03


class Clocks(ThreadTimes):
    """The host's clocks, moved by hand."""

    def __init__(self, monkeypatch):
        self.now_s = self.cpu_s = self.queued_s = 0.0
        self.slept = 0
        monkeypatch.setattr("time.perf_counter", lambda: self.now_s)
        monkeypatch.setattr("time.thread_time", lambda: self.cpu_s)

    def queued(self):
        return self.queued_s

    def sleeps(self):
        return self.slept

    def pass_time(self, *, busy=0.0, queued=0.0, stolen=0.0, locked=0.0):
        self.now_s += busy + queued + stolen + locked
        self.cpu_s += busy
        self.queued_s += queued
        self.slept += locked > 0


def test_an_idle_device_is_told_by_what_kept_the_host(monkeypatch):
    clocks = Clocks(monkeypatch)
    device = IdleDevice(HostWaits(clocks))

    clocks.pass_time(busy=0.001)
    device.launch(0.010)
    # Within what the device still has to do, nobody is kept.
    clocks.pass_time(busy=0.002, queued=0.004, locked=0.003)
    device.launch(0.010)
    clocks.pass_time(busy=0.002, queued=0.006, locked=0.008)
    device.launch(0.010)

    split = device.split()
    # The second gap is 5 ms. A host without the 10 ms of waiting for a processor would have been
    # ahead of the device, so all of it is theirs.
    assert (split.own_s, split.processor_s, split.lock_s) == pytest.approx((0.001, 0.005, 0.0))
    assert device.free_s == pytest.approx(0.036)


def test_a_processor_that_was_taken_away_is_no_lock(monkeypatch):
    clocks = Clocks(monkeypatch)
    waits = HostWaits(clocks)

    clocks.pass_time(busy=0.001, stolen=0.004)
    waits.look()
    clocks.pass_time(locked=0.010)
    waits.look(slept_s=0.008)
    assert (waits.processor_s, waits.lock_s) == pytest.approx((0.006, 0.0))
    clocks.pass_time(queued=0.001, locked=0.002)
    waits.look()

    assert (waits.processor_s, waits.lock_s) == pytest.approx((0.007, 0.002))


def test_a_host_that_only_computes_is_its_own_reason(monkeypatch):
    clocks = Clocks(monkeypatch)
    device = IdleDevice(HostWaits(clocks))

    for _ in range(3):
        clocks.pass_time(busy=0.003, locked=0.001)
        device.launch(0.001)

    split = device.split()
    assert (split.own_s, split.processor_s, split.lock_s) == pytest.approx((0.007, 0.0, 0.003))


def test_a_command_waits_from_when_it_could_have_begun():
    model = started()
    work = StepUnit()
    model.prepare_ahead(work)
    time.sleep(0.02)

    model.start(0, work)

    ((_, waited_s),) = model.take_timings().waits_s
    assert waited_s >= 0.02


def test_what_is_lost_is_summed_up_by_second():
    timings = Timings(waits_s=[(10.1, 0.001), (10.9, 0.002), (12.0, 0.004)])

    found = engine.EngineFigures.of(timings, [], engine.Spent(2.0, 1.0, 0.5, 0.2))

    lost = found.second_lock
    assert lost.count == 2
    assert (lost.p50_ms, lost.max_ms) == pytest.approx((3, 4))
    assert (found.cpu, found.others_queued, found.stolen) == (0.5, 0.25, 0.1)


def test_a_second_on_paper_takes_the_share_of_its_steps():
    figures = engine.EngineFigures.of(Timings(), [], engine.Spent(1.0, 1.0, 0.0, 0.0))
    second = Figures(4, 10.0, 20.0, 20.0, 20.0)
    found = dataclasses.replace(
        figures, second_own=second, second_between=second, second_lock=second,
        second_busy=second, steps=4 * 2 * (TOKENS + 1 + LOOKS + 4),
    )  # fmt: skip

    paper = engine.PaperSecond.of(QUICK[2], found)

    assert paper.steps == TOKENS + 1 + LOOKS + 4
    assert paper.device_ms == pytest.approx(0.12 * paper.steps)
    assert (paper.host_ms, paper.lock_ms) == pytest.approx((10.0, 5.0))
    assert f"= {paper.device_ms + 15:.0f} ms" in str(paper)


def test_costs_on_paper_have_every_launch_of_the_counted_steps():
    costs = paper_costs(1, 256)

    launched = {stage: len(times_s) for stage, times_s in costs[1].items()}

    assert set(costs[1]) == {Stage.ENCODE, Stage.PREFILL, Stage.DECODE, Stage.SPEECH,
                             Stage.VOCODE, Stage.FINALIZE}  # fmt: skip
    assert launched[Stage.PREFILL] > 36 * 10
    # A graph is one launch.
    assert launched[Stage.DECODE] < 200
    assert all(time_s > 0 for times_s in costs[1].values() for time_s in times_s)


@pytest.mark.slow
def test_sessions_talk_beside_it():
    found = engine.measure(QUICK, 2, 2)

    alone, beside = found["no sessions"], found["2 sessions"]
    assert alone.steps > 0
    assert beside.steps > 0
    assert beside.wait.count > 0
    assert beside.second_own.max_ms > 0
    assert beside.second_between.max_ms > 0
    assert beside.loop_late.count > 0
