"""pipecat's services on a whole server; see `make test-clients`."""

from tests.clients.programs import named, thorough, told
from tests.openai.talking_model import ROME, CallingModel, TalkingModel

from parley.models.parrot import Parrot

SCRIPT = "pipecat_scenario.py"


async def test_two_spoken_turns():
    lines = await told(SCRIPT, "turns", TalkingModel(answer="one two"))

    assert [line["text"] for line in named(lines, "answer")] == ["one two ", "one two "]
    # The pipeline's opening has as many words as each answer.
    assert named(lines, "answer")[-1]["heard_ms"] == 600
    assert named(lines, "error") == []


@thorough
async def test_a_function_is_called_and_its_result_is_answered():
    model = CallingModel(["Hi."], ROME, ["It ", "is ", "sunny."])
    lines = await told(SCRIPT, "call", model)

    assert [line["city"] for line in named(lines, "called")] == ["Rome"]
    assert [line["text"] for line in named(lines, "answer")] == ["It is sunny."]
    assert any("sunny" in each for each in model.contexts[2])
    assert named(lines, "error") == []


@thorough
async def test_who_speaks_up_interrupts_the_answer():
    lines = await told(SCRIPT, "interruption", TalkingModel(answer="word " * 400, word_s=0.01))

    assert named(lines, "interrupted")
    assert named(lines, "error") == []


@thorough
async def test_an_error_comes_to_the_program():
    lines = await told(SCRIPT, "error", TalkingModel(answer="one two"))

    assert ["item_not_found" in line["text"] for line in named(lines, "error")] == [True]


@thorough
async def test_live_answers_without_turns():
    lines = await told(SCRIPT, "live", Parrot(1))

    first, second = named(lines, "answer")
    assert "You spoke" in first["text"]
    assert second["heard_ms"] > 0
    assert named(lines, "error") == []


@thorough
async def test_live_is_interrupted_by_speech():
    lines = await told(SCRIPT, "live_interruption", Parrot(1))

    assert named(lines, "interrupted")


@thorough
async def test_a_live_error_comes_to_the_program_and_the_session_continues():
    lines = await told(SCRIPT, "live_error", Parrot(1))

    assert ["unknown_event" in line["text"] for line in named(lines, "error")] == [True]
    assert len(named(lines, "answer")) == 2
