"""What a worker counts between two heartbeats."""

import sys

from parley.dialects.events import (
    ChatRequested,
    OutputDelta,
    SessionInterrupted,
    SilenceExplained,
)
from parley.protocol.control import STAGE_BUCKETS_MS
from parley.protocol.kinds import Kind
from parley.worker.meter import SessionMeter, WorkerMeter


def _size(meter: WorkerMeter) -> int:
    tallies = (*meter.counts.stages.values(), *meter.counts.answers.values())
    return sum(sys.getsizeof(tally.counts) for tally in tallies)


def test_without_a_gateway_what_is_counted_takes_no_more_memory() -> None:
    meter = WorkerMeter()
    meter.add_answer(Kind.OMNI_DUPLEX, "llm", 3.0)
    before = _size(meter)

    for _ in range(10_000):
        meter.add_answer(Kind.OMNI_DUPLEX, "llm", 7.5)

    assert _size(meter) == before
    counted = meter.take()
    assert sum(counted.stages["llm"].counts) == 10_001
    assert counted.stages["llm"].sum_ms == 75_003.0
    assert counted.answers[Kind.OMNI_DUPLEX].counts[-1] == 0
    assert len(counted.stages["llm"].counts) == len(STAGE_BUCKETS_MS) + 1
    assert meter.take().stages == {}


def test_the_first_piece_counts_once_and_a_bucket_has_its_upper_bound() -> None:
    meter = WorkerMeter()
    session = SessionMeter(meter, Kind.CHAT)

    meter.add("llm", [STAGE_BUCKETS_MS[0]])
    session.observe(ChatRequested(()), 1.0)
    for at_s in (1.5, 9.0):
        session.observe(OutputDelta(0, "one"), at_s)
    session.observe(SessionInterrupted(), 9.0)

    counted = meter.take()
    assert counted.stages["llm"].counts[0] == 1
    assert counted.answers[Kind.CHAT].sum_ms == 500.0
    assert counted.interruptions == {"stopped": 1}
    assert meter.take().interruptions == {}


def test_the_reason_of_a_silence_is_counted_and_no_error() -> None:
    meter = WorkerMeter()
    session = SessionMeter(meter, Kind.OMNI_DUPLEX)

    for late_ms in (300, 500):
        session.observe(SilenceExplained("unit_late", late_ms), 1.0)

    counted = meter.take()
    assert (counted.silences, counted.errors) == ({"unit_late": 2}, {})
    assert meter.take().silences == {}
