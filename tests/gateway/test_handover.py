"""Recordings of other hosts: what the gateway takes over, what it refuses, what it remembers."""

import asyncio
import contextlib
import io
import json
import tarfile
import time
from collections.abc import AsyncIterator
from email.utils import formatdate
from pathlib import Path
from unittest.mock import Mock

import pytest
import uvicorn
from tests.support.certificates import self_signed
from tests.support.gateways import authenticator, settings
from tests.support.patience import HANG_S
from tests.support.present import present
from tests.support.recordings import recorded

from parley.clock import SystemClock
from parley.gateway.eta import EtaTracker
from parley.gateway.handover import Handover, _unpack, store_id
from parley.gateway.recording_access import RecordingAccess
from parley.gateway.state import State
from parley.gateway.worker_pool import Worker, WorkerPool
from parley.protocol.control import Heartbeat, Hello
from parley.recording import layout, store
from parley.recording.layout import Folder, RecordingFolders
from parley.recording.timeline import iso
from parley.worker.app import make_app
from parley.worker.finished import FinishedRecordings


def recording(data_dir: Path, recording_id: str) -> Path:
    folder = data_dir / "sessions" / recording_id
    (folder / "user_audio").mkdir(parents=True)
    (folder / "recording.json").write_text("{}")
    (folder / "meta.json").write_text("{}")
    (folder / "user_audio/000.wav").write_bytes(bytes(range(256)) * 1000)
    (folder / ".replay.lock").touch()
    (folder / ".owner").write_text("k_1")
    return folder


class Hosts:
    """A gateway's side and a worker's, joined by the worker's real routes."""

    def __init__(self, tmp_path: Path, **storage: float) -> None:
        self.here, self.there = tmp_path / "gateway", tmp_path / "worker"
        parts = settings(storage={"data_dir": self.here, **storage})
        self.folders = RecordingFolders(self.here)
        self.worker_side = FinishedRecordings(RecordingFolders(self.there))
        clock = SystemClock()
        self.pool = WorkerPool(clock, EtaTracker(parts.eta))
        self.state = State(self.here / "state.db")
        self.storage = parts.storage
        self.handover = Handover(
            worker_pool=self.pool,
            folders=self.folders,
            recordings=RecordingAccess(self.folders, authenticator(clock), parts.storage),
            state=self.state,
            storage=parts.storage,
            secret="s3",
        )

    @contextlib.asynccontextmanager
    async def joined(self, *, shown: Path | None = None, trusted: str = "") -> AsyncIterator[None]:
        """Args:
        shown: folder of the worker's certificate. `trusted`: the one that it sent.
        """
        app = make_app(lambda: None, secret="s3", finished=self.worker_side)
        config = uvicorn.Config(app, host="127.0.0.1", port=0, log_config=None, lifespan="off")
        if shown is not None:
            config.ssl_certfile, config.ssl_keyfile = shown / "cert.pem", shown / "key.pem"
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server._serve())
        async with self.state:
            while not server.started:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
            port = server.servers[0].sockets[0].getsockname()[1]
            url = f"http{'' if shown is None else 's'}://127.0.0.1:{port}"
            hello = Hello("w", url, 1, "parrot", "cpu", "0", 1, certificate=trusted)
            self.worker = self.pool.welcome(hello, object())
            self.worker_side.welcomed(store_id(self.here))
            self.beat()
            try:
                yield
            finally:
                server.should_exit = True
                await asyncio.wait_for(serving, HANG_S)

    def beat(self) -> None:
        self.pool.heard(
            self.worker,
            Heartbeat("idle", 1, 0, 0.0, 0, recordings_waiting=self.worker_side.waiting),
        )

    def listed(self, data_dir: Path) -> list[str]:
        return [folder.recording_id for folder in RecordingFolders(data_dir)]


@pytest.mark.parametrize("has_tls", [False, True])
async def test_a_recording_moves_as_a_whole_and_locks_stay_behind(tmp_path, has_tls: bool):
    hosts = Hosts(tmp_path)
    recording(hosts.there, "one")
    trusted = self_signed(tmp_path)[1].read_text() if has_tls else ""

    async with hosts.joined(shown=tmp_path if has_tls else None, trusted=trusted):
        assert hosts.handover.waiting == 1
        await hosts.handover.round()

    assert hosts.listed(hosts.there) == []
    moved = {
        path.relative_to(hosts.here / "sessions").as_posix(): path.stat().st_size
        for path in (hosts.here / "sessions").rglob("*")
        if path.is_file()
    }
    assert moved == {
        "one/.owner": 3,
        "one/recording.json": 2,
        "one/meta.json": 2,
        "one/user_audio/000.wav": 256_000,
    }


async def test_a_later_part_of_a_deleted_session_is_deleted_when_it_arrives(tmp_path, monkeypatch):
    monkeypatch.setattr("parley.gateway.state.REFUSED_LIMIT", 2)
    hosts = Hosts(tmp_path)
    for name, first in (("rest", "deleted"), ("other", "kept"), ("old", "forgotten")):
        recorded(hosts.there, name, continues=first)

    async with hosts.state:
        await hosts.handover.refuse_rest(["forgotten", "another", "deleted"])
    hosts = Hosts(tmp_path)
    async with hosts.joined():
        await hosts.handover.restore()
        await hosts.handover.round()

    assert (sorted(hosts.listed(hosts.here)), hosts.listed(hosts.there)) == (["old", "other"], [])


async def test_a_damaged_recording_is_fetched_once_and_holds_up_no_other(tmp_path, monkeypatch):
    monkeypatch.setattr("parley.gateway.handover.RETRY_S", 0.0)
    hosts = Hosts(tmp_path)
    recording(hosts.there, "two")
    (recording(hosts.there, "one") / "a" / "b").mkdir(parents=True)
    (hosts.there / "sessions/one/a/b/too_deep").touch()
    fetched: list[str] = []
    fetch = hosts.handover._fetch

    def counted(worker: Worker, recording_id: str) -> tuple[Folder, float]:
        fetched.append(recording_id)
        return fetch(worker, recording_id)

    monkeypatch.setattr(hosts.handover, "_fetch", counted)

    async with hosts.joined():
        for _ in range(3):
            await hosts.handover.round()

    assert (hosts.listed(hosts.here), hosts.listed(hosts.there)) == (["two"], ["one"])
    assert fetched == ["one", "two"]


async def test_what_is_left_of_an_erased_key_is_deleted_when_it_arrives(tmp_path):
    hosts = Hosts(tmp_path)
    for name, owner in (("erased", "k_1"), ("damaged", "k_1"), ("other", "k_2"), ("later", "k_3")):
        recorded(hosts.there, name).owner.write_text(owner)
    (hosts.there / "sessions" / "damaged" / "meta.json").unlink()

    async with hosts.joined():
        await hosts.state.note_erased("k_1", time.time())
        await hosts.handover.erase("k_3", 0.0)
        await hosts.handover.round()

    assert sorted(hosts.listed(hosts.here)) == ["later", "other"]
    assert hosts.listed(hosts.there) == []


@pytest.mark.parametrize("ahead_s", [-3600.0, 3600.0])
async def test_what_was_recorded_before_an_erasure_is_known_by_any_workers_clock(
    tmp_path, monkeypatch, ahead_s: float
):
    monkeypatch.setattr(
        "uvicorn.server.formatdate",
        lambda now_s, usegmt: formatdate(now_s + ahead_s, usegmt=usegmt),
    )
    hosts = Hosts(tmp_path)
    for name, after_s in (("before", -60.0), ("after", 60.0)):
        folder = recorded(hosts.there, name)
        folder.owner.write_text("k_1")
        meta = json.loads(folder.meta.read_text())
        meta["created_at"] = iso(time.time() + after_s + ahead_s)
        folder.meta.write_text(json.dumps(meta))

    async with hosts.joined():
        await hosts.handover.erase("k_1", time.time())
        await hosts.handover.round()

    assert hosts.listed(hosts.here) == ["after"]


@pytest.mark.parametrize("when", ["before it is noted", "after a restart"])
async def test_a_later_part_may_arrive_in_the_middle_of_its_sessions_deletion(
    tmp_path, monkeypatch, when: str
):
    hosts = Hosts(tmp_path)
    first = recorded(hosts.here, "call_1")
    recorded(hosts.there, "call_2", continues="call_1")
    note = hosts.handover.refuse_rest

    async def arrives_first(ids: list[str]) -> None:
        await hosts.handover.round()
        assert "call_2" in hosts.listed(hosts.here)
        await note(ids)

    if when == "before it is noted":
        monkeypatch.setattr(hosts.handover, "refuse_rest", arrives_first)
    async with hosts.joined():
        gone = await hosts.handover.delete(first)
        hosts.handover._deleted.clear()
        await hosts.handover.round()

    assert gone == (["call_1", "call_2"] if when == "before it is noted" else ["call_1"])
    assert (hosts.listed(hosts.here), hosts.listed(hosts.there)) == ([], [])


async def test_what_is_being_rendered_waits_unless_a_person_asks_for_it(tmp_path):
    hosts = Hosts(tmp_path)
    folder = recording(hosts.there, "one")
    (folder / "replay.json").write_text('{"state": "running", "progress": 0.5}')
    (folder / "merged_replay.wav").write_bytes(b"half")

    async with hosts.joined():
        await hosts.handover.round()
        assert hosts.listed(hosts.here) == []
        await hosts.handover.bring("one")

    found = present(hosts.folders.find("one"))
    assert not found.replay_wav.exists()
    assert not found.replay_state.exists()
    assert hosts.listed(hosts.there) == []


async def test_who_asks_for_a_recording_that_is_being_completed_waits_for_it(tmp_path, monkeypatch):
    monkeypatch.setattr("parley.gateway.handover.COMPLETE_LOOK_S", 0.01)
    hosts = Hosts(tmp_path)
    folder = recording(hosts.there, "one")
    (folder / "recording.json").unlink()

    async with hosts.joined():
        still_comes = await hosts.handover.bring("one")
        asked = asyncio.create_task(hosts.handover.bring("one"))
        await asyncio.sleep(0)
        (folder / "recording.json").write_text("{}")
        comes_later = await asked

    assert still_comes
    assert not comes_later
    assert hosts.listed(hosts.here) == ["one"]


async def test_what_is_no_recordings_id_is_asked_of_nobody(tmp_path):
    hosts = Hosts(tmp_path)
    recording(hosts.there, "one")

    async with hosts.joined():
        for wrong in ("../one", "sh_" + "x" * 200, "", "nobody"):
            await hosts.handover.bring(wrong)

    assert hosts.listed(hosts.here) == []


@pytest.mark.parametrize("why", ["full disk", "no secret", "unknown certificate"])
async def test_recordings_that_cannot_be_taken_stay_where_they_are(tmp_path, monkeypatch, why: str):
    hosts = Hosts(tmp_path, min_free_gb=0)
    recording(hosts.there, "one")
    if why == "full disk":  # What is free is above the minimum, but less than the recording.
        monkeypatch.setattr(layout, "free_bytes", lambda _: 10_000)
    shown = tmp_path if why == "unknown certificate" else None
    if shown is not None:
        self_signed(shown)

    async with hosts.joined(shown=shown):
        if why == "no secret":
            hosts.handover._headers = {}
        await hosts.handover.round()
        listed = Mock()
        monkeypatch.setattr(hosts.handover, "_list", listed)
        await hosts.handover.round()
        listed.assert_not_called()  # too soon

        assert hosts.handover.waiting == 1
    assert hosts.listed(hosts.there) == ["one"]
    assert list((hosts.here / "sessions").glob("*")) == []


async def test_what_was_deleted_here_does_not_come_back_from_a_worker_that_was_away(
    tmp_path, monkeypatch
):
    hosts = Hosts(tmp_path)
    recording(hosts.there, "one")

    def away(recording_id: str) -> bool:
        raise OSError("the disk is away")

    async with hosts.joined():
        with monkeypatch.context() as broken:
            broken.setattr(hosts.worker_side, "release", away)
            await hosts.handover.round()
        store.delete(present(hosts.folders.find("one")))
        again = Hosts(tmp_path).handover  # another process, after a restart
        again.state, again.worker_pool = hosts.state, hosts.pool
        await again.restore()
        hosts.beat()
        await again.round()

    assert hosts.listed(hosts.here) == []
    assert hosts.listed(hosts.there) == []


async def test_a_worker_that_shares_the_folder_hands_nothing_over(tmp_path):
    hosts = Hosts(tmp_path)
    hosts.there = hosts.here
    hosts.worker_side = FinishedRecordings(RecordingFolders(hosts.here))
    recording(hosts.here, "one")

    async with hosts.joined():
        assert hosts.worker_side.waiting is None
        await hosts.handover.round()

    assert hosts.listed(hosts.here) == ["one"]


@pytest.mark.parametrize("name", ["../evil", "/evil", "a/b/c", ".hidden", "a/../b", "link"])
def test_a_tar_file_can_put_nothing_elsewhere(tmp_path, name):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        member = tarfile.TarInfo(name)
        if name == "link":
            member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(member)

    with pytest.raises(ValueError, match="not a file of a recording"):
        _unpack(iter([buffer.getvalue()]), tmp_path)

    assert list(tmp_path.iterdir()) == []


def test_a_tar_file_that_ends_early_is_refused(tmp_path):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        member = tarfile.TarInfo("recording.json")
        member.size = 5000
        tar.addfile(member, io.BytesIO(bytes(5000)))

    with pytest.raises(tarfile.TarError):
        _unpack(iter([buffer.getvalue()[:3000]]), tmp_path)
