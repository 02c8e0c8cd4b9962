"""Base class of public protocols: one class each, one object per connection.

The gateway makes such an object to speak to a client that waits or is refused; the worker makes one
to turn messages into events and events into messages. Both know the same sentences, because it is
the same class. A dialect knows no sockets and no model, and needs nothing that a gateway lacks.
docs/do/extend.md shows how to add one.
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
"""Largest reason of a close frame, in bytes. Source: RFC 6455, 5.5.1."""


@dataclass(frozen=True, slots=True)
class UpgradeRequest:
    """A client's opening request, before any message.

    Args:
        path: the route, as in `Dialect.paths`.
        session_id: as the client chose it; empty where the path has none.
        headers: names in lower case.
    """

    path: str
    session_id: str = ""
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    subprotocols: tuple[str, ...] = ()

    @property
    def wants_extensions(self) -> bool:
        """True if the client asked for what the requirement texts do not name."""
        return self.query.get("extensions", "").lower() in ("true", "1", "yes")


@dataclass(frozen=True, slots=True)
class SessionContext:
    """Arguments of a connection's object, at the gateway and at the worker.

    Args:
        parameters: those of the query that the dialect names in `Dialect.parameters`.
        abilities: of the model; none are known at the gateway.
        clock: for times that messages carry.
    """

    session_id: str
    kind: Kind
    extensions: bool = False
    parameters: Mapping[str, str] = field(default_factory=dict)
    abilities: frozenset[Ability] = frozenset()
    clock: Clock = field(default_factory=SystemClock)


@dataclass(frozen=True, slots=True)
class Reply:
    """A dialect's reaction: messages to send, then perhaps a close code.

    Args:
        reason: said in the close frame; at most `REASON_BYTES` of it.
        offers_resume: these messages hold the first token of a client that has asked to be able to
            come back (`wants_resume`): the session is ready, or it has asked just now.
        sound_ms: how much sound each message holds, where they are to be sent as they are played:
            the client cannot be made to drop what it has. Empty: all together.
    """

    messages: tuple[msgspec.Struct, ...] = ()
    close_code: int | None = None
    reason: str = ""
    offers_resume: bool = False
    sound_ms: tuple[float, ...] = ()


class Dialect(ABC):
    """One public protocol; an object serves one connection.

    A subclass states the facts below and has `decode`, `messages` and `error`. Everything else has
    a default: a dialect without words for the queue says nothing while a client waits, and one
    without words for the end only closes.
    """

    name: ClassVar[str]
    """In the registry, in logs and recordings, and in messages to the worker."""
    paths: ClassVar[tuple[str, ...]]
    """Public routes; `{session_id}` is chosen by the client where present."""
    kind: ClassVar[Kind]
    """Kind of most of its sessions; `kind_of` decides for each."""
    accepts: ClassVar[Mapping[Phase, frozenset[str]]]
    """Phase → types of the messages that it acts on."""

    extra_types: ClassVar[frozenset[str]] = frozenset()
    """Types of messages that only clients with extensions may send; for others there are no
    such messages."""

    precedence: ClassVar[int] = 0
    """Among dialects that share a path, the highest is the first whose `claims` is called."""
    first_types: ClassVar[frozenset[str]] = frozenset()
    """Types of a first message that mark this dialect where the request could not: a dialect of the
    same path that meets one of these hands over to this one."""
    has_items: ClassVar[bool] = False
    """True if its half-duplex sessions are conversations of items, which are answered when the
    client asks (`session/conversation.py`)."""
    has_several_chats: ClassVar[bool] = False
    """True if its chat sessions answer one request after the other (`session/chat.py`)."""
    parameters: ClassVar[frozenset[str]] = frozenset()
    """Names of query parameters that the worker needs to know, too."""
    takes_settings: ClassVar[bool] = False
    """True if a session begins with what its client secret sets."""
    subprotocol: ClassVar[str | None] = None
    """Subprotocol that the server selects if the client offers it."""
    app_id: ClassVar[str | None] = None
    """An app of its own that an operator may switch off, next to the one of its kind."""

    queue_words: ClassVar[tuple[type[msgspec.Struct], ...]] = ()
    """The messages of the queue, where clients receive any: first, later and last one."""
    event_words: ClassVar[Mapping[type, type[msgspec.Struct]]] = {}
    """The messages of events that say the same in the same fields; `messages` has the others."""
    announces_assignment: ClassVar[bool] = True
    """True if `queue_done` is sent without a wait, too."""
    asks_first: ClassVar[bool] = False
    """True if the first message comes before the place in the queue (chat)."""
    keeps: ClassVar[frozenset[str]] = frozenset()
    """Types of messages that may come while the client waits, and are kept for the worker."""
    keeps_most: ClassVar[int] = 1
    stops: ClassVar[frozenset[str]] = frozenset({"stop"})
    """Types of messages with which a waiting client leaves."""
    ignores: ClassVar[frozenset[str]] = frozenset()
    """Types of messages that are ignored while the client waits."""
    refuses_by_status: ClassVar[bool] = False
    """True if a refusal is an HTTP status in place of the upgrade (see `refuse_upgrade`), for
    protocols that have no message for it."""
    leaves_open: ClassVar[tuple[type[errors.ParleyError], ...]] = (
        errors.BadInput,
        errors.UpstreamFailed,
    )
    """Errors after which a session stays open; any other ends it. The second is a server behind the
    model that did not answer once."""
    closes_after: ClassVar[tuple[type[errors.ParleyError], ...]] = ()
    """Those of them that end it all the same."""
    close_codes: ClassVar[Mapping[CloseReason, int]] = CLOSE_CODES

    not_kept: ClassVar[frozenset[str]] = frozenset({"context"})
    """Attributes that `remembered` leaves out."""

    is_timed_call: ClassVar[bool] = False
    """True if a duplex session has the total time of a realtime call, which may count from the
    accept, instead of a session limit and a limit of silence."""
    context_tokens: ClassVar[int | None] = None
    """Most that a context may hold; None: what the model can."""
    prompt_room_tokens: ClassVar[int] = 0
    """Tokens of the context that a prompt must leave free."""

    def __init__(self, context: SessionContext) -> None:
        self.context = context
        self.extensions = context.extensions
        """True if the client is sent what the requirement texts do not name."""
        self.wants_resume = False
        """True if the client asked to be able to continue over another connection; see
        `protocol/resume.py`."""

    @property
    def session_id(self) -> str:
        """As the client chose it, or as `new_session_id` made it."""
        return self.context.session_id

    # ---- another worker continues ------------------------------------------------------------

    def remembered(self) -> dict[str, Any]:
        """This object's state of its conversation, as values, for `restore` of another object."""
        return {name: value for name, value in vars(self).items() if name not in self.not_kept}

    def restore(self, remembered: Mapping[str, Any]) -> None:
        """Know what another object of this class knew."""
        for name, value in remembered.items():
            if hasattr(self, name):
                setattr(self, name, value)

    # ---- the opening request ---------------------------------------------------------------

    @classmethod
    def claims(cls, request: UpgradeRequest) -> bool:
        """True if this client speaks this dialect, as far as its request shows."""
        del request
        return True

    @classmethod
    def kind_of(cls, request: UpgradeRequest) -> Kind:
        """Name of this client's session in the queue.

        Raises:
            InvalidPayload: the request names something that does not exist.
        """
        del request
        return cls.kind

    @classmethod
    def token_of(cls, request: UpgradeRequest) -> str | None:
        """The client's token where it is not in the `Authorization` header."""
        return request.query.get("token")

    @classmethod
    def new_session_id(cls, now_s: float) -> str:
        """An id for a client that did not choose one. `now_s`: Unix seconds."""
        del now_s
        return f"{cls.name}_{secrets.token_hex(16)}"

    def refuse_upgrade(self, failure: errors.ParleyError) -> tuple[int, dict[str, Any]]:
        """HTTP status and JSON body of a refusal in place of the upgrade (`refuses_by_status`)."""
        status = 429 if isinstance(failure, errors.QueueFull) else failure.http_status
        return status, {"detail": str(failure), "code": failure.code}

    # ---- while the client waits ------------------------------------------------------------

    def queued(self, place: QueuePlace) -> msgspec.Struct | None:
        """First word to a client that has to wait; None: it receives nothing."""
        return self.queue_words[0](**_place_fields(place)) if self.queue_words else None

    def queue_update(self, place: QueuePlace) -> msgspec.Struct | None:
        """Later words to a client that still waits."""
        return self.queue_words[1](**_place_fields(place)) if self.queue_words else None

    def queue_done(self) -> msgspec.Struct | None:
        """Last word of the queue."""
        return self.queue_words[2]() if self.queue_words else None

    def check_request(self, frame: bytes | bytearray | str) -> None:
        """Look at the message that comes before the place in the queue (`asks_first`), so that
        no client waits in vain, and take from it how the client wants to be spoken to.

        Raises:
            BadInput: it makes no sense.
        """
        del frame

    def early(self, type_name: str) -> Early:
        """What happens to a message that arrives before there is a session.

        Raises:
            UnknownEvent: there is no such message.
            BadInput: it may not come now; see `check`.
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
        """Refuse what `phase` does not accept.

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
        """A binary message as the text it stands for.

        Raises:
            InvalidJson: binary messages are not part of this.
        """
        del frame
        raise errors.InvalidJson("Messages must be JSON text, got a binary message.")

    @abstractmethod
    def decode(self, frame: str, phase: Phase) -> Any:
        """What a message says: an event, None where it is ignored, or whatever `events` takes.

        Called once per message, one after the other, in a thread where the message is long; so it
        leaves alone what the rest of the object changes.

        Raises:
            ParleyError: it makes no sense, or not in this phase; the message is dropped.
        """

    def voice_in(self, decoded: Any) -> tuple[str, errors.BadInput] | None:
        """A registered voice that a decoded message names again, and what is wrong with the message
        if there is no such voice."""
        return None

    def events(self, decoded: Any, phase: Phase) -> Sequence[ClientEvent | Reply]:
        """What is to be done about a decoded message: events for the runner and answers that need
        no runner, in this order. Called on the event loop, where state is safe.

        Raises:
            ParleyError: as `decode`.
        """
        del phase
        return () if decoded is None else (decoded,)

    # ---- server → client -------------------------------------------------------------------

    def greet(self) -> Reply:
        """Messages of the worker before it has received any."""
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
        """Any event but `Failed`, `SessionEnded` and those of `event_words` as messages; none where
        there are no words."""

    def frames(self, reply: Reply) -> tuple[str | bytes, ...]:
        """Messages as WebSocket messages, text or binary."""
        frames = (self.frame(message) for message in reply.messages)
        return tuple(frame for frame in frames if frame is not None)

    def frame(self, message: msgspec.Struct) -> str | bytes | None:
        """One message as this client is to read it; None when there is nothing to send."""
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
        """Turn a newcomer away: the error, then always the end."""
        return Reply((self.error(failure),), failure.close_code, str(failure))

    def cancelled(self) -> Reply:
        """To a waiting client whose ticket was cancelled from outside (service.md 2.6)."""
        return self.closed("stopped")

    def shutting_down(self, failure: errors.ParleyError) -> Reply:
        """To a client without a session when the server shuts down, which `failure` says."""
        return self.refuse(failure)

    def closed(self, reason: CloseReason, *, elapsed_s: float = 0.0) -> Reply:
        """The end of a session for a reason. `elapsed_s`: what a timeout reports."""
        words = self.last_words(reason, elapsed_s)
        return Reply(words, self.close_codes[reason], CLOSE_SENTENCES[reason])

    def last_words(self, reason: CloseReason, elapsed_s: float) -> tuple[msgspec.Struct, ...]:
        """The messages with which a session ends for a reason; see `closed`."""
        del reason, elapsed_s
        return ()

    def ending(self, ended: SessionEnded) -> Reply:
        """The last word: of the error that closed the session, else of the reason. A client that
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
    """A sentence as the reason of a close frame: cut, at a whole character, where it is too
    long."""
    data = sentence.encode()
    if len(data) <= REASON_BYTES:
        return sentence
    return data[: REASON_BYTES - 3].decode(errors="ignore") + "..."


def _place_fields(place: QueuePlace) -> dict[str, Any]:
    return {**asdict(place), "eta_seconds": place.estimated_wait_s}
