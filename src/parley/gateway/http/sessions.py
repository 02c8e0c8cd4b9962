"""`/api/sessions`: recordings of conversations.

A client that knows a recording's id may read it, comment on it and add a browser's recording: ids
have 96 random bits and are sent only to the session's own client. A share link gives read access
without the id, until it expires. Lists are for admins; deleting needs a token. Source: service.md
5.5, 8.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
from collections.abc import Iterator
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from parley import logs
from parley.errors import ServiceUnavailable, Unauthorized
from parley.gateway.forward_auth import USER_PREFIX
from parley.gateway.http.bodies import (
    JSON,
    RecordingId,
    Success,
    Time,
    Transfers,
    WorkerId,
    file_body,
    filled,
    read_form,
    shown,
)
from parley.gateway.http.openai.kept_responses import owner_of_key
from parley.gateway.http.requester import Requester
from parley.gateway.http.routing import Router
from parley.gateway.http.stopping import is_long
from parley.gateway.recording_access import (
    Found,
    NoRecording,
    RecordingComing,
)
from parley.gateway.runtime import GatewayRuntime
from parley.recording import lines, store
from parley.recording.layout import (
    GB,
    MEDIA_TYPES,
    BadRecordingId,
    Folder,
    RecordingFolders,
    free_bytes,
)
from parley.recording.store import BrokenRecording, StillRecording
from parley.recording.timeline import iso

BODY_BYTES: Final = store.UPLOAD_BYTES + 64 * 1024
"""Maximum size of an upload with its multipart envelope."""

DOWNLOADS_AT_ONCE: Final = 32
DOWNLOADS_EACH: Final = 4
"""Maximum number of ZIP streams, in total and per owner."""

UPLOADS_AT_ONCE: Final = 16
UPLOADS_EACH: Final = 2

log = logs.get(__name__)

ASSET_HEADERS: Final = {
    "cache-control": "private, no-cache",
    # Files come from clients: if opened directly, they must not run scripts here.
    "content-security-policy": "default-src 'none'; media-src 'self'; img-src 'self'; sandbox",
    "cross-origin-resource-policy": "same-origin",
}

META_EXAMPLE: Final = {
    "session_id": "20261120_174312_omni_0123456789abcdef01234567",
    "app_type": "omni_duplex",
    "created_at": "2026-11-20T17:43:12.000+00:00",
    "ended_at": "2026-11-20T17:45:00.000+00:00",
    "duration_s": 108.0,
    "worker_id": "w0",
    "title": "What is in the picture?",
    "config": {"system_prompt": "Be kind."},
    "type": "omni_duplex",
    "pinned": False,
    "replay": {"state": "done", "progress": 1.0},
}

TIMELINE_EXAMPLE: Final = {
    "session_id": "20261120_174312_omni_0123456789abcdef01234567",
    "mode": "duplex",
    "worker_id": "w0",
    "start_ts": 1795196592.0,
    "config": {"system_prompt": "Be kind."},
    "chunks": [
        {
            "index": 0,
            "receive_ts_ms": 1000.0,
            "user_audio": "user_audio/000.wav",
            "user_frame": "user_frames/000.jpg",
            "result": {
                "mode": "SPEAK",
                "text": "Hello!",
                "ai_audio": "ai_audio/turn_0_chunk_000.wav",
                "ai_audio_duration_ms": 1000.0,
                "timing": {"wall_clock_ms": 100.0},
            },
        }
    ],
}


class RunningSession(msgspec.Struct, kw_only=True):
    """A session that is being recorded."""

    session_id: RecordingId
    worker_id: WorkerId
    last_active: Time | None


class RecordingInfo(msgspec.Struct, kw_only=True):
    """A recording in lists; `problem`: what is wrong with its files."""

    session_id: RecordingId
    app_type: Annotated[str, Meta(examples=["omni_duplex"])]
    created_at: Time
    ended_at: Annotated[str | None, Meta(examples=["2026-11-20T17:45:00.000+00:00"])]
    duration_s: Annotated[float | None, Meta(examples=[108.0])]
    title: Annotated[str, Meta(examples=["What is in the picture?"])]
    worker_id: WorkerId
    pinned: bool
    problem: str | None
    key: Annotated[
        str | None,
        Meta(
            description="id of the key or signed-in user that the session was started with",
            examples=["k_0123456789ab"],
        ),
    ] = None


class SessionList(msgspec.Struct, kw_only=True):
    """`sessions` are running; `recordings` is a page of all, newest first."""

    total: Annotated[int, Meta(examples=[1])]
    sessions: list[RunningSession]
    total_recordings: Annotated[int, Meta(examples=[1])]
    recordings: list[RecordingInfo]


class Comment(msgspec.Struct, kw_only=True):
    """At most 2000 characters; "" removes it."""

    comment: Annotated[str, Meta(examples=["The second answer came late."])]


class Commented(msgspec.Struct, kw_only=True):
    """The comment is stored."""

    status: str = "ok"
    len: Annotated[int, Meta(examples=[28])]


class Uploaded(msgspec.Struct, kw_only=True):
    """The file is stored."""

    status: str = "ok"
    path: Annotated[str, Meta(examples=["frontend_replay.webm"])]
    size_bytes: Annotated[int, Meta(examples=[48213])]


class ShareOrder(msgspec.Struct, kw_only=True):
    """Lifetime of the link; null: as long as the recording exists."""

    expires_in_s: Annotated[float, Meta(gt=0, le=3.2e8)] | None = 86_400.0


class ShareLink(msgspec.Struct, kw_only=True):
    """A link that shows one recording."""

    token: Annotated[str, Meta(examples=["sh_…"])]
    path: Annotated[str, Meta(examples=["/s/sh_…"])]
    expires_at: Time | None


class Pin(msgspec.Struct, kw_only=True):
    """`pinned`: True if it is kept regardless of its age."""

    pinned: bool


class Erased(msgspec.Struct, kw_only=True):
    """Numbers of items of a key that were deleted and that remain."""

    recordings: Annotated[int, Meta(examples=[12])]
    responses: Annotated[int, Meta(description="kept responses of `/v1/responses`")]
    running: Annotated[
        int,
        Meta(description="recordings of running sessions, not deleted: try again later"),
    ]
    without_owner: Annotated[
        int,
        Meta(
            description="recordings without a known owner, not deleted: of sessions without a key, "
            "or of versions that did not record the owner"
        ),
    ]


class StillRuns(msgspec.Struct, kw_only=True):
    """The session is still running; there is no timeline yet."""

    status: Literal["recording"]
    session_id: RecordingId


class ReplayState(msgspec.Struct, kw_only=True):
    """Progress of the merged replay."""

    state: Annotated[str, Meta(examples=["running"])]
    progress: Annotated[float, Meta(description="share of 1")]


def routes(runtime: GatewayRuntime) -> Router:
    authenticator, clock = runtime.access.authenticator, runtime.clock
    stores, storage = runtime.stores, runtime.settings.storage
    folders, handover, state = stores.folders, stores.handover, stores.state
    maintenance, recordings = stores.maintenance, stores.recordings
    router = Router(tag="sessions")
    downloads = Transfers("downloads", DOWNLOADS_AT_ONCE, each=DOWNLOADS_EACH)
    uploads = Transfers("uploads", UPLOADS_AT_ONCE, each=UPLOADS_EACH)

    async def find(id_or_token: str, *, to_change: bool = False) -> Found:
        # It may still be on the worker that recorded it.
        if await handover.bring(id_or_token):
            raise RecordingComing
        return recordings.find(id_or_token, to_change=to_change)

    @router.get("/api/sessions", role="admin")
    async def sessions(
        limit: Annotated[int, Meta(ge=1, le=1000)] = 100,
        offset: Annotated[int, Meta(ge=0, le=10_000_000)] = 0,
        key: Annotated[str, Meta(min_length=1, max_length=200)] | None = None,
    ) -> SessionList:
        """Running recordings, and a page of all recordings, or of those of one key or signed-in
        user."""
        try:
            await maintenance.refresh_index()
        except (OSError, sqlite3.Error) as error:
            # Used to decide what to delete on a full disk.
            log.error("recordings_not_indexed", why=str(error))
        total, rows = await state.recordings(limit=limit, offset=offset, key_id=key)
        _, unsettled = await state.unsettled()
        live = await asyncio.to_thread(_running, folders, unsettled)
        return SessionList(
            total=len(live),
            sessions=live,
            total_recordings=total,
            recordings=[
                filled(RecordingInfo, row, session_id=row.id, key=row.key_id or None)
                for row in rows
            ],
        )

    @router.delete("/api/sessions", role="admin", errors=(404,))
    async def erase(key: Annotated[str, Meta(min_length=1, max_length=200)]) -> Erased:
        """Delete all recordings and stored responses of a key or signed-in user, including pinned
        ones. Revoke the key first, so that no session starts meanwhile."""
        await handover.erase(key, maintenance.clock.time())
        for _ in range(2):
            # The second time with those that arrived before they would have been refused.
            await maintenance.refresh_index()
            _, rows = await state.recordings(limit=-1, key_id=key)
            await handover.refuse_rest([row.id for row in rows])
        gone, running = await asyncio.to_thread(_erase, folders, [row.id for row in rows])
        await state.forget(gone)
        responses = await state.forget_responses_by(owner_of_key(key))
        is_known = key.startswith(USER_PREFIX) or key in {one.id for one in await state.keys()}
        if not (rows or responses or is_known):
            raise HTTPException(404, f"There is no key {key!r}. Give its id, or u_NAME for a user.")
        without_owner, _ = await state.recordings(limit=0, key_id="")
        return Erased(
            recordings=len(gone),
            responses=responses,
            running=running,
            without_owner=without_owner,
        )

    @router.get(
        "/api/sessions/{session_id}",
        answer=shown(META_EXAMPLE),
        errors=(403, 404),
    )
    async def session(session_id: str) -> Response:
        """A recording's `meta.json`, its type, and the progress of its replay."""
        found = await find(session_id)
        try:
            meta = await asyncio.to_thread(store.describe, found.folder)
        except BrokenRecording:
            raise NoRecording from None
        # A share link shows one recording and no other ids.
        parts = [] if found.shown_id else await asyncio.to_thread(store.part_ids, found.folder)
        if len(parts) > 1:
            meta["parts"] = parts
        return Response(await asyncio.to_thread(found.encoded, meta), media_type=JSON)

    @router.get(
        "/api/sessions/{session_id}/recording",
        answer=shown(TIMELINE_EXAMPLE),
        others={
            202: {
                "description": "The session still runs.",
                "content": {JSON: {"schema": StillRuns}},
            }
        },
        errors=(403, 404),
    )
    async def recording(session_id: str) -> Response:
        """The timeline: units for duplex, turns for the others."""
        found = await find(session_id)
        try:
            timeline = await asyncio.to_thread(store.read_recording, found.folder)
        except BrokenRecording:
            raise NoRecording from None
        if timeline is None:
            return JSONResponse({"status": "recording", "session_id": found.name}, 202)
        return Response(await asyncio.to_thread(found.encoded, timeline), media_type=JSON)

    @router.add("HEAD", "/api/sessions/{session_id}/assets/{path:path}", is_documented=False)
    @router.get(
        "/api/sessions/{session_id}/assets/{path:path}",
        answer={"content": {"audio/wav": {}, "image/jpeg": {}, "video/mp4": {}}},
        others={
            206: {"description": "The part that `Range` asks for."},
            416: {"description": "There is no such part."},
        },
        errors=(400, 403, 404),
    )
    async def asset(session_id: str, path: str) -> Response:
        """An audio file, an image or a video of a recording."""
        found = await find(session_id)
        try:
            file = await asyncio.to_thread(found.folder.asset, path)
        except FileNotFoundError:
            raise HTTPException(404, "There is no such file.") from None
        return _Asset(file, media_type=MEDIA_TYPES[file.suffix], headers=ASSET_HEADERS)

    @router.get(
        "/api/sessions/{session_id}/download",
        answer={"content": {"application/zip": {}}},
        errors=(403, 404, 503),
    )
    async def download(session_id: str, who: Requester) -> Response:
        """The files of a recording as one ZIP file, streamed."""
        found = await find(session_id)
        name = found.folder.recording_id if found.shown_id is None else "recording"
        return _Download(
            downloads,
            who.owner,
            store.zip_pieces(found.folder, shown_id=found.shown_id),
            media_type="application/zip",
            headers={
                "content-disposition": f'attachment; filename="{name}.zip"',
                "cache-control": "private, no-store",
            },
        )

    @router.post(
        "/api/sessions/{session_id}/upload-recording",
        errors=(403, 404, 422, 503, 507),
        body_bytes=BODY_BYTES,
        spools=True,
        body=file_body("WebM, MP4 or WAV; at most 200 MB"),
    )
    async def upload(session_id: str, request: Request, who: Requester) -> Uploaded:
        """Add a browser's recording. Its type is determined by the content, not the name."""
        # The body is received only now that it can be used, and only a few at a time, because it
        # needs a temporary file.
        found = await find(session_id, to_change=True)
        limit = storage.min_free_gb * GB
        if await asyncio.to_thread(free_bytes, found.folder.path) < limit:
            raise HTTPException(507, "The server's disk has too little free space for uploads.")
        async with (
            uploads.one(who.owner),
            read_form(request, fields_most=8) as form,
        ):
            file = form.get("file")
            if not isinstance(file, UploadFile):
                raise HTTPException(422, "The form has no file in its field 'file'.")
            with _unless_deleted(found):
                kept = await asyncio.to_thread(store.take_upload, found.folder, file.file)
                return Uploaded(path=kept.name, size_bytes=kept.stat().st_size)

    @router.post("/api/sessions/{session_id}/comment", errors=(403, 404, 503, 507))
    async def comment(session_id: str, comment: Comment) -> Commented:
        """Set the comment, or remove it with an empty one."""
        found = await find(session_id, to_change=True)
        with _unless_deleted(found):
            await asyncio.to_thread(store.write_comment, found.folder, comment.comment)
        return Commented(len=len(comment.comment))

    @router.get("/api/sessions/{session_id}/comment", errors=(403, 404))
    async def read_comment(session_id: str) -> Comment:
        """The comment; "" if there is none."""
        found = await find(session_id)
        return Comment(comment=await asyncio.to_thread(store.read_comment, found.folder))

    @router.post("/api/sessions/{session_id}/share", errors=(403, 404))
    async def share(session_id: str, order: ShareOrder) -> ShareLink:
        """Create a link to view the recording, which can expire and does not contain its id."""
        found = await find(session_id, to_change=True)
        token = authenticator.share_token(found.folder.recording_id, order.expires_in_s)
        until = None if order.expires_in_s is None else clock.time() + order.expires_in_s
        return ShareLink(
            token=token, path=f"/s/{token}", expires_at=None if until is None else iso(until)
        )

    @router.post("/api/sessions/{session_id}/replay", status=202, errors=(403, 404, 409, 503))
    async def replay(session_id: str) -> ReplayState:
        """Render the merged replay (again)."""
        found = await find(session_id, to_change=True)
        if await asyncio.to_thread(found.folder.is_live):
            raise StillRecording
        if not storage.replays:
            raise HTTPException(403, "This server renders no replays (storage.replays).")
        if not await asyncio.to_thread(recordings.make_replay, found.folder):
            raise ServiceUnavailable("No replay can be rendered now; try again later.")
        return ReplayState(state="queued", progress=0.0)

    @router.put("/api/sessions/{session_id}/pin", role="admin", errors=(404,))
    async def pin(session_id: str, order: Pin) -> Pin:
        """Pin or unpin a recording: pinned ones are kept regardless of their age."""
        found = await find(session_id, to_change=True)
        with _unless_deleted(found):
            await asyncio.to_thread(store.pin, found.folder, order.pinned)
        await state.forget([found.folder.recording_id])
        return order

    @router.delete("/api/sessions/{session_id}", errors=(403, 404, 409))
    async def delete(session_id: str, request: Request, who: Requester) -> Success:
        """Delete a recording. Needs its key, an admin, or an id that is too long to guess: only the
        session's client has it, and share links have other ids."""
        if who.is_anonymous and not (who.is_admin or is_long(session_id)):
            raise Unauthorized
        request.state.is_audited = who.is_admin
        try:
            folder = (await find(session_id, to_change=True)).folder
        except NoRecording:
            # Its first part may have been lost with its host.
            try:
                folder = folders.folder(session_id)
            except BadRecordingId:
                raise NoRecording from None
        gone = await handover.delete(folder)
        if not gone:
            raise NoRecording
        await state.forget(gone)
        await state.forget_responses_of(gone)
        return Success()

    return router


@contextlib.contextmanager
def _unless_deleted(found: Found) -> Iterator[None]:
    """Raises NoRecording if a recording is deleted during the block."""
    try:
        yield
    except FileNotFoundError:
        if found.folder.path.exists():
            raise
        raise NoRecording from None


def _erase(folders: RecordingFolders, ids: list[str]) -> tuple[list[str], int]:
    """Delete recordings; returns the deleted ones, and the number of those that are still
    running.

    Raises:
        OSError: some cannot be deleted; all others are.
    """
    gone, running = [], 0
    failure: OSError | None = None
    for one in ids:
        folder = folders.find(one)
        try:
            if folder is not None:
                store.delete(folder)
        except StillRecording:
            running += 1
        except OSError as error:
            failure = error
        else:
            gone.append(one)
    if failure is not None:
        raise failure
    return gone, running


def _running(folders: RecordingFolders, ids: set[str]) -> list[RunningSession]:
    live = []
    for one in sorted(ids):
        folder = folders.find(one)
        if folder is None or not folder.is_live():
            continue
        head = lines.read_head(folder.journal)
        live.append(
            RunningSession(
                session_id=one,
                worker_id="" if head is None else head.worker_id,
                last_active=_active(folder),
            )
        )
    return live


def _active(folder: Folder) -> str | None:
    try:
        return iso(folder.journal.stat().st_mtime)
    except OSError:
        return None


class _Asset(FileResponse):
    """A file of a recording, which may be deleted before it is read."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        except RuntimeError:
            if await asyncio.to_thread(os.path.exists, self.path):
                raise
            raise NoRecording from None


class _Download(StreamingResponse):
    """A stream that counts as its client's download until it has ended in any way."""

    def __init__(
        self, downloads: Transfers, owner: str, content: Iterator[bytes], **more: Any
    ) -> None:
        super().__init__(content, **more)
        self._downloads = downloads
        self._owner = owner

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._downloads.one(self._owner):
            await super().__call__(scope, receive, send)
