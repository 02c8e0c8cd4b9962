import asyncio
from dataclasses import replace

import numpy as np
import pytest
from tests.support.faults import Faulty, Gated
from tests.support.present import present
from tests.support.sounds import speak

from parley.engine import Engine
from parley.engine.work import Ending, Stage, Window
from parley.errors import ContextFull, InferenceFailed, InvalidRequest
from parley.models.parrot import Parrot
from parley.protocol.values import Generation, TextPart
from parley.views.content import AudioPart, ImagePart, Message
from parley.views.half_duplex import HalfDuplexView, TurnRequest

SYSTEM = Message.of("system", "You are kind.")


@pytest.fixture
def view(slot):
    return HalfDuplexView(slot)


@pytest.fixture
async def talk(view):
    """A view that has read its system prompt, of 8 tokens."""
    await view.prefill(TurnRequest("s", (SYSTEM,)))
    return view


def said(seconds):
    return Message.of("user", AudioPart(speak(seconds)))


async def take_turn(view, seconds, generation=None):
    await view.prefill(TurnRequest("s", (said(seconds),)))
    return [chunk async for chunk in view.generate("s", generation)]


async def test_what_was_taken_in_early_is_given_back_for_another_turn(talk):
    for seconds in (1.0, 1.5):
        assert await talk.prefill_early(TurnRequest("s", (said(seconds),)))
    await take_turn(talk, 2.0)

    assert talk.kv_cache_length == 8 + 3 + 20 + 3 + 8
    assert present(talk.decoded).text == "You spoke for 2.0 seconds at -13 dB."


async def test_words_and_pictures_meanwhile_make_it_another_turn(talk):
    await talk.prefill_early(TurnRequest("s", (said(1.0),)))
    shown = ImagePart(np.zeros((48, 32, 3), np.uint8))
    both = Message("user", (TextPart("Hello"), AudioPart(speak(1.0)), shown))
    prefilled = await talk.prefill(TurnRequest("s", (Message("user", (shown,)), both)))
    [chunk async for chunk in talk.generate("s")]

    assert (prefilled.vision_slices, prefilled.vision_tokens) == (2, 128)
    text = present(talk.decoded).text
    assert "You spoke for 1.0 seconds at -13 dB. I saw" in text
    assert text.endswith("You wrote: Hello")


async def test_nothing_is_taken_in_early_for_which_something_would_be_forgotten(view):
    window = Window(kind="basic", high_tokens=160, low_tokens=100)
    await view.reset_session("s", window=window)

    assert not await view.prefill_early(TurnRequest("s", (said(2.0),)))
    assert view.kv_cache_length == 0
    assert await view.prefill_early(TurnRequest("s", (said(1.0),)))


async def test_another_session_knows_nothing_of_what_was_being_taken_in(talk):
    early = asyncio.create_task(talk.prefill_early(TurnRequest("s", (said(1.0),))))
    await asyncio.sleep(0)
    await talk.reset_session("s")
    await early
    await take_turn(talk, 2.0)

    assert present(talk.decoded).text == "You spoke for 2.0 seconds at -13 dB."


async def test_nothing_is_taken_in_for_a_session_that_was_replaced_meanwhile(talk, monkeypatch):
    prefill = talk._prefill

    async def replaced(*given):
        result = await prefill(*given)
        await talk.reset_session("s")
        return result

    monkeypatch.setattr(talk, "_prefill", replaced)

    assert not await talk.prefill_early(TurnRequest("s", (said(1.0),)))
    assert talk.early_words is None


async def test_where_the_model_fails_nothing_was_taken_in_early():
    model = Faulty(Parrot(1))
    async with Engine(model) as engine, await engine.take_slot() as slot:
        view = HalfDuplexView(slot)
        await view.prefill(TurnRequest("s", (SYSTEM,)))
        model.fail_at(Stage.ENCODE)

        assert not await view.prefill_early(TurnRequest("s", (said(1.0),)))
        await take_turn(view, 1.0)

    assert present(view.decoded).text == "You spoke for 1.0 seconds at -13 dB."


async def test_an_answer_that_was_started_early_is_the_answer(talk, slot):
    wanted = await take_turn(talk, 1.0)
    whole = talk.kv_cache_length
    await talk.rollback()
    await talk.reset_session("s")
    await talk.prefill(TurnRequest("s", (SYSTEM,)))
    calls = counted(slot)

    assert await talk.prefill_early(TurnRequest("s", (said(1.0),)), answer=Generation())
    assert calls == [1]
    prefilled = await talk.prefill(TurnRequest("s", (said(1.0),)))
    before = talk.kv_cache_length
    found = [chunk async for chunk in talk.generate("s")]

    assert calls == [1]
    assert prefilled.context_tokens == before == 8 + 3 + 10
    assert [chunk.text_delta for chunk in found] == [chunk.text_delta for chunk in wanted]
    assert talk.kv_cache_length == whole
    assert present(talk.decoded).text == "You spoke for 1.0 seconds at -13 dB."
    assert await talk.cut_answer("You")
    assert talk.kv_cache_length < whole


async def test_a_model_that_is_paid_for_starts_no_answer_early(talk, monkeypatch, slot):
    spec = replace(talk.spec, answers_early=False)
    monkeypatch.setattr(HalfDuplexView, "spec", spec)
    calls = counted(slot)

    assert await talk.prefill_early(TurnRequest("s", (said(1.0),)), answer=Generation())
    assert calls == []
    await take_turn(talk, 1.0)

    assert calls == [1]


async def test_an_early_answer_is_made_again_where_it_was_stopped_or_another_is_wanted(view):
    short = Generation(max_new_tokens=3)
    for early, asked, is_stopped in ((short, Generation(), False), (None, None, True)):
        await view.reset_session("s")
        await view.prefill(TurnRequest("s", (SYSTEM,)))
        request = TurnRequest("s", (said(1.0),))
        await view.prefill_early(request, answer=early or Generation())
        if is_stopped:
            view.stop_early()
        await view.prefill(request)
        [chunk async for chunk in view.generate("s", asked)]

        assert present(view.decoded).text == "You spoke for 1.0 seconds at -13 dB."
        assert view.kv_cache_length == 8 + 3 + 10 + 3 + 8


async def test_a_stopped_turn_takes_its_early_answer_with_it():
    model = Gated(Parrot(1))
    async with Engine(model) as engine, await engine.take_slot() as slot:
        view = HalfDuplexView(slot)
        await view.prefill(TurnRequest("s", (SYSTEM,)))
        model.shut(Stage.DECODE)
        request = TurnRequest("s", (said(1.0),))
        await view.prefill_early(request, answer=Generation())
        await view.prefill(request)
        view.stop_generation()
        model.open()
        # Nobody asks for the answer: the user's turn continues.
        await view.prefill(request)
        [chunk async for chunk in view.generate("s")]
        length = view.kv_cache_length

    assert present(view.decoded).text == "You spoke for 2.0 seconds at -13 dB."
    assert length == 8 + 3 + 10 + 10 + 3 + 8


async def test_an_early_answer_that_fails_is_the_failure_of_the_answer():
    model = Faulty(Parrot(1))
    async with Engine(model) as engine, await engine.take_slot() as slot:
        view = HalfDuplexView(slot)
        await view.prefill(TurnRequest("s", (SYSTEM,)))
        request = TurnRequest("s", (said(1.0),))
        for is_asked_for in (True, False):
            model.fail_at(Stage.DECODE)
            await view.prefill_early(request, answer=Generation())
            # Behind the answer.
            await slot.checkpoint()
            if is_asked_for:
                await view.prefill(request)
                with pytest.raises(InferenceFailed):
                    [chunk async for chunk in view.generate("s")]
                assert (await view.rollback()).success
                await view.reset_session("s")
                await view.prefill(TurnRequest("s", (SYSTEM,)))
        await take_turn(view, 2.0)

    assert present(view.decoded).text == "You spoke for 2.0 seconds at -13 dB."


async def test_no_answer_is_started_early_for_which_something_would_be_forgotten(view, slot):
    await view.reset_session("s", window=Window(kind="basic", high_tokens=400, low_tokens=300))
    calls = counted(slot)

    first, longer = (TurnRequest("s", (said(seconds),)) for seconds in (1.0, 1.1))
    assert await view.prefill_early(first, answer=Generation(max_new_tokens=300))
    assert calls == []
    assert await view.prefill_early(longer, answer=Generation(max_new_tokens=100))
    assert calls == [1]


def counted(slot):
    """Grows by an entry with every answer that the slot begins."""
    calls, generate = [], slot.generate

    def noted(command, **more):
        calls.append(1)
        return generate(command, **more)

    slot.generate = noted
    return calls


async def test_another_session_begins_again(view):
    await take_turn(view, 3.0)

    await view.prefill(TurnRequest("t", (SYSTEM,)))

    assert view.kv_cache_length == 8
    with pytest.raises(InvalidRequest, match="Nothing has been prefilled"):
        await anext(view.generate("s"))


async def test_there_is_a_point_to_return_to_after_the_system_prompt(view):
    assert not await view.can_rollback()
    await view.prefill(TurnRequest("s", (SYSTEM,)))
    await view.prefill(TurnRequest("s", (said(1.0),)))

    assert await view.can_rollback()
    back = await view.rollback()

    assert (back.success, back.restored_position) == (True, 8)
    assert not await view.can_rollback()
    assert (await view.rollback()).reason == "there is no point to return to"


async def test_a_failing_prefill_leaves_the_context_as_it_was():
    model = Faulty(Parrot(1))
    async with Engine(model) as engine, await engine.take_slot() as slot:
        view = HalfDuplexView(slot)
        await view.prefill(TurnRequest("s", (SYSTEM,)))
        await take_turn(view, 1.0)
        before = view.kv_cache_length

        model.fail_at(Stage.PREFILL, after=1)
        with pytest.raises(InferenceFailed):
            await view.prefill(TurnRequest("s", (said(1.0), said(1.0))))

        assert view.kv_cache_length == before
        assert (await take_turn(view, 2.0))[-1].is_final
        assert present(view.decoded).text == "You spoke for 2.0 seconds at -13 dB."


@pytest.mark.parametrize("is_early", [False, True])
async def test_of_messages_that_do_not_all_fit_none_is_in_the_context(talk, is_early):
    request = TurnRequest("s", (said(1.0), Message.of("user", "word " * 9000)))

    if is_early:
        assert not await talk.prefill_early(request)
    else:
        with pytest.raises(ContextFull):
            await talk.prefill(request)

    assert talk.kv_cache_length == 8
    await take_turn(talk, 2.0)
    assert present(talk.decoded).text == "You spoke for 2.0 seconds at -13 dB."


async def test_a_failing_answer_can_be_rolled_back():
    model = Faulty(Parrot(1))
    async with Engine(model) as engine, await engine.take_slot() as slot:
        view = HalfDuplexView(slot)
        await view.prefill(TurnRequest("s", (SYSTEM, said(1.0))))
        before = view.kv_cache_length

        model.fail_at(Stage.DECODE, after=3)
        with pytest.raises(InferenceFailed, match=r"The model failed\. \(error "):
            async for _ in view.generate("s"):
                pass

        assert await view.can_rollback()
        assert (await view.rollback()).restored_position == before
        [chunk async for chunk in view.generate("s")]
        assert present(view.decoded).ending is Ending.DONE


async def test_cleanup_gives_the_memory_back(engine, view):
    await take_turn(view, 10.0)
    assert (await engine.memory()).used_bytes >= 640_000

    await view.cleanup()

    assert (await engine.memory()).used_bytes == 0
    assert view.kv_cache_length == 0


async def test_a_voice_can_come_from_a_file(slot, tmp_path):
    from parley.media.wav import save

    save(tmp_path / "v.wav", speak(1.0))
    view = HalfDuplexView(slot)

    view.init_ref_audio(tmp_path / "v.wav")

    assert (await take_turn(view, 1.0))[-1].is_final


async def test_an_answer_can_be_cut_to_what_was_heard_of_it(talk):
    before = talk.kv_cache_length
    await take_turn(talk, 1.0)
    whole = talk.kv_cache_length

    assert await talk.cut_answer("You spoke for")
    assert talk.kv_cache_length == whole - 5
    await take_turn(talk, 2.0)
    assert present(talk.decoded).text == "You spoke for 2.0 seconds at -13 dB."

    # Nothing was heard: the user's turn continues.
    assert await talk.cut_answer("")
    await take_turn(talk, 1.0)
    assert present(talk.decoded).text == "You spoke for 3.0 seconds at -13 dB."
    assert talk.kv_cache_length > before


async def test_a_turn_may_drop_the_point_without_which_it_is_not_cut(view):
    await take_turn(view, 1.0)
    view.clear_rollback_point()
    length = view.kv_cache_length

    assert not await view.can_rollback()
    assert not await view.cut_answer("You")
    assert view.kv_cache_length == length
