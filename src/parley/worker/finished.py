"""Finished recordings of a worker that does not share the gateway's data folder, which are kept
until the gateway has fetched them; and the gateway's registered voices, which such a worker
requests.

The worker keeps every recording until the gateway confirms that it has stored it, so nothing is
lost if the gateway is away, full or restarted. Workers of one machine may share a data folder: each
of them offers its content, including the recordings of a worker that died.
"""

from __future__ import annotations

import contextlib
import ssl
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import httpx

from parley import logs
from parley.errors import ServiceUnavailable
from parley.media.pcm import Pcm
from parley.media.wav import decode_wav
from parley.protocol.control import CALLER_HEADER, SECRET_HEADER, STORE_ID_FILE, VOICE_PATH
from parley.recording import store
from parley.recording.layout import Folder, RecordingFolders

LISTED_LIMIT: Final = 100
"""Number of recordings listed in one response; the gateway asks again when it has fetched them."""
PIECE_BYTES: Final = 256 << 10
BLOCK_BYTES: Final = tarfile.BLOCKSIZE
VOICE_TIMEOUT_S: Final = 10.0

_log = logs.get(__name__)


class FinishedRecordings:
    """Recordings that the gateway has to fetch. Its methods may be called in any thread.

    Attributes:
        is_on: True if the gateway has its own data folder; known from its first welcome.
    """

    def __init__(self, folders: RecordingFolders) -> None:
        self._folders = folders
        self._waiting: set[str] = set()
        self._lock = threading.Lock()
        self.is_on = False

    @property
    def waiting(self) -> int | None:
        """Number of waiting recordings; None if gateway and worker share a folder."""
        return len(self._waiting) if self.is_on else None

    def welcomed(self, store_id: str) -> None:
        """A gateway has sent the name of its data folder: compare it. Reads the disk."""
        is_on = bool(store_id) and store_id != self._own_store_id()
        if is_on != self.is_on:
            _log.info("recordings_handed_over", on=is_on)
        self.is_on = is_on
        if is_on:
            for folder in self._folders:
                if _is_complete(folder):
                    self.finished(folder)

    def finished(self, folder: Folder) -> None:
        with self._lock:
            self._waiting.add(folder.recording_id)

    def ready(self) -> list[str]:
        """The recordings that can be fetched now, without those being rendered. Reads the disk."""
        if not self.is_on:
            return []
        with self._lock:
            waiting = sorted(self._waiting)
        ready: list[str] = []
        for recording_id in waiting:
            folder = self._folders.find(recording_id)
            if folder is None:
                self._forget(recording_id)
            elif _is_complete(folder) and not _is_being_rendered(folder):
                ready.append(recording_id)
            if len(ready) == LISTED_LIMIT:
                break
        return ready

    def find(self, recording_id: str) -> Folder | None:
        folder = self._folders.find(recording_id) if self.is_on else None
        return folder if folder is not None and _is_complete(folder) else None

    def is_coming(self, recording_id: str) -> bool:
        """True if a recording is here but not complete yet: its session is running or has just
        ended."""
        folder = self._folders.find(recording_id) if self.is_on else None
        return folder is not None and not _is_complete(folder)

    def release(self, recording_id: str) -> bool:
        """The gateway has stored a recording: remove it here; returns True if it existed.

        Raises:
            StillRecording: its session is running.
        """
        folder = self._folders.find(recording_id) if self.is_on else None
        if folder is not None:
            store.delete(folder)
            _log.info("recording_handed_over", recording_id=recording_id)
        self._forget(recording_id)
        return folder is not None

    def _forget(self, recording_id: str) -> None:
        with self._lock:
            self._waiting.discard(recording_id)

    def _own_store_id(self) -> str:
        try:
            return (self._folders.data_dir / STORE_ID_FILE).read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError):
            return ""


def _is_complete(folder: Folder) -> bool:
    return folder.recording.exists() and not folder.is_live()


def _is_being_rendered(folder: Folder) -> bool:
    state = store.replay_state(folder)
    return state is not None and state.get("state") in ("queued", "running")


# ---- a recording as a tar file -------------------------------------------------------------


def tar_files(folder: Folder) -> list[tuple[Path, int]]:
    """The files to hand over, with sizes: all except locks, partial files, and an unfinished
    render."""
    left_out: set[Path] = set()
    if _is_being_rendered(folder):
        left_out = {
            folder.replay_state,
            folder.replay_wav,
            folder.replay_mp4,
            folder.subtitles,
            folder.web_subtitles,
        }
    found = []
    for path in folder.files():
        name = path.name
        is_hidden = name.startswith(".") and path != folder.owner
        if is_hidden or name.endswith(".partial") or path in left_out:
            continue
        with contextlib.suppress(FileNotFoundError):
            found.append((path, path.lstat().st_size))
    return found


def tar_bytes(files: list[tuple[Path, int]]) -> int:
    """Length of the tar file of `files`."""
    return sum(BLOCK_BYTES + size + -size % BLOCK_BYTES for _, size in files) + 2 * BLOCK_BYTES


def tar_pieces(folder: Folder, files: list[tuple[Path, int]]) -> Iterator[bytes]:
    """`files` as a tar file, in pieces; only one piece is in memory at a time.

    Raises:
        OSError: a file has been removed or truncated meanwhile.
    """
    for path, size in files:
        member = tarfile.TarInfo(path.relative_to(folder.path).as_posix())
        member.size, member.mode = size, 0o640
        member.mtime = int(path.lstat().st_mtime)
        # Our file names are short; a longer one would need a second header.
        yield member.tobuf(tarfile.USTAR_FORMAT)
        left = size
        with store.open_plain(path) as file:
            while left:
                piece = file.read(min(PIECE_BYTES, left))
                if not piece:
                    raise OSError(f"{path.name} became shorter while it was read")
                left -= len(piece)
                yield piece
        yield bytes(-size % BLOCK_BYTES)
    yield bytes(2 * BLOCK_BYTES)


# ---- voices --------------------------------------------------------------------------------


def gateway_voice(
    name: str,
    caller: str,
    *,
    base_url: str,
    context: ssl.SSLContext | None,
    secret: str | None,
    limit_s: float,
) -> Pcm | None:
    """A voice that is registered at the gateway, by id or name, if `caller` may use it. It is
    requested each time, so a deleted voice disappears immediately. Blocks; may be called in any
    thread.

    Args:
        context: TLS settings for the gateway at `base_url`; None: not known yet.
        limit_s: maximum length of a voice.

    Raises:
        ServiceUnavailable: the gateway does not answer.
    """
    headers = {CALLER_HEADER: caller}
    if secret:
        headers[SECRET_HEADER] = secret
    # Before the first connection, only the authorities of this machine are trusted.
    verify: Any = context or base_url.startswith("https")
    try:
        with httpx.Client(verify=verify, trust_env=False, timeout=VOICE_TIMEOUT_S) as http:
            answer = http.get(base_url + VOICE_PATH, params={"name": name}, headers=headers)
    except (httpx.HTTPError, OSError) as error:
        _log.warning("gateway_voices_unreachable", why=f"{type(error).__name__}: {error}")
        raise ServiceUnavailable("The registered voices cannot be reached now.") from error
    if answer.status_code == 404:
        return None
    if answer.status_code != 200:
        _log.warning("gateway_refused_voices", status=answer.status_code)
        raise ServiceUnavailable("The registered voices cannot be reached now.")
    return decode_wav(answer.content, limit_s=limit_s)
