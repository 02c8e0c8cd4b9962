"""A checkpoint in the official layout, loaded by name and talked to through the gateway.

The weights follow the rule of the golden vectors, so the answers mean nothing; what counts is that
the real tokenizer, the product's own loader, the voice and all four protocols work together.
"""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.golden.tiny import TOKENIZER
from tests.support import speech
from tests.support.patience import HANG_S
from tests.support.stack import RunningStack, running_stack
from tests.support.talking import b64, end_of, hear, heard, say
from tests.support.tiny_checkpoint import DEFAULT_VOICE, write_golden
from websockets.asyncio.client import ClientConnection, connect

from parley.media.image import encode_jpeg
from parley.media.pcm import INPUT_RATE_HZ, Pcm, join
from parley.media.wav import encode_wav

pytestmark = [
    pytest.mark.skipif(
        not (TOKENIZER / "vocab.json").is_file(), reason="the model's tokenizer files are absent"
    ),
]

QUIET = Pcm.silence(INPUT_RATE_HZ, INPUT_RATE_HZ)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("checkpoint")
    write_golden(folder, tokenizer=TOKENIZER)
    yield folder
    for file in folder.glob("*.safetensors"):
        file.unlink()


async def hear_on(socket: ClientConnection) -> dict[str, Any]:
    """The next message besides those that say why nothing comes: the machine may be busy."""
    while (message := await hear(socket))["type"] in ("status", "session.status"):
        pass
    return message


@pytest.fixture
async def server(checkpoint: Path) -> AsyncIterator[RunningStack]:
    model = {"default_voice": checkpoint / DEFAULT_VOICE}
    async with running_stack(model=str(checkpoint), model_settings=model) as running:
        yield running


async def test_chat_answers_words_a_picture_and_sound(server: RunningStack) -> None:
    picture = encode_jpeg(np.full((48, 64, 3), 90, np.uint8))
    content = [
        {"type": "text", "text": "What is this?"},
        {"type": "image", "data": b64(picture)},
        {"type": "audio", "data": b64(speech.say("And what do you hear?"))},
    ]
    async with connect(server.ws("/ws/chat"), max_size=None) as socket:
        await say(
            socket,
            messages=[{"role": "user", "content": content}],
            generation={"max_new_tokens": 20},
            tts={"enabled": True},
        )
        messages, code = await end_of(socket)

    kinds = [message["type"] for message in messages]
    assert kinds[0] == "prefill_done", messages
    assert kinds[-1] == "done"
    assert code == 1000
    # One picture of one piece, about one and a half seconds of sound, the template around them.
    assert messages[0]["input_tokens"] > 64 + 10
    assert 0 < messages[-1]["generated_tokens"] <= 20
    assert messages[-1]["text"]
    assert sum(len(heard(m, "audio_data")) for m in messages[1:-1]) > 0


async def test_half_duplex_answers_a_spoken_turn(server: RunningStack) -> None:
    server.workers[0].host.guard_s = 0.0  # type: ignore[union-attr]
    spoken = join([QUIET, speech.say("Good morning."), QUIET, QUIET], INPUT_RATE_HZ)
    async with connect(server.ws("/ws/half_duplex/hdx_big"), max_size=None) as socket:
        assert (await hear(socket))["type"] == "queue_done"
        await say(socket, type="prepare", config={"generation": {"max_new_tokens": 20}})
        assert (await hear(socket))["type"] == "prepared"
        for start in range(0, len(spoken), INPUT_RATE_HZ // 2):
            chunk = spoken.slice(start, start + INPUT_RATE_HZ // 2)
            await say(socket, type="audio_chunk", audio_base64=b64(chunk))
        kinds: list[str] = []
        while not kinds or kinds[-1] != "turn_done":
            message = await hear_on(socket)
            kinds.append(message["type"])
        await say(socket, type="stop")
        last, code = await end_of(socket)

    assert kinds[:3] == ["vad_state", "vad_state", "generating"]
    assert set(kinds[3:-1]) == {"chunk"}
    assert message["text"]
    assert [m["type"] for m in last] == ["stopped"]
    assert code == 1000


@pytest.mark.parametrize("dialect", ["duplex", "realtime"])
async def test_live_units_are_decided_one_by_one(server: RunningStack, dialect: str) -> None:
    frame = b64(encode_jpeg(np.full((48, 64, 3), 90, np.uint8)))
    spoken = join([speech.say("Can you hear me now?"), QUIET, QUIET, QUIET], INPUT_RATE_HZ)
    path = "/ws/duplex/omni_big" if dialect == "duplex" else "/v1/realtime?mode=video"
    lengths = []
    async with connect(server.ws(path), max_size=None) as socket:
        assert (await hear(socket))["type"].endswith("queue_done")
        if dialect == "duplex":
            await say(socket, type="prepare", system_prompt="Be brief.")
        else:
            await say(socket, type="session.update", session={"instructions": "Be brief."})
        ready = await hear(socket)
        assert ready["type"] in ("prepared", "session.created")
        assert ready["prompt_length"] > 5
        for start in range(0, len(spoken) - INPUT_RATE_HZ + 1, INPUT_RATE_HZ):
            unit = b64(spoken.slice(start, start + INPUT_RATE_HZ))
            if dialect == "duplex":
                await say(socket, type="audio_chunk", audio_base64=unit, frame_base64_list=[frame])
            else:
                await say(
                    socket, type="input_audio_buffer.append", audio=unit, video_frames=[frame]
                )
            answer = await hear_on(socket)
            assert answer["type"] in (
                "result",
                "response.listen",
                "response.output_audio.delta",
            ), answer
            lengths.append(answer["kv_cache_length"])
        await say(socket, type="stop" if dialect == "duplex" else "session.close")
        _, code = await end_of(socket)

    # Opening and closing a unit, one picture, ten tokens of sound: at least 79 per unit.
    growth = np.diff(np.array(lengths))
    assert (growth >= 79).all(), lengths
    assert code == 1000


@pytest.mark.parametrize("break_voice", ["no networks", "no sound"])
async def test_a_voice_that_cannot_be_made_leaves_a_server_that_answers_in_text(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, break_voice: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    voice = tmp_path / "voice.wav"
    if break_voice == "no networks":
        # The voice is fine; what would describe it is no part of this checkpoint.
        voice.write_bytes(encode_wav(speech.say("This is how I sound. Do you like it?")))
    else:
        voice.write_bytes(b"RIFF, and then nothing of the kind")
    async with (
        running_stack(model=str(checkpoint), model_settings={"default_voice": voice}) as server,
        server.http(timeout=3 * HANG_S) as http,
    ):
        worker = (await http.get("/workers")).json()["workers"][0]
        asked = [{"role": "user", "content": "Hello?"}]
        few = {"max_new_tokens": 20}
        text = await http.post("/api/chat", json={"messages": asked, "generation": few})
        async with connect(server.ws("/ws/chat"), max_size=None) as socket:
            await say(socket, messages=asked, generation=few, tts={"enabled": True})
            spoken, code = await end_of(socket)

    assert "Text works without it" in worker["voice_problem"]
    assert text.json()["text"]
    assert (spoken[-1]["type"], code) == ("error", 1011)
    assert "Text works without it" in spoken[-1]["error"]
