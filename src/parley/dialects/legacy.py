"""Shared by the three older dialects (chat, half-duplex, duplex): waiting, stopping, errors.

Errors have their text in the published field `error`; with extensions also in `message`, and a
code. Source: service.md 2.4, 4.0, 4.7.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import ClassVar

import msgspec
from msgspec import UNSET, UnsetType

from parley.dialects import events
from parley.dialects.base import Dialect, Reply
from parley.dialects.sound import within
from parley.errors import BadInput, MissingField, ParleyError
from parley.protocol import legacy
from parley.protocol.legacy import CloseReason, Error


class LegacyDialect(Dialect):
    """Queue messages and errors of chat, half-duplex and duplex."""

    keeps: ClassVar[frozenset[str]] = frozenset({"prepare"})
    ignores: ClassVar[frozenset[str]] = frozenset({"client_diagnostic"})
    queue_words = (legacy.Queued, legacy.QueueUpdate, legacy.QueueDone)
    event_words: ClassVar[Mapping[type, type[msgspec.Struct]]] = {
        events.InterruptionChanged: legacy.InterruptionMessage,
        events.RecordingLost: legacy.RecordingLostMessage,
        events.SilenceExplained: legacy.StatusMessage,
    }
    ends: ClassVar[Mapping[str, tuple[str, str]]] = {
        "context_full": ("The context is full.", "context_full"),
        "server_shutdown": ("The server is shutting down.", "service_unavailable"),
        "error": ("The session failed.", "inference_error"),
    }
    """Text and code of the error with which a session ends."""
    wants_transcript = False
    """True if the client requested transcripts of its speech."""

    def error(self, failure: ParleyError) -> msgspec.Struct:
        field = failure.field if isinstance(failure, BadInput) else None
        return phrase(str(failure), failure.code, field or UNSET)

    def transcript(self, event: events.TurnTranscribed) -> tuple[msgspec.Struct, ...]:
        """Transcript of the user's speech, for clients that requested it."""
        if not self.wants_transcript or event.text is None:
            return ()
        return (legacy.InputTranscript(index=event.index, text=event.text),)

    def last_words(self, reason: CloseReason, elapsed_s: float) -> tuple[msgspec.Struct, ...]:
        match reason:
            case "stopped":
                return (legacy.Stopped(session_id=self.session_id),)
            case "timeout":
                return (self.timed_out(elapsed_s),)
            case "context_full" | "server_shutdown" | "error":
                return (phrase(*self.ends[reason]),)

    @abstractmethod
    def timed_out(self, elapsed_s: float) -> msgspec.Struct:
        """The session ends because of a time limit."""

    def cancelled(self) -> Reply:
        return Reply((phrase("Cancelled", "cancelled"),), 1000, "cancelled")


def written(message: legacy.InputText) -> events.TextInput:
    """Written text and pictures as an event.

    Raises:
        MissingField: there is neither.
    """
    if not message.text.strip() and not message.images:
        raise MissingField("text")
    return events.TextInput(message.text.strip(), within(message.image_bytes))


def phrase(text: str, code: str, param: str | UnsetType = UNSET) -> Error:
    """An error in both documented forms. `param`: the invalid field."""
    return Error(error=text, message=text, code=code, param=param)
