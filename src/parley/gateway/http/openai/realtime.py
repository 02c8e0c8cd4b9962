"""Requests before a realtime session: `GET /v1/realtime/capabilities`, and `POST
/v1/realtime/client_secrets` for short-lived keys of browsers.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from starlette.requests import Request

from parley import __version__
from parley.dialects.openai_session import default_session, merged, packed, sent, settings_of
from parley.errors import InvalidRequest
from parley.gateway.http.openai.models import ModelCard, ModelList
from parley.gateway.http.openai.voices import find_voice
from parley.gateway.http.requester import Requester
from parley.gateway.http.routing import Router
from parley.gateway.runtime import GatewayRuntime
from parley.media.pcm import INPUT_RATE_HZ, OUTPUT_RATE_HZ
from parley.protocol import values
from parley.protocol.openai import CANNOT_TRANSCRIBE


class DialectCard(msgspec.Struct, kw_only=True):
    """A WebSocket protocol."""

    name: Annotated[str, Meta(examples=["openai_realtime"])]
    paths: Annotated[list[str], Meta(examples=[["/v1/realtime"]])]
    mode: Annotated[
        str,
        Meta(
            description="chat, half_duplex or duplex; most of its sessions",
            examples=["half_duplex"],
        ),
    ]
    subprotocol: Annotated[str | None, Meta(examples=["realtime"])]


class Rates(msgspec.Struct, kw_only=True):
    """Sample rates of models' input and output. OpenAI's protocols use 24 kHz in both
    directions."""

    input_hz: Annotated[int, Meta(examples=[16000])]
    output_hz: Annotated[int, Meta(examples=[24000])]


class SessionLimits(msgspec.Struct, kw_only=True):
    """Duration limits of sessions, and the maximum message size."""

    half_duplex_s: Annotated[float, Meta(examples=[1800.0])]
    duplex_s: Annotated[float, Meta(examples=[1800.0])]
    realtime_audio_s: Annotated[float, Meta(examples=[600.0])]
    realtime_video_s: Annotated[float, Meta(examples=[300.0])]
    message_mb: Annotated[float, Meta(examples=[16.0])]
    sessions_per_client: Annotated[int, Meta(examples=[32])]


class SlotCounts(msgspec.Struct, kw_only=True):
    """Number of concurrent sessions."""

    total: Annotated[int, Meta(examples=[8])]
    free: Annotated[int, Meta(examples=[7])]


class Capabilities(msgspec.Struct, kw_only=True):
    """Current capabilities of this server."""

    version: Annotated[str, Meta(examples=["0.1.0"])]
    models: list[ModelCard]
    dialects: list[DialectCard]
    modes: Annotated[list[str], Meta(examples=[["chat", "half_duplex", "duplex"]])]
    rates: Rates
    limits: SessionLimits
    slots: SlotCounts
    tools: Annotated[bool, Meta(description="whether the model calls tools", examples=[False])]
    transcripts: Annotated[
        bool, Meta(description="whether the model writes down what users say", examples=[True])
    ]


class Expiry(msgspec.Struct, kw_only=True):
    """Expiry of a key."""

    anchor: Literal["created_at"] = "created_at"
    seconds: Annotated[int, Meta(ge=10, le=7200)] = 600


class SecretOrder(msgspec.Struct, kw_only=True):
    """Request for a client secret."""

    expires_after: Annotated[Expiry, Meta(examples=[{"anchor": "created_at", "seconds": 600}])] = (
        msgspec.field(default_factory=Expiry)
    )
    session: Annotated[
        dict[str, Any],
        Meta(
            description="what its sessions begin with, in the words of `session.update`",
            examples=[{"type": "realtime", "model": "pocket", "instructions": "Be brief."}],
        ),
    ] = {}


class ClientSecret(msgspec.Struct, kw_only=True):
    """A short-lived key for one browser."""

    value: Annotated[str, Meta(examples=["st_gAAAAABn…"])]
    expires_at: Annotated[int, Meta(description="Unix seconds")]
    session: Annotated[dict[str, Any], Meta(examples=[{"type": "realtime", "model": "pocket"}])]


def routes(runtime: GatewayRuntime, models: ModelList) -> Router:
    admission, authenticator = runtime.access.admission, runtime.access.authenticator
    worker_pool = runtime.dispatcher.worker_pool
    router = Router("/v1/realtime", tag="openai")

    @router.get("/capabilities")
    async def capabilities() -> Capabilities:
        """Current capabilities of this server: protocols, models, limits, free slots."""
        limits = runtime.settings.limits
        workers = [worker for worker in worker_pool if worker.is_connected]
        cards = models.cards()
        return Capabilities(
            version=__version__,
            models=cards,
            dialects=[
                DialectCard(
                    name=each.name,
                    paths=list(each.paths),
                    mode=each.kind.mode,
                    subprotocol=each.subprotocol,
                )
                for each in runtime.dialects
            ],
            modes=sorted({mode for card in cards for mode in card.modes}),
            rates=Rates(input_hz=INPUT_RATE_HZ, output_hz=OUTPUT_RATE_HZ),
            limits=SessionLimits(
                half_duplex_s=limits.half_duplex_session_s,
                duplex_s=limits.duplex_session_s,
                realtime_audio_s=limits.realtime_audio_s,
                realtime_video_s=limits.realtime_video_s,
                message_mb=limits.frame_mb,
                sessions_per_client=limits.sessions_per_client,
            ),
            slots=SlotCounts(
                total=sum(worker.slots for worker in workers),
                free=sum(worker.free_slots for worker in workers),
            ),
            tools=bool(workers) and models.can("tools"),
            transcripts=bool(workers) and models.can("transcription"),
        )

    @router.post("/client_secrets", errors=(403,))
    async def client_secret(order: SecretOrder, request: Request, who: Requester) -> ClientSecret:
        """A short-lived key for a browser, which opens sessions in the caller's name."""
        admission.check_origin(request.headers)
        now_s, seconds = runtime.clock.time(), order.expires_after.seconds
        settings = packed(order.session) if order.session else ""
        model = order.session.get("model")
        started = default_session(
            values.make_id("sess"),
            model if isinstance(model, str) else models.current,
            now_s + runtime.settings.limits.half_duplex_session_s,
        )
        session = merged(started, order.session, calls_tools=models.can("tools"))
        if session["type"] == "transcription" and not models.can("transcription"):
            raise InvalidRequest(CANNOT_TRANSCRIBE, field="session.type")
        voice = session["audio"]["output"]["voice"]
        await find_voice(runtime.stores.voices, request, voice, "session.audio.output.voice")
        settings_of(session, can_choose=models.can("tool_choice"))
        value = authenticator.session_token(who.caller, seconds, settings=settings)
        return ClientSecret(value=value, expires_at=int(now_s + seconds), session=sent(session))

    return router
