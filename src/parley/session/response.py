"""An answer of a conversation of turns while it is generated, and checks of its options.

Source: OpenAI Realtime (GA), responses.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from parley.dialects.events import HalfDuplexSetup, ResponseRequested, ServerEvent, TokenCounts
from parley.errors import InvalidRequest
from parley.protocol.values import make_id
from parley.session.tool_calls import AnswerCalls
from parley.session_log.items import ConversationItem


class ResponseInProgress(InvalidRequest):
    """Error for a request for an answer while another one is in progress."""

    code = "conversation_already_has_active_response"
    sentence = "A response is in progress: cancel it, or wait until it is done."


class NothingToCancel(InvalidRequest):
    code = "response_cancel_not_active"
    # LiveKit's agents check for these first two words.
    sentence = "Cancellation failed: no active response found."


@dataclass(slots=True)
class Response:
    """An answer in progress.

    Args:
        turn: its number, from 0.
        setup: the session's when it was started; a later change applies to the next answer.
        send: emits an event of the session.
    """

    turn: int
    request: ResponseRequested
    item: ConversationItem
    setup: HalfDuplexSetup
    is_spoken: bool
    send: Callable[[ServerEvent], None]
    calls: AnswerCalls = field(init=False)
    response_id: str = field(default_factory=lambda: make_id("resp"))
    text: str = ""
    audio_ms: float = 0.0
    index: int = 0
    place: tuple[int, int] = (0, 0)
    """Number of its events that were emitted, without its start; and of the next one, the number
    of pieces."""
    skips: tuple[int, int] = (0, 0)
    """The place up to which the client received it from another worker."""
    is_filled: bool = False
    """True if the context contains everything that it answers."""
    is_started: bool = False
    """True if the model has started to answer."""
    is_transcribed: bool = False
    """True if the client has received the transcript of the user's turn."""
    is_cancelled: bool = False
    is_unsaid: bool = False
    """True if it ended before anything was said: the context contains nothing of it."""
    has_ended: bool = False
    tokens: TokenCounts = field(default_factory=TokenCounts)

    def emit(self, event: ServerEvent, *, is_whole: bool = True) -> None:
        """Emit one of its events, except its start and end. `is_whole`: False if more pieces of it
        follow: another worker's voice may need fewer of them, but as many events."""
        if self.place >= self.skips:
            self.send(event)
        events, pieces = self.place
        self.place = (events + 1, 0) if is_whole else (events, pieces + 1)

    def remembered(self) -> dict[str, Any]:
        """What the client knows of it, as values."""
        return {
            "request": self.request,
            "response_id": self.response_id,
            "item_id": self.item.item_id,
            "is_spoken": self.is_spoken,
            "text": self.text,
            "audio_ms": self.audio_ms,
            "place": max(self.place, self.skips),
            "has_calls": self.calls.has_started,
            "has_ended": self.has_ended,
        }
