"""Gateway ↔ worker: the control socket, and the headers of a session socket.

A worker dials `ws(s)://gateway/internal/worker` with the shared secret in the header
`SECRET_HEADER` and says `Hello` once its model is warm. From then on it sends `Heartbeat` every
`BEAT_EVERY_S`; silence for `SILENCE_LIMIT_S` means gone. The gateway learns everything about
sessions here, never from the messages it relays.

For each lease the gateway opens one socket to the worker, `{Hello.url}/session/{dialect}`, with the
`*_HEADER`s below, and relays frames in both directions as they are, close code and reason included.
"""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

from parley.protocol.kinds import Kind, Mode, Phase, WorkerState
from parley.protocol.resume import RefusalReason
from parley.protocol.values import InterruptionState

BEAT_EVERY_S = 1.0
SILENCE_LIMIT_S = 5.0

CONTROL_PATH = "/internal/worker"
SESSION_PATH = "/session/{dialect}"
RECORDINGS_PATH = "/recordings"
"""At a worker: which recordings are ready to be taken over; below it, each as a tar file."""
INCOMPLETE_STATUS = 409
"""A worker's HTTP status for a recording that is not complete yet."""
VOICE_PATH = "/internal/voice"
"""At the gateway: a registered voice as WAV, for a worker with a data folder of its own."""
STORE_ID_FILE = "store_id"
"""In a gateway's data folder; see `Welcome.store_id`."""

SECRET_HEADER = "x-parley-secret"
STANDBY_HEADER = "x-parley-standby"
"""On every answer of a gateway that waits until it is the active one."""
LEASE_HEADER = "x-parley-lease"
SESSION_HEADER = "x-parley-session"
KIND_HEADER = "x-parley-task"
"""A `Kind`."""
QUEUE_WAIT_HEADER = "x-parley-queue-wait-ms"
"""A length, not a time: two hosts may have different clocks. Total limits may include it."""
CALLER_HEADER = "x-parley-caller"
"""The client as an owner in the voice library: `admin`, `key:ID`, or empty."""
EXTENSIONS_HEADER = "x-parley-extensions"
"""`true` where the client asked for what the requirement texts do not name."""

PARAMETERS_HEADER = "x-parley-parameters"
"""JSON object of strings: the query parameters that the dialect wants to know at the worker."""

NOTE_HEADER = "x-parley-note"
"""What a gateway wants its worker to return about a session, should it have forgotten it: JSON of
a `LeaseNote`, which the worker returns as it is. It reads the address, to share its decoders among
clients, and the key's id, which it keeps with the recording."""

RESUME_HEADER = "x-parley-resume"
"""On a session socket that continues the session of its lease: the token's SHA-256 in
hexadecimal, a space, and the number of the last message that came."""

REBUILD_HEADER = "x-parley-rebuild"
"""On a session socket that asks a worker to continue the session of a lost one: the id of its log.
The worker answers with a `RebuildResult` and waits for the client's own connection."""

FOLLOW_HEADER = "x-parley-follow"
"""In addition, if the other worker still runs the session: this one follows the log, sends
`RebuildReady` when it has nearly caught up, and takes the log over when it receives `TakeOver`."""

WHY_HEADER = "x-parley-why"
"""In a worker's refusal: the reason, as a sentence."""

RESUME_STATUSES: Final[dict[RefusalReason, int]] = {
    "unknown": 404,
    "expired": 410,
    "replaced": 409,
    "gap": 412,
    "lost": 424,
}
"""A worker's HTTP status for that refusal."""

LEAVING_CODES: Final = frozenset({1000, 1001, 1005})
"""Close codes with which a client leaves on purpose: it is done, its page is closed, or it gave no
code. Source: RFC 6455, 7.4.1."""

CUT_CODE: Final = 4006
"""With which a gateway closes a session socket whose client went without a word, and a worker one
whose client does not read or has to try again: the session continues without it."""

GATEWAY_LEFT_CODE: Final = 4007
"""With which a gateway closes a session socket that it leaves to the next gateway."""

UNKNOWN_DIALECT_STATUS = 501
"""A worker's HTTP status for a session socket whose dialect is not installed there."""

BUSY_STATUS = 503
"""A worker's HTTP status for a session socket when it has no free slot."""

Ability = Literal[
    "speech", "reading", "transcription", "tools", "tool_choice", "json", "penalties", "logprobs"
]
"""What a model can do in addition to answering: say its answers, say a given text, write down what
it hears, call functions, be made to call one, answer in JSON of a schema, heed penalties of
presence and frequency, report the probabilities of its tokens."""

RecordingState = Literal["off", "on", "no_room", "failing"]
"""What a worker records: `no_room` when too little is free on its disk, `failing` when the last
entry could not be written."""


class LeaseNote(msgspec.Struct, frozen=True):
    """The gateway's data about a lease that its worker does not have."""

    address: str = ""
    key_id: str | None = None
    granted_time: float = 0.0
    ran_s: float = 0.0
    """Time the session ran at other workers before."""


class ResumeState(msgspec.Struct, frozen=True):
    """Of a session whose client may continue over another connection.

    Args:
        left_s: how long the worker waits for it still; None: it is connected.
        note: the lease's `NOTE_HEADER`.
    """

    dialect: str
    left_s: float | None = None
    note: str = ""
    log_id: str = ""
    """Of the log from which another worker can continue the session; "": there is none."""
    ran_s: float | None = None
    """Time the session has run at this worker, by a clock that is never set; None: a worker of an
    earlier version does not say."""


class SessionPhase(msgspec.Struct, tag="phase", frozen=True):
    """A session changed phase, or its client went or came back. `ended` is sent after cleanup, when
    the slot is free again."""

    lease_id: str
    session_id: str
    kind: Kind
    phase: Phase
    was_ready: bool = False
    """True if the session ever reached its ready state (only then its duration feeds the
    estimate)."""
    pause_left_s: float | None = None
    tokens: int = 0
    """Generated so far, text and speech."""
    resume: ResumeState | None = None
    """None: its client has not asked for that."""


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
    """Asked in these words the model writes down what it hears; "": it does so by itself or not at
    all."""
    certificate: str = ""
    """PEM of the certificate that the worker shows to session sockets, where it made its own: the
    only one that the gateway accepts from it."""
    sessions: tuple[SessionPhase, ...] = ()
    """Those that are here, for a gateway that was restarted."""
    session_logs: str = ""
    """Names the place where it logs sessions; workers of the same name see the same logs."""
    build: str = ""
    """See `installation.build_id`; "" from a worker that does not know it."""

    @property
    def fingerprint(self) -> str:
        """Identity that a worker needs to continue a session of this one."""
        logs = f", logs in {self.session_logs}" if self.session_logs else ""
        return f"parley {self.version}, {self.model}, {self.context_tokens} tokens{logs}"


class TakeOver(msgspec.Struct, frozen=True, tag="take_over"):
    """To a worker that follows a session: its worker has stopped."""


class RebuildReady(msgspec.Struct, frozen=True, tag="rebuild_ready"):
    """A worker that follows a session has done again nearly everything that is in its log."""


class RebuildResult(msgspec.Struct, frozen=True, tag="rebuild_result"):
    """Result of continuing a session. `problem`: why it does not continue; "": it does."""

    problem: str = ""


class Durations(msgspec.Struct, frozen=True):
    """Counts per bucket of `STAGE_BUCKETS_MS` (plus overflow), and their sum."""

    counts: tuple[int, ...]
    sum_ms: float


class DeviceMemory(msgspec.Struct, frozen=True):
    """Of a worker's whole GPU, all processes together."""

    used_bytes: int
    total_bytes: int


class ContextPages(msgspec.Struct, frozen=True):
    """Of the pool that a worker's contexts share."""

    used: int
    free: int


class Heartbeat(msgspec.Struct, tag="heartbeat", frozen=True):
    """I am alive. `free_slots` counts slots that can take a session right now (none in cleanup)."""

    state: WorkerState
    free_slots: int
    total_requests: int
    avg_inference_time_ms: float
    kv_cache_length: int
    stages: dict[str, Durations] = {}
    """Since the last heartbeat: what each stage took per unit."""
    answers: dict[Kind, Durations] = {}
    """Since the last heartbeat: from a unit to its result, or from a request to its first piece."""
    errors: dict[str, int] = {}
    """Since the last heartbeat: errors by code."""
    interruptions: dict[InterruptionState, int] = {}
    """Since the last heartbeat: users who spoke while the assistant did, by outcome."""
    recording: RecordingState = "on"
    recording_lost: int = 0
    """Since the last heartbeat: entries of recordings that could not be written."""
    tokens: dict[str, int] = {}
    """Tokens generated by running sessions so far, by lease; sessions with none are left out."""
    device_memory: DeviceMemory | None = None
    """None on a CPU."""
    is_leaving: bool = False
    """The worker ends: it gets nothing new, and its sessions are moved."""
    fast_paths: dict[str, str] = {}
    """The state of every fast part of the model: `fast`, `plain: why`, `refused: why`."""
    context_pages: ContextPages | None = None
    """None where every context has its own memory."""
    recordings_waiting: int | None = None
    """Recordings on the worker's disk that the gateway is to take over; None where both share a
    data folder."""


STAGE_BUCKETS_MS = (1, 2, 5, 10, 20, 50, 100, 200, 300, 500, 750, 1000, 2000, 5000)


class StopResult(msgspec.Struct, tag="stop_result", frozen=True):
    """Answer to a `StopTurn` or `EndSession` that carried a request id: whether anything was
    stopped by it."""

    request_id: str
    stopped: bool


class Goodbye(msgspec.Struct, tag="goodbye", frozen=True):
    """The worker leaves on purpose."""

    reason: str


class Welcome(msgspec.Struct, tag="welcome", frozen=True):
    """The gateway knows the worker now and may lease its slots."""

    gateway_version: str
    store_id: str = ""
    """Names the gateway's data folder; a worker that finds the same name in its own shares it."""


class StopTurn(msgspec.Struct, tag="stop_turn", frozen=True):
    """Silence the answer in progress; the session continues."""

    request_id: str
    lease_id: str


class EndSession(msgspec.Struct, tag="end_session", frozen=True):
    """End one session in its dialect's own words: a client stopped it, or the server does; or
    without a word, because another worker continues it. Answered when there is a request id."""

    lease_id: str
    reason: Literal["stopped", "server_shutdown", "moved"] = "server_shutdown"
    request_id: str = ""


class HandOver(msgspec.Struct, tag="hand_over", frozen=True):
    """Bring the log of a session up to date between two turns or units, and do nothing more for
    it: another worker will continue. Answered with whether that was done."""

    request_id: str
    lease_id: str


class AnnounceEnd(msgspec.Struct, tag="announce_end", frozen=True):
    """Sessions will be ended in `time_left_s`: inform the clients that asked for it."""

    time_left_s: float


class ChangeLimits(msgspec.Struct, tag="change_limits", frozen=True):
    """Limits of sessions that begin from now on, by their names in the settings."""

    limits: dict[str, Any]


class Leave(msgspec.Struct, tag="leave", frozen=True):
    """Finish: refuse new sessions, end the running ones within `grace_s`, exit."""

    grace_s: float = 20.0
    moves: bool = False
    """Sessions may continue at other workers: the gateway stays."""


FromWorker = Hello | SessionPhase | Heartbeat | StopResult | Goodbye
ToWorker = Welcome | HandOver | StopTurn | EndSession | AnnounceEnd | ChangeLimits | Leave
