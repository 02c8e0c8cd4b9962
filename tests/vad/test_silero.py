import os
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.support.noises import VOICES
from tests.support.programs import python
from tests.support.speech import say
from tests.support.timeline import click, silence, sound, speak

from parley.errors import SetupError
from parley.media.pcm import Pcm, join
from parley.vad import SpeechEnded, UtteranceFinder
from parley.vad.base import WINDOW_SAMPLES
from parley.vad.silero import SileroDetector, SileroModel, model_path


class ScriptedModel(SileroModel):
    """A network that hears what it is told to."""

    def __init__(self, *probabilities: float) -> None:
        self._probabilities = np.array(probabilities, np.float32)

    def run(self, hops, state):
        return self._probabilities, state


@pytest.mark.parametrize("halves", [(0.9, 0.1), (0.1, 0.9)])
def test_a_window_is_as_likely_speech_as_the_likelier_of_its_halves(halves):
    detector = SileroDetector(ScriptedModel(*halves))

    assert detector.probabilities(np.zeros((1, WINDOW_SAMPLES), np.float32)) == [pytest.approx(0.9)]


@pytest.fixture(scope="module")
def silero() -> SileroModel:
    return SileroModel()


def windows_of(pcm: Pcm):
    return pcm.samples[: len(pcm) // WINDOW_SAMPLES * WINDOW_SAMPLES].reshape(-1, WINDOW_SAMPLES)


def probabilities(detector, pcm: Pcm, at_once: int = 1) -> list[float]:
    windows = windows_of(pcm)
    return [
        probability
        for start in range(0, len(windows), at_once)
        for probability in detector.probabilities(windows[start : start + at_once])
    ]


def found(silero: SileroModel, *parts: Pcm):
    events = UtteranceFinder(silero()).feed(join(parts, 16_000))
    return [e.utterance for e in events if isinstance(e, SpeechEnded) and e.utterance is not None]


def test_a_spoken_sentence_is_one_utterance_of_its_length(silero):
    sentence = say("Good morning, how is the weather in Paris today?")

    (utterance,) = found(silero, sound(silence(1)), sentence, sound(silence(1.5)))

    assert utterance.speech_ms == pytest.approx(sentence.duration_ms, abs=500)
    assert 1000 - 330 <= utterance.start_sample / 16 <= 1000 + 330


@pytest.mark.parametrize(
    "noise",
    [
        pytest.param(sound(silence(4)), id="silence"),
        pytest.param(sound(silence(1), click(0.1), silence(2)), id="click"),
        pytest.param(sound(silence(1), speak(2), silence(1)), id="tone"),
        pytest.param(
            Pcm(
                (0.05 * np.random.default_rng(7).standard_normal(64_000)).astype(np.float32),
                16_000,
            ),
            id="hiss",
        ),
    ],
)
def test_what_is_not_a_voice_is_not_an_utterance(silero, noise):
    assert found(silero, noise) == []


def test_conversations_on_one_network_do_not_hear_each_other(silero):
    speech = say("One conversation talks about music.")
    quiet = Pcm.silence(len(speech), 16_000)
    alone = probabilities(silero(), speech)

    detector, other = silero(), silero()
    together = []
    for loud, silent in zip(windows_of(speech), windows_of(quiet), strict=True):
        together += detector.probabilities(loud[np.newaxis])
        assert other.probabilities(silent[np.newaxis])[0] < 0.3

    assert together == alone


def test_reset_makes_a_detector_new(silero):
    speech = say("Say it again.")
    detector = silero()
    first = probabilities(detector, speech)

    detector.reset()

    assert probabilities(detector, speech) == first


def test_finding_the_network_does_not_import_the_package_that_ships_it():
    assert model_path().is_file()
    assert "silero_vad" not in sys.modules


@pytest.mark.parametrize("at_once", [2, 5, 32])
def test_windows_heard_together_are_heard_as_one_by_one(silero, at_once):
    speech = say("However many windows come at once, they are the same to the last bit.")

    assert probabilities(silero(), speech, at_once) == probabilities(silero(), speech)


def test_it_is_the_network_that_silero_publishes_for_one_window_at_a_time(silero):
    import onnxruntime

    published = onnxruntime.InferenceSession(str(model_path().parent / "silero_vad.onnx"))
    samples = say("The same words, heard by both of them.").samples
    hops = np.lib.stride_tricks.sliding_window_view(samples, 576)[::512].copy()
    state, heard = np.zeros((2, 1, 128), np.float32), []
    for hop in hops:
        probability, state = published.run(
            None, {"input": hop[np.newaxis], "state": state, "sr": np.array(16_000, np.int64)}
        )
        heard.append(float(probability[0, 0]))

    silent = np.zeros((1, 1, 128), np.float32)
    assert silero.run(hops, (silent, silent))[0].tolist() == heard


def without_fundamental(pcm: Pcm) -> Pcm:
    """As by telephone: 400 to 3400 Hz."""
    spectrum = np.fft.rfft(pcm.samples)
    hz = np.fft.rfftfreq(len(pcm.samples), 1 / 16_000)
    spectrum[(hz < 400) | (hz > 3400)] = 0
    return Pcm(np.fft.irfft(spectrum, len(pcm.samples)).astype(np.float32), 16_000)


def test_the_fundamental_that_a_telephone_leaves_out_is_made_up(silero, monkeypatch):
    said = [say("Could you please tell me when the next train leaves?", v) for v in VOICES]
    narrow = [without_fundamental(one) for one in said]

    def windows_heard() -> int:
        return sum(p > 0.8 for one in narrow for p in probabilities(silero(), one))

    heard = windows_heard()
    monkeypatch.setattr("parley.vad.silero.NARROW_SHARE", 0)
    deaf = windows_heard()
    assert heard > 1.05 * deaf, (heard, deaf)


def test_a_network_with_unknown_inputs_is_refused_with_both_facts():
    other = model_path().parent / "silero_vad.onnx"

    with pytest.raises(SetupError, match=r"\['input', 'sr', 'state'\].*knows c, h and input"):
        SileroModel(other)


def test_onnx_runtime_collects_nothing_for_its_maker(tmp_path: Path) -> None:
    """It would keep an identifier of the machine and a database of events in the cache."""
    program = "from parley.vad.silero import SileroModel; SileroModel()"
    inherited = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}

    done = python("-c", program, env={**inherited, "HOME": str(tmp_path)})

    assert done.returncode == 0, done.stderr
    assert not list(tmp_path.rglob("*"))
