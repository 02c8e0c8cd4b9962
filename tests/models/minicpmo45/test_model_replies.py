"""Replies of a small model: what is refused, and what an answer consists of."""

import numpy as np
import pytest
from tests.contracts.conversations import picture, turn, unit, voice
from tests.support.small_minicpmo import IDS
from tests.support.small_talk import Script, answer, conversation, do, duplex, samples

from parley.engine.segments import Audio, Image, Mark, Marker, Text
from parley.engine.work import Ending, Finalize, Generate, Prefill, StartSession, Window
from parley.errors import BadInput
from parley.media.pcm import Pcm


@pytest.mark.parametrize(
    "segments",
    [
        (Marker(Mark.UNIT),),
        (Marker(Mark.UNIT), Text("hi"), Audio(voice(1.0), "live")),
        (Marker(Mark.UNIT), Image(picture(), max_slices=0)),
        (Marker(Mark.UNIT), Audio(Pcm(np.zeros(100, np.float32), 8000), "live")),
    ],
)
def test_units_that_make_no_sense_are_refused(model, segments):
    duplex(model, speak=False)
    before = model.context_tokens(0)

    with pytest.raises(BadInput):
        model.start(0, Prefill(segments))

    assert model.context_tokens(0) == before


def test_a_unit_before_the_last_one_is_settled_is_refused(model):
    duplex(model, speak=False)
    answer(model, IDS.listen)

    with pytest.raises(BadInput, match="not been finalized"):
        model.start(0, unit(voice(1.0)))


def test_a_context_window_exists_in_duplex_only(model):
    with pytest.raises(BadInput, match="duplex only"):
        model.start(0, StartSession("chat", window=Window("context")))


def scripted_reply(model, monkeypatch, *tokens, speak):
    """A half-duplex answer of these tokens."""
    do(model, StartSession("half_duplex", speak=speak, seed=1))
    do(model, turn("user", Text("hi"), is_closed=False))
    monkeypatch.setattr(model, "chooser", Script(*tokens))
    return do(model, Generate(max_new_tokens=100, speak=speak))


def test_a_reply_whose_first_token_ends_it_is_empty(model, monkeypatch):
    job = scripted_reply(model, monkeypatch, IDS.tts_eos, speak=True)

    assert job.result.ending is Ending.DONE
    assert job.result.text == ""
    assert samples(job) == 0


def test_a_reply_pairs_each_token_with_the_state_that_consumed_it(model, monkeypatch):
    """Groups of ten; the eleventh token opens the next one (sessions.md 2.4)."""
    groups = []
    monkeypatch.setattr(model.observer, "grouped", lambda row, group: groups.append(group))

    job = scripted_reply(model, monkeypatch, *range(97, 120), IDS.tts_eos, speak=False)

    assert [group.ids for group in groups] == [
        tuple(range(97, 107)),
        tuple(range(107, 117)),
        tuple(range(117, 120)),
    ]
    assert [group.is_last for group in groups] == [False, False, True]
    assert all(len(group.hidden) == len(group.ids) for group in groups)
    assert job.result.text_tokens == 23
    assert job.result.ending is Ending.DONE


def test_a_unit_never_says_more_than_eighteen_tokens_or_twenty_eight_characters(model):
    duplex(model, speak=False)

    job = answer(model, IDS.speak, *range(97, 97 + 26))
    do(model, Finalize())
    longest = answer(model, IDS.speak, *[97] * 40, sound=voice(1.0, 2))

    assert job.result.text_tokens == longest.result.text_tokens == 18
    assert len(job.result.text) < 28


def test_thinking_leaves_the_empty_thought_out_of_the_prompt(model):
    lengths = []
    for thinks in (False, True):
        do(model, StartSession("chat", speak=False, seed=1))
        do(model, turn("user", Text("hi")))
        before = model.context_tokens(0)
        job = model.start(0, Generate(max_new_tokens=1, speak=False, enable_thinking=thinks))
        while job.feed is None or not job.feed.is_complete:
            model.step(job.stage, [job])
        lengths.append(model.context_tokens(0) - before)
        job.cancel()

    assert lengths[0] - lengths[1] == len(model.tokenizer.encode("<think>\n\n</think>\n\n"))


def test_options_of_a_reply_are_those_of_its_row(model):
    do(model, StartSession("chat", speak=False, seed=1))
    do(model, turn("user", Text("hi")))
    reply = Generate(temperature=0.3, top_p=0.5, top_k=7, length_penalty=1.4, speak=False)

    rule = model.start(0, reply).rule

    assert (rule.temperature, rule.top_p, rule.top_k) == (0.3, 0.5, 7)
    assert rule.length_penalty == 1.4
    assert rule.enders == IDS.reply_terminators


def test_a_request_of_more_pictures_than_a_step_looks_at_may_hold_sound(model):
    pictures = [Image(picture(40, 50, seed), max_slices=1) for seed in range(6)]
    do(model, StartSession("chat", seed=1, speak=False))

    job = do(model, turn("user", *pictures, Audio(voice(0.5), "clip")))

    assert job.result.vision_slices == 6


def test_the_sound_of_a_unit_of_many_pictures_is_heard_once(model):
    heard, added = [], []
    for count in (1, 6):
        do(model, StartSession("duplex", seed=1, speak=False))
        frames = [picture(40, 50, seed) for seed in range(count)]
        added.append(do(model, unit(voice(1.0), *frames)).result.added_tokens)
        heard.append((model.audio_cache.lengths[0], conversation(model).state.mel.pushed_chunks))

    assert heard[0] == heard[1]
    assert added[1] - added[0] == 5 * (model.config.query_num + 2)
