"""What there is to know before a realtime session: `GET /v1/realtime/capabilities`, and short-lived
keys for browsers, `POST /v1/realtime/client_secrets`."""

from __future__ import annotations

from typing import Any, Literal

from fastapi import Request
from pydantic import BaseModel, Field

from parley import __version__
from parley.clock import Clock
from parley.dialects.openai_session import default_session, merged, packed, settings_of
from parley.dialects.registry import DialectRegistry
from parley.gateway.admission import Admission
from parley.gateway.authenticator import Authenticator
from parley.gateway.http.errors import openai_problems
from parley.gateway.http.openai.models import ModelCard, ModelList
from parley.gateway.http.openai.voices import VoiceNames
from parley.gateway.http.requester import Who
from parley.gateway.http.routing import Router
from parley.gateway.worker_pool import WorkerPool
from parley.media.pcm import INPUT_RATE_HZ, OUTPUT_RATE_HZ
from parley.protocol import values
from parley.settings import LimitSettings


class DialectCard(BaseModel):
    """A protocol that sockets speak."""

    name: str = Field(examples=["openai_realtime"])
    paths: list[str] = Field(examples=[["/v1/realtime"]])
    mode: str = Field(
        description="chat, half_duplex or duplex; most of its sessions", examples=["half_duplex"]
    )
    subprotocol: str | None = Field(examples=["realtime"])


class Rates(BaseModel):
    """Samples per second: what models hear and say. OpenAI's protocols carry 24 kHz both ways."""

    input_hz: int = Field(examples=[16000])
    output_hz: int = Field(examples=[24000])


class SessionLimits(BaseModel):
    """How long sessions last, and how large a message may be."""

    half_duplex_s: float = Field(examples=[1800.0])
    duplex_s: float = Field(examples=[1800.0])
    realtime_audio_s: float = Field(examples=[600.0])
    realtime_video_s: float = Field(examples=[300.0])
    message_mb: float = Field(examples=[16.0])
    sessions_per_client: int = Field(examples=[32])


class SlotCounts(BaseModel):
    """How many sessions run at once."""

    total: int = Field(examples=[8])
    free: int = Field(examples=[7])


class Capabilities(BaseModel):
    """What this server can do now."""

    version: str = Field(examples=["0.1.0"])
    models: list[ModelCard]
    dialects: list[DialectCard]
    modes: list[str] = Field(examples=[["chat", "half_duplex", "duplex"]])
    rates: Rates
    limits: SessionLimits
    slots: SlotCounts
    tools: bool = Field(description="whether the model calls tools", examples=[False])
    transcripts: bool = Field(
        description="whether the model writes down what users say", examples=[True]
    )


class Expiry(BaseModel):
    """When a key ends."""

    anchor: Literal["created_at"] = "created_at"
    seconds: int = Field(600, ge=10, le=7200)


class SecretOrder(BaseModel):
    """What the key is for."""

    expires_after: Expiry = Field(
        default_factory=Expiry, examples=[{"anchor": "created_at", "seconds": 600}]
    )
    session: dict[str, Any] = Field(
        default_factory=dict,
        description="what its sessions begin with, in the words of `session.update`",
        examples=[{"type": "realtime", "model": "pocket", "instructions": "Be brief."}],
    )


class ClientSecret(BaseModel):
    """A key for one browser, for a while."""

    value: str = Field(examples=["st_gAAAAABn…"])
    expires_at: int = Field(description="Unix seconds", examples=[1795283900])
    session: dict[str, Any] = Field(examples=[{"type": "realtime", "model": "pocket"}])


def routes(
    *,
    admission: Admission,
    authenticator: Authenticator,
    clock: Clock,
    dialects: DialectRegistry,
    limits: LimitSettings,
    models: ModelList,
    voices: VoiceNames,
    worker_pool: WorkerPool,
) -> Router:
    """Routes around realtime sessions."""
    router = Router(prefix="/v1/realtime", tags=["openai"])

    @router.get("/capabilities")
    async def capabilities() -> Capabilities:
        """What this server can do now: protocols, models, limits, free places."""
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
                for each in dialects
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

    @router.post("/client_secrets", responses=openai_problems(400, 403, 413))
    async def client_secret(order: SecretOrder, request: Request, who: Who) -> ClientSecret:
        """A short-lived key with the rights of the caller's, to be given to a browser."""
        admission.check_origin(request.headers)
        now_s, seconds = clock.time(), order.expires_after.seconds
        settings = packed(order.session) if order.session else ""
        model = order.session.get("model")
        started = default_session(
            values.make_id("sess"), model if isinstance(model, str) else models.current, now_s
        )
        session = merged(started, order.session, calls_tools=models.can("tools"))
        await voices.find(request, session["audio"]["output"]["voice"])
        settings_of(session, can_choose=models.can("tool_choice"))
        value = authenticator.session_token(who.caller, seconds, settings=settings)
        return ClientSecret(value=value, expires_at=int(now_s + seconds), session=session)

    return router
