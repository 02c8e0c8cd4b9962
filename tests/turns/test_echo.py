"""The echo of what is played: how alike two sounds are, when they have to be compared; and
the level of an echo per band."""

import functools

import numpy as np
import pytest
from tests.support import noises
from tests.support.cpu_time import takes_less_than
from tests.support.present import present

from parley.cli.bench.noises import at_level, in_room
from parley.cli.bench.people import overdriven
from parley.media.pcm import INPUT_RATE_HZ, Pcm
from parley.media.resample import resample
from parley.turns.echo import WAITING_S, PlayedSound, likeness
from parley.turns.echo_levels import (
    EXPLAINED,
    LEAST_FRAMES,
    EchoLevels,
    held,
    powers_of,
    powers_of_slow,
)


def heard(samples: np.ndarray, at_s: float) -> np.ndarray:
    """The microphone at that time: 384 ms that end there, 20 dB below what was played."""
    end = round(at_s * INPUT_RATE_HZ)
    return 0.1 * samples[end - 6144 : end]


def test_a_copy_is_alike_at_any_delay_and_level_and_another_voice_is_not():
    played = noises.talk(5.0)[::4]
    copy = 0.03 * played[7000:8500]

    alike, end = likeness(copy, played)
    assert alike > 0.99
    assert end == 8500
    assert likeness(noises.talk(0.4, "en-us", start=3)[::4], played)[0] < 0.5
    assert likeness(np.zeros(100, np.float32), played) == (0.0, 0)
    assert likeness(copy, played[:100]) == (0.0, 0)


def test_an_echo_is_looked_for_where_it_can_be():
    talk = noises.talk(8.0)
    played = PlayedSound()
    # All of it is sent immediately, as a fast model does.
    played.play(noises.pcm(talk), 100.0)
    begin = heard(talk, 0.5)

    assert played.is_heard_in(begin, 100.5)
    assert played.is_heard_in(begin + np.float32(0.05), 100.5)  # as of a microphone that adds it
    assert played.is_heard_in(begin, 104.0)
    assert not played.is_heard_in(heard(talk, 5.5), 101.0)
    assert not played.is_heard_in(begin, 108.0)


def blurred(samples: np.ndarray, at_s: float, share: float) -> np.ndarray:
    """As `heard`, with so much of its power from somewhere else."""
    echo = heard(samples, at_s)
    rest = np.random.default_rng(1).standard_normal(len(echo))
    # Noise that has the spectrum of the echo.
    rest = np.fft.irfft(np.fft.rfft(rest) * np.abs(np.fft.rfft(echo)), len(echo))
    rest *= np.linalg.norm(echo) / np.linalg.norm(rest)
    return (np.sqrt(1 - share) * echo + np.sqrt(share) * rest).astype(np.float32)


def test_what_is_only_somewhat_alike_is_an_echo_where_one_is_to_be_expected():
    talk = noises.talk(8.0)
    played = PlayedSound()
    played.play(noises.pcm(talk), 100.0)
    somewhat = blurred(talk, 1.5, 0.4)

    assert played.is_heard_in(somewhat, 101.8)
    assert not played.is_heard_in(somewhat, 104.5)
    # Two that are sure tell where they come from.
    assert played.is_heard_in(heard(talk, 0.9), 103.9)
    assert not played.is_heard_in(somewhat, 104.5)
    assert played.is_heard_in(heard(talk, 1.0), 104.0)
    assert played.is_heard_in(somewhat, 104.5)
    assert not played.is_heard_in(somewhat, 105.0)


def test_an_echo_comes_soon_where_the_client_says_what_it_has_played():
    talk = noises.talk(8.0)
    played = PlayedSound()
    played.play(noises.pcm(talk), 100.0)
    played.move(2.0)

    assert played.is_heard_in(heard(talk, 1.5), 103.8)
    assert not played.is_heard_in(heard(talk, 1.5), 104.5)
    assert not played.is_heard_in(heard(talk, 1.5), 102.5)


def test_the_first_moment_after_a_pause_has_an_echo():
    talk = noises.talk(2.0)
    played = PlayedSound()
    for start_s in (0.0, 3.0):
        played.play(noises.pcm(talk), start_s)
        quiet = noises.room(0.5)[: 6144 - 1024]

        begin = np.concatenate([quiet, 0.1 * talk[:1024]])
        assert played.is_heard_in(begin, start_s + 0.064)


def test_what_was_cut_has_no_echo():
    talk = noises.talk(4.0)
    played = PlayedSound()
    played.play(noises.pcm(talk[: 3 * INPUT_RATE_HZ]), 0.0)
    played.play(noises.pcm(talk[3 * INPUT_RATE_HZ :]), 3.0)
    played.cut(2.0)

    assert played.is_heard_in(heard(talk, 1.5), 1.6)
    assert not played.is_heard_in(heard(talk, 3.0), 3.0)
    assert not played.is_heard_in(heard(talk, 3.9), 3.9)


def test_what_is_remembered_is_bounded_and_costs_little():
    played = PlayedSound()
    for tenth in range(10 * (round(WAITING_S) + 50)):
        played.play(Pcm.silence(INPUT_RATE_HZ // 10, INPUT_RATE_HZ), tenth / 10)

    assert sum(len(piece.samples) for piece in played._pieces) <= WAITING_S * 4000
    assert takes_less_than(0.05, lambda: listen_quietly(played, 100.0, 103.2))


def listen_quietly(played: PlayedSound, start_s: float, end_s: float) -> None:
    for index in range(round((end_s - start_s) / 0.032)):
        starts_s = start_s + 0.032 * index
        played.hear(np.zeros(512, np.float32), starts_s, starts_s + 0.032, is_loud=False)


def test_where_nothing_was_heard_of_what_was_played_only_a_sure_echo_is_one():
    talk = noises.talk(8.0)
    played = PlayedSound()
    played.play(noises.pcm(talk), 100.0)
    somewhat, copy = blurred(talk, 1.5, 0.4), heard(talk, 1.5)

    listen_quietly(played, 100.1, 101.8)
    assert not played.is_heard_in(somewhat, 101.8)
    assert played.is_heard_in(copy, 101.8)


def test_what_is_not_heard_while_nothing_is_played_says_nothing_about_echoes():
    talk = noises.talk(2.0)
    played = PlayedSound()
    listen_quietly(played, 95.0, 100.0)
    played.play(noises.pcm(talk), 100.0)
    listen_quietly(played, 100.0, 100.5)

    assert played.is_heard_in(blurred(talk, 0.5, 0.4), 100.5)


talk = functools.cache(noises.talk)
WAYS = {
    "dry": lambda dry: dry,
    "room": lambda dry: in_room(dry, 0.9, direct_db=0.0),
    "overdriven": lambda dry: in_room(overdriven(dry), 0.6, direct_db=0.0),
}
FRAME = 512
SIX_S = 187 * FRAME


def learnt(way: str, delay_ms: int, softer_db: float) -> tuple[EchoLevels, np.ndarray, np.ndarray]:
    """Levels of six seconds of echo; the echo of three more, and what is expected there."""
    played = talk(9.0, "en-us")
    late = np.concatenate([np.zeros(16 * delay_ms, np.float32), WAYS[way](played)])[: len(played)]
    back = at_level(late, -26.0 - softer_db) + noises.room(9.0)[: len(played)]
    slow = resample(Pcm(played, 16_000), 4000).samples
    expected = held(powers_of_slow(slow), len(played) // FRAME)
    levels = EchoLevels()
    levels.learn(powers_of(back[:SIX_S]), expected[: SIX_S // FRAME])
    return levels, back[SIX_S:], expected[SIX_S // FRAME :]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("delay_ms", "softer_db"), [(50, 10.0), (300, 10.0), (150, 20.0)])
def test_an_echo_is_accounted_for_and_a_person_who_speaks_over_it_is_not(
    way: str, delay_ms: int, softer_db: float
):
    levels, back, expected = learnt(way, delay_ms, softer_db)
    both, theirs = back.copy(), talk(3.0, "en")
    both[: len(theirs)] += at_level(theirs, -26.0)[: len(both)]
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
