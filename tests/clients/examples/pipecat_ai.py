import asyncio
import os
from typing import Any

from examples.shared import asked
from pipecat.adapters.llm.schemas.function_schema import FunctionSchema
from pipecat.adapters.llm.schemas.tools_schema import ToolsSchema
from pipecat.frames.frames import (
    EndFrame,
    ErrorFrame,
    FunctionCallResultFrame,
    LLMContextFrame,
    LLMTextFrame,
    TTSAudioRawFrame,
    TTSSpeakFrame,
)
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineWorker
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.frame_processor import FrameProcessor
from pipecat.services.openai.llm import OpenAILLMService
from pipecat.services.openai.tts import OpenAITTSService
from pipecat.workers.runner import WorkerRunner


async def _piped(*services: Any, give: list[Any]) -> list[Any]:
    """What comes out of a pipeline of services."""

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


def _context(**more: Any) -> Any:
    return LLMContext([{"role": "developer", "content": "Be brief."}, *asked()], **more)


def llm() -> Any:
    llm = OpenAILLMService(api_key="sk-any", base_url=os.environ["OPENAI_BASE_URL"])
    found = asyncio.run(_piped(llm, give=[LLMContextFrame(_context())]))
    assert "".join(each.text for each in found if isinstance(each, LLMTextFrame))


def function() -> Any:
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
    context = _context(tools=ToolsSchema(standard_tools=[schema]))
    found = asyncio.run(_piped(llm, give=[LLMContextFrame(context)]))
    assert any(isinstance(each, FunctionCallResultFrame) for each in found)


def speech() -> Any:
    tts = OpenAITTSService(api_key="sk-any", base_url=os.environ["OPENAI_BASE_URL"])
    found = asyncio.run(_piped(tts, give=[TTSSpeakFrame("The capital of Italy is Rome.")]))
    assert sum(len(each.audio) for each in found if isinstance(each, TTSAudioRawFrame)) > 24_000
