"""`python -m tools.bench interruption`: what it counts, and interruptions of a real server."""

from collections.abc import Iterator
from unittest.mock import Mock

import numpy as np
import pytest
from tests.support.long import IS_LONG
from tests.support.noises import spoken
from tests.support.processes import serving
from tools.bench.interruption import ConcurrentTalks, FenceLoudspeaker, InterruptionOutcome, as_line

from parley.cli.bench.talkers import TALKERS, HistoryCut
from parley.client.events import Interruption, Listening, Piece, Speaking, Thinking
from parley.media.pcm import OUTPUT_RATE_HZ, Pcm
from parley.protocol.values import InterruptionOptions


def tone(seconds: float) -> Pcm:
    time_s = np.arange(round(seconds * OUTPUT_RATE_HZ)) / OUTPUT_RATE_HZ
    return Pcm((0.2 * np.sin(2 * np.pi * 300 * time_s)).astype(np.float32), OUTPUT_RATE_HZ)


NOW_S = 100.0


@pytest.fixture
async def outcome() -> InterruptionOutcome:
    return InterruptionOutcome()


@pytest.fixture
async def loudspeaker(outcome: InterruptionOutcome) -> FenceLoudspeaker:
    """One for which time stands still."""
    made = FenceLoudspeaker(outcome)
    made._loop = Mock(time=lambda: NOW_S)
    return made


async def test_sound_behind_the_fence_is_counted_until_the_next_answer(loudspeaker, outcome):
    loudspeaker.take(Piece("a", tone(1.0)))
    loudspeaker.take(Interruption("stopped", 0, ""))
    loudspeaker.take(Piece("b", tone(0.5)))
    loudspeaker.take(Speaking("quiet", Pcm.silence(2400, OUTPUT_RATE_HZ), False, 0, None))
    for over in (Thinking(0), Listening(0, None)):
        loudspeaker.take(over)
        loudspeaker.take(Piece("c", tone(1.0)))

    assert outcome.late_samples == 12_000


async def test_a_late_piece_belongs_to_the_answer_that_is_heard(loudspeaker, outcome):
    loudspeaker.take(Piece("a", tone(1.0)))
    # As if it had been played half a second ago.
    loudspeaker.played[0].start_s -= 1.5
    loudspeaker.played[0].end_s -= 1.5
    loudspeaker.take(Piece("b", tone(10.0)))
    loudspeaker.take(Interruption("stopped", 3000, ""))

    assert outcome.apart_ms == [2000.0]


async def test_only_a_suspicion_during_an_interruption_counts(loudspeaker, outcome):
    loudspeaker.take(Interruption("suspected", 0, ""))
    loudspeaker.speaking_since_s = NOW_S - 0.25
    loudspeaker.take(Interruption("suspected", 0, ""))

    assert outcome.softer_ms == [250.0]


async def test_where_speech_is_told_first_the_history_comes_later(loudspeaker, outcome):
    loudspeaker.take(Piece("a", tone(10.0)))
    loudspeaker.take(Interruption("stopped", -1, ""))
    before = list(outcome.apart_ms)
    loudspeaker.take(HistoryCut(500))
    loudspeaker.take(HistoryCut(700))

    assert before == []
    assert outcome.apart_ms == [500.0]


def test_what_misses_is_named():
    good = InterruptionOutcome(stopped_ms=[150.0] * 20, apart_ms=[3.0, -4.0])
    bad = InterruptionOutcome(
        stopped_ms=[150.0, None], late_samples=1, apart_ms=[400.0], failures=["x: broken"]
    )

    assert good.misses(20, 200.0) == []
    assert bad.misses(4, 200.0) == [
        "x: broken",
        "2 of 4 interruptions were measured",
        "silent after inf ms (p95), not 200",
        "1 samples behind the fence",
        "the history is not what was heard",
    ]


def test_a_line_says_what_was_and_what_was_not():
    one = InterruptionOutcome(stopped_ms=[100.0, 300.0, None], failures=["x: broken"])

    assert "2 of 3 answers stopped; silent after 200 / 290 ms" in as_line(one)
    assert "softer after -" in as_line(one)
    assert as_line(one).endswith("x: broken")


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(tmp_path_factory.mktemp("interruption")) as process:
        yield process.url


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "dialect", ["half_duplex", *(TALKERS if IS_LONG else ("openai_realtime",))]
)
async def test_answers_of_a_server_are_interrupted(url, dialect):
    words = (
        spoken("Tell me a long story about a fox who could not sleep at night, please."),
        spoken("Wait, stop please, I wanted to ask something else.", "en+f3"),
    )
    options = InterruptionOptions(mode="stop", backchannel="heed")

    outcome = await ConcurrentTalks(url, {}, dialect, options, words, 0.1).hold(1, 1)

    assert outcome.failures == []
    assert outcome.late_samples == 0
    assert len(outcome.stopped_ms) == len(outcome.first_sound_ms) == 1
