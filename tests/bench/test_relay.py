import pytest
from tests.support.long import long_only
from tools.bench import relay_resume
from tools.bench.relay import RelayReport, Tally, describe, measure
from tools.bench.relay_resume import ResumeCost


@pytest.mark.slow
async def test_a_short_run_holds_every_session_and_counts_every_unit():
    report = await measure(5, 2.0, has_frame=True)

    assert report.through.sessions == 5
    assert report.through.broken == 0
    assert 5 <= len(report.through.answers_ms) <= 15
    assert len(report.direct.answers_ms) >= 2
    assert report.cpu_s is None or report.cpu_s >= 0


def test_the_report_says_what_was_added_and_what_a_core_carries():
    report = RelayReport(
        through=Tally(answers_ms=[2.0] * 100, sessions=10),
        direct=Tally(answers_ms=[0.5] * 20, sessions=2),
        seconds=10.0,
        cpu_s=0.02,
        rss_mb=100.0,
        rss_before_mb=80.0,
    )

    text = describe(report, has_frame=False)

    assert "10 of 10; 0 of 100 units late" in text
    assert "p50 1.50 ms" in text
    assert "0.200 ms per unit" in text
    assert "about 5000 sessions" in text


def test_what_resuming_costs_is_compared_round_by_round():
    """A machine that becomes slow in the second round says nothing about resuming."""
    cost = ResumeCost({"not offered": [1.0, 2.0, 1.0], "used": [1.04, 2.08, 1.5]})

    assert cost.percent_more("used", "not offered") == pytest.approx(4.0)
    assert "+4.0 %" in cost.describe()


@long_only
async def test_every_way_of_holding_sessions_is_measured(monkeypatch: pytest.MonkeyPatch):
    # Only figures need warm sockets and buffers.
    monkeypatch.setattr(relay_resume, "WARM_S", 1.5)
    cost = await relay_resume.measure(1, 2.0, rounds=1)

    assert cost.cpu_ms.keys() == {arm.name for arm in relay_resume.ARMS}
    assert all(figure >= 0 for figures in cost.cpu_ms.values() for figure in figures)
    assert cost.worker_ms["used"] > [0.0]
