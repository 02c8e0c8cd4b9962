"""A spoken WAV goes through each of the four protocols and comes back as text and 24 kHz sound,
in the documented order of messages."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
from tests.support import speech
from tests.support.stack import RunningStack, running_stack
from tests.support.wire import b64, hear, heard, rest, sound64
from websockets.asyncio.client import ClientConnection, connect

from parley.media.image import encode_jpeg
from parley.media.pcm import INPUT_RATE_HZ, OUTPUT_RATE_HZ, Pcm, join
from parley.media.wav import encode_wav

pytestmark = pytest.mark.slow

WORDS = "Good morning. How are you today?"


@pytest.fixture(scope="module")
def spoken() -> Pcm:
    """Half a second of quiet (the cold start), the words, two seconds of quiet."""
    quiet = Pcm.silence(INPUT_RATE_HZ, INPUT_RATE_HZ)
    return join([quiet, speech.say(WORDS), quiet, quiet], INPUT_RATE_HZ)


@pytest.fixture
async def server() -> AsyncIterator[RunningStack]:
    async with running_stack(model="parrot") as running:
        yield running


def sounds_like(answer: Pcm, question: Pcm) -> bool:
    """The parrot's answer has the loudness of what was said, and is not silence."""
    said = float(np.sqrt(np.mean(question.samples**2)))
    came = float(np.sqrt(np.mean(answer.samples**2)))
    return came > 0.3 * said


async def test_chat_answers_a_spoken_request_with_text_and_sound(
    server: RunningStack, spoken: Pcm
) -> None:
    async with connect(server.ws("/ws/chat"), max_size=None) as socket:
        content = [{"type": "audio", "data": sound64(spoken)}]
        await socket.send(
            json.dumps({"messages": [{"role": "user", "content": content}], "tts": {}})
        )
        messages, code = await rest(socket)

    kinds = [message["type"] for message in messages]
    assert kinds[0] == "prefill_done"
    assert set(kinds[1:-1]) == {"chunk"}
    assert kinds[-1] == "done"
    assert code == 1000
    assert messages[0]["input_tokens"] >= 10 * int(spoken.duration_s)
    done = messages[-1]
    assert "".join(m.get("text_delta") or "" for m in messages[1:-1]) == done["text"]
    assert done["audio_data"] is None
    sound = join([heard(m, "audio_data") for m in messages[1:-1]], OUTPUT_RATE_HZ)
    assert abs(sound.duration_s - spoken.duration_s) < 0.1
    assert sounds_like(sound, spoken)


async def test_half_duplex_hears_the_end_of_speech_and_answers(
    server: RunningStack, spoken: Pcm
) -> None:
    kinds: list[str] = []
    messages: list[dict[str, Any]] = []
    async with connect(server.ws("/ws/half_duplex/hdx_server"), max_size=None) as socket:
        assert (await hear(socket))["type"] == "queue_done"
        await socket.send(json.dumps({"type": "prepare", "system_prompt": "You are kind."}))
        prepared = await hear(socket)
        assert prepared["type"] == "prepared"
        assert prepared["session_id"] == "hdx_server"
        assert prepared["timeout_s"] == 180
        await asyncio.sleep(0.6)  # the cold-start guard is half a second of real time
        step = INPUT_RATE_HZ // 2
        for start in range(0, len(spoken), step):
            chunk = spoken.slice(start, start + step)
            await socket.send(json.dumps({"type": "audio_chunk", "audio_base64": sound64(chunk)}))
        while not kinds or kinds[-1] != "turn_done":
            messages.append(await hear(socket))
            kinds.append(messages[-1]["type"])
        await socket.send(json.dumps({"type": "stop"}))
        last, code = await rest(socket)

    assert kinds[:3] == ["vad_state", "vad_state", "generating"]
    assert [m["speaking"] for m in messages[:2]] == [True, False]
    assert set(kinds[3:-1]) == {"chunk"}
    said = speech.say(WORDS)
    assert abs(messages[2]["speech_duration_ms"] - said.duration_ms) < 500
    sound = join([heard(m, "audio_data") for m in messages[3:-1]], OUTPUT_RATE_HZ)
    assert sounds_like(sound, said)
    assert messages[-1]["turn_index"] == 0
    assert messages[-1]["text"]
    assert [m["type"] for m in last] == ["stopped"]
    assert code == 1000


async def units_of(socket: ClientConnection, spoken: Pcm, ask: Any) -> list[dict[str, Any]]:
    """One answer per second of sound, asked for one at a time."""
    answers = []
    padded = join([spoken, Pcm.silence(6 * INPUT_RATE_HZ, INPUT_RATE_HZ)], INPUT_RATE_HZ)
    for start in range(0, len(padded) - INPUT_RATE_HZ + 1, INPUT_RATE_HZ):
        await socket.send(json.dumps(ask(padded.slice(start, start + INPUT_RATE_HZ))))
        answers.append(await hear(socket))
    return answers


async def test_duplex_gives_one_result_per_second_and_speaks_when_spoken_to(
    server: RunningStack, spoken: Pcm
) -> None:
    frame = b64(encode_jpeg(np.full((48, 64, 3), 90, np.uint8)))
    async with connect(server.ws("/ws/duplex/omni_server"), max_size=None) as socket:
        assert (await hear(socket))["type"] == "queue_done"
        await socket.send(json.dumps({"type": "prepare", "config": {"force_listen_count": 0}}))
        prepared = await hear(socket)
        assert prepared["type"] == "prepared"
        assert prepared["prompt_length"] > 0
        answers = await units_of(
            socket,
            spoken,
            lambda unit: {
                "type": "audio_chunk",
                "audio_base64": sound64(unit),
                "frame_base64_list": [frame],
            },
        )
        await socket.send(json.dumps({"type": "stop"}))
        last, code = await rest(socket)

    assert {a["type"] for a in answers} == {"result"}
    assert answers[0]["is_listen"] is True
    speaking = [a for a in answers if not a["is_listen"]]
    assert speaking
    assert speaking[-1]["end_of_turn"] is True
    assert all(len(heard(a, "audio_data")) == OUTPUT_RATE_HZ for a in speaking[1:-1])
    assert all(a["vision_slices"] == 1 for a in answers)
    lengths = [a["kv_cache_length"] for a in answers]
    assert lengths == sorted(lengths)
    assert [m["type"] for m in last] == ["stopped"]
    assert code == 1000


@pytest.mark.parametrize("mode", ["audio", "video"])
async def test_realtime_listens_speaks_and_confirms_the_close(
    server: RunningStack, spoken: Pcm, mode: str
) -> None:
    frame = b64(encode_jpeg(np.full((48, 64, 3), 90, np.uint8)))
    frames = {"video_frames": [frame]} if mode == "video" else {}
    url = server.ws(f"/v1/realtime?mode={mode}")
    async with connect(url, max_size=None) as socket:
        assert (await hear(socket))["type"] == "session.queue_done"
        reference = b64(encode_wav(speech.say("This is my voice.")))
        await socket.send(
            json.dumps(
                {
                    "type": "session.update",
                    "session": {"instructions": "You are kind.", "ref_audio": reference},
                }
            )
        )
        created = await hear(socket)
        assert created["type"] == "session.created"
        assert created["session_id"].startswith("rt_")
        answers = await units_of(
            socket,
            spoken,
            lambda unit: {
                "type": "input_audio_buffer.append",
                "audio": sound64(unit),
                **frames,
            },
        )
        await socket.send(json.dumps({"type": "session.close", "reason": "user_stop"}))
        last, code = await rest(socket)

    kinds = {a["type"] for a in answers}
    assert kinds == {"response.listen", "response.output_audio.delta"}
    deltas = [a for a in answers if a["type"] == "response.output_audio.delta"]
    assert deltas[-1]["end_of_turn"] is True
    assert sounds_like(join([heard(d, "audio") for d in deltas], OUTPUT_RATE_HZ), spoken)
    assert last == [{"type": "session.closed", "reason": "stopped"}]
    assert code == 1000
