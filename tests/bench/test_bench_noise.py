"""`parley bench noise`: its measures with the real detector, and what it calls a miss."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tests.support.noises import VOICES, spoken

from parley.cli.bench import noise
from parley.cli.bench.noise import POLICIES, NoiseOutcome, as_line, measure
from parley.media.pcm import Samples
from parley.vad.silero import SileroModel


def words(sentences: Sequence[str], voices: Sequence[int]) -> tuple[Samples, ...]:
    return tuple(spoken(sentence, VOICES[voices[0]]) for sentence in sentences)


@pytest.mark.timeout(120)
def test_noise_and_acknowledgements_stop_nothing_and_sentences_do(monkeypatch):
    monkeypatch.setattr(noise, "bundled_words", words)
    monkeypatch.setattr(noise, "ACKNOWLEDGEMENTS", noise.ACKNOWLEDGEMENTS[:2])
    monkeypatch.setattr(noise, "INTERRUPTIONS", noise.INTERRUPTIONS[:1])

    found = measure(SileroModel(), POLICIES["ignore"], 0.2)

    noises = ("coughs", "music", "crowd", "echo", "echo in a room", "late echo")
    assert found.stops == dict.fromkeys(noises, 0)
    assert found.acknowledged == (0, 4)
    assert found.stopped == (10, 10)
    assert min(found.onset_ms) > 800
    assert found.misses() == []


def test_more_than_one_stop_in_ten_minutes_or_in_twenty_words_is_a_miss():
    one = NoiseOutcome({"coughs": 1, "music": 2, "echo": 0}, 10.0, (2, 20), (1, 1), [900.0])

    assert one.misses() == ["music: 2 stops in 10 minutes", "2 of 20 acknowledgements stop"]
    assert "2 of 20 acknowledgements stop; 1 of 1 sentences stop, after 900 / 900 ms" in as_line(
        one
    )
