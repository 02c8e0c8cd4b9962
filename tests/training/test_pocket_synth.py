"""The synthesisers, where they are installed."""

from random import Random

import numpy as np
import pytest
from training.dialogue import Turn
from training.synth import Voice

from training import own_voice, sound, synth, utterances

ENGINES = synth.available_engines()
needs_espeak = pytest.mark.skipif("espeak" not in ENGINES, reason="espeak-ng is not installed")
needs_flite = pytest.mark.skipif("flite" not in ENGINES, reason="flite is not installed")


@needs_espeak
def test_espeak_speaks_and_tells_its_phones():
    said = synth.speak("hello there", Voice("espeak", "en-us", 1.0, 50, 50))

    names = [utterances.phone_index(phone.name) for phone in said.phones]
    assert 0.4 < len(said.samples) / 16_000 < 2
    assert names[:3] == [utterances.phone_index(p) for p in ("h", "ə", "l")]
    starts = [phone.start_s for phone in said.phones]
    assert starts == sorted(starts)


@needs_flite
def test_the_own_voice_tells_when_each_word_ends():
    said = own_voice.say("The capital of France is Paris.")

    assert [word.text for word in said.words] == ["the", "capital", "of", "france", "is", "paris"]
    assert len(said.samples) == said.codes * 960
    assert 30 < said.words[-1].ends < said.codes
    assert said.mel().shape == (4 * said.codes, 80)


@needs_espeak
def test_an_utterance_is_labelled_frame_by_frame():
    turn = Turn("greet", "hello there", "Hello.")

    said = utterances.say(
        Random(1), turn, voice=Voice("espeak", "en-us", 1.0, 50, 50), lead_s=0.5, tail_s=0.5,
        is_clean=True,
    )  # fmt: skip

    frames = said.frames
    assert frames is not None
    assert abs(len(frames) - len(said.samples) / 320) <= 1
    assert (frames[:20] == utterances.SILENCE).all()
    assert len(said.phones) >= 6
    # Trailing zeros may belong to the last phone, the middle is all speech.
    assert (frames[30:50] != utterances.SILENCE).mean() > 0.8


def test_noise_has_the_level_that_was_asked_for():
    t = np.arange(32_000) / 16_000
    tone = (0.3 * np.sin(2 * np.pi * 300 * t)).astype(np.float32)

    noisy = sound.add_noise(tone, sound.noise(len(tone), Random(2)), 10.0)

    ratio = (tone**2).mean() / ((noisy - tone) ** 2).mean()
    assert abs(10 * np.log10(ratio) - 10) < 1


def test_a_warp_changes_length_and_pitch_together():
    t = np.arange(16_000) / 16_000
    tone = np.sin(2 * np.pi * 400 * t).astype(np.float32)

    faster = sound.warp(tone, 1.25)

    peak = np.abs(np.fft.rfft(faster)).argmax() * 16_000 / len(faster)
    assert len(faster) == pytest.approx(12_800, abs=2)
    assert peak == pytest.approx(500, abs=3)


@pytest.mark.parametrize("seed", range(6))
def test_a_place_keeps_length_and_range(seed):
    t = np.arange(16_000) / 16_000
    tone = np.sin(2 * np.pi * 400 * t).astype(np.float32)

    heard = sound.in_a_place(tone, Random(seed))

    assert heard.dtype == np.float32
    assert len(heard) == len(tone)
    assert 0.01 < np.abs(heard).max() < 4


def test_features_are_those_of_the_server():
    from parley.models.minicpmo45.audio import MelExtractor

    wave = np.random.default_rng(0).standard_normal(32_000).astype(np.float32) * 0.1

    mel, frames = sound.log_mel([wave], is_floored=[True])

    theirs = MelExtractor().whole(wave).T
    assert int(frames[0]) == 200
    assert np.abs((mel[0, :198] - theirs[:198]).numpy()).max() < 1e-3
