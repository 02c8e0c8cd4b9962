"""Functions that a model calls, with OpenAI's own clients: the call, its result, the answer."""

import asyncio
import contextlib
import functools
import json
from collections.abc import AsyncIterator
from typing import Any
from unittest.mock import Mock

import pytest
from tests.docs.printed import samples
from tests.openai import sdk_client
from tests.openai.realtime_talk import ENERGY, Talk
from tests.openai.sdk_client import chat, streamed_chat
from tests.openai.talking_model import MALFORMED, OSLO, ROME, CallingModel, TalkingModel
from tests.openai.test_realtime import TURN
from tests.support.patience import HANG_S
from tests.support.programs import python
from websockets.asyncio.client import connect

import openai
from parley.client import ChatClient
from parley.client.events import Answer, Calling
from parley.errors import InvalidRequest
from parley.gateway.http.openai.answering import AnswerEnded, AnswerWords, _AnswerReader
from parley.gateway.http.openai.completions import Completion
from parley.protocol.chat import Chunk, Done
from parley.protocol.values import ToolCallPart

PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}}
FUNCTION = {"name": "get_weather", "description": "Weather of a city", "parameters": PARAMETERS}
TOOL: Any = {"type": "function", "function": FUNCTION}
SUNNY = ["It ", "is ", "sunny."]
PLAYED_S = 1.0
"""More than an answer of three words takes to be played."""
QUESTION: Any = {"role": "user", "content": "What is the weather?"}


serving = functools.partial(sdk_client.talking, worker=ENERGY)


@contextlib.asynccontextmanager
async def talking(model: TalkingModel, **session: Any) -> AsyncIterator[tuple[Talk, Any]]:
    async with serving(model) as (_, client), client.realtime.connect(model="m") as connection:
        talk = Talk(connection)
        await talk.until("session.created")
        tools = [{"type": "function", **FUNCTION}]
        updated = await talk.set(**{"output_modalities": ["text"], "tools": tools, **session})
        talk.events.clear()
        yield talk, updated


# ---- chat completions ----------------------------------------------------------------------


async def test_a_chat_calls_two_functions_and_answers_with_their_results():
    model = CallingModel(["Let ", "me ", "look.", "\n", *ROME, "\n", *OSLO], SUNNY)
    async with serving(model) as (_, client):
        called = await chat(client, messages=[QUESTION], tools=[TOOL])
        message = called.choices[0].message
        calls = message.tool_calls or []
        results: Any = [
            {"role": "tool", "tool_call_id": call.id, "content": text}
            for call, text in zip(calls, ("sunny", "snow"), strict=True)
        ]
        told: Any = [QUESTION, message.model_dump(exclude_none=True), *results]
        answer = await chat(client, messages=told, tools=[TOOL])

    assert called.choices[0].finish_reason == "tool_calls"
    assert message.content == "Let me look.\n"
    assert [(c.function.name, json.loads(c.function.arguments)) for c in calls] == [
        ("get_weather", {"city": "Rome"}),
        ("get_weather", {"city": "Oslo"}),
    ]
    assert answer.choices[0].message.content == "It is sunny."
    assert answer.choices[0].finish_reason == "stop"
    assert any("# Tools" in words and "get_weather" in words for words in model.contexts[0])
    assert "<tool_response>\nsnow\n</tool_response>" in model.contexts[1]


async def test_a_streamed_chat_streams_the_arguments():
    model = CallingModel(["Look. ", *ROME, *OSLO])
    async with serving(model) as (_, client):
        chunks = await streamed_chat(client, messages=[QUESTION], tools=[TOOL])

    deltas = [choice.delta for chunk in chunks for choice in chunk.choices]
    calls = [call for delta in deltas for call in delta.tool_calls or []]
    arguments = ["", ""]
    for call in calls:
        assert call.function is not None
        arguments[call.index] += call.function.arguments or ""
    assert "".join(delta.content or "" for delta in deltas) == "Look. "
    assert [json.loads(text) for text in arguments] == [{"city": "Rome"}, {"city": "Oslo"}]
    assert sum(call.index == 0 for call in calls) > 4
    assert len({call.id for call in calls if call.id}) == 2
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


@pytest.mark.parametrize("stream", [True, False])
async def test_a_malformed_call_comes_back_as_text(stream):
    async with serving(CallingModel(MALFORMED)) as (_, client):
        if stream:
            text, reason = "", None
            for chunk in await streamed_chat(client, messages=[QUESTION], tools=[TOOL]):
                text += chunk.choices[0].delta.content or ""
                reason = chunk.choices[0].finish_reason or reason
        else:
            whole = await chat(client, messages=[QUESTION], tools=[TOOL])
            text = whole.choices[0].message.content or ""
            reason = whole.choices[0].finish_reason

    assert text == "".join(MALFORMED)
    assert reason == "stop"


def test_calls_behind_a_stop_text_are_not_made():
    reader = _AnswerReader(Completion(model="m", messages=(), stop="ok"), is_forced=False)
    call = ToolCallPart(name="get_weather", arguments="{}", id="call_1")

    words = reader.pieces_of(Chunk(text_delta="Look."), Mock())
    (ended,) = reader.pieces_of(Done(text="Look.", tool_calls=(call,)), Mock())

    assert words == [AnswerWords("Lo")]
    assert isinstance(ended, AnswerEnded)
    assert ended.calls == ()


async def test_a_spoken_chat_does_not_say_its_calls():
    asked: Any = {
        "messages": [QUESTION],
        "tools": [TOOL],
        "modalities": ["text", "audio"],
        "audio": {"voice": "alloy", "format": "pcm16"},
    }
    async with serving(CallingModel(["One ", *ROME], ROME, ROME)) as (_, client):
        spoken = await chat(client, **asked)
        silent = (await chat(client, **asked)).choices[0].message
        deltas = [each.choices[0].delta for each in await streamed_chat(client, **asked)]

    message = spoken.choices[0].message
    assert message.audio is not None
    assert message.audio.transcript == "One "
    assert len(message.audio.data) * 3 // 4 == 2 * 2400
    assert len(message.tool_calls or []) == 1
    assert silent.audio is None
    assert all("audio" not in delta.model_fields_set for delta in deltas)


async def test_a_choice_that_cannot_be_forced_is_refused():
    async with serving(CallingModel(SUNNY)) as (_, client):
        with pytest.raises(openai.BadRequestError) as refused:
            await chat(client, messages=[QUESTION], tools=[TOOL], tool_choice="required")

    assert refused.value.param == "tool_choice"


async def test_abilities_and_capabilities_say_it():
    async with serving(CallingModel()) as (running, client):
        card = (await client.models.list()).data[0]
        async with running.http() as http:
            can = (await http.get("/v1/realtime/capabilities")).json()

    assert "tools" in (card.model_extra or {})["abilities"]
    assert can["tools"] is True


async def test_the_chat_dialect_has_calls_as_messages():
    request = {"messages": [QUESTION], "tools": [TOOL], "streaming": True}
    async with serving(CallingModel(ROME)) as (running, _):
        told: list[dict[str, Any]] = []
        async with (
            connect(f"ws://127.0.0.1:{running.gateway.port}/ws/chat") as socket,
            asyncio.timeout(HANG_S),
        ):
            await socket.send(json.dumps(request))
            while not told or told[-1]["type"] != "done":
                told.append(json.loads(await socket.recv()))

    calls = [message for message in told if message["type"] == "tool_call"]
    (done,) = told[-1]["tool_calls"]
    assert calls[0]["name"] == "get_weather"
    assert json.loads("".join(call["arguments_delta"] for call in calls)) == {"city": "Rome"}
    assert calls[-1]["is_final"]
    assert done["id"] == calls[0]["id"]
    assert told[-1]["text"] == ""


# ---- realtime ------------------------------------------------------------------------------


CALL = [
    "response.created",
    "response.output_item.added",
    "conversation.item.added",
    "response.function_call_arguments.done",
    "conversation.item.done",
    "response.output_item.done",
    "response.done",
    "rate_limits.updated",
]
"""Events of an answer that is one call, without its deltas."""


async def test_the_python_client_calls_functions_as_its_page_prints():
    (sample,) = samples("docs/do/python-client.md", "py")
    model = CallingModel(ROME, ["It ", "is ", "sunny."])
    async with serving(model) as (running, _):
        program = sample.program.replace("https://localhost:8006", running.url)
        done = await asyncio.to_thread(python, "-c", program)

    assert (done.returncode, done.stdout) == (0, "It is sunny.\n"), done.stderr
    assert any("It is sunny in Rome." in each for each in model.contexts[1])


async def test_the_python_client_reports_calls_as_they_are_written():
    tools = [{"type": "function", "function": {"name": "get_weather"}}]
    async with serving(CallingModel([*ROME, *OSLO], MALFORMED)) as (running, _):
        client = ChatClient(running.url)
        events = [event async for event in client.stream("Rome, Oslo?", tools=tools)]
        broken = await client.ask("Rome?", tools=tools)
        with pytest.raises(InvalidRequest, match="not a function"):
            client.request("Rome?", tools=[{"type": "retrieval"}])

    calling = [event for event in events if isinstance(event, Calling)]
    answer = events[-1]
    assert isinstance(answer, Answer)
    assert [call.arguments for call in answer.calls] == ['{"city": "Rome"}', '{"city": "Oslo"}']
    assert [call.name for call in answer.calls] == ["get_weather", "get_weather"]
    for index, call in enumerate(answer.calls):
        pieces = [event for event in calling if event.index == index]
        assert (pieces[0].name, pieces[0].call_id) == ("get_weather", call.id)
        assert "".join(event.arguments for event in pieces) == call.arguments
    assert broken.calls == ()
    assert "weather of Rome?" in broken.text
    with pytest.raises(ValueError, match="zip"):
        answer.followed_by("only one")


async def test_a_realtime_session_calls_and_continues_the_result():
    model = CallingModel(ROME, SUNNY)
    async with talking(model) as (talk, session):
        await talk.write("What is the weather?")
        talk.events.clear()
        await talk.connection.response.create()
        await talk.until("rate_limits.updated")
        types = talk.types
        deltas = "".join(talk.deltas("function_call_arguments"))
        (call,) = next(e for e in talk.events if e.type == "response.done").response.output
        await talk.result(call, "sunny")
        answer = await talk.answer()

    assert session.tools[0].name == "get_weather"
    assert [t for t in types if not t.endswith(".delta")] == CALL
    assert types.count("response.function_call_arguments.delta") > 3
    assert call.type == "function_call"
    assert call.status == "completed"
    assert json.loads(deltas) == json.loads(call.arguments) == {"city": "Rome"}
    assert answer.output[0].content[0].text == "It is sunny."
    # The call itself is in the context already: only its result is new.
    assert model.contexts[1][-1] == "<tool_response>\nsunny\n</tool_response>"
    assert sum("# Tools" in words for words in model.contexts[1]) == 1


async def answer_aloud_and_truncate(talk: Talk, audio_end_ms: int) -> None:
    """An answer to a written message, of which the client says how much was heard after all."""
    await talk.write("Hello!")
    item = (await talk.answer()).output[0]
    # Who speaks while it is played interrupts it, and the server truncates it.
    await asyncio.sleep(PLAYED_S)
    await talk.truncate(item, audio_end_ms)
    await talk.until("conversation.item.truncated")
    talk.events.clear()


@pytest.mark.parametrize(("heard_ms", "says_again"), [(300, []), (150, ["One two "])])
async def test_a_call_follows_speech_and_an_answer_that_was_truncated(heard_ms, says_again):
    """As pipecat does, which truncates the answer before whenever the user begins to speak."""
    model = CallingModel(["One ", "two ", "three."], ROME, SUNNY)
    async with talking(model, output_modalities=["audio"]) as (talk, _):
        await answer_aloud_and_truncate(talk, heard_ms)
        await talk.say()
        await talk.until("rate_limits.updated")
        types = [name for name in talk.types if not name.endswith(".delta")]
        done = next(e for e in talk.events if e.type == "response.done")
        (call,) = done.response.output
        await talk.result(call, "sunny")
        answered = await talk.answer()

    assert types == [*TURN, *CALL]
    assert json.loads(call.arguments) == {"city": "Rome"}
    assert answered.output[0].content[0].transcript == "It is sunny."
    # What was heard to its end stands in the context as it is.
    assert [work.say for work in model.asked if work.say] == says_again


async def test_a_context_that_is_refilled_holds_the_calls():
    model = CallingModel(["Look. ", *ROME, *OSLO], SUNNY)
    async with talking(model) as (talk, _):
        await talk.write("What is the weather?")
        first = await talk.answer()
        for call in first.output[1:]:
            await talk.result(call, "sunny")
        await talk.set(instructions="New.")
        await talk.answer()

    assert [item.type for item in first.output] == ["message", "function_call", "function_call"]
    text = "".join(model.contexts[1])
    assert text.startswith("New.")
    assert text.index("Look. ") < text.index('"Rome"') < text.index('"Oslo"')
    assert text.count("<tool_response>\nsunny\n</tool_response>") == 2


async def test_a_malformed_call_of_a_session_comes_back_as_text():
    async with talking(CallingModel(MALFORMED)) as (talk, _):
        await talk.write("What is the weather?")
        await talk.answer()
        (told,) = [e for e in talk.events if e.type == "response.output_text.done"]

    assert told.text == "".join(MALFORMED)
    assert "response.function_call_arguments.delta" not in talk.types


async def test_tool_choice_none_offers_nothing():
    model = CallingModel(SUNNY)
    async with talking(model, tool_choice="none") as (talk, _):
        await talk.write("What is the weather?")
        await talk.answer()

    assert not any("# Tools" in words for words in model.contexts[0])


async def test_a_model_that_cannot_says_so():
    async with talking(TalkingModel()) as (talk, session):
        output = {"type": "function_call_output", "call_id": "call_1", "output": "sunny"}
        await talk.send(type="conversation.item.create", item=output)
        error = await talk.error()

    assert session.tools == []
    assert "cannot call tools" in error.message
