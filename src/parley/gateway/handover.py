"""Fetches finished recordings from workers that have a data folder of their own.

A worker that shares our folder reports that. A recording of another worker is fetched into a hidden
folder, renamed into place as a whole, and only then removed on the worker, so one side has it
whichever process dies. Its id is stored until the worker has removed it, so that a recording that
is deleted here before that does not come back.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import re
import secrets
import shutil
import sqlite3
import tarfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path, PurePosixPath
from typing import IO, Final, cast
from weakref import WeakKeyDictionary

import httpx

from parley import logs
from parley.gateway.authenticator import SHARE_PREFIX
from parley.gateway.recording_access import RecordingAccess
from parley.gateway.state import State, newest_of
from parley.gateway.tls import worker_tls
from parley.gateway.worker_pool import Worker, WorkerPool
from parley.protocol import control
from parley.recording import layout, store
from parley.settings import StorageSettings

EVERY_S: Final = 1.0
AT_ONCE: Final = 4
"""Number of workers that are asked in parallel."""
TIMEOUT_S: Final = 30.0
"""Maximum time without a byte from a worker."""
BRING_LIMIT_S: Final = 20.0
COMPLETE_LOOK_S: Final = 0.5
COMPLETE_LOOKS: Final = 10
"""Number of attempts to fetch a requested recording whose session has just ended."""
HOLDERS_ASKED: Final = 64
RETRY_S: Final = 15.0
"""Pause after a worker whose recordings could not be fetched."""
DAMAGED_RETRY_S: Final = 3600.0
"""Pause after a recording that is damaged: it is fetched as a whole again."""
DATE_ERROR_S: Final = 2.0
"""Error of a `Date` header, which has whole seconds and is renewed once a second."""
TAKEN_LIMIT: Final = 10_000
FILES_LIMIT: Final = 100_000
PIECE_BYTES: Final = 256 << 10
TAKEN_FACT: Final = "recordings.taken"
INCOMING: Final = ".incoming-"
ID: Final = re.compile(layout.ID_PATTERN)

log = logs.get(__name__)


class NotTaken(Exception):
    """A recording stays on its worker for now; the message gives the reason."""


class Damaged(NotTaken):
    """What the worker has sent is not a recording."""


class NotComplete(NotTaken):
    """The recording's session is running or has just ended."""


@dataclass(kw_only=True, eq=False, repr=False)
class Handover:
    """Belongs to the event loop; disk and network are accessed in threads."""

    worker_pool: WorkerPool
    folders: layout.RecordingFolders
    recordings: RecordingAccess
    state: State
    storage: StorageSettings
    secret: str | None

    def __post_init__(self) -> None:
        self._headers = {control.SECRET_HEADER: self.secret} if self.secret else {}
        self._to_remove: dict[str, None] = {}
        """Ids of recordings that were copied and that their worker has not removed yet; oldest
        first."""
        self._deleted: list[str] = []
        """Ids of recordings that were deleted since the start, oldest first: later parts of their
        sessions may still be on other workers, and are deleted when they arrive. The state has
        more: those from before, and those that another process has deleted."""
        self._erased: dict[str, float] = {}
        """Keys and users whose recordings were deleted since the start, with Unix times."""
        self._retry_at: dict[str, float] = {}
        """Earliest time of the next attempt, by ids of recordings that could not be taken: one that
        fails must not hold up the others."""
        self._taking: dict[str, asyncio.Task[None]] = {}
        self._not_before: WeakKeyDictionary[Worker, float] = WeakKeyDictionary()
        """Earliest time of the next request to a worker."""
        self._places = asyncio.Semaphore(AT_ONCE)
        self._bringing = asyncio.Semaphore(AT_ONCE)

    @property
    def waiting(self) -> int:
        """Number of recordings on workers."""
        return sum(_waiting(worker) or 0 for worker in self.worker_pool)

    async def restore(self) -> None:
        """Restore the ids from before a restart, and delete incomplete copies."""
        remembered = await self.state.fact(TAKEN_FACT)
        if isinstance(remembered, list):
            self._to_remove = {str(one): None for one in remembered}
        await asyncio.to_thread(_drop_incoming, self.folders.root)

    async def delete(self, folder: layout.Folder) -> list[str]:
        """Delete the recordings of a session; returns their ids. Later ones are deleted when they
        arrive.

        Raises:
            StillRecording: the session is running.
        """
        gone = await asyncio.to_thread(store.delete_session, folder)
        if gone:
            await self.refuse_rest([folder.recording_id])
            # One may have arrived just before it would have been refused.
            with contextlib.suppress(store.StillRecording):
                gone += await asyncio.to_thread(store.delete_session, folder)
        return gone

    async def refuse_rest(self, recording_ids: list[str]) -> None:
        """These recordings are deleted, and with them all parts of their sessions."""
        self._deleted = newest_of([*self._deleted, *recording_ids])
        # On a full disk they are remembered in memory, because deleting makes room.
        with contextlib.suppress(sqlite3.Error):
            await self.state.refuse_recordings(recording_ids)

    async def erase(self, key_id: str, now_s: float) -> None:
        """All recordings of this key or user are deleted, with those that arrive later."""
        self._erased[key_id] = now_s
        with contextlib.suppress(sqlite3.Error):
            await self.state.note_erased(key_id, now_s)

    async def run(self) -> None:
        while True:
            await self.round()
            await asyncio.sleep(EVERY_S)

    async def round(self) -> None:
        """Fetch the recordings that are complete."""
        now = time.monotonic()
        asked = [
            worker
            for worker in self.worker_pool
            if _waiting(worker) and self._not_before.get(worker, 0.0) <= now
        ]
        await asyncio.gather(*(self._take_from(worker) for worker in asked))

    async def bring(self, recording_id: str) -> bool:
        """Fetch one recording now if a worker has it; waits a moment if its session has just ended.
        Does nothing if the maximum number of recordings is already being fetched.

        Returns:
            True if it will be fetched later.
        """
        is_id = ID.match(recording_id) and not recording_id.startswith(SHARE_PREFIX)
        if not is_id or self.folders.find(recording_id) is not None or self._bringing.locked():
            return False
        comes = False
        with contextlib.suppress(TimeoutError):
            async with self._bringing, asyncio.timeout(BRING_LIMIT_S):
                for _ in range(COMPLETE_LOOKS):
                    comes = await self._bring_once(recording_id)
                    if not comes:
                        break
                    await asyncio.sleep(COMPLETE_LOOK_S)
        return comes

    async def _bring_once(self, recording_id: str) -> bool:
        holders = [worker for worker in self.worker_pool if _waiting(worker) is not None]
        for worker in holders[:HOLDERS_ASKED]:
            try:
                await self._take(worker, recording_id)
            except NotComplete:
                return True
            except NotTaken:
                continue
            return False
        return False

    async def _take_from(self, worker: Worker) -> None:
        async with self._places:
            recording_id, is_any_left = "", False
            try:
                for recording_id in await asyncio.to_thread(self._list, worker):
                    if self._retry_at.get(recording_id, 0.0) > time.monotonic():
                        is_any_left = True
                        continue
                    await self._take(worker, recording_id)
                    self._retry_at.pop(recording_id, None)
            except NotTaken as error:
                is_any_left = True
                pause_s = DAMAGED_RETRY_S if isinstance(error, Damaged) else 2 * RETRY_S
                self._retry_at[recording_id] = time.monotonic() + pause_s
                log.warning("recordings_kept_on_worker", worker=worker.worker_id, why=str(error))
            if is_any_left:
                self._not_before[worker] = time.monotonic() + RETRY_S

    async def _take(self, worker: Worker, recording_id: str) -> None:
        task = self._taking.get(recording_id)
        if task is None:
            task = asyncio.create_task(
                self._take_one(worker, recording_id), name=f"recording {recording_id}"
            )
            self._taking[recording_id] = task
            task.add_done_callback(lambda done: self._taken(recording_id, done))
        await asyncio.shield(task)

    def _taken(self, recording_id: str, task: asyncio.Task[None]) -> None:
        self._taking.pop(recording_id, None)
        if not task.cancelled():
            # Retrieved here: the request that waited for it may have ended.
            task.exception()

    async def _take_one(self, worker: Worker, recording_id: str) -> None:
        if recording_id not in self._to_remove:
            if self.folders.find(recording_id) is None:
                folder, ahead_s = await asyncio.to_thread(self._fetch, worker, recording_id)
                log.info("recording_taken_over", recording_id=recording_id, worker=worker.worker_id)
                if await self._is_deleted(folder, ahead_s):
                    await asyncio.to_thread(store.delete, folder)
                elif store.replay_state(folder) is None:
                    await asyncio.to_thread(self.recordings.make_replay, folder)
            self._to_remove[recording_id] = None
            while len(self._to_remove) > TAKEN_LIMIT:
                self._to_remove.pop(next(iter(self._to_remove)))
            await self._remember()
        await asyncio.to_thread(self._release, worker, recording_id)
        self._to_remove.pop(recording_id, None)
        await self._remember()

    async def _is_deleted(self, folder: layout.Folder, ahead_s: float) -> bool:
        """True if its session, or everything of its owner, was deleted before it arrived. The clock
        that it was recorded by is `ahead_s` ahead of ours."""
        deleted = {*self._deleted, *await self.state.refused_recordings()}
        if await asyncio.to_thread(store.first_part, folder) in deleted:
            return True
        owner = await asyncio.to_thread(store.read_owner, folder)
        erased_s = self._erased.get(owner) or await self.state.erased_s(owner)
        if erased_s is None:
            return False
        return await asyncio.to_thread(_created_s, folder) - ahead_s <= erased_s + DATE_ERROR_S

    async def _remember(self) -> None:
        await self.state.set_fact(TAKEN_FACT, list(self._to_remove))

    # ---- in threads --------------------------------------------------------------------------

    def _client(self, worker: Worker) -> httpx.Client:
        return httpx.Client(
            base_url=worker.hello.url.rstrip("/"),
            headers=self._headers,
            verify=worker_tls(worker.hello) or False,
            timeout=TIMEOUT_S,
            trust_env=False,
        )

    def _list(self, worker: Worker) -> list[str]:
        with _as_not_taken(), self._client(worker) as http:
            answer = http.get(control.RECORDINGS_PATH)
            answer.raise_for_status()
            return [str(one) for one in answer.json()["recordings"]]

    def _fetch(self, worker: Worker, recording_id: str) -> tuple[layout.Folder, float]:
        """Copy a recording; returns how far its worker's clock is ahead, too."""
        folder = self.folders.folder(recording_id)
        incoming = self.folders.root / f"{INCOMING}{recording_id}-{secrets.token_hex(4)}"
        try:
            with (
                _as_not_taken(),
                self._client(worker) as http,
                http.stream("GET", f"{control.RECORDINGS_PATH}/{recording_id}") as answer,
            ):
                if answer.status_code == control.INCOMPLETE_STATUS:
                    raise NotComplete("It is not complete yet.")
                answer.raise_for_status()
                ahead_s = parsedate_to_datetime(answer.headers["date"]).timestamp() - time.time()
                self._check_room(int(answer.headers["content-length"]))
                incoming.mkdir(mode=0o700, parents=True)
                _unpack(answer.iter_bytes(PIECE_BYTES), incoming)
                if not (incoming / folder.recording.name).is_file():
                    raise Damaged(f"{recording_id} arrived without its recording.json.")
                os.rename(incoming, folder.path)
                _sync_folder(self.folders.root)
        finally:
            shutil.rmtree(incoming, ignore_errors=True)
        return folder, ahead_s

    def _check_room(self, size: int) -> None:
        left = layout.free_bytes(self.folders.data_dir) - size
        if left < self.storage.min_free_gb * layout.GB:
            raise NotTaken(
                f"The gateway's disk has no room for it (storage.min_free_gb = "
                f"{self.storage.min_free_gb:g})."
            )

    def _release(self, worker: Worker, recording_id: str) -> None:
        with _as_not_taken(), self._client(worker) as http:
            answer = http.delete(f"{control.RECORDINGS_PATH}/{recording_id}")
            if answer.status_code not in (204, 404):
                answer.raise_for_status()


def _waiting(worker: Worker) -> int | None:
    """Number of recordings on a worker; None if it cannot hand any over now."""
    heartbeat = worker.heartbeat
    return heartbeat.recordings_waiting if heartbeat and worker.is_connected else None


def _created_s(folder: layout.Folder) -> float:
    """Unix time by its worker's clock; one that is not known was long ago."""
    try:
        return store.created_s(store.read_meta(folder))
    except (store.BrokenRecording, ValueError):
        return -math.inf


@contextlib.contextmanager
def _as_not_taken() -> Iterator[None]:
    """Turn errors of a worker or of the disk into `NotTaken`."""
    try:
        yield
    except (httpx.HTTPError, OSError, ValueError, KeyError, TypeError, tarfile.TarError) as error:
        kind = NotTaken if isinstance(error, httpx.HTTPError | OSError) else Damaged
        raise kind(f"{type(error).__name__}: {error}"[:300]) from error


class _Stream:
    """File object that reads from pieces of bytes, for `tarfile`."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._rest = b""

    def read(self, size: int) -> bytes:
        while len(self._rest) < size and (piece := next(self._pieces, b"")):
            self._rest += piece
        data, self._rest = self._rest[:size], self._rest[size:]
        return data


def _unpack(pieces: Iterator[bytes], target: Path) -> None:
    """Write the files of a tar stream below `target`, and flush them to the disk.

    Raises:
        ValueError: it has members that are not plain files or are more than one folder deep.
        tarfile.TarError: it is not a tar file, or ends early.
    """
    files = 0
    source = cast(IO[bytes], _Stream(pieces))
    with tarfile.open(fileobj=source, mode="r|") as tar:
        for member in tar:
            path = target / _safe(member)
            files += 1
            if files > FILES_LIMIT:
                raise ValueError(f"It has more than {FILES_LIMIT} files.")
            path.parent.mkdir(exist_ok=True)
            content = tar.extractfile(member)
            assert content is not None
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o640)
            with os.fdopen(descriptor, "wb") as file:
                shutil.copyfileobj(content, file, PIECE_BYTES)
                file.flush()
                os.fsync(file.fileno())
    for place in (*(one for one in target.iterdir() if one.is_dir()), target):
        _sync_folder(place)


def _safe(member: tarfile.TarInfo) -> Path:
    parts = PurePosixPath(member.name).parts
    is_plain = member.isreg() and 1 <= len(parts) <= 2
    is_odd = any(part.startswith((".", "/")) or "\\" in part for part in parts)
    if not is_plain or (is_odd and parts != (layout.OWNER,)):
        raise ValueError(f"'{member.name[:80]}' is not a file of a recording.")
    return Path(*parts)


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _drop_incoming(root: Path) -> None:
    for left in root.glob(f"{INCOMING}*"):
        shutil.rmtree(left, ignore_errors=True)


def store_id(data_dir: Path) -> str:
    """Id of this data folder, created on first use; "" if it cannot be written."""
    path = data_dir / control.STORE_ID_FILE
    try:
        if not path.exists():
            layout.write_atomically(path, f"{secrets.token_hex(16)}\n".encode())
        return path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        log.error("data_folder_name_missing", why=str(error))
        return ""
