"""`python -m tools.bench chaos` and `hour`: what they count, and that they find a fault."""

import json
import random
import time
from collections import Counter
from datetime import datetime
from pathlib import Path

import pytest
from tools.bench import chaos, hour
from tools.bench.breakable import BreakableNetwork
from tools.bench.chaos import ChaosPlan, ChaosReport
from tools.bench.chaos_servers import Outage, Servers
from tools.bench.chaos_talks import is_right_but_cut
from tools.bench.chaos_trace import Recovery, explained

from parley.media.pcm import INPUT_RATE_HZ, Pcm

PLAN = ChaosPlan(("duplex",), "parrot", 1, Counter(), 1, 1)
DISASTERS = Counter(freeze=1, stop=1)


def made() -> chaos._Chaos:
    return chaos._Chaos(PLAN, Servers())


async def test_conversations_are_cut_and_nothing_is_lost() -> None:
    """Those that the bench speaks itself; tests/system/test_resume.py tries the SDK."""
    names = ("minicpmo_v2", "openai_live", "openai_realtime")
    report = await chaos.run(ChaosPlan(names, "parrot", 4, DISASTERS, at_once=2, seed=1))

    assert report.examples == []
    assert report.faults() == []
    assert report.cuts >= 4
    assert +report.disasters == DISASTERS
    assert set(report.spread) == set(names)
    assert "unexplained" not in report.recovery_ms


@pytest.mark.parametrize(
    ("outcome", "lost", "twice", "different"),
    [
        (("a", "b", "c"), 0, 0, 0),
        (("a", "c"), 1, 0, 0),
        (("a", "b", "b", "c"), 0, 1, 0),
        (("a", "x", "c"), 0, 0, 1),
    ],
)
def test_an_outcome_is_held_against_the_right_one(
    outcome: tuple[str, ...], lost: int, twice: int, different: int
) -> None:
    one = made()

    one._judge("duplex", ("a", "b", "c"), outcome, {1})

    report = one.report
    assert (report.lost, report.twice, report.different) == (lost, twice, different)
    assert bool(report.faults()) == (outcome != ("a", "b", "c"))


def test_an_answer_may_end_where_its_worker_died_and_nowhere_else() -> None:
    right = ("voice", "piece a", "piece b", "turn 0 a b", "piece c", "turn 1 c")
    cut = ("voice", "piece a", "turn 0 a", "piece c", "turn 1 c")

    assert is_right_but_cut(right, cut, 1)
    assert not is_right_but_cut(right, cut, 0)
    assert not is_right_but_cut(right, ("voice", "piece a", "turn 0 a", "turn 1 "), 1)
    assert not is_right_but_cut(right, ("voice", "piece b", "turn 0 a", *right[4:]), 1)
    assert not is_right_but_cut(right, right[:4], 1)


def test_a_recovery_counts_from_what_made_it_possible(monkeypatch: pytest.MonkeyPatch) -> None:
    one = made()
    network = BreakableNetwork()
    now_s = time.monotonic()
    monkeypatch.setattr("time.monotonic", lambda: now_s)
    network.breaks = 1
    network.explain()
    one._recovered(0.5, network, "s")
    network.explain()
    one._servers.outages = [Outage("gateway", now_s - 3, now_s - 0.2)]
    one._recovered(3.0, network, "s")

    one._servers.outages = [Outage("gateway", now_s - 30)]
    one._recovered(30.0, network, "s")
    # What comes later is not why the connection was lost.
    one._servers.outages = [
        Outage("gateway", now_s - 40, now_s - 20),
        Outage("gateway", now_s - 19, now_s - 0.3),
        Outage("stopped", now_s - 0.2, now_s),
    ]
    one._recovered(40.0, network, "s")

    found = one.report.recovery_ms
    assert found["cut"][0] == pytest.approx(500)
    assert found["gateway"] == pytest.approx([200, 0, 200])


def test_only_kills_count_by_which_a_connection_was_lost() -> None:
    one = made()
    now_s = time.monotonic()
    cut, killed = BreakableNetwork(), BreakableNetwork()
    cut.breaks = 1
    cut.explain()
    killed.explain()
    one._servers.outages = [
        Outage("worker", now_s - 60, now_s - 60),
        Outage("frozen gateway", now_s - 2, now_s - 1),
        Outage("worker", now_s - 2, now_s - 2),
    ]

    assert one._explaining(cut) == []
    one._met |= set(one._explaining(killed))
    one._count_met()

    report = one.report
    assert (+report.disasters, report.vain_kills) == ({"worker": 1}, 1)


def test_what_takes_too_long_is_a_fault() -> None:
    took = {"cut": 2500.0, "gateway": 100.0, "worker": 2900.0}
    slow = ChaosReport(recoveries=[Recovery(kind, ms, "s", 0, 0) for kind, ms in took.items()])

    assert slow.faults() == ["recovery of cut: p95 2500 ms > 1000 ms"]
    assert [each.kind for each in slow.longest()] == ["cut"]


def test_a_slow_recovery_is_explained_by_what_the_servers_logged_of_it(tmp_path: Path) -> None:
    def line(second: int, event: str, **more: str) -> str:
        return json.dumps({"timestamp": f"2026-01-01T00:00:{second:02}Z", "event": event, **more})

    lines = [
        line(5, "long_before"),
        line(11, "session_kept", session_id="s"),
        line(12, "session_kept", session_id="another"),
        "Traceback",
        line(13, "worker_joined", worker="w"),
        line(20, "later"),
    ]
    (tmp_path / "0001-gateway.log").write_text("\n".join(lines))
    lost_at = datetime.fromisoformat("2026-01-01T00:00:10Z").timestamp()

    found = explained(Recovery("worker", 4000, "s", lost_at, lost_at + 4), tmp_path)

    assert found == [
        "worker, 4000 ms: s",
        "  +1.00 s 0001-gateway: session_kept",
        "  +3.00 s 0001-gateway: worker_joined worker=w",
    ]


# ---- an hour -------------------------------------------------------------------------------


def minute(number: int, worker_mb: float, ahead_ms: float) -> hour.Minute:
    return hour.Minute(number, 60, 60, 0, 100.0, worker_mb, ahead_ms)


def test_memory_that_grows_and_clocks_that_part_are_faults() -> None:
    steady = [minute(n, 200.0 if n else 120.0, 7.0) for n in range(20)]
    growing = [minute(n, 200.0 + 2 * n, 7.0 + 5 * n) for n in range(20)]

    assert hour.HourReport(minutes=steady, sent=1, answered=1).faults() == []
    assert hour.HourReport(minutes=growing, sent=2, answered=1).faults() == [
        "1 units were not answered",
        "worker_mb grew by 34.0 MB",
        "the clocks drifted by 70.0 ms",
    ]


async def test_answers_are_counted_by_unit_and_the_least_delayed_reports_the_time() -> None:
    silence = Pcm.silence(INPUT_RATE_HZ, INPUT_RATE_HZ)
    call = hour._Call("http://localhost", 1, silence, random.Random(1), lambda: (None, None))
    call._heard(json.dumps({"type": "prepared"}))
    ready_s = call._ready_s
    # Two seconds ago the session was ready; the server says the same, and once half a second less.
    call._ready_s = ready_s - 2.0
    for index, at_ms, wall_ms in ((0, 1500, 30), (0, 1500, 30), (1, 2000, 1200)):
        told = {"type": "result", "unit_index": index, "current_time": at_ms}
        call._heard(json.dumps(told | {"wall_clock_ms": wall_ms}))

    assert (call.report.answered, call.report.late) == (2, 1)
    assert call._least_ahead == pytest.approx(0.0, abs=100)
