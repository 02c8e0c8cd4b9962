"""Every place where sessions are logged keeps the same promises."""

import asyncio
import contextlib
import dataclasses
import math
import os
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest
from structlog.testing import capture_logs
from tests.support.patience import HANG_S
from tests.support.present import present
from tests.support.redis_server import RedisServer, redis_server

from parley.gateway import log_sweep
from parley.protocol.kinds import Kind
from parley.session_log import file_logs, places
from parley.session_log.contract import (
    AppendResult,
    LoggedSession,
    LogUnreadable,
    LogUpdate,
    SessionLogs,
    SessionLogWriter,
    StoredLog,
    StoredOutput,
    framed,
    split_entries,
)
from parley.session_log.file_logs import FileSessionLogs
from parley.session_log.redis_logs import APPEND, REFRESH, RedisScripts, RedisSessionLogs
from parley.settings import Settings, StorageSettings


def logged(log_id: str = "lease/1", pid: int = 1) -> LoggedSession:
    return LoggedSession(log_id, "lease", "call", Kind.CHAT, "duplex", "w", "http://w", pid, "same")


def update(
    *entries: bytes,
    whole: bool = False,
    tail: bool = False,
    state: bytes | None = b"state",
    outputs: tuple[int, ...] = (),
    settled: int = 0,
) -> LogUpdate:
    messages = tuple(StoredOutput.of(seq, f"message {seq}") for seq in outputs)
    parts = None if state is None else {"state": state}
    return LogUpdate(whole, whole or tail, b"".join(map(framed, entries)), parts, messages, settled)


async def append(writer: SessionLogWriter, what: LogUpdate) -> AppendResult:
    done: asyncio.Future[AppendResult] = asyncio.get_running_loop().create_future()
    writer.append(what, done.set_result)
    async with asyncio.timeout(HANG_S):
        return await done


def created(logs: SessionLogs, session: LoggedSession) -> SessionLogWriter:
    writer = logs.create(session)
    assert writer is not None
    return writer


async def started(logs: SessionLogs) -> SessionLogWriter:
    """The writer of a log that holds its head."""
    writer = created(logs, logged())
    await append(writer, update(b"head", whole=True))
    return writer


@pytest.fixture(params=["file", "redis"])
async def backend(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[SessionLogs]:
    if request.param == "file":
        yield FileSessionLogs(tmp_path / "logs")
        return
    with redis_server(tmp_path) as server:
        stored = RedisSessionLogs(server.url, window_s=15.0)
        yield stored
        await stored.close()


async def test_a_log_is_read_as_it_was_written(backend: SessionLogs) -> None:
    writer = created(backend, logged())
    assert await append(writer, update(b"head", b"one", whole=True, outputs=(1, 2))) == "stored"
    assert await append(writer, update(b"two", state=b"later", outputs=(3,), settled=1)) == "stored"
    assert await append(writer, update(state=None, outputs=(4,), settled=2)) == "stored"

    contents, _ = await backend.take_over("lease/1", logged(pid=2))

    assert list(split_entries(contents.entries)) == [b"head", b"one", b"two"]
    assert contents.state == {"state": b"later"}
    assert [(each.seq, each.frame) for each in contents.outputs] == [
        *((3, "message 3"), (4, "message 4")),
    ]
    assert contents.session == logged()


async def test_a_log_can_be_read_while_its_writer_continues_it(backend: SessionLogs) -> None:
    writer = created(backend, logged())
    with pytest.raises(LogUnreadable):
        await backend.peek("lease/1")
    await append(writer, update(b"head", b"one", whole=True, outputs=(1,)))
    first = await backend.peek("lease/1")
    assert await append(writer, update(b"two", outputs=(2,))) == "stored"
    assert await append(writer, update(b"head", b"less", b"two", whole=True)) == "stored"
    second = await backend.peek("lease/1")

    assert list(split_entries(first.entries)) == [b"head", b"one"]
    assert [each.seq for each in first.outputs] == [1]
    assert list(split_entries(second.entries)) == [b"head", b"less", b"two"]
    taken, _ = await backend.take_over("lease/1", logged(pid=2))
    assert taken == second


async def test_parts_of_the_state_that_do_not_change_are_written_once(
    backend: SessionLogs,
) -> None:
    writer = created(backend, logged())
    first = dataclasses.replace(update(b"head", whole=True), state={"setup": b"s", "at": b"1"})
    await append(writer, first)
    await append(writer, dataclasses.replace(update(b"one"), state={"at": b"2", "more": b"m"}))
    await append(writer, dataclasses.replace(update(b"two"), state={"more": b""}))

    contents, _ = await backend.take_over("lease/1", logged(pid=2))

    if isinstance(backend, RedisSessionLogs):
        assert "more" not in contents.state, "sounds that were heard would be there for ever"
    assert {name: data for name, data in contents.state.items() if data} == {
        "setup": b"s",
        "at": b"2",
    }


async def test_a_whole_update_replaces_everything(backend: SessionLogs) -> None:
    writer = created(backend, logged())
    await append(writer, update(b"head", b"sound", whole=True, outputs=(1,)))
    await append(writer, update(b"head", whole=True, outputs=(2,)))
    await append(writer, update(b"after"))

    contents, _ = await backend.take_over("lease/1", logged(pid=2))

    assert list(split_entries(contents.entries)) == [b"head", b"after"]
    assert [each.seq for each in contents.outputs] == [2]


@pytest.mark.parametrize("notices", [True, False])
async def test_a_writer_whose_log_was_taken_over_can_store_and_remove_nothing(
    backend: SessionLogs, notices: bool
) -> None:
    frozen = await started(backend)
    _, writer = await backend.take_over("lease/1", logged(pid=2))

    if notices:
        assert await append(frozen, update(b"too late")) == "fenced"
    await append(writer, update(b"head", b"continued", whole=True))
    if notices:
        assert await append(frozen, update(b"much too late", whole=True)) == "fenced"
    frozen.drop()

    assert await append(writer, update(b"more")) == "stored"
    contents, _ = await backend.take_over("lease/1", logged(pid=3))
    assert list(split_entries(contents.entries)) == [b"head", b"continued", b"more"]
    assert contents.session.worker_pid == 2


async def test_a_worker_that_dies_while_it_continues_a_session_is_followed_by_another(
    backend: SessionLogs,
) -> None:
    await append(created(backend, logged()), update(b"head", whole=True, outputs=(1,)))
    await backend.take_over("lease/1", logged(pid=2))

    contents, writer = await backend.take_over("lease/1", logged(pid=3))

    assert list(split_entries(contents.entries)) == [b"head"]
    assert await append(writer, update(b"head", whole=True)) == "stored"


async def test_a_log_is_gone_with_its_session(backend: SessionLogs, tmp_path: Path) -> None:
    writer = await started(backend)
    assert [each.session for each in await backend.stored()] == [logged()]

    writer.drop()
    writer.drop()
    async with asyncio.timeout(HANG_S):
        while await backend.stored():  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    with pytest.raises(LogUnreadable, match="Nothing of the session was kept"):
        await backend.take_over("lease/1", logged())
    if isinstance(backend, FileSessionLogs):
        assert {path.name for path in backend.folder.iterdir()} == {"folder_id"}


async def test_an_update_in_flight_leaves_nothing_behind_the_end(
    backend: SessionLogs, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = created(backend, logged())
    results: list[AppendResult] = []
    arrives = asyncio.Event()
    if isinstance(backend, RedisSessionLogs):
        ask = backend.ask

        async def ask_late(script: str, *rest: Any) -> Any:
            if script == APPEND:
                await arrives.wait()
            return await ask(script, *rest)

        monkeypatch.setattr(backend, "ask", ask_late)

    writer.append(update(b"head", whole=True), results.append)
    writer.drop()
    await asyncio.sleep(0.05)
    arrives.set()
    async with asyncio.timeout(HANG_S):
        while not results or await backend.stored():  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    with pytest.raises(LogUnreadable):
        await backend.take_over("lease/1", logged(pid=2))


async def test_a_writer_learns_that_the_gateway_dropped_its_log(backend: SessionLogs) -> None:
    writer = await started(backend)

    await backend.drop("lease/1")

    assert await append(writer, update(b"more")) == "dropped"
    assert await backend.stored() == []


async def test_logs_are_listed_with_size_age_and_writer(backend: SessionLogs) -> None:
    first, second = created(backend, logged("a")), created(backend, logged("b"))
    await append(first, update(b"head", b"x" * 10_000, whole=True))
    for size in (20_000, 1):
        await append(second, update(b"head", b"x" * size, whole=True, state=b"x" * size))

    found = {each.session.log_id: each for each in await backend.stored()}

    assert set(found) == {"a", "b"}
    assert found["a"].size_bytes > 10_000 > found["b"].size_bytes
    assert found["a"].has_writer
    assert found["a"].age_s < HANG_S


@pytest.mark.parametrize(("total_bytes", "space_bytes"), [(60, math.inf), (1000, 120)])
async def test_a_gateway_keeps_what_it_knows_and_drops_strays_and_the_largest(
    total_bytes: int, space_bytes: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_sweep, "SWEEP_EVERY_S", 0.0)
    monkeypatch.setattr(log_sweep, "remove_abandoned", folders := Mock())
    listed = [
        StoredLog(logged("known"), size_bytes=20, age_s=99.0, has_writer=False),
        StoredLog(logged("large"), size_bytes=50, age_s=0.0, has_writer=True),
        StoredLog(logged("written"), size_bytes=10, age_s=99.0, has_writer=True),
        StoredLog(logged("stray"), size_bytes=1, age_s=61.0, has_writer=False),
        StoredLog(logged("fresh"), size_bytes=30, age_s=59.0, has_writer=False),
    ]
    stored = Mock(stored=AsyncMock(return_value=listed), drop=AsyncMock(), touch=AsyncMock())
    stored.space_bytes = space_bytes
    # The second time, another gateway sweeps.
    stored.claim.side_effect = [True, False, asyncio.CancelledError]
    sweep = log_sweep.LogSweep(stored)
    sweep.total_bytes = total_bytes

    with pytest.raises(asyncio.CancelledError):
        await sweep.run(lambda: {"known"})

    folders.assert_called_once()
    assert [call.args for call in stored.drop.await_args_list] == [("stray",), ("large",)]
    stored.touch.assert_awaited_once_with("known")
    assert (sweep.count, sweep.size_bytes, sweep.dropped) == (3, 60, 1)


def test_where_sessions_are_not_logged_there_is_no_writer() -> None:
    logs = SessionLogs()

    assert logs.create(logged()) is None
    assert logs.name == ""


# ---- files ---------------------------------------------------------------------------------


async def test_nobody_else_can_read_the_files_whatever_the_umask(tmp_path: Path) -> None:
    os.umask(0)
    logs = FileSessionLogs(tmp_path / "logs")
    await started(logs)

    assert stat.S_IMODE(logs.folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in logs.folder.iterdir()} == {0o600}


async def test_only_folders_of_servers_that_ended_long_ago_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places, "MEMORY", tmp_path)
    names = ("ended", "served", "written", "opened")
    made = {name: FileSessionLogs(tmp_path / f"parley-{os.geteuid()}-{name}") for name in names}
    for logs in made.values():
        await started(logs)
        logs.claim()
    for logs in (made["ended"], made["written"], made["opened"]):
        await logs.close()
    long_ago_s = time.time() - places.ABANDONED_S - 10
    for path in [*tmp_path.glob("*/*"), *tmp_path.glob("*")]:  # noqa: ASYNC240
        os.utime(path, (long_ago_s, long_ago_s))
    os.utime(next(made["written"].folder.glob("*.tail")))
    FileSessionLogs(made["opened"].folder)

    places.remove_abandoned()

    assert {name for name in names if made[name].folder.exists()} == set(names) - {"ended"}
    await made["served"].close()


def truncated(tail: Path) -> None:
    os.truncate(tail, tail.stat().st_size - 3)


def corrupted(tail: Path) -> None:
    data = tail.read_bytes()
    tail.write_bytes(data.replace(b"second", b"2econd"))


@pytest.mark.parametrize(("size_mb", "parent"), [(64, "data"), (256, "memory")])
def test_memory_that_one_session_may_fill_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size_mb: int, parent: str
) -> None:
    (tmp_path / "memory").mkdir()
    monkeypatch.setattr(places, "MEMORY", tmp_path / "memory")
    monkeypatch.setattr(places, "size_of_disk", lambda folder: size_mb << 20)

    logs = places.open_session_logs(Settings(storage=StorageSettings(data_dir=tmp_path / "data")))

    assert isinstance(logs, FileSessionLogs)
    assert logs.folder.parent.name == parent


async def test_the_last_process_removes_a_folder_in_memory_unless_it_has_logs(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "logs"
    gateway, worker = (FileSessionLogs(folder, removes=True) for _ in range(2))
    assert gateway.claim()
    writer = await started(worker)

    await gateway.close()
    assert folder.exists()
    await worker.close()
    assert folder.exists()
    gateway, worker = (FileSessionLogs(folder, removes=True) for _ in range(2))
    writer.drop()
    await worker.close()
    assert folder.exists()
    await gateway.close()

    assert not folder.exists()


@pytest.mark.parametrize("damaged", [truncated, corrupted])
async def test_a_damaged_end_of_a_log_is_left_out(
    tmp_path: Path, damaged: Callable[[Path], None]
) -> None:
    logs = FileSessionLogs(tmp_path)
    writer = logs.create(logged())
    await append(writer, update(b"head", whole=True, state=b"first"))
    await append(writer, update(b"torn", state=b"second"))
    (tail,) = tmp_path.glob("*.tail")  # noqa: ASYNC240
    damaged(tail)

    contents, _ = await logs.take_over("lease/1", logged(pid=2))

    assert (list(split_entries(contents.entries)), contents.state) == (
        [b"head"],
        {"state": b"first"},
    )


async def test_outdated_states_do_not_pile_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_logs, "GROWN_BYTES", 1000)
    logs = FileSessionLogs(tmp_path)
    writer = logs.create(logged())
    await append(writer, update(b"head", whole=True, outputs=(1,)))
    for number in range(200):
        state = number.to_bytes(2, "big") * 100
        grown = writer.wants_tail
        unit = update(b"unit", state=state, tail=grown, outputs=(1,) if grown else ())
        assert await append(writer, unit) == "stored"

    (tail,) = tmp_path.glob("*.tail")  # noqa: ASYNC240
    assert tail.stat().st_size < 3000
    contents, _ = await logs.take_over("lease/1", logged(pid=2))
    assert contents.state == {"state": (199).to_bytes(2, "big") * 100}
    assert len(list(split_entries(contents.entries))) == 201
    assert [each.seq for each in contents.outputs] == [1]


@pytest.mark.parametrize(
    ("first", "more", "is_grown"),
    [(100, 900, False), (100, 1500, True), (1000, 2500, False), (1000, 4000, True)],
)
async def test_a_tail_is_rewritten_when_it_has_grown_by_a_size_and_a_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: int, more: int, is_grown: bool
) -> None:
    monkeypatch.setattr(file_logs, "GROWN_BYTES", 1000)
    writer = FileSessionLogs(tmp_path).create(logged())
    await append(writer, update(b"head", whole=True, state=b"x" * first))

    await append(writer, update(state=b"x" * more))
    wants = [writer.wants_tail]
    await append(writer, update(tail=True))
    wants.append(writer.wants_tail)

    assert wants == [is_grown, False]


async def test_a_log_whose_entries_are_cut_off_is_damaged(tmp_path: Path) -> None:
    logs = FileSessionLogs(tmp_path)
    await append(logs.create(logged()), update(b"head", b"one", whole=True))
    (entries,) = tmp_path.glob("*.entries")  # noqa: ASYNC240
    truncated(entries)

    with pytest.raises(LogUnreadable, match="damaged"):
        await logs.peek("lease/1")


async def test_of_two_workers_that_find_one_log_one_continues_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = FileSessionLogs(tmp_path)
    await started(logs)
    found = file_logs._tails(logs._files("lease/1"))
    monkeypatch.setattr(file_logs, "_tails", lambda files: found)

    await logs.take_over("lease/1", logged(pid=2))

    with pytest.raises(LogUnreadable, match="Another worker continues"):
        await logs.take_over("lease/1", logged(pid=3))


async def test_a_frozen_writer_is_not_the_writer_of_a_log_that_was_taken_over(
    tmp_path: Path,
) -> None:
    logs = FileSessionLogs(tmp_path)
    await started(logs)

    await logs.take_over("lease/1", logged(pid=2))

    (found,) = await logs.stored()
    assert not found.has_writer


async def test_a_folder_that_was_removed_is_made_again_and_logs_are_written_again(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "logs"
    workers, gateway = FileSessionLogs(folder), FileSessionLogs(folder)
    assert gateway.claim()
    running = await started(workers)
    await append(created(workers, logged("2")), update(b"head", whole=True))
    _, taken = await workers.take_over("2", logged("2"))
    shutil.rmtree(folder)
    assert gateway.claim()

    assert await append(running, update(b"one")) == "unavailable"
    assert await append(running, update(b"head", b"one", whole=True)) == "stored"
    assert await append(running, update(b"two")) == "stored"
    assert await append(taken, update(b"head", whole=True)) == "unavailable"
    assert await append(taken, update(b"head", whole=True)) == "stored"
    shutil.rmtree(folder)
    assert await append(created(workers, logged("3")), update(b"head", whole=True)) == "stored"

    assert FileSessionLogs(folder).name == workers.name == gateway.name
    assert [each.session.log_id for each in await gateway.stored()] == ["3"]
    assert gateway.claim()
    assert not FileSessionLogs(folder).claim()


async def test_files_without_a_first_update_are_removed_after_a_minute(tmp_path: Path) -> None:
    logs = FileSessionLogs(tmp_path)
    for age_s in (50, 70):
        (tmp_path / f"age-{age_s}.1.tail").touch()
        os.utime(tmp_path / f"age-{age_s}.1.tail", (time.time() - age_s,) * 2)

    assert await logs.stored() == []
    assert [path.name for path in tmp_path.glob("age-*")] == ["age-50.1.tail"]  # noqa: ASYNC240


@pytest.mark.parametrize(
    "more",
    [update(b"more"), update(tail=True), update(b"head", whole=True)],
    ids=["more", "another tail", "everything again"],
)
async def test_a_full_disk_ends_the_log_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: LogUpdate
) -> None:
    logs = FileSessionLogs(tmp_path)
    writer = await started(logs)

    def full(descriptor: int, data: bytes, at: int) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    assert await append(writer, more) == "full"
    monkeypatch.undo()

    assert await logs.stored() == []
    assert not [name for name in os.listdir(tmp_path) if "." in name]


async def test_a_killed_writer_leaves_a_log_that_has_no_writer(tmp_path: Path) -> None:
    program = (
        "import os, sys; from pathlib import Path\n"
        "from tests.session_log.test_backends import logged, update\n"
        "from parley.session_log.file_logs import FileSessionLogs\n"
        "writer = FileSessionLogs(Path(sys.argv[1])).create(logged())\n"
        "writer.append(update(b'head', whole=True, outputs=(1,)), print)\n"
        "sys.stdout.flush(); os.kill(os.getpid(), 9)\n"
    )
    ran = subprocess.run(  # noqa: ASYNC221
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, check=False
    )
    assert (ran.returncode, ran.stdout) == (-9, b"stored\n"), ran.stderr

    logs = FileSessionLogs(tmp_path)
    (found,) = await logs.stored()
    contents, _ = await logs.take_over("lease/1", logged(pid=2))

    assert not found.has_writer
    assert [each.seq for each in contents.outputs] == [1]


async def test_one_gateway_at_a_time_claims_a_folder(tmp_path: Path) -> None:
    first, second = FileSessionLogs(tmp_path), FileSessionLogs(tmp_path)

    opened = len(os.listdir("/proc/self/fd"))
    assert (first.claim(), first.claim(), second.claim()) == (True, True, False)
    assert len(os.listdir("/proc/self/fd")) == opened + 1
    await first.close()
    assert second.claim()
    assert first.name == second.name
    await second.close()


def test_a_folder_of_another_user_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 4242)

    with pytest.raises(PermissionError):
        FileSessionLogs(tmp_path)


# ---- Redis ---------------------------------------------------------------------------------


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[RedisServer]:
    with redis_server(tmp_path) as running:
        yield running


@pytest.fixture
async def stored(server: RedisServer) -> AsyncIterator[RedisSessionLogs]:
    logs = RedisSessionLogs(server.url, window_s=15.0)
    yield logs
    await logs.close()


@pytest.fixture
async def scripts(server: RedisServer) -> AsyncIterator[RedisScripts]:
    made = RedisScripts(server.url, "a setting")
    yield made
    await made.close()


async def test_a_log_expires_when_no_process_refreshes_it(server: RedisServer) -> None:
    stored = RedisSessionLogs(server.url, window_s=15.0)
    stored.ttl_ms = 200
    writer = stored.create(logged())
    await append(writer, update(b"head", whole=True, outputs=(1,)))

    async with asyncio.timeout(HANG_S):
        while await stored.stored():  # noqa: ASYNC110
            await asyncio.sleep(0.05)

    assert await stored.scripts.client.keys("*") == []
    await stored.close()


async def test_every_use_of_a_log_extends_its_life(stored: RedisSessionLogs) -> None:
    writer, keys = created(stored, logged()), stored.keys("lease/1")[:3]
    await append(writer, update(b"head", whole=True, outputs=(1,)))

    async def lives_longer(use: Awaitable[object]) -> bool:
        for key in keys:
            await stored.scripts.client.pexpire(key, 30_000)
        await use
        return min([await stored.scripts.client.pttl(key) for key in keys]) > 30_000

    assert await lives_longer(append(writer, update(b"more")))
    assert await lives_longer(stored.peek("lease/1"))
    assert await lives_longer(stored.ask(REFRESH, keys, 1, stored.ttl_ms))


async def test_a_log_is_as_old_as_redis_says_whatever_the_clocks_of_hosts_say(
    stored: RedisSessionLogs, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = await started(stored)
    monkeypatch.setattr("time.time", lambda: 4e9)

    (one,) = await stored.stored()
    assert (one.has_writer, one.age_s < 30, present(one.ran_s) < 30) == (True, True, True)

    # A writer that has nothing to write says only that it is there. It may write everything again.
    hashed = stored.keys(one.session.log_id)[0]
    await stored.scripts.client.hincrby(hashed, "began", -600)
    await append(writer, update(b"head", whole=True))
    assert present((await stored.stored())[0].ran_s) >= 600
    await stored.scripts.client.hincrby(hashed, "at", -90)
    await stored.ask(REFRESH, stored.keys(one.session.log_id)[:3], 1, stored.ttl_ms)
    (quiet,) = await stored.stored()
    assert (quiet.has_writer, quiet.age_s >= 90) == (True, True)


async def test_what_others_write_into_the_redis_hides_no_log(stored: RedisSessionLogs) -> None:
    await started(stored)
    index = stored.keys("")[3]
    (ours,) = await stored.scripts.client.hkeys(index)
    whole = await stored.scripts.client.hget(stored.keys(ours.decode())[0], "session")
    foreign = [
        (b"\xff", b"1", {"session": whole}),
        (b"no time", b"1", {"session": whole}),
        (b"no size", b"?", {"session": whole, "at": 1}),
        (b"no session", b"1", {"session": b"?", "at": 1}),
    ]
    for name, size, fields in foreign:
        await stored.scripts.client.hset(index, name, size)
        key = stored.keys(name.decode(errors="replace"))[0]
        await stored.scripts.client.hset(key, mapping=fields)

    (found,) = await stored.stored()
    entries = stored.keys(ours.decode())[1]
    await stored.scripts.client.xadd(entries, {"other": b"1"})
    with pytest.raises(LogUnreadable, match="damaged"):
        await stored.peek(ours.decode())

    assert found.session == logged()


async def test_a_redis_that_restarted_empty_is_sent_everything_again(
    server: RedisServer, stored: RedisSessionLogs
) -> None:
    writer = await started(stored)
    server.kill()
    with capture_logs() as lines:
        assert await append(writer, update(b"lost")) == "unavailable"
        assert await append(stored.create(logged()), update(b"new")) == "unavailable"
        assert await stored.stored() == []
    (line,) = lines
    assert (line["event"], "hint" in line) == ("session_log_unavailable", True)
    server.start()

    assert await append(writer, update(b"head", b"lost", whole=True)) == "stored"
    contents, _ = await stored.take_over("lease/1", logged(pid=2))

    assert list(split_entries(contents.entries)) == [b"head", b"lost"]


async def test_a_redis_without_room_refuses_until_it_has_some(
    stored: RedisSessionLogs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("parley.session_log.redis_logs.RETURNS_S", 0.0)
    writer = await started(stored)
    await stored.scripts.client.config_set("maxmemory", 1)

    refused = update(b"more"), update(b"new", whole=True)
    assert [await append(writer, each) for each in refused] == ["refused", "refused"]
    with pytest.raises(LogUnreadable) as told:
        await stored.take_over("lease/1", logged(pid=2))
    await stored.scripts.client.config_set("maxmemory", 0)

    assert str(told.value) == "The log of the session cannot be read.", "nothing of our insides"
    assert await append(writer, update(b"head", b"more", whole=True)) == "stored"


async def test_after_a_restart_of_redis_no_idle_connection_fails(
    server: RedisServer, scripts: RedisScripts
) -> None:
    asked = [scripts.run("return 1", (), limit_s=HANG_S) for _ in range(5)]
    assert await asyncio.gather(*asked) == [1] * 5
    server.kill()
    server.start()
    await asyncio.sleep(0.1)  # the ends of the connections arrive

    asked = [scripts.run("return 1", (), limit_s=HANG_S) for _ in range(5)]
    assert await asyncio.gather(*asked) == [1] * 5


async def test_a_primary_that_became_a_replica_is_looked_for_at_its_address_again(
    scripts: RedisScripts,
) -> None:
    write = "return redis.call('set', KEYS[1], 'x')"
    await scripts.run(write, ["key"], limit_s=HANG_S)
    before = await scripts.client.client_id()
    await scripts.client.replicaof("127.0.0.1", "1")

    with pytest.raises(scripts.refusals, match="read only replica"):
        await scripts.run(write, ["key"], limit_s=HANG_S)

    assert await scripts.client.client_id() != before, "a new connection"


async def test_a_connection_that_does_not_end_takes_no_longer_than_the_request_may(
    scripts: RedisScripts, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(**_: bool) -> None:
        await asyncio.Event().wait()

    with monkeypatch.context() as patched:
        patched.setattr(scripts.client.connection_pool, "disconnect", never)
        refused = "return redis.error_reply('no')"
        asked = asyncio.create_task(scripts.run(refused, (), limit_s=0.2))
        is_over, _ = await asyncio.wait({asked}, timeout=5)
        asked.cancel()
        await asyncio.wait({asked})

    assert is_over
    assert isinstance(asked.exception(), scripts.failures)


async def test_a_request_can_be_cancelled_at_any_moment(scripts: RedisScripts) -> None:
    await scripts.run("return 1", (), limit_s=HANG_S)
    for turns in range(20):
        asked = asyncio.create_task(scripts.run("return 1", (), limit_s=HANG_S))
        for _ in range(turns):
            await asyncio.sleep(0)
        is_running = asked.cancel()
        await asyncio.wait({asked})
        assert asked.cancelled() == is_running


@contextlib.asynccontextmanager
async def a_forgotten_log(server: RedisServer) -> AsyncIterator[RedisSessionLogs]:
    """A log at rest that the block makes Redis forget; leaving waits until it is asked for."""
    stored = RedisSessionLogs(server.url, window_s=15.0)
    writer = created(stored, logged())
    asked = asyncio.Event()
    writer.on_forgotten = asked.set
    await append(writer, update(b"head", whole=True))
    await asyncio.sleep(0.3)
    assert not asked.is_set()
    ended, asked_in_vain = created(stored, logged("lease/2")), asyncio.Event()
    ended.on_forgotten = asked_in_vain.set
    await append(ended, update(b"head", whole=True))
    ended.drop()

    yield stored

    async with asyncio.timeout(HANG_S):
        await asked.wait()
    await stored.close()
    assert not asked_in_vain.is_set(), "of a session that has ended"


async def test_a_redis_that_restarted_asks_for_logs_that_nothing_is_written_to(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("parley.session_log.redis_logs.LOOK_S", 0.05)
    async with a_forgotten_log(server):
        server.kill()
        await asyncio.sleep(0.3)
        server.start()


@pytest.mark.parametrize("part", [0, 1, 2])
async def test_a_log_that_was_evicted_is_asked_for_although_nothing_is_written_to_it(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch, part: int
) -> None:
    for name in ("LOOK_S", "REFRESH_S"):
        monkeypatch.setattr(f"parley.session_log.redis_logs.{name}", 0.05)
    async with a_forgotten_log(server) as stored:
        await stored.scripts.client.delete(stored.keys("lease/1")[part])


@pytest.mark.parametrize("part", [1, 2])
async def test_a_log_of_which_a_part_was_evicted_is_not_continued_but_written_again(
    stored: RedisSessionLogs, part: int
) -> None:
    writer = await started(stored)
    await append(writer, update(b"one", outputs=(1, 2)))
    await stored.scripts.client.delete(stored.keys("lease/1")[part])

    with pytest.raises(LogUnreadable):
        await stored.take_over("lease/1", logged(pid=2))
    assert await append(writer, update(b"two", outputs=(3,))) == "unavailable"
    assert await append(writer, update(b"head", b"two", whole=True)) == "stored"


async def test_a_log_is_taken_over_from_a_redis_that_is_away_for_a_moment(
    server: RedisServer, stored: RedisSessionLogs
) -> None:
    await started(stored)
    # It keeps what it has, as a replica would.
    await stored.scripts.client.save()
    server.kill()
    taking = asyncio.create_task(stored.take_over("lease/1", logged(pid=2)))
    await asyncio.sleep(0.5)
    assert not taking.done()

    server.start()

    async with asyncio.timeout(HANG_S):
        contents, _ = await taking
    assert list(split_entries(contents.entries)) == [b"head"]


async def test_after_a_loss_an_older_writer_gives_way_to_the_newer_one(
    stored: RedisSessionLogs,
) -> None:
    frozen = await started(stored)
    _, writer = await stored.take_over("lease/1", logged(pid=2))
    await stored.scripts.client.flushall()
    await append(frozen, update(b"head", b"old", whole=True))

    assert await append(writer, update(b"new")) == "unavailable"
    assert await append(writer, update(b"head", b"new", whole=True)) == "stored"
    assert await append(frozen, update(b"old")) == "fenced"
