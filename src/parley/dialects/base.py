"""Base class of public protocols: one class each, one object per connection.

The gateway makes such an object to talk to a client that waits or is refused; the worker makes one
to convert messages into events and events into messages. Both send the same messages, because they
use the same class. A dialect knows neither sockets nor models, and needs nothing that a gateway
does not have. docs/do/extend.md shows how to add one.
"""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Final, Literal, assert_never

import msgspec

from parley import errors
from parley.clock import Clock, SystemClock
from parley.dialects.events import ClientEvent, Failed, ServerEvent, SessionEnded, SessionReady
from parley.protocol import codec
from parley.protocol.control import Ability
from parley.protocol.kinds import Kind, Phase
from parley.protocol.legacy import CLOSE_CODES, CLOSE_SENTENCES, CloseReason
from parley.protocol.values import QueuePlace

Early = Literal["keep", "stop", "ignore"]
"""What happens to a message that arrives before there is a session."""

REASON_BYTES: Final = 123
"""Maximum length of the reason in a close frame, in bytes. Source: RFC 6455, 5.5.1."""


@dataclass(frozen=True, slots=True)
class UpgradeRequest:
    """A client's opening request, before any message.

    Args:
        path: the route, as in `Dialect.paths`.
        session_id: as the client chose it; empty if the path has none.
        headers: names in lower case.
    """

    path: str
    session_id: str = ""
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    subprotocols: tuple[str, ...] = ()

    @property
    def wants_extensions(self) -> bool:
        """True if the client requested extensions to the published protocol."""
        return self.query.get("extensions", "").lower() in ("true", "1", "yes")


@dataclass(frozen=True, slots=True)
class SessionContext:
    """Arguments of a dialect object, at the gateway and at the worker.

    Args:
        parameters: query parameters that are listed in `Dialect.parameters`.
        abilities: of the model; unknown at the gateway.
        clock: for times in messages.
        limit_s: maximum length of the session; unknown at the gateway.
    """

    session_id: str
    kind: Kind
    extensions: bool = False
    parameters: Mapping[str, str] = field(default_factory=dict)
    abilities: frozenset[Ability] = frozenset()
    clock: Clock = field(default_factory=SystemClock)
    limit_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Reply:
    """A dialect's reaction: messages to send, then perhaps a close code.

    Args:
        reason: sent in the close frame; cut to `REASON_BYTES`.
        offers_resume: True if these messages should contain the first token of a client that
            requested resuming (`wants_resume`), because the session is ready, or the client has
            just requested it.
        sound_ms: milliseconds of audio in each message, if they must be sent as they are played,
            because the client cannot discard audio. Empty: send all of them immediately.
    """

    messages: tuple[msgspec.Struct, ...] = ()
    close_code: int | None = None
    reason: str = ""
    offers_resume: bool = False
    sound_ms: tuple[float, ...] = ()


class Dialect(ABC):
    """One public protocol; an object serves one connection.

    A subclass sets the attributes below and implements `decode`, `messages` and `error`. Everything
    else has a default: a dialect without queue messages sends nothing while a client waits, and one
    without messages for the end only closes the connection.
    """

    name: ClassVar[str]
    """Name in the registry, in logs and recordings, and in messages to the worker."""
    paths: ClassVar[tuple[str, ...]]
    """Public routes; `{session_id}` is chosen by the client where present."""
    kind: ClassVar[Kind]
    """Kind of most of its sessions; `kind_of` decides for each."""
    accepts: ClassVar[Mapping[Phase, frozenset[str]]]
    """Phase → types of the messages that are accepted in it."""

    extra_types: ClassVar[frozenset[str]] = frozenset()
    """Types of messages that only clients with extensions may send; for other clients they are
    unknown."""

    precedence: ClassVar[int] = 0
    """Priority among dialects that share a path: `claims` is called in descending order."""
    first_types: ClassVar[frozenset[str]] = frozenset()
    """Types of a first message that identify this dialect if the request does not: another dialect
    of the same path that receives one of these hands over to this one."""
    has_items: ClassVar[bool] = False
    """True if its half-duplex sessions are conversations of items, in which the client can request
    answers (`session/conversation.py`)."""
    has_several_chats: ClassVar[bool] = False
    """True if its chat sessions answer several requests, one after the other
    (`session/chat.py`)."""
    parameters: ClassVar[frozenset[str]] = frozenset()
    """Names of query parameters that the worker needs too."""
    takes_settings: ClassVar[bool] = False
    """True if a client secret can contain initial settings of a session."""
    subprotocol: ClassVar[str | None] = None
    """Subprotocol that the server selects if the client offers it."""
    app_id: ClassVar[str | None] = None
    """A separate app that an operator may disable, in addition to the app of its kind."""

    queue_words: ClassVar[tuple[type[msgspec.Struct], ...]] = ()
    """The messages of the queue, if clients receive any: first, later and last one."""
    event_words: ClassVar[Mapping[type, type[msgspec.Struct]]] = {}
    """Message classes of events with the same fields; `messages` encodes the others."""
    announces_assignment: ClassVar[bool] = True
    """True if `queue_done` is sent even without a wait."""
    asks_first: ClassVar[bool] = False
    """True if the first message is read before the client joins the queue (chat)."""
    keeps: ClassVar[frozenset[str]] = frozenset()
    """Types of messages that are accepted while the client waits, and kept for the worker."""
    keeps_most: ClassVar[int] = 1
    stops: ClassVar[frozenset[str]] = frozenset({"stop"})
    """Types of messages with which a waiting client leaves."""
    ignores: ClassVar[frozenset[str]] = frozenset()
    """Types of messages that are ignored while the client waits."""
    refuses_by_status: ClassVar[bool] = False
    """True if a refusal is an HTTP status instead of the upgrade (see `refuse_upgrade`), for
    protocols that have no message for it."""
    leaves_open: ClassVar[tuple[type[errors.ParleyError], ...]] = (
        errors.BadInput,
        errors.UpstreamFailed,
    )
    """Errors after which a session stays open; any other ends it. `UpstreamFailed`: a server behind
    the model did not answer."""
    closes_after: ClassVar[tuple[type[errors.ParleyError], ...]] = ()
    """Subclasses of these errors that end it all the same."""
    close_codes: ClassVar[Mapping[CloseReason, int]] = CLOSE_CODES

    on_loop_bytes: int = 65_536
    """Longer messages are decoded in a thread, so that a large one does not delay other sessions.
    A second of float32 is longer than this."""

    not_kept: ClassVar[frozenset[str]] = frozenset({"context"})
    """Attributes that `remembered` omits."""

    is_timed_call: ClassVar[bool] = False
    """True if a duplex session has the total time limit of a realtime call, which may count from
    the handshake, instead of a session limit and a limit of silence."""
    context_tokens: ClassVar[int | None] = None
    """Maximum length of the context; None: the model's limit."""
    prompt_room_tokens: ClassVar[int] = 0
    """Tokens of the context that a prompt must leave free."""

    def __init__(self, context: SessionContext) -> None:
        self.context = context
        self.extensions = context.extensions
        """True if extensions to the published protocol are sent."""
        self.wants_resume = False
        """True if the client requested resuming; see `protocol/resume.py`."""

    @property
    def session_id(self) -> str:
        """The id that the client chose or `new_session_id` made."""
        return self.context.session_id

    # ---- another worker continues ------------------------------------------------------------

    def remembered(self) -> dict[str, Any]:
        """This object's state as values, for `restore` of another object."""
        return {name: value for name, value in vars(self).items() if name not in self.not_kept}

    def restore(self, remembered: Mapping[str, Any]) -> None:
        """Take over the state of another object of this class."""
        for name, value in remembered.items():
            if hasattr(self, name):
                setattr(self, name, value)

    # ---- the opening request ---------------------------------------------------------------

    @classmethod
    def claims(cls, request: UpgradeRequest) -> bool:
        """True if the client's request shows that it uses this dialect."""
        del request
        return True

    @classmethod
    def kind_of(cls, request: UpgradeRequest) -> Kind:
        """Kind of this client's session.

        Raises:
            InvalidPayload: the request names something that does not exist.
        """
        del request
        return cls.kind

    @classmethod
    def new_session_id(cls, now_s: float) -> str:
        """A session id for a client that did not choose one. `now_s`: Unix time."""
        del now_s
        return f"{cls.name}_{secrets.token_hex(16)}"

    def refuse_upgrade(self, failure: errors.ParleyError) -> tuple[int, dict[str, Any]]:
        """HTTP status and JSON body of a refusal instead of the upgrade (`refuses_by_status`)."""
        status = 429 if isinstance(failure, errors.QueueFull) else failure.http_status
        return status, {"detail": str(failure), "code": failure.code}

    # ---- while the client waits ------------------------------------------------------------

    def queued(self, place: QueuePlace) -> msgspec.Struct | None:
        """First message to a client that has to wait; None: it receives none."""
        return self.queue_words[0](**_place_fields(place)) if self.queue_words else None

    def queue_update(self, place: QueuePlace) -> msgspec.Struct | None:
        """Later messages to a client that still waits."""
        return self.queue_words[1](**_place_fields(place)) if self.queue_words else None

    def queue_done(self) -> msgspec.Struct | None:
        """Last message of the queue."""
        return self.queue_words[2]() if self.queue_words else None

    def check_request(self, frame: bytes | bytearray | str) -> None:
        """Examine the message that precedes the queue (`asks_first`), so that no client waits in
        vain, and read the options for messages from it.

        Raises:
            BadInput: it is invalid.
        """
        del frame

    def early(self, type_name: str) -> Early:
        """What happens to a message that arrives before there is a session.

        Raises:
            UnknownEvent: the type is unknown.
            BadInput: it is not allowed now; see `check`.
        """
        if type_name in self.stops:
            return "stop"
        if type_name in self.ignores:
            return "ignore"
        if not any(type_name in types for types in self.accepts.values()):
            raise errors.UnknownEvent(type_name)
        self.check(Phase.QUEUED, type_name)
        return "keep" if type_name in self.keeps else "ignore"

    # ---- client → server -------------------------------------------------------------------

    def check(self, phase: Phase, type_name: str) -> None:
        """Refuse messages that `phase` does not accept.

        Raises:
            UnknownEvent: one of `extra_types`, from a client without extensions.
            BadInput: see `misplaced`.
        """
        if type_name in self.extra_types and not self.extensions:
            raise errors.UnknownEvent(type_name)
        if type_name not in self.accepts.get(phase, ()):
            raise self.misplaced(phase, type_name)

    def misplaced(self, phase: Phase, type_name: str) -> errors.BadInput:
        """The error for a message that `phase` does not accept."""
        return errors.WrongPhase(type_name, phase)

    def text_of(self, frame: bytes) -> str:
        """Convert a binary message to the equivalent text.

        Raises:
            InvalidJson: this dialect has no binary messages.
        """
        del frame
        raise errors.InvalidJson("Messages must be JSON text, got a binary message.")

    @abstractmethod
    def decode(self, frame: str, phase: Phase) -> Any:
        """Decode a message: an event, None if it is ignored, or any value for `events`.

        Called once per message, in order; in a thread if the message is long, so it must not use
        state that other methods change.

        Raises:
            ParleyError: it is invalid, or not allowed in this phase; the message is dropped.
        """

    def voice_in(self, decoded: Any) -> tuple[str, errors.BadInput] | None:
        """The registered voice that a decoded message names, and the error for the message if that
        voice does not exist."""
        return None

    def events(self, decoded: Any, phase: Phase) -> Sequence[ClientEvent | Reply]:
        """The events and immediate answers that result from a decoded message, in order. Called on
        the event loop, where state may be changed.

        Raises:
            ParleyError: as `decode`.
        """
        del phase
        return () if decoded is None else (decoded,)

    # ---- server → client -------------------------------------------------------------------

    def greet(self) -> Reply:
        """Messages that the worker sends before it has received any."""
        return Reply()

    def encode(self, event: ServerEvent) -> Reply:
        """An event in this dialect. The last one, `SessionEnded`, always has a close code."""
        match event:
            case Failed(error):
                return self.answer(error)
            case SessionEnded():
                return self.ending(event)
            case _ if words := self.event_words.get(type(event)):
                return Reply((words(**asdict(event)),))
            case _:
                is_ready = isinstance(event, SessionReady)
                return Reply(tuple(self.messages(event)), offers_resume=is_ready)

    @abstractmethod
    def messages(self, event: ServerEvent) -> Sequence[msgspec.Struct]:
        """Encode any event except `Failed`, `SessionEnded` and those of `event_words`; empty if
        there are no messages for it."""

    def frames(self, reply: Reply) -> tuple[str | bytes, ...]:
        """Encode messages as WebSocket messages, text or binary."""
        frames = (self.frame(message) for message in reply.messages)
        return tuple(frame for frame in frames if frame is not None)

    def frame(self, message: msgspec.Struct) -> str | bytes | None:
        """Encode one message for this client; None if nothing is to be sent."""
        return codec.encode_for(message, extensions=self.extensions)

    # ---- errors and the end ----------------------------------------------------------------

    @abstractmethod
    def error(self, failure: errors.ParleyError) -> msgspec.Struct:
        """An error as a message."""

    def answer(self, failure: errors.ParleyError) -> Reply:
        """Reaction to an error in a session; see `leaves_open`."""
        stays = isinstance(failure, self.leaves_open) and not isinstance(failure, self.closes_after)
        close_code = None if stays else failure.close_code
        return Reply((self.error(failure),), close_code, str(failure))

    def refuse(self, failure: errors.ParleyError) -> Reply:
        """Refuse a new client: the error, then always a close."""
        return Reply((self.error(failure),), failure.close_code, str(failure))

    def cancelled(self) -> Reply:
        """Reaction for a waiting client whose ticket was cancelled by others (service.md 2.6)."""
        return self.closed("stopped")

    def shutting_down(self, failure: errors.ParleyError) -> Reply:
        """Reaction for a client without a session when the server shuts down; `failure` is the
        error."""
        return self.refuse(failure)

    def closed(self, reason: CloseReason, *, elapsed_s: float = 0.0) -> Reply:
        """Reaction for the end of a session. `elapsed_s`: duration that a timeout reports."""
        words = self.last_words(reason, elapsed_s)
        return Reply(words, self.close_codes[reason], CLOSE_SENTENCES[reason])

    def last_words(self, reason: CloseReason, elapsed_s: float) -> tuple[msgspec.Struct, ...]:
        """The messages with which a session ends; see `closed`."""
        del reason, elapsed_s
        return ()

    def ending(self, ended: SessionEnded) -> Reply:
        """The last message: about the error that closed the session, or the reason. A client that
        left, or has received everything, is sent nothing more."""
        if ended.error is not None:
            answer = self.answer(ended.error)
            if answer.close_code is not None:
                return answer
        match ended.reason:
            case "done" | "disconnected":
                return Reply(close_code=1000)
            case "stopped" | "timeout" | "context_full" | "server_shutdown" | "error" as reason:
                return self.closed(reason, elapsed_s=ended.elapsed_s)
            case _ as never:
                assert_never(never)


def close_reason(sentence: str) -> str:
    """A sentence as the reason of a close frame; if it is too long, it is cut between
    characters."""
    data = sentence.encode()
    if len(data) <= REASON_BYTES:
        return sentence
    return data[: REASON_BYTES - 3].decode(errors="ignore") + "..."


def _place_fields(place: QueuePlace) -> dict[str, Any]:
    return {**asdict(place), "eta_seconds": place.estimated_wait_s}
