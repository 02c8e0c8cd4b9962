"""OpenAI's agents in Python with only the address changed: turns, an interruption, an error."""

import asyncio
import base64
import contextlib
import importlib
import importlib.util
import logging
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
from tests.openai.realtime_talk import RATE_HZ, tone
from tests.openai.talking_model import HEARD, ROME, CallingModel, TalkingModel
from tests.support.patience import HANG_S
from tests.support.sounds import question
from tests.support.stack import running_stack

from openai import AsyncOpenAI

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("agents") is None,
        reason="openai-agents is not installed; see the Makefile",
    ),
]

agents: Any
realtime: Any


@pytest.fixture(scope="module", autouse=True)
def library() -> None:
    """The library takes seconds to import: only by the process that runs these tests."""
    global agents, realtime
    agents = importlib.import_module("agents")
    realtime = importlib.import_module("agents.realtime")


SECOND = base64.b64decode(tone(1.0))


class Listener:
    """Everything that a session reports, and what the library made of the server's events."""

    def __init__(self, session: Any) -> None:
        self.session = session
        self.events: list[Any] = []
        self._iterator = aiter(session)

    async def until(self, kind: str) -> Any:
        async with asyncio.timeout(HANG_S):
            while True:
                event = await anext(self._iterator)
                self.events.append(event)
                if event.type == kind:
                    return event

    @property
    def kinds(self) -> list[str]:
        return [event.type for event in self.events]

    @property
    def raw(self) -> list[Any]:
        found = [e.data for e in self.events if e.type == "raw_model_event"]
        return [data.data for data in found if data.type == "raw_server_event"]

    async def say(self, sound: bytes = SECOND) -> None:
        size = 2 * RATE_HZ // 10
        for start in range(0, len(sound), size):
            await self.session.send_audio(sound[start : start + size])
        # As long as any pause may be: whether words shorten it depends on how busy the machine is.
        for _ in range(25):
            await self.session.send_audio(bytes(2 * RATE_HZ // 10))


@contextlib.asynccontextmanager
async def talking(model: TalkingModel, tools: Any = ()) -> AsyncIterator[Listener]:
    agents.set_tracing_disabled(True)
    async with running_stack(load_model=lambda: model, worker={"vad": "energy"}) as running:
        agent = realtime.RealtimeAgent(name="Helper", instructions="You help.", tools=[*tools])
        runner = realtime.RealtimeRunner(agent)
        config = {"url": f"ws://127.0.0.1:{running.gateway.port}/v1/realtime?model=m"}
        session = await runner.run(model_config={**config, "api_key": "sk-any"})
        async with session:
            yield Listener(session)


async def test_two_spoken_turns(logged):
    logging.getLogger("openai.agents").setLevel(logging.DEBUG)
    async with talking(TalkingModel(answer="one two")) as listener:
        for _ in range(2):
            # While an answer is heard a hum is an acknowledgement; words are a turn.
            await listener.say(question())
            await listener.until("audio_end")
            await listener.until("agent_end")
        history = listener.session._history

    sounds = [event for event in listener.events if event.type == "audio"]
    said = [part.transcript for item in history for part in item.content]
    assert len(sounds) == 4
    assert all(len(event.audio.data) == 2 * 2400 for event in sounds)
    assert said.count(HEARD) == 2
    assert "one two " in said
    assert "error" not in listener.kinds
    # Whatever the library does not know it writes down and passes over.
    known = [r for r in logged if "unknown" in r.getMessage().lower()]
    assert known == []
    assert not any(record.levelno >= logging.ERROR for record in logged)


async def test_a_written_turn():
    async with talking(TalkingModel(answer="one two")) as listener:
        await listener.session.send_message("hello")
        await listener.until("agent_end")

    assert "audio" in listener.kinds
    assert "error" not in listener.kinds


async def test_who_speaks_up_interrupts_the_agent():
    async with talking(TalkingModel(answer="word " * 2000, word_s=0.02)) as listener:
        await listener.session.send_message("tell me a long story")
        await listener.until("audio")
        await listener.say(question())
        await listener.until("audio_interrupted")
        await listener.session.interrupt()
        while not any(
            raw["type"] == "response.done" and raw["response"]["status"] == "cancelled"
            for raw in listener.raw
        ):
            await listener.until("raw_model_event")

    assert "error" not in listener.kinds


async def test_an_error_comes_to_the_program_and_the_session_continues():
    async with talking(TalkingModel(answer="one two")) as listener:
        message = {"type": "conversation.item.delete", "other_data": {"item_id": "nowhere"}}
        await listener.session.model.send_event(
            realtime.RealtimeModelSendRawMessage(message=message)
        )
        error = await listener.until("error")
        await listener.session.send_message("still there?")
        await listener.until("agent_end")

    assert "item_not_found" in str(error)


async def test_a_function_is_called_and_its_result_is_answered():
    asked: list[str] = []

    @agents.function_tool  # type: ignore[untyped-decorator]
    def get_weather(city: str) -> str:
        """Weather of a city."""
        asked.append(city)
        return "sunny"

    model = CallingModel(ROME, ["It ", "is ", "sunny."])
    async with talking(model, [get_weather]) as listener:
        await listener.session.send_message("What is the weather in Rome?")
        await listener.until("tool_end")
        await listener.until("audio_end")
        await listener.until("agent_end")

    assert asked == ["Rome"]
    assert "error" not in listener.kinds
    assert "<tool_response>\nsunny\n</tool_response>" in model.contexts[1]


async def test_a_stream_is_heard_to_its_end_by_a_transcription_session():
    voice = importlib.import_module("agents.voice")
    made = TalkingModel(can=True)
    pieces = [np.frombuffer(each, "<i2") for each in (SECOND, bytes(3 * RATE_HZ), SECOND)]
    async with (
        running_stack(load_model=lambda: made, worker={"vad": "energy"}) as running,
        AsyncOpenAI(api_key="sk-any", base_url=f"{running.url}/v1") as client,
    ):
        sound = voice.StreamedAudioInput()
        model = voice.OpenAISTTModel("gpt-4o-transcribe", client)
        session = await model.create_session(sound, voice.STTModelSettings(), False, False)
        for piece in pieces:
            await sound.add_audio(piece)
        await sound.add_audio(None)
        async with asyncio.timeout(HANG_S):
            heard = [words async for words in session.transcribe_turns()]
        await session.close()

    assert heard == [HEARD, HEARD]
