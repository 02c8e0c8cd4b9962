"""Errors that travel on the wire, and the root of all others, as one tree.

    ParleyError                    code on the wire          close code
    ├─ BadInput                    the client sent something unusable
    │  ├─ InvalidJson              invalid_json              1003
    │  ├─ InvalidRequest           invalid_request           1008
    │  ├─ InvalidPayload           invalid_payload           1008
    │  ├─ InvalidConfig            invalid_config            1008
    │  ├─ MissingField             missing_field             1008
    │  ├─ UnknownEvent             unknown_event             1008
    │  ├─ WrongPhase               invalid_event             1008
    │  │  ├─ NotReady              not_ready                 1008
    │  │  ├─ NotPrepared           not_prepared              1008
    │  │  └─ AlreadyPrepared       already_prepared          1008
    │  ├─ TooLarge                 too_large                 1009
    │  └─ BadSessionId             invalid_session_id        1008
    ├─ Refused                     a valid request that cannot be served
    │  ├─ QueueFull                queue_full                1013
    │  ├─ ServiceUnavailable       service_unavailable       1013
    │  ├─ WorkerBusy               worker_busy               1013
    │  ├─ WorkerConnectFailed      worker_connect_failed     1013
    │  ├─ AppDisabled              app_disabled              1008
    │  ├─ TooManySessions          too_many_sessions         1008
    │  ├─ RateLimited              rate_limited              1008
    │  ├─ QuotaExceeded            quota_exceeded            1008
    │  ├─ SessionIdInUse           session_id_in_use         1008
    │  ├─ Unauthorized             unauthorized              1008
    │  ├─ Forbidden                forbidden                 1008
    │  ├─ OriginForbidden          origin_forbidden          1008
    │  └─ HostForbidden            host_forbidden            1008
    ├─ ContextFull                 context_full              1000 (1008 in chat)
    ├─ SlowClient                  slow_client               1008
    ├─ InferenceFailed             inference_error           1011
    │  ├─ SlotLost                 inference_error           1011
    │  ├─ UpstreamFailed           upstream_failed           1011
    │  └─ VoiceUnavailable         voice_unavailable         1011
    ├─ WorkerLost                  worker_lost               1011
    │  └─ WorkerLostEarly          worker_lost               1013
    ├─ Cancelled                   cancelled                 1000
    ├─ TimedOut                    timeout                   1000 (1008 in chat)
    └─ SetupError                  setup_error               -      carries a hint
       └─ SetupPostponed           setup_error               -      may succeed later

Errors of one module (a bad upload, a missing share link, an unreachable server) are defined there,
as subclasses of these.

Each class builds its own sentence from the facts, and has those as attributes that other code
reads. An error from the wire (`from_wire`) has only its sentence; its facts are None. Raise errors
where problems are found, and translate them once at the edge: a dialect turns an error into a
message and a close code, REST into a status, the command line into an exit code. The dialect
decides which errors end a connection; `close_code` is the code if they do.
"""

from __future__ import annotations

from typing import ClassVar, Literal, Self


class ParleyError(Exception):
    """Base class. `str(error)` is one sentence that reveals no internals."""

    code: ClassVar[str] = "internal_error"
    close_code: ClassVar[int] = 1011
    http_status: ClassVar[int] = 500
    is_client_error: ClassVar[bool] = False
    sentence: ClassVar[str] = ""
    """Sentence of errors that always have the same one, or that are given none."""
    client_event_id: str | None = None
    """The client's own id of the message that caused it, in dialects that have such ids."""
    retry_after_s: int | None = None
    """Seconds after which a retry makes sense (HTTP: `Retry-After`); None: never, or unknown."""
    hint: str = ""
    """What to do; the command line prints it on its own line."""

    def __init__(self, sentence: str = "") -> None:
        super().__init__(sentence or self.sentence)

    @classmethod
    def from_wire(cls, sentence: str) -> Self:
        """The error as a client receives it: with its sentence, and None for every other field."""
        return cls.__new__(cls, sentence)


class BadInput(ParleyError):
    """Unusable input from a client; `field` names the field if known."""

    code = "invalid_request"
    close_code = 1008
    http_status = 400
    is_client_error = True
    field: str | None = None

    def __init__(self, sentence: str = "", *, field: str | None = None) -> None:
        super().__init__(sentence)
        self.field = field


class InvalidJson(BadInput):
    """A message that is not JSON text."""

    code = "invalid_json"
    close_code = 1003
    sentence = "The message is not valid JSON text."


class InvalidRequest(BadInput):
    """An incomplete or contradictory request."""


class InvalidPayload(BadInput):
    """A value has a wrong type, is out of range, or cannot be decoded."""

    code = "invalid_payload"


class InvalidConfig(BadInput):
    """A configuration value of the wrong type or out of range."""

    code = "invalid_config"


class MissingField(BadInput):
    """A required field that is absent."""

    code = "missing_field"

    def __init__(self, field: str, sentence: str | None = None) -> None:
        super().__init__(sentence or f"{field} field is required", field=field)


class UnknownEvent(BadInput):
    """A message type unknown to the dialect."""

    code = "unknown_event"
    type_name: str | None = None

    def __init__(self, type_name: str) -> None:
        super().__init__(f"Unknown message type: {type_name[:80]}")
        self.type_name = type_name


class WrongPhase(BadInput):
    """A message that the session's phase does not accept."""

    code = "invalid_event"

    def __init__(self, type_name: str, phase: str, *, sentence: str | None = None) -> None:
        super().__init__(sentence or f"'{type_name}' is not accepted while the session is {phase}.")


class NotReady(WrongPhase):
    """Data sent before the session was ready."""

    code = "not_ready"

    def __init__(self, type_name: str, phase: str) -> None:
        super().__init__(
            type_name,
            phase,
            sentence=f"Not ready: '{type_name}' is not accepted while the session is {phase} "
            "(invalid event).",
        )


class NotPrepared(WrongPhase):
    """Half-duplex: another message before `prepare`."""

    code = "not_prepared"

    def __init__(self, type_name: str, phase: str) -> None:
        super().__init__(type_name, phase, sentence="Not prepared yet: send 'prepare' first.")


class AlreadyPrepared(WrongPhase):
    """Half-duplex: a second `prepare`."""

    code = "already_prepared"

    def __init__(self, phase: str) -> None:
        super().__init__("prepare", phase, sentence="Already prepared: 'prepare' is sent once.")


class TooLarge(BadInput):
    """The `size` of `what` is above its `limit`."""

    code = "too_large"
    close_code = 1009
    http_status = 413
    what: str | None = None
    size: float | None = None
    limit: float | None = None
    unit: str | None = None

    def __init__(self, what: str, size: float, limit: float, unit: str = "bytes") -> None:
        found, most = (one if isinstance(one, int) else f"{one:g}" for one in (size, limit))
        super().__init__(f"{what} is too large: {found} {unit}, the limit is {most} {unit}.")
        self.what = what
        self.size = size
        self.limit = limit
        self.unit = unit


class BadSessionId(BadInput):
    """A session id outside letters, digits, `_` and `-`, or longer than 64 characters."""

    code = "invalid_session_id"
    sentence = "A session id is 1 to 64 letters, digits, '_' or '-'."


class Refused(ParleyError):
    """A valid request that cannot be served."""

    close_code = 1013
    http_status = 503


class QueueFull(Refused):
    """The queue is full, with `waiting` tickets."""

    code = "queue_full"
    retry_after_s = 5

    def __init__(self, waiting: int) -> None:
        super().__init__(f"Queue full ({waiting} requests)")


class ServiceUnavailable(Refused):
    """The server cannot serve at the moment; the sentence gives the reason."""

    code = "service_unavailable"
    retry_after_s = 10
    sentence = "The service is not ready."


class WorkerBusy(Refused):
    """The worker has no free slot."""

    code = "worker_busy"
    retry_after_s = 2
    sentence = "No idle worker is available."


class WorkerConnectFailed(Refused):
    """A leased worker could not be reached."""

    code = "worker_connect_failed"
    retry_after_s = 2
    sentence = "The assigned worker could not be reached."


class AppDisabled(Refused):
    """The operator disabled this kind of conversation."""

    code = "app_disabled"
    close_code = 1008
    http_status = 403

    def __init__(self, app_id: str) -> None:
        super().__init__(f"'{app_id}' is disabled on this server.")


class TooManySessions(Refused):
    """A client has `held` sessions, and may have at most `limit`."""

    code = "too_many_sessions"
    retry_after_s = 5
    close_code = 1008
    http_status = 429

    def __init__(self, held: int, limit: int, whose: str = "from one address") -> None:
        open_now = f"Too many sessions {whose}: {held} open, {limit} allowed."
        super().__init__(f"{open_now} Close one, or send fewer at a time.")


class RateLimited(Refused):
    """A key, or an address without one, exceeded its requests per minute."""

    code = "rate_limited"
    close_code = 1008
    http_status = 429
    retry_after_s = 15

    def __init__(
        self, per_minute: int, *, has_key: bool = True, retry_after_s: int | None = None
    ) -> None:
        whose = "This key allows" if has_key else "Without a key, this server allows"
        super().__init__(f"{whose} {per_minute} requests per minute.")
        if retry_after_s is not None:
            self.retry_after_s = retry_after_s


class QuotaExceeded(Refused):
    """A key has used up its minutes or tokens of the day (UTC)."""

    code = "quota_exceeded"
    close_code = 1008
    http_status = 429

    def __init__(
        self, limit: int, unit: Literal["minutes", "tokens"], retry_after_s: int | None = None
    ) -> None:
        super().__init__(f"This key allows {limit} {unit} a day (UTC), and they are used up.")
        self.retry_after_s = retry_after_s


class SessionIdInUse(Refused):
    """The session id is already used by a live connection."""

    code = "session_id_in_use"
    close_code = 1008
    http_status = 409

    def __init__(self, session_id: str) -> None:
        super().__init__(f"A session with the id '{session_id}' is already connected.")


class Unauthorized(Refused):
    """A request lacks a valid token."""

    code = "unauthorized"
    close_code = 1008
    http_status = 401
    sentence = "A valid token is required."


class Forbidden(Refused):
    """The token is valid, but has no right for this request."""

    code = "forbidden"
    close_code = 1008
    http_status = 403


class OriginForbidden(Refused):
    """The page's origin is not allowed."""

    code = "origin_forbidden"
    close_code = 1008
    http_status = 403

    def __init__(self, origin: str) -> None:
        super().__init__(
            f"Pages from {origin[:80]} may not use this server. If they should, add this origin to "
            "the setting security.allowed_origins; if they are its own, the proxy in front "
            "of it must keep the Host header."
        )


class HostForbidden(Refused):
    """The request's host name is not one of the server's."""

    code = "host_forbidden"
    close_code = 1008
    http_status = 421

    def __init__(self, host: str) -> None:
        super().__init__(
            f"Unknown host name '{host[:80]}'. If it is this server's name, add it to the setting "
            "security.allowed_hosts."
        )


class ContextFull(ParleyError):
    """`needed` tokens do not fit into a context of `limit`, which the operator may raise with
    `setting`."""

    code = "context_full"
    close_code = 1000
    http_status = 400
    is_client_error = True
    needed: int | None = None
    limit: int | None = None

    def __init__(self, needed: int, limit: int, *, setting: str = "") -> None:
        hint = f" The server's setting {setting} raises it." if setting else ""
        super().__init__(
            f"The prompt is too long: this model's maximum context length is {limit} tokens, the "
            f"request has at least {needed}.{hint}"
        )
        self.needed = needed
        self.limit = limit


class SlowClient(ParleyError):
    """A client stopped reading while messages were queued for it."""

    code = "slow_client"
    close_code = 1008
    is_client_error = True
    sentence = "The client did not read its messages in time."


class InferenceFailed(ParleyError):
    """The model failed; the log has the details under `error_id`."""

    code = "inference_error"
    sentence = "The model failed."
    error_id: str | None = None

    def __init__(self, sentence: str = "", *, error_id: str | None = None) -> None:
        sentence = sentence or self.sentence
        super().__init__(f"{sentence} (error {error_id})" if error_id else sentence)
        self.error_id = error_id


class SlotLost(InferenceFailed):
    """The slot was closed, or its engine stopped, while a request was running."""

    sentence = "The session lost its slot on the device."


class UpstreamFailed(InferenceFailed):
    """A server behind the model, such as your own language model, did not answer; the sentence
    explains the problem and what to do. The session continues."""

    code = "upstream_failed"
    http_status = 502


class VoiceUnavailable(InferenceFailed):
    """Speech was requested, but the vocoder's files are missing."""

    code = "voice_unavailable"


class WorkerLost(ParleyError):
    """The session's worker disappeared."""

    code = "worker_lost"
    sentence = "The worker running this session was lost, with what it was doing. Ask again."


class WorkerLostEarly(WorkerLost):
    """The session's worker disappeared before the session was ready, so the client can simply try
    again."""

    close_code = 1013


class Cancelled(ParleyError):
    """A request was cancelled, e.g. its ticket was cancelled through REST."""

    code = "cancelled"
    close_code = 1000
    http_status = 409
    sentence = "Cancelled"


class TimedOut(ParleyError):
    """`what` took longer than `limit_s`."""

    code = "timeout"
    close_code = 1000
    http_status = 504

    def __init__(self, what: str, limit_s: float) -> None:
        super().__init__(f"{what} took longer than {limit_s:g} s.")


class SetupError(ParleyError):
    """Start-up failed."""

    code = "setup_error"

    def __init__(self, sentence: str, *, hint: str = "") -> None:
        super().__init__(sentence)
        self.hint = hint


class SetupPostponed(SetupError):
    """Start-up failed, but may succeed later with the same settings."""
