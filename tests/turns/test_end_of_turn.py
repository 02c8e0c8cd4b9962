"""The silence that ends a turn depends on what was said; timelines of scripted probabilities."""

import asyncio

import numpy as np
import pytest
from tests.session.test_half_duplex import prepared
from tests.support import noises
from tests.support.patience import HANG_S
from tests.support.present import present
from tests.support.sessions import feed, worker_harness
from tests.support.timeline import Part, Script, chunks, silence, sound, speak, windows
from tests.turns.test_words import Says

from parley.errors import SetupError
from parley.media.pcm import Pcm
from parley.protocol.values import VadOptions
from parley.turns import TurnJudges, log_odds, silence_ms
from parley.turns.end_of_turn import word_bounds_ms
from parley.turns.smart_turn import end_of_turn, log_mel
from parley.turns.word_lists import (
    ACKNOWLEDGEMENT_SOUNDS,
    ACKNOWLEDGEMENTS,
    COMMANDS,
    UNFINISHED,
    is_acknowledgement,
    is_unfinished,
)
from parley.vad import SpeechEnded, UtteranceFinder
from parley.vad.base import WINDOW_SAMPLES


def ended_after_ms(probability: float, eagerness="auto", min_silence_ms=800, chunk_s=0.064):
    """Milliseconds of quiet until 20 windows of speech have become a turn."""
    says = Says(probability)
    options = VadOptions(eagerness=eagerness, min_silence_duration_ms=min_silence_ms)
    finder = UtteranceFinder(
        Script(windows(20, 0.95), windows(60, 0.0)), options, TurnJudges(says).silence(options)
    )
    position = 0
    for chunk in chunks(Pcm(np.zeros(80 * WINDOW_SAMPLES, np.float32), 16_000), chunk_s):
        position += len(chunk)
        if any(isinstance(event, SpeechEnded) for event in finder.feed(chunk)):
            return (position - 20 * WINDOW_SAMPLES) // 16
    return None


def test_who_has_finished_is_answered_soon_and_who_has_not_is_waited_for():
    assert ended_after_ms(0.99) == 256
    assert ended_after_ms(0.88) <= 512
    assert 1280 <= ended_after_ms(0.69) <= 1344
    assert 1500 <= ended_after_ms(0.02) <= 1556


def test_the_eager_wait_less_and_the_patient_longer():
    for probability in (0.02, 0.3, 0.6):
        low, medium, high = (
            ended_after_ms(probability, eagerness) for eagerness in ("low", "medium", "high")
        )
        assert low >= medium >= high
    assert 2500 <= ended_after_ms(0.02, "low") <= 2560
    assert silence_ms(-1.3, "high") == 1000


def test_a_silence_that_a_client_names_is_the_silence_it_gets():
    assert ended_after_ms(0.99, min_silence_ms=500) == 512
    assert ended_after_ms(0.01, min_silence_ms=500) == 512
    assert ended_after_ms(0.01, "off") == 832
    assert ended_after_ms(0.99, "medium", min_silence_ms=500) == 256


def judged_by(says: Says, *parts: Part) -> UtteranceFinder:
    return UtteranceFinder(Script(*parts), silence=TurnJudges(says).silence(VadOptions()))


def test_a_turn_ends_at_the_same_place_in_chunks_of_any_length():
    """A client of whole seconds is judged on the same sound."""
    says = []
    for chunk_s in (0.02, 0.1, 1.0, 3.0):
        one = Says(0.1)
        finder = judged_by(one, windows(20, 0.95), windows(60, 0.0))
        events = []
        for chunk in chunks(Pcm(np.zeros(80 * WINDOW_SAMPLES, np.float32), 16_000), chunk_s):
            events += finder.feed(chunk)
        says.append((one.lengths_ms, [event.at_sample for event in events]))

    assert says.count(says[0]) == 4


def test_every_pause_is_judged_twice_and_speech_that_continues_forgets_it():
    says = Says(0.02, 0.02, 0.99)
    parts = (windows(20, 0.95), windows(15, 0.0), windows(10, 0.95), windows(15, 0.0))
    finder = judged_by(says, *parts)
    events = finder.feed(Pcm(np.zeros(60 * WINDOW_SAMPLES, np.float32), 16_000))

    assert len(says.lengths_ms) == 4
    assert says.lengths_ms[1] - says.lengths_ms[0] == says.lengths_ms[3] - says.lengths_ms[2] == 64
    # Both stretches are one turn: 960 ms of quiet between them were not its end.
    (end,) = [event for event in events if isinstance(event, SpeechEnded)]
    assert end.at_sample == 45 * WINDOW_SAMPLES


def test_a_pause_that_words_hold_open_is_held_open_after_a_resume():
    before = judged_by(Says(0.99), windows(20, 0.95), windows(40, 0.0))
    before.feed(quiet(23))
    before.bound(present(before.pause_start), 1500, 1500)
    after = judged_by(Says(0.99), windows(40, 0.0))
    after.restore(before.remembered())

    # The network alone would have ended the turn after 256 ms.
    assert after.feed(quiet(19)) == []
    assert [type(event) for event in after.feed(quiet(3))] == [SpeechEnded]


def quiet(count):
    return Pcm(np.zeros(count * WINDOW_SAMPLES, np.float32), 16_000)


def ended(events):
    return [event.at_sample // WINDOW_SAMPLES for event in events if isinstance(event, SpeechEnded)]


def test_words_hold_open_the_pause_behind_them_and_no_later_one():
    parts = (windows(20, 0.95), windows(3, 0.0), windows(10, 0.95), windows(15, 0.0))
    finder = judged_by(Says(0.99), *parts)
    finder.feed(quiet(23))
    finder.bound(present(finder.pause_start), 1500, 1500)

    assert ended(finder.feed(quiet(14))) == [33]


def test_a_click_behind_a_turn_that_was_held_open_is_over_after_the_usual_silence():
    parts = (windows(20, 0.95), windows(30, 0.0), windows(1, 0.95), windows(30, 0.0))
    finder = judged_by(Says(0.02), *parts)

    assert ended(finder.feed(quiet(20 + 30 + 1 + 13))) == [20, 51]


def test_a_click_is_not_judged():
    says = Says(0.5)
    finder = judged_by(says, windows(1, 0.95), windows(40, 0.0))
    finder.feed(Pcm(np.zeros(41 * WINDOW_SAMPLES, np.float32), 16_000))

    assert says.lengths_ms == []


async def test_who_pauses_and_sends_nothing_any_more_is_answered():
    """A client may stop sending when it has sent its sentence and a little silence."""
    async with worker_harness(judges=TurnJudges(Says(0.02))) as harness:
        talk = await prepared(harness)
        feed(talk, sound(silence(0.3), speak(1.0), silence(0.5)), 0.1)

        async with asyncio.timeout(HANG_S):
            done = await talk.until("turn_done")

    assert "You spoke for" in done["text"]


async def test_a_sentence_with_a_long_pause_is_one_turn_where_it_is_held_back():
    pause = sound(silence(0.3), speak(1.0), silence(1.2), speak(1.0), silence(1.0))
    for judges, turns in ((TurnJudges(Says(0.02, 0.02, 0.99)), 1), (TurnJudges(), 2)):
        async with worker_harness(judges=judges) as harness:
            talk = await prepared(harness)
            feed(talk, pause, 0.1)
            await talk.until("turn_done", turns)
            states = [one["speaking"] for one in talk.socket.sent if one["type"] == "vad_state"]

        assert states.count(False) == turns, judges


@pytest.mark.parametrize(
    ("said", "is_open"),
    [
        *((said, True) for said in (
            "I would like to", "Can you tell me the", "Quiero un café y", "Ich möchte ein", "我想",
            "मैं", "What is the name of", "I was so", "We live in", "Oh, wait!",
            "What is the square root of?", "What is 20 divided by?", "What is 7 times?",
            "Ich nehme die", "Vorrei un caffè e", "Я хочу чай и", "我喜欢的",
            "Attends.", "Einen Moment.", "Подожди.", "等一下。",
        )),
        *((said, False) for said in (
            "What is the time?", "Why", "Turn it off.", "Quiero un café", "Das reicht",
            "今天天气很好", "I can wait.", "The TV is on.", "Turn the light on.", "I hope so.",
            "I know where the station is.", "What are you made of?", "How many times?",
            "This is my son.", "When did she die.", "It weighs a ton.", "谢谢你。", "好的。",
            "这是我的。",
        )),
    ],
)  # fmt: skip
def test_sentences_that_want_another_word_are_unfinished(said, is_open):
    assert is_unfinished(said) is is_open


@pytest.mark.parametrize(
    ("said", "bounds"),
    [
        *((said, (1100, 1500)) for said in (
            "My number is 5 5 5", "It's 555-12.", "five, five, five", "My name is Ann, A-N-N",
            "Code 90210.",
        )),
        *((said, None) for said in (
            "In 1999.", "I am 25 years old.", "See you at 10:30.", "On June 5, 2024.",
            "I ate one or two.", "I have a BMW.", "I have 2 dogs and 3 cats.", "It is 7 p.m.",
        )),
    ],
)  # fmt: skip
def test_who_dictates_a_number_or_spells_is_waited_for(said, bounds):
    assert word_bounds_ms(said, is_whole=False) == bounds


def test_what_the_model_knows_whole_is_not_waited_for():
    assert word_bounds_ms("555 1234", is_whole=True) == (0, 448)
    assert word_bounds_ms("Can you tell me the", is_whole=True) == (1500, 1500)
    assert word_bounds_ms("Is it 555 1234?", is_whole=False) == (0, 704)
    assert word_bounds_ms("今天天气怎么样？", is_whole=False) == (0, 704)


def test_every_language_has_its_lists():
    languages = {"en", "es", "fr", "de", "zh", "hi"}
    assert all(set(each) == languages for each in (COMMANDS, ACKNOWLEDGEMENT_SOUNDS))
    assert set(ACKNOWLEDGEMENTS) == set(UNFINISHED) == languages | {"it", "ru"}
    # As people say them and as a recogniser writes them: without accents, with other signs.
    said = (
        "Oh, I see.|Okay, that's very nice.|Uh-huh.|Mm-hm, gotcha.|Mhmm.|Okay then.|Ha ha ha!|"
        "Sí, claro que sí.|Si, si.|Aja|Ya veo.|Bien sûr.|Tres bien.|D’accord.|C'est ça.|Na klar.|"
        "Alles klar.|Achso.|Sehr gut.|Sì, certo.|Va bene.|Ho capito.|Да.|Угу.|Ну да, понятно.|"
        "हाँ|बिल्कुल|समझ गया|हां ठीक है|嗯。|对对对|沒錯|知道了|好吧"
    )
    assert [one for one in said.split("|") if not is_acknowledgement(one)] == []
    others = (
        "|That's|Really?|Okay?|No.|Yes, but why?|I see a dog.|Stop.|Ya basta.|No, eso no.|Non.|"
        "Je vois un chien.|Nein.|Moment mal.|Gut, aber warum|Aspetta.|Sì, ma perché|Va via.|Нет.|"
        "Стоп.|Да нет.|Хорошо, хватит.|बस करो|नहीं|不对|等等|我明白你的意思但是"
    )
    assert [one for one in others.split("|") if is_acknowledgement(one)] == []


def test_repeated_acknowledgements_are_divided_in_one_way_only():
    # As a recogniser writes them; a pattern with "ja" and "jaja" would take years.
    assert is_acknowledgement("对" * 2 + " 对" * 200)
    assert not is_acknowledgement("yeah " * 200 + "maybe")


def test_a_judge_does_not_hear_what_a_cheap_microphone_adds():
    heard, spoken = [], noises.spoken(noises.SENTENCES[0], "en")

    def judge(audio):
        heard.append(audio)
        return 0.5

    for samples in (spoken, spoken + np.float32(0.01)):
        log_odds(judge, samples)

    assert heard[1] is spoken
    np.testing.assert_allclose(heard[3], spoken, atol=5e-4)


def test_silences_follow_the_log_odds():
    found = [silence_ms(odds) for odds in np.linspace(-9, 9, 50)]

    assert found == sorted(found, reverse=True)
    assert (min(found), max(found)) == (256, 1500)


def tone(seconds: float) -> np.ndarray:
    return (0.1 * np.sin(np.arange(round(16_000 * seconds)) / 10)).astype(np.float32)


def test_features_are_whispers():
    """The energy of a tone of 255 Hz is in the bin that Slaney's scale has for it."""
    features = log_mel(tone(3.0), 400)

    assert features.shape == (80, 400)
    assert features.dtype == np.float32
    # 255 Hz are 3.8 Slaney steps of 66.7 Hz; 80 bins share 45.2 of them.
    assert abs(int(np.argmax(features[:, 300])) - 6) <= 1
    assert features[:, 50].max() == features.min()


def test_features_do_not_depend_on_what_is_before_the_window():
    late = tone(4.0)
    np.testing.assert_array_equal(log_mel(late, 400), log_mel(np.concatenate([late, late]), 400))


def test_the_bundled_network_answers_with_a_probability():
    judge = end_of_turn()

    assert 0 <= judge(tone(4.0)) <= 1


def test_a_file_that_is_no_such_network_is_named(tmp_path):
    wrong = tmp_path / "wrong.onnx"
    wrong.write_bytes(b"no network")

    with pytest.raises(SetupError, match=r"could not be loaded from .*wrong\.onnx"):
        end_of_turn(wrong)


def test_a_network_of_another_shape_is_refused():
    from parley.vad.silero import model_path

    with pytest.raises(SetupError, match=r"takes \(1, 80, F\)"):
        end_of_turn(model_path())
