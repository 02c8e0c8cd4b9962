"""What `Server` can do, asked of a real gateway; and the blocking client against a real server."""

import inspect
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.support.gateways import running_gateway
from tests.support.patience import HANG_S
from tests.support.processes import serving
from tests.support.recordings import recorded

from parley.client import Server, TimedOut, sync
from parley.client.events import Answer, Listening, Paused, Piece, Resumed
from parley.media.pcm import Pcm


async def test_recordings_are_read_shared_kept_and_deleted(tmp_path: Path) -> None:
    recorded(tmp_path / "data", "one", title="A talk")
    async with (
        running_gateway(storage={"recording": True, "data_dir": tmp_path / "data"}) as gateway,
        Server(gateway.url) as server,
    ):
        assert [each["session_id"] for each in await server.recordings()] == ["one"]
        assert (await server.recording("one"))["title"] == "A talk"
        assert await server.timeline("one") is not None
        await server.comment("one", "It was fine.")
        await server.pin("one")
        assert (await server.recording("one"))["pinned"] is True
        assert (await server.share("one")).startswith(f"{gateway.url}/s/sh_")
        packed = await server.download("one", tmp_path / "one.zip")
        await server.delete_recording("one")
        assert await server.recordings() == []

    names = {name.rpartition("/")[2] for name in zipfile.ZipFile(packed).namelist()}
    assert {"meta.json", "comment.txt"} <= names


async def test_voices_presets_and_keys(tmp_path: Path) -> None:
    sound = Pcm(0.3 * np.sin(np.arange(32_000) * 0.1, dtype=np.float32), 16_000)
    async with running_gateway() as gateway, Server(gateway.url) as server:
        voice_id = await server.add_voice("Anna", sound)
        assert voice_id in [each["id"] for each in await server.voices()]
        await server.remove_voice(voice_id)
        assert voice_id not in [each["id"] for each in await server.voices()]
        assert "turnbased" in await server.presets()
        made = await server.add_key("kiosk", max_sessions=2)
        assert made["key"].startswith("pk_")
        assert [each["name"] for each in await server.keys()] == ["kiosk"]
        await server.revoke_key(made["id"])
        assert await server.keys() == []


async def test_every_request_has_the_limit_it_was_given() -> None:
    async with running_gateway() as gateway, Server(gateway.url) as server:
        for name, ask in inspect.getmembers(server, inspect.iscoroutinefunction):
            parameters = inspect.signature(ask).parameters
            if name.startswith("_") or "timeout_s" not in parameters:
                continue
            required = [each for each in parameters.values() if each.default is each.empty]
            with pytest.raises(TimedOut, match=r"^(GET|POST|PUT|DELETE) /"):
                await ask(
                    *[b"1234" if each.name == "sound" else "1234" for each in required],
                    timeout_s=1e-6,
                )


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(tmp_path_factory.mktemp("server")) as process:
        yield process.url


@pytest.mark.slow
def test_a_script_reads_an_answer_as_it_is_made(url: str) -> None:
    with sync.connect(url) as server:
        events = list(server.stream("Hello!", temperature=0, max_tokens=8))

    assert isinstance(events[-1], Answer)
    pieces = [event.text for event in events if isinstance(event, Piece)]
    assert "".join(pieces) == events[-1].text


@pytest.mark.slow
def test_a_script_may_stop_reading_and_ask_again(url: str) -> None:
    with sync.connect(url) as server:
        for event in server.stream("Hello!"):
            if isinstance(event, Piece):
                break

        assert server.ask("Hello!", timeout_s=HANG_S).text
        assert server.call(lambda each: each.voices()) == []


@pytest.mark.slow
def test_a_script_pauses_resumes_and_sends_units(url: str) -> None:
    with sync.connect(url) as server, server.duplex() as talk:
        talk.ready(timeout_s=HANG_S)
        talk.pause(30)
        paused = next(talk)
        talk.resume()
        resumed = next(talk)
        talk.send_unit(Pcm.silence(16_000, 16_000))
        listening = next(talk)

    assert isinstance(listening, Listening)
    assert isinstance(paused, Paused)
    assert isinstance(resumed, Resumed)
