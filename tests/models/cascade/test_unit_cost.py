"""A unit of a call does only so much: an answer that needs more continues in the next one."""

from collections.abc import Callable

import numpy as np
import pytest
from tests.contracts.conversations import Cast, Outcome, quiet, turn, unit, voice
from tests.models.cascade.parts import memory_of, result_of, small_cascade

from parley.engine.segments import Text
from parley.engine.work import Ending, Finalize, StartSession, StepUnit
from parley.media.pcm import Pcm
from parley.models.cascade import units
from parley.models.cascade.model import Cascade
from parley.models.cascade.read_tokens import PIECE_TOKENS
from parley.protocol.values import DuplexConfig

UNITS = 12


def call(model: Cascade, sound: Callable[[int], Pcm], *, speaks: bool = True) -> list[Outcome]:
    cast = Cast(model)
    options = DuplexConfig(force_listen_count=0, generate_audio=speaks)
    cast.play(0, [StartSession("duplex", seed=1, duplex=options), turn("system", Text("Be kind."))])
    return [
        cast.play(0, [unit(sound(number)), StepUnit(), Finalize()])[1] for number in range(UNITS)
    ]


def asked_once(number: int) -> Pcm:
    return voice(1.0) if number == 0 else quiet(1.0)


def words(outcomes: list[Outcome]) -> str:
    return "".join(outcome.text for outcome in outcomes)


@pytest.mark.parametrize("speaks", [True, False])
def test_an_answer_too_long_for_a_unit_says_the_same_later(monkeypatch, speaks):
    monkeypatch.setattr(units, "UNIT_COST", 10_000)
    whole = call(small_cascade(rows=1), asked_once, speaks=speaks)
    monkeypatch.setattr(units, "UNIT_COST", 12)
    spread = call(small_cascade(rows=1), asked_once, speaks=speaks)

    assert words(whole)
    assert words(spread) == words(whole)
    first = [
        next(n for n, outcome in enumerate(outcomes) if result_of(outcome).ending is Ending.SPOKE)
        for outcomes in (whole, spread)
    ]
    assert first[0] < first[1] <= first[0] + units.MAX_WAITS


def test_what_was_heard_is_told_once_when_it_is_taken(monkeypatch):
    monkeypatch.setattr(units, "UNIT_COST", 12)

    outcomes = call(small_cascade(rows=1), asked_once)

    told = [outcome for outcome in outcomes if result_of(outcome).heard]
    assert len(told) == 1
    assert result_of(told[0]).ending is Ending.LISTEN


def test_a_call_done_again_is_spread_alike(monkeypatch):
    """Whatever the row has read already."""
    monkeypatch.setattr(units, "UNIT_COST", 30)

    def sound(number: int) -> Pcm:
        return voice(1.0, number) if number in (0, 6) else quiet(1.0)

    model = small_cascade(rows=1)
    first = call(model, sound)
    cast = Cast(model)
    checkpoint = model.checkpoint(0)
    cast.play(0, [unit(voice(1.0)), StepUnit(), Finalize(), unit(quiet(1.0)), StepUnit()])
    model.roll_back(checkpoint)
    again = call(model, sound)

    assert [result_of(one).ending for one in again] == [result_of(one).ending for one in first]
    for one, other in zip(first, again, strict=True):
        assert one.text == other.text
        assert np.array_equal(one.samples, other.samples)


def test_who_speaks_on_before_the_answer_begins_is_listened_to(monkeypatch):
    monkeypatch.setattr(units, "UNIT_COST", 0)
    monkeypatch.setattr(units, "MAX_WAITS", 3)
    model = small_cascade(rows=1)

    def sound(number: int) -> Pcm:
        return voice(1.0, number) if number in (0, 2) else quiet(1.0)

    outcomes = call(model, sound)

    heard = [result_of(outcome).heard for outcome in outcomes if result_of(outcome).heard]
    assert len(heard) == 2
    lines = memory_of(model).history.lines
    assert [line.role for line in lines[:2]] == ["user", "user"]
    assert words(outcomes)


def test_what_the_window_dropped_is_read_before_much_is_asked():
    """After a slide what has to be read again is read in the units that listen."""
    model = small_cascade(rows=1, limit=1000)
    cast = Cast(model)
    options = DuplexConfig(force_listen_count=0)
    cast.play(0, [StartSession("duplex", seed=1, duplex=options), turn("system", Text("Be kind."))])
    owed = []
    for number in range(60):
        sound = voice(1.0) if number % 6 == 0 else quiet(1.0)
        cast.play(0, [unit(sound), StepUnit(), Finalize()])
        owed.append(memory_of(model).unread)

    assert max(owed) > PIECE_TOKENS
    paid = owed.index(max(owed))
    assert owed[paid + 1] < owed[paid]
    assert owed[paid + 4] == 0


def test_words_of_a_long_line_cost_more_than_of_a_short_one():
    writer = small_cascade(rows=1).parts.writer

    assert writer.cost_of_reading(700) > 5 * writer.cost_of_reading(40)
