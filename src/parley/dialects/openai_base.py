"""Shared by OpenAI's dialects: errors name the client's event, and events have ids."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Generic, TypeVar

import msgspec

from parley.dialects.base import Dialect, Reply, SessionContext
from parley.dialects.events import ClientEvent, Failed, ServerEvent
from parley.errors import BadInput, ParleyError, QueueFull
from parley.protocol import codec, openai
from parley.protocol.kinds import Phase

M = TypeVar("M", bound=openai.OpenAIClientEvent)


@dataclass(frozen=True, slots=True, eq=False)
class Decoded(Generic[M]):
    """A message with its decoded media: audio at 16 kHz, a picture file, content of items."""

    message: M
    media: Any = None


class OpenAIDialect(Dialect):
    """A dialect whose messages may have an `event_id`, which errors and answers refer to."""

    announces_assignment = False
    refuses_by_status = True
    client_messages: ClassVar[codec.Messages[Any, Any]]
    event_id_name: ClassVar[str] = "event_id"
    """Field of an error with the id of the client's event."""

    def __init__(self, context: SessionContext) -> None:
        super().__init__(context)
        self._event_id: str | None = None
        """`event_id` of the client's newest message."""

    def refuse_upgrade(self, failure: ParleyError) -> tuple[int, dict[str, Any]]:
        status = 429 if isinstance(failure, QueueFull) else failure.http_status
        return status, {"error": self.error_object(failure)}

    # ---- client → server -------------------------------------------------------------------

    def decode(self, frame: str, phase: Phase) -> Any:
        try:
            return self.read(self.client_messages.decode_client(frame, partial(self.check, phase)))
        except BadInput as error:
            error.client_event_id = openai.event_id_of(frame)
            raise

    @abstractmethod
    def read(self, message: Any) -> Decoded[Any]:
        """A message with its media decoded; as `decode`."""

    def events(self, decoded: Decoded[Any], phase: Phase) -> Sequence[ClientEvent | Reply]:
        self._event_id = decoded.message.event_id
        try:
            return self.act(decoded)
        except BadInput as error:
            error.client_event_id = self._event_id
            raise

    @abstractmethod
    def act(self, decoded: Any) -> Sequence[ClientEvent | Reply]:
        """Reaction to a message; as `events`."""

    # ---- server → client -------------------------------------------------------------------

    def encode(self, event: ServerEvent) -> Reply:
        if isinstance(event, Failed) and event.event is not None:
            event.error.client_event_id = self._event_id
        return super().encode(event)

    def frame(self, message: msgspec.Struct) -> str:
        return openai.encode(message)

    def error_object(self, failure: ParleyError) -> dict[str, Any]:
        """An error in OpenAI's format."""
        return {
            "type": "invalid_request_error" if failure.is_client_error else "server_error",
            "code": openai.code_of(failure.code),
            "message": str(failure),
            "param": getattr(failure, "field", None),
            self.event_id_name: failure.client_event_id,
        }
