"""Decides which recordings a caller may see: by id, which cannot be guessed, or by share link."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from parley.errors import ParleyError
from parley.gateway.authenticator import SHARE_PREFIX, Authenticator
from parley.recording.layout import Folder, RecordingFolders
from parley.recording.render_queue import RenderQueue
from parley.recording.store import hide_ids
from parley.settings import StorageSettings


class NoRecording(ParleyError):
    code = "not_found"
    http_status = 404
    is_client_error = True
    sentence = "There is no such recording."


class RecordingComing(ParleyError):
    """A worker has the recording and will hand it over when it is complete."""

    code = "recording_coming"
    http_status = 503
    retry_after_s = 2
    is_client_error = True
    sentence = "This recording is being handed over; try again in a moment."


class BadLink(ParleyError):
    """A share link that has expired, was made by another server, or was tampered with."""

    code = "invalid_share_link"
    http_status = 403
    is_client_error = True
    sentence = "This share link is invalid or has expired."


class LookingOnly(ParleyError):
    """A share link gives read access only."""

    code = "read_only"
    http_status = 403
    is_client_error = True
    sentence = "A share link gives read access only."


@dataclass(frozen=True, slots=True)
class Found:
    """An existing recording. `shown_id` replaces an id that must not be shown."""

    folder: Folder
    shown_id: str | None = None

    @property
    def name(self) -> str:
        """The id that responses contain."""
        return self.shown_id or self.folder.recording_id

    def encoded(self, value: Any) -> bytes:
        """The value as JSON, without ids that must not be shown. Reads the disk."""
        data = msgspec.json.encode(value)
        return hide_ids(data, self.folder, self.shown_id) if self.shown_id else data


@dataclass(eq=False, repr=False)
class RecordingAccess:
    folders: RecordingFolders
    authenticator: Authenticator
    storage: StorageSettings

    def __post_init__(self) -> None:
        self._maker = RenderQueue()

    def find(self, id_or_token: str, *, to_change: bool = False) -> Found:
        """A recording by its id or a share token.

        Raises:
            BadLink, LookingOnly, NoRecording.
        """
        shown_id: str | None = None
        recording_id: str | None = id_or_token
        if id_or_token.startswith(SHARE_PREFIX):
            recording_id, shown_id = self.authenticator.shared(id_or_token), id_or_token
            if recording_id is None:
                raise BadLink
            if to_change:
                raise LookingOnly
        folder = self.folders.find(recording_id or "")
        if folder is None:
            raise NoRecording
        return Found(folder, shown_id)

    def exists(self, id_or_token: str) -> bool:
        """True if there is a page for it; an invalid link has a page too, which explains the
        error."""
        return id_or_token.startswith(SHARE_PREFIX) or self.folders.find(id_or_token) is not None

    def make_replay(self, folder: Folder) -> bool:
        """Render the replay in a separate process; False if too many are waiting."""
        return self.storage.replays and self._maker.put(folder)

    def close(self) -> None:
        self._maker.close()
