"""Bodies and answers of `/api/sessions`, with their examples."""

from __future__ import annotations

from typing import Final, Literal

from pydantic import BaseModel, Field

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


class RunningSession(BaseModel):
    """A session that is being recorded."""

    session_id: str = Field(examples=["20261120_174312_omni_0123456789abcdef01234567"])
    worker_id: str = Field(examples=["w0"])
    last_active: str | None = Field(examples=["2026-11-20T17:43:12.000+00:00"])


class RecordingInfo(BaseModel):
    """A recording, as lists show it; `problem`: what is wrong with its files."""

    session_id: str = Field(examples=["20261120_174312_omni_0123456789abcdef01234567"])
    app_type: str = Field(examples=["omni_duplex"])
    created_at: str = Field(examples=["2026-11-20T17:43:12.000+00:00"])
    ended_at: str | None = Field(examples=["2026-11-20T17:45:00.000+00:00"])
    duration_s: float | None = Field(examples=[108.0])
    title: str = Field(examples=["What is in the picture?"])
    worker_id: str = Field(examples=["w0"])
    pinned: bool
    problem: str | None
    key: str | None = Field(
        None,
        description="id of the key, or of the signed-in user, that the session was started with",
        examples=["k_0123456789ab"],
    )


class SessionList(BaseModel):
    """`sessions` run now; `recordings` is a page of all, newest first."""

    total: int = Field(examples=[1])
    sessions: list[RunningSession]
    total_recordings: int = Field(examples=[1])
    recordings: list[RecordingInfo]


class Comment(BaseModel):
    """At most 2000 characters; "" removes it."""

    comment: str = Field(examples=["The second answer came late."])


class Commented(BaseModel):
    """The comment is stored."""

    status: str = "ok"
    len: int = Field(examples=[28])


class Uploaded(BaseModel):
    """The file is stored."""

    status: str = "ok"
    path: str = Field(examples=["frontend_replay.webm"])
    size_bytes: int = Field(examples=[48213])


class ShareOrder(BaseModel):
    """How long the link works; null: as long as the recording exists."""

    expires_in_s: float | None = Field(86_400.0, gt=0, le=3.2e8, allow_inf_nan=False)


class ShareLink(BaseModel):
    """A link that shows one recording."""

    token: str = Field(examples=["sh_…"])
    path: str = Field(examples=["/s/sh_…"])
    expires_at: str | None = Field(examples=["2026-11-20T17:43:12.000+00:00"])


class Pin(BaseModel):
    """`pinned`: it is kept whatever its age."""

    pinned: bool


class Deleted(BaseModel):
    """The recording is deleted."""

    success: bool = True


class Erased(BaseModel):
    """Number of items of a key that were deleted, and of those that were left."""

    recordings: int = Field(examples=[12])
    responses: int = Field(description="kept responses of `/v1/responses`", examples=[3])
    running: int = Field(
        description="recordings of running sessions, not deleted: try again later", examples=[0]
    )
    without_owner: int = Field(
        description="recordings without a known owner, not deleted: of sessions without a key, or "
        "of versions that did not record the owner",
        examples=[0],
    )


class StillRuns(BaseModel):
    """The session still runs; there is no timeline yet."""

    status: Literal["recording"]
    session_id: str = Field(examples=["20261120_174312_omni_0123456789abcdef01234567"])


class ReplayState(BaseModel):
    """Progress of the merged replay."""

    state: str = Field(examples=["running"])
    progress: float = Field(examples=[0.4], description="share of 1")
