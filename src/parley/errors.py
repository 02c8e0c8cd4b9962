"""Every error a person or a program can meet, as one tree.

    ParleyError                    code on the wire          close code
    ├─ BadInput                    the client sent something we cannot use
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
    ├─ Refused                     the request is fine, we cannot serve it
    │  ├─ QueueFull                queue_full                1013
    │  ├─ ServiceUnavailable       service_unavailable       1013
    │  ├─ WorkerBusy               worker_busy               1013
    │  ├─ WorkerConnectFailed      worker_connect_failed     1013
    │  ├─ AppDisabled              app_disabled              1008
    │  ├─ TooManySessions          too_many_sessions         1008
    │  ├─ SessionIdInUse           session_id_in_use         1008
    │  ├─ Unauthorized             unauthorized              1008
    │  └─ OriginForbidden          origin_forbidden          1008
    ├─ ContextFull                 context_full              1000 (1008 in chat)
    ├─ SlowClient                  slow_client               1008
    ├─ InferenceFailed             inference_error           1011
    │  ├─ SeatLost                 inference_error           1011
    │  └─ VoiceUnavailable         voice_unavailable         1011
    ├─ WorkerLost                  inference_error           1011
    └─ SetupError                  setup_error               -      carries a hint

Each class carries its facts as attributes and builds its own sentence. Raise deep, translate once
at an edge: a dialect turns an error into its message and a close code, REST into a status, the
command line into an exit code. Which errors end a connection is the dialect's decision;
`close_code` says with which code if it does.
"""

from __future__ import annotations

from typing import ClassVar


class ParleyError(Exception):
    """Root of the tree. `str(error)` is one plain sentence that reveals no internals."""

    code: ClassVar[str] = "internal_error"
    close_code: ClassVar[int] = 1011
    http_status: ClassVar[int] = 500
    is_client_error: ClassVar[bool] = False


class BadInput(ParleyError):
    """The client sent something we cannot use; `field` names the place where known."""

    code = "invalid_request"
    close_code = 1008
    http_status = 400
    is_client_error = True

    def __init__(self, sentence: str, *, field: str | None = None) -> None:
        super().__init__(sentence)
        self.field = field


class InvalidJson(BadInput):
    """A frame is not JSON text."""

    code = "invalid_json"
    close_code = 1003

    def __init__(self, sentence: str = "The message is not valid JSON text.") -> None:
        super().__init__(sentence)


class InvalidRequest(BadInput):
    """A request lacks something, or says something contradictory."""


class InvalidPayload(BadInput):
    """A value has the wrong type, is out of range or cannot be decoded."""

    code = "invalid_payload"


class InvalidConfig(BadInput):
    """A configuration value has the wrong type or is out of range."""

    code = "invalid_config"


class MissingField(BadInput):
    """A required field is absent."""

    code = "missing_field"

    def __init__(self, field: str, sentence: str | None = None) -> None:
        super().__init__(sentence or f"{field} field is required", field=field)


class UnknownEvent(BadInput):
    """A message type that the dialect does not know."""

    code = "unknown_event"

    def __init__(self, type_name: str) -> None:
        super().__init__(f"Unknown message type: {type_name[:80]}")
        self.type_name = type_name


class WrongPhase(BadInput):
    """A known message in a phase that does not accept it."""

    code = "invalid_event"

    def __init__(self, type_name: str, phase: str, *, sentence: str | None = None) -> None:
        super().__init__(sentence or f"'{type_name}' is not accepted while the session is {phase}.")
        self.type_name = type_name
        self.phase = phase


class NotReady(WrongPhase):
    """Data sent before the session is ready."""

    code = "not_ready"

    def __init__(self, type_name: str, phase: str) -> None:
        super().__init__(
            type_name,
            phase,
            sentence=f"Not ready: '{type_name}' is not accepted while the session is {phase} "
            "(invalid event).",
        )


class NotPrepared(WrongPhase):
    """Half-duplex: something else came before `prepare`."""

    code = "not_prepared"

    def __init__(self, type_name: str, phase: str) -> None:
        super().__init__(type_name, phase, sentence="Not prepared yet: send 'prepare' first.")


class AlreadyPrepared(WrongPhase):
    """Half-duplex: a second `prepare`."""

    code = "already_prepared"

    def __init__(self, phase: str) -> None:
        super().__init__("prepare", phase, sentence="Already prepared: 'prepare' is sent once.")


class TooLarge(BadInput):
    """`size` of `what` is above `limit`."""

    code = "too_large"
    close_code = 1009
    http_status = 413

    def __init__(self, what: str, size: float, limit: float, unit: str = "bytes") -> None:
        super().__init__(f"{what} is too large: {size:g} {unit}, the limit is {limit:g} {unit}.")
        self.what = what
        self.size = size
        self.limit = limit


class BadSessionId(BadInput):
    """A session id outside letters, digits, `_` and `-`, or longer than 64 characters."""

    code = "invalid_session_id"

    def __init__(self) -> None:
        super().__init__("A session id is 1 to 64 letters, digits, '_' or '-'.")


class Refused(ParleyError):
    """The request is fine, but cannot be served."""

    close_code = 1013
    http_status = 503


class QueueFull(Refused):
    """Admission refused: `waiting` tickets already fill the queue of size `limit`."""

    code = "queue_full"

    def __init__(self, waiting: int, limit: int) -> None:
        super().__init__(f"Queue full ({waiting} requests)")
        self.waiting = waiting
        self.limit = limit


class ServiceUnavailable(Refused):
    """Nothing here can serve at present; `why` says what is missing."""

    code = "service_unavailable"

    def __init__(self, why: str = "The service is not ready.") -> None:
        super().__init__(why)


class WorkerBusy(Refused):
    """The worker asked has no free slot."""

    code = "worker_busy"

    def __init__(self) -> None:
        super().__init__("No idle worker is available.")


class WorkerConnectFailed(Refused):
    """A leased worker could not be reached."""

    code = "worker_connect_failed"

    def __init__(self) -> None:
        super().__init__("The assigned worker could not be reached.")


class AppDisabled(Refused):
    """The operator switched this way of talking off."""

    code = "app_disabled"
    close_code = 1008
    http_status = 403

    def __init__(self, app_id: str) -> None:
        super().__init__(f"'{app_id}' is switched off on this server.")
        self.app_id = app_id


class TooManySessions(Refused):
    """One client holds `held` of the `limit` sessions it may hold."""

    code = "too_many_sessions"
    close_code = 1008
    http_status = 429

    def __init__(self, held: int, limit: int) -> None:
        super().__init__(f"Too many sessions from one address: {held} open, {limit} allowed.")
        self.held = held
        self.limit = limit


class SessionIdInUse(Refused):
    """A live connection already carries this session id."""

    code = "session_id_in_use"
    close_code = 1008
    http_status = 409

    def __init__(self, session_id: str) -> None:
        super().__init__(f"A session with the id '{session_id}' is already connected.")
        self.session_id = session_id


class Unauthorized(Refused):
    """No valid token where one is needed."""

    code = "unauthorized"
    close_code = 1008
    http_status = 401

    def __init__(self, sentence: str = "A valid token is required.") -> None:
        super().__init__(sentence)


class OriginForbidden(Refused):
    """A browser page of a site that is not on the allow-list asked for a session."""

    code = "origin_forbidden"
    close_code = 1008
    http_status = 403

    def __init__(self, origin: str) -> None:
        super().__init__("Pages of this origin may not open sessions here.")
        self.origin = origin


class ContextFull(ParleyError):
    """`needed` tokens do not fit into a context of `limit`."""

    code = "context_full"
    close_code = 1000
    http_status = 400
    is_client_error = True

    def __init__(self, needed: int, limit: int) -> None:
        super().__init__(f"The context is full: {needed} tokens, the limit is {limit}.")
        self.needed = needed
        self.limit = limit


class SlowClient(ParleyError):
    """A client stopped reading while `waiting_bytes` were waiting for it."""

    code = "slow_client"
    close_code = 1008
    is_client_error = True

    def __init__(self, waiting_bytes: int) -> None:
        super().__init__("The client did not read its messages in time.")
        self.waiting_bytes = waiting_bytes


class InferenceFailed(ParleyError):
    """The model could not finish a piece of work; details are in the log under `error_id`."""

    code = "inference_error"

    def __init__(self, sentence: str = "The model failed.", *, error_id: str | None = None) -> None:
        super().__init__(f"{sentence} (error {error_id})" if error_id else sentence)
        self.error_id = error_id


class SeatLost(InferenceFailed):
    """The seat was closed, or its engine stopped, while work was asked of it."""

    def __init__(self) -> None:
        super().__init__("The session no longer has a place on the device.")


class VoiceUnavailable(InferenceFailed):
    """Speech was asked for, but the files that make a voice are absent."""

    code = "voice_unavailable"


class WorkerLost(ParleyError):
    """The worker that ran the session went away."""

    code = "inference_error"

    def __init__(self) -> None:
        super().__init__("The worker running this session was lost.")


class SetupError(ParleyError):
    """Start-up cannot go on; `hint` says what to do and is shown on its own line."""

    code = "setup_error"

    def __init__(self, sentence: str, *, hint: str = "") -> None:
        super().__init__(sentence)
        self.hint = hint
