"""Every path of a recorded session; the only place where ids become file names.

Ids are checked against a strict pattern and refused otherwise, never rewritten: a rewritten id
could meet another one. Paths that come from outside are resolved part by part, and links are not
followed. Source: service.md 6.1, 8.
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
from parley.session_log.append_file import is_locked

ID_PATTERN: Final = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,159}$"
GB: Final = 1_000_000_000
"""Of `storage.min_free_gb`, `storage.max_gb` and all that is shown of the disk."""
RANDOM_BYTES: Final = 12
"""96 bits: a client that knows a recording's id may look at it, so ids must not be guessable."""


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
    """Not the id of any recording."""

    code = "invalid_session_id"
    sentence = "This is not the id of a recording."


class BadPath(BadInput):
    """A path that does not lead to a file of the recording."""

    code = "invalid_path"
    sentence = "This path does not lead to a file of the recording."


def make_id(kind: Kind, session_id: str, now_s: float) -> str:
    """A new id that cannot be guessed.

    Duplex ids begin with the time and the session's own id, half-duplex ids with the session's own,
    as published; the random part is ours. Source: service.md 6.1.
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


class _FileOf:
    """A file of a `Folder`, by its name."""

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
    """One line per thing that happened; locked while the session runs."""
    owner = _FileOf(".owner")
    """Id of the key that the session was started with; there only if it was. It is neither an asset
    nor in downloads: people who are shown a recording do not see its owner."""
    recording = _FileOf("recording.json")
    inputs = _FileOf("inputs.f32")
    """Float32 samples exactly as they were fed to the model, for `parley rerun`."""
    comment = _FileOf("comment.txt")
    pin = _FileOf("pinned")
    """There while the recording is to be kept whatever its age."""
    replay_wav = _FileOf("merged_replay.wav")
    replay_mp4 = _FileOf("merged_replay.mp4")
    subtitles = _FileOf("merged_replay.srt")
    web_subtitles = _FileOf("merged_replay.vtt")
    replay_state = _FileOf("replay.json")
    replay_lock = _FileOf(".replay.lock")
    """Locked by the process that makes the replay."""

    @property
    def recording_id(self) -> str:
        return self.path.name

    def upload(self, kind: str) -> Path:
        return self.path / f"frontend_replay.{kind}"

    def asset(self, relative: str) -> Path:
        """An existing file of this recording that may be shown, by the path clients use.

        Raises:
            BadPath: it leads elsewhere, over a link, or to another kind of file.
            FileNotFoundError: there is no such file.
        """
        found = self.file(relative)
        if found.suffix not in MEDIA_TYPES:
            raise BadPath
        return found

    def file(self, relative: str) -> Path:
        """An existing file of this recording. Errors as of `asset`, for any kind of file."""
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
        """All plain files, sorted; links and what they lead to are left out."""
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
        """True if a session is being recorded into it."""
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
        """The folder of an id, there or not.

        Raises:
            BadRecordingId: no recording is ever called so.
        """
        if not _ID.match(recording_id):
            raise BadRecordingId
        return Folder(self.root / recording_id)

    def find(self, recording_id: str) -> Folder | None:
        """The folder of an id if it is there; links count as absent."""
        try:
            folder = self.folder(recording_id)
            mode = folder.path.lstat().st_mode
        except (BadRecordingId, OSError):
            return None
        return folder if stat.S_ISDIR(mode) else None

    def __iter__(self) -> Iterator[Folder]:
        """Every folder, in the order of its name."""
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
    """A unit, an utterance, or a sound of a chat message."""
    return f"{USER_AUDIO}{index:03d}.wav"


def user_frame(index: int, number: int, extension: str) -> str:
    """`number` counts the frames of one unit; the first has no number, as published."""
    more = f"_{number}" if number else ""
    return f"user_frames/{index:03d}{more}.{extension}"


def unit_audio(turn: int, index: int) -> str:
    """Output of one duplex unit."""
    return f"{AI_AUDIO}turn_{turn}_chunk_{index:03d}.wav"


def turn_audio(turn: int) -> str:
    """A whole answer of chat or half-duplex."""
    return f"{AI_AUDIO}turn_{turn}.wav"


def user_image(number: int, extension: str) -> str:
    return f"user_images/img_{number}.{extension}"


def user_video(number: int) -> str:
    return f"user_videos/vid_{number}.mp4"


def item_file(number: int, extension: str) -> str:
    """Media of an item that a client sent."""
    return f"user_items/{number:03d}.{extension}"


def picture_extension(data: bytes) -> str:
    """By the first bytes of the file."""
    if data[:8] == b"\x89PNG\r\n\x1a\n":
        return "png"
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "webp"
    return "jpg"


def write_atomically(path: Path, data: bytes, *, mode: int = 0o666) -> None:
    """Replace a file as a whole: readers see the old one or the new one, also after a crash."""
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    try:
        with open(partial, "xb", opener=lambda name, how: os.open(name, how, mode)) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def free_bytes(path: Path) -> int:
    """Room on the disk that holds `path`, which need not exist yet."""
    while not path.exists() and path != path.parent:
        path = path.parent
    usage = os.statvfs(path)
    return usage.f_bavail * usage.f_frsize
