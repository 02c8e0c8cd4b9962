"""Gateway ↔ worker: the control socket, and the headers of a session socket.

A worker dials `ws(s)://gateway/internal/worker` with the shared secret in the header
`SECRET_HEADER` and sends `Hello` once its model is warm. From then on it sends `Heartbeat` every
`BEAT_EVERY_S`; after `SILENCE_LIMIT_S` of silence it counts as lost. The gateway learns everything
about sessions here, never from the messages it relays.

For each lease the gateway opens one socket to the worker, `{Hello.url}/session/{dialect}`, with the
`*_HEADER`s below, and relays frames in both directions unchanged, including close code and reason.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import Any, Final, Literal

import msgspec

from parley.protocol.kinds import Kind, Mode, Phase, WorkerState
from parley.protocol.resume import RefusalReason
from parley.protocol.values import InterruptionState, SilenceReason

BEAT_EVERY_S = 1.0
SILENCE_LIMIT_S = 5.0

CONTROL_PATH = "/internal/worker"
SESSION_PATH = "/session/{dialect}"
RECORDINGS_PATH = "/recordings"
"""Path at a worker: the list of finished recordings; below it, each as a tar file."""
INCOMPLETE_STATUS = 409
"""HTTP status of a worker for a recording that is not complete yet."""
VOICE_PATH = "/internal/voice"
"""Path at the gateway: a registered voice as WAV, for a worker with its own data folder."""
STORE_ID_FILE = "store_id"
"""File in a gateway's data folder; see `Welcome.store_id`."""

SECRET_HEADER = "x-parley-secret"
STANDBY_HEADER = "x-parley-standby"
"""Header in every response of a standby gateway."""
LEASE_HEADER = "x-parley-lease"
SESSION_HEADER = "x-parley-session"
KIND_HEADER = "x-parley-task"
"""Header: a `Kind`."""
QUEUE_WAIT_HEADER = "x-parley-queue-wait-ms"
"""Header: a duration, not a time, because two hosts may have different clocks. Total limits may
include it."""
CALLER_HEADER = "x-parley-caller"
"""Header: the client as an owner in the voice library: `admin`, `key:ID`, or empty."""
EXTENSIONS_HEADER = "x-parley-extensions"
"""Header: `true` if the client requested extensions to the published protocol."""

PARAMETERS_HEADER = "x-parley-parameters"
"""Header: JSON object of strings: the query parameters that the dialect needs at the worker."""

NOTE_HEADER = "x-parley-note"
"""Header: data about a session that the worker returns to a gateway that does not know it: JSON of
a `LeaseNote`, returned unchanged. The worker reads the address, to share its decoders among
clients, and the key's id, which it stores with the recording."""

RESUME_HEADER = "x-parley-resume"
"""Header of a session socket that resumes the session of its lease: the token's SHA-256 in
hexadecimal, a space, and the number of the last received message."""

REBUILD_HEADER = "x-parley-rebuild"
"""Header of a session socket that asks a worker to continue a session of a lost one: the id of its
log. The worker answers with a `RebuildResult` and waits for the client's own connection."""

FOLLOW_HEADER = "x-parley-follow"
"""Additional header if the other worker still runs the session: the new one follows the log, sends
`RebuildReady` when it has nearly caught up, and takes over the log when it receives `TakeOver`."""

WHY_HEADER = "x-parley-why"
"""Header of a worker's refusal: the reason, as a sentence."""

RESUME_STATUSES: Final[dict[RefusalReason, int]] = {
    "unknown": 404,
    "expired": 410,
    "replaced": 409,
    "gap": 412,
    "lost": 424,
}
"""HTTP status of that refusal."""

LEAVING_CODES: Final = frozenset({1000, 1001, 1005})
"""Close codes of a client that leaves on purpose: it has finished, its page was closed, or no code.
Source: RFC 6455, 7.4.1."""

CUT_CODE: Final = 4006
"""Close code with which a gateway closes a session socket if its client was cut off, and a worker
if its client does not read or must reconnect: the session continues without a client."""

GATEWAY_LEFT_CODE: Final = 4007
"""Close code with which a gateway closes a session socket that it leaves to the next gateway."""

UNKNOWN_DIALECT_STATUS = 501
"""HTTP status of a worker for a session socket whose dialect is not installed there."""

BUSY_STATUS = 503
"""HTTP status of a worker for a session socket if it has no free slot."""

Ability = Literal[
    "speech", "reading", "transcription", "tools", "tool_choice", "json", "penalties", "logprobs"
]
"""Optional abilities of a model: speak its answers, speak a given text, transcribe, call functions,
be forced to call one, answer in JSON of a schema, support presence and frequency penalties, report
the probabilities of its tokens."""

RecordingState = Literal["off", "on", "no_room", "failing"]
"""State of a worker's recording: `no_room` if its disk is too full, `failing` if the last entry
could not be written."""


class LeaseNote(msgspec.Struct, frozen=True):
    """The gateway's data about a lease that its worker does not have otherwise."""

    address: str = ""
    key_id: str | None = None
    granted_time: float = 0.0
    ran_s: float = 0.0
    """Time for which the session ran at other workers before."""


class ResumeState(msgspec.Struct, frozen=True):
    """State of a session whose client may continue over another connection.

    Args:
        left_s: remaining time for which the worker waits for the client; None: it is connected.
        note: the lease's `NOTE_HEADER`.
    """

    dialect: str
    left_s: float | None = None
    note: str = ""
    log_id: str = ""
    """Id of the log from which another worker can continue the session; "": there is none."""
    ran_s: float | None = None
    """Time for which the session has run at this worker, by a monotonic clock; None from a worker
    of an earlier version."""


class SessionPhase(msgspec.Struct, tag="phase", frozen=True):
    """A session changed its phase, or its client left or returned. `ended` is sent after cleanup,
    when the slot is free again."""

    lease_id: str
    session_id: str
    kind: Kind
    phase: Phase
    was_ready: bool = False
    """True if the session ever was ready (only then its duration is used for estimates)."""
    pause_left_s: float | None = None
    tokens: int = 0
    """Number of tokens generated so far, text and speech."""
    resume: ResumeState | None = None
    """None: its client has not requested resuming."""


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
    modes: tuple[Mode, ...] = ("chat", "half_duplex", "duplex")
    details: dict[str, str] = {}
    abilities: tuple[Ability, ...] = ()
    context_tokens: int = 0
    transcription_prompt: str = ""
    """The prompt with which the model transcribes; "": it does so by itself or not at all."""
    certificate: str = ""
    """PEM of the certificate of the worker's session sockets, if it made its own: the only one that
    the gateway accepts from it."""
    sessions: tuple[SessionPhase, ...] = ()
    """Its sessions, for a gateway that was restarted."""
    session_logs: str = ""
    """Name of the place where it logs sessions; workers with the same name see the same logs."""
    build: str = ""
    """See `installation.build_id`; "" from a worker of an earlier version."""
    log_version: int = 0
    """See `session_log.contract.LOG_VERSION`; 0 from a worker of an earlier version."""

    @property
    def fingerprint(self) -> str:
        """Identity that another worker must have to continue a session of this one."""
        # As workers of earlier versions wrote it into their logs.
        version = f", log version {self.log_version}" if self.log_version else ""
        logs = f", logs in {self.session_logs}" if self.session_logs else ""
        return f"parley {self.version}, {self.model}, {self.context_tokens} tokens{version}{logs}"


class TakeOver(msgspec.Struct, frozen=True, tag="take_over"):
    """Sent to a worker that follows a session: the old worker has stopped."""


class RebuildReady(msgspec.Struct, frozen=True, tag="rebuild_ready"):
    """A worker that follows a session has replayed nearly all of its log."""


class RebuildResult(msgspec.Struct, frozen=True, tag="rebuild_result"):
    """Result of continuing a session. `problem`: why it failed; "" on success."""

    problem: str = ""


STAGE_BUCKETS_MS = (1, 2, 5, 10, 20, 50, 100, 200, 300, 500, 750, 1000, 2000, 5000)


class Durations(msgspec.Struct):
    """Counts per bucket of `STAGE_BUCKETS_MS` (plus overflow), and the sum of the values."""

    counts: list[int] = msgspec.field(default_factory=lambda: [0] * (len(STAGE_BUCKETS_MS) + 1))
    sum_ms: float = 0.0

    def count(self, durations_ms: Iterable[float]) -> None:
        for duration_ms in durations_ms:
            self.counts[bisect_left(STAGE_BUCKETS_MS, duration_ms)] += 1
            self.sum_ms += duration_ms

    def add(self, other: Durations) -> None:
        """Add the durations of a worker, whose buckets may be others."""
        for index, count in enumerate(other.counts[: len(self.counts)]):
            self.counts[index] += count
        self.sum_ms += other.sum_ms


class DeviceMemory(msgspec.Struct, frozen=True):
    """Memory of a worker's whole GPU, including other processes."""

    used_bytes: int
    total_bytes: int


class ContextPages(msgspec.Struct, frozen=True):
    """Pages of the pool that a worker's contexts share."""

    used: int
    free: int


class Heartbeat(msgspec.Struct, tag="heartbeat", frozen=True):
    """Sign of life. `free_slots` counts slots that can take a session now (not those in
    cleanup)."""

    state: WorkerState
    free_slots: int
    total_requests: int
    avg_inference_time_ms: float
    kv_cache_length: int
    stages: dict[str, Durations] = {}
    """Since the last heartbeat: duration of each stage per unit."""
    answers: dict[Kind, Durations] = {}
    """Since the last heartbeat: time from a unit to its result, or from a request to its first
    piece."""
    errors: dict[str, int] = {}
    """Since the last heartbeat: number of errors by code."""
    interruptions: dict[InterruptionState, int] = {}
    """Since the last heartbeat: number of times that users spoke during an answer, by result."""
    silences: dict[SilenceReason, int] = {}
    """Since the last heartbeat: number of times that clients were sent the reason of a silence."""
    recording: RecordingState = "on"
    recording_lost: int = 0
    """Since the last heartbeat: number of recording entries that could not be written."""
    tokens: dict[str, int] = {}
    """Tokens generated so far by running sessions, by lease; sessions without any are omitted."""
    device_memory: DeviceMemory | None = None
    """None on a CPU."""
    is_leaving: bool = False
    """The worker is shutting down: it gets no new sessions, and its sessions are moved."""
    fast_paths: dict[str, str] = {}
    """The state of every fast part of the model: `fast`, `plain: why`, `refused: why`."""
    problem: str = ""
    """Why servers behind the model cannot be used; "" if there are none, or they can."""
    context_pages: ContextPages | None = None
    """None if every context has its own memory."""
    recordings_waiting: int | None = None
    """Number of recordings on the worker's disk that the gateway should fetch; None if both share a
    data folder."""
    sessions_without_log: int = 0
    """Number of sessions whose log cannot be written."""


class StopResult(msgspec.Struct, tag="stop_result", frozen=True):
    """Answer to a `StopTurn` or `EndSession` with a request id: True if something was stopped."""

    request_id: str
    stopped: bool


class Goodbye(msgspec.Struct, tag="goodbye", frozen=True):
    """The worker leaves on purpose."""

    reason: str


class Welcome(msgspec.Struct, tag="welcome", frozen=True):
    """The gateway has registered the worker and may lease its slots."""

    gateway_version: str
    store_id: str = ""
    """Name of the gateway's data folder; a worker that finds the same name in its own folder shares
    it."""


class StopTurn(msgspec.Struct, tag="stop_turn", frozen=True):
    """Stop the answer in progress; the session continues."""

    request_id: str
    lease_id: str


class EndSession(msgspec.Struct, tag="end_session", frozen=True):
    """End one session with the messages of its dialect, because a client or the server stops it; or
    without a message, because another worker continues it. Answered if there is a request id."""

    lease_id: str
    reason: Literal["stopped", "server_shutdown", "moved"] = "server_shutdown"
    request_id: str = ""


class HandOver(msgspec.Struct, tag="hand_over", frozen=True):
    """Bring the log of a session up to date between two turns or units, then stop: another worker
    will continue it. The answer reports if that was possible."""

    request_id: str
    lease_id: str


class MessageArrives(msgspec.Struct, tag="message_arrives", frozen=True):
    """A message of a session's client is arriving slowly. Sent once a second until it is
    complete."""

    lease_id: str


class AnnounceEnd(msgspec.Struct, tag="announce_end", frozen=True):
    """Sessions will end in `time_left_s`: notify the clients that requested it."""

    time_left_s: float


class ChangeLimits(msgspec.Struct, tag="change_limits", frozen=True):
    """Limits of sessions that start from now on, by their names in the settings."""

    limits: dict[str, Any]


class Leave(msgspec.Struct, tag="leave", frozen=True):
    """Shut down: refuse new sessions, end the running ones within `grace_s`, exit."""

    grace_s: float = 20.0
    moves: bool = False
    """True if sessions may continue at other workers, because the gateway keeps running."""


FromWorker = Hello | SessionPhase | Heartbeat | StopResult | Goodbye
ToWorker = (
    Welcome | HandOver | StopTurn | EndSession | MessageArrives | AnnounceEnd | ChangeLimits | Leave
)
