"""Every field of every message of the later dialects, in turn replaced by what does not belong
there: the answer is an error of the client or nothing, and the conversation goes on where the
dialect lets it."""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from openai.types.live import ServerEvent
from openai.types.realtime import RealtimeServerEvent
from pydantic import TypeAdapter
from tests.support.sessions import Talk, WorkerHarness, worker_harness

from parley.media.image import encode_jpeg

Json = dict[str, Any]

JPEG = base64.b64encode(encode_jpeg(np.zeros((24, 32, 3), np.uint8))).decode()
PCM16 = base64.b64encode(bytes(4800)).decode()
F32 = base64.b64encode(bytes(4 * 16_000)).decode()
DEEP = json.loads("[" * 480 + "]" * 480)
JUNK: list[Any] = [
    None,
    True,
    -1,
    10**30,
    1e300,
    "",
    "!",
    "x" * 70_000,
    [],
    {},
    [[]],
    {"a": {}},
    DEEP,
]

VOICE = {"output": {"voice": "alloy", "format": {"type": "audio/pcm", "rate": 24_000}}}
HEARING = {
    "input": {
        "format": {"type": "audio/pcm", "rate": 24_000},
        "turn_detection": {
            "type": "server_vad",
            "threshold": 0.5,
            "prefix_padding_ms": 300,
            "silence_duration_ms": 500,
            "create_response": True,
            "interrupt_response": True,
        },
        "transcription": {"model": "whisper-1", "language": "en"},
        "noise_reduction": {"type": "near_field"},
    }
}
SPOKEN: Json = {"type": "input_audio", "audio": PCM16}
SEEN: Json = {"type": "input_image", "image_url": f"data:image/jpeg;base64,{JPEG}"}
ITEM: Json = {
    "type": "message",
    "id": "item_1",
    "role": "user",
    "content": [{"type": "input_text", "text": "hi"}, SPOKEN, SEEN],
}
FUNCTION: Json = {"type": "function", "name": "f", "description": "d", "parameters": {}}
GA: list[Json] = [
    {
        "type": "session.update",
        "event_id": "e",
        "session": {
            "type": "realtime",
            "instructions": "Be kind.",
            "output_modalities": ["text"],
            "max_output_tokens": 5,
            "audio": HEARING | VOICE,
            "tools": [FUNCTION],
            "tool_choice": {"type": "function", "name": "f"},
            "truncation": {"type": "retention_ratio", "retention_ratio": 0.5},
            "tracing": {"workflow_name": "w", "group_id": "g", "metadata": {"a": "b"}},
            "include": ["item.input_audio_transcription.logprobs"],
        },
    },
    {"type": "input_audio_buffer.append", "event_id": "e", "audio": PCM16},
    {"type": "input_audio_buffer.commit", "event_id": "e"},
    {"type": "input_audio_buffer.clear", "event_id": "e"},
    {
        "type": "conversation.item.create",
        "event_id": "e",
        "previous_item_id": "root",
        "item": ITEM,
    },
    {"type": "conversation.item.retrieve", "item_id": "item_1"},
    {
        "type": "conversation.item.truncate",
        "item_id": "item_1",
        "content_index": 0,
        "audio_end_ms": 100,
    },
    {"type": "conversation.item.delete", "item_id": "item_1"},
    {
        "type": "response.create",
        "response": {
            "instructions": "x",
            "output_modalities": ["text"],
            "conversation": "none",
            "input": [ITEM],
            "metadata": {"a": "b"},
            "max_output_tokens": 2,
            "tools": [FUNCTION],
            "tool_choice": "none",
            "audio": VOICE,
        },
    },
    {"type": "response.cancel", "response_id": "resp_1"},
]
LIVE: list[Json] = [
    {"type": "session.update", "event_id": "e", "session": {"delegation": {"type": "client"}}},
    {"type": "session.input_audio.append", "event_id": "e", "audio": PCM16},
    {"type": "session.input_image.append", "image": JPEG, "t_ms": 3},
    {"type": "session.instructions.append", "content": "Be brief."},
    {"type": "session.thinking.append", "content": "It is late."},
    {"type": "session.commentary.append", "content": "Somebody came."},
    {"type": "session.input_audio.mute", "event_id": "e"},
    {"type": "session.input_audio.unmute", "event_id": "e"},
]
LIVE_START: Json = {
    "type": "session.start",
    "event_id": "e",
    "session": {
        "model": "m",
        "instructions": "Be kind.",
        "audio": VOICE | {"input": {"format": {"type": "audio/pcm", "rate": 24_000}}},
        "delegation": {"type": "client"},
        "tools": [FUNCTION],
        "interruption": {"mode": "stop", "sensitivity": 0.5},
    },
}
V2_INIT: Json = {
    "type": "session.init",
    "payload": {
        "system_prompt": "Be kind.",
        "instructions": "x",
        "use_tts": True,
        "max_slice_nums": 1,
        "record": False,
        "config": {"generate_audio": True, "length_penalty": 1.1, "listen_top_k": 3},
        "voice": {"ref_audio": F32, "tts_ref_audio_base64": F32},
        "interruption": {"mode": "stop"},
    },
}
V2_UNIT: Json = {
    "type": "input.append",
    "input": {
        "audio": F32,
        "video_frames": [JPEG],
        "force_listen": True,
        "max_slice_nums": [1, 2],
        "hints": {"force_listen": False, "max_slice_nums": 1},
        "playback": {"received_ms": 10, "buffered_ms": 5},
    },
}
V2_CHAT: Json = {
    "type": "input.append",
    "input": {
        "messages": [
            {"role": "system", "content": "x"},
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "look"},
                    {"type": "image", "data": JPEG},
                    {"type": "audio", "data": F32},
                ],
            },
        ],
        "streaming": True,
        "use_tts_template": True,
        "tts": {"enabled": True, "ref_audio_data": F32},
        "generation": {"max_new_tokens": 2, "temperature": 0.5, "top_p": 0.9, "seed": 3},
    },
}


def odd(message: Any) -> Iterator[Any]:
    """The message with one of its values, at any depth, replaced by junk or gone."""
    entries: list[Any] = []
    if isinstance(message, dict):
        entries = [name for name in message if name != "type"]
    elif isinstance(message, list):
        entries = list(range(len(message)))
    for entry in entries:
        for replaced in (*JUNK, *odd(message[entry])):
            copied = message.copy()
            copied[entry] = replaced
            yield copied
        copied = message.copy()
        del copied[entry]
        yield copied


PUBLISHED: dict[str, TypeAdapter[Any]] = {
    "openai_realtime": TypeAdapter(RealtimeServerEvent),
    "openai_live": TypeAdapter(ServerEvent),
}
"""What stock clients know."""


@dataclass
class Said:
    """What a server said to odd messages."""

    codes: set[str] = field(default_factory=set)

    def read(self, talk: Talk) -> None:
        for each in talk.socket.sent:
            if talk.lease.dialect in PUBLISHED:
                PUBLISHED[talk.lease.dialect].validate_json(json.dumps(each), strict=True)
            if each["type"] == "error":
                body = each.get("error", each)
                self.codes.add(str(body.get("code")))
                assert "Traceback" not in json.dumps(each)


async def hear_out(talk: Talk, asked: Json, answer: str) -> None:
    """Until everything said so far has been read."""
    name = f"{asked['type'].rpartition('.')[0]}.{answer}"
    before = talk.types.count(name)
    talk.say(asked)
    await talk.until(name, before + 1)


@pytest.fixture
def failures(caplog: pytest.LogCaptureFixture) -> Iterator[list[str]]:
    """What was logged as an error of ours."""
    found: list[str] = []
    yield found
    found += [each.getMessage() for each in caplog.records if each.levelno >= logging.ERROR]
    assert found == []


INTERNAL = {"server_error", "internal_error", "inference_error", "None"}


async def test_openai_realtime(failures):
    said = Said()
    async with worker_harness() as harness:
        talk = harness.begin("openai_realtime", "s", kind="half_duplex_audio", extensions=False)
        await talk.until("session.created")
        for number, message in enumerate(each for kind in GA for each in odd(kind)):
            talk.say(message)
            if number % 20 == 0:
                await hear_out(talk, {"type": "input_audio_buffer.clear"}, "cleared")
        await end(talk)
    said.read(talk)
    assert not said.codes & INTERNAL


async def test_openai_live(failures):
    said = Said()
    async with worker_harness() as harness:
        for message in odd(LIVE_START):
            talk = await started(harness, "openai_live", message, "omni_duplex")
            said.read(talk)
            await end(talk)
        talk = await started(harness, "openai_live", LIVE_START, "omni_duplex")
        await talk.until("session.started")
        for number, message in enumerate(each for kind in LIVE for each in odd(kind)):
            talk.say(message)
            if number % 20 == 0:
                await hear_out(talk, {"type": "session.input_audio.mute"}, "muted")
        await end(talk)
    said.read(talk)
    assert not said.codes & INTERNAL


@pytest.mark.parametrize("kind", ["omni_duplex", "chat"])
async def test_minicpmo_v2(kind, failures):
    said = Said()
    message = V2_CHAT if kind == "chat" else V2_UNIT
    async with worker_harness() as harness:
        for init in odd(V2_INIT):
            talk = await started(harness, "minicpmo_v2", init, kind)
            await end(talk)
            said.read(talk)
        for each in odd(message):
            talk = await started(harness, "minicpmo_v2", V2_INIT, kind)
            talk.say(each)
            talk.say({"type": "session.close"})
            await end(talk)
            said.read(talk)
    assert not said.codes & INTERNAL


async def started(harness: WorkerHarness, dialect: Any, opening: Json, kind: str) -> Talk:
    talk = harness.begin(dialect, "s", kind=kind, extensions=False)
    talk.say(opening)
    return talk


async def end(talk: Talk) -> None:
    talk.socket.hang_up()
    await talk.over()
