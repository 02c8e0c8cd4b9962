from random import Random

import numpy as np
import pytest
from training.dialogue import Turn
from training.utterances import Utterance

from training import timeline

HELLO = Turn("greet", "hello", "Hello, how can I help you?")
SUM = Turn("arithmetic", "what is seven plus five", "Seven plus five is twelve.")


def tone(seconds):
    """Speech of a given length without a synthesiser."""

    def say(turn, random):
        wave = (0.3 * np.sin(np.arange(int(seconds * 16_000)) / 9)).astype(np.float32)
        return Utterance(wave, (5, 6), None, 0.0, seconds)

    return say


@pytest.mark.parametrize("seed", range(12))
def test_an_answer_starts_in_the_first_unit_that_has_seen_the_question_settle(seed):
    line = timeline.make(
        Random(seed), [HELLO], say=tone(1.3), forced=0, interrupt=False, pause=False
    )

    (_, ends, _), kinds = line.questions[0], [d.kind for d in line.decisions]
    start = kinds.index("start")

    assert start + 1 >= ends + timeline.SETTLED_S
    assert start < ends + timeline.SETTLED_S
    assert set(kinds[:start]) == {"listen"}


@pytest.mark.parametrize("seed", range(12))
def test_an_interruption_stops_the_answer_and_is_answered_itself(seed):
    line = timeline.make(
        Random(seed), [HELLO, SUM], say=tone(1.3), forced=0, interrupt=True, pause=False
    )

    kinds = [d.kind for d in line.decisions]
    begins = line.questions[1][0]
    if "stop" in kinds:
        stop = kinds.index("stop")
        assert stop + 1 >= begins + timeline.NOTICED_S
        assert stop < begins + timeline.NOTICED_S
    assert line.decisions[[i for i, k in enumerate(kinds) if k == "start"][1]].turn == SUM


def test_noise_alone_is_never_answered():
    line = timeline.make(Random(3), [], noise_only=True)

    assert {d.kind for d in line.decisions} == {"listen"}
    assert len(line.samples) == 16_000 * line.units


def test_a_pause_inside_a_question_is_not_its_end():
    line = timeline.make(Random(1), [SUM], say=tone(0.9), forced=0, pause=True)

    begins, ends, _ = line.questions[0]
    start = [d.kind for d in line.decisions].index("start")

    assert ends - begins > 2 * 0.9 + 0.4
    assert start + 1 >= ends


def test_the_first_part_of_a_split_question_cannot_be_answered():
    random = Random(0)

    for _ in range(50):
        parts = timeline.split_turn(SUM, random)
        if parts is not None:
            head, tail = parts
            assert f"{head.heard} {tail.heard}" == SUM.heard
            assert not tail.heard.startswith("what")
            assert "five" not in head.heard


def test_forced_units_listen_and_teach_nothing():
    line = timeline.make(Random(2), [HELLO], say=tone(0.4), forced=3)

    assert all(d.kind == "listen" and d.is_forced for d in line.decisions[:3])
    assert line.decisions[3].kind == "start"
