"""OpenAI's agents in JavaScript, with only the address changed, on a whole server."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.openai.talking_model import ROME, CallingModel, TalkingModel
from tests.support.patience import HANG_S
from tests.support.programs import ended
from tests.support.sounds import question
from tests.support.stack import running_stack

NODE = shutil.which("node")
ROOT = Path(__file__).resolve().parents[2]
SCRIPT = Path(__file__).with_name("agents.mjs")

pytestmark = pytest.mark.skipif(
    NODE is None or not (ROOT / "node_modules" / "@openai" / "agents-realtime").is_dir(),
    reason="node or @openai/agents-realtime is absent (npm ci)",
)


async def told(model: TalkingModel, scenario: str, spoken: Path | str = "") -> list[dict[str, Any]]:
    """What the program says; it has ended by itself. `spoken`: a file of samples that it says."""
    assert NODE is not None
    async with running_stack(load_model=lambda: model, worker={"vad": "energy"}) as running:
        url = f"ws://127.0.0.1:{running.gateway.port}/v1/realtime?model=m"
        code, out, errors = await ended(
            *(NODE, "--no-warnings", str(SCRIPT), url, scenario, str(spoken)),
            limit_s=2 * HANG_S,
            cwd=ROOT,
        )
    assert code == 0, errors
    lines = [json.loads(line) for line in out.splitlines()]
    assert lines[-1] == {"what": "end"}
    return lines


async def test_two_spoken_turns():
    lines = await told(TalkingModel(answer="one two"), "turns")

    answers = [line for line in lines if line["what"] == "answer"]
    assert [answer["text"] for answer in answers] == ["one two ", "one two "]
    assert answers[-1]["soundBytes"] == 2 * 2 * 2 * 2400
    assert not [line for line in lines if line["what"] == "error"]


async def test_who_speaks_up_interrupts_the_agent(tmp_path):
    spoken = tmp_path / "question.pcm"
    spoken.write_bytes(question())
    lines = await told(TalkingModel(answer="word " * 2000, word_s=0.02), "interruption", spoken)

    assert [line["status"] for line in lines if line["what"] == "interrupted"] == ["cancelled"]


async def test_an_error_comes_to_the_program_and_the_session_continues():
    lines = await told(TalkingModel(answer="one two"), "error")

    (error,) = [line for line in lines if line["what"] == "error"]
    assert error["error"]["code"] == "item_not_found"
    assert [line["text"] for line in lines if line["what"] == "answer"] == ["one two "]


async def test_a_function_is_called_and_its_result_is_answered():
    model = CallingModel(ROME, ["It ", "is ", "sunny."])
    lines = await told(model, "call")

    assert [line["city"] for line in lines if line["what"] == "called"] == ["Rome"]
    assert [line["text"] for line in lines if line["what"] == "answer"] == ["It is sunny."]
    assert not [line for line in lines if line["what"] == "error"]
    assert "<tool_response>\nsunny\n</tool_response>" in model.contexts[1]
