"""Words decide what interrupts: by a scripted matcher, and with the matcher on voices."""

import numpy as np
import pytest
from tests.support import noises
from tests.support.timeline import Script, chunks, silence, sound, speak

from parley.media.pcm import Pcm
from parley.protocol.values import BARGE_IN, InterruptionOptions
from parley.turns import TurnJudges, onset
from parley.turns.interruption import InterruptionDetector
from parley.turns.keywords import KeywordMatcher, WordKind
from parley.turns.user_voice import UserVoice

WORDS = InterruptionOptions(mode="stop", backchannel="words")


class Says:
    """A matcher, or a judge of onsets, by script."""

    def __init__(self, *found: WordKind | float) -> None:
        self.found = found
        self.lengths_ms: list[int] = []

    def __call__(self, samples, asked=None):
        call = len(self.lengths_ms) if asked is None else asked
        self.lengths_ms.append(len(samples) // 16)
        return self.found[min(call, len(self.found) - 1)]


def interrupted_after_ms(
    said_s: float, *found: WordKind, onsets: Says | None = None, played: Pcm | None = None
):
    """Milliseconds from the first sample until it is an interruption; None: it is none."""
    parts = (silence(1.024), speak(said_s), silence(1.0))
    matcher = Says(*found)
    judges = TurnJudges(words=matcher if found else None, onsets=onsets)
    detector = InterruptionDetector(Script(*parts), WORDS, judges)
    if played is not None:
        detector.play(played, 0.7)
    position = 0
    for chunk in chunks(sound(*parts), 0.032):
        position += len(chunk)
        events = detector.feed(chunk, position / 16_000)
        if any(event.kind == "interrupted" for event in events):
            return position // 16 - 1024, matcher
    return None, matcher


def test_a_command_interrupts_when_it_is_recognised():
    after_ms, matcher = interrupted_after_ms(0.6, "command")

    assert 400 <= after_ms <= 470
    assert len(matcher.lengths_ms) == 1


def test_a_short_command_interrupts_when_it_is_over():
    after_ms, _ = interrupted_after_ms(0.256, "command")

    assert after_ms <= 256 + 200


def test_an_acknowledgement_interrupts_only_when_it_does_not_end():
    after_ms, matcher = interrupted_after_ms(1.0, "acknowledgement")

    assert after_ms is None
    assert len(matcher.lengths_ms) == 3
    assert interrupted_after_ms(2.0, "acknowledgement")[0] >= 1080


def test_what_surely_begins_otherwise_interrupts_before_there_are_words():
    after_ms, matcher = interrupted_after_ms(1.0, "acknowledgement", onsets=Says(-1.0, 5.0))

    assert 224 <= after_ms <= 260
    assert matcher.lengths_ms == []


def test_the_beginning_is_judged_without_a_matcher_too():
    assert interrupted_after_ms(1.0, onsets=Says(-1.0, 5.0))[0] <= 260
    assert interrupted_after_ms(1.0, onsets=Says(-2.5))[0] is None


def test_a_doubtful_beginning_waits_for_words():
    onsets = Says(0.5)
    after_ms, _ = interrupted_after_ms(1.0, "command", onsets=onsets)

    assert 400 <= after_ms <= 470
    # With what was heard before speech was noticed.
    assert onsets.lengths_ms[:4] == [256, 320, 384, 448]


def test_what_sounds_like_an_acknowledgement_is_none_of_the_matchers_commands():
    """Of some voices' "mm" the matcher makes a command."""
    assert interrupted_after_ms(0.7, "command", onsets=Says(-0.1))[0] is None


def test_a_drawn_out_okay_that_the_matcher_does_not_know_passes():
    drawn_out, sentence = (
        interrupted_after_ms(seconds, "other", onsets=Says(-2.5))[0] for seconds in (1.0, 2.0)
    )

    assert drawn_out is None
    assert sentence >= 1080


def test_a_command_is_judged_again_when_it_is_over():
    onsets = Says(*[-1.0] * 8, 0.3)
    after_ms, _ = interrupted_after_ms(0.5, "command", onsets=onsets)

    assert 500 < after_ms <= 500 + 200
    # Without the pause behind it.
    assert onsets.lengths_ms[-1] <= 500 + 96 + 64


def test_a_beginning_that_may_be_an_echo_waits_until_that_is_known():
    played = Pcm(noises.talk(2.0, "en-us"), 16_000)
    after_ms, _ = interrupted_after_ms(1.0, "command", onsets=Says(5.0), played=played)

    assert after_ms >= 400


VOICES = ("en-gb-x-rp", "en-029", "en-us-nyc")


@pytest.mark.parametrize(("seconds", "constant"), [(0.65, 0), (0.375, 0.01)])
def test_most_sentences_begin_surely_and_few_acknowledgements_do(seconds, constant):
    """Also with the constant that cheap microphones add."""
    from parley.vad.silero import SileroModel

    model, onsets = SileroModel(), onset.bundled()

    def stops(text: str, voice: str) -> bool:
        heard = np.concatenate(
            [noises.room(0.5), noises.spoken(text, voice)[: round(16_000 * seconds)]]
        )
        heard += np.float32(constant)
        judges = TurnJudges(words=Says("other"), onsets=onsets)
        detector = InterruptionDetector(model(), WORDS, judges)
        events = [
            event
            for at, chunk in enumerate(chunks(Pcm(heard, 16_000), 0.1), 1)
            for event in detector.feed(chunk, at / 10)
        ]
        return any(event.kind == "interrupted" for event in events)

    words = [stops(text, voice) for text in noises.ACKNOWLEDGEMENTS for voice in VOICES]
    said = [stops(text, voice) for text in noises.SENTENCES for voice in VOICES]

    assert sum(words) <= 2, words
    assert sum(said) >= 0.5 * len(said), said


def test_the_beginning_of_a_sentence_may_be_an_acknowledgement():
    """'Yes, but …': asked again, it is more than that."""
    after_ms, matcher = interrupted_after_ms(2.0, "acknowledgement", "other")

    assert 730 <= after_ms <= 880
    assert matcher.lengths_ms == sorted(matcher.lengths_ms)


def test_without_a_matcher_only_length_counts():
    assert interrupted_after_ms(0.6)[0] is None
    assert 730 <= interrupted_after_ms(1.0)[0] <= 900


@pytest.fixture(scope="module")
def matcher() -> KeywordMatcher:
    pytest.importorskip("pocketsphinx")
    return KeywordMatcher()


def kinds(matcher, *words: str) -> list[str]:
    """What the words are taken for, each in every voice."""
    return [matcher(noises.spoken(said, voice)) for said in words for voice in noises.VOICES]


def test_commands_are_recognised_and_acknowledgements_not_taken_for_them(matcher):
    commands = kinds(matcher, "stop", "wait", "excuse me", "stop it")
    others = kinds(matcher, "okay", "yeah", "right")

    assert commands.count("command") >= 0.9 * len(commands), commands
    assert others.count("command") <= 0.1 * len(others), others


def heard_after_a_turn(turn_dbfs: float, other_dbfs: float) -> list:
    """What a voice does that speaks 1.5 s into the answer to a turn."""
    parts = (silence(0.512), speak(1.5), silence(1.0))
    detector = InterruptionDetector(
        Script(*parts), InterruptionOptions(mode="stop", backchannel="ignore")
    )
    detector.learn(Pcm(noises.room(1.0), 16_000))
    detector.learn(Pcm(noises.spoken(noises.SENTENCES[0], "en", turn_dbfs), 16_000))
    heard = noises.room(3.0)
    said = noises.talk(1.5, "en-us", other_dbfs)
    heard[8192 : 8192 + len(said)] += said
    return detector.feed(Pcm(heard.astype(np.float32), 16_000), 3.0)


def test_who_is_about_as_loud_as_the_user_interrupts_and_a_person_in_the_next_room_does_not():
    for softer_db in (20, 10, 3, 0, -6):
        events = heard_after_a_turn(-26.0, -26.0 - softer_db)
        is_interrupted = any(event.kind == "interrupted" for event in events)
        assert is_interrupted is (softer_db < 10), softer_db


def test_a_voice_ten_db_softer_is_nobody_and_a_user_who_speaks_on_is_heard():
    voice = UserVoice(0.032)
    for _ in range(60):
        voice.learn(1e-3)

    def may_be(softer_db: float, speech_ms: float) -> bool:
        return voice.may_be(1e-3 * 10 ** (-softer_db / 10), speech_ms)

    # As far as one in 100 comes: of users below, of others above.
    assert may_be(3.0, 250)
    assert not may_be(5.8, 250)
    assert not may_be(7.6, 800)
    assert may_be(5.5, 1600)


def test_a_softer_voice_that_talks_on_does_not_interrupt_with_its_loudest_words():
    voice = UserVoice(0.032)
    for _ in range(60):
        voice.learn(1e-3)
    loudest = 1e-3 * 10**-0.4

    voice.end(1e-4, 3900, is_user=False)
    assert voice.may_be(loudest, 500)
    voice.end(1e-4, 400, is_user=False)
    assert voice.may_be(loudest, 500)
    voice.end(1e-4, 500, is_user=False)
    assert not voice.may_be(loudest, 500)
    # The user, and one who has moved away and speaks on.
    assert voice.may_be(1e-3 * 10**-0.25, 500)
    assert voice.may_be(loudest, 1600)
    # It stops an answer in spite of that, or the user does: it is still on.
    voice.end(1e-3, 500, is_user=True)
    assert not voice.may_be(loudest, 500)


def test_a_television_is_known_from_before_the_answer_and_makes_no_user_softer():
    voice = UserVoice(0.032)
    for power in (1e-4,) * 300 + (1e-3,) * 35 + (1e-4,) * 40:
        voice.learn(power)

    assert voice.may_be(1e-3 * 10**-0.25, 500)
    assert not voice.may_be(1e-3 * 10**-0.4, 500)


def test_a_user_who_has_turned_away_stands_out_of_others_who_are_much_softer():
    voice = UserVoice(0.032)
    for _ in range(60):
        voice.learn(1e-3)
    away = 1e-3 * 10**-0.55

    assert not voice.may_be(away, 500)
    voice.end(1e-3 * 10**-1.6, 4000, is_user=False)
    assert voice.may_be(away, 500)
    assert not voice.may_be(1e-3 * 10**-0.85, 1600)


def test_whose_turn_was_last_may_interrupt_also_if_a_person_before_was_louder():
    voice = UserVoice(0.032)
    may_be = []
    for power in (1e-2, 1e-4):
        for _ in range(200):
            voice.learn(power)
        may_be.append(voice.may_be(1e-4, 500))

    assert may_be == [False, True]


@pytest.mark.parametrize(("turn_s", "is_heard"), [(1.2, True), (0.5, False)])
def test_whose_turn_was_short_may_interrupt_its_answer_also_if_a_person_before_was_louder(
    turn_s, is_heard
):
    parts = (silence(2.0), silence(0.512), speak(1.5), silence(1.0))
    options = InterruptionOptions(mode="stop", backchannel="ignore")
    detector = InterruptionDetector(Script(*parts), options)
    detector.learn(Pcm(noises.spoken(noises.SENTENCES[0], "en", -20.0), 16_000))
    detector.feed(Pcm(noises.room(2.0), 16_000), 2.0)
    detector.learn(Pcm(noises.talk(turn_s, "en-us", -30.0), 16_000))
    heard = noises.room(3.0)
    heard[8192 : 8192 + 24_000] += noises.talk(1.5, "en-us", -30.0)

    events = detector.feed(Pcm(heard.astype(np.float32), 16_000), 5.0)

    assert any(event.kind == "interrupted" for event in events) is is_heard


def test_while_nothing_is_known_everybody_may_interrupt():
    voice = UserVoice(0.032)
    for _ in range(24):  # less than 0.8 s
        voice.learn(1e-3)

    assert voice.may_be(1e-9, 500)
    voice.learn(1e-3)
    assert not voice.may_be(1e-9, 500)


@pytest.mark.parametrize(
    "options",
    [InterruptionOptions(mode="stop", backchannel="ignore"), BARGE_IN],
    ids=["ignore", "heed"],
)
def test_an_echo_in_a_room_stops_nothing_and_is_dismissed(options):
    from parley.cli.bench.noises import in_room
    from parley.vad.silero import SileroModel

    played = noises.talk(12.0, "en-us")
    heard = in_room(noises.echo(played, drop_db=10), 0.6, direct_db=0.0) + noises.room(12.0)
    detector = InterruptionDetector(SileroModel()(), options)
    events = []
    for index in range(120):
        at = slice(1600 * index, 1600 * index + 1600)
        detector.play(Pcm(played[at], 16_000), index / 10)
        events += detector.feed(Pcm(heard[at].astype(np.float32), 16_000), (index + 1) / 10)

    assert not any(event.kind == "interrupted" for event in events)
    assert all(event.kind == "over" for event in events[1::2])


def test_what_was_heard_before_decides_nothing(matcher):
    said = [noises.spoken(text, "en-us") for text in ("hello there my friend", "okay", "stop")]
    found = [KeywordMatcher()(each) for each in said]
    loud = np.random.default_rng(1).standard_normal(8000).astype(np.float32)

    for level in (0.003, 0.1, 0.3):
        matcher(level * loud)
        assert [matcher(each) for each in said] == found
