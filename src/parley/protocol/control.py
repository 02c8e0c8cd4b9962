"""Gateway ↔ worker: the control socket, and the headers of a session socket.

A worker dials `ws(s)://gateway/internal/worker` with the shared secret in the header
`SECRET_HEADER` and says `Hello` once its model is warm. From then on it sends `Beat` every
`BEAT_EVERY_S`; silence for `SILENCE_LIMIT_S` means gone. The gateway learns everything about
sessions here, never from the messages it relays.

For each lease the gateway opens one socket to the worker, `{Hello.url}/session/{dialect}`, with the
`*_HEADER`s below, and relays frames in both directions as they are, close code and reason included.
"""

from __future__ import annotations

from typing import Literal

import msgspec

BEAT_EVERY_S = 1.0
SILENCE_LIMIT_S = 5.0

CONTROL_PATH = "/internal/worker"
SESSION_PATH = "/session/{dialect}"

SECRET_HEADER = "x-parley-secret"
LEASE_HEADER = "x-parley-lease"
SESSION_HEADER = "x-parley-session"
TASK_HEADER = "x-parley-task"
"""Task type, `TaskType` below."""
ACCEPTED_HEADER = "x-parley-accepted"
"""Unix seconds (float) at which the gateway accepted the client: total limits count from here."""
QUEUE_WAIT_HEADER = "x-parley-queue-wait-ms"

TaskType = Literal["chat", "half_duplex_audio", "audio_duplex", "omni_duplex"]

Phase = Literal["preparing", "active", "generating", "paused", "cleanup", "ended"]

WorkerState = Literal[
    "loading",
    "idle",
    "busy_chat",
    "busy_half_duplex",
    "duplex_active",
    "duplex_paused",
    "cleanup",
    "error",
]
"""One word for the whole worker, as published; with several slots the busiest session's state.
Source: service.md 3.1. The gateway adds `offline`."""


class Hello(msgspec.Struct, tag="hello", frozen=True):
    """First message of a worker. A new hello with a known `worker_id` replaces the old
    connection."""

    worker_id: str
    url: str
    slots: int
    model: str
    device: str
    version: str
    pid: int
    index: int = 0
    modes: tuple[str, ...] = ("chat", "half_duplex", "duplex")
    details: dict[str, str] = {}


class SessionPhase(msgspec.Struct, tag="phase", frozen=True):
    """A session changed phase. `ended` is sent after cleanup, when the slot is free again."""

    lease_id: str
    session_id: str
    task: TaskType
    phase: Phase
    was_ready: bool = False
    """Whether the session ever reached its ready state (only then its duration feeds the
    estimate)."""
    pause_left_s: float | None = None


class Durations(msgspec.Struct, frozen=True):
    """How many fell into each bucket of `STAGE_BUCKETS_MS` (plus overflow), and their sum."""

    counts: tuple[int, ...]
    sum_ms: float


class Beat(msgspec.Struct, tag="beat", frozen=True):
    """I am alive. `free_slots` counts slots that can take a session right now (none in cleanup)."""

    state: WorkerState
    free_slots: int
    total_requests: int
    avg_inference_time_ms: float
    kv_cache_length: int
    stages: dict[str, Durations] = {}
    """Since the last beat: what each stage took per unit."""
    answers: dict[TaskType, Durations] = {}
    """Since the last beat: from a unit to its result, or from a request to its first piece."""
    errors: dict[str, int] = {}
    """Since the last beat: errors by code."""


STAGE_BUCKETS_MS = (1, 2, 5, 10, 20, 50, 100, 200, 300, 500, 750, 1000, 2000, 5000)


class Stopped(msgspec.Struct, tag="stopped", frozen=True):
    """Answer to `StopTurn`: whether such a session was generating or alive here."""

    request_id: str
    found: bool


class Goodbye(msgspec.Struct, tag="goodbye", frozen=True):
    """The worker leaves on purpose."""

    reason: str


class Welcome(msgspec.Struct, tag="welcome", frozen=True):
    """The gateway knows the worker now and may lease its slots."""

    gateway_version: str


class StopTurn(msgspec.Struct, tag="stop_turn", frozen=True):
    """Stop the generation of one session; with scope `session` end the session too."""

    request_id: str
    session_id: str
    scope: Literal["turn", "session"] = "session"


class EndSession(msgspec.Struct, tag="end_session", frozen=True):
    """End one session in its dialect's own words, e.g. on shutdown."""

    session_id: str
    reason: Literal["server_shutdown", "cancelled"] = "server_shutdown"


class Leave(msgspec.Struct, tag="leave", frozen=True):
    """Finish: refuse new sessions, end the running ones within `grace_s`, exit."""

    grace_s: float = 20.0


FromWorker = Hello | SessionPhase | Beat | Stopped | Goodbye
ToWorker = Welcome | StopTurn | EndSession | Leave
