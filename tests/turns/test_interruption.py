"""Who interrupts, and who does not: the state machine by script, the figures with Silero."""

import numpy as np
import pytest
from tests.support import noises
from tests.support.timeline import Script, chunks, silence, sound, speak, windows
from tests.vad.test_utterance import Loud

from parley.media.pcm import INPUT_RATE_HZ, Pcm, Samples, join
from parley.protocol.values import InterruptionOptions
from parley.turns import TurnJudges
from parley.turns.interruption import InterruptionDetector, InterruptionEvent
from parley.turns.keywords import WordKind
from parley.vad.silero import SileroModel

STOP = InterruptionOptions(mode="stop")
HEED = InterruptionOptions(mode="stop", backchannel="heed")
HEED_FAST = InterruptionOptions(mode="stop", backchannel="heed", min_speech_ms=64)


@pytest.fixture(scope="module")
def silero() -> SileroModel:
    return SileroModel()


def listen(
    detector: InterruptionDetector, heard: Pcm, played: Pcm | None = None, chunk_s: float = 0.1
) -> list[InterruptionEvent]:
    events: list[InterruptionEvent] = []
    said = chunks(played, chunk_s) if played is not None else []
    for index, chunk in enumerate(chunks(heard, chunk_s)):
        if index < len(said):
            detector.play(said[index], index * chunk_s)
        events += detector.feed(chunk, (index + 1) * chunk_s)
    return events


def scripted(
    options: InterruptionOptions, *parts, constant: float = 0.0
) -> list[InterruptionEvent]:
    heard = Pcm(sound(*parts).samples + np.float32(constant), INPUT_RATE_HZ)
    return listen(InterruptionDetector(Script(*parts), options), heard)


def test_an_acknowledgement_is_dismissed_when_it_falls_silent():
    (suspected, dismissed) = scripted(STOP, silence(1.024), speak(0.5), silence(1.0))

    assert suspected == InterruptionEvent("suspected", 16_384)
    assert dismissed.kind == "over"


@pytest.mark.parametrize("constant", [0.0, 0.9])
def test_an_acknowledgement_that_is_heeded_interrupts_immediately(constant):
    parts = silence(1.024), speak(0.5), silence(1.0)
    events = scripted(HEED, *parts, constant=constant)

    assert events[:2] == [
        InterruptionEvent("suspected", 16_384),
        InterruptionEvent("interrupted", 16_384),
    ]


def test_what_is_shorter_than_asked_is_nothing():
    assert scripted(STOP, silence(1.024), windows(1, 0.95), silence(1.0)) == []


@pytest.mark.parametrize(
    ("quiet_s", "kinds"), [(20, ["suspected"]), (600, ["suspected", "interrupted"])]
)
def test_a_voice_that_turns_out_to_be_much_softer_than_the_last_user_does_not_interrupt(
    quiet_s: float, kinds: list[str]
):
    detector = InterruptionDetector(Script(speak(4.0)), STOP)
    user, other = (Pcm(each, INPUT_RATE_HZ) for each in (tone(0.3), tone(0.03)))
    detector.learn(sound(silence(2.0)))
    # In one piece; only the last half minute of it is learned.
    detector.learn(join((user, sound(silence(quiet_s))), INPUT_RATE_HZ))

    events = detector.feed(user.slice(0, 3200), 0.2)
    for at_s in (0.7, 1.2, 1.7):
        events += detector.feed(other.slice(0, 8000), at_s)

    assert [event.kind for event in events] == kinds


def test_a_user_who_speaks_over_a_softer_voice_need_not_outweigh_all_that_it_said():
    detector = InterruptionDetector(Script(speak(6.0)), STOP)
    user, other = (Pcm(each, INPUT_RATE_HZ) for each in (tone(0.3), tone(0.09)))
    for heard in (sound(silence(2.0)), user, sound(silence(2.0))):
        detector.learn(heard)

    events = listen(detector, join((other.slice(0, 48 * 512), user), INPUT_RATE_HZ))

    assert [(event.kind, event.at_sample) for event in events] == [
        ("suspected", 48 * 512),
        ("interrupted", 48 * 512),
    ]


def tone(peak: float) -> Samples:
    return (peak * np.sin(np.arange(2 * INPUT_RATE_HZ) / 10)).astype(np.float32)


@pytest.mark.parametrize(("above_db", "is_heard"), [(7, False), (9, True)])
def test_speech_has_to_stand_out_of_the_room(above_db: float, is_heard: bool):
    detector = InterruptionDetector(Script(speak(4.0)), HEED)
    detector.learn(Pcm(tone(0.02), INPUT_RATE_HZ))

    events = detector.feed(Pcm(tone(0.02 * 10 ** (above_db / 20)), INPUT_RATE_HZ), 2.0)

    assert bool(events) is is_heard


def test_only_positions_count_what_is_dropped_before_the_room_is_learned():
    said: list[int] = []

    def words(samples: Samples) -> WordKind:
        said.append(len(samples))
        return "other"

    by_words = InterruptionOptions(mode="stop", backchannel="words")
    detector = InterruptionDetector(Loud(), by_words, TurnJudges(words=words))
    detector.feed(sound(silence(700 / INPUT_RATE_HZ)), 0.1)
    detector.learn(sound(silence(1.024)))

    assert detector.feed(sound(speak(1.6)), 3.0)[0].at_sample == 700
    # Half windows that end 400 and 700 ms after its start.
    assert said == [13 * 512, 22 * 512]


@pytest.mark.parametrize("size", [320, 700, 1600])
def test_speech_that_is_heard_before_its_half_is_whole_is_counted_once(size: int):
    detector = InterruptionDetector(Loud(), STOP)
    events, position = list[InterruptionEvent](), 0
    for chunk in chunks(sound(silence(1.024), speak(1.6)), size / INPUT_RATE_HZ):
        if not events or events[-1].kind != "interrupted":
            position += len(chunk)
            events += detector.feed(chunk, position / INPUT_RATE_HZ)

    assert position - 16_384 == pytest.approx(800 * 16, abs=size + 512)


def test_sound_of_another_rate_is_refused():
    with pytest.raises(ValueError, match="16000 Hz, not 24000 Hz"):
        InterruptionDetector(Script(), STOP).feed(Pcm.silence(10, 24_000), 0.0)


def test_short_pauses_between_words_are_part_of_the_interruption():
    parts = (silence(1.024), speak(0.5), silence(0.2), speak(0.5), silence(1.0))

    assert InterruptionEvent("interrupted", 16_384) in scripted(STOP, *parts)


def test_less_sensitive_means_surer():
    deaf = InterruptionOptions(mode="stop", sensitivity=0.0)
    parts = (silence(1.024), speak(1.6, probability=0.9), silence(1.0))

    assert scripted(deaf, *parts) == []
    assert scripted(STOP, *parts)


def test_what_was_heard_before_a_pause_in_listening_is_not_speech_after_it(silero):
    detector = InterruptionDetector(silero(), HEED_FAST)
    voice = noises.talk(2.0)
    # A rest of loud speech that fills no window.
    detector.feed(noises.pcm(voice[: 16 * 1024 + 1000]), 2.0)
    for _ in range(20):
        detector.learn(noises.pcm(noises.room(0.1)))

    assert detector.feed(noises.pcm(noises.room(2.0)), 6.0) == []


@pytest.mark.parametrize("size", [320, 1600, 4800, 16_000])
def test_speech_is_suspected_first_and_an_interruption_later_in_chunks_of_any_length(size):
    parts = (silence(1.024), speak(1.6), silence(1.0))
    detector = InterruptionDetector(Script(*parts), STOP)

    events = listen(detector, sound(*parts), chunk_s=size / INPUT_RATE_HZ)

    assert [(event.kind, event.at_sample) for event in events] == [
        ("suspected", 16_384),
        ("interrupted", 16_384),
        ("over", 42_496 + 320 * 16 - 512),  # a pause behind the speech, which ends at 2.624 s
    ]


def test_half_a_window_of_speech_is_enough_to_be_heard():
    parts = (silence(0.96), windows(1, 0.95))
    detector = InterruptionDetector(Script(*parts), HEED_FAST)
    said = sound(*parts)

    # Fifteen windows and a half.
    events = detector.feed(said.slice(0, 15 * 1024 + 512), 1.0)

    assert events == [
        InterruptionEvent("suspected", 15 * 1024),
        InterruptionEvent("interrupted", 15 * 1024),
    ]


def test_speech_is_heard_before_its_half_window_is_whole(silero):
    words = noises.spoken("No, not that.", "en-us")
    heard = np.concatenate([noises.room(1.0), words])
    # Of the half that ends at 16384, five sixths are there.
    end = 16_300
    detector = InterruptionDetector(silero(), HEED_FAST)

    events = detector.feed(Pcm(heard[:end], INPUT_RATE_HZ), 1.0)

    assert events == [
        InterruptionEvent("suspected", end - 512),
        InterruptionEvent("interrupted", end - 512),
    ]
    # What follows is the same speech.
    assert detector.feed(Pcm(heard[end : end + 3200], INPUT_RATE_HZ), 1.2) == []


@pytest.mark.parametrize("size", [320, 700, 1600])
def test_what_is_heard_before_its_half_is_whole_leaves_the_detector_as_it_was(silero, size):
    heard = np.concatenate([noises.room(1.0), 0.02 * noises.talk(2.0)]).astype(np.float32)
    whole = len(heard) - len(heard) % 512
    pieces, alone = silero(), silero()
    detector = InterruptionDetector(pieces, InterruptionOptions(mode="stop", min_speech_ms=2000))

    for start in range(0, whole, size):
        detector.feed(Pcm(heard[start : min(whole, start + size)], INPUT_RATE_HZ), 0.0)
    for start in range(0, whole, 16_384):
        alone.probabilities(heard[start : min(whole, start + 16_384)].reshape(-1, 512))

    (state, context), (expected, expected_context) = pieces.snapshot(), alone.snapshot()
    np.testing.assert_allclose(state[0], expected[0], atol=1e-5)
    np.testing.assert_array_equal(context, expected_context)


def test_a_voice_is_no_echo_of_what_was_played_long_ago(silero):
    words = noises.talk(2.0)
    detector = InterruptionDetector(silero(), HEED_FAST)
    detector.play(noises.pcm(words), 0.0)
    heard = noises.pcm(np.concatenate([noises.room(1.0), words]))

    at_once = InterruptionDetector(silero(), HEED_FAST)
    at_once.play(noises.pcm(words), 0.0)
    assert at_once.feed(heard, 3.0) == []
    assert "interrupted" in [event.kind for event in detector.feed(heard, 10.0)]


@pytest.mark.parametrize("said", noises.ACKNOWLEDGEMENTS)
def test_acknowledgements_stop_nothing(said, silero):
    for voice in noises.VOICES:
        word = noises.spoken(said, voice)
        heard = noises.room(4.0)
        heard[32_000 : 32_000 + len(word)] += word

        events = listen(InterruptionDetector(silero(), STOP), noises.pcm(heard))

        assert not [event for event in events if event.kind == "interrupted"]


@pytest.mark.parametrize("said", noises.INTERRUPTIONS)
def test_a_sentence_interrupts_also_above_the_echo(said, silero):
    played = noises.talk(7.0, "en-us")
    heard = noises.room(7.0) + noises.echo(played)
    sentence = noises.spoken(said, "en-gb-scotland")
    heard[48_000 : 48_000 + len(sentence)] += sentence[: len(heard) - 48_000]

    events = listen(InterruptionDetector(silero(), STOP), noises.pcm(heard), noises.pcm(played))

    # A sentence with a pause may interrupt twice.
    stop = next(event for event in events if event.kind == "interrupted")
    assert stop.at_sample == pytest.approx(48_000, abs=6_400)
