"""pipecat's services with nothing given but an address and a key; says what happens as JSON lines.

Runs in the environment of `make test-clients`: `python pipecat_scenario.py URL SCENARIO SPOKEN`,
with SPOKEN a file of 16-bit samples, 24 kHz, that a person says.
"""

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

from pipecat.adapters.llm.schemas.function_schema import FunctionSchema
from pipecat.adapters.llm.schemas.tools_schema import ToolsSchema
from pipecat.frames import frames
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import LLMContextAggregatorPair
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.services.openai.live.llm import OpenAILiveLLMService
from pipecat.services.openai.realtime import events
from pipecat.services.openai.realtime.llm import OpenAIRealtimeLLMService
from pipecat.workers.runner import WorkerRunner

RATE_HZ = 24_000
PIECE_S = 0.05
LIMIT_S = 60.0
WEATHER = FunctionSchema(
    name="get_weather",
    description="Weather of a city.",
    properties={"city": {"type": "string"}},
    required=["city"],
)


def tell(what: str, **more: Any) -> None:
    print(json.dumps({"what": what, **more}), flush=True)


class Ear(FrameProcessor):
    """Where the answers come out: counts sound, keeps words, says what is interrupted."""

    def __init__(self) -> None:
        super().__init__()
        self.heard_ms = 0.0
        self.heard = asyncio.Event()
        self.words = ""
        self.ends: asyncio.Queue[str] = asyncio.Queue()
        self.interrupted = asyncio.Event()
        self.failed = asyncio.Event()

    async def process_frame(self, frame: frames.Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        match frame:
            case frames.OutputAudioRawFrame():
                self.heard_ms += 1000 * len(frame.audio) / 2 / frame.sample_rate
                self.heard.set()
            case frames.TTSTextFrame():
                self.words += frame.text
            case frames.LLMFullResponseEndFrame():
                self.ends.put_nowait(self.words)
                self.words = ""
            case frames.InterruptionFrame():
                self.interrupted.set()
            case _:
                pass
        await self.push_frame(frame, direction)


class Talk:
    """A pipeline, and a person who speaks into it as time goes by."""

    def __init__(self, worker: PipelineWorker, ear: Ear, spoken: bytes) -> None:
        self.worker = worker
        self.ear = ear
        self.spoken = spoken
        self._said = b""

    def say(self) -> None:
        self._said += self.spoken

    async def stream(self) -> None:
        """Silence, and what is said, until cancelled."""
        due_s = time.monotonic()
        size = 2 * round(RATE_HZ * PIECE_S)
        while True:
            piece, self._said = self._said[:size], self._said[size:]
            sound = piece.ljust(size, b"\0")
            await self.worker.queue_frame(
                frames.InputAudioRawFrame(audio=sound, sample_rate=RATE_HZ, num_channels=1)
            )
            due_s += PIECE_S
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))

    async def answer(self) -> str:
        async with asyncio.timeout(LIMIT_S):
            while not (text := await self.ear.ends.get()):
                pass
        return text

    async def sound(self) -> None:
        self.ear.heard.clear()
        async with asyncio.timeout(LIMIT_S):
            await self.ear.heard.wait()


async def turns(talk: Talk, llm: Any) -> None:
    del llm
    for _ in range(2):
        talk.say()
        text = await talk.answer()
        tell("answer", text=text, heard_ms=round(talk.ear.heard_ms))


async def interruption(talk: Talk, llm: Any) -> None:
    del llm
    talk.say()
    await talk.sound()
    talk.ear.interrupted.clear()
    talk.say()
    async with asyncio.timeout(LIMIT_S):
        await talk.ear.interrupted.wait()
    tell("interrupted")


async def call(talk: Talk, llm: Any) -> None:
    del llm
    talk.say()
    tell("answer", text=await talk.answer())


async def error(talk: Talk, llm: Any) -> None:
    """To this service an error is the end: it reads nothing more."""
    await llm.send_client_event(events.ConversationItemDeleteEvent(item_id="nowhere"))
    async with asyncio.timeout(LIMIT_S):
        await talk.ear.failed.wait()


async def live(talk: Talk, llm: Any) -> None:
    await turns(talk, llm)


async def live_interruption(talk: Talk, llm: Any) -> None:
    del llm
    talk.say()
    await talk.sound()
    begin_ms = talk.ear.heard_ms
    talk.say()
    await talk.answer()
    tell("interrupted", heard_ms=round(talk.ear.heard_ms - begin_ms))


async def live_error(talk: Talk, llm: Any) -> None:
    talk.say()
    tell("answer", text=await talk.answer())
    await llm._ws_send({"type": "transport.dtmf.send", "digits": "1"})
    async with asyncio.timeout(LIMIT_S):
        await talk.ear.failed.wait()
    talk.say()
    tell("answer", text=await talk.answer())


async def get_weather(params: Any) -> None:
    tell("called", city=params.arguments["city"])
    await params.result_callback("sunny")


async def main(url: str, scenario: str, spoken: bytes) -> None:
    base = url.replace("http", "ws", 1)
    if scenario.startswith("live"):
        llm = OpenAILiveLLMService(api_key="sk-any", base_url=f"{base}/live/sessions")
    else:
        llm = OpenAIRealtimeLLMService(api_key="sk-any", base_url=f"{base}/realtime")
    messages = [{"role": "developer", "content": "You help."}]
    if scenario == "call":
        llm.register_function("get_weather", get_weather)
        context = LLMContext(messages, tools=ToolsSchema(standard_tools=[WEATHER]))
    else:
        context = LLMContext(messages)
    pair = LLMContextAggregatorPair(context)
    ear = Ear()
    worker = PipelineWorker(
        Pipeline([pair.user(), llm, ear, pair.assistant()]),
        params=PipelineParams(
            audio_in_sample_rate=RATE_HZ, audio_out_sample_rate=RATE_HZ, enable_metrics=True
        ),
        enable_rtvi=False,
    )

    @worker.event_handler("on_pipeline_error")
    async def _on_error(worker: Any, frame: Any) -> None:
        tell("error", text=frame.error)
        ear.failed.set()

    runner = WorkerRunner(handle_sigint=False)
    running = asyncio.create_task(runner.run(worker))
    talk = Talk(worker, ear, spoken)
    await worker.queue_frame(frames.LLMRunFrame())
    speaking = asyncio.create_task(talk.stream())
    try:
        if not scenario.startswith("live"):
            # The pipeline begins with an answer to the prompt.
            tell("opening", text=await talk.answer())
        await globals()[scenario](talk, llm)
    finally:
        speaking.cancel()
        await worker.cancel()
        await running
    said = [message for message in context.messages if message.get("role") == "user"]
    tell("heard", texts=[message["content"] for message in said])
    tell("end")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], Path(sys.argv[3]).read_bytes()))
