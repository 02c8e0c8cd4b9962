"""The sessions that the pages of OpenAI's interfaces print are answered as promised."""

import asyncio
import base64
import json
import re
import shlex
from typing import Any

import pytest
from tests.docs.printed import ROOT, Sample, samples
from tests.openai.talking_model import HEARD, TalkingModel
from tests.support.patience import HANG_S
from tests.support.stack import running_stack
from websockets.asyncio.client import connect

ANSWER = "The capital of Italy is Rome."


def printed(page: str, index: int = 0) -> tuple[str, list[dict[str, Any]], list[str], Sample]:
    """A shell program of a page: its path, the messages that it echoes, the types of those that it
    promises, and itself."""
    sample = samples(f"docs/protocols/{page}.md", "sh")[index]
    path = re.search(r"localhost:8006(/\S+?)'", sample.program)
    assert path is not None
    assert sample.promised is not None
    promised = re.findall(r'^\{"type":"([a-z_.]*)"$', sample.promised, re.MULTILINE)
    echoed = re.findall(r"echo '(.*?)'(?:$|;)", sample.program, re.MULTILINE)
    return path[1], [json.loads(text) for text in echoed], promised, sample


async def test_the_printed_realtime_session_goes_as_promised():
    path, messages, promised, sample = printed("openai-realtime")
    told: list[dict[str, Any]] = []

    async with running_stack(load_model=lambda: TalkingModel(answer=ANSWER)) as running:
        url = f"ws://127.0.0.1:{running.gateway.port}{path}"
        async with connect(url) as socket, asyncio.timeout(HANG_S):
            for message in messages:
                await socket.send(json.dumps(message))
            while not told or told[-1]["type"] != "rate_limits.updated":
                told.append(json.loads(await socket.recv()))

    types = [event["type"] for event in told]
    # How many pieces an answer has is the model's affair.
    once = [a for a, b in zip(types, [*types[1:], ""], strict=True) if a != b]
    assert once == promised
    (said,) = [event["text"] for event in told if event["type"] == "response.output_text.done"]
    assert said.strip() == ANSWER
    assert f'"text":"{ANSWER}"' in (sample.promised or "")


async def test_the_printed_requests_are_answered():
    (sample,) = samples("docs/protocols/openai-rest.md", "sh")
    asking, transcribing = (
        shlex.split(line) for line in sample.program.replace("\\\n", " ").splitlines()
    )
    body = json.loads(asking[asking.index("-d") + 1])
    forms = [transcribing[i + 1] for i, word in enumerate(transcribing) if word == "-F"]
    fields = dict(form.split("=", 1) for form in forms)
    sound = (ROOT / fields.pop("file").removeprefix("@")).read_bytes()

    async with (
        running_stack(load_model=lambda: TalkingModel(answer=ANSWER)) as running,
        running.http() as http,
    ):
        answer = await http.post("/v1/chat/completions", json=body)
        words = await http.post(
            "/v1/audio/transcriptions", data=fields, files={"file": ("questions.wav", sound)}
        )

    assert answer.json()["choices"][0]["message"]["content"].strip() == ANSWER
    assert words.text == f"{HEARD}\n"


async def test_the_printed_v2_session_goes_as_promised():
    path, (setup, *_, close), promised, sample = printed("minicpmo-v2")
    echoed = re.search(r'echo "(.*?)"; sleep 2; done', sample.program)
    assert echoed is not None
    silence = base64.b64encode(bytes(64_000)).decode()
    unit = echoed[1].replace('\\"', '"').replace("$SILENCE", silence)
    told: list[str] = []

    async with running_stack() as running:
        url = f"ws://127.0.0.1:{running.gateway.port}{path}"
        async with connect(url) as socket, asyncio.timeout(HANG_S):
            await socket.send(json.dumps(setup))
            for waits, message in (
                ("session.created", unit),
                ("response.output.delta", unit),
                ("response.output.delta", json.dumps(close)),
                ("session.closed", ""),
            ):
                while not told or told[-1] != waits:
                    told.append(json.loads(await socket.recv())["type"])
                if message:
                    await socket.send(message)
                    told.append("")

    assert [name for name in told if name] == promised


@pytest.mark.parametrize(
    ("page", "index", "greetings"), [("minicpmo-v2", 1, 1), ("openai-live", 0, 0)]
)
async def test_each_message_of_a_printed_session_is_answered_as_promised(page, index, greetings):
    path, messages, promised, _ = printed(page, index)
    told: list[str] = []

    async with running_stack() as running:
        url = f"ws://127.0.0.1:{running.gateway.port}{path}"
        async with connect(url) as socket, asyncio.timeout(HANG_S):
            for message, answer in zip(messages, promised[greetings:], strict=True):
                await socket.send(json.dumps(message))
                before = len(told)
                while answer not in told[before:]:
                    told.append(json.loads(await socket.recv())["type"])

    assert told == promised
