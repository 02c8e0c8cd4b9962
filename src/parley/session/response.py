"""An answer of a conversation of items while it is made, and what cannot be asked of it.

Source: OpenAI Realtime (GA), responses.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from parley.dialects.events import ResponseRequested, TokenCounts
from parley.errors import InvalidRequest
from parley.protocol.values import make_id
from parley.session.items import ConversationItem
from parley.session.tool_calls import AnswerCalls


class ResponseInProgress(InvalidRequest):
    """A request for an answer while there is one."""

    code = "conversation_already_has_active_response"

    def __init__(self) -> None:
        super().__init__("A response is in progress: cancel it, or wait until it is done.")


class NothingToCancel(InvalidRequest):
    """A cancellation without an answer."""

    code = "response_cancel_not_active"

    def __init__(self) -> None:
        super().__init__("No such response is in progress: there is nothing to cancel.")


@dataclass(slots=True)
class Response:
    """An answer in progress.

    Args:
        cancelled: whether it is to end, and whether because somebody spoke.
    """

    request: ResponseRequested
    item: ConversationItem
    is_spoken: bool
    calls: AnswerCalls
    response_id: str = field(default_factory=lambda: make_id("resp"))
    text: str = ""
    audio_ms: float = 0.0
    index: int = 0
    is_cancelled: bool = False
    has_ended: bool = False
    tokens: TokenCounts = field(default_factory=TokenCounts)
