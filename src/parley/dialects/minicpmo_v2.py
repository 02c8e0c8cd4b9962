"""The newest public MiniCPM-o dialect in full duplex: `session.init` first on `/v1/realtime`.

The same units as the realtime dialect. One kind per message; the end of a turn is a `listen` after
its last unit; a mistake ends the session. Source: docs of the public project, realtime API.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

import msgspec

from parley.dialects.base import Reply, SessionContext, UpgradeRequest
from parley.dialects.events import (
    ClientEvent,
    ServerEvent,
    SessionReady,
    StopRequested,
    UnitDone,
)
from parley.dialects.realtime_call import RealtimeCallDialect, setup_of
from parley.dialects.sound import in_seconds, pcm_text
from parley.errors import ParleyError
from parley.protocol import codec
from parley.protocol import minicpmo_v2 as wire
from parley.protocol.kinds import Phase
from parley.protocol.legacy import CLOSE_CODES, CLOSE_SENTENCES, CloseReason
from parley.protocol.values import make_id

REASONS: Final[Mapping[CloseReason, str]] = {
    "stopped": "user_stop",
    "timeout": "timeout",
    "context_full": "context_full",
    "server_shutdown": "server_shutdown",
    "error": "backend_error",
}
AUDIO_TOKENS_PER_S: Final = 10
"""Of MiniCPM-o; usage counts what was heard by it."""


class MiniCPMOV2Dialect(RealtimeCallDialect):
    """See the module's text. Recognised by its first message; `mode=chat` is not held."""

    name = "minicpmo_v2"
    paths = (wire.PATH,)
    accepts: ClassVar[Mapping[Phase, frozenset[str]]] = {
        Phase.QUEUED: frozenset({"session.init", "session.close"}),
        Phase.CONNECTED: frozenset({"session.init", "session.close"}),
        Phase.PREPARING: frozenset({"session.close"}),
        Phase.ACTIVE: frozenset({"input.append", "session.close"}),
    }
    precedence = 5
    first_types = frozenset({"session.init"})
    keeps = frozenset({"session.init"})

    def __init__(self, context: SessionContext) -> None:
        super().__init__(context)
        self._response_id = ""
        self._usage = {"text": 0, "audio": 0, "vision": 0, "text_out": 0, "audio_out": 0}

    @classmethod
    def claims(cls, request: UpgradeRequest) -> bool:
        """Only the first message tells."""
        del request
        return False

    @classmethod
    def new_session_id(cls, now_s: float) -> str:
        del now_s
        return f"sess_{secrets.token_hex(16)}"

    # ---- client → server -------------------------------------------------------------------

    def decode(self, frame: str, phase: Phase) -> ClientEvent | None:
        value = codec.parse(frame)
        name = wire.type_of(value)
        self.check(phase, name)
        match name:
            case "session.init":
                return setup_of(wire.setup_of(value).session)
            case "input.append":
                return self.unit_of(wire.input_of(value))
            case _:
                return StopRequested()

    # ---- server → client -------------------------------------------------------------------

    def messages(self, event: ServerEvent) -> Sequence[msgspec.Struct]:
        match event:
            case SessionReady():
                self._usage["text"] = event.prompt_tokens
                return (
                    wire.Created(
                        session_id=self.session_id,
                        mode="full_duplex",
                        metrics={"kv_cache_length": event.prompt_tokens},
                        usage=self._total(),
                    ),
                )
            case UnitDone():
                return self._deltas(event)
            case _:
                # Turns and pauses: this dialect has no such words.
                return ()

    def _deltas(self, unit: UnitDone) -> list[wire.Delta]:
        """A unit, one kind per message."""
        kinds: list[dict[str, Any]] = []
        if not unit.is_listen:
            self._response_id = self._response_id or make_id("resp")
            first, others = in_seconds(unit.pcm)
            kinds += [{"kind": "text", "text": unit.text}] if unit.text else []
            sounds = [] if first is None else [first, *others]
            kinds += [{"kind": "audio", "audio": pcm_text(sound) or ""} for sound in sounds]
        if unit.is_listen or unit.end_of_turn:
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
        if unit.is_listen or unit.end_of_turn:
            self._response_id = ""
        if kinds:
            kinds[0] |= {"chunk_usage": chunk, "usage": self._total()}
        return [wire.Delta(**common, **kind) for kind in kinds]

    def _count(self, unit: UnitDone) -> dict[str, Any]:
        heard_s = unit.unit.pcm.duration_s if unit.unit is not None else 0.0
        chunk = {
            "text": 0,
            "audio": math.ceil(AUDIO_TOKENS_PER_S * heard_s),
            "vision": unit.vision_tokens,
            "text_out": unit.text_tokens,
            "audio_out": unit.speech_tokens,
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
        """The error, then always the end: mistakes are fatal here."""
        reason = "protocol_error" if failure.is_client_error else "backend_error"
        closed = self._closed(reason, {"message": str(failure)})
        return Reply((self.error(failure), closed), failure.close_code, str(failure))

    def closed(self, reason: CloseReason, *, elapsed_s: float = 0.0) -> Reply:
        messages = (self._closed(REASONS[reason]),)
        return Reply(messages, CLOSE_CODES[reason], CLOSE_SENTENCES[reason])

    def _closed(self, reason: str, diagnostic: dict[str, Any] | None = None) -> wire.Closed:
        return wire.Closed(
            session_id=self.session_id,
            reason=reason,
            usage=self._total(),
            diagnostic=msgspec.UNSET if diagnostic is None else diagnostic,
        )

    def shutting_down(self, failure: ParleyError) -> Reply:
        return self.closed("server_shutdown")


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


def _metrics(unit: UnitDone) -> dict[str, Any]:
    costs = {name: round(value, 2) for name, value in unit.costs_ms.items()}
    return {
        "backend": "parley",
        "kv_cache_length": unit.context_tokens,
        "prefill_ms": costs.get("prefill", 0.0),
        "generate_ms": round(costs.get("all", 0.0) - costs.get("prefill", 0.0), 2),
        "wall_clock_ms": round(unit.wall_ms, 2),
        "cost_llm_ms": costs.get("llm", 0.0),
        "cost_tts_prep_ms": costs.get("tts_prep", 0.0),
        "cost_tts_ms": costs.get("tts", 0.0),
        "cost_token2wav_ms": costs.get("token2wav", 0.0),
        "n_tokens": unit.text_tokens,
        "n_tts_tokens": unit.speech_tokens,
        "vision_slices": unit.vision_slices,
        "vision_tokens": unit.vision_tokens,
    }
