"""Services of pipecat and LiveKit's agents on a whole server; see `make test-clients`."""

import pytest
from tests.clients.programs import named, thorough, told
from tests.openai.talking_model import HEARD, ROME, CallingModel, TalkingModel

from parley.models.parrot import Parrot

LIVEKIT, PIPECAT = "livekit_scenario.py", "pipecat_scenario.py"
both = pytest.mark.parametrize("script", [LIVEKIT, PIPECAT])


async def test_two_spoken_turns_of_livekit():
    lines = await told(LIVEKIT, "turns", TalkingModel(answer="one two"))

    assert [line["text"] for line in named(lines, "answer")] == ["one two ", "one two "]
    assert named(lines, "answer")[-1]["heard_ms"] == 400
    users = [line["text"] for line in named(lines, "message") if line["role"] == "user"]
    assert users == [HEARD, HEARD]
    assert named(lines, "error") == []


async def test_two_spoken_turns_of_pipecat():
    lines = await told(PIPECAT, "turns", TalkingModel(answer="one two"))

    assert [line["text"] for line in named(lines, "answer")] == ["one two ", "one two "]
    # The pipeline's opening has as many words as each answer.
    assert named(lines, "answer")[-1]["heard_ms"] == 600
    assert named(lines, "error") == []


@thorough
@pytest.mark.parametrize(
    ("script", "opening", "result"),
    [(LIVEKIT, [], "<tool_response>\nsunny\n</tool_response>"), (PIPECAT, [["Hi."]], "sunny")],
)
async def test_a_function_is_called_and_its_result_is_answered(script, opening, result):
    model = CallingModel(*opening, ROME, ["It ", "is ", "sunny."])
    lines = await told(script, "call", model)

    assert [line["city"] for line in named(lines, "called")] == ["Rome"]
    assert [line["text"] for line in named(lines, "answer")] == ["It is sunny."]
    assert any(result in each for each in model.contexts[1 + len(opening)])
    assert named(lines, "error") == []


@thorough
@pytest.mark.parametrize(("script", "more"), [(LIVEKIT, {"interrupted": True}), (PIPECAT, {})])
async def test_who_speaks_up_interrupts_the_answer(script, more):
    lines = await told(script, "interruption", TalkingModel(answer="word " * 400, word_s=0.01))

    assert named(lines, "interrupted") == [{"what": "interrupted", **more}]
    assert named(lines, "error") == []


@thorough
async def test_an_error_comes_to_the_program_and_the_session_continues():
    lines = await told(LIVEKIT, "error", TalkingModel(answer="one two"))

    assert named(lines, "error")
    assert [line["text"] for line in named(lines, "answer")] == ["one two "]


@thorough
async def test_an_error_comes_to_pipecats_program():
    lines = await told(PIPECAT, "error", TalkingModel(answer="one two"))

    assert ["item_not_found" in line["text"] for line in named(lines, "error")] == [True]


@thorough
@both
async def test_live_answers_without_turns(script):
    lines = await told(script, "live", Parrot(1))

    first, second = named(lines, "answer")
    assert "You spoke" in first["text"]
    assert second["heard_ms"] > first["heard_ms"] > 0
    assert named(lines, "error") == []


@thorough
@both
async def test_live_is_interrupted_by_speech(script):
    lines = await told(script, "live_interruption", Parrot(1))

    assert named(lines, "interrupted")


@thorough
@pytest.mark.parametrize(
    ("script", "word"), [(LIVEKIT, "realtime_model_error"), (PIPECAT, "unknown_event")]
)
async def test_a_live_error_comes_to_the_program_and_the_session_continues(script, word):
    lines = await told(script, "live_error", Parrot(1))

    assert [word in line["text"] for line in named(lines, "error")] == [True]
    assert len(named(lines, "answer")) == 2
