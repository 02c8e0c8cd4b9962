"""The level of an echo per band: what it accounts for, and what it does not."""

import numpy as np
import pytest
from tests.support import noises
from tests.support.present import present

from parley.cli.bench.noises import at_level, in_room
from parley.cli.bench.people import overdriven
from parley.media.pcm import Pcm
from parley.media.resample import resample
from parley.turns.echo_levels import (
    EXPLAINED,
    LEAST_FRAMES,
    EchoLevels,
    held,
    powers_of,
    powers_of_slow,
)

PLAYED = noises.talk(9.0, "en-us")
THEIRS = noises.talk(3.0, "en")
WAYS = {
    "dry": lambda dry: dry,
    "room": lambda dry: in_room(dry, 0.9, direct_db=0.0),
    "overdriven": lambda dry: in_room(overdriven(dry), 0.6, direct_db=0.0),
}
FRAME = 512
SIX_S = 187 * FRAME


def learnt(way: str, delay_ms: int, softer_db: float) -> tuple[EchoLevels, np.ndarray, np.ndarray]:
    """Levels of six seconds of echo; the echo of three more, and what is expected there."""
    late = np.concatenate([np.zeros(16 * delay_ms, np.float32), WAYS[way](PLAYED)])[: len(PLAYED)]
    back = at_level(late, -26.0 - softer_db) + noises.room(9.0)[: len(PLAYED)]
    slow = resample(Pcm(PLAYED, 16_000), 4000).samples
    expected = held(powers_of_slow(slow), len(PLAYED) // FRAME)
    levels = EchoLevels()
    levels.learn(powers_of(back[:SIX_S]), expected[: SIX_S // FRAME])
    return levels, back[SIX_S:], expected[SIX_S // FRAME :]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("delay_ms", "softer_db"), [(50, 10.0), (300, 10.0), (150, 20.0)])
def test_an_echo_is_accounted_for_and_a_person_who_speaks_over_it_is_not(
    way: str, delay_ms: int, softer_db: float
):
    levels, back, expected = learnt(way, delay_ms, softer_db)
    both = back.copy()
    both[: len(THEIRS)] += at_level(THEIRS, -26.0)[: len(both)]
    shares: dict[str, list[float]] = {"echo": [], "both": []}
    for at in range(0, 60, 13):
        part = slice(at * FRAME, (at + 13) * FRAME)
        for name, sound in (("echo", back), ("both", both)):
            share = levels.explained(powers_of(sound[part]), expected[at : at + 13])
            shares[name].append(present(share))

    assert min(shares["echo"]) > EXPLAINED
    assert np.median(shares["both"]) < EXPLAINED


def test_nothing_is_said_before_enough_was_heard():
    levels = EchoLevels()
    some = np.ones((LEAST_FRAMES - 1, 14))
    levels.learn(some, some)
    assert levels.explained(some, some) is None

    # What is heard while nothing is played says nothing about echoes.
    levels.learn(some, 0 * some)
    assert levels.explained(some, some) is None
    levels.learn(some[:1], some[:1])
    assert levels.explained(some, some) == 1.0
    assert levels.explained(some, 0 * some) == 0.0
    assert levels.explained(0 * some, some) is None


def test_what_is_heard_later_counts_too():
    levels = EchoLevels()
    some = np.ones((LEAST_FRAMES, 14))
    levels.learn(some, some)
    assert levels.explained(9 * some, some) == 0.0

    levels.learn(9 * some, some)
    assert levels.explained(9 * some, some) == 1.0


def test_the_most_of_the_time_before_is_held():
    powers = np.zeros((20, 14))
    powers[4] = 3.0
    found = held(powers, 20)[:, 0]

    assert found.tolist() == [0.0] * 4 + [3.0] * 15 + [0.0]
    assert held(powers[:3], 5).shape == (5, 14)
