"""A client of the newest public MiniCPM-o dialect, written from its list of fields."""

import asyncio
import base64
import contextlib
import io
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.openai.talking_model import TalkingModel
from tests.support.patience import HANG_S
from tests.support.sounds import silence, speak
from tests.support.stack import RunningStack, running_stack
from tests.support.talking import b64
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from parley.engine.engine import Engine
from parley.models.parrot import Parrot
from parley.recording.layout import Folder, RecordingFolders
from parley.session.rerun import Comparison, rerun


def sound(pcm: Any) -> str:
    return b64(pcm.samples.astype("<f4").tobytes())


def picture() -> str:
    file = io.BytesIO()
    Image.new("RGB", (48, 32), "red").save(file, "JPEG")
    return b64(file.getvalue())


class Client:
    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.told: list[dict[str, Any]] = []

    async def say(self, **message: Any) -> None:
        await self.socket.send(json.dumps(message))

    async def next(self) -> dict[str, Any]:
        async with asyncio.timeout(HANG_S):
            message: dict[str, Any] = json.loads(await self.socket.recv())
        self.told.append(message)
        return message

    async def until(self, name: str) -> dict[str, Any]:
        while (message := await self.next())["type"] != name:
            pass
        return message

    async def unit(self, pcm: Any, **more: Any) -> list[dict[str, Any]]:
        """One second, and all deltas of it."""
        await self.say(type="input.append", input={"audio": sound(pcm), **more})
        deltas = [await self.until("response.output.delta")]
        while deltas[-1]["kind"] == "text" and deltas[-1]["metrics"]["n_tts_tokens"]:
            deltas.append(await self.until("response.output.delta"))
        return deltas

    async def init(self, **payload: Any) -> dict[str, Any]:
        await self.say(type="session.init", payload={"system_prompt": "Be kind.", **payload})
        return await self.until("session.created")

    async def end(self) -> int | None:
        with contextlib.suppress(ConnectionClosed):
            while True:
                await self.next()
        return self.socket.close_code


@contextlib.asynccontextmanager
async def client(mode: str, **parts: Any) -> AsyncIterator[tuple[RunningStack, Client]]:
    async with running_stack(**parts) as running:
        url = f"ws://127.0.0.1:{running.gateway.port}/v1/realtime?mode={mode}"
        async with connect(url, max_size=None) as socket:
            yield running, Client(socket)


@pytest.mark.parametrize("mode", ["audio", "video"])
async def test_a_session_hears_and_answers_one_kind_per_message(mode):
    async with client(mode) as (_, talk):
        created = await talk.init(config={"force_listen_count": 0}, max_slice_nums=1)
        frames = {"video_frames": [picture()]} if mode == "video" else {}
        await talk.unit(speak(1.0), **frames)
        said: list[dict[str, Any]] = []
        while not said or said[-1]["kind"] != "listen" or len(said) < 3:
            said += await talk.unit(silence(1.0), hints={"max_slice_nums": [1, 1]})
        await talk.say(type="session.close", reason="user")
        closed = await talk.until("session.closed")
        code = await talk.end()

    deltas = [m for m in talk.told if m["type"] == "response.output.delta"]
    kinds = [delta["kind"] for delta in deltas]
    assert talk.told[0]["type"] == "session.queue_done"
    assert created["mode"] == "full_duplex"
    assert created["session_id"]
    assert {"listen", "text", "audio"} == set(kinds)
    for delta in deltas:
        assert {"text", "audio"} & delta.keys() == {delta["kind"]} - {"listen"}
        assert delta["metrics"]["kv_cache_length"] > 0
        assert delta["server_send_ts"] > 1e9
    audio = next(delta["audio"] for delta in deltas if delta["kind"] == "audio")
    assert len(np.frombuffer(base64.b64decode(audio), "<f4")) == 24_000
    # Usage comes once per unit; a turn ends with one `listen`.
    first = {delta["chunk_index"]: delta for delta in reversed(deltas)}
    assert all(("usage" in delta) == (first[delta["chunk_index"]] is delta) for delta in deltas)
    assert kinds[kinds.index("audio") :].count("listen") >= 1
    assert closed["reason"] == "user_stop"
    assert closed["usage"]["input_token_details"]["audio_tokens"] >= 20
    assert (closed["usage"]["input_token_details"]["vision_tokens"] > 0) == (mode == "video")
    assert code == 1000


INIT = {"type": "session.init", "payload": {"system_prompt": "x"}}


@pytest.mark.parametrize(
    ("messages", "code"),
    [
        ([{"type": "session.init"}], "missing_field"),
        ([{"type": "session.init", "payload": []}], "invalid_payload"),
        ([INIT, INIT], "invalid_event"),
        ([INIT, {"type": "input.append", "input": {"audio": "!!!"}}], "invalid_payload"),
    ],
)
async def test_a_mistake_is_fatal(messages, code):
    async with client("audio") as (_, talk):
        await talk.until("session.queue_done")
        for message in messages:
            await talk.say(**message)
            if message is not messages[-1]:
                await talk.until("session.created")
        closing = await talk.end()

    *_, error, closed = talk.told
    assert error["error"]["code"] == code
    assert closed["type"] == "session.closed"
    assert closed["reason"] == "protocol_error"
    assert closing is not None
    assert closing != 1000


async def ask(talk: Client, *messages: dict[str, Any], **more: Any) -> list[dict[str, Any]]:
    """One chat turn: everything up to its `response.done`."""
    before = len(talk.told)
    await talk.say(type="input.append", input={"messages": list(messages), **more})
    await talk.until("response.done")
    return talk.told[before:]


def user(*parts: Any) -> dict[str, Any]:
    return {"role": "user", "content": parts[0] if len(parts) == 1 else list(parts)}


async def test_several_chat_turns_on_one_socket():
    model = TalkingModel(answer="one two three")
    async with client("chat", load_model=lambda: model) as (_, talk):
        created = await talk.init()
        first = await ask(talk, user("hello"))
        voiced = await ask(
            talk, user("again"), tts={"enabled": True}, generation={"max_new_tokens": 2}
        )
        look = user(
            {"type": "text", "text": "look"},
            {"type": "image", "data": picture()},
            {"type": "audio", "data": sound(speak(1.0))},
        )
        whole = await ask(talk, look, streaming=False, tts={"enabled": True})
        await talk.say(type="session.close")
        closed = await talk.until("session.closed")
        code = await talk.end()

    assert created["mode"] == "turn_based"
    assert [m["kind"] for m in first[:-1]] == ["text"] * 3
    assert first[-1]["text"] == "one two three "
    assert first[-1]["audio"] is None
    assert first[-1]["reason"] == "turn_end"
    assert [m["kind"] for m in voiced[:-1]] == ["text", "audio"] * 2
    assert voiced[-1]["reason"] == "max_tokens"
    (done,) = whole
    assert len(np.frombuffer(base64.b64decode(done["audio"]), "<f4")) == 3 * 2400
    assert done["usage"]["input_token_details"]["audio_tokens"] == 10
    assert done["usage"]["input_token_details"]["vision_tokens"] > 0
    assert len({turn[-1]["response_id"] for turn in (first, voiced, whole)}) == 3
    assert closed["reason"] == "user_stop"
    assert closed["usage"]["output_tokens"] == 3 + 2 + 3
    assert code == 1000
    # Every request holds its whole conversation: nothing of the previous one is in the context.
    assert [words[-1] for words in model.contexts[:2]] == ["hello", "again"]
    assert all("Be kind." in words for words in model.contexts)
    assert "hello" not in model.contexts[1]
    assert [asked.length_penalty for asked in model.asked] == [1.1] * 3
    assert [asked.max_new_tokens for asked in model.asked] == [256, 2, 256]


async def test_a_chat_request_waits_while_another_is_answered():
    model = TalkingModel(answer="word " * 20, word_s=0.01)
    async with client("chat", load_model=lambda: model) as (_, talk):
        await talk.init()
        for text in ("first", "second"):
            await talk.say(type="input.append", input={"messages": [user(text)]})
        first = await talk.until("response.done")
        second = await talk.until("response.done")

    assert (first["input_id"], second["input_id"]) == ("input_0", "input_1")
    assert [words[-1] for words in model.contexts] == ["first", "second"]


async def several_chats(tmp_path: Path, *requests: dict[str, Any]) -> Folder:
    storage = {"data_dir": str(tmp_path), "recording": True, "min_free_gb": 0}
    async with client("chat", storage=storage) as (_, talk):
        await talk.init(voice={"ref_audio": b64(np.full(16_000, 0.1, "<f4").tobytes())})
        for request in requests:
            await ask(talk, user(request.pop("text")), **request)
        await talk.say(type="session.close")
        await talk.end()
    (folder,) = RecordingFolders(tmp_path)
    return folder


async def test_several_chats_are_one_recording(tmp_path):
    folder = await several_chats(tmp_path, {"text": "first"}, {"text": "second"})

    turns = json.loads(folder.recording.read_bytes())["turns"]
    answers = [turn["output"]["text"] for turn in turns]
    assert [turn["input"]["text"] for turn in turns] == ["first", "second"]
    assert ["first" in answers[0], "second" in answers[1]] == [True, True]


async def done_again(folder: Folder) -> Comparison:
    async with Engine(Parrot(1)) as engine:
        slot = await engine.take_slot()
        try:
            return await rerun(folder, slot)
        finally:
            await slot.close()


async def test_all_chats_of_a_recording_are_done_again(tmp_path):
    spoken = {"enabled": True, "ref_audio_data": b64(np.full(24_000, 0.2, "<f4").tobytes())}
    folder = await several_chats(
        tmp_path,
        {"text": "first", "streaming": False},
        {"text": "second", "tts": {"enabled": True}},
        {"text": "third", "streaming": False, "tts": spoken},
    )

    found = await done_again(folder)
    journal = folder.journal.read_text()
    assert journal.count('"text":"third"') == 1
    folder.journal.write_text(journal.replace('"text":"third"', '"text":"another"'))
    changed = await done_again(folder)

    assert found.differences == []
    assert (found.compared, found.entries) == (3, 3)
    assert {(one.index, one.what) for one in changed.differences} >= {(2, "text")}
    assert {one.index for one in changed.differences} == {2}


async def test_an_init_sent_while_waiting_is_kept():
    async with client("audio") as (running, _), occupied_by_another(running) as talk:
        await talk.until("session.queued")
        await talk.say(type="session.init", payload={"instructions": "Be kind."})
        await _.socket.close()
        await talk.until("session.created")

    assert [m["type"] for m in talk.told].count("session.queue_done") == 1


@contextlib.asynccontextmanager
async def occupied_by_another(running: RunningStack) -> AsyncIterator[Client]:
    url = f"ws://127.0.0.1:{running.gateway.port}/v1/realtime?mode=audio"
    async with connect(url) as socket:
        yield Client(socket)
