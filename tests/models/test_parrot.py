import contextlib

import numpy as np
import pytest
from tests.contracts.conversations import Cast, Style, turn, unit
from tests.contracts.model import ModelContract
from tests.support.sounds import silence, speak

from parley import models
from parley.engine.segments import Audio, Image, Mark, Marker, Text
from parley.engine.work import Ending, Finalize, Generate, Prefill, StartSession, StepUnit, Window
from parley.errors import ContextFull, InvalidRequest, SetupError
from parley.media.pcm import Pcm
from parley.models.parrot import Parrot, words_of
from parley.settings import ModelSettings


class TestContract(ModelContract):
    @classmethod
    def make(cls):
        return Parrot(3)

    @contextlib.contextmanager
    def sabotage(self, model, row):
        from parley.models.parrot import _PrefillJob

        compute = _PrefillJob.compute

        def fail(job):
            if job.row == row:
                raise RuntimeError("sabotage")
            return compute(job)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(_PrefillJob, "compute", fail)
            yield


@pytest.fixture
def cast():
    return Cast(Parrot(1))


def said(cast, *segments, mode="chat"):
    works = [StartSession(mode, seed=1), turn("user", *segments, is_closed=False), Generate()]
    return cast.play(0, works)[-1]


def test_it_says_how_long_and_how_loud_you_spoke(cast):
    assert said(cast, Audio(speak(2.5, level=0.1))).text == "You spoke for 2.5 seconds at -23 dB."


def test_it_says_what_it_saw_and_read(cast):
    pixels = np.zeros((48, 64, 3), np.uint8)

    outcome = said(cast, Image(pixels), Text("Look"), Image(pixels))

    assert outcome.text == "I saw 2 pictures of 64 by 48. You wrote: Look"


def test_silence_and_nothing_have_words_too(cast):
    assert said(cast, Audio(silence(1.0))).text == "You spoke for 1.0 seconds in silence."
    assert said(cast).text == "I heard nothing."


def test_it_plays_your_own_voice_back(cast):
    outcome = said(cast, Audio(speak(1.0)), mode="half_duplex")

    t = np.arange(24_000) / 24_000
    expected = 0.3 * np.sin(2 * np.pi * 300 * t)
    np.testing.assert_allclose(outcome.samples[500:-500], expected[500:-500], atol=3e-3)


def test_text_leads_sound(cast):
    outcome = said(cast, Audio(speak(3.0)))

    kinds = ["sound" if piece.pcm else "text" for piece in outcome.pieces]
    assert kinds[:5] == ["text"] * 4 + ["sound"]
    assert kinds.count("sound") == 3


def test_only_the_last_turn_is_echoed(cast):
    works = Style().turns()

    replies = [outcome for outcome in cast.play(0, works) if isinstance(outcome.work, Generate)]

    assert len(replies[0].samples) == 1.4 * 24_000
    assert len(replies[1].samples) == 0.8 * 24_000


def test_words_and_chinese_characters_are_tokens():
    assert words_of("Hello, big world") == ("Hello, ", "big ", "world")
    assert words_of("你好 a") == ("你", "好 ", "a")
    assert words_of("  ") == ()


def test_pictures_cost_tokens_per_slice(cast):
    big = np.zeros((1344, 1344, 3), np.uint8)
    cast.play(0, [StartSession("chat", seed=1)])

    costs = [
        cast.play(0, [Prefill((Image(big, max_slices=limit),))])[0].result.added_tokens
        for limit in (1, 2, 4, 9)
    ]

    assert costs == [66, 3 * 66, 5 * 66, 10 * 66]


def test_the_context_ends_at_its_limit(cast):
    cast.play(0, Style().units(count=0))
    assert cast.model.context_tokens(0) == 17
    one_unit = [unit(silence(1.0)), StepUnit(), Finalize()]
    for _ in range((8192 - 17) // 13):
        cast.play(0, one_unit)
    assert cast.model.context_tokens(0) == 17 + 628 * 13

    with pytest.raises(ContextFull, match="8192 tokens, the request has 8195"):
        cast.play(0, one_unit)


def test_a_window_keeps_a_duplex_context_small(cast):
    (start,) = Style().units(count=0)[:1]
    assert isinstance(start, StartSession)
    options = start.duplex
    window = Window("context", max_units=4, previous_max_tokens=6)
    cast.play(0, [StartSession("duplex", seed=1, window=window, duplex=options)])
    cast.play(0, [turn("system", Text("one two three"))])

    lengths = []
    for index in range(40):
        sound = speak(1.0) if index % 3 == 0 else silence(1.0)
        outcomes = cast.play(0, [unit(sound), StepUnit(), Finalize()])
        lengths.append(outcomes[-1].result.context_tokens)

    assert max(lengths) < 8 + 8 + 5 * 25
    assert any(outcome > 8 + 4 * 13 for outcome in lengths)


def test_two_seconds_of_words_are_spread_over_the_sound(cast):
    works = [*Style().units(count=0), unit(speak(1.0)), StepUnit(), Finalize()]
    cast.play(0, works)
    cast.play(0, [unit(speak(1.0)), StepUnit(), Finalize()])

    outcomes = cast.play(
        0, [unit(silence(1.0)), StepUnit(), Finalize(), unit(silence(1.0)), StepUnit()]
    )

    answers = [outcome for outcome in outcomes if isinstance(outcome.work, StepUnit)]
    assert [answer.result.text_tokens for answer in answers] == [4, 4]
    assert [answer.result.end_of_turn for answer in answers] == [False, True]


def test_short_units_end_in_a_short_last_delta(cast):
    cast.play(0, Style().units(count=0))
    for _ in range(5):
        cast.play(0, [unit(speak(0.25)), StepUnit(), Finalize()])

    sounds, endings = [], []
    for _ in range(3):
        answer = cast.play(0, [unit(silence(0.25)), StepUnit(), Finalize()])[1]
        sounds.append(len(answer.samples))
        endings.append(answer.result.ending)

    assert sounds == [24_000, 6_000, 0]
    assert endings == [Ending.SPOKE, Ending.SPOKE, Ending.LISTEN]


def test_sound_of_another_rate_is_refused(cast):
    cast.play(0, [StartSession("chat", seed=1)])

    with pytest.raises(InvalidRequest, match="Sound must have 16000 Hz here, got 8000 Hz"):
        cast.play(0, [Prefill((Audio(Pcm.silence(10, 8000)),))])


def test_a_unit_has_to_be_settled(cast):
    cast.play(0, [*Style().units(count=0), unit(silence(1.0)), StepUnit()])

    with pytest.raises(InvalidRequest, match="has not been finalized"):
        cast.play(0, [unit(silence(1.0))])


def test_models_are_found_by_name():
    model = models.load(ModelSettings(name="parrot", slots=3))

    assert (model.spec.name, model.rows) == ("parrot", 3)
    assert models.load(ModelSettings(name="parrot", slots="auto")).rows == 8
    assert models.describe(ModelSettings(name="parrot")).problems == ()
    assert "parrot" in models.known_names()


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(SetupError, match="There is no model called 'parot'") as caught:
        models.load(ModelSettings(name="parot"))

    assert "parrot" in caught.value.hint


def test_a_checkpoint_folder_is_recognised_by_its_config(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "minicpmo"}')
    assert models.resolve(str(tmp_path)) == "minicpmo45"

    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    with pytest.raises(SetupError, match="of type 'gpt2', which is not known here"):
        models.resolve(str(tmp_path))

    (tmp_path / "config.json").unlink()
    with pytest.raises(SetupError, match="is not a checkpoint"):
        models.resolve(str(tmp_path))


def test_a_hub_id_is_the_real_model():
    assert models.resolve("openbmb/MiniCPM-o-4_5") == "minicpmo45"


def test_markers_of_turns_have_a_price(cast):
    cast.play(0, [StartSession("chat", seed=1)])

    outcome = cast.play(
        0, [Prefill((Marker(Mark.TURN_START, "user"), Text("a"), Marker(Mark.TURN_END, "user")))]
    )[0]

    assert outcome.result.added_tokens == 3 + 1 + 2
