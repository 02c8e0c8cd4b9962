"""Conversations on a small model: the choices that differ from the public implementation, windows,
checkpoints and refusals. What every model must do is in `test_contract.py`; numbers are in the
goldens.
"""

import numpy as np
import pytest
from tests.contracts.conversations import picture, quiet, turn, unit, voice
from tests.support.long import times
from tests.support.small_minicpmo import IDS
from tests.support.small_talk import answer, conversation, do, duplex, samples

from parley.engine.segments import Audio, Image, Text
from parley.engine.work import Ending, Finalize, Generate, Prefill, StartSession, StepUnit, Window
from parley.errors import ContextFull
from parley.models.minicpmo45.conversation.parts import ModelObserver
from parley.models.minicpmo45.conversation.state import RoundLedger
from parley.settings import ModelBehaviour as Behaviour

# What was decided differently, both ways.


def test_speech_before_a_listen_in_the_same_unit_is_heard(model):
    duplex(model)

    job = answer(model, IDS.speak, 104, 105, IDS.turn_eos, IDS.listen)

    assert job.result.ending is Ending.SPOKE
    assert job.result.text_tokens == 3
    assert job.result.end_of_turn
    assert samples(job) > 0
    assert conversation(model).state.unsettled.terminator == IDS.listen


def test_or_is_dropped_as_the_public_implementation_does(model):
    model.behaviour = Behaviour(keeps_speech_before_listen=False)
    duplex(model)

    job = answer(model, IDS.speak, 104, 105, IDS.turn_eos, IDS.listen)

    assert job.result.ending is Ending.LISTEN
    assert job.result.text == ""
    assert samples(job) == 0


@pytest.mark.parametrize(("forgets", "columns"), [(True, 0), (False, None)])
def test_forced_listening_forgets_the_turn_or_keeps_a_stale_one(model, forgets, columns):
    model.behaviour = Behaviour(forced_listen_ends_speech=forgets)
    duplex(model)
    answer(model, IDS.speak, 104, 105)
    do(model, Finalize())
    spoken = conversation(model).speech.row.length

    job = answer(model, force=True)

    assert spoken > 0
    assert job.result.ending is Ending.LISTEN
    assert conversation(model).state.turn_ended
    assert conversation(model).speech.row.length == (spoken if columns is None else columns)


def test_a_unit_with_too_little_sound_keeps_it_and_feeds_nothing(model):
    duplex(model)
    answer(model, IDS.listen)
    do(model, Finalize())
    before = model.context_tokens(0)

    short = do(model, unit(voice(0.3), picture()))
    listened = do(model, StepUnit())
    settled = do(model, Finalize())
    after = do(model, unit(voice(0.7, 2)))

    assert short.result.added_tokens == 0
    assert listened.result.ending is Ending.LISTEN
    assert settled.result.context_tokens == before
    # The unit, the kept picture between its tags, and the sound.
    assert after.result.added_tokens == 1 + 8 + 2 + 10
    assert after.result.vision_slices == 1


def test_or_opens_the_unit_immediately_as_the_public_implementation_does(model):
    model.behaviour = Behaviour(waits_for_whole_units=False)
    duplex(model)
    answer(model, IDS.listen)
    do(model, Finalize())
    before = model.context_tokens(0)

    short = do(model, unit(voice(0.3)))

    assert short.result.added_tokens == 1
    assert model.context_tokens(0) == before + 1
    assert do(model, StepUnit()).result.ending is Ending.LISTEN
    assert do(model, unit(voice(0.7, 2))).result.added_tokens == 11


@pytest.mark.parametrize(("ours", "token"), [(True, IDS.listen), (False, IDS.im_end)])
def test_listen_options_act_on_the_listen_token_or_on_the_wrong_one(model, ours, token):
    model.behaviour = Behaviour(listen_options_act_on_listen=ours)
    duplex(model, listen_top_k=400)
    do(model, unit(voice(1.0)))

    job = model.start(0, StepUnit())
    model.step(job.stage, [job])

    assert job.rule.listen_id == token
    assert job._choice.token in (token, IDS.chunk_eos)


@pytest.mark.parametrize(("parses", "added"), [(True, 2), (False, 6 + 7)])
def test_typed_tags_are_tokens_or_words(model, parses, added):
    model.behaviour = Behaviour(parses_typed_tags=parses)
    do(model, StartSession("chat", speak=False, seed=1))
    plain = do(model, turn("user", Text("x"))).result.added_tokens
    do(model, StartSession("chat", speak=False, seed=1))

    job = do(model, turn("user", Text("x<unit></unit>")))

    # In words, "<unit>" and "</unit>" are six and seven bytes.
    assert job.result.added_tokens - plain == added


def test_a_typed_image_tag_does_not_disturb_the_pictures(model):
    do(model, StartSession("chat", speak=False, seed=1))

    job = do(model, turn("user", Text("<image>"), Image(picture()), Text("</image><slice>")))

    assert job.result.vision_slices == 1


class Fed(ModelObserver):
    """What the language model was fed, and where."""

    def __init__(self):
        self.calls = []

    def fed(self, row, ids, embeds, start, hidden):
        self.calls.append((start, ids))


def test_how_a_unit_ended_is_read_with_the_next_one_and_counts_at_once(model, monkeypatch):
    duplex(model)
    answer(model, IDS.speak, 104, 105, IDS.chunk_eos)
    monkeypatch.setattr(model, "observer", Fed())
    before = model.context_tokens(0)

    settled = do(model, Finalize())
    nothing = do(model, Prefill(()))
    following = do(model, unit(voice(1.0, 2)))

    assert settled.result.context_tokens == nothing.result.context_tokens == before + 2
    assert following.result.context_tokens == before + 2 + 11
    ((start, ids),) = model.observer.calls
    assert start == before
    assert ids[:3] == (IDS.chunk_eos, IDS.unit_end, IDS.unit)


# Windows.


def test_a_full_window_drops_the_oldest_units(model):
    duplex(model, window=Window("basic", high_tokens=80, low_tokens=50), speak=False)
    head = model.context_tokens(0)
    lengths = []
    for _ in range(12):
        answer(model, IDS.listen)
        lengths.append(do(model, Finalize()).result)

    found = conversation(model)
    assert max(result.context_tokens for result in lengths) <= 80
    assert any(result.dropped_tokens for result in lengths)
    assert found.ledger.protected_tokens == head
    assert model.context.lengths[0] == found.cached_tokens == model.context_tokens(0) - 2
    assert found.ledger.length_tokens == head + sum(entry.tokens for entry in found.ledger.entries)


def test_a_context_window_carries_on_what_was_said(model):
    window = Window("context", max_units=2, previous_max_tokens=4)
    duplex(model, window=window, speak=False)
    head = model.context_tokens(0)
    for number in range(6):
        answer(model, IDS.speak, 104 + number, 110 + number)
        do(model, Finalize())

    ledger = conversation(model).ledger
    marker = len(model.marker_ids)
    assert len(ledger.entries) == 2
    assert ledger.protected_tokens == head + marker + 4
    assert model.context.lengths[0] == ledger.length_tokens


def test_a_checkpoint_is_void_once_the_window_has_moved(model):
    duplex(model, window=Window("basic", high_tokens=60, low_tokens=40), speak=False)
    checkpoint = model.checkpoint(0)
    for _ in range(6):
        answer(model, IDS.listen)
        do(model, Finalize())

    assert not model.can_roll_back(checkpoint)


def test_rounds_of_a_turn_based_conversation_are_dropped_whole(model):
    do(
        model,
        StartSession("half_duplex", speak=False, seed=1, window=Window("basic", 200, 120)),
    )
    do(model, turn("system", Text("Be brief.")))
    head = model.context_tokens(0)
    for number in range(5):
        do(model, turn("user", Audio(voice(1.0, number), "turn"), is_closed=False))
        do(model, Generate(max_new_tokens=10, speak=False))

    ledger = conversation(model).ledger
    assert ledger.protected_tokens == head
    assert model.context.lengths[0] == ledger.length_tokens <= 260
    assert len(ledger.entries) < 4


def test_the_public_books_never_drop_the_first_round_but_cut_behind_the_prompt():
    """sessions.md 5.4: what is dropped is counted in later rounds, and taken from the oldest."""
    ledger = RoundLedger().prefilled("system", 11).prefilled("user", 30).replied(20)
    ledger = ledger.prefilled("user", 33).replied(13).prefilled("user", 33)

    after, gone = ledger.plan(160, 150, 110)

    assert gone == 46 + 33
    assert after.protected_tokens == 11
    assert [chunk.round for chunk in after.chunks] == [0, 0, 0]


def test_without_a_window_a_full_context_refuses(model):
    duplex(model, speak=False)
    ledger = conversation(model).ledger
    ledger.limit_tokens = model.context_tokens(0) + 15
    answer(model, IDS.listen)
    do(model, Finalize())

    with pytest.raises(ContextFull):
        model.start(0, unit(voice(1.0)))


# Hearing over time.


def test_a_rollback_over_a_restart_of_the_encoder_restores_what_it_had_heard(model):
    """The encoder's cache starts over at its thirtieth chunk (model.md 7.3)."""
    duplex(model, speak=False)
    for _ in range(28):
        do(model, unit(quiet(1.0)))
        do(model, StepUnit(force_listen=True))
        do(model, Finalize())
    heard = model.audio_cache.lengths[0]
    checkpoint = model.checkpoint(0)

    def go_on():
        states = []
        for number in range(4):
            job = do(model, unit(voice(1.0, number)))
            states.append(conversation(model).state.logits.clone())
            assert job.result.added_tokens == 11
            do(model, StepUnit(force_listen=True))
            do(model, Finalize())
        return states

    first = go_on()
    assert model.audio_cache.lengths[0] < heard
    model.roll_back(checkpoint)
    assert model.audio_cache.lengths[0] == heard
    second = go_on()

    for one, other in zip(first, second, strict=True):
        np.testing.assert_allclose(one.numpy(), other.numpy(), atol=1e-5)


@pytest.mark.timeout(900)
def test_many_units_with_a_window_take_no_more_memory_than_a_few(model):
    duplex(model, window=Window("basic", high_tokens=300, low_tokens=200), speak=False)
    used = set()
    count = times(50, 400)  # The sound of 30 units is kept, and the window slides after as many.
    for number in range(count):
        do(model, unit(voice(1.0, number % 7)))
        do(model, StepUnit())
        do(model, Finalize())
        state = conversation(model).state
        used.add(model.memory().used_bytes)
        assert len(state.mel.samples) <= 30 * 16_000
        assert len(state.buffered) <= 80
        assert model.context_tokens(0) <= 300 + 40

    assert len(used) == 1
    assert conversation(model).state.units == count
