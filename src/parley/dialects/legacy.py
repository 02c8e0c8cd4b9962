"""What the three older dialects (chat, half-duplex, duplex) say alike: waiting, stopping, errors.

Errors carry the text under the name of the requirement texts, `error`; with extensions also under
`message`, and a machine code.
Source: service.md 2.4, 4.0, 4.7.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from parley.dialects.base import Dialect, Reply, place_fields
from parley.dialects.events import (
    InterruptionChanged,
    RecordingLost,
    SilenceExplained,
    TextInput,
    UserTranscribed,
)
from parley.dialects.sound import within
from parley.errors import MissingField, ParleyError
from parley.protocol import legacy
from parley.protocol.legacy import Error, Queued, QueueDone, QueueUpdate
from parley.protocol.values import QueuePlace


class LegacyDialect(Dialect):
    """Queue words and errors of chat, half-duplex and duplex."""

    keeps: ClassVar[frozenset[str]] = frozenset({"prepare"})
    ignores: ClassVar[frozenset[str]] = frozenset({"client_diagnostic"})
    wants_transcript = False
    """Whether the client asked for what it was heard to say."""

    def queued(self, place: QueuePlace) -> Queued:
        return Queued(**place_fields(place))

    def queue_update(self, place: QueuePlace) -> QueueUpdate:
        return QueueUpdate(**place_fields(place))

    def queue_done(self) -> QueueDone:
        return QueueDone()

    def error(self, failure: ParleyError) -> msgspec.Struct:
        return phrase(str(failure), failure.code)

    def transcript(self, event: UserTranscribed) -> tuple[msgspec.Struct, ...]:
        """What the user was heard to say, for whoever asked."""
        if not self.wants_transcript:
            return ()
        return (legacy.InputTranscript(index=event.index, text=event.text),)

    def cancelled(self) -> Reply:
        return Reply((phrase("Cancelled", "cancelled"),), 1000, "cancelled")


def written(message: legacy.InputText) -> TextInput:
    """Written words and pictures as an event.

    Raises:
        MissingField: there are neither.
    """
    if not message.text.strip() and not message.images:
        raise MissingField("text")
    return TextInput(message.text.strip(), within(message.image_bytes))


def extra(event: InterruptionChanged | RecordingLost | SilenceExplained) -> msgspec.Struct:
    """What the three say alike of a running conversation."""
    if isinstance(event, RecordingLost):
        return legacy.RecordingLost(entries=event.entries)
    if isinstance(event, SilenceExplained):
        return legacy.Status(reason=event.reason, elapsed_ms=event.elapsed_ms)
    return legacy.Interruption(
        state=event.state, index=event.index, heard_ms=event.heard_ms, text=event.text
    )


def phrase(text: str, code: str) -> Error:
    """An error in both documented spellings."""
    return Error(error=text, message=text, code=code)
