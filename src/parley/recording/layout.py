"""Every path of a recorded session; the only place where ids become file names.

Ids must match a strict pattern; others are refused, never rewritten, because a rewritten id could
collide with another one. External paths are resolved part by part, and links are not followed.
Source: service.md 6.1, 8.
"""

from __future__ import annotations

import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from parley.errors import BadInput
from parley.protocol.kinds import Kind
from parley.replacing import replacing
from parley.session_log.append_file import is_locked

ID_PATTERN: Final = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,159}$"
GB: Final = 1_000_000_000
"""Bytes per GB in `storage.min_free_gb`, `storage.max_gb` and all displayed sizes."""
RANDOM_BYTES: Final = 12
"""96 bits: a client that knows a recording's id may view it, so ids must not be guessable."""


UPLOAD_KINDS: Final = ("webm", "mp4", "wav")

MEDIA_TYPES: Final = {
    ".wav": "audio/wav",
    ".mp3": "audio/mpeg",
    ".jpg": "image/jpeg",
    ".png": "image/png",
    ".webp": "image/webp",
    ".webm": "video/webm",
    ".mp4": "video/mp4",
    ".srt": "text/plain; charset=utf-8",
    ".vtt": "text/vtt; charset=utf-8",
}
"""Files that may be fetched as an asset. Source: service.md 5.5, and the recorder's own files."""

USER_AUDIO: Final = "user_audio/"
AI_AUDIO: Final = "ai_audio/"

_ID = re.compile(ID_PATTERN)


class BadRecordingId(BadInput):
    """The id cannot be that of a recording."""

    code = "invalid_session_id"
    sentence = "This is not the id of a recording."


class BadPath(BadInput):
    """The path does not lead to a file of the recording."""

    code = "invalid_path"
    sentence = "This path does not lead to a file of the recording."


def make_id(kind: Kind, session_id: str, now_s: float) -> str:
    """A new id that cannot be guessed.

    As published, duplex ids start with the time and the session's id, and half-duplex ids with the
    session's id; we add the random part. Source: service.md 6.1.
    """
    random = secrets.token_hex(RANDOM_BYTES)
    match kind:
        case Kind.CHAT:
            return f"chat_{random}"
        case Kind.HALF_DUPLEX:
            return f"{_stem(session_id)}_{random}"
        case Kind.AUDIO_DUPLEX | Kind.OMNI_DUPLEX:
            stamp = datetime.fromtimestamp(now_s, UTC).strftime("%Y%m%d_%H%M%S")
            return f"{stamp}_{_stem(session_id)}_{random}"


def _stem(session_id: str) -> str:
    return session_id.lstrip("_-")[:64] or "session"


OWNER: Final = ".owner"


class _FileOf:
    """Descriptor of a file of a `Folder`, by its name."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, folder: Folder, owner: type[Folder]) -> Path:
        return folder.path / self._name


@dataclass(frozen=True, slots=True)
class Folder:
    """The files of one recording. `path` need not exist."""

    path: Path

    meta = _FileOf("meta.json")
    journal = _FileOf("journal.jsonl")
    """The journal: one line per entry; locked while the session is running."""
    owner = _FileOf(OWNER)
    """Id of the key that the session was started with, if any. It is neither an asset nor part of
    downloads, so people with whom a recording is shared do not see its owner."""
    recording = _FileOf("recording.json")
    inputs = _FileOf("inputs.f32")
    """Float32 samples exactly as they were fed to the model, for `parley rerun`."""
    comment = _FileOf("comment.txt")
    pin = _FileOf("pinned")
    """Exists while the recording is pinned: kept regardless of its age."""
    replay_wav = _FileOf("merged_replay.wav")
    replay_mp4 = _FileOf("merged_replay.mp4")
    subtitles = _FileOf("merged_replay.srt")
    web_subtitles = _FileOf("merged_replay.vtt")
    replay_state = _FileOf("replay.json")
    replay_lock = _FileOf(".replay.lock")
    """Locked by the process that renders the replay."""

    @property
    def recording_id(self) -> str:
        return self.path.name

    def upload(self, kind: str) -> Path:
        return self.path / f"frontend_replay.{kind}"

    def asset(self, relative: str) -> Path:
        """An existing file of this recording that clients may fetch, by the path they use.

        Raises:
            BadPath: it leads outside, over a link, or to another kind of file.
            FileNotFoundError: there is no such file.
        """
        found = self.file(relative)
        if found.suffix not in MEDIA_TYPES:
            raise BadPath
        return found

    def file(self, relative: str) -> Path:
        """An existing file of this recording, of any kind. Raises the same errors as `asset`."""
        parts = relative.split("/")
        if any(part in ("", ".", "..") or "\0" in part or "\\" in part for part in parts):
            raise BadPath
        if len(parts) > 2:
            raise BadPath
        found = self.path
        mode = 0
        for part in parts:
            found = found / part
            try:
                mode = os.lstat(found).st_mode
            except (OSError, ValueError) as error:
                raise FileNotFoundError(relative) from error
            if stat.S_ISLNK(mode):
                raise BadPath
        if not stat.S_ISREG(mode):
            raise FileNotFoundError(relative)
        return found

    def files(self) -> Iterator[Path]:
        """All plain files, sorted; links are not included or followed."""
        for place, folders, names in os.walk(self.path, followlinks=False):
            folders.sort()
            for name in sorted(names):
                path = Path(place, name)
                with suppress(FileNotFoundError):
                    if stat.S_ISREG(path.lstat().st_mode):
                        yield path

    def size_bytes(self) -> int:
        total = 0
        for path in self.files():
            with suppress(FileNotFoundError):
                total += path.lstat().st_size
        return total

    def is_live(self) -> bool:
        """True if a running session is being recorded into it."""
        try:
            return is_locked(self.journal)
        except OSError:
            return False


@dataclass(frozen=True, slots=True)
class RecordingFolders:
    """All recordings below one data folder."""

    data_dir: Path

    @property
    def root(self) -> Path:
        return self.data_dir / "sessions"

    def folder(self, recording_id: str) -> Folder:
        """The folder of an id, whether it exists or not.

        Raises:
            BadRecordingId: no recording can have this id.
        """
        if not _ID.match(recording_id):
            raise BadRecordingId
        return Folder(self.root / recording_id)

    def find(self, recording_id: str) -> Folder | None:
        """The folder of an id if it exists; links count as absent."""
        try:
            folder = self.folder(recording_id)
            mode = folder.path.lstat().st_mode
        except (BadRecordingId, OSError):
            return None
        return folder if stat.S_ISDIR(mode) else None

    def __iter__(self) -> Iterator[Folder]:
        """All folders, in order of their names."""
        try:
            with os.scandir(self.root) as entries:
                names = sorted(
                    entry.name
                    for entry in entries
                    if entry.is_dir(follow_symlinks=False) and _ID.match(entry.name)
                )
        except FileNotFoundError:
            return
        for name in names:
            yield Folder(self.root / name)


def user_audio(index: int) -> str:
    """Audio file of a unit, an utterance, or a chat message."""
    return f"{USER_AUDIO}{index:03d}.wav"


def user_frame(index: int, number: int, extension: str) -> str:
    """Picture of a unit. `number` counts the frames of one unit; as published, the first has no
    number."""
    more = f"_{number}" if number else ""
    return f"user_frames/{index:03d}{more}.{extension}"


def unit_audio(turn: int, index: int) -> str:
    """Audio file of the output of one duplex unit."""
    return f"{AI_AUDIO}turn_{turn}_chunk_{index:03d}.wav"


def turn_audio(turn: int) -> str:
    """Audio file of a whole answer of chat or half-duplex."""
    return f"{AI_AUDIO}turn_{turn}.wav"


def user_image(number: int, extension: str) -> str:
    return f"user_images/img_{number}.{extension}"


def user_video(number: int) -> str:
    return f"user_videos/vid_{number}.mp4"


def item_file(number: int, extension: str) -> str:
    """Media file of an item that a client sent."""
    return f"user_items/{number:03d}.{extension}"


def picture_extension(data: bytes) -> str:
    """Suffix of a media type, determined by the file's first bytes."""
    if data[:8] == b"\x89PNG\r\n\x1a\n":
        return "png"
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "webp"
    return "jpg"


def write_atomically(path: Path, data: bytes, *, mode: int = 0o666) -> None:
    """Replace a file atomically: readers see either the old or the new one, even after a crash."""
    with (
        replacing(path, f".{secrets.token_hex(4)}") as partial,
        open(partial, "xb", opener=lambda name, how: os.open(name, how, mode)) as file,
    ):
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def free_bytes(path: Path) -> int:
    """Free bytes on the disk of `path`, which need not exist yet."""
    while not path.exists() and path != path.parent:
        path = path.parent
    usage = os.statvfs(path)
    return usage.f_bavail * usage.f_frsize
