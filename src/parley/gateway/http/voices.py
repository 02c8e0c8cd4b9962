"""`/api/assets/ref_audio`: registered reference voices."""

from __future__ import annotations

import asyncio
from typing import Annotated, Final

from fastapi import APIRouter, Depends
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException

from parley.errors import ServiceUnavailable, TooLarge
from parley.gateway.house import House
from parley.gateway.http.admin import admin_only
from parley.gateway.http.errors import problems
from parley.gateway.http.frontend import VoiceInfo, describe
from parley.library.voices import LIMIT_BYTES, Voice, VoiceCard
from parley.protocol import codec
from parley.recording.layout import free_bytes

BODY_BYTES: Final = LIMIT_BYTES * 4 // 3 + 64 * 1024
"""The largest voice as base64, and its envelope."""

GB: Final = 1 << 30


class VoiceListed(BaseModel):
    """A registered voice."""

    id: str = Field(examples=["0f8fad5b-d9cb-469f-a165-70867728950e"])
    name: str = Field(examples=["Anna"])
    filename: str = Field(examples=["anna.wav"])
    source_type: str = Field(examples=["upload"])
    duration_ms: int = Field(examples=[4200])
    sample_rate: int = Field(examples=[16000])
    created_at: str = Field(examples=["2026-11-20T17:43:12.000+00:00"])


class VoiceList(BaseModel):
    """Oldest first."""

    total: int = Field(examples=[1])
    ref_audios: list[VoiceListed]


class NewVoice(BaseModel):
    """A sound file of any common format, at most 10 MB and 60 s."""

    name: str = Field(examples=["Anna"])
    audio_base64: Annotated[
        str, Field(description="the file, base64", examples=["UklGRiQAAABXQVZF…"])
    ]


class VoiceAdded(BaseModel):
    """It is registered: sessions may name it as `ref_audio_path`."""

    success: bool = True
    id: str = Field(examples=["0f8fad5b-d9cb-469f-a165-70867728950e"])
    name: str = Field(examples=["Anna"])
    message: str = Field(examples=["The voice is registered."])


class VoiceRemoved(BaseModel):
    """It is gone; sessions that use it keep it."""

    success: bool = True


def routes(house: House) -> APIRouter:
    """The routes."""
    router = APIRouter(prefix="/api/assets/ref_audio", tags=["voices"])
    shelf = house.voices
    adding = asyncio.Semaphore(2)

    @router.get("")
    async def voices() -> VoiceList:
        """All registered voices."""
        cards = await asyncio.to_thread(shelf.list)
        return VoiceList(total=len(cards), ref_audios=[_listed(card) for card in cards])

    @router.post("", responses=problems(400, 409, 413, 422, 503))
    async def add(new: NewVoice) -> VoiceAdded:
        """Register a voice; it is kept as 16 kHz mono WAV."""
        limit = house.settings.storage.min_free_gb * GB
        if await asyncio.to_thread(free_bytes, house.settings.storage.data_dir) < limit:
            raise ServiceUnavailable("There is no room for voices.")
        data = codec.from_base64(new.audio_base64, field="audio_base64")
        if len(data) > LIMIT_BYTES:
            raise TooLarge("The voice", len(data), LIMIT_BYTES)
        async with adding:
            card = await asyncio.to_thread(shelf.add, new.name, data)
        return VoiceAdded(id=card.id, name=card.name, message="The voice is registered.")

    @router.get("/{voice_id}", responses=problems(404))
    async def voice(voice_id: str) -> VoiceInfo:
        """A voice with its sound, base64 float32 at 16 kHz."""
        card = await asyncio.to_thread(shelf.card, voice_id)
        pcm = await asyncio.to_thread(shelf.find, voice_id) if card else None
        if card is None or pcm is None:
            raise HTTPException(404, "There is no such voice.")
        return describe(Voice(card.name, pcm))

    @router.delete(
        "/{voice_id}", dependencies=[Depends(admin_only(house))], responses=problems(401, 404)
    )
    async def remove(voice_id: str) -> VoiceRemoved:
        """Delete a voice."""
        if not await asyncio.to_thread(shelf.remove, voice_id):
            raise HTTPException(404, "There is no such voice.")
        return VoiceRemoved()

    return router


def _listed(card: VoiceCard) -> VoiceListed:
    return VoiceListed(
        id=card.id,
        name=card.name,
        filename=card.filename,
        source_type=card.source_type,
        duration_ms=card.duration_ms,
        sample_rate=card.sample_rate,
        created_at=card.created_at,
    )
