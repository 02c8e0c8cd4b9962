import tempfile
from pathlib import Path
from typing import Any

import litellm
from examples.shared import QUESTION, TOO_LONG, asked, city_model, raises, refused


def completion() -> Any:
    assert litellm.completion(model="openai/gpt-4o", messages=asked()).choices[0].message.content


def streamed() -> Any:
    pieces = litellm.completion(model="openai/gpt-4o", messages=asked(), stream=True)
    assert "".join(piece.choices[0].delta.content or "" for piece in pieces)


def responses() -> Any:
    assert litellm.responses(model="openai/gpt-4o", input=QUESTION).output[0].content[0].text


def tools() -> Any:
    tool = {
        "type": "function",
        "function": {
            "name": "get_current_weather",
            "parameters": {"type": "object", "properties": {"location": {"type": "string"}}},
        },
    }
    found = litellm.completion(
        model="openai/gpt-4o", messages=asked(), tools=[tool], tool_choice="auto"
    )
    assert found.choices[0].message.tool_calls[0].function.name


def json_schema() -> Any:
    found = litellm.completion(
        model="openai/gpt-4o", messages=asked(), response_format=city_model()
    )
    assert city_model().model_validate_json(found.choices[0].message.content)


def speech_and_transcription() -> Any:
    said = litellm.speech(
        model="openai/tts-1", voice="alloy", input="What is the capital of Italy?"
    )
    with tempfile.NamedTemporaryFile(suffix=".mp3") as file:
        Path(file.name).write_bytes(said.content)
        with open(file.name, "rb") as sound:
            assert "Italy" in litellm.transcription(model="openai/whisper-1", file=sound).text


def errors() -> Any:
    def ask(text: str, **more: Any) -> Any:
        return litellm.completion(
            model="openai/gpt-4o", messages=[{"role": "user", "content": text}], **more
        )

    raises(litellm.ContextWindowExceededError, lambda: ask(TOO_LONG))
    raises(litellm.AuthenticationError, lambda: ask("hi", api_key="pk_unknown"))


@refused("make no embeddings")
def embedding() -> Any:
    litellm.embedding(model="openai/text-embedding-3-small", input=["Hello"])
