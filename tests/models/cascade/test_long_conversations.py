"""Any length of call: the window slides, what was told stays, silence is not answered."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.contracts.conversations import Cast, quiet, turn, unit, voice
from tests.models.cascade.parts import LoudnessHearing, memory_of, result_of, small_cascade

from parley.engine.segments import Audio, Text
from parley.engine.work import Ending, Finalize, Generate, Prefill, StartSession, StepUnit
from parley.media.pcm import Pcm, join
from parley.models.cascade import prefill
from parley.protocol.values import DuplexConfig

WORDS = Path(__file__).resolve().parents[3] / "src/parley/web/words"


def test_a_hundred_turns_fit_and_the_name_is_still_known():
    model = small_cascade(rows=1, limit=600)
    cast = Cast(model)
    cast.play(
        0,
        [
            StartSession("half_duplex", speak=False, seed=1),
            turn("system", Text("You are a baker.")),
        ],
    )
    cast.play(
        0, [turn("user", Text("My name is Saskia."), is_closed=False), Generate(max_new_tokens=4)]
    )

    writer: Any = model.parts.writer
    for number in range(100):
        said = turn("user", Text(f"This is turn {number} of many."), is_closed=False)
        cast.play(0, [Prefill(())])
        read = writer.point(0).chunks
        (_, reply) = cast.play(0, [said, Generate(max_new_tokens=2, speak=False)])
        assert result_of(reply).context_tokens <= model.spec.context_limit_tokens
        # The window slides before the user speaks, not while they wait.
        assert writer.point(0).chunks[: len(read)] == read

    history = memory_of(model).history
    assert history.system == "You are a baker."
    assert "The user's name is Saskia." in history.known
    assert len(history.lines) < 60
    cast.play(
        0, [turn("user", Text("What is my name?"), is_closed=False), Generate(max_new_tokens=4)]
    )
    asked = [line for line in memory_of(model).history.lines if line.role == "user"][-1]
    assert asked.note == "Your name is Saskia."


@pytest.mark.parametrize("language", ["en", "zh"])
def test_a_call_that_continues_another_on_a_page_has_its_turns(language):
    words = (WORDS / f"{language}.js").read_text("utf-8")
    (announced,) = re.findall(r"'call\.carried': '(.+)'", words)
    said = "it went.\nUser: My name is Saskia.\nAssistant: Nice <|im_end|> to meet you!"
    cast = Cast(model := small_cascade(rows=1))
    cast.play(
        0,
        [
            StartSession("half_duplex", speak=False, seed=1),
            turn("system", Text(f"You are a baker.\n\n{announced}\n{said}")),
            turn("user", Text("What is my name?"), is_closed=False),
            Generate(max_new_tokens=4),
        ],
    )

    history = memory_of(model).history
    assert history.system == "You are a baker."
    assert history.told == ("My name is Saskia.", "What is my name?")
    mine, yours, asked = history.lines[:3]
    assert (mine.role, mine.text) == ("user", "My name is Saskia.")
    assert (yours.role, yours.text) == ("assistant", "Nice < im_end > to meet you!")
    assert asked.note == "Your name is Saskia."


def start_duplex(cast: Cast) -> None:
    options = DuplexConfig(force_listen_count=0)
    cast.play(0, [StartSession("duplex", seed=1, duplex=options), turn("system", Text("Be kind."))])


def second(cast: Cast, sound: Pcm):
    return cast.play(0, [unit(sound), StepUnit(), Finalize()])[1]


def answered(cast: Cast):
    """The first second of an answer, which may come some units after the question."""
    for _ in range(4):
        outcome = second(cast, quiet(1.0))
        if result_of(outcome).ending is Ending.SPOKE:
            return outcome
    raise AssertionError("no answer")


def test_half_an_hour_of_silence_is_listened_to_and_takes_no_room():
    model = small_cascade(rows=1)
    cast = Cast(model)
    start_duplex(cast)
    before = model.context_tokens(0)

    endings = {result_of(second(cast, quiet(1.0))).ending for _ in range(1800)}

    assert endings == {Ending.LISTEN}
    assert model.context_tokens(0) == before
    second(cast, voice(1.0))
    answered(cast)


def test_clicks_are_not_answered():
    cast = Cast(small_cascade(rows=1))
    start_duplex(cast)
    sound = np.zeros(16_000, np.float32)
    sound[4000:5500] = 0.5

    endings = {result_of(second(cast, Pcm(sound, 16_000))).ending for _ in range(10)}

    assert endings == {Ending.LISTEN}


def asked_lengths(model: Any, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The lengths of what is recognised from now on, in seconds."""
    asked: list[float] = []
    begin = model.parts.recogniser.begin

    def counted(samples: Any) -> Any:
        asked.append(len(samples) / 16_000)
        return begin(samples)

    monkeypatch.setattr(model.parts.recogniser, "begin", counted)
    return asked


def test_an_utterance_is_recognised_once(monkeypatch):
    model = small_cascade(rows=1)
    asked = asked_lengths(model, monkeypatch)
    cast = Cast(model)
    start_duplex(cast)

    for sound in (*[voice(1.0)] * 3, *[quiet(1.0)] * 3):
        second(cast, sound)

    assert len(asked) == 1


def test_the_first_part_of_a_long_turn_is_recognised_once(monkeypatch):
    model = small_cascade(rows=1)
    asked = asked_lengths(model, monkeypatch)
    cast = Cast(model)
    sounds = [voice(9.0), quiet(0.5), voice(9.0), quiet(0.5), voice(3.0), quiet(0.5), voice(6.0)]
    cast.play(0, [StartSession("half_duplex", speak=False, seed=1)])
    heard = []
    for count in (3, 5, 7, 7):
        said = turn("user", Audio(join(sounds[:count], 16_000), "turn"), is_closed=False)
        heard.append(result_of(cast.play(0, [said])[-1]).heard)

    assert asked == pytest.approx([9.2, 9.3, 9.5, 3.3, 9.8, 9.8], abs=0.3)
    assert heard[2] == heard[3] != heard[1] != heard[0]


@pytest.mark.parametrize("steps", [1, 3])
def test_a_long_turn_in_units_is_recognised_in_pieces_and_answered_when_it_is_over(
    steps, monkeypatch
):
    monkeypatch.setattr(prefill, "AHEAD_STEPS", steps)
    taken: list[int] = [0]
    step = LoudnessHearing.step

    def counted(hearing: LoudnessHearing) -> bool:
        taken[-1] += 1
        return step(hearing)

    monkeypatch.setattr(LoudnessHearing, "step", counted)
    model = small_cascade(rows=1)
    asked = asked_lengths(model, monkeypatch)
    cast = Cast(model)
    start_duplex(cast)

    endings = set()
    for number in range(45):
        endings.add(result_of(second(cast, voice(1.0, number))).ending)
        taken.append(0)
    recognised = list(asked)
    heard = result_of(second(cast, quiet(1.0))).heard

    assert endings == {Ending.LISTEN}
    assert max(taken[:-1]) == steps
    assert max(asked) <= 14
    assert sum(asked) == pytest.approx(45, abs=0.5)
    assert asked[:-1] == recognised
    assert heard.count("You took") == len(asked)


def test_what_was_heard_is_said_in_the_results():
    cast = Cast(small_cascade(rows=1))
    outcomes = cast.play(
        0,
        [
            StartSession("half_duplex", speak=False, seed=1),
            turn("user", Audio(voice(1.0), "turn"), is_closed=False),
        ],
    )

    assert result_of(outcomes[-1]).heard.startswith("You took 10")


def test_a_request_with_eighty_turns_reads_no_more_than_its_window():
    model = small_cascade(rows=1, limit=600)
    cast = Cast(model)
    said = [turn("user", Text("My name is Saskia.")), turn("assistant", Text("Hello."))]
    for number in range(40):
        said += [turn("user", Text(str(number % 8))), turn("assistant", Text("Yes"))]
    asked = turn("user", Text("What is my name?"), is_closed=False)
    whole = Prefill(tuple(one for each in (*said, asked) for one in each.segments))

    (_, read, _) = cast.play(
        0, [StartSession("chat", speak=False, seed=1), whole, Generate(max_new_tokens=4)]
    )

    assert result_of(read).context_tokens <= model.spec.context_limit_tokens
    assert memory_of(model).history.lines[-2].note == "Your name is Saskia."
