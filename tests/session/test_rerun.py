"""A recorded session done again gives the same, bit for bit, and says so when it does not."""

import asyncio
import json
import random
import time
from pathlib import Path
from typing import Any
from unittest.mock import create_autospec

import numpy as np
import psutil
import pytest
from tests.support.clips import make_clip
from tests.support.long import times
from tests.support.patience import HANG_S
from tests.support.recordings import JPEG, recordings
from tests.support.sessions import (
    WorkerHarness,
    feed,
    pcm64,
    speak_whole_clauses,
    stranger,
    worker_harness,
)
from tests.support.talking import b64, pcm16
from tests.support.timeline import silence, sound, speak

from parley.clock import Clock, ManualClock
from parley.engine.engine import Engine
from parley.errors import InvalidRequest, ParleyError
from parley.media.image import encode_jpeg
from parley.media.pcm import Pcm, join
from parley.media.wav import encode_wav
from parley.models.parrot import Parrot
from parley.recording import lines
from parley.recording.layout import Folder, RecordingFolders
from parley.session.rerun import Comparison, rerun


def noise(dice: random.Random, seconds: float) -> str:
    """Sound with values that 16 bits cannot hold."""
    generator = np.random.default_rng(dice.randrange(2**32))
    samples = generator.uniform(-1, 1, round(16_000 * seconds)).astype(np.float32)
    loud = dice.choice([0.0, 0.001, 0.3, 1.0])
    return pcm64(Pcm((samples * loud).astype(np.float32), 16_000))


async def duplex(harness: WorkerHarness, dice: random.Random, *, dialect: Any = "duplex") -> None:
    more: dict[str, Any] = {}
    voice = b64(encode_wav(sound(speak(0.5))))
    if dialect == "duplex":
        more = {"system_prompt": dice.choice(["Hi", "你好 <b>"]), "ref_audio_base64": voice}
        more["config"] = {"force_listen_count": dice.randrange(3)}
    talk = await harness.ready(dialect, "s", **more)
    kind = "result" if dialect == "duplex" else "response."
    for count in range(1, dice.randrange(2, 6)):
        message: dict[str, Any] = {"force_listen": dice.random() < 0.2}
        if dialect == "duplex":
            message |= {"type": "audio_chunk", "audio_base64": noise(dice, 1.0)}
            if dice.random() < 0.5:
                message["frame_base64_list"] = [b64(JPEG)] * dice.randrange(1, 3)
        else:
            message |= {"type": "input_audio_buffer.append", "audio": noise(dice, 1.0)}
        talk.say(message)
        await answers(talk, kind, count)
    talk.socket.hang_up()
    await talk.over()


async def answers(talk: Any, kind: str, count: int) -> None:
    async with asyncio.timeout(HANG_S):
        while sum(name.startswith(kind) for name in talk.types) < count:
            talk.socket._changed.clear()
            if sum(name.startswith(kind) for name in talk.types) < count:
                await talk.socket._changed.wait()


async def half_duplex(harness: WorkerHarness, dice: random.Random) -> None:
    talk = await harness.ready("half_duplex", "s", system_prompt="Be kind.")
    for count in range(1, dice.randrange(2, 4)):
        length = dice.uniform(0.4, 1.5)
        talk.say({"type": "audio_chunk", "audio_base64": pcm64(sound(speak(length), silence(1.5)))})
        await talk.until("turn_done", count)
    talk.say({"type": "stop"})
    await talk.over()


async def written(harness: WorkerHarness, dice: random.Random) -> None:
    del dice
    talk = await harness.ready("half_duplex", "s", system_prompt="Be kind.")
    talk.say({"type": "input_text", "text": "How far is the moon?", "images": b64(JPEG)})
    await talk.until("turn_done")
    talk.say({"type": "stop"})
    await talk.over()


async def written_in_units(harness: WorkerHarness, dice: random.Random) -> None:
    talk = await harness.ready("duplex", "s", config={"force_listen_count": 0})
    talk.say({"type": "input_text", "text": "How far is the moon?", "images": b64(JPEG)})
    for count in range(1, 4):
        talk.say({"type": "audio_chunk", "audio_base64": pcm64(sound(silence(1.0)))})
        await answers(talk, "result", count)
    talk.socket.hang_up()
    await talk.over()


async def chat(harness: WorkerHarness, dice: random.Random) -> None:
    parts = [
        {"type": "text", "text": dice.choice(["What?", "看 <script>", "x" * 200])},
        {"type": "image", "data": b64(encode_jpeg(np.zeros((20, 30, 3), np.uint8)))},
        {"type": "audio", "data": noise(dice, 0.5)},
        {"type": "audio", "data": b64(encode_wav(sound(speak(0.4))))},
    ]
    content = dice.sample(parts, dice.randrange(1, len(parts) + 1))
    talk = harness.begin("chat", "s")
    talk.say(
        {
            "messages": [{"role": "user", "content": content}],
            "streaming": dice.random() < 0.5,
            "tts": {"enabled": dice.random() < 0.7},
        }
    )
    await talk.until("done")
    await talk.over()


async def recorded(
    tmp_path: Path, *talks: Any, seed: int = 1, clock: Clock | None = None, **more: Any
) -> list[Folder]:
    kept = recordings(tmp_path, **more)
    dice = random.Random(seed)
    async with worker_harness(recordings=kept, clock=clock) as harness:
        for talk in talks:
            await talk(harness, dice)
            # Faster than session: the writer would fall behind, and drop what live sessions never
            # do.
            assert await asyncio.to_thread(kept.writer.flush)
    await asyncio.to_thread(kept.close)
    assert not [file for file in psutil.Process().open_files() if str(tmp_path) in file.path]
    return list(RecordingFolders(tmp_path))


async def again(folders: list[Folder]) -> list[Comparison]:
    async with Engine(Parrot(1)) as engine:
        found = []
        for folder in folders:
            slot = await engine.take_slot()
            found.append(await rerun(folder, slot))
            await slot.close()
        return found


async def realtime(harness: WorkerHarness, dice: random.Random) -> None:
    await duplex(harness, dice, dialect="realtime")


def openai(name: str, **more: Any) -> dict[str, Any]:
    return {"type": name, **more}


async def items(harness: WorkerHarness, dice: random.Random) -> None:
    """Spoken, written and shown; one item is deleted, and one answer only partly heard."""
    talk = harness.begin("openai_realtime", "s")
    session = {"type": "realtime", "audio": {"input": {"turn_detection": None}}}
    talk.say(openai("session.update", session=session))
    spoken = sound(speak(dice.uniform(0.4, 1.0)))
    talk.say(openai("input_audio_buffer.append", audio=pcm16(spoken)))
    talk.say(openai("input_audio_buffer.commit"))
    talk.say(openai("response.create"))
    done = await talk.until("response.done")
    (answer,) = done["response"]["output"]
    talk.say(
        openai(
            "conversation.item.truncate", item_id=answer["id"], content_index=0, audio_end_ms=100
        )
    )
    shown = f"data:image/jpeg;base64,{b64(JPEG)}"
    content = [
        {"type": "input_text", "text": "What is this?"},
        {"type": "input_image", "image_url": shown},
    ]
    item = {"id": "shown", "type": "message", "role": "user", "content": content}
    talk.say(openai("conversation.item.create", item=item))
    talk.say(openai("response.create", response={"output_modalities": ["text"]}))
    await talk.until("response.done", 2)
    talk.say(openai("conversation.item.delete", item_id="shown"))
    talk.say(openai("response.create", response={"instructions": "Be brief."}))
    await talk.until("response.done", 3)
    talk.socket.hang_up()
    await talk.over()


async def clip(harness: WorkerHarness, dice: random.Random) -> None:
    talk = harness.begin("chat", "s")
    content = [{"type": "video", "data": b64(make_clip(seconds=1.0)), "stack_frames": 2}]
    talk.say({"messages": [{"role": "user", "content": content}]})
    await talk.until("done")
    await talk.over()


@pytest.mark.parametrize(
    "talk", [duplex, realtime, half_duplex, written, written_in_units, chat, clip, items]
)
async def test_a_session_done_again_is_the_same(tmp_path, talk, monkeypatch):
    if talk is half_duplex:
        # Sent in pieces, whose length is not the model's.
        speak_whole_clauses(monkeypatch, 2.28)

    folders = await recorded(tmp_path, talk)
    recorded_s = time.time()
    opened = create_autospec(Parrot.open, side_effect=Parrot.open)
    monkeypatch.setattr(Parrot, "open", opened)
    (found,) = await again(folders)

    assert opened.call_args.args[2].wall_clock() < recorded_s, "the time of the recording"
    assert found.differences == []
    assert found.compared == found.entries > 0
    assert found.is_equal


async def test_what_was_written_is_kept(tmp_path):
    (turns,) = await recorded(tmp_path / "turns", written)
    (units,) = await recorded(tmp_path / "units", written_in_units)

    (turn,) = json.loads(turns.recording.read_bytes())["turns"]
    assert turn["input"]["text"] == "How far is the moon?"
    assert [(turns.path / path).read_bytes() for path in turn["input"]["images"]] == [JPEG]
    chunks = json.loads(units.recording.read_bytes())["chunks"]
    assert chunks[0]["user_text"] == "How far is the moon?"
    assert [chunk for chunk in chunks[1:] if "user_text" in chunk] == []


def stop_by_speech() -> dict[str, Any]:
    return {"interruption": {"mode": "stop"}}


async def interrupted_turns(harness: WorkerHarness, dice: random.Random) -> None:
    del dice
    talk = await harness.ready("half_duplex", "s", config=stop_by_speech())
    feed(talk, sound(silence(0.5), speak(2.5), silence(1.2)))
    await talk.until("turn_done")
    harness.host.clock.advance(1.0)  # type: ignore[attr-defined]
    feed(talk, join([stranger(1.5), sound(silence(1.5))], 16_000))
    await talk.until("turn_done", 2)
    assert "interruption" in talk.types
    talk.say({"type": "stop"})
    await talk.over()


async def interrupted_units(harness: WorkerHarness, dice: random.Random) -> None:
    del dice
    talk = await harness.ready("duplex", "s", **stop_by_speech())
    for sent, second in enumerate([silence, silence, speak, speak, speak, silence]):
        talk.say({"type": "audio_chunk", "audio_base64": pcm64(sound(second(1.0)))})
        await answers(talk, "result", sent + 1)
    harness.host.clock.advance(0.5)  # type: ignore[attr-defined]
    feed(talk, stranger(1.0))
    await talk.until("interruption", 2)
    for _ in range(4):
        heard = talk.types.count("result")
        talk.say({"type": "audio_chunk", "audio_base64": pcm64(sound(silence(1.0)))})
        await answers(talk, "result", heard + 1)
    talk.say({"type": "stop"})
    await talk.over()


@pytest.mark.parametrize(
    ("talk", "cut"), [(interrupted_turns, "truncated"), (interrupted_units, "went_back")]
)
async def test_a_session_that_was_interrupted_is_the_same(tmp_path, talk, cut):
    (folder,) = await recorded(tmp_path, talk, clock=ManualClock())

    (found,) = await again([folder])
    journal = folder.journal.read_text().splitlines(keepends=True)
    kept = [line for line in journal if f'["made","{cut}"' not in line]
    assert len(kept) == len(journal) - 1
    folder.journal.write_text("".join(kept))
    (without,) = await again([folder])

    assert found.differences == []
    assert found.is_equal
    # The parrot does not look back at its turns; of units the length of the context is compared.
    assert bool(without.differences) is (cut == "went_back")


async def test_an_item_that_differs_is_found(tmp_path):
    (folder,) = await recorded(tmp_path, items)
    text = folder.journal.read_text()
    folder.journal.write_text(text.replace("What is this?", "What was that?", 1))

    (found,) = await again([folder])

    assert {one.what for one in found.differences} == {"text"}


@pytest.mark.parametrize("kept", ["../../secret.jpg", "missing.jpg", 99, "link.jpg"])
async def test_an_item_that_names_a_file_elsewhere_is_refused(tmp_path, kept):
    (folder,) = await recorded(tmp_path, items)
    (tmp_path / "secret.jpg").write_bytes(JPEG)
    (folder.path / "link.jpg").symlink_to(tmp_path / "secret.jpg")
    text = folder.journal.read_text()
    assert '["kept","user_items/000.jpg"]' in text
    place = json.dumps(["kept", kept], separators=(",", ":"))
    folder.journal.write_text(text.replace('["kept","user_items/000.jpg"]', place))

    with pytest.raises(ParleyError):
        await again([folder])


async def test_one_sample_that_differs_is_found(tmp_path):
    (folder,) = await recorded(tmp_path, half_duplex)
    samples = np.fromfile(folder.inputs, "<f4")
    samples[2000] += 1e-3
    samples.tofile(folder.inputs)

    (found,) = await again([folder])

    assert [one.what for one in found.differences] == ["sound"]
    assert not found.is_equal


@pytest.mark.parametrize("talk", [duplex, half_duplex])
async def test_without_exact_samples_live_sessions_cannot_be_done_again(tmp_path, talk):
    (folder,) = await recorded(tmp_path, talk, exact_inputs=False)

    assert not folder.inputs.exists()
    with pytest.raises(InvalidRequest, match=r"not recorded \(storage.exact_inputs\)"):
        await again([folder])


async def test_a_chat_needs_no_exact_samples_to_be_done_again(tmp_path):
    (found,) = await again(await recorded(tmp_path, chat, exact_inputs=False))

    assert found.is_equal


async def test_a_missing_journal_is_said_not_guessed(tmp_path):
    (folder,) = await recorded(tmp_path, duplex, seed=3)
    folder.journal.unlink()

    with pytest.raises(InvalidRequest, match="no journal"):
        await again([folder])


@pytest.mark.slow
async def test_fuzzed_sessions_done_again_are_all_the_same(tmp_path):
    talks = [duplex, realtime, half_duplex, chat] * times(15, 100)
    folders = await recorded(tmp_path, *talks, seed=7)

    found = await again(folders)

    assert len(found) == len(talks)
    assert [one for one in found if not one.is_equal] == []
    assert json.loads(folders[0].meta.read_bytes())["ended_at"] is not None


async def test_the_rest_of_a_session_needs_to_say_where_it_continues(tmp_path):
    (folder,) = await recorded(tmp_path, half_duplex)
    head = lines.read_head(folder.journal)
    assert head is not None
    head.continues = "another"
    rest = b"".join(folder.journal.read_bytes().splitlines(keepends=True)[1:])
    folder.journal.write_bytes(lines.encode(head) + rest)

    with pytest.raises(InvalidRequest, match="after which entry"):
        await again([folder])

    head.continues_after = 3
    folder.journal.write_bytes(lines.encode(head) + rest)
    with pytest.raises(InvalidRequest, match="'another', which is missing"):
        await again([folder])
