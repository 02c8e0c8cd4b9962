"""Continuing a session over another connection: messages that every dialect with it shares.

    client                                      server
    (first message with resume: true)     ─▶    ready, with resume_token and resume_window_s
                                          ◀─    every message has seq and received
    session.ack                           ─▶    (nothing)
    (cut; connect again with ?resume=true)
    session.resume                        ─▶    session.resumed, then what is missing
                                          ◀─    session.resume_failed              then close

Nothing of this is sent to a client that has not asked. docs/protocols/resume.md has the rules.
"""

from __future__ import annotations

import hashlib
import secrets
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from parley.errors import BadInput, InvalidJson, InvalidPayload, UnknownEvent
from parley.protocol import binary
from parley.protocol.wire import Wire

QUERY: Final = "resume"
"""A connection with this parameter (`true`) continues a session: its first message is
`session.resume`."""

TICKET_QUERY: Final = "ticket"
"""A connection with this parameter waited with this ticket over an earlier one."""

REPLACED_CODE: Final = 4409
"""Closes a connection whose session continues over another one."""
AGAIN_CODE: Final = 1012
"""Closes a connection whose client may continue over another one. Source: RFC 6455's registry,
"service restart"."""
REFUSED_CODE: Final = 4404
"""Closes a connection whose `session.resume` was refused."""

TOKEN_BYTES: Final = 32
INPUT_ACK_EVERY: Final = 8
"""The server acknowledges after this number of messages of a client."""
ACK_LIMIT_CHARS: Final = 256
REQUEST_LIMIT_BYTES: Final = 4096

RefusalReason = Literal["unknown", "expired", "replaced", "gap", "lost"]
"""`unknown`: no such session, or not its token. `expired`: it has ended, or waited too long.
`replaced`: the token was replaced by a later one. `gap`: a number that was never sent. `lost`: its
worker was lost, and no other one can continue it."""

AwayReason = Literal["time", "context", "shutdown"]

Sequence = Annotated[int, Meta(ge=0, le=2**53)]


class ResumeRequest(Wire, tag="session.resume"):
    """First message of a connection that continues a session.

    Args:
        seq: of the last message that came.
        sent: how many messages were sent in all before the connection broke. Where an answer ended
            with its worker, sound of before is not heard: it was sent while the answer was said.
    """

    session_id: Annotated[str, Meta(min_length=1, max_length=64)]
    resume_token: Annotated[str, Meta(min_length=1, max_length=128)]
    seq: Sequence
    sent: Sequence = 0


class DeliveryAck(Wire, tag="session.ack"):
    """Everything up to `seq` has come. `generation`: of the last `session.resumed`, else 0; the
    token that was used for it opens nothing from here on."""

    seq: Sequence
    generation: Sequence = 0


class ResumeGranted(Wire, tag="session.resumed"):
    """The session continues here.

    Args:
        resume_token: for the next time.
        generation: how often the session has moved; to be named by the next `session.ack`.
        seq: of the newest message; what lies between it and the client's follows.
        received: how many of the client's messages have come; what was sent after is sent again.
    """

    session_id: str
    resume_token: str
    resume_window_s: float
    generation: int
    seq: int
    received: int


class ResumeRefusal(Wire, tag="session.resume_failed"):
    """The session does not continue here; nothing follows."""

    reason: RefusalReason
    message: str = ""


class ConnectionReplaced(Wire, tag="session.replaced"):
    """The session continues over another connection; nothing follows on this one."""


class ResyncRequired(Wire, tag="session.resync_required"):
    """After `session.resumed`: messages `from_seq` to `to_seq` were given up, because they had
    waited too long or were too many. The session continues behind them."""

    from_seq: int
    to_seq: int


class ResumeWaiting(Wire, tag="session.resume_waiting"):
    """The session continues as soon as a worker has a slot for it; the connection is closed with
    1012, and the client comes again.

    Args:
        estimated_s: when that is expected.
        window_s: the session waits at least this much longer, from now on.
    """

    estimated_s: float
    window_s: float


class GoingAway(Wire, tag="session.going_away"):
    """The session will end. Told once for each reason.

    Args:
        time_left_s: an estimate where the reason is `context`.
        reason: `time`: it has a total length; `context`: the model's memory is nearly full;
            `shutdown`: the server ends.
    """

    time_left_s: float
    reason: AwayReason


class InputDropped(Wire, tag="session.input_dropped"):
    """The server dropped the oldest of the client's sound, because more came than it could process.
    Sent at most once a second.

    Args:
        dropped_s: seconds of sound since the previous message of this type.
    """

    dropped_s: float


class InputAck(Wire, tag="session.input_ack"):
    """`received` of the client's messages have come. Sent where no other message says so;
    it has no number of its own."""

    received: int


ResumeClientMessage = ResumeRequest | DeliveryAck
ResumeServerMessage = (
    GoingAway
    | InputAck
    | InputDropped
    | ResumeGranted
    | ResumeWaiting
    | ResumeRefusal
    | ConnectionReplaced
    | ResyncRequired
)

_REFUSALS: Final[dict[RefusalReason, tuple[str, str]]] = {
    "unknown": (
        "There is no such session, or the token or API key does not open it.",
        "Start a new session.",
    ),
    "expired": ("The session has ended.", "Start a new session."),
    "replaced": (
        "A later token has replaced this one.",
        "Use the token of the newest session.resumed.",
    ),
    "gap": (
        "seq is not the number of a message that the server sent.",
        "Send the seq of the newest message that you have received.",
    ),
    "lost": ("The server lost the session and cannot continue it.", "Start a new session."),
}
"""Reason of a refusal, and what the client can do."""

_request = msgspec.json.Decoder(ResumeRequest)
_ack = msgspec.json.Decoder(DeliveryAck)


def refusal_message(reason: RefusalReason, why: str = "") -> str:
    """Message to a client: the problem, its reason, and what the client can do."""
    what, do = _REFUSALS[reason]
    return f"{what} {why} {do}" if why else f"{what} {do}"


def new_token() -> str:
    """256 random bits, base64."""
    return secrets.token_urlsafe(TOKEN_BYTES)


def hash_of(token: str) -> str:
    """All that is kept of a token: SHA-256, hexadecimal."""
    return hashlib.sha256(token.encode()).hexdigest()


def decode_request(raw: bytes | str) -> ResumeRequest:
    """Read the first message of a connection that continues a session.

    Raises:
        BadInput: it is not `session.resume`.
    """
    if len(raw) > REQUEST_LIMIT_BYTES:
        raise InvalidPayload(
            f"session.resume must have at most {REQUEST_LIMIT_BYTES} bytes, got {len(raw)}."
        )
    try:
        return _request.decode(raw)
    except msgspec.ValidationError as error:
        if str(error).endswith("`$.type`"):
            raise UnknownEvent("the first message is session.resume") from None
        raise InvalidPayload(f"session.resume: {error}") from None
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        raise InvalidJson from None


def as_ack(frame: str | bytes) -> DeliveryAck | None:
    """`session.ack`, if a message is a correct one."""
    if not isinstance(frame, str) or "session.ack" not in frame:
        return None
    try:
        return _ack.decode(frame)
    except msgspec.MsgspecError:
        return None


class Numbers(msgspec.Struct, frozen=True):
    """Fields that every server message has where the client asked for resuming. 0: absent."""

    seq: int = 0
    received: int = 0
    resume_token: str = ""
    resume_window_s: float = 0.0


_numbers = msgspec.json.Decoder(Numbers)


def numbers_of(frame: str | bytes) -> Numbers:
    """For clients: the numbers of a message.

    Raises:
        InvalidJson, BadInput: it is not a message.
    """
    if isinstance(frame, bytes) and not frame.startswith(b"{"):
        frame, _ = binary.split(frame)
    try:
        return _numbers.decode(frame)
    except msgspec.ValidationError as error:
        raise BadInput(str(error)) from None
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        raise InvalidJson from None


def with_fields(frame: str | bytes, fields: str) -> str | bytes:
    """A message (a JSON object with at least one field, in a binary message with its sound behind
    it) with more fields at its end."""
    if isinstance(frame, str):
        return f"{frame[:-1]},{fields}}}"
    head, sound = binary.split(frame)
    return binary.pack(f"{head.decode()[:-1]},{fields}}}", sound)
