"""The table of dialects: name → path, messages, queue phrases, error phrases.

The gateway's lobby and the worker's translators speak to clients through a `Dialect`, so a sentence
exists once. Which errors end a connection, and with which code, is decided here and in the dialect
modules, nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol

import msgspec

from parley.errors import BadSessionId, InvalidPayload, ParleyError
from parley.protocol import chat, codec, duplex, half_duplex, legacy, realtime
from parley.protocol.control import TaskType
from parley.protocol.legacy import CloseReason
from parley.protocol.values import Answer, Place

DialectName = Literal["chat", "half_duplex", "duplex", "realtime"]

AUDIO_PREFIXES: Final = ("adx_", "adx-", "audio_duplex", "audio_")
"""A duplex session whose id starts so brings no video. Source: service.md 4.4."""


class Closed(Protocol):
    """The end of a session for a reason, in a dialect's words."""

    def __call__(
        self, reason: CloseReason, *, session_id: str = "", elapsed_s: float = 0.0
    ) -> Answer:
        """`elapsed_s` is what a timeout reports."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Dialect:
    """One public protocol.

    Args:
        path: public route; `{session_id}` is chosen by the client where present.
        announces_assignment: whether `queue_done` is sent without a wait too.
        decode_client: a client's frame → message, or a `BadInput`.
        decode_server: a server's frame → message.
        accepts: phase → names of the message types it acts on.
        check: raises what a phase answers to a message type that it does not accept.
        queued, queue_update: a place in the queue → message.
        error: an error → message.
        answer: an error in a running conversation → messages and perhaps a close code.
        cancelled: to a waiting client whose ticket was cancelled through REST.
        closed: the end for a reason → messages and a close code.
    """

    name: DialectName
    path: str
    announces_assignment: bool
    decode_client: Callable[[bytes | str], Any]
    decode_server: Callable[[bytes | str], Any]
    accepts: Mapping[Any, frozenset[str]]
    check: Callable[[Any, str], None]
    queued: Callable[[Place], msgspec.Struct]
    queue_update: Callable[[Place], msgspec.Struct]
    queue_done: Callable[[], msgspec.Struct]
    error: Callable[[ParleyError], msgspec.Struct]
    answer: Callable[[ParleyError], Answer]
    cancelled: Callable[[], Answer]
    closed: Closed

    def refuse(self, failure: ParleyError) -> Answer:
        """Turn a newcomer away: the error, then always the end."""
        return Answer((self.error(failure),), failure.close_code)

    def task(self, *, session_id: str = "", mode: str | None = None) -> TaskType:
        """What the queue calls a conversation.

        Args:
            session_id: chosen by the client (half-duplex, duplex).
            mode: realtime's query parameter; None means video.

        Raises:
            InvalidPayload: an unknown mode.
        """
        match self.name:
            case "chat":
                return "chat"
            case "half_duplex":
                return "half_duplex_audio"
            case "duplex":
                return "audio_duplex" if session_id.startswith(AUDIO_PREFIXES) else "omni_duplex"
            case "realtime":
                return "audio_duplex" if realtime_mode(mode) == "audio" else "omni_duplex"


def realtime_mode(text: str | None) -> realtime.Mode:
    """The `mode` parameter of a realtime connection; video when absent."""
    match text:
        case None | "" | "video":
            return "video"
        case "audio":
            return "audio"
        case _:
            raise InvalidPayload(
                f"mode is '{text[:40]}'; it must be 'video' or 'audio'.", field="mode"
            )


def check_session_id(text: str) -> str:
    """The id itself if it is one.

    Raises:
        BadSessionId: otherwise; ids are refused, never rewritten.
    """
    if not codec.is_session_id(text):
        raise BadSessionId
    return text


CHAT: Final = Dialect(
    name="chat",
    path=chat.PATH,
    announces_assignment=False,
    decode_client=chat.decode_client,
    decode_server=chat.decode_server,
    accepts=chat.ACCEPTS,
    check=chat.check,
    queued=legacy.queued,
    queue_update=legacy.queue_update,
    queue_done=legacy.queue_done,
    error=chat.error,
    answer=chat.answer,
    cancelled=legacy.cancelled,
    closed=chat.closed,
)

HALF_DUPLEX: Final = Dialect(
    name="half_duplex",
    path=half_duplex.PATH,
    announces_assignment=True,
    decode_client=half_duplex.decode_client,
    decode_server=half_duplex.decode_server,
    accepts=half_duplex.ACCEPTS,
    check=half_duplex.check,
    queued=legacy.queued,
    queue_update=legacy.queue_update,
    queue_done=legacy.queue_done,
    error=half_duplex.error,
    answer=half_duplex.answer,
    cancelled=legacy.cancelled,
    closed=half_duplex.closed,
)

DUPLEX: Final = Dialect(
    name="duplex",
    path=duplex.PATH,
    announces_assignment=True,
    decode_client=duplex.decode_client,
    decode_server=duplex.decode_server,
    accepts=duplex.ACCEPTS,
    check=duplex.check,
    queued=legacy.queued,
    queue_update=legacy.queue_update,
    queue_done=legacy.queue_done,
    error=duplex.error,
    answer=duplex.answer,
    cancelled=legacy.cancelled,
    closed=duplex.closed,
)

REALTIME: Final = Dialect(
    name="realtime",
    path=realtime.PATH,
    announces_assignment=True,
    decode_client=realtime.decode_client,
    decode_server=realtime.decode_server,
    accepts=realtime.ACCEPTS,
    check=realtime.check,
    queued=realtime.queued,
    queue_update=realtime.queue_update,
    queue_done=realtime.queue_done,
    error=realtime.error,
    answer=realtime.answer,
    cancelled=realtime.cancelled,
    closed=realtime.closed,
)

DIALECTS: Final[Mapping[DialectName, Dialect]] = {
    dialect.name: dialect for dialect in (CHAT, HALF_DUPLEX, DUPLEX, REALTIME)
}
