"""The bundled voice follows the pitch of a reference."""

import numpy as np
import pytest

from parley.media.pcm import OUTPUT_RATE_HZ, Pcm
from parley.models import pocket_data
from parley.models.cascade.voice.pitch import pitch_track
from parley.models.cascade.voice.speaker import UNREADABLE, OwnSpeaker
from parley.settings import ModelSettings

WORDS = "The small fox lost its way in the snow, and the owl flew ahead of it."


@pytest.fixture(scope="module")
def speaker() -> OwnSpeaker:
    folder = pocket_data.folder(ModelSettings(name="cascade"))
    assert folder is not None
    return OwnSpeaker(folder)


def buzz(hertz: float) -> Pcm:
    """Two seconds of a voice-like sound."""
    time = np.arange(2 * OUTPUT_RATE_HZ) / OUTPUT_RATE_HZ
    parts = [np.sin(2 * np.pi * n * hertz * time) / n for n in range(1, 12)]
    tones = np.sum(parts, axis=0)
    return Pcm((0.1 * tones).astype(np.float32), OUTPUT_RATE_HZ)


def pitch_of(samples: np.ndarray) -> float:
    track = pitch_track(samples, OUTPUT_RATE_HZ)
    return float(np.median(track[track > 0]))


@pytest.mark.parametrize("hertz", [88, 102, 120, 140, 155, 170, 190, 220, 250])
def test_an_answer_has_the_pitch_of_the_reference(speaker, hertz):
    reference = buzz(hertz)
    voice = speaker.find(reference)

    assert pitch_of(reference.samples) == pytest.approx(hertz, abs=4)
    assert pitch_of(speaker.say(WORDS, voice)) == pytest.approx(hertz, rel=0.09)


def test_a_clause_that_was_said_is_not_made_again(speaker):
    assert speaker.say(WORDS, 0) is speaker.say(WORDS, 0)
    assert len(speaker.say(WORDS, 1)) != len(speaker.say(WORDS, 0))


def test_a_reference_without_a_voice_changes_nothing(speaker):
    silence = Pcm(np.zeros(OUTPUT_RATE_HZ, np.float32), OUTPUT_RATE_HZ)

    assert speaker.find(silence) == speaker.find(None)


@pytest.mark.parametrize("clause", ["Привет, как дела?", "你好，世界。", "हाँ, ठीक है"])
def test_words_in_another_script_are_mentioned_instead_of_silence(speaker, clause):
    assert np.array_equal(speaker.say(clause, 0), speaker.say(UNREADABLE, 0))


def test_signs_alone_are_silent(speaker):
    assert [len(speaker.say(clause, 0)) for clause in ("🎉", "---", "|---|", "...")] == [0] * 4
