"""A real disk that fills up under a whole server: the conversation continues, losses are counted
and reported, and requests to keep something are refused for lack of room.

The disk is a tmpfs of 8 MiB, for which mounting must be allowed.
"""

import contextlib
import subprocess
from collections.abc import AsyncIterator, Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from tests.support.gateways import until
from tests.support.stack import RunningStack, running_stack
from tests.support.talking import LOUD, Message, begin_duplex, hear_until, say
from websockets.asyncio.client import ClientConnection, connect


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "disk"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(path)]
    try:
        subprocess.run(mount, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("mounting is not allowed here")
    yield path
    subprocess.run(["umount", "--lazy", str(path)], check=True)


@pytest.fixture
async def server(small_disk: Path) -> AsyncIterator[RunningStack]:
    storage = {"data_dir": small_disk, "recording": True, "min_free_gb": 0}
    async with running_stack(slots=2, storage=storage, worker={"vad": "energy"}) as running:
        yield running


@contextlib.contextmanager
def filled(disk: Path) -> Iterator[None]:
    """No byte is free while the block runs."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
    try:
        yield
    finally:
        filler.unlink()


async def units(socket: ClientConnection, count: int) -> list[Message]:
    """What is told next to the results of so many units."""
    told: list[Message] = []
    for _ in range(count):
        await say(socket, type="audio_chunk", audio_base64=LOUD)
        told += (await hear_until(socket, "result"))[0]
    return told


def written(server: RunningStack) -> bool:
    (worker,) = server.workers
    assert worker.host is not None
    assert worker.host.recordings is not None
    return worker.host.recordings.writer.flush()


async def test_a_disk_that_fills_up_loses_units_aloud(
    server: RunningStack, small_disk: Path
) -> None:
    async with (
        server.http() as http,
        connect(server.ws("/ws/duplex/omni_1")) as socket,
    ):
        recording_id = (await begin_duplex(socket))["recording_session_id"]
        base = f"/api/sessions/{recording_id}"
        await units(socket, 5)
        assert written(server)

        with filled(small_disk):
            told = await units(socket, 10)
            assert written(server)
            for path, body in (
                (f"{base}/comment", {"comment": "The second answer came late."}),
                ("/api/admin/keys", {"name": "anna"}),
            ):
                answer = await http.post(path, json=body)
                assert answer.status_code == 507, (path, answer.text)
                assert answer.json()["code"] == "insufficient_storage"
            await until(lambda: server.runtime.metrics.recording_lost == 10, 10)
            status = (await http.get("/status")).json()["recording"]
            assert status == {"lost_entries": 10, "failing_workers": 1, "no_room_workers": 0}
            assert "parley_recording_lost_entries_total 10.0" in (await http.get("/metrics")).text

        assert (await http.post(f"{base}/comment", json={"comment": "x"})).status_code == 200
        told += await units(socket, 5)
        await say(socket, type="stop")
        told += (await hear_until(socket, "stopped"))[0]
        # Told at 1 and each time the number has doubled or more: a full disk is not a flood.
        lost = [message["entries"] for message in told if message["type"] == "recording_lost"]
        assert all(later >= 2 * earlier for earlier, later in pairwise(lost)), lost
        assert 5 < lost[-1] <= 10, lost
        await until((small_disk / "sessions" / recording_id / "recording.json").exists, 20)
        recording = (await http.get(f"{base}/recording")).json()
        assert len(recording["chunks"]) == 10
        assert recording["lost_entries"] == 10
        assert (await http.get(base)).json()["lost_entries"] == 10
