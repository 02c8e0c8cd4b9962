"""Continuing a session over another connection: messages that every dialect with it shares.

    client                                      server
    (first message with resume: true)     ─▶    ready, with resume_token and resume_window_s
                                          ◀─    every message has seq and received
    session.ack                           ─▶    (nothing)
    (cut; connect again with ?resume=true)
    session.resume                        ─▶    session.resumed, then what is missing
                                          ◀─    session.resume_failed              then close

None of this is sent to a client that has not requested it. docs/protocols/resume.md has the rules.
"""

from __future__ import annotations

import hashlib
import secrets
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from parley.errors import BadInput, InvalidJson, InvalidPayload, UnknownEvent
from parley.protocol import binary, codec
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
"""Number of received client messages after which the server acknowledges."""
ARRIVAL_ACK_EVERY: Final = 32
"""The same for messages that have only arrived."""
ACK_LIMIT_CHARS: Final = 256
REQUEST_LIMIT_BYTES: Final = 4096

RefusalReason = Literal["unknown", "expired", "replaced", "gap", "lost"]
"""`unknown`: no such session, or a wrong token. `expired`: it has ended, or waited too long.
`replaced`: the token was replaced by a later one. `gap`: a number that was never sent. `lost`: its
worker was lost, and no other one can continue it."""

AwayReason = Literal["time", "context", "shutdown"]

Sequence = Annotated[int, Meta(ge=0, le=2**53)]


class ResumeRequest(Wire, tag="session.resume"):
    """First message of a connection that continues a session.

    Args:
        seq: number of the last received message.
        sent: total number of messages sent before the connection broke. If an answer was lost with
            its worker, audio from before the break is ignored, because it was recorded during the
            answer.
    """

    session_id: Annotated[str, Meta(min_length=1, max_length=64)]
    resume_token: Annotated[str, Meta(min_length=1, max_length=128)]
    seq: Sequence
    sent: Sequence = 0


class DeliveryAck(Wire, tag="session.ack"):
    """All messages up to `seq` were received. `generation`: of the last `session.resumed`, else 0;
    the token that was used for it becomes invalid. `ask`: the server answers immediately with
    `session.input_ack`, which shows that the connection still works."""

    seq: Sequence
    generation: Sequence = 0
    ask: bool = False


class ResumeGranted(Wire, tag="session.resumed"):
    """The session continues here.

    Args:
        resume_token: for the next reconnection.
        generation: number of times that the session was resumed; the next `session.ack` must
            contain it.
        seq: number of the newest message; the messages between the client's `seq` and this follow.
        received: number of the client's messages that were received; the client resends later ones.
    """

    session_id: str
    resume_token: str
    resume_window_s: float
    generation: int
    seq: int
    received: int


class ResumeRefusal(Wire, tag="session.resume_failed"):
    """The session does not continue here; no message follows."""

    reason: RefusalReason
    message: str = ""


class ConnectionReplaced(Wire, tag="session.replaced"):
    """The session continues over another connection; no message follows on this one."""


class ResyncRequired(Wire, tag="session.resync_required"):
    """After `session.resumed`: messages `from_seq` to `to_seq` are no longer available, because
    they had waited too long or were too many. The session continues after them."""

    from_seq: int
    to_seq: int


class ResumeWaiting(Wire, tag="session.resume_waiting"):
    """The session continues as soon as a worker has a slot for it; the connection is closed with
    1012, and the client reconnects.

    Args:
        estimated_s: expected time until then.
        window_s: minimum time for which the session waits, from now on.
    """

    estimated_s: float
    window_s: float


class GoingAway(Wire, tag="session.going_away"):
    """The session will end. Sent once for each reason.

    Args:
        time_left_s: an estimate if the reason is `context`.
        reason: `time`: it reaches its maximum length; `context`: the context is nearly full;
            `shutdown`: the server is shutting down.
    """

    time_left_s: float
    reason: AwayReason


class InputDropped(Wire, tag="session.input_dropped"):
    """The server dropped the oldest audio of the client, because more arrived than it could
    process. Sent at most once a second.

    Args:
        dropped_s: seconds of dropped audio since the previous message of this type.
    """

    dropped_s: float


class InputAck(Wire, tag="session.input_ack"):
    """Number of the client's messages that were received. Sent if no other message contains it; it
    has no number of its own.

    Args:
        received: these need not be sent again.
        arrived: these have arrived, including those that would have to be sent again if the worker
            was lost now.
    """

    received: int
    arrived: int


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

_requests: codec.Messages[ResumeRequest, DeliveryAck] = codec.Messages(
    {"session.resume": codec.Shape(ResumeRequest)}, DeliveryAck
)
_ack = msgspec.json.Decoder(DeliveryAck)


def refusal_message(reason: RefusalReason, why: str = "") -> str:
    """Message to a client: the problem, its reason, and what the client can do."""
    what, do = _REFUSALS[reason]
    return f"{what} {why} {do}" if why else f"{what} {do}"


def new_token() -> str:
    """256 random bits, base64."""
    return secrets.token_urlsafe(TOKEN_BYTES)


def hash_of(token: str) -> str:
    """The stored form of a token: SHA-256, hexadecimal."""
    return hashlib.sha256(token.encode()).hexdigest()


def decode_request(raw: bytes | str) -> ResumeRequest:
    """Read the first message of a connection that continues a session.

    Raises:
        InvalidJson, BadInput: it is not `session.resume`.
    """
    if len(raw) > REQUEST_LIMIT_BYTES:
        raise InvalidPayload(
            f"session.resume must have at most {REQUEST_LIMIT_BYTES} bytes, got {len(raw)}."
        )
    if codec.type_of(raw) != "session.resume":
        raise UnknownEvent("the first message is session.resume")
    return _requests.decode_client(raw)


def as_ack(frame: str | bytes) -> DeliveryAck | None:
    """The message as `session.ack`, if it is a valid one; else None."""
    if not isinstance(frame, str) or "session.ack" not in frame:
        return None
    try:
        return _ack.decode(frame)
    except msgspec.MsgspecError:
        return None


class Numbers(msgspec.Struct, frozen=True):
    """Fields of every server message if the client requested resuming. 0: absent."""

    seq: int = 0
    received: int = 0
    arrived: int = 0
    resume_token: str = ""
    resume_window_s: float = 0.0


_numbers = msgspec.json.Decoder(Numbers)


def numbers_of(frame: str | bytes) -> Numbers:
    """For clients: read the numbers of a message.

    Raises:
        InvalidJson, BadInput: it is not a valid message.
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
    """Append fields to a message (a JSON object with at least one field; in a binary message,
    followed by audio)."""
    if isinstance(frame, str):
        return f"{frame[:-1]},{fields}}}"
    head, sound = binary.split(frame)
    return binary.pack(f"{head.decode()[:-1]},{fields}}}", sound)
