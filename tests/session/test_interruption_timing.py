"""How soon an answer ends for a person who speaks over it, and what the history holds, in every
dialect of live conversation: a whole worker with the real voice detector, in time that only the
test moves.
"""

import math

import numpy as np
import pytest
from tests.support.long import IS_LONG
from tests.support.paced_calls import PacedCall
from tests.support.sessions import worker_harness
from tools.bench.interruption import speakers

from parley.cli.bench.talkers import DIALECTS
from parley.clock import ManualClock
from parley.errors import SetupError
from parley.media.pcm import Samples
from parley.vad.silero import SileroModel

COUNT = 20
MOST_MS = 180
"""95th percentile: a chunk and the start of a voice. Of 200 places it is 171 ms."""
INTO_CHUNKS = 5
"""An answer is heard for half a second before a person speaks."""


@pytest.fixture(scope="module")
def words() -> tuple[Samples, ...]:
    """Those of `python -m tools.bench interruption`: the first moments of these voices are
    alike, so that each may be taken for an echo of the other."""
    try:
        return speakers()
    except SetupError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("dialect", DIALECTS if IS_LONG else ("half_duplex", "duplex"))
async def test_anyone_who_speaks_over_an_answer_silences_it_immediately(dialect, words):
    delays_ms: list[float] = []
    async with worker_harness(
        clock=ManualClock(1000.0), detectors=SileroModel(), context_tokens=1_000_000
    ) as harness:
        call = await PacedCall.open(harness, dialect)
        call.say(words[0])
        for number in range(1, COUNT + 1):
            await call.until_answered()
            for _ in range(INTO_CHUNKS):
                await call.step()
            # At every place between two chunks.
            after_s = 0.1 * (number * 7 % COUNT) / COUNT
            delays_ms.append(await call.interrupt(words[number % len(words)], after_s))
            assert call.heard_ms is not None
            assert abs(call.heard_ms - call.played_ms) < 20

        assert call.late_samples == 0
        assert sorted(delays_ms)[math.ceil(0.95 * COUNT) - 1] <= MOST_MS, sorted(delays_ms)
        assert np.median(delays_ms) <= 120, sorted(delays_ms)
