"""`python -m tools.bench engine` at a small size: it runs, and measures lock waits."""

import sys
import threading

import pytest
from tests.support.long import long_only
from tools.bench import engine
from tools.bench.host_waits import HostWaits, IdleDevice, ThreadTimes
from tools.bench.paced_model import PacedModel

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
        # Anyone who wants the lock asks for it after this, and sooner it is not let go.
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


@long_only
def test_sessions_talk_next_to_it():
    found = engine.measure(QUICK, 2, 2)

    alone, beside = found["no sessions"], found["2 sessions"]
    assert alone.steps > 0
    assert beside.steps > 0
    assert beside.wait.count > 0
    assert beside.second_own.max_ms > 0
    assert beside.second_between.max_ms > 0
    assert beside.loop_late.count > 0
