"""What the recogniser and the turn detector make of sound, without weights."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.contracts.conversations import Cast, quiet, turn, unit, voice
from tests.models.cascade.parts import FixedRecogniser, memory_of, result_of, small_cascade
from tests.support import noises

from parley.cli.bench.noises import in_room
from parley.engine.segments import Audio, Text
from parley.engine.work import (
    Ending,
    Finalize,
    Generate,
    GenerateResult,
    Prefill,
    StartSession,
    StepUnit,
    Work,
)
from parley.media.pcm import Pcm, Samples, join
from parley.models.cascade import prefill
from parley.models.cascade.parts import OneStep
from parley.models.cascade.recognition import Heard
from parley.models.cascade.transcript import clean, once
from parley.protocol.values import DuplexConfig
from parley.turns import TurnJudges
from parley.turns.echo import coupling_of, is_echo
from parley.turns.onset import ASKED_MS, OVER
from parley.turns.units import Turns
from parley.turns.word_lists import is_acknowledgement
from parley.vad.base import WINDOW_SAMPLES

RATE_HZ = 16_000


@pytest.mark.parametrize("delay_ms", [60, 150, 400])
@pytest.mark.parametrize("room_s", [0.35, 0.9])
def test_our_own_voice_coming_back_is_an_echo(room_s: float, delay_ms: int) -> None:
    ours = noises.talk(3.0)
    walls = in_room(ours, room_s, direct_db=0.0)
    back = noises.echo(walls, delay_ms / 1000, drop_db=10.0)[RATE_HZ : 2 * RATE_HZ]

    assert is_echo(back, slice(0, RATE_HZ), ours[: 2 * RATE_HZ])


@pytest.mark.parametrize("start", range(1, 5))
@pytest.mark.parametrize("voice", ["en-us", "en-gb-scotland"])
def test_words_said_while_we_speak_are_not_echo(voice: str, start: int) -> None:
    ours = noises.talk(2.0)
    theirs = noises.talk(1.0, voice, start=start) + noises.echo(ours, 0.15)[RATE_HZ:]

    assert not is_echo(theirs, slice(0, RATE_HZ), ours)


@pytest.mark.parametrize("start", [0, 5120, 9600])
def test_what_is_like_our_voice_in_a_quiet_room_where_all_of_it_should_be_heard_is_not_echo(start):
    """A short word gets loud and soft like some moment of any voice."""
    ours = noises.talk(2.0)
    said = slice(start, start + 6400)
    back = noises.echo(ours, 0.15)[RATE_HZ:]
    alone = np.zeros_like(back)
    alone[said] = back[said]

    assert is_echo(back, said, ours)
    assert not is_echo(alone, said, ours)
    # Before our voice began, or after it has ended, nothing else is expected.
    assert is_echo(alone, said, ours[RATE_HZ - 2400 :][said])


def test_what_is_a_little_like_our_voice_is_not_an_echo_if_none_was_heard_before() -> None:
    ours, said = noises.talk(2.0), slice(0, RATE_HZ)
    theirs = ours[RATE_HZ:] + 0.5 * noises.talk(1.0, "en-gb-scotland", start=1)
    room = np.random.default_rng(1).normal(0, 1e-4, RATE_HZ).astype(np.float32)
    coupling = coupling_of(room, ours[:RATE_HZ])
    assert coupling is not None

    assert is_echo(theirs, said, ours)
    assert not is_echo(theirs, said, ours, coupling)
    # Headphones that are taken off.
    assert is_echo(ours[RATE_HZ:], said, ours, coupling)
    assert coupling_of(room, np.zeros(RATE_HZ, np.float32)) is None


def test_a_judged_pause_ends_a_turn_up_to_a_quarter_of_a_second_before_it_was_to_end() -> None:
    window = np.zeros(WINDOW_SAMPLES, np.float32)

    def quiet_until_due(needed_ms: int | None, text: str, unit: int = 16_000) -> int:
        def judge(said: Samples) -> int:
            assert len(said) == 11 * WINDOW_SAMPLES
            assert needed_ms is not None
            return needed_ms

        turns = Turns().in_unit(unit)
        for _ in range(8):
            turns = turns.take(window, 0.9)
        while not turns.is_due and turns.quiet_ms < 3000:
            turns = turns.take(window, 0.0)
            if needed_ms is not None and turns.needed_ms is None:
                turns = turns.judged(window[:9], judge)
                assert (turns.needed_ms is None) == (turns.quiet_ms < 128)
            if turns.wants_words:
                turns = turns.with_words(text)
        return turns.quiet_ms

    assert quiet_until_due(None, "What time is it?") == 192
    assert quiet_until_due(256, "What time is it?") == 128
    assert quiet_until_due(1500, "What time is it?") == 512
    assert quiet_until_due(1500, "It is five o'clock.") == 1280
    assert quiet_until_due(256, "I would like to know what") == 1280
    assert quiet_until_due(256, "My number is 5, 5, 5.") == 896
    # Units that a pause ends follow each other closely: none has to be early.
    assert quiet_until_due(1500, "It is five o'clock.", unit=2048) == 1472


@pytest.mark.parametrize(
    ("text", "is_judged", "is_answered"),
    [
        ("What time is it?", False, True),
        ("I would like to know what", False, False),
        ("It is five o'clock.", True, True),
        ("Сейчас пять часов.", True, True),
        ("现在五点。", True, True),
        ("अभी पाँच बजे हैं।", True, True),
        ("…", False, False),
        ("", False, False),
    ],
)
def test_a_pause_is_judged_by_its_sound_only_if_its_words_do_not_decide(
    text: str, is_judged: bool, is_answered: bool
) -> None:
    asked: list[int] = []

    def judge(said: Samples) -> float:
        asked.append(len(said))
        return 0.9

    model = small_cascade(rows=1, judges=TurnJudges(judge))
    model.parts = replace(model.parts, recogniser=FixedRecogniser(Heard(text)))
    cast = Cast(model)
    cast.play(0, [StartSession("duplex", seed=1, duplex=DuplexConfig(force_listen_count=0))])

    cast.play(0, [unit(voice(1.0)), StepUnit(), Finalize(), unit(quiet(1.0))])

    assert bool(asked) == is_judged
    assert memory_of(model).turns.is_due == is_answered


def test_speech_makes_it_another_pause() -> None:
    window = np.zeros(WINDOW_SAMPLES, np.float32)
    turns = Turns()
    for probability in (0.9, 0.9, 0.9, 0.9, 0.0, 0.0):
        turns = turns.take(window, probability)
    turns = turns.judged(window[:0], lambda _: 1800)
    assert turns.needed_ms == 1800
    assert turns.take(window, 0.0).needed_ms == 1800
    assert turns.take(window, 0.9).needed_ms is None


@pytest.mark.parametrize(("softer", "is_due"), [(0.2, True), (0.3, False)])
def test_a_voice_that_is_much_softer_than_the_user_does_not_keep_a_turn_open(
    softer: float, is_due: bool
) -> None:
    user = np.random.default_rng(1).normal(0, 0.3, (30, WINDOW_SAMPLES)).astype(np.float32)
    turns = Turns()
    for window in user:
        turns = turns.take(window, 0.9)
    for window in softer * user:
        turns = turns.take(window, 0.9)
        if turns.wants_words:
            turns = turns.with_words("It is five o'clock.")

    assert turns.is_due == is_due
    assert turns.take(user[0], 0.9).quiet_ms == 0


@pytest.mark.parametrize(
    ("quiet_ms", "needed_ms", "text", "is_due"),
    [
        (50, 256, "What time is it?", True),
        (50, 300, "What time is it?", True),
        (50, 301, "What time is it?", False),
        (20, 256, "What time is it?", False),
        (50, 256, "I would like to know what", False),
    ],
)
def test_a_unit_that_ends_just_behind_the_last_word_is_answered_if_the_judge_is_sure(
    quiet_ms: int, needed_ms: int, text: str, is_due: bool
) -> None:
    speech = np.random.default_rng(1).normal(0, 0.1, (12, WINDOW_SAMPLES)).astype(np.float32)
    turns = Turns()
    for window in speech:
        turns = turns.take(window, 0.9)
    rest = speech[0, :800].copy()
    rest[800 - 16 * quiet_ms :] *= 0.01
    asked: list[int] = []

    def judge(said: Samples) -> int:
        asked.append(len(said))
        return needed_ms

    turns = turns.judged(rest, judge)
    assert turns.wants_words == (needed_ms <= quiet_ms + 250 and quiet_ms >= 30)
    if turns.wants_words:
        turns = turns.with_words(text)

    assert turns.is_due == is_due
    # It is asked as it was taught: with the same quiet.
    assert asked in ([], [12 * WINDOW_SAMPLES + 800 + 16 * (244 - quiet_ms)])
    assert bool(asked) == (quiet_ms >= 30)


def test_silence_and_clicks_are_not_echo() -> None:
    click = np.zeros(RATE_HZ, np.float32)
    click[8000:8400] = 0.5
    ours = noises.talk(2.0)

    assert not is_echo(np.zeros(RATE_HZ, np.float32), slice(0, RATE_HZ), ours)
    assert not is_echo(click, slice(0, RATE_HZ), ours)
    assert not is_echo(click, slice(7000, 9000), ours)


def test_words_written_twice_are_said_once_where_there_was_no_time_for_more() -> None:
    doubled = "What should I cook tonight? What should I cook tonight?"

    assert once(doubled, 1.6) == "What should I cook tonight?"
    assert once(doubled, 4.0) == doubled
    assert once("7 7", 0.5) == "7"
    assert once("no no", 0.8) == "no no"
    assert once("Be quiet. Be quiet. Be", 1.0) == "Be quiet."
    assert once("A very very good idea", 0.9) == "A very very good idea"
    assert once("", 0.3) == ""
    assert once("Hello there.", 0.2) == "Hello there."


ONCE_MORE = "Sorry, I didn't catch that. Could you say it again?"
ONLY_ENGLISH = "Sorry, I couldn't make that out. I understand only English."


@pytest.mark.parametrize(
    ("text", "confidence", "answer"),
    [
        ("Shendtu Mfive the free-care", -0.7, ONCE_MORE),
        ("Shendtu Mfive the free-care", -0.8, ONLY_ENGLISH),
        # Too little to know a language by.
        ("Shendtu Mfive", -0.8, ONCE_MORE),
        ("Shendtu Mfive", -1.1, ONLY_ENGLISH),
        # It means something, but English is never so unsure.
        ("What is seven plus five?", -0.8, "7 plus 5 is 12."),
        ("What is seven plus five?", -1.1, ONLY_ENGLISH),
        # As a recogniser of English writes it.
        (clean("(speaks in foreign language)"), -0.6, ONLY_ENGLISH),
        (clean("[SPEAKING SPANISH]"), -0.6, ONLY_ENGLISH),
    ],
)
def test_speech_in_doubt_is_asked_for_again_or_told_that_only_english_is_understood(
    text: str, confidence: float, answer: str
):
    model: Any = small_cascade(rows=1)
    heard = Heard(text, confidence=confidence)
    model.parts = replace(model.parts, recogniser=FixedRecogniser(heard))
    works: list[Work] = [
        StartSession("half_duplex", seed=1),
        turn("user", Audio(voice(1.0), "turn"), is_closed=False),
        Generate(),
    ]
    sounds = (voice(1.0), quiet(1.0), quiet(1.0))
    units = [work for sound in sounds for work in (unit(sound), StepUnit(), Finalize())]
    duplex: list[Work] = [
        StartSession("duplex", seed=1, duplex=DuplexConfig(force_listen_count=0)), *units,
    ]  # fmt: skip

    assert Cast(model).play(0, works)[-1].text == answer
    spoken = "".join(outcome.text for outcome in Cast(model).play(0, duplex))
    assert spoken.startswith(answer.partition(".")[0])


@pytest.mark.parametrize("hearing", ["turn", "clip"])
@pytest.mark.parametrize(("sound", "words"), [(quiet(2.0), ""), (voice(2.0), "You.")])
def test_a_message_without_speech_has_no_words(sound: Pcm, words: str, hearing: Any):
    model: Any = small_cascade(rows=1)
    model.parts = replace(model.parts, recogniser=FixedRecogniser(Heard("You.", confidence=-0.6)))
    said = turn("user", Audio(sound, hearing), is_closed=False)

    (_, prefilled, answer) = Cast(model).play(0, [StartSession("chat", seed=1), said, Generate()])

    assert result_of(prefilled).heard == words
    assert answer.text.startswith(ONCE_MORE) == (not words)


@pytest.mark.parametrize(
    ("text", "confidence", "is_asked_for_again"),
    [
        ("What are you?", -0.7, False),
        ("Maybe.", -0.65, False),
        ("Maybe.", -0.75, True),
        ("Maybe they will.", -0.65, True),
    ],
)
def test_usual_questions_and_single_words_are_answered_though_they_were_hardly_heard(
    text: str, confidence: float, is_asked_for_again: bool
):
    model: Any = small_cascade(rows=1)
    model.parts = replace(model.parts, recogniser=FixedRecogniser(Heard(text, confidence)))
    said = (turn("user", Audio(voice(1.0), "turn"), is_closed=False), Generate())

    answer = Cast(model).play(0, [StartSession("half_duplex", seed=1), *said])[-1].text

    assert answer.startswith(ONCE_MORE) == is_asked_for_again


def test_a_note_ends_where_an_answer_has_to():
    model = small_cascade(rows=1)
    said = turn("user", Text("What is seven plus five?"), is_closed=False)
    works: list[Work] = [StartSession("half_duplex", seed=1), said, Generate(max_new_tokens=9)]

    (*_, reply) = Cast(model).play(0, works)

    assert reply.text == "7 plus 5"
    assert isinstance(reply.result, GenerateResult)
    assert reply.result.ending is Ending.LIMIT


def test_what_was_not_understood_is_asked_for_in_other_words_each_time():
    model: Any = small_cascade(rows=1)
    heard = Heard("Shendtu Mfive the free-care", confidence=-0.7)
    model.parts = replace(model.parts, recogniser=FixedRecogniser(heard))
    said = (turn("user", Audio(voice(1.0), "turn"), is_closed=False), Generate())
    works: list[Work] = [StartSession("half_duplex", seed=1), *said * 4]

    asked = [one.text for one in Cast(model).play(0, works) if one.text]

    assert asked[0] == ONCE_MORE
    assert all(len(set(asked[n : n + 3])) == 3 for n in (0, 1))
    assert all(one.endswith(("?", "once more.")) for one in asked)


@pytest.mark.parametrize(
    ("heard", "confidence", "answers"),
    [
        ("I am not going to make it.", -0.6, ["Did you say: I am not going to make it?"]),
        ("I am not going to make it. | Yes, I did.", -0.6, ["Did you say", "I'm so sorry"]),
        (
            "I am not going to make it. | No.",
            -0.6,
            ["Did you say", "I'm sorry. What did you mean?"],
        ),
        (
            "I am not going to make it. | No, what is 2 plus 3?",
            -0.6,
            ["Did you say", "2 plus 3 is 5."],
        ),
        (
            "I am not going to make it. | I am not going to make it.",
            -0.6,
            ["Did you say", "I'm so sorry"],
        ),
        (
            "I am not going to make it.",
            -0.4,
            ["I'm not sure that I understand you. Is anyone in danger?"],
        ),
        ("I want to kill myself.", -0.7, ["I'm so sorry"]),
    ],
)
def test_what_may_be_danger_but_was_hardly_heard_is_asked_back_once(heard, confidence, answers):
    model: Any = small_cascade(rows=1)
    recogniser = FixedRecogniser(Heard(""))
    model.parts = replace(model.parts, recogniser=recogniser)
    cast = Cast(model)
    cast.play(0, [StartSession("half_duplex", seed=1)])
    for text, answer in zip(heard.split(" | "), answers, strict=True):
        recogniser.heard = Heard(text, confidence=confidence)
        said = (turn("user", Audio(voice(1.0), "turn"), is_closed=False), Generate())

        assert cast.play(0, list(said))[-1].text.startswith(answer)


@pytest.mark.parametrize("text", ["[music]", "(coughing)", "(laughs in the hall)", "[static]"])
def test_sounds_are_not_language(text: str) -> None:
    assert clean(text) == ""


@pytest.mark.parametrize(("unsure", "counted"), [(0, 0), (10, 10), (40, 23)])
def test_a_unit_keeps_a_whisper_from_its_first_sound(unsure, counted):
    turns = Turns()
    chances = [0.1] * 9 + [0.3] * unsure + [0.9] * 6
    for number, probability in enumerate(chances):
        turns = turns.take(np.full(WINDOW_SAMPLES, number, np.float32), probability)

    assert turns.sound[0][0] == 9 + unsure - counted - 4
    assert turns.odds(lambda said, asked: float(said[0])) == 9 + unsure - 1


@pytest.mark.parametrize(
    ("odds", "windows", "stops"),
    [
        (1.3, 5, False), (1.5, 5, True), (1.5, 2, False), (0.1, 6, True), (-0.1, 6, False),
        (-3.0, 17, False), (-3.0, 18, True),
    ],
)  # fmt: skip
@pytest.mark.parametrize("quiet_windows", [0, 2])
def test_what_sounds_like_an_acknowledgement_stops_no_answer(odds, windows, stops, quiet_windows):
    turns = Turns()
    for number, probability in enumerate([0.0] * 9 + [0.9] * windows + [0.0] * quiet_windows):
        turns = turns.take(np.full(WINDOW_SAMPLES, number, np.float32), probability)

    def onsets(said: Samples, asked: int) -> float:
        assert said[0] == 8
        assert said[-1] == 8 + len(said) // WINDOW_SAMPLES - (asked == OVER)
        assert len(said) == (
            WINDOW_SAMPLES * (windows + 1) if quiet_windows else 16 * (64 + ASKED_MS[asked])
        )
        assert (asked == OVER) is bool(quiet_windows)
        return odds

    assert turns.interrupts(onsets) is stops
    assert turns.interrupts(None) is (windows > 5)
    assert not Turns().interrupts(onsets)
    constant = replace(turns, sound=tuple(np.full_like(each, 0.01) for each in turns.sound))
    assert constant.interrupts(lambda said, _: 9.0 if said.any() else -9.0) is (windows > 17)


@pytest.mark.parametrize(
    ("sounds", "heard_s"),
    [
        ((voice(1.0), voice(0.7), quiet(0.3)), 1.9),
        ((voice(0.5), quiet(0.25), voice(0.25), voice(0.7), quiet(0.3)), 1.4),
        ((voice(1.0), quiet(0.25), voice(0.7), quiet(0.05)), 1.1),
        ((voice(1.0), voice(0.3), quiet(0.7)), None),
    ],
    ids=["it continues", "behind a pause", "another utterance", "the end of an echo"],
)
def test_speech_that_continues_was_not_an_echo(monkeypatch, sounds, heard_s):
    """Where its first unit sounds like what was just played."""
    judged = iter([True, heard_s is None])
    monkeypatch.setattr(prefill, "is_echo", lambda *heard: next(judged, False))
    model: Any = small_cascade(rows=1)
    if heard_s is None:
        model.parts = replace(model.parts, recogniser=FixedRecogniser(Heard("Air.")))
    cast = Cast(model)
    cast.play(0, [StartSession("duplex", seed=1, duplex=DuplexConfig(force_listen_count=0))])
    state = memory_of(model)
    model._conversations[0].state = replace(state, echo=np.ones(2 * RATE_HZ, np.float32))
    said = Pcm(np.concatenate([one.samples for one in (*sounds, quiet(1.0))]), RATE_HZ)
    seconds = round(said.duration_s)
    works = [
        work
        for at_s in range(seconds)
        for work in (unit(said.slice(RATE_HZ * at_s, RATE_HZ * (at_s + 1))), StepUnit(), Finalize())
    ]

    cast.play(0, works)

    (line, *_) = [*(one for one in memory_of(model).history.lines if one.role == "user"), None]
    if heard_s is None:
        assert line is None
    else:
        assert int(line.text.split()[2]) / 10 == pytest.approx(heard_s, abs=0.15)


@pytest.mark.parametrize(
    ("text", "odds", "confidence", "is_answered", "stops"),
    [
        ("Yeah.", -1, 0, False, False),
        ("What is that?", -1, 0, True, True),
        ("What is that?", -1, -0.6, True, False),
        ("Stop.", 1, 0, True, True),
        ("Hold on, please.", -1, 0, True, True),
        ("Go back.", -1, 0, True, True),
        ("No,", -1, -0.8, False, False),
    ],
)
def test_speech_over_two_units_is_judged_whole_and_an_acknowledgement_not_answered(
    text: str, odds: float, confidence: float, *, is_answered: bool, stops: bool
) -> None:
    judged_ms: list[int] = []

    def onsets(said: Samples, asked: int) -> float:
        judged_ms.append(len(said) // 16)
        return odds if asked == OVER else -1

    model: Any = small_cascade(rows=1)
    recogniser = FixedRecogniser(Heard("Tell me a story."))
    model.parts = replace(model.parts, recogniser=recogniser, judges=TurnJudges(onsets=onsets))
    cast = Cast(model)
    cast.play(0, [StartSession("duplex", seed=1, duplex=DuplexConfig(force_listen_count=0))])
    said = join((quiet(0.75), voice(0.5, seed=3), quiet(0.75)), RATE_HZ)
    heard: list[str] = []
    answer, is_over = "", False
    parts = (said.slice(0, RATE_HZ), said.slice(RATE_HZ))
    for sound in (voice(1.0), quiet(1.0), *parts, *[quiet(1.0)] * 6):
        done = cast.play(0, [unit(sound), StepUnit(), Finalize()])[1]
        heard += filter(None, [result_of(done).heard])
        recogniser.heard = Heard(text, confidence) if heard else recogniser.heard
        answer += "" if is_over else done.text
        has_stopped = bool(answer) and result_of(done).ending is Ending.LISTEN
        is_over |= has_stopped or result_of(done).end_of_turn

    assert judged_ms[1] - judged_ms[0] >= 200
    assert heard == ["Tell me a story.", text][: 1 + is_answered]
    # The history of an answer that was stopped ends where it was heard.
    kept = next(line.text for line in memory_of(model).history.lines if line.role == "assistant")
    assert (kept != answer.strip()) is stops


@pytest.mark.parametrize(
    ("text", "confidence", "resumes"),
    [
        ("Oh, I see.", 0, True), ("I see.", -0.8, True), ("", 0, False),
        ("What is that?", 0, False), ("Stop.", 0, False),
    ],
)  # fmt: skip
def test_an_answer_that_an_acknowledgement_interrupted_resumes(
    text: str, confidence: float, *, resumes: bool
) -> None:
    model: Any = small_cascade(rows=1)
    recogniser = FixedRecogniser(Heard("Tell me a story."))
    judges = TurnJudges(onsets=lambda said, asked: 2.0)
    model.parts = replace(model.parts, recogniser=recogniser, judges=judges)
    cast = Cast(model)
    cast.play(0, [StartSession("duplex", seed=1, duplex=DuplexConfig(force_listen_count=0))])
    said = join((quiet(0.65), voice(0.5, seed=3), quiet(0.85)), RATE_HZ)
    done = []
    parts = (said.slice(0, RATE_HZ), said.slice(RATE_HZ))
    for sound in (voice(1.0), quiet(1.0), *parts, *[quiet(1.0)] * 6):
        done.append(cast.play(0, [unit(sound), StepUnit(), Finalize()])[1])
        recogniser.heard = Heard(text, confidence) if done[-1].text else recogniser.heard

    endings = [result_of(each).ending for each in done[1:]]
    assert endings[:2] == [Ending.SPOKE, Ending.LISTEN]
    # The history of an answer that was stopped ends where it was heard.
    lines = [line.text for line in memory_of(model).history.lines]
    assert ("".join(each.text for each in done).split() == lines[1].split()) is resumes


@pytest.mark.parametrize(
    ("asked_s", "softer_db", "stops"),
    [(1.0, 3, True), (1.0, 10, False), (1.0, -6, True), (0.5, 10, False), (0.0, 10, True)],
)
def test_a_voice_much_softer_than_the_users_stops_no_answer(asked_s, softer_db, *, stops):
    """Before a user was heard, as when the question was typed, any voice is the user's."""
    model: Any = small_cascade(rows=1)
    recogniser = FixedRecogniser(Heard("Tell me a story."))
    judges = TurnJudges(onsets=lambda said, asked: 2.0)
    model.parts = replace(model.parts, recogniser=recogniser, judges=judges)
    cast = Cast(model)
    cast.play(0, [StartSession("duplex", seed=1, duplex=DuplexConfig(force_listen_count=0))])
    asked = unit(join((voice(asked_s), quiet(1 - asked_s)), RATE_HZ))
    if not asked_s:
        asked = Prefill((*asked.segments, Text("Tell me a story.")))
    other = Pcm(voice(1.0, seed=3).samples / np.float32(10 ** (softer_db / 20)), RATE_HZ)
    answer = ""
    for heard in (asked, unit(quiet(1.0)), *[unit(other)] * 2, *[unit(quiet(1.0))] * 6):
        done = cast.play(0, [heard, StepUnit(), Finalize()])[1]
        if done.text:
            recogniser.heard = Heard("And now the weather.")
        answer += done.text

    lines = [line.text for line in memory_of(model).history.lines]
    assert ("And now the weather." in lines) is stops
    assert (answer.split() != lines[1].split()) is stops


@pytest.mark.parametrize(
    ("softer_db", "is_softer"),
    [
        ((9, 2, 9, 9), False), ((9,) * 4, True), ((14, 6, 14, 14), True),
        ((9, 2, *(9,) * 14), True), ((2,) * 16, False), ((2,) * 12 + (10,) * 16, False),
    ],
    ids=["a short word", "a soft short word", "another's short word", "soft speech", "speech",
         "speech with a soft end"],
)  # fmt: skip
def test_a_voice_is_as_loud_as_a_short_word_on_average_or_as_its_speech(softer_db, is_softer):
    turns = Turns()
    for each in softer_db:
        window = np.tile(np.array([0.1, -0.1], np.float32), WINDOW_SAMPLES // 2)
        turns = turns.take(window / np.float32(10 ** (each / 20)), 0.9)

    assert turns.is_softer(0.01) is is_softer
    assert not turns.is_softer(0.0)


class Findings(OneStep):
    """Finds acknowledgements `near` as likely as the words, and all else impossible."""

    def __init__(self, heard: Heard, near: float) -> None:
        super().__init__(lambda: heard)
        self._near = near

    def likelihoods(self, texts: list[str]) -> list[float]:
        return [
            -1.0,
            *(self._near - 1.0 if is_acknowledgement(one) else -99.0 for one in texts[1:]),
        ]

    def word_times(self, text: str) -> tuple[()]:
        return ()


@pytest.mark.parametrize(
    ("text", "confidence", "odds", "near", "resumes"),
    [
        ("God it.", 0, 0.5, -5.0, True),
        # By its sound it is less likely to be one.
        ("God it.", 0, 1.3, -5.0, False), ("God it.", 0, 1.5, -0.1, False),
        ("Next one.", 0, 0.5, -9.0, False), ("Really?", 0, 0.5, -1.0, False),
        # What is not believed is not corrected.
        ("God it.", -1.3, 0.5, -0.1, False),
    ],
)  # fmt: skip
def test_a_misheard_acknowledgement_stops_no_answer(text, confidence, odds, near, *, resumes):
    model: Any = small_cascade(rows=1)
    recogniser: Any = FixedRecogniser(Heard("Tell me a story."))
    judges = TurnJudges(onsets=lambda said, asked: odds)
    model.parts = replace(model.parts, recogniser=recogniser, judges=judges)
    cast = Cast(model)
    cast.play(0, [StartSession("duplex", seed=1, duplex=DuplexConfig(force_listen_count=0))])
    said = join((quiet(0.5), voice(0.5, seed=3)), RATE_HZ)
    done = []
    for sound in (voice(1.0), quiet(1.0), said, *[quiet(1.0)] * 6):
        done.append(cast.play(0, [unit(sound), StepUnit(), Finalize()])[1])
        if done[-1].text:
            recogniser.begin = lambda samples: Findings(Heard(text, confidence), near)

    lines = [line.text for line in memory_of(model).history.lines]
    assert ("".join(each.text for each in done).split() == lines[1].split()) is resumes


def test_speech_that_continues_an_interruption_is_not_dropped(monkeypatch) -> None:
    monkeypatch.setattr(prefill, "is_echo", lambda heard, *_: len(heard) < RATE_HZ // 2)
    model: Any = small_cascade(rows=1)
    cast = Cast(model)
    cast.play(0, [StartSession("duplex", seed=1, duplex=DuplexConfig(force_listen_count=0))])
    state = memory_of(model)
    model._conversations[0].state = replace(state, echo=np.ones(2 * RATE_HZ, np.float32))
    first = join((quiet(0.25), voice(0.75)), RATE_HZ)

    for sound in (first, voice(0.4), quiet(1.0)):
        cast.play(0, [unit(sound), StepUnit(), Finalize()])

    (line, *_) = (one for one in memory_of(model).history.lines if one.role == "user")
    assert int(line.text.split()[2]) / 10 > 1.0
