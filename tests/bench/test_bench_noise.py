"""`parley bench noise`: its measures with the real detector, and what it calls a miss."""

from collections.abc import Sequence

import pytest
from tests.support.noises import VOICES, spoken

from parley.cli.bench import noise
from parley.cli.bench.duplex_material import own
from parley.cli.bench.noise import POLICIES, NoiseOutcome, as_line, as_table, measure, rows
from parley.errors import SetupError
from parley.media.pcm import INPUT_RATE_HZ, Pcm, Samples
from parley.media.wav import encode_wav
from parley.turns import TurnJudges
from parley.vad.silero import SileroModel


def words(sentences: Sequence[str], voices: Sequence[int]) -> tuple[Samples, ...]:
    return tuple(spoken(sentence, VOICES[voices[0]]) for sentence in sentences)


@pytest.mark.timeout(120)
def test_noise_and_acknowledgements_stop_nothing_and_sentences_do(monkeypatch):
    monkeypatch.setattr(noise, "bundled_words", words)
    monkeypatch.setattr(noise, "ACKNOWLEDGEMENTS", noise.ACKNOWLEDGEMENTS[:2])
    monkeypatch.setattr(noise, "INTERRUPTIONS", noise.INTERRUPTIONS[:1])

    found = measure(SileroModel(), POLICIES["ignore"], 0.35)

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


@pytest.mark.timeout(120)
def test_recordings_of_ones_own_are_measured_against_the_aims(tmp_path, monkeypatch):
    said = {
        "turns": ("Tell me a story about a fox who could not sleep at night, please.",),
        "others": noise.SENTENCES[:2],
        "commands": ("Stop!",),
    }
    for folder, sentences in said.items():
        (tmp_path / folder).mkdir()
        for number, sentence in enumerate(sentences):
            sound = Pcm(spoken(sentence, VOICES[folder == "others"]), INPUT_RATE_HZ)
            (tmp_path / folder / f"{number}.wav").write_bytes(encode_wav(sound))
    monkeypatch.setattr(noise, "PAUSES_MS", (300, 1500))
    with pytest.raises(SetupError, match=r"needs WAV files in turns/ and in others/"):
        noise.noise(folder=tmp_path / "turns")

    # Without a judge 800 ms of silence end a turn.
    found = {row.name: row for row in rows(own(tmp_path), SileroModel(), TurnJudges(), 0.05)}

    assert found["another person, 20 dB softer"].found == "0 in 0.05 min"
    assert found["own echo, clean, 10 dB softer"].found == "0 in 0.05 min"
    assert found["commands that stop it"].found == "0 of 1"
    assert found["interruptions"].found.startswith("1 of 1, ")
    assert found["cut by a pause of 300 ms"].found == "0 of 1"
    assert found["cut by a pause of 1500 ms"].found == "1 of 1"
    assert 700 < float(found["quiet before an answer"].found.split()[0]) < 1000
    assert "1 in 10 min" in as_table(list(found.values()))
