import asyncio
from typing import Any

from examples.shared import QUESTION, TOO_LONG, TOOL_QUESTION, asked, city_model, raises, refused

import openai
from openai import AsyncOpenAI, OpenAI, pydantic_function_tool

PIXEL = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5E"
    "rkJggg=="
)
"""A picture: PNG, base64."""


def responses() -> Any:
    return OpenAI().responses.create(model="gpt-5.2", instructions="Be brief.", input=QUESTION)


def responses_streamed() -> Any:
    stream = OpenAI().responses.create(model="gpt-5.2", input=QUESTION, stream=True)
    (*_, last) = stream
    assert last.type == "response.completed", last
    return last.response.output_text


def responses_parse() -> Any:
    found: Any = OpenAI().responses.parse(model="m", input=QUESTION, text_format=city_model())
    assert found.output_parsed.city
    return found.output_parsed


def responses_tools() -> Any:
    tool: Any = {
        "type": "function",
        "name": "get_weather",
        "description": "Weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    }
    items: list[Any] = [{"role": "user", "content": TOOL_QUESTION}]
    client = OpenAI()
    response = client.responses.create(model="gpt-5.2", tools=[tool], input=items)
    items += response.output
    (call,) = [item for item in response.output if item.type == "function_call"]
    items.append({"type": "function_call_output", "call_id": call.call_id, "output": "sunny"})
    assert client.responses.create(model="gpt-5.2", tools=[tool], input=items).output_text


@refused("send image_url as a data URL")
def vision_by_address() -> Any:
    _vision("https://upload.wikimedia.org/wikipedia/commons/d/d5/2023_06_08_Raccoon1.jpg")


def vision_by_data() -> Any:
    _vision(f"data:image/png;base64,{PIXEL}")


def _vision(image_url: str) -> None:
    content: Any = [
        {"type": "input_text", "text": "What is in this image?"},
        {"type": "input_image", "image_url": image_url},
    ]
    found = OpenAI().responses.create(model="gpt-5.2", input=[{"role": "user", "content": content}])
    assert found.output_text


def realtime() -> Any:
    async def run() -> str:
        text = ""
        async with AsyncOpenAI().realtime.connect(model="gpt-realtime") as connection:
            await connection.session.update(
                session={"type": "realtime", "output_modalities": ["text"]}
            )
            content: Any = [{"type": "input_text", "text": "Say hello!"}]
            item: Any = {"type": "message", "role": "user", "content": content}
            await connection.conversation.item.create(item=item)
            await connection.response.create()
            async for event in connection:
                if event.type == "response.output_text.delta":
                    text += event.delta
                elif event.type == "response.done":
                    break
        return text

    assert asyncio.run(run())


def chat() -> Any:
    messages = [{"role": "developer", "content": "Be brief."}, *asked()]
    return OpenAI().chat.completions.create(model="gpt-5.2", messages=messages)


def chat_parse() -> Any:
    found: Any = OpenAI().chat.completions.parse(
        model="m", messages=asked(), response_format=city_model()
    )
    assert found.choices[0].message.parsed.city
    return found.choices[0].message.parsed


def chat_streamed() -> Any:
    stream = OpenAI().chat.completions.create(model="gpt-5.2", messages=asked(), stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream)


def chat_stream_helper() -> Any:
    with OpenAI().chat.completions.stream(model="gpt-5.2", messages=asked()) as stream:
        for _ in stream:
            pass
        assert stream.get_final_completion().choices[0].message.content


def chat_audio() -> Any:
    found = OpenAI().chat.completions.create(
        model="gpt-audio",
        modalities=["text", "audio"],
        audio={"voice": "alloy", "format": "wav"},
        messages=asked(),
    )
    assert found.choices[0].message.audio.data


def chat_tools() -> Any:
    messages: Any = [{"role": "user", "content": TOOL_QUESTION}]
    found = OpenAI().chat.completions.create(
        model="gpt-5.2", messages=messages, tools=[pydantic_function_tool(city_model())]
    )
    assert found.choices[0].message.tool_calls


def errors() -> Any:
    raises(openai.AuthenticationError, openai.OpenAI(api_key="pk_unknown").models.list)
    client = openai.OpenAI()
    raises(openai.BadRequestError, lambda: client.responses.create(model="m", input=TOO_LONG))
    raises(openai.NotFoundError, lambda: client.responses.retrieve("resp_unknown"))


def speech_and_transcription() -> Any:
    said = OpenAI().audio.speech.create(model="gpt-4o-mini-tts", voice="coral", input=QUESTION)
    sound = ("speech.mp3", said.content)
    found = OpenAI().audio.transcriptions.create(model="gpt-4o-transcribe", file=sound)
    assert "Italy" in found.text
