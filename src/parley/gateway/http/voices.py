"""`/api/assets/ref_audio`: registered reference voices."""

from __future__ import annotations

import asyncio
from typing import Annotated, Final

from fastapi import Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException

from parley.errors import ServiceUnavailable
from parley.gateway.http.admin import ADMINS_ONLY
from parley.gateway.http.errors import problems
from parley.gateway.http.frontend import VoiceInfo, describe
from parley.gateway.http.large import Base64Text, LargeJsonRoute
from parley.gateway.http.requester import Who
from parley.gateway.http.routing import Router
from parley.library.voices import LIMIT_BYTES, RegisteredVoice, VoiceLibrary, VoiceUser
from parley.media.wav import encode_wav
from parley.protocol import codec
from parley.protocol.control import CALLER_HEADER, VOICE_PATH
from parley.recording.layout import free_bytes
from parley.settings import StorageSettings

BODY_BYTES: Final = LIMIT_BYTES * 4 // 3 + 64 * 1024
"""The largest voice as base64, and its envelope."""

GB: Final = 1 << 30


class VoiceListed(BaseModel):
    """A registered voice."""

    model_config = ConfigDict(from_attributes=True)

    id: str = Field(examples=["0f8fad5b-d9cb-469f-a165-70867728950e"])
    name: str = Field(examples=["Anna"])
    filename: str = Field(examples=["anna.wav"])
    source_type: str = Field(examples=["upload"])
    duration_ms: int = Field(examples=[4200])
    sample_rate: int = Field(examples=[16000])
    created_at: str = Field(examples=["2026-11-20T17:43:12.000+00:00"])
    published: bool = Field(description="all clients may list, hear and use it", examples=[False])


class VoiceList(BaseModel):
    """Voices that the caller may see, oldest first: published ones, a key's own, for admins all."""

    total: int = Field(examples=[1])
    ref_audios: list[VoiceListed]


class NewVoice(BaseModel):
    """A sound file of any common format, at most 10 MB and 60 s."""

    name: str = Field(examples=["Anna"])
    audio_base64: Annotated[
        Base64Text, Field(description="the file, base64", examples=["UklGRiQAAABXQVZF…"])
    ]


class VoiceAdded(BaseModel):
    """The voice is registered: sessions may name it as `ref_audio_path`. Keep the id: without a key
    it is the only way to the voice."""

    success: bool = True
    id: str = Field(examples=["0f8fad5b-d9cb-469f-a165-70867728950e"])
    name: str = Field(examples=["Anna"])
    message: str = Field(examples=["The voice is registered."])


class Publication(BaseModel):
    """`published`: all clients may list, hear and use the voice."""

    model_config = ConfigDict(strict=True)

    published: bool


class VoicesErased(BaseModel):
    """Number of voices that were deleted."""

    voices: int = Field(examples=[2])


class VoiceRemoved(BaseModel):
    """The voice is deleted; sessions that use it keep it."""

    success: bool = True


def routes(
    *,
    library: VoiceLibrary,
    storage: StorageSettings,
) -> Router:
    router = Router(prefix="/api/assets/ref_audio", tags=["voices"], route_class=LargeJsonRoute)
    adding = asyncio.Semaphore(2)

    @router.get("")
    async def voices(who: Who) -> VoiceList:
        """The registered voices that the caller may see."""
        cards = await asyncio.to_thread(library.list, who.voice_user)
        return VoiceList(
            total=len(cards), ref_audios=[VoiceListed.model_validate(card) for card in cards]
        )

    @router.post("", responses=problems(400, 409, 413, 422, 503, 507))
    async def add(new: NewVoice, who: Who) -> VoiceAdded:
        """Register a voice; it is kept as 16 kHz mono WAV, for its owner only."""
        limit = storage.min_free_gb * GB
        if await asyncio.to_thread(free_bytes, storage.data_dir) < limit:
            raise ServiceUnavailable("There is no room for voices.")
        field, text = "audio_base64", new.audio_base64
        async with adding:
            data = await asyncio.to_thread(
                codec.from_base64, text, field=field, limit_bytes=LIMIT_BYTES
            )
            card = await asyncio.to_thread(library.add, new.name, data, who.voice_user)
        return VoiceAdded(id=card.id, name=card.name, message="The voice is registered.")

    @router.delete("", dependencies=[ADMINS_ONLY], responses=problems(401, 422))
    async def erase(key: Annotated[str, Query(min_length=1, max_length=200)]) -> VoicesErased:
        """Delete all voices that a key or signed-in user has registered."""
        return VoicesErased(
            voices=await asyncio.to_thread(library.remove_all, VoiceUser(key_id=key))
        )

    @router.get("/{voice_id}", responses=problems(404))
    async def voice(voice_id: str, who: Who) -> VoiceInfo:
        """A voice with its sound, base64 float32 at 16 kHz."""
        card = await asyncio.to_thread(library.card, voice_id, who.voice_user)
        pcm = await asyncio.to_thread(library.find, voice_id) if card else None
        if card is None or pcm is None:
            raise HTTPException(404, "There is no such voice.")
        return describe(RegisteredVoice(card.name, pcm))

    @router.put(
        "/{voice_id}/published",
        dependencies=[ADMINS_ONLY],
        responses=problems(401, 404, 422),
    )
    async def publish(voice_id: str, order: Publication) -> Publication:
        """Let all clients list, hear and use a voice, or only its owner."""
        if not await asyncio.to_thread(library.publish, voice_id, order.published):
            raise HTTPException(404, "There is no such voice.")
        return order

    @router.delete("/{voice_id}", responses=problems(404))
    async def remove(voice_id: str, request: Request, who: Who) -> VoiceRemoved:
        """Delete a voice: its owner, or an admin."""
        user = who.voice_user
        request.state.is_audited = user.is_admin
        if not await asyncio.to_thread(library.remove, voice_id, user):
            raise HTTPException(404, "There is no such voice.")
        return VoiceRemoved()

    return router


def worker_routes(*, library: VoiceLibrary) -> Router:
    """What workers with a data folder of their own ask for. Not for clients: `AuthMiddleware`
    checks the worker secret before."""
    router = Router(include_in_schema=False)

    @router.get(VOICE_PATH)
    async def voice(request: Request, name: Annotated[str, Query(max_length=500)]) -> Response:
        """A registered voice that a session's client may use, as 32 bit WAV."""
        user = VoiceUser.named(request.headers.get(CALLER_HEADER, ""))
        pcm = await asyncio.to_thread(library.find, name, user)
        if pcm is None:
            raise HTTPException(404, "There is no such voice.")
        return Response(await asyncio.to_thread(encode_wav, pcm, 32), media_type="audio/wav")

    return router
