from pathlib import Path

import numpy as np
import pytest

from parley.media.pcm import Pcm, Samples
from parley.media.wav import decode_wav
from parley.protocol.values import VadOptions
from parley.vad import SpeechBegan, UtteranceFinder
from parley.vad.base import RATE_HZ, WINDOW_SAMPLES, restore, snapshot
from parley.vad.deferring import AT_ONCE, PAUSE_S, DeferringDetector, deferring
from parley.vad.silero import SileroModel

SPEECH = Path(__file__).parents[2] / "examples" / "questions.wav"
MESSAGE = RATE_HZ // 10


class Network:
    """Counts what it hears; louder windows are likelier speech."""

    def __init__(self, settled: float = 0.001) -> None:
        self.runs: list[int] = []
        self.levels: list[float] = []
        self._settled = settled

    def probabilities(self, windows: Samples) -> list[float]:
        levels = [float(window[0]) for window in windows]
        self.runs.append(len(levels))
        self.levels += levels
        return [max(level, self._settled) for level in levels]

    def reset(self) -> None:
        self.runs, self.levels = [], []

    def snapshot(self) -> list[float]:
        return list(self.levels)

    def restore(self, kept: list[float]) -> None:
        self.levels = list(kept)


def windows(*levels: float) -> Samples:
    return np.outer(levels, np.resize([1, -1], WINDOW_SAMPLES)).astype(np.float32)


@pytest.fixture(scope="module")
def silero() -> SileroModel:
    return SileroModel()


STILL = 0.0001
LOUD = 0.5
PAUSE = int(PAUSE_S * RATE_HZ / WINDOW_SAMPLES)


def test_still_windows_are_heard_in_one_run_when_there_are_enough():
    network = Network()
    detector = DeferringDetector(network)

    for _ in range(1 + 2 * AT_ONCE):
        (probability,) = detector.probabilities(windows(STILL))
        assert probability == pytest.approx(0.001)

    assert network.runs == [1, AT_ONCE, AT_ONCE]


def test_nothing_waits_and_no_pause_begins_until_the_network_is_sure_that_nobody_speaks():
    network = Network(settled=0.02)
    detector = DeferringDetector(network)

    for _ in range(2 * PAUSE):
        detector.probabilities(windows(STILL))

    assert network.runs == [1] * 2 * PAUSE


def test_a_pause_is_heard_for_its_first_seconds():
    network = Network()
    detector = DeferringDetector(network)

    for _ in range(3 * PAUSE):
        assert detector.probabilities(windows(STILL)) == pytest.approx([0.001])
    heard = len(network.levels)
    loud = detector.probabilities(windows(STILL, LOUD))

    assert heard == PAUSE
    assert loud == pytest.approx([0.001, LOUD])
    assert network.levels[heard:] == pytest.approx([LOUD])


def test_snapshots_change_nothing_of_what_is_heard():
    rng = np.random.default_rng(7)
    levels = np.where(rng.random(800) < 0.02, 0.02 + 0.5 * rng.random(800), STILL)
    levels[200:400] = STILL
    plain, kept, moved = Network(), Network(), Network()
    here, there = DeferringDetector(plain), DeferringDetector(kept)

    for index, level in enumerate(levels):
        expected = here.probabilities(windows(level))
        if index % 3 == 0:
            taken = snapshot(there)
            if index % 9 == 0:
                moved = Network()
                there = DeferringDetector(moved)
                restore(there, taken)
        assert there.probabilities(windows(level)) == expected

    snapshot(here), snapshot(there)
    assert len(plain.levels) < 600
    assert moved.levels == plain.levels


def telephone(samples: Samples) -> Samples:
    """300 to 3400 Hz, as many levels as 8 bits of mu-law."""
    spectrum = np.fft.rfft(samples)
    hz = np.fft.rfftfreq(len(samples), 1 / RATE_HZ)
    spectrum[(hz < 300) | (hz > 3400)] = 0
    narrow = np.clip(np.fft.irfft(spectrum, len(samples)), -1, 1)
    coded = np.round(127 * np.sign(narrow) * np.log1p(255 * np.abs(narrow)) / np.log(256)) / 127
    return (np.sign(coded) * (256 ** np.abs(coded) - 1) / 255).astype(np.float32)


def noise(count: int, dbfs: float) -> Samples:
    rng = np.random.default_rng(4)
    return (10 ** (dbfs / 20) * rng.standard_normal(count)).astype(np.float32)


def boundaries(detectors, samples: Samples) -> list[tuple[bool, int]]:
    finder = UtteranceFinder(detectors(), VadOptions(threshold=0.5, min_silence_duration_ms=500))
    return [
        (isinstance(event, SpeechBegan), event.at_sample // WINDOW_SAMPLES)
        for start in range(0, len(samples), MESSAGE)
        for event in finder.feed(Pcm(samples[start : start + MESSAGE], RATE_HZ))
    ]


@pytest.mark.parametrize("sound", ["clean", "soft", "noisy", "telephone", "constant"])
def test_speech_begins_and_ends_where_it_does_without_waiting(silero, sound):
    speech = decode_wav(SPEECH.read_bytes())
    spoken = np.concatenate([np.zeros(5 * RATE_HZ, np.float32), speech.samples])
    samples = {
        "clean": spoken,
        "soft": 0.03 * spoken + noise(len(spoken), -75),
        "noisy": 0.3 * spoken + noise(len(spoken), -45),
        "telephone": telephone(spoken),
        # As cheap microphones add.
        "constant": 0.1 * spoken + np.float32(0.1),
    }[sound]

    plain, deferred = (boundaries(each, samples) for each in (silero, deferring(silero)))

    assert [began for began, _ in deferred] == [began for began, _ in plain]
    assert len(plain) >= 4
    for (_, here), (_, there) in zip(deferred, plain, strict=True):
        assert abs(here - there) <= 1


def test_what_can_be_speech_is_as_likely_as_without_waiting_to_the_last_bit(silero):
    # One utterance: the pause before the next one is too long to be heard whole.
    speech = decode_wav(SPEECH.read_bytes()).samples[: 5 * RATE_HZ]
    samples = np.concatenate([np.zeros(RATE_HZ, np.float32), speech])
    each = samples[: len(samples) // WINDOW_SAMPLES * WINDOW_SAMPLES].reshape(-1, WINDOW_SAMPLES)
    plain, detector = silero(), deferring(silero)()

    heard = [(plain.probabilities(w[None])[0], detector.probabilities(w[None])[0]) for w in each]

    loud = [pair for pair, w in zip(heard, each, strict=True) if np.sqrt(np.mean(w**2)) > 0.001]
    assert len(loud) > 20
    assert all(here == there for here, there in loud)
