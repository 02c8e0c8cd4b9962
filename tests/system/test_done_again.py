"""Sessions of a model that draws its words at random, done again from their recordings: with the
kept seeds every answer comes out the same, bit for bit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support import speech
from tests.support.gateways import all_free
from tests.support.patience import HANG_S
from tests.support.small_minicpmo import small_model
from tests.support.stack import RunningStack, running_stack
from tests.support.wire import b64, hear, rest, say, sound64
from websockets.asyncio.client import ClientConnection, connect

from parley.engine.engine import Engine
from parley.media.image import encode_jpeg
from parley.media.pcm import INPUT_RATE_HZ, Pcm, join
from parley.recording.layout import RecordingFolders
from parley.session.rerun import Comparison, rerun

pytestmark = pytest.mark.slow

QUIET = Pcm.silence(INPUT_RATE_HZ, INPUT_RATE_HZ)


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[RunningStack]:
    storage = {"recording": True, "replays": False, "data_dir": tmp_path, "min_free_gb": 0}
    async with running_stack(load_model=lambda: small_model(slots=1), storage=storage) as running:
        yield running


async def again(folder: Path) -> Comparison:
    (recording,) = list(RecordingFolders(folder))
    async with Engine(small_model(slots=1)) as engine:
        slot = await engine.take_slot()
        found = await rerun(recording, slot)
        await slot.close()
    return found


async def test_a_live_session_done_again_is_the_same(server: RunningStack, tmp_path: Path) -> None:
    frame = b64(encode_jpeg(np.full((48, 64, 3), 90, np.uint8)))
    spoken = join([speech.say("Can you hear me now?"), QUIET, QUIET, QUIET], INPUT_RATE_HZ)
    # Without extensions: a busy machine would be told that its units are late.
    address = server.ws("/ws/duplex/omni_again", extensions=False)
    async with connect(address, max_size=None) as socket:
        await hear(socket)
        await say(socket, type="prepare", config={"force_listen_count": 1})
        assert (await hear(socket))["type"] == "prepared"
        answers = []
        for start in range(0, len(spoken) - INPUT_RATE_HZ + 1, INPUT_RATE_HZ):
            unit = sound64(spoken.slice(start, start + INPUT_RATE_HZ))
            await say(socket, type="audio_chunk", audio_base64=unit, frame_base64_list=[frame])
            answers.append(await answer_of(socket))
        await say(socket, type="stop")
        await rest(socket)
    await server_is_free(server)

    found = await again(tmp_path)

    assert {answer["type"] for answer in answers} == {"result"}
    assert found.differences == []
    assert found.compared == found.entries == len(answers)


async def test_a_chat_done_again_is_the_same(server: RunningStack, tmp_path: Path) -> None:
    content = [
        {"type": "text", "text": "What do you hear?"},
        {"type": "audio", "data": sound64(speech.say("Good morning."))},
    ]
    async with connect(server.ws("/ws/chat"), max_size=None) as socket:
        await say(
            socket,
            messages=[{"role": "user", "content": content}],
            generation={"max_new_tokens": 30, "temperature": 1.5, "length_penalty": 2.0},
            tts={"enabled": True},
        )
        messages, code = await rest(socket)
    await server_is_free(server)

    found = await again(tmp_path)

    assert code == 1000, messages
    assert messages[-1]["text"]
    assert found.differences == []
    assert found.compared == found.entries == 1


async def answer_of(socket: ClientConnection) -> dict[str, Any]:
    """The answer to a unit with a picture. What a turn's last unit says beyond a second comes after
    it in a message of its own."""
    while True:
        message = await hear(socket)
        if message["type"] != "result" or message["vision_slices"]:
            return message


async def server_is_free(server: RunningStack) -> None:
    """The recording is complete when its session has given its slot back and the worker has
    written what waited."""
    await all_free(server)
    async with asyncio.timeout(HANG_S):
        folder = next(iter(RecordingFolders(server.settings.storage.data_dir)))
        while not folder.recording.is_file():  # noqa: ASYNC110
            await asyncio.sleep(0.02)
