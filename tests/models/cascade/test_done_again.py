"""A conversation that is done again in another row asks no part of the cascade, and continues bit
for bit as the first one does."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.contracts.conversations import Cast, Outcome, Style, known, quiet, turn, unit, voice
from tests.models.cascade.parts import memory_of, small_cascade

from parley.engine.segments import Audio, Text
from parley.engine.work import Finalize, Prefill, StartSession, StepUnit, Work
from parley.media.pcm import Pcm
from parley.models.cascade import prefill
from parley.models.cascade import units as cascade_units
from parley.models.cascade.llama import quantize
from parley.models.cascade.model import Cascade
from parley.models.cascade.parts import CascadeParts
from parley.protocol.values import DuplexConfig
from parley.session_log import state_codec
from parley.turns import TurnJudges

SECONDS = [
    *(voice(1.0, 1), quiet(1.0), quiet(1.0), quiet(1.0), quiet(1.0), voice(1.0, 2)),
    *(quiet(1.0), quiet(1.0), quiet(1.0), voice(1.0, 3), quiet(1.0), quiet(1.0)),
]


LONG = [*(voice(1.0, 1 + number) for number in range(17)), *[quiet(1.0)] * 4]


def units(sounds: list[Pcm] = SECONDS) -> list[list[Work]]:
    opening = DuplexConfig(force_listen_count=0, temperature=3.0)
    start = StartSession("duplex", seed=13, duplex=opening)
    first: list[Work] = [start, turn("system", Text("You listen."))]
    seconds: list[list[Work]] = [[unit(sound), StepUnit(), Finalize()] for sound in sounds]
    return [first, *seconds]


def spoken_turns() -> list[list[Work]]:
    start = StartSession("half_duplex", seed=12)
    first: list[Work] = [start, turn("system", Text("Be brief."))]
    reply = replace(Style().reply(), max_new_tokens=24)
    turns: list[list[Work]] = [
        [turn("user", Audio(voice(1.0 + number, number + 1), "turn"), is_closed=False), reply]
        for number in range(4)
    ]
    return [first, *turns]


class Counted:
    """How often the parts that cost time were asked."""

    def __init__(self, model: Cascade, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[str] = []
        parts = model.parts
        watched = [
            (parts.speaker, "say"),
            (parts.recogniser, "begin"),
            (parts.vision, "look"),
            (getattr(parts.writer, "model", None), "run"),
            (getattr(parts.writer, "model", None), "run_each"),
        ]
        for owner, name in watched:
            monkeypatch.setattr(owner, name, self._watch(name, getattr(owner, name)))

    def _watch(self, name: str, real):
        def counted(*given, **named):
            self.calls.append(name)
            return real(*given, **named)

        return counted


def copied(outcome: Outcome) -> Work:
    """As another worker gets it."""
    work = known(outcome)
    chosen = getattr(work, "again", None)
    return (
        work
        if chosen is None
        else replace(work, again=state_codec.decode(state_codec.encode(chosen)))
    )


def states(model: Cascade) -> list[Any]:
    """What its two rows remember."""
    return [row.state for row in model._conversations if row is not None]


def sounds(outcomes: list[Outcome]) -> list[bytes]:
    return [outcome.samples.tobytes() for outcome in outcomes]


def cascade() -> Cascade:
    """As the bundled one, numbers depend on how many tokens are read in one step."""
    model = small_cascade(rows=2, judges=TurnJudges(lambda said: 0.95))
    quantize(model.parts.writer.model)  # type: ignore[attr-defined]
    return model


@pytest.mark.parametrize(
    ("steps", "unit_cost", "sounding", "acknowledges"),
    [
        (units(), 10_000, 3, False), (units(), 60, 1, False), (units(), 10_000, 3, True),
        (units(LONG), 60, 1, False),
        (spoken_turns(), 10_000, 4, False),
    ],
    ids=["duplex", "duplex_spread_over_units", "duplex_paused", "duplex_long", "half_duplex"],
)  # fmt: skip
def test_from_every_point_it_continues_as_the_first(
    steps, unit_cost, sounding, acknowledges, monkeypatch
):
    monkeypatch.setattr(cascade_units, "UNIT_COST", unit_cost)
    monkeypatch.setattr(prefill, "is_acknowledgement", lambda text: acknowledges)
    model = cascade()
    cast = Cast(model)
    first = cast.play(0, [work for step in steps for work in step])
    assert sum(len(outcome.samples) > 0 for outcome in first) >= sounding
    counted = Counted(model, monkeypatch)

    done = 2
    for step in steps[1:]:
        counted.calls.clear()
        cast.play(1, [copied(outcome) for outcome in first[:done]])
        assert counted.calls == []
        cast.play(1, [Prefill(())])

        rest = cast.play(1, [outcome.work for outcome in first[done:]])

        assert [one.facts() for one in rest] == [one.facts() for one in first[done:]]
        assert sounds(rest) == sounds(first[done:])
        done += len(step)


@pytest.mark.parametrize("first_samples", [cascade_units.FIRST_SAMPLES, 1])
def test_a_worker_that_follows_has_the_speech_that_the_first_one_has(first_samples, monkeypatch):
    """It catches up after each second; an answer may start with less than a second."""
    monkeypatch.setattr(cascade_units, "FIRST_SAMPLES", first_samples)
    model = cascade()
    cast = Cast(model)
    pauses = 0
    for step in units():
        done = cast.play(0, step)
        cast.play(1, [copied(outcome) for outcome in done])
        cast.play(1, [Prefill(())])

        first, second = states(model)
        assert second.echo.tobytes() == first.echo.tobytes()
        assert (second.telling is None) == (first.telling is None)
        if first.telling is not None:
            assert second.telling.waiting.tobytes() == first.telling.waiting.tobytes()
            pauses += "" in dict(first.telling.clauses)
    assert (pauses > 0) == (first_samples == 1)


@pytest.mark.parametrize("seconds", [0, 3], ids=["no sound", "sound up to an interruption"])
def test_words_of_a_long_turn_are_known_without_its_sound(seconds, monkeypatch):
    more = lambda self, heard, *_: replace(heard, text=f"{heard.text} again")  # noqa: E731
    monkeypatch.setattr(CascadeParts, "understood", more)
    model = cascade()
    cast = Cast(model)
    steps = units(LONG)
    first = cast.play(0, [work for step in steps for work in step])

    again: list[Any] = [copied(outcome) for outcome in first]
    heard = [at for at, work in enumerate(again) if work.__class__ is Prefill]
    for index in heard[1 + seconds :]:
        *others, sound = again[index].segments
        mute = replace(sound, pcm=sound.pcm.silenced())
        again[index] = replace(again[index], segments=(*others, mute))
    second = cast.play(1, again)

    histories = [model._conversations[row].state.history for row in (0, 1)]  # type: ignore[union-attr]
    assert histories[0].lines[0].text.count("You took") == 2
    assert [line.text for line in histories[0].lines] == [line.text for line in histories[1].lines]
    ended = [[getattr(each.result, "ending", None) for each in one] for one in (first, second)]
    assert ended[0] == ended[1]


def test_only_speech_that_may_still_be_heard_is_made(monkeypatch):
    steps = units()
    model = cascade()
    cast = Cast(model)
    first = cast.play(1, [work for step in steps for work in step])
    chosen: list[Any] = [getattr(outcome.result, "chosen", None) for outcome in first[2:]]
    every = sum(len(one.spoken) for one in chosen if one is not None)
    counted = Counted(model, monkeypatch)

    cast.play(0, [copied(outcome) for outcome in first])
    memory = memory_of(model)
    cast.play(0, [Prefill(())])

    assert 0 <= counted.calls.count("say") < every
    kept = memory_of(model)
    assert not kept.has_promised
    assert len(kept.echo) == len(memory.echo)
    assert not len(kept.echo) or np.abs(kept.echo).max() > 0


def test_a_cancelled_answer_is_cancelled_at_the_same_place():
    model = cascade()
    cast = Cast(model)
    steps = spoken_turns()
    begun = cast.play(0, [*steps[0], steps[1][0]])
    job = model.start(0, steps[1][1])
    while not job.take_pieces():
        assert job.stage is not None
        model.step(job.stage, [job])
    job.cancel()
    said: Any = Outcome(steps[1][1], job.result)
    rest = [work for step in steps[2:] for work in step]
    expected = cast.play(0, rest)

    again = cast.play(1, [copied(outcome) for outcome in [*begun, said]])

    last: Any = again[-1].result
    assert (last.text, last.ending) == (said.result.text, said.result.ending)
    assert sounds(cast.play(1, rest)) == sounds(expected)
