"""What the three older dialects (chat, half-duplex, duplex) say alike: waiting, stopping, errors.

Errors carry the text under both documented names, `error` and `message`, and a machine code.
Source: service.md 2.4 (queue events), 4.0 (error shape), 4.7 rows 3, 4 and 14.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from parley.errors import ParleyError
from parley.protocol.values import Answer, Place

CloseReason = Literal["stopped", "timeout", "context_full", "server_shutdown", "error"]
"""Why a session ends, in every dialect. Names as in realtime's `session.closed`."""

CLOSE_CODES: Final[dict[CloseReason, int]] = {
    "stopped": 1000,
    "timeout": 1000,
    "context_full": 1000,
    "server_shutdown": 1001,
    "error": 1011,
}


class Queued(msgspec.Struct, tag="queued", frozen=True, kw_only=True):
    """The client has to wait. Both names of the estimate carry the same value; null: unknown."""

    position: int
    estimated_wait_s: float | None = None
    eta_seconds: float | None = None
    ticket_id: str = ""
    queue_length: int = 0


class QueueUpdate(msgspec.Struct, tag="queue_update", frozen=True, kw_only=True):
    """The client still waits."""

    position: int
    estimated_wait_s: float | None = None
    eta_seconds: float | None = None
    ticket_id: str = ""
    queue_length: int = 0


class QueueDone(msgspec.Struct, tag="queue_done", frozen=True, kw_only=True):
    """The wait is over."""


class Stopped(msgspec.Struct, tag="stopped", frozen=True, kw_only=True):
    """The session ended because someone asked for it."""

    session_id: str = ""


class Error(msgspec.Struct, tag="error", frozen=True, kw_only=True):
    """Something went wrong; `code` is stable, the texts are for people."""

    error: str = ""
    message: str = ""
    code: str = "internal_error"


def queued(place: Place) -> Queued:
    """First word to a client that has to wait."""
    return Queued(
        position=place.position,
        estimated_wait_s=place.estimated_wait_s,
        eta_seconds=place.estimated_wait_s,
        ticket_id=place.ticket_id,
        queue_length=place.queue_length,
    )


def queue_update(place: Place) -> QueueUpdate:
    """Later words to a client that still waits."""
    return QueueUpdate(
        position=place.position,
        estimated_wait_s=place.estimated_wait_s,
        eta_seconds=place.estimated_wait_s,
        ticket_id=place.ticket_id,
        queue_length=place.queue_length,
    )


def queue_done() -> QueueDone:
    """Last word of the queue."""
    return QueueDone()


def phrase(text: str, code: str) -> Error:
    """An error in both documented spellings."""
    return Error(error=text, message=text, code=code)


def error(failure: ParleyError) -> Error:
    """An error as a message."""
    return phrase(str(failure), failure.code)


def cancelled() -> Answer:
    """To a waiting client whose ticket was cancelled from outside (service.md 2.6)."""
    return Answer((phrase("Cancelled", "cancelled"),), 1000)
