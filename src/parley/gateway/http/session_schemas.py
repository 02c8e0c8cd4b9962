"""Bodies and answers of `/api/sessions`, with their examples."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from parley.gateway.http.bodies import RecordingId, Time, WorkerId

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
    """A recording, as lists show it; `problem`: what is wrong with its files."""

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
    """`sessions` run now; `recordings` is a page of all, newest first."""

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
    """`pinned`: it is kept whatever its age."""

    pinned: bool


class Deleted(msgspec.Struct, kw_only=True):
    """The recording is deleted."""

    success: bool = True


class Erased(msgspec.Struct, kw_only=True):
    """Number of items of a key that were deleted, and of those that were left."""

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
    """The session still runs; there is no timeline yet."""

    status: Literal["recording"]
    session_id: RecordingId


class ReplayState(msgspec.Struct, kw_only=True):
    """Progress of the merged replay."""

    state: Annotated[str, Meta(examples=["running"])]
    progress: Annotated[float, Meta(description="share of 1")]
