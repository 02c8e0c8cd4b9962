"""The chat dialect. Source: service.md 4.2, 4.7 rows 10-12."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Final

import msgspec

from parley.dialects import events
from parley.dialects.base import Early, Reply, SessionContext
from parley.dialects.chat_request import requested
from parley.dialects.legacy import LegacyDialect, phrase
from parley.dialects.sound import pcm_text
from parley.errors import BadInput, ContextFull, InvalidRequest, ParleyError, WrongPhase
from parley.protocol import chat, codec
from parley.protocol.kinds import Ending, Kind, Phase
from parley.protocol.legacy import CloseReason, Stop

_STOP: Final = frozenset({"stop"})

_ENDINGS: Final[dict[Ending, chat.EarlyEnding]] = {
    Ending.LIMIT: "limit",
    Ending.CANCELLED: "cancelled",
}


class ChatDialect(LegacyDialect):
    """One request, one answer. The request may also request extensions."""

    name = "chat"
    close_codes: ClassVar[Mapping[CloseReason, int]] = {
        **LegacyDialect.close_codes,
        "timeout": 1008,
        "context_full": 1008,
    }
    ends: ClassVar[Mapping[str, tuple[str, str]]] = {
        **LegacyDialect.ends,
        "error": ("The request failed.", "inference_error"),
    }
    paths = (chat.PATH,)
    kind = Kind.CHAT
    accepts: ClassVar[Mapping[Phase, frozenset[str]]] = {
        Phase.CONNECTED: frozenset({"request"}),
        Phase.QUEUED: _STOP,
        Phase.PREPARING: _STOP,
        Phase.GENERATING: _STOP,
    }
    """`request` is the message without a type. After the request, messages that a phase does not
    accept are ignored (service.md 4.2), so only `CONNECTED` refuses."""
    announces_assignment = False
    asks_first = True

    def __init__(self, context: SessionContext) -> None:
        super().__init__(context)
        self._has_tools = False
        self._call_id = ""

    # ---- client → server -------------------------------------------------------------------

    def misplaced(self, phase: Phase, type_name: str) -> BadInput:
        """`InvalidRequest` for a first message that is not a request; later messages are
        ignored."""
        if phase is Phase.CONNECTED:
            return InvalidRequest("The first message must be a chat request.")
        return WrongPhase(type_name, phase)

    def check_request(self, frame: bytes | bytearray | str) -> None:
        self._request(frame)

    def early(self, type_name: str) -> Early:
        return "stop" if type_name in self.stops else "ignore"

    def decode(self, frame: str, phase: Phase) -> events.ClientEvent | None:
        """After the request everything except `stop` is ignored, even invalid JSON."""
        if phase is not Phase.CONNECTED:
            return events.StopRequested() if _is_stop(frame) else None
        return requested(self._request(frame))

    def _request(self, frame: bytes | bytearray | str) -> chat.Request:
        message = chat.decode_client(frame)
        if isinstance(message, Stop):
            raise InvalidRequest("The first message must be a chat request.")
        self.extensions = self.extensions or message.extensions
        self._has_tools = bool(message.tools)
        return message

    # ---- server → client -------------------------------------------------------------------

    def messages(self, event: events.ServerEvent) -> Sequence[msgspec.Struct]:
        match event:
            case events.Prefilled():
                return (chat.PrefillDone(input_tokens=event.input_tokens),)
            case events.OutputDelta():
                return _chunks(event)
            case events.AnswerDone():
                return (
                    chat.Done(
                        text=event.text,
                        generated_tokens=event.generated_tokens,
                        input_tokens=event.input_tokens,
                        audio_data=pcm_text(event.pcm),
                        stopped=event.is_stopped,
                        ending=_ENDINGS.get(event.ending, msgspec.UNSET),
                        heard=event.heard or msgspec.UNSET,
                        words=event.words or msgspec.UNSET,
                        tool_calls=event.calls if self._has_tools else msgspec.UNSET,
                        recording_session_id=event.recording_id or msgspec.UNSET,
                    ),
                )
            case events.ToolCallStarted():
                self._call_id = event.call_id
                return (chat.ToolCall(index=event.index, id=event.call_id, name=event.name),)
            case events.ToolCallDelta(index, arguments):
                delta = chat.ToolCall(index=index, id=self._call_id, arguments_delta=arguments)
                return (delta,)
            case events.ToolCallDone(index, call):
                return (chat.ToolCall(index=index, id=call.id, is_final=True),)
            case _:
                # Turns, units, pauses: chat has no such messages.
                return ()

    # ---- errors and the end ----------------------------------------------------------------

    def answer(self, failure: ParleyError) -> Reply:
        """The error, then always a close."""
        code = 1008 if isinstance(failure, ContextFull) else failure.close_code
        return Reply((self.error(failure),), code, str(failure))

    def timed_out(self, elapsed_s: float) -> msgspec.Struct:
        return phrase(f"No request within {elapsed_s:g} seconds.", "timeout")


def _chunks(delta: events.OutputDelta) -> Sequence[chat.Chunk]:
    if not delta.text and not delta.pcm and not delta.logprobs:
        return ()
    return (
        chat.Chunk(
            text_delta=delta.text or None,
            audio_data=pcm_text(delta.pcm),
            logprobs=delta.logprobs or msgspec.UNSET,
        ),
    )


def _is_stop(frame: str) -> bool:
    try:
        return codec.type_of(frame) == "stop"
    except ParleyError:
        return False
