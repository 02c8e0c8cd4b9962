"""Operations on the folders of recordings: read, pack, comment, upload, delete.

The files are the source of truth; nothing is cached here. Every function blocks on the disk, so the
gateway calls them in threads.
"""

from __future__ import annotations

import io
import json
import os
import re
import stat
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from operator import itemgetter
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec

from parley.errors import BadInput, TooLarge
from parley.protocol.kinds import Kind
from parley.recording import lines, timeline
from parley.recording.finish import fold
from parley.recording.journal import remove
from parley.recording.layout import UPLOAD_KINDS, Folder, write_atomically
from parley.recording.lines import JournalEntries
from parley.recording.timeline import RecordingJson
from parley.replacing import replacing

_recording = msgspec.json.Decoder(RecordingJson)

COMMENT_CHARS: Final = 2000
UPLOAD_BYTES: Final = 200 * 1024 * 1024
"""Source of both: service.md 5.5."""

PIECE_BYTES: Final = 256 * 1024
PACKED_AS_TEXT: Final = (".json", ".jsonl", ".txt", ".srt", ".vtt")


class StillRecording(BadInput):
    """A running session's recording cannot be deleted."""

    code = "still_recording"
    http_status = 409
    sentence = "This session is still being recorded."


class WrongMedia(BadInput):
    """The uploaded file has a wrong type."""

    code = "unsupported_media_type"


class BrokenRecording(Exception):
    """`meta.json` cannot be used; the message gives the reason."""


def read_meta(folder: Folder) -> dict[str, Any]:
    """Metadata of a recording.

    Raises:
        BrokenRecording: it is missing or invalid.
    """
    try:
        meta = json.loads(folder.meta.read_bytes())
    except OSError as error:
        raise BrokenRecording(f"meta.json cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise BrokenRecording("meta.json is not JSON") from error
    if not isinstance(meta, dict) or not isinstance(meta.get("created_at"), str):
        raise BrokenRecording("meta.json lacks required fields")
    return meta


def created_s(meta: Mapping[str, Any]) -> float:
    """Unix time at which a recording started, from its metadata.

    Raises:
        ValueError: it is not a time.
    """
    created = datetime.fromisoformat(meta["created_at"])
    return (created if created.tzinfo else created.replace(tzinfo=UTC)).timestamp()


def read_owner(folder: Folder) -> str:
    """Id of the key that the session was started with; "" if there was none."""
    try:
        return folder.owner.read_text(encoding="utf-8")[:200]
    except (OSError, ValueError):
        return ""


def describe(folder: Folder) -> dict[str, Any]:
    """`meta.json`, with additional fields: the type's other name, the pin, the replay's
    progress."""
    meta = read_meta(folder)
    journal = _ended_journal(folder) if meta.get("ended_at") is None else None
    if journal is not None:
        meta = json.loads(timeline.encode_file(fold(journal)[0]))
    meta["type"] = meta.get("app_type")
    meta["pinned"] = folder.pin.exists()
    if (replay := replay_state(folder)) is not None:
        meta["replay"] = replay
    return meta


def replay_state(folder: Folder) -> dict[str, Any] | None:
    """Progress of the replay; None if none was requested."""
    try:
        state = json.loads(folder.replay_state.read_bytes())
    except (OSError, ValueError):
        return None
    return state if isinstance(state, dict) else None


def read_recording(folder: Folder) -> RecordingJson | None:
    """`recording.json` with the names of rendered and uploaded files; None while the session runs.

    Raises:
        BrokenRecording: it does not have the format of a recording.
    """
    try:
        recording = _recording.decode(folder.recording.read_bytes())
    except FileNotFoundError:
        journal = _ended_journal(folder)
        if journal is None:
            return None
        _, recording = fold(journal)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BrokenRecording(f"recording.json cannot be read: {error}") from error
    if folder.replay_wav.exists():
        recording.merged_replay = folder.replay_wav.name
    if folder.replay_mp4.exists():
        recording.merged_replay_video = folder.replay_mp4.name
    # Present even if None, so that pages need not request each kind.
    uploads = (folder.upload(kind) for kind in UPLOAD_KINDS)
    recording.frontend_replay = next((file.name for file in uploads if file.exists()), None)
    return recording


def _ended_journal(folder: Folder) -> JournalEntries | None:
    """The journal of an ended session whose recording is incomplete, because the disk is full or
    its process died. None if there is no readable journal, or the session is running."""
    if folder.is_live():
        return None
    try:
        return lines.read(folder.journal)
    except (OSError, lines.OtherJournal, lines.NoHead):
        return None


# ---- comments and pins ---------------------------------------------------------------------


def read_comment(folder: Folder) -> str:
    try:
        return folder.comment.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return ""


def write_comment(folder: Folder, comment: str) -> None:
    """Set the comment or, with "", remove it.

    Raises:
        TooLarge: longer than `COMMENT_CHARS`.
    """
    if len(comment) > COMMENT_CHARS:
        raise TooLarge("The comment", len(comment), COMMENT_CHARS, "characters")
    if comment:
        # JSON may contain half of a surrogate pair, which UTF-8 cannot encode.
        write_atomically(folder.comment, comment.encode("utf-8", "replace"))
    else:
        folder.comment.unlink(missing_ok=True)


def pin(folder: Folder, is_pinned: bool) -> None:
    """Pin or unpin a recording: pinned ones are kept regardless of their age."""
    if is_pinned:
        folder.pin.touch(mode=0o640)
    else:
        folder.pin.unlink(missing_ok=True)


# ---- uploads -------------------------------------------------------------------------------


def sniff(head: bytes) -> str | None:
    """webm, mp4 or wav, determined by the first bytes of a file; None for other types."""
    if head[:4] == b"RIFF" and head[8:12] == b"WAVE":
        return "wav"
    if head[4:8] == b"ftyp":
        return "mp4"
    # EBML; Matroska starts the same way, and names its type within the first bytes.
    if head[:4] == b"\x1aE\xdf\xa3" and b"webm" in head[:64]:
        return "webm"
    return None


def take_upload(folder: Folder, source: BinaryIO, *, limit_bytes: int = UPLOAD_BYTES) -> Path:
    """Store a browser's recording: its type is determined by its content; it is written to a
    partial file, then renamed.

    Raises:
        WrongMedia: it is none of the three types.
        TooLarge: it is too large; nothing is stored.
    """
    head = source.read(PIECE_BYTES)
    kind = sniff(head)
    if kind is None:
        raise WrongMedia("The file is neither WebM nor MP4 nor WAV.")
    target = folder.upload(kind)
    size = 0
    with replacing(target, f".{os.urandom(4).hex()}") as partial, open(partial, "xb") as file:
        piece = head
        while piece:
            size += len(piece)
            if size > limit_bytes:
                raise TooLarge("The upload", size, limit_bytes)
            file.write(piece)
            piece = source.read(PIECE_BYTES)
    return target


# ---- packing -------------------------------------------------------------------------------


class _Outlet(io.RawIOBase):
    """File object that passes the output of `zipfile` to a stream."""

    def __init__(self) -> None:
        self._waiting = bytearray()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._waiting += data
        return len(data)

    def take(self) -> bytes:
        taken = bytes(self._waiting)
        self._waiting.clear()
        return taken


def zip_pieces(folder: Folder, *, shown_id: str | None = None) -> Iterator[bytes]:
    """The folder as a ZIP file, in pieces; only one piece is in memory at a time.

    Args:
        shown_id: replaces the recording's own id, which a share link must not reveal.
    """
    outlet = _Outlet()
    name = shown_id[:24] if shown_id else folder.recording_id
    with zipfile.ZipFile(outlet, "w", zipfile.ZIP_STORED) as packed:
        for path in folder.files():
            if path.name.startswith("."):
                continue
            inner = zipfile.ZipInfo.from_file(path, f"{name}/{path.relative_to(folder.path)}")
            is_text = path.suffix in PACKED_AS_TEXT
            inner.compress_type = zipfile.ZIP_DEFLATED if is_text else zipfile.ZIP_STORED
            with open_plain(path) as source, packed.open(inner, "w") as target:
                if is_text and shown_id:
                    target.write(hide_ids(source.read(), folder, shown_id))
                while piece := source.read(PIECE_BYTES):
                    target.write(piece)
                    yield outlet.take()
            yield outlet.take()
    yield outlet.take()


def hide_ids(data: bytes, folder: Folder, shown_id: str) -> bytes:
    """Replace the ids of a recording and of the one that it continues, which a share link must not
    reveal."""
    head = lines.read_head(folder.journal)
    for hidden in (folder.recording_id, head.continues if head is not None else ""):
        if hidden:
            data = data.replace(hidden.encode(), shown_id.encode())
    return data


def open_plain(path: Path) -> BinaryIO:
    """Open a file that must not be a link.

    Raises:
        OSError: it is a link, or does not exist.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    file = os.fdopen(descriptor, "rb")
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        file.close()
        raise FileNotFoundError(path)
    return file


# ---- deleting ------------------------------------------------------------------------------


def delete(folder: Folder) -> None:
    """Delete a recording.

    Raises:
        StillRecording: its session is running.
    """
    if folder.is_live():
        raise StillRecording
    remove(folder.path)


def first_part(folder: Folder) -> str:
    """Id of the first recording of a recording's session; its own if the session ran at one
    worker."""
    head = lines.read_head(folder.journal)
    return (head and head.continues) or folder.recording_id


def part_ids(folder: Folder) -> list[str]:
    """Ids of the recordings of a recording's session that are here, oldest first."""
    first = folder.path.with_name(first_part(folder))
    found = [Folder(first)] if first.is_dir() else []
    return [part.recording_id for part in (*found, *continuations(Folder(first)))]


def continuations(first: Folder) -> list[Folder]:
    """The later recordings of a session that continued at other workers, oldest first."""
    own = lines.read_head(first.journal)
    if own is not None and own.app_type is Kind.CHAT:
        return []
    stem = _stem(first.recording_id)
    found = []
    for path in first.path.parent.glob(f"*{stem}_*") if stem else ():
        head = lines.read_head(Folder(path).journal) if _stem(path.name) == stem else None
        if head is not None and head.continues == first.recording_id:
            found.append((head.created_s, Folder(path)))
    return [folder for _, folder in sorted(found, key=itemgetter(0))]


def _stem(recording_id: str) -> str:
    """The part of an id that comes from its session: before the random part, without the time."""
    return re.sub(r"^\d{8}_\d{6}_", "", recording_id).rpartition("_")[0]


def delete_session(folder: Folder) -> list[str]:
    """Delete a recording and those of the same session at other workers, whose ids its client does
    not know; returns the ids of those that existed.

    Raises:
        StillRecording: the session is running.
    """
    there = (folder, *continuations(folder))
    parts = [part for part in there if part.path.is_dir() and not part.path.is_symlink()]
    if any(part.is_live() for part in parts):
        raise StillRecording
    gone: list[str] = []
    for part in reversed(parts):
        with suppress(FileNotFoundError):
            remove(part.path)
            gone.insert(0, part.recording_id)
    return gone
