"""The first examples of the SDKs' own READMEs: only address, key and model are changed. Runs in the
environment where they are installed, and knows nothing of the server.

    first_examples.py URL CLIENT…     one JSON line for each example, then {"what": "end"}

An example that the server refuses says so, with part of the sentence that its client raises.
"""

import asyncio
import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

QUESTION = "What is the capital of Italy?"
PIXEL = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5E"
    "rkJggg=="
)
"""A picture: PNG, base64."""
TOOL_QUESTION = "What's the weather in Tokyo?"


@dataclass(frozen=True)
class Example:
    """Something that a client's README shows.

    Args:
        refused: part of what the server says instead of an answer.
    """

    name: str
    run: Callable[[], Any]
    refused: str = ""


TOO_LONG = "word " * 13_000
"""More than the context of any model in these tests."""
EXAMPLES: dict[str, list[Example]] = {}


def example(client: str, *, refused: str = "") -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    """Marks an example of a client (a package's name)."""

    def keep(run: Callable[[], Any]) -> Callable[[], Any]:
        name = run.__name__.removeprefix(client.replace("-", "_") + "_").replace("_", " ")
        EXAMPLES.setdefault(client, []).append(Example(name, run, refused))
        return run

    return keep


def city_model() -> Any:
    from pydantic import BaseModel

    class City(BaseModel):
        city: str
        country: str

    return City


def weather_function() -> Any:
    """A tool that counts its calls, as plain functions with a docstring are tools in most SDKs."""
    called: list[str] = []

    def get_weather(city: str) -> str:
        """Weather of a city."""
        called.append(city)
        return f"The weather in {city} is sunny."

    get_weather.called = called  # type: ignore[attr-defined]
    return get_weather


def asked() -> list[Any]:
    return [{"role": "user", "content": QUESTION}]


def raises(expected: type[Exception], run: Callable[[], Any]) -> None:
    """Fails unless the client raises its own error."""
    try:
        run()
    except expected:
        return
    raise AssertionError(f"no {expected.__name__}")


# ---- openai --------------------------------------------------------------------------------


@example("openai")
def openai_responses() -> Any:
    from openai import OpenAI

    return OpenAI().responses.create(model="gpt-5.2", instructions="Be brief.", input=QUESTION)


@example("openai")
def openai_responses_streamed() -> Any:
    from openai import OpenAI

    stream = OpenAI().responses.create(model="gpt-5.2", input=QUESTION, stream=True)
    (*_, last) = stream
    assert last.type == "response.completed", last
    return last.response.output_text


@example("openai")
def openai_responses_parse() -> Any:
    from openai import OpenAI

    found: Any = OpenAI().responses.parse(model="m", input=QUESTION, text_format=city_model())
    assert found.output_parsed.city
    return found.output_parsed


@example("openai")
def openai_responses_tools() -> Any:
    from openai import OpenAI

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


@example("openai", refused="send input_image.image_url as a data URL")
def openai_vision_by_address() -> Any:
    openai_vision("https://upload.wikimedia.org/wikipedia/commons/d/d5/2023_06_08_Raccoon1.jpg")


@example("openai")
def openai_vision_by_data() -> Any:
    openai_vision(f"data:image/png;base64,{PIXEL}")


def openai_vision(image_url: str) -> None:
    from openai import OpenAI

    content: Any = [
        {"type": "input_text", "text": "What is in this image?"},
        {"type": "input_image", "image_url": image_url},
    ]
    found = OpenAI().responses.create(model="gpt-5.2", input=[{"role": "user", "content": content}])
    assert found.output_text


@example("openai")
def openai_realtime() -> Any:
    from openai import AsyncOpenAI

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


@example("openai")
def openai_chat() -> Any:
    from openai import OpenAI

    messages = [{"role": "developer", "content": "Be brief."}, *asked()]
    return OpenAI().chat.completions.create(model="gpt-5.2", messages=messages)


@example("openai")
def openai_chat_parse() -> Any:
    from openai import OpenAI

    found: Any = OpenAI().chat.completions.parse(
        model="m", messages=asked(), response_format=city_model()
    )
    assert found.choices[0].message.parsed.city
    return found.choices[0].message.parsed


@example("openai")
def openai_chat_streamed() -> Any:
    from openai import OpenAI

    stream = OpenAI().chat.completions.create(model="gpt-5.2", messages=asked(), stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream)


@example("openai")
def openai_chat_stream_helper() -> Any:
    from openai import OpenAI

    with OpenAI().chat.completions.stream(model="gpt-5.2", messages=asked()) as stream:
        for _ in stream:
            pass
        assert stream.get_final_completion().choices[0].message.content


@example("openai")
def openai_chat_audio() -> Any:
    from openai import OpenAI

    found = OpenAI().chat.completions.create(
        model="gpt-audio",
        modalities=["text", "audio"],
        audio={"voice": "alloy", "format": "wav"},
        messages=asked(),
    )
    assert found.choices[0].message.audio.data


@example("openai")
def openai_chat_tools() -> Any:
    from openai import OpenAI, pydantic_function_tool

    messages: Any = [{"role": "user", "content": TOOL_QUESTION}]
    found = OpenAI().chat.completions.create(
        model="gpt-5.2", messages=messages, tools=[pydantic_function_tool(city_model())]
    )
    assert found.choices[0].message.tool_calls


@example("openai")
def openai_errors() -> Any:
    import openai

    raises(openai.AuthenticationError, openai.OpenAI(api_key="pk_unknown").models.list)
    client = openai.OpenAI()
    raises(openai.BadRequestError, lambda: client.responses.create(model="m", input=TOO_LONG))
    raises(openai.NotFoundError, lambda: client.responses.retrieve("resp_unknown"))


@example("openai")
def openai_speech_and_transcription() -> Any:
    from openai import OpenAI

    said = OpenAI().audio.speech.create(model="gpt-4o-mini-tts", voice="coral", input=QUESTION)
    sound = ("speech.mp3", said.content)
    found = OpenAI().audio.transcriptions.create(model="gpt-4o-transcribe", file=sound)
    assert "Italy" in found.text


# ---- openai-agents -------------------------------------------------------------------------


@example("openai-agents")
def openai_agents_hello() -> Any:
    from agents import Agent, Runner

    agent = Agent(name="Assistant", instructions="You are a helpful assistant")
    return Runner.run_sync(agent, "Write a haiku about recursion in programming.").final_output


@example("openai-agents")
def openai_agents_streamed() -> Any:
    from agents import Agent, Runner

    async def run() -> Any:
        result = Runner.run_streamed(Agent(name="Joker", instructions="Be funny."), input="Joke!")
        async for _ in result.stream_events():
            pass
        return result.final_output

    # The loop that `run_sync` uses, too: its client belongs to it.
    return asyncio.get_event_loop_policy().get_event_loop().run_until_complete(run())


@example("openai-agents")
def openai_agents_function() -> Any:
    from agents import Agent, Runner, function_tool

    called = []

    @function_tool
    def get_weather(city: str) -> str:
        """Weather of a city."""
        called.append(city)
        return f"The weather in {city} is sunny."

    agent = Agent(name="Hello world", instructions="You help.", tools=[get_weather])
    answer = Runner.run_sync(agent, input="What's the weather in Tokyo?").final_output
    assert called, answer
    return answer


@example("openai-agents")
def openai_agents_output_type() -> Any:
    from agents import Agent, Runner

    agent = Agent(name="City", instructions="Name it.", output_type=city_model())
    return Runner.run_sync(agent, QUESTION).final_output.city


# ---- LangChain -----------------------------------------------------------------------------


def langchain_model() -> Any:
    from langchain.chat_models import init_chat_model

    return init_chat_model("openai:gpt-5.5")


@example("langchain-openai")
def langchain_openai_invoke() -> Any:
    assert langchain_model().invoke("Hello, world!").text


@example("langchain-openai")
def langchain_openai_stream() -> Any:
    assert "".join(chunk.text for chunk in langchain_model().stream(QUESTION))


@example("langchain-openai")
def langchain_openai_responses() -> Any:
    from langchain_openai import ChatOpenAI

    assert ChatOpenAI(model="gpt-5.5", use_responses_api=True).invoke(QUESTION).text


@example("langchain-openai")
def langchain_openai_agent() -> Any:
    from langchain.agents import create_agent

    weather = weather_function()
    agent = create_agent("openai:gpt-5.5", tools=[weather], system_prompt="You help.")
    agent.invoke({"messages": [{"role": "user", "content": TOOL_QUESTION}]})
    assert weather.called


@example("langchain-openai")
def langchain_openai_structured_output() -> Any:
    assert langchain_model().with_structured_output(city_model()).invoke(QUESTION).city


@example("langchain-openai")
def langchain_openai_structured_by_function() -> Any:
    model = langchain_model().with_structured_output(city_model(), method="function_calling")
    assert model.invoke(QUESTION).city


@example("langchain-openai")
def langchain_openai_errors() -> Any:
    from langchain_core.exceptions import ContextOverflowError

    raises(ContextOverflowError, lambda: langchain_model().invoke(TOO_LONG))


@example("langchain-openai", refused="make no embeddings")
def langchain_openai_embeddings() -> Any:
    from langchain_openai import OpenAIEmbeddings

    OpenAIEmbeddings(check_embedding_ctx_length=False).embed_query("Hello")


# ---- LiteLLM -------------------------------------------------------------------------------


@example("litellm")
def litellm_completion() -> Any:
    from litellm import completion

    assert completion(model="openai/gpt-4o", messages=asked()).choices[0].message.content


@example("litellm")
def litellm_streamed() -> Any:
    from litellm import completion

    pieces = completion(model="openai/gpt-4o", messages=asked(), stream=True)
    assert "".join(piece.choices[0].delta.content or "" for piece in pieces)


@example("litellm")
def litellm_responses() -> Any:
    from litellm import responses

    assert responses(model="openai/gpt-4o", input=QUESTION).output[0].content[0].text


@example("litellm")
def litellm_tools() -> Any:
    from litellm import completion

    tool = {
        "type": "function",
        "function": {
            "name": "get_current_weather",
            "parameters": {"type": "object", "properties": {"location": {"type": "string"}}},
        },
    }
    found = completion(model="openai/gpt-4o", messages=asked(), tools=[tool], tool_choice="auto")
    assert found.choices[0].message.tool_calls[0].function.name


@example("litellm")
def litellm_json_schema() -> Any:
    from litellm import completion

    found = completion(model="openai/gpt-4o", messages=asked(), response_format=city_model())
    assert city_model().model_validate_json(found.choices[0].message.content)


@example("litellm")
def litellm_speech_and_transcription() -> Any:
    import tempfile

    from litellm import speech, transcription

    said = speech(model="openai/tts-1", voice="alloy", input="What is the capital of Italy?")
    with tempfile.NamedTemporaryFile(suffix=".mp3") as file:
        Path(file.name).write_bytes(said.content)
        with open(file.name, "rb") as sound:
            assert "Italy" in transcription(model="openai/whisper-1", file=sound).text


@example("litellm")
def litellm_errors() -> Any:
    import litellm

    def ask(text: str, **more: Any) -> Any:
        return litellm.completion(
            model="openai/gpt-4o", messages=[{"role": "user", "content": text}], **more
        )

    raises(litellm.ContextWindowExceededError, lambda: ask(TOO_LONG))
    raises(litellm.AuthenticationError, lambda: ask("hi", api_key="pk_unknown"))


@example("litellm", refused="make no embeddings")
def litellm_embedding() -> Any:
    from litellm import embedding

    embedding(model="openai/text-embedding-3-small", input=["Hello"])


# ---- pydantic-ai ---------------------------------------------------------------------------


@example("pydantic-ai-slim")
def pydantic_ai_slim_hello() -> Any:
    from pydantic_ai import Agent

    agent = Agent("openai:gpt-5.2", instructions="Be concise, reply with one sentence.")
    assert agent.run_sync('Where does "hello world" come from?').output


@example("pydantic-ai-slim")
def pydantic_ai_slim_chat() -> Any:
    from pydantic_ai import Agent

    assert Agent("openai-chat:gpt-5.2").run_sync(QUESTION).output


@example("pydantic-ai-slim")
def pydantic_ai_slim_streamed() -> Any:
    from pydantic_ai import Agent

    assert list(Agent("openai:gpt-5.2").run_stream_sync(QUESTION).stream_text())


@example("pydantic-ai-slim")
def pydantic_ai_slim_tool() -> Any:
    from pydantic_ai import Agent

    weather = weather_function()
    Agent("openai:gpt-5.2", tools=[weather]).run_sync(TOOL_QUESTION)
    assert weather.called


@example("pydantic-ai-slim")
def pydantic_ai_slim_output_type() -> Any:
    from pydantic_ai import Agent

    assert Agent("openai:gpt-5.2", output_type=city_model()).run_sync(QUESTION).output.city


@example("pydantic-ai-slim")
def pydantic_ai_slim_native_output() -> Any:
    from pydantic_ai import Agent, NativeOutput

    agent = Agent("openai-chat:gpt-5.2", output_type=NativeOutput(city_model()))
    assert agent.run_sync(QUESTION).output.city


@example("pydantic-ai-slim")
def pydantic_ai_slim_errors() -> Any:
    from pydantic_ai import Agent
    from pydantic_ai.exceptions import ModelContextWindowExceededError

    for model in ("openai:gpt-5.2", "openai-chat:gpt-5.2"):
        agent = Agent(model)
        raises(ModelContextWindowExceededError, lambda agent=agent: agent.run_sync(TOO_LONG))


# ---- instructor ----------------------------------------------------------------------------


def instructed(mode: str = "", **more: Any) -> Any:
    import instructor

    if mode:
        more["mode"] = getattr(instructor.Mode, mode)
    return instructor.from_provider("openai/gpt-4o-mini", **more)


@example("instructor")
def instructor_response_model() -> Any:
    assert instructed().chat.completions.create(response_model=city_model(), messages=asked()).city


@example("instructor")
def instructor_partial_streamed() -> Any:
    pieces = instructed().chat.completions.create_partial(
        response_model=city_model(), messages=asked()
    )
    assert list(pieces)[-1].city


@example("instructor")
def instructor_json_schema() -> Any:
    client = instructed("JSON_SCHEMA")
    assert client.chat.completions.create(response_model=city_model(), messages=asked()).city


@example("instructor")
def instructor_responses_tools() -> Any:
    client = instructed("RESPONSES_TOOLS")
    assert client.chat.completions.create(response_model=city_model(), messages=asked()).city


# ---- llama-index ---------------------------------------------------------------------------


def llama_model() -> Any:
    from llama_index.llms.openai import OpenAI

    return OpenAI(model="gpt-4o")


@example("llama-index-llms-openai")
def llama_index_llms_openai_complete() -> Any:
    assert llama_model().complete("Paul Graham is ").text


@example("llama-index-llms-openai")
def llama_index_llms_openai_stream_chat() -> Any:
    from llama_index.core.llms import ChatMessage

    pieces = llama_model().stream_chat([ChatMessage(role="user", content=QUESTION)])
    assert "".join(piece.delta for piece in pieces)


@example("llama-index-llms-openai")
def llama_index_llms_openai_predict_and_call() -> Any:
    from llama_index.core.tools import FunctionTool

    weather = weather_function()
    tool = FunctionTool.from_defaults(fn=weather, name="get_weather")
    llama_model().predict_and_call([tool], TOOL_QUESTION)
    assert weather.called


@example("llama-index-llms-openai")
def llama_index_llms_openai_structured_predict() -> Any:
    from llama_index.core.prompts import PromptTemplate

    assert llama_model().structured_predict(city_model(), PromptTemplate(QUESTION)).city


@example("llama-index-llms-openai")
def llama_index_llms_openai_responses() -> Any:
    from llama_index.llms.openai import OpenAIResponses

    assert OpenAIResponses(model="gpt-4o").complete(QUESTION).text


@example("llama-index-llms-openai-like")
def llama_index_llms_openai_like_complete() -> Any:
    from llama_index.llms.openai_like import OpenAILike

    model = OpenAILike(
        model="m", api_base=os.environ["OPENAI_BASE_URL"], api_key="any", is_chat_model=True
    )
    assert model.complete(QUESTION).text


@example("llama-index-llms-openai-like")
def llama_index_llms_openai_like_predict_and_call() -> Any:
    from llama_index.core.tools import FunctionTool
    from llama_index.llms.openai_like import OpenAILike

    weather = weather_function()
    tool = FunctionTool.from_defaults(fn=weather, name="get_weather")
    model = OpenAILike(
        model="m",
        api_base=os.environ["OPENAI_BASE_URL"],
        api_key="any",
        is_chat_model=True,
        is_function_calling_model=True,
    )
    model.predict_and_call([tool], TOOL_QUESTION)
    assert weather.called


@example("llama-index-llms-openai-like", refused="/v1/chat/completions")
def llama_index_llms_openai_like_text_completion() -> Any:
    from llama_index.llms.openai_like import OpenAILike

    base = os.environ["OPENAI_BASE_URL"]
    OpenAILike(model="m", api_base=base, api_key="any", max_retries=0).complete(QUESTION)


# ---- llm -----------------------------------------------------------------------------------


@example("llm")
def llm_prompt() -> Any:
    import llm

    assert llm.get_model("gpt-4o-mini").prompt("Five surprising names for a pet pelican").text()


@example("llm")
def llm_streamed() -> Any:
    import llm

    assert "".join(llm.get_model("gpt-4o-mini").prompt(QUESTION, stream=True))


@example("llm")
def llm_tool() -> Any:
    import llm

    weather = weather_function()
    llm.get_model("gpt-4o-mini").chain(TOOL_QUESTION, tools=[weather]).text()
    assert weather.called


@example("llm")
def llm_schema() -> Any:
    import llm

    text = llm.get_model("gpt-4o-mini").prompt(QUESTION, schema=city_model()).text()
    assert json.loads(text)["city"]


# ---- semantic-kernel -----------------------------------------------------------------------


def kernel_agent(**more: Any) -> Any:
    from semantic_kernel.agents import ChatCompletionAgent
    from semantic_kernel.connectors.ai.open_ai import OpenAIChatCompletion

    return ChatCompletionAgent(
        service=OpenAIChatCompletion(), name="SK-Assistant", instructions="You help.", **more
    )


@example("semantic-kernel")
def semantic_kernel_agent() -> Any:
    assert str(asyncio.run(kernel_agent().get_response(messages=QUESTION)).content)


@example("semantic-kernel")
def semantic_kernel_streamed() -> Any:
    async def run() -> str:
        stream = kernel_agent().invoke_stream(messages=QUESTION)
        return "".join([str(piece.content) async for piece in stream])

    assert asyncio.run(run())


@example("semantic-kernel")
def semantic_kernel_plugin() -> Any:
    from semantic_kernel.functions import kernel_function

    called = []

    class MenuPlugin:
        @kernel_function(description="Price of the requested menu item.")
        def get_item_price(self, menu_item: str) -> str:
            called.append(menu_item)
            return "$9.99"

    agent = kernel_agent(plugins=[MenuPlugin()])
    asyncio.run(agent.get_response(messages="What is the price of the soup special?"))
    assert called


@example("semantic-kernel")
def semantic_kernel_response_format() -> Any:
    from semantic_kernel.connectors.ai.open_ai import OpenAIChatPromptExecutionSettings
    from semantic_kernel.functions import KernelArguments

    settings = OpenAIChatPromptExecutionSettings(response_format=city_model())
    agent = kernel_agent(arguments=KernelArguments(settings))
    found = asyncio.run(agent.get_response(messages=QUESTION))
    assert city_model().model_validate_json(str(found.content))


# ---- pipecat -------------------------------------------------------------------------------


async def piped(*services: Any, give: list[Any]) -> list[Any]:
    """What comes out of a pipeline of services."""
    from pipecat.frames.frames import EndFrame, ErrorFrame
    from pipecat.pipeline.pipeline import Pipeline
    from pipecat.pipeline.worker import PipelineWorker
    from pipecat.processors.frame_processor import FrameProcessor
    from pipecat.workers.runner import WorkerRunner

    class Ear(FrameProcessor):
        def __init__(self) -> None:
            super().__init__()
            self.frames: list[Any] = []

        async def process_frame(self, frame: Any, direction: Any) -> None:
            await super().process_frame(frame, direction)
            self.frames.append(frame)
            await self.push_frame(frame, direction)

    ear = Ear()
    worker = PipelineWorker(Pipeline([*services, ear]), enable_rtvi=False)
    failed = []

    @worker.event_handler("on_pipeline_error")
    async def _on_error(worker: Any, frame: ErrorFrame) -> None:
        failed.append(frame.error)

    await worker.queue_frames([*give, EndFrame()])
    runner = WorkerRunner(handle_sigint=False)
    await runner.add_workers(worker)
    await runner.run()
    assert not failed, failed
    return ear.frames


def pipecat_context(**more: Any) -> Any:
    from pipecat.processors.aggregators.llm_context import LLMContext

    return LLMContext([{"role": "developer", "content": "Be brief."}, *asked()], **more)


@example("pipecat-ai")
def pipecat_ai_llm() -> Any:
    from pipecat.frames.frames import LLMContextFrame, LLMTextFrame
    from pipecat.services.openai.llm import OpenAILLMService

    llm = OpenAILLMService(api_key="sk-any", base_url=os.environ["OPENAI_BASE_URL"])
    found = asyncio.run(piped(llm, give=[LLMContextFrame(pipecat_context())]))
    assert "".join(each.text for each in found if isinstance(each, LLMTextFrame))


@example("pipecat-ai")
def pipecat_ai_function() -> Any:
    from pipecat.adapters.llm.schemas.function_schema import FunctionSchema
    from pipecat.adapters.llm.schemas.tools_schema import ToolsSchema
    from pipecat.frames.frames import FunctionCallResultFrame, LLMContextFrame
    from pipecat.services.openai.llm import OpenAILLMService

    async def get_weather(params: Any) -> None:
        await params.result_callback("sunny")

    schema = FunctionSchema(
        name="get_weather",
        description="Weather of a city.",
        properties={"city": {"type": "string"}},
        required=["city"],
    )
    llm = OpenAILLMService(api_key="sk-any", base_url=os.environ["OPENAI_BASE_URL"])
    llm.register_function("get_weather", get_weather)
    context = pipecat_context(tools=ToolsSchema(standard_tools=[schema]))
    found = asyncio.run(piped(llm, give=[LLMContextFrame(context)]))
    assert any(isinstance(each, FunctionCallResultFrame) for each in found)


@example("pipecat-ai")
def pipecat_ai_speech() -> Any:
    from pipecat.frames.frames import TTSAudioRawFrame, TTSSpeakFrame
    from pipecat.services.openai.tts import OpenAITTSService

    tts = OpenAITTSService(api_key="sk-any", base_url=os.environ["OPENAI_BASE_URL"])
    found = asyncio.run(piped(tts, give=[TTSSpeakFrame("The capital of Italy is Rome.")]))
    assert sum(len(each.audio) for each in found if isinstance(each, TTSAudioRawFrame)) > 24_000


# ---- LiveKit -------------------------------------------------------------------------------


async def with_livekit(run: Callable[[Any], Any]) -> None:
    from livekit.agents import utils
    from livekit.plugins import openai

    async with utils.http_context.open():
        await run(openai)


async def livekit_text(openai: Any, **more: Any) -> tuple[str, list[Any]]:
    """Words and calls of an answer."""
    from livekit.agents import llm

    context = llm.ChatContext.empty()
    context.add_message(role="user", content=QUESTION)
    text, calls = "", []
    async with openai.LLM(model="gpt-5.2").chat(chat_ctx=context, **more) as stream:
        async for chunk in stream:
            if chunk.delta is not None:
                text += chunk.delta.content or ""
                calls += chunk.delta.tool_calls
    return text, calls


@example("livekit-plugins-openai")
def livekit_plugins_openai_llm() -> Any:
    async def run(openai: Any) -> None:
        assert (await livekit_text(openai))[0]

    asyncio.run(with_livekit(run))


@example("livekit-plugins-openai")
def livekit_plugins_openai_function() -> Any:
    from livekit.agents import function_tool

    @function_tool
    async def lookup_weather(location: str) -> str:
        """Used to look up weather information."""
        return location

    async def run(openai: Any) -> None:
        _, calls = await livekit_text(openai, tools=[lookup_weather])
        assert calls[0].name == "lookup_weather"

    asyncio.run(with_livekit(run))


@example("livekit-plugins-openai")
def livekit_plugins_openai_response_format() -> Any:
    async def run(openai: Any) -> None:
        text, _ = await livekit_text(openai, response_format=city_model())
        assert city_model().model_validate_json(text)

    asyncio.run(with_livekit(run))


@example("livekit-plugins-openai")
def livekit_plugins_openai_speech_and_transcription() -> Any:
    async def run(openai: Any) -> None:
        async with openai.TTS(model="gpt-4o-mini-tts", voice="ash").synthesize(QUESTION) as stream:
            frame = await stream.collect()
        found = await openai.STT(model="gpt-4o-transcribe").recognize(buffer=frame)
        assert "Italy" in found.alternatives[0].text

    asyncio.run(with_livekit(run))


def outcome(run: Callable[[], Any]) -> str:
    """What went wrong; "": nothing."""
    try:
        run()
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:1000]
    return ""


def main(url: str, *clients: str) -> None:
    """Run the examples of some clients."""
    os.environ.update(
        OPENAI_API_KEY="sk-any",
        OPENAI_BASE_URL=url,
        OPENAI_API_BASE=url,
        OPENAI_AGENTS_DISABLE_TRACING="1",
        OPENAI_CHAT_MODEL_ID="gpt-5",
        LITELLM_LOCAL_MODEL_COST_MAP="true",
    )
    for client in clients:
        for each in EXAMPLES[client]:
            line = {
                "what": "example",
                "client": client,
                "version": version(client),
                "example": each.name,
                "refused": each.refused,
                "problem": outcome(each.run),
            }
            print(json.dumps(line), flush=True)
    print(json.dumps({"what": "end"}))


if __name__ == "__main__":
    main(*sys.argv[1:])
