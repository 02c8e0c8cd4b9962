import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.present import present
from tests.support.timeline import (
    Part,
    Script,
    chunks,
    click,
    murmur,
    silence,
    sound,
    speak,
    windows,
)

from parley.media.pcm import Pcm, join
from parley.protocol.values import VadOptions
from parley.vad import SpeechBegan, SpeechEnded, UtteranceFinder
from parley.vad.base import HALF_SAMPLES, WINDOW_SAMPLES

WINDOW_MS = 64


def ramp(samples: int) -> Pcm:
    """Sound in which every sample reports its position."""
    return Pcm(np.arange(samples, dtype=np.float32), 16_000)


DEFAULTS = VadOptions()


def hear(*parts: Part, options: VadOptions = DEFAULTS, chunk_s: float = 0.5):
    """The events of a scripted timeline, and the finder."""
    finder = UtteranceFinder(Script(*parts), options)
    total = sum(round(part.seconds * 16_000) for part in parts)
    events = []
    for chunk in chunks(ramp(total + WINDOW_SAMPLES), chunk_s):
        events += finder.feed(chunk)
    return events, finder


def utterances(events):
    return [e.utterance for e in events if isinstance(e, SpeechEnded) and e.utterance is not None]


def test_one_utterance_begins_where_the_voice_does_and_ends_where_the_pause_began():
    events, finder = hear(windows(20, 0.0), windows(30, DEFAULTS.threshold), windows(13, 0.0))

    (said,) = utterances(events)
    assert events == [SpeechBegan(20 * WINDOW_SAMPLES), SpeechEnded(50 * WINDOW_SAMPLES, said)]
    assert not finder.is_speaking
    # Padding counts on both sides, the silence behind it does not.
    assert said.speech_ms == 30 * WINDOW_MS + 2 * 30
    # Sound from before the trigger belongs to it.
    samples = said.pcm.samples
    assert samples[0] == 20 * WINDOW_SAMPLES - 300 * 16
    assert samples[-1] == 50 * WINDOW_SAMPLES + 30 * 16 - 1
    assert np.all(np.diff(samples) == 1)


@pytest.mark.parametrize(("unsure", "counted"), [(10, 10), (40, 24)])
def test_a_whisper_that_the_detector_is_slow_to_believe_is_kept_from_its_first_sound(
    unsure, counted
):
    parts = (windows(20, 0.1), windows(unsure, 0.3), windows(30, 0.9), windows(13, 0.0))
    events, _ = hear(*parts)

    (said,) = utterances(events)
    begins = (20 + unsure) * WINDOW_SAMPLES
    assert events[0] == SpeechBegan(begins)
    assert said.speech_ms == 30 * WINDOW_MS + 2 * 30
    first = said.pcm.samples[0]
    assert first == begins - min(1500 * 16, counted * WINDOW_SAMPLES) - 300 * 16


def test_nothing_is_likely_while_a_person_speaks_or_has_only_clicked():
    for parts in ((windows(20, 0.95),), (windows(1, 0.95), windows(8, 0.0))):
        _, finder = hear(*parts)

        assert finder.likely(240) is None


def test_pre_roll_stops_at_the_beginning_of_the_sound():
    events, _ = hear(windows(1, 0.0), windows(30, 0.95), windows(13, 0.0))

    assert utterances(events)[0].pcm.samples[0] == 0


@pytest.mark.parametrize(
    ("parts", "options", "ended"),
    [
        pytest.param((windows(10, 0.95), windows(12, 0.0), windows(10, 0.95)), DEFAULTS, None,
                     id="a pause shorter than the minimum"),
        pytest.param((windows(10, 0.95), windows(8, 0.0), windows(1, 0.65), windows(8, 0.0),
                      windows(5, 0.95)), DEFAULTS, None, id="a murmur within the hysteresis"),
        pytest.param((windows(10, 0.95), windows(8, 0.0), windows(1, 0.64), windows(8, 0.0)),
                     DEFAULTS, 1, id="a murmur below it"),
        pytest.param((windows(2, 0.95), windows(13, 0.0)), DEFAULTS, 1, id="as short as may be"),
        pytest.param((windows(1, 0.95), windows(14, 0.0)), DEFAULTS, 0, id="a burst"),
        pytest.param((windows(15, 0.95), windows(20, 0.0)),
                     VadOptions(min_speech_duration_ms=1000), 0, id="silence is no speech"),
        pytest.param((windows(10, 0.9), windows(14, 0.0)), VadOptions(threshold=0.05), 1,
                     id="a very low threshold"),
    ],
)  # fmt: skip
def test_what_ends_an_utterance_and_what_is_one(parts, options, ended):
    """None: it is still open; otherwise the number of utterances."""
    events, finder = hear(windows(40, 0.0), *parts, options=options)

    assert events[0] == SpeechBegan(40 * WINDOW_SAMPLES)
    if ended is None:
        assert len(events) == 1
        assert finder.is_speaking
    else:
        assert [type(event) for event in events[1:]] == [SpeechEnded]
        assert len(utterances(events)) == ended


def test_a_murmur_alone_starts_nothing():
    events, _ = hear(murmur(3.0), silence(1.0))

    assert events == []


def test_events_do_not_depend_on_how_the_sound_is_cut():
    parts = (
        silence(0.64),
        speak(0.64),
        silence(1.28),
        click(0.064),
        silence(1),
        speak(1),
        silence(1),
    )
    whole, _ = hear(*parts, chunk_s=60)
    assert [each.speech_ms for each in utterances(whole)] == [700, 1084]

    for chunk_s in (0.5, 0.1, 0.064, 0.013):
        pieces, _ = hear(*parts, chunk_s=chunk_s)

        assert [type(event) for event in pieces] == [type(event) for event in whole]
        assert [u.start_sample for u in utterances(pieces)] == [
            u.start_sample for u in utterances(whole)
        ]


def test_after_thirty_seconds_a_shorter_pause_is_enough():
    # At 45 s half of the 800 ms is enough: 7 windows.
    long_speech = windows(45_000 // WINDOW_MS, 0.95)

    early, _ = hear(windows(29_000 // WINDOW_MS, 0.95), windows(7, 0.0), windows(1, 0.95))
    late, _ = hear(long_speech, windows(7, 0.0), windows(1, 0.0))

    assert utterances(early) == []
    assert len(utterances(late)) == 1


@pytest.mark.parametrize("rest", [0, 300])
def test_the_silence_that_is_missing_ends_the_utterance(rest):
    script = Script(windows(20, 0.95), windows(60, 0.0))
    finder = UtteranceFinder(script, DEFAULTS, lambda heard: 800)
    finder.feed(ramp(24 * WINDOW_SAMPLES + rest))

    missing: int = present(finder.missing_samples)

    # Whole windows are examined.
    assert finder.feed(ramp(missing - 2 * WINDOW_SAMPLES)) == []
    finder.bound(20 * WINDOW_SAMPLES, 0, 0)
    assert present(finder.missing_samples) == WINDOW_SAMPLES // 2, "enough was heard"
    (ended,) = finder.feed(ramp(WINDOW_SAMPLES // 2))
    assert ended.at_sample == 20 * WINDOW_SAMPLES
    assert finder.missing_samples is None
    assert len(finder.remembered()["heard"]) < 7 * WINDOW_SAMPLES, "the pre-roll of the next one"


def test_no_silence_is_missing_without_a_judge_or_a_pause():
    for count, judge in ((24, None), (19, lambda heard: 800)):
        finder = UtteranceFinder(Script(windows(20, 0.95), windows(60, 0.0)), DEFAULTS, judge)
        finder.feed(ramp(count * WINDOW_SAMPLES))

        assert (finder.missing_samples, finder.may_judge(WINDOW_SAMPLES)) == (None, False)


def test_each_pause_in_an_utterance_is_judged():
    judged = []
    parts = [part for _ in range(2) for part in (windows(20, 0.95), windows(4, 0.0))]

    def judge(heard):
        judged.append(len(heard) // WINDOW_SAMPLES)
        return 800

    finder = UtteranceFinder(Script(*parts, windows(1, 0.95)), DEFAULTS, judge)
    finder.feed(ramp(300))
    for _ in range(49):
        may_judge, before = finder.may_judge(WINDOW_SAMPLES), list(judged)
        finder.feed(ramp(WINDOW_SAMPLES))
        assert may_judge == (judged != before)

    assert judged == [23, 47]


def test_audio_before_the_trigger_is_as_long_as_the_padding_if_that_is_longer():
    events, _ = hear(
        windows(20, 0.0), windows(30, 0.95), windows(13, 0.0),
        options=VadOptions(speech_pad_ms=500),
    )  # fmt: skip

    (said,) = utterances(events)
    assert said.start_sample == said.pcm.samples[0] == 20 * WINDOW_SAMPLES - 500 * 16


def test_speech_without_a_pause_is_cut_at_sixty_seconds_and_continues_in_the_next_utterance():
    events, finder = hear(windows(65_000 // WINDOW_MS, 0.95), windows(14, 0.0))

    first, second = utterances(events)
    assert first.pcm.duration_s == pytest.approx(60, abs=0.1)
    assert second.pcm.samples[0] == first.pcm.samples[-1] + 1
    assert not finder.is_speaking


def test_reset_forgets_a_half_heard_utterance_and_what_the_detector_remembers():
    detector = Script(windows(40, 0.95))
    finder = UtteranceFinder(detector)
    finder.feed(ramp(10 * WINDOW_SAMPLES))
    before = detector.resets

    finder.reset()

    assert not finder.is_speaking
    assert detector.resets == before + 1
    assert finder.feed(ramp(WINDOW_SAMPLES)) == [SpeechBegan(0)]


def test_another_sample_rate_is_refused():
    with pytest.raises(ValueError, match="16000 Hz, got 24000 Hz"):
        UtteranceFinder(Script()).feed(Pcm.silence(10, 24_000))


@settings(max_examples=60, deadline=None)
@given(
    probabilities=st.lists(st.sampled_from([0.0, 0.5, 0.64, 0.66, 0.79, 0.8, 1.0]), max_size=120),
    min_speech=st.sampled_from([0, 64, 128, 500]),
    min_silence=st.sampled_from([100, 128, 800]),
    pad=st.sampled_from([0, 30, 400]),
)
def test_transitions_alternate_and_utterances_never_overlap(
    probabilities, min_speech, min_silence, pad
):
    options = VadOptions(
        min_speech_duration_ms=min_speech, min_silence_duration_ms=min_silence, speech_pad_ms=pad
    )
    events, _ = hear(*(windows(1, p) for p in probabilities), options=options)

    for index, event in enumerate(events):
        assert isinstance(event, SpeechEnded if index % 2 else SpeechBegan)
    said = utterances(events)
    for utterance in said:
        assert utterance.end_sample > utterance.start_sample
        assert np.all(np.diff(utterance.pcm.samples) == 1)
    for earlier, later in itertools.pairwise(said):
        assert later.pcm.samples[0] > earlier.pcm.samples[-1]


class Loud:
    """A detector of loud halves of windows, which remembers how many it has heard."""

    heard = 0

    def probabilities(self, windows: np.ndarray) -> list[float]:
        self.heard += windows.size // HALF_SAMPLES
        halves = np.abs(windows).reshape(len(windows), -1, HALF_SAMPLES).mean(2)
        return [float(loud) for loud in halves.max(axis=1) > 0.1]

    def reset(self) -> None:
        self.heard = 0

    def snapshot(self) -> int:
        return self.heard

    def restore(self, kept: int) -> None:
        self.heard = kept


def test_half_a_window_of_quiet_is_a_likely_pause():
    """Chunks of half a window: speech, and quiet from the first half of a window on."""
    detector = Loud()
    finder = UtteranceFinder(detector, DEFAULTS)
    pcm = join([sound(speak(20 * 0.064)), Pcm.silence(16 * WINDOW_SAMPLES, 16_000)], 16_000)
    likely, pauses, events = [], [], []
    for chunk in chunks(pcm, 0.032):
        events += finder.feed(chunk)
        likely.append(finder.likely(32))
        pauses.append((finder.likely_pause, finder.pause_start))

    (said,) = utterances(events)
    first = next(index for index, one in enumerate(likely) if one is not None)
    assert first == 40
    assert pauses[40:42] == [(20 * WINDOW_SAMPLES, None), (20 * WINDOW_SAMPLES,) * 2]
    assert all(np.array_equal(one.pcm.samples, said.pcm.samples) for one in likely if one)
    # What was only looked at was not remembered.
    assert detector.heard == 2 * 36


def test_half_a_window_of_quiet_within_speech_is_forgotten():
    pieces = [speak(20 * 0.064), silence(0.032), speak(0.032), speak(10 * 0.064)]
    finder = UtteranceFinder(Loud(), DEFAULTS)
    likely = []
    for chunk in chunks(sound(*pieces), 0.032):
        finder.feed(chunk)
        likely.append(finder.likely_pause)

    assert likely[40] == 20 * WINDOW_SAMPLES
    assert [one for index, one in enumerate(likely) if index != 40] == [None] * 61


@pytest.mark.parametrize(
    ("parts", "ended_s"),
    [
        pytest.param((speak(3.2), Part(4.8, 0.95, 0.06)), [3.392], id="a television"),
        pytest.param((speak(3.2), Part(4.8, 0.95, 0.1)), [], id="the user, more softly"),
        pytest.param(
            (speak(3.2), Part(0.192, 0.95, 0.02), speak(0.64), silence(1.6)),
            [4.032],
            id="a soft word",
        ),
        pytest.param(
            (
                speak(3.2),
                *(Part(0.192, 0.95, 0.02), Part(0.064, 0.7, 0.3)) * 6,
                speak(0.64),
                silence(1.6),
            ),
            [5.376],
            id="soft words, and a murmur of the user after each",
        ),
        pytest.param(
            (Part(0.32, 0.95, 0.9), Part(4.8, 0.95, 0.06), silence(1.6)), [5.12], id="a door"
        ),
    ],
)
@pytest.mark.parametrize("constant", [0.0, -0.1])
def test_a_voice_that_is_much_softer_than_the_user_is_a_pause(parts, ended_s, constant):
    finder = UtteranceFinder(Script(*parts))

    found = finder.feed(Pcm(sound(*parts).samples + np.float32(constant), 16_000))

    ends = [event.at_sample for event in found if isinstance(event, SpeechEnded)]
    assert ends == [round(16_000 * at_s) for at_s in ended_s]


def test_the_level_of_an_utterance_survives_a_change_of_worker():
    parts = (speak(3.2), Part(4.8, 0.95, 0.06))
    whole, first = sound(*parts), UtteranceFinder(Script(*parts))
    found = first.feed(whole.slice(0, 64_000))
    second = UtteranceFinder(Script(Part(4.0, 0.95, 0.06)))

    second.restore(first.remembered())

    found += second.feed(whole.slice(64_000, len(whole)))
    assert [event.at_sample for event in found if isinstance(event, SpeechEnded)] == [54_272]


def test_another_worker_hears_the_rest_of_an_utterance():
    whole = sound(silence(0.64), speak(1.92), silence(1.6), speak(0.96), silence(1.6))
    found, heard = [], []
    for cut in (0, 20_500):
        detectors = Loud(), Loud()
        first, second = map(UtteranceFinder, detectors)
        # It is in the middle of another session's utterance.
        second.feed(sound(speak(1.0), silence(0.2)))
        events = first.feed(whole.slice(0, cut))

        second.restore(first.remembered())

        events += second.feed(whole.slice(cut, len(whole)))
        found.append(
            [(said.start_sample, said.pcm.samples.tolist()) for said in utterances(events)]
        )
        heard.append(detectors[1].heard)
    assert len(found[0]) == 2
    assert found[0] == found[1]
    assert heard[0] == heard[1]
