"""The newest public MiniCPM-o dialect: `session.init` first on `/v1/realtime`, or `mode=chat`.

The same units as in the realtime dialect, and in chats the requests of the chat dialect, one after
the other. There is one kind of output per message; a turn ends with a `listen` after its last unit,
or with `response.done` in chats; an error ends the session. Source: docs of the public project,
realtime API.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Final

import msgspec

from parley.dialects import events
from parley.dialects.base import Reply, SessionContext, UpgradeRequest
from parley.dialects.chat_request import requested
from parley.dialects.realtime_call import RealtimeCallDialect, setup_of
from parley.dialects.sound import pcm_text
from parley.errors import ParleyError, UpstreamFailed
from parley.media.pcm import Pcm, in_pieces
from parley.protocol import minicpmo_v2 as wire
from parley.protocol.kinds import Ending, Kind, Phase
from parley.protocol.legacy import CloseReason
from parley.protocol.realtime import ResponseInterruption
from parley.protocol.values import make_id

REASONS: Final[Mapping[CloseReason, str]] = {
    "stopped": "user_stop",
    "timeout": "timeout",
    "context_full": "context_full",
    "server_shutdown": "server_shutdown",
    "error": "backend_error",
}
COUNTED: Final = ("text", "audio", "vision", "text_out", "audio_out")
DONE_REASONS: Final = {Ending.LIMIT: "max_tokens", Ending.CANCELLED: "cancelled"}
AUDIO_TOKENS_PER_S: Final = 10
"""Tokens per second of audio in MiniCPM-o; used to count the audio input in usage."""


class MiniCPMOV2Dialect(RealtimeCallDialect):
    """See the module's text. Recognised by `mode=chat`, or by its first message."""

    name = "minicpmo_v2"
    paths = (wire.PATH,)
    accepts: ClassVar[Mapping[Phase, frozenset[str]]] = {
        Phase.QUEUED: frozenset({"session.init", "session.close"}),
        Phase.CONNECTED: frozenset({"session.init", "session.close"}),
        Phase.PREPARING: frozenset({"session.close"}),
        Phase.ACTIVE: frozenset({"input.append", "session.close"}),
        Phase.GENERATING: frozenset({"input.append", "session.close"}),
    }
    precedence = 5
    first_types = frozenset({"session.init"})
    keeps = frozenset({"session.init"})
    has_several_chats = True
    event_words: ClassVar[Mapping[type, type[msgspec.Struct]]] = {
        events.InterruptionChanged: ResponseInterruption
    }

    def __init__(self, context: SessionContext) -> None:
        super().__init__(context)
        self._response_id = ""
        self._usage = dict.fromkeys(COUNTED, 0)
        self._payload = wire.InitPayload()
        self._inputs = 0
        self._chunks = 0
        self._asked_s = 0.0
        self._prefilled = events.Prefilled(0)

    @classmethod
    def claims(cls, request: UpgradeRequest) -> bool:
        """True for chats, by their URL; calls are recognised by their first message."""
        return request.query.get("mode") == "chat"

    @classmethod
    def kind_of(cls, request: UpgradeRequest) -> Kind:
        return Kind.CHAT if cls.claims(request) else super().kind_of(request)

    @classmethod
    def new_session_id(cls, now_s: float) -> str:
        del now_s
        return f"sess_{secrets.token_hex(16)}"

    # ---- client → server -------------------------------------------------------------------

    def decode(self, frame: str, phase: Phase) -> events.ClientEvent | None:
        is_chat = self.context.kind is Kind.CHAT
        messages = wire.CHAT_MESSAGES if is_chat else wire.MESSAGES
        match messages.decode_client(frame, partial(self.check, phase)):
            case wire.SessionInit(payload=payload) if is_chat:
                self._payload = payload
                return events.ChatOpened()
            case wire.SessionInit() as asked:
                session = asked.options()
                self.wants_resume = session.resume
                return setup_of(session, cuts_by_time=self.extensions)
            case wire.ChatAppend(input=given):
                return requested(wire.request_of(given, self._payload))
            case wire.InputAppend() as appended:
                return self.unit_of(appended.unit())
            case _:
                return events.StopRequested()

    # ---- server → client -------------------------------------------------------------------

    def messages(self, event: events.ServerEvent) -> Sequence[msgspec.Struct]:
        match event:
            case events.SessionReady():
                self._usage["text"] = event.prompt_tokens
                return (
                    wire.Created(
                        session_id=self.session_id,
                        mode=self._mode,
                        metrics={"kv_cache_length": event.prompt_tokens},
                        usage=self._total(),
                    ),
                )
            case events.UnitDone():
                return self._deltas(event)
            case events.Prefilled():
                return self._begin_answer(event)
            case events.OutputDelta():
                return self._said(event)
            case events.AnswerDone():
                return (self._answered(event),)
            case _:
                # Turns and pauses: this dialect has no such messages.
                return ()

    @property
    def _mode(self) -> str:
        return "turn_based" if self.context.kind is Kind.CHAT else "full_duplex"

    # Chats.

    def _begin_answer(self, event: events.Prefilled) -> Sequence[msgspec.Struct]:
        self._response_id, self._chunks = make_id("resp"), 0
        self._prefilled, self._asked_s = event, self.context.clock.monotonic()
        return ()

    def _said(self, event: events.OutputDelta) -> list[msgspec.Struct]:
        found: list[msgspec.Struct] = []
        for kind in _spoken(event.text, event.pcm):
            found.append(
                wire.Delta(
                    **self._stamped(),
                    chunk_index=self._chunks,
                    metrics=self._chat_metrics(),
                    **kind,
                )
            )
            self._chunks += 1
        return found

    def _answered(self, event: events.AnswerDone) -> wire.ChatResponseDone:
        prefilled = self._prefilled
        spent = {
            "text": event.input_tokens - prefilled.audio_tokens - prefilled.image_tokens,
            "audio": prefilled.audio_tokens,
            "vision": prefilled.image_tokens,
            "text_out": event.generated_tokens,
            "audio_out": event.speech_tokens,
        }
        for name, count in spent.items():
            self._usage[name] += count
        stamped = self._stamped()
        self._inputs += 1
        return wire.ChatResponseDone(
            **stamped,
            text=event.text,
            audio=pcm_text(event.pcm),
            reason=DONE_REASONS.get(event.ending, "turn_end"),
            metrics=self._chat_metrics()
            | {"n_tokens": event.generated_tokens, "n_tts_tokens": event.speech_tokens},
            usage=_usage(spent),
        )

    def _stamped(self) -> dict[str, Any]:
        return {
            "session_id": self.session_id,
            "response_id": self._response_id,
            "input_id": f"input_{self._inputs}",
            "server_send_ts": round(self.context.clock.time(), 3),
        }

    def _chat_metrics(self) -> dict[str, Any]:
        spent_s = self.context.clock.monotonic() - self._asked_s
        return {
            "backend": "parley",
            "kv_cache_length": self._prefilled.input_tokens,
            "wall_clock_ms": round(1000 * spent_s, 2),
        }

    # Calls.

    def _deltas(self, unit: events.UnitDone) -> list[wire.Delta]:
        """Encode a unit, with one kind of output per message."""
        kinds: list[dict[str, Any]] = []
        result = unit.result
        if not result.is_listen:
            self._response_id = self._response_id or make_id("resp")
            kinds += _spoken(result.text, result.pcm)
        if result.is_listen or result.end_of_turn:
            kinds.append({"kind": "listen"})
        common: dict[str, Any] = {
            "session_id": self.session_id,
            "response_id": self._response_id or make_id("resp"),
            "input_id": f"input_{unit.index}",
            "chunk_index": unit.index,
            "metrics": _metrics(unit),
            "server_send_ts": round(self.context.clock.time(), 3),
        }
        chunk = self._count(unit)
        if result.is_listen or result.end_of_turn:
            self._response_id = ""
        if kinds:
            kinds[0] |= {"chunk_usage": chunk, "usage": self._total()}
        return [wire.Delta(**common, **kind) for kind in kinds]

    def _count(self, unit: events.UnitDone) -> dict[str, Any]:
        heard_s = unit.unit.pcm.duration_s if unit.unit is not None else 0.0
        chunk = {
            "text": 0,
            "audio": math.ceil(AUDIO_TOKENS_PER_S * heard_s),
            "vision": unit.result.prefilled.vision_tokens,
            "text_out": unit.result.text_tokens,
            "audio_out": unit.result.speech_tokens,
        }
        for name, count in chunk.items():
            self._usage[name] += count
        return _usage(chunk)

    def _total(self) -> dict[str, Any]:
        return _usage(self._usage)

    # ---- errors and the end ----------------------------------------------------------------

    def error(self, failure: ParleyError) -> wire.ErrorMessage:
        return wire.ErrorMessage(
            error={
                "code": failure.code,
                "message": str(failure),
                "type": "client_error" if failure.is_client_error else "server_error",
            }
        )

    def answer(self, failure: ParleyError) -> Reply:
        """The error, then always a close: errors are fatal here. If a server behind the model did
        not answer, the voice has reported it, and the session continues."""
        if isinstance(failure, UpstreamFailed) and self.context.kind is not Kind.CHAT:
            return Reply()
        reason = "protocol_error" if failure.is_client_error else "backend_error"
        closed = self._closed(reason, {"message": str(failure)})
        return Reply((self.error(failure), closed), failure.close_code, str(failure))

    def last_words(self, reason: CloseReason, elapsed_s: float) -> tuple[msgspec.Struct, ...]:
        return (self._closed(REASONS[reason]),)

    def _closed(self, reason: str, diagnostic: dict[str, Any] | None = None) -> wire.Closed:
        return wire.Closed(
            session_id=self.session_id,
            reason=reason,
            usage=self._total(),
            diagnostic=msgspec.UNSET if diagnostic is None else diagnostic,
        )


def _spoken(text: str, pcm: Pcm | None) -> list[dict[str, Any]]:
    """Output of a unit, one kind after the other."""
    words = [{"kind": "text", "text": text}] if text else []
    return [
        *words,
        *({"kind": "audio", "audio": pcm_text(sound) or ""} for sound in in_pieces(pcm)),
    ]


def _usage(counts: Mapping[str, int]) -> dict[str, Any]:
    input_tokens = counts["text"] + counts["audio"] + counts["vision"]
    output_tokens = counts["text_out"] + counts["audio_out"]
    return {
        "total_tokens": input_tokens + output_tokens,
        "input_tokens": input_tokens,
        "output_tokens": output_tokens,
        "input_token_details": {
            "text_tokens": counts["text"],
            "audio_tokens": counts["audio"],
            "vision_tokens": counts["vision"],
        },
        "output_token_details": {
            "text_tokens": counts["text_out"],
            "audio_tokens": counts["audio_out"],
        },
    }


def _metrics(unit: events.UnitDone) -> dict[str, Any]:
    result = unit.result
    return {
        "backend": "parley",
        "kv_cache_length": result.context_tokens,
        "prefill_ms": round(result.cost_encode_ms, 2),
        "generate_ms": round(result.cost_all_ms - result.cost_encode_ms, 2),
        "wall_clock_ms": round(unit.wall_ms, 2),
        "cost_llm_ms": round(result.cost_llm_ms, 2),
        "cost_tts_prep_ms": 0.0,
        "cost_tts_ms": round(result.cost_tts_ms, 2),
        "cost_token2wav_ms": round(result.cost_token2wav_ms, 2),
        "n_tokens": result.text_tokens,
        "n_tts_tokens": result.speech_tokens,
        "vision_slices": result.prefilled.vision_slices,
        "vision_tokens": result.prefilled.vision_tokens,
    }
