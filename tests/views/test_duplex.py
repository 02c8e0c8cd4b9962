from typing import cast

import numpy as np
import pytest
from tests.support.faults import Faulty
from tests.support.sounds import sequence, silence, speak

from parley.engine import Engine
from parley.engine.engine import SlotHandle
from parley.engine.work import Stage, WholeUnit
from parley.errors import InferenceFailed, InvalidRequest
from parley.models.parrot import Parrot
from parley.protocol.values import DuplexConfig
from parley.views.duplex import DuplexView

READY = DuplexConfig(force_listen_count=0)
FRAME = np.zeros((480, 640, 3), np.uint8)


@pytest.fixture
def view(slot):
    return DuplexView(slot)


async def unit(view, sound, frames=(), force_listen=False):
    await view.prefill(sound, frames)
    result = await view.generate(force_listen)
    await view.finalize()
    return result


async def test_it_listens_while_you_speak_and_answers_when_you_are_silent(view):
    await view.prepare(options=READY)

    results = [await unit(view, sound) for sound in [speak(1)] * 3 + [silence(1)] * 5]

    assert [result.is_listen for result in results] == [True] * 3 + [False] * 3 + [True] * 2
    assert [result.end_of_turn for result in results] == [False] * 5 + [True] + [False] * 2
    assert [len(result.audio) for result in results[3:6]] == [24_000] * 3
    assert "".join(result.text for result in results) == "You spoke for 3.0 seconds at -13 dB."


async def test_lengths_are_counted_to_the_token(view):
    prompt = await view.prepare("Be kind.", ref_audio=speak(2.0), options=READY)
    lengths = [(await unit(view, speak(1))).kv_cache_length for _ in range(3)]
    with_frame = await unit(view, speak(1), [FRAME])

    assert prompt == 3 + 2 + 20 + 2
    assert lengths == [prompt + 11, prompt + 24, prompt + 37]
    assert view.kv_cache_length == prompt + 3 * 13 + 79
    assert (with_frame.vision_slices, with_frame.vision_tokens) == (1, 64)


async def spoken(view, units):
    """After three seconds of speech: so many units of the answer, and the context before them."""
    await view.prepare(options=READY)
    for _ in range(3):
        await unit(view, speak(1))
    before = view.kv_cache_length
    return before, [(await unit(view, silence(1))).text for _ in range(units)]


LISTENED = 1 + 10 + 2
"""A unit that listens: its marker, a second of sound, its end."""


@pytest.mark.parametrize(
    ("unheard", "unsent", "says", "listens"),
    [
        (0, 0, ["You spoke for ", "3.0 seconds at "], 0),  # all of it was heard
        (11, 0, ["You spoke for ", "3.0"], 0),
        (15, 0, ["You spoke for ", ""], 0),
        (20, 0, ["You spoke"], 1),
        (0, 1, ["You spoke for ", ""], 0),  # the newest unit was not sent
        (5, 1, ["You spoke"], 1),
    ],
)
async def test_the_context_holds_what_was_heard_of_an_answer(view, unheard, unsent, says, listens):
    before, texts = await spoken(view, 2)
    assert texts == ["You spoke for ", "3.0 seconds at "]

    went = await view.cut_answer(unheard, unsent)
    after = await unit(view, silence(1), force_listen=True)

    words = sum(len(text.split()) for text in says)
    expected = before + len(says) * (LISTENED + 1) + words + listens * LISTENED
    assert went
    assert after.is_listen
    assert view.kv_cache_length == expected + LISTENED


async def test_an_answer_that_was_cut_is_not_continued(view):
    await spoken(view, 1)
    await view.cut_answer(10, 0)

    results = [await unit(view, silence(1)) for _ in range(3)]

    assert all(result.is_listen for result in results)


async def test_an_answer_can_be_cut_again(view):
    before, _ = await spoken(view, 2)

    await view.cut_answer(0, 1)
    await view.cut_answer(4, 0)

    assert view.kv_cache_length == before + 2 * LISTENED + 1 + 2


async def test_an_answer_longer_ago_than_units_are_kept_stays(view):
    await spoken(view, 1)
    for _ in range(4):
        await unit(view, silence(1), force_listen=True)
    length = view.kv_cache_length

    assert await view.cut_answer(10, 0)
    assert view.kv_cache_length == length


async def test_an_answer_is_cut_between_two_units_only(view):
    await spoken(view, 1)
    await view.prefill(silence(1))
    await view.generate()

    with pytest.raises(RuntimeError, match="finalize"):
        await view.cut_answer(0, 0)


async def test_a_unit_that_is_taken_back_can_be_decided_otherwise(view):
    before, _ = await spoken(view, 0)
    answered = await view.unit(silence(1))

    assert await view.take_back()
    length = view.kv_cache_length
    listened = await view.unit(silence(1), force_listen=True)
    await view.finalize()
    later = await unit(view, silence(1))

    assert (answered.text, listened.is_listen, later.text) == (
        "You spoke for ",
        True,
        "You spoke for ",
    )
    assert length == before
    assert listened.current_time == answered.current_time


async def test_a_unit_is_taken_back_once(view):
    await spoken(view, 1)
    await view.unit(silence(1))

    assert await view.take_back()
    assert not await view.take_back()


async def test_the_next_prefill_waits_for_a_finalize(view):
    await view.prepare()
    await view.prefill(speak(1))
    await view.generate()

    with pytest.raises(RuntimeError, match="finalize must run"):
        await view.prefill(speak(1))

    assert (await view.finalize()) is not None
    assert (await view.finalize()) is None
    assert (await view.prefill(speak(1))).success


async def test_nothing_in_nothing_out(view):
    prompt = await view.prepare()

    heard = await view.prefill(None)
    result = await view.generate()

    assert (heard.success, heard.reason) == (False, "there is neither sound nor a picture")
    assert result.is_listen
    assert await view.finalize() is None
    assert view.kv_cache_length == prompt


async def test_text_only_on_request(view):
    await view.prepare(options=DuplexConfig(force_listen_count=0, generate_audio=False))
    await unit(view, speak(1))

    result = await unit(view, silence(1))

    assert (result.is_listen, result.audio, result.end_of_turn) == (False, None, True)
    assert result.text == "You spoke for 1.0 seconds at -13 dB."


async def test_stop_ends_the_answers(view):
    await view.prepare()

    view.stop()
    heard = await view.prefill(speak(1))
    result = await view.generate()

    assert view.is_stopped()
    assert view.is_break_set()
    assert (heard.success, heard.reason) == (False, "stopped")
    assert (result.is_listen, result.end_of_turn) == (True, True)
    await view.prepare()
    assert not view.is_stopped()
    assert not view.is_break_set()


async def test_a_conversation_has_to_be_prepared(slot):
    with pytest.raises(InvalidRequest, match="has not been prepared"):
        await DuplexView(slot).prefill(speak(1))


@pytest.mark.parametrize("stage", [Stage.ENCODE, Stage.PREFILL, Stage.DECODE, Stage.VOCODE])
async def test_a_unit_that_fails_is_as_if_it_had_not_been(stage):
    model = Faulty(Parrot(1))
    async with Engine(model) as engine, await engine.take_slot() as slot:
        view = DuplexView(slot)
        await view.prepare(options=READY)
        await unit(view, speak(1))
        before = view.kv_cache_length

        model.fail_at(stage)
        with pytest.raises(InferenceFailed):
            await unit(view, silence(1))

        assert view.kv_cache_length == before
        result = await unit(view, silence(1))
        assert result.text == "You spoke for 1.0 seconds at -13 dB."


@pytest.mark.parametrize("decided", [0, 1])
@pytest.mark.parametrize("stage", [Stage.DECODE, Stage.FINALIZE])
async def test_units_follow_an_answer_whose_shortening_failed(stage, decided):
    model = Faulty(Parrot(1))
    async with Engine(model) as engine, await engine.take_slot() as slot:
        view = DuplexView(slot)
        before, _ = await spoken(view, 2)

        model.fail_at(stage, after=decided)
        with pytest.raises(InferenceFailed):
            await view.cut_answer(20, 0)
        length = view.kv_cache_length
        assert (length > before, view.decided_again) == (decided > 0, decided)
        assert (await unit(view, silence(1), force_listen=True)).is_listen

        # A replay of the same does the same.
        await spoken(view, 2)
        await view.cut_answer(20, 0, decided)
        assert view.kv_cache_length == length


async def test_a_recording_can_be_run_through(view, slot):
    await view.prepare(options=READY)

    results = await view.offline_inference(sequence(speak(1.5), silence(3.2)))

    assert [result.is_listen for result in results] == [True, True, False, False]
    assert results[-1].end_of_turn


class Noting:
    """Passes everything on to a slot and keeps the deadlines."""

    def __init__(self, slot):
        self._slot = slot
        self.dues = []
        self.given = []

    def __getattr__(self, name):
        method = getattr(self._slot, name)
        if name not in ("unit", "prefill", "generate", "finalize"):
            return method

        def note(*arguments, due_s=None, **options):
            self.dues.append(due_s)
            self.given += arguments
            return method(*arguments, due_s=due_s, **options)

        return note


async def test_everything_about_a_unit_is_due_when_the_unit_is(slot):
    noting = Noting(slot)
    view = DuplexView(cast(SlotHandle, noting))
    await view.prepare()
    await view.prefill(speak(1), due_s=5.0)
    await view.generate()
    await view.finalize()
    await view.unit(speak(1), due_s=6.0)
    await view.finalize()

    assert noting.dues == [None, 5.0, 5.0, 5.0, 6.0, 6.0]


async def test_after_what_was_heard_of_a_cut_answer_the_model_has_to_listen(slot):
    noting = Noting(slot)
    view = DuplexView(cast(SlotHandle, noting))
    await view.prepare()
    await spoken(view, 2)
    noting.given.clear()

    await view.cut_answer(20, 0)

    steps = [each.step for each in noting.given if isinstance(each, WholeUnit)]
    assert [(each.say, each.force_listen) for each in steps] == [("You spoke", False), (None, True)]
