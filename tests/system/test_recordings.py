"""The whole server keeps what is said: the id that a client learns leads to its recording, and
registered voices serve sessions by name only."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.gateways import until
from tests.support.recordings import tone
from tests.support.stack import RunningStack, running_stack
from tests.support.talking import (
    ASK,
    QUIET,
    Message,
    b64,
    begin_realtime,
    hear,
    hear_until,
    say,
)
from websockets.asyncio.client import connect

from parley.media.wav import encode_wav


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[RunningStack]:
    storage = {"data_dir": tmp_path, "recording": True, "min_free_gb": 0}
    async with running_stack(storage=storage, worker={"vad": "energy"}) as running:
        yield running


async def duplex(server: RunningStack, *, token: str = "", **prepare: Any) -> Message:
    query = f"?token={token}" if token else ""
    async with connect(server.ws(f"/ws/duplex/omni_1{query}")) as socket:
        await hear_until(socket, "queue_done")
        await say(socket, type="prepare", **prepare)
        told = await hear(socket)
        if told["type"] == "prepared":
            await say(socket, type="audio_chunk", audio_base64=QUIET)
            await hear_until(socket, "result")
        await say(socket, type="stop")
        await hear_until(socket, "stopped")
    return told


async def realtime(server: RunningStack) -> Message:
    async with connect(server.ws("/v1/realtime?mode=audio")) as socket:
        told = await begin_realtime(socket)
        await say(socket, type="input_audio_buffer.append", audio=QUIET)
        await hear_until(socket, "response.listen")
        await say(socket, type="session.close")
        await hear_until(socket, "session.closed")
    return told


async def chat(server: RunningStack) -> Message:
    async with connect(server.ws("/ws/chat")) as socket:
        await say(socket, **ASK)
        return (await hear_until(socket, "done"))[1]


async def http_chat(server: RunningStack) -> Message:
    async with server.http() as http:
        return dict((await http.post("/api/chat", json=ASK)).json())


@pytest.mark.parametrize(
    ("talk", "entries"),
    [(duplex, "chunks"), (realtime, "chunks"), (chat, "turns"), (http_chat, "turns")],
)
async def test_the_id_that_a_client_learns_leads_to_its_recording(server, talk, entries):
    told = await talk(server)
    base = f"/api/sessions/{told['recording_session_id']}"

    async with server.http() as http:
        folder = server.runtime.stores.folders.folder(told["recording_session_id"])
        await until(folder.recording.exists, 10)
        recording = (await http.get(f"{base}/recording")).json()
        meta = (await http.get(base)).json()

    assert len(recording[entries]) == 1
    assert meta["ended_at"] is not None


async def test_a_registered_voice_serves_sessions_by_id_and_by_name(server):
    async with server.http() as http:
        body = {"name": "Anna", "audio_base64": b64(encode_wav(tone(1.0, 24_000)))}
        voice = (await http.post("/api/assets/ref_audio", json=body)).json()
        asked = {
            "messages": [{"role": "user", "content": "Hello!"}],
            "tts": {"enabled": True, "ref_audio_path": "Anna"},
        }
        answer = await http.post("/api/chat", json=asked)
    without = await duplex(server, record=False)
    by_id = await duplex(server, ref_audio_path=voice["id"], record=False)
    by_name = await duplex(server, ref_audio_path="Anna", record=False)

    assert answer.status_code == 200, answer.text
    # A voice is part of the prompt.
    assert by_id["prompt_length"] == by_name["prompt_length"] > without["prompt_length"]


async def test_a_stranger_uses_a_voice_by_its_id_and_its_key_by_name(tmp_path):
    async with (
        running_stack(
            storage={"data_dir": tmp_path, "min_free_gb": 0, "recording": False},
            worker={"vad": "energy"},
            security={"admin_token": "the-admin"},
        ) as server,
        server.http() as http,
    ):
        made = await server.new_key("anna")
        key = {"x-api-key": made["key"]}
        sound = b64(encode_wav(tone(1.0, 24_000)))
        for name, headers in (("Anna", key), ("Bo", {})):
            body = {"name": name, "audio_base64": sound}
            added = await http.post("/api/assets/ref_audio", json=body, headers=headers)
        stranger_id = added.json()["id"]

        told = [
            (await duplex(server, ref_audio_path=voice, token=token))["type"]
            for voice, token in (
                ("Anna", ""),
                ("Bo", ""),
                (stranger_id, ""),
                ("Anna", made["key"]),
            )
        ]

    assert told == ["error", "error", "prepared", "prepared"]


async def test_the_path_that_published_examples_print_is_the_default_voice(server):
    path = "assets/ref_audio/ref_minicpm_signature.wav"

    told = await duplex(server, ref_audio_path=path)

    assert told["type"] == "prepared"
