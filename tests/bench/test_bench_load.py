"""`parley bench load` against a real server with the parrot, small."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.patience import HANG_S
from tests.support.processes import serving

from parley.cli.bench import load
from parley.cli.bench.figures import Figures
from parley.cli.bench.load import Load, LoadReport, judge
from parley.media import wav
from parley.media.pcm import INPUT_RATE_HZ
from parley.media.resample import resample

SPEECH = Path(__file__).parents[2] / "examples/questions.wav"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(tmp_path_factory.mktemp("load"), "--slots", "2") as process:
        yield process.url


async def test_every_dialect_is_loaded_and_answers_are_counted(url):
    speech = resample(wav.load(SPEECH), INPUT_RATE_HZ).slice(0, 2 * INPUT_RATE_HZ)
    reports = {}
    async with asyncio.timeout(4 * HANG_S):
        for dialect in load.RUNS:
            # A turn is over some time after its last word; on a busy machine that takes longer.
            seconds = 5.0 if dialect == "half_duplex" else 3.0
            plan = Load(url, {}, seconds, speech)
            reports[dialect] = await load.run(dialect, plan, 2, 0.0)

    for dialect, report in reports.items():
        assert report.errors == {}, dialect
        assert report.answers.count >= 2, dialect
        assert sum(report.histogram.values()) == report.answers.count
    for dialect in ("duplex", "realtime"):
        assert reports[dialect].answers.count + reports[dialect].unanswered == 6
        assert reports[dialect].waits.count == 2


async def test_sessions_that_are_refused_are_errors_not_silence(url):
    unknown = Load(url, {"token": "pk_nobody"}, 1.0, wav.load(SPEECH))

    report = await load.run("duplex", unknown, 3, 0.0)

    assert report.errors == {"unauthorized": 3}
    nothing = "duplex: no answer was received (recorded speech: --file)"
    assert judge(report, 1000.0, None) == ["duplex: errors {'unauthorized': 3}", nothing]
    assert judge(report, None, None) == [nothing]


def report(**more) -> LoadReport:
    given = {
        "answers": Figures.of([100.0] * 90 + [900.0] * 10),
        "waits": Figures.of([]),
        "misses": 0,
        "unanswered": 0,
        "errors": {},
        "histogram": {},
    }
    return LoadReport("duplex", 4, **{**given, **more})


def test_limits_that_do_not_hold_are_named():
    assert judge(report(), 900.0, 1.0) == []
    assert judge(report(), 800.0, None) == ["duplex: p95 900 ms > 800 ms"]
    assert judge(report(misses=3, unanswered=0), None, 2.5) == ["duplex: 3.0 % > 2.5 %"]


def test_what_never_came_counts_as_missed():
    assert report(unanswered=100).miss_percent == 50.0
