"""`/api/assets/ref_audio`: registered reference voices."""

from __future__ import annotations

import asyncio
from typing import Annotated, Final

import msgspec
from msgspec import Meta
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from parley.gateway.http.bodies import Success, Time
from parley.gateway.http.frontend import VoiceInfo, describe
from parley.gateway.http.requester import Requester
from parley.gateway.http.routing import Router
from parley.gateway.runtime import GatewayRuntime
from parley.library.voices import LIMIT_BYTES, VoiceUser
from parley.media.wav import encode_wav
from parley.protocol import codec
from parley.protocol.control import CALLER_HEADER, VOICE_PATH
from parley.recording.layout import GB, free_bytes

BODY_BYTES: Final = LIMIT_BYTES * 4 // 3 + 64 * 1024
"""The largest voice as base64, and its envelope."""


class VoiceListed(msgspec.Struct, kw_only=True):
    """A registered voice."""

    id: Annotated[str, Meta(examples=["0f8fad5b-d9cb-469f-a165-70867728950e"])]
    name: Annotated[str, Meta(examples=["Anna"])]
    filename: Annotated[str, Meta(examples=["anna.wav"])]
    source_type: Annotated[str, Meta(examples=["upload"])]
    duration_ms: Annotated[int, Meta(examples=[4200])]
    sample_rate: Annotated[int, Meta(examples=[16000])]
    created_at: Time
    published: Annotated[
        bool, Meta(description="all clients may list, hear and use it", examples=[False])
    ]


class VoiceList(msgspec.Struct, kw_only=True):
    """Voices that the caller may see, oldest first: published ones, a key's own, for admins all."""

    total: Annotated[int, Meta(examples=[1])]
    ref_audios: list[VoiceListed]


class NewVoice(msgspec.Struct, kw_only=True):
    """A sound file of any common format, at most 10 MB and 60 s."""

    name: Annotated[str, Meta(examples=["Anna"])]
    audio_base64: Annotated[
        str, Meta(description="the file, base64", examples=["UklGRiQAAABXQVZF…"])
    ]


class VoiceAdded(msgspec.Struct, kw_only=True):
    """The voice is registered: sessions may name it as `ref_audio_path`. Keep the id: without a key
    it is the only way to the voice."""

    success: bool = True
    id: Annotated[str, Meta(examples=["0f8fad5b-d9cb-469f-a165-70867728950e"])]
    name: Annotated[str, Meta(examples=["Anna"])]
    message: Annotated[str, Meta(examples=["The voice is registered."])]


class Publication(msgspec.Struct, kw_only=True):
    """`published`: all clients may list, hear and use the voice."""

    published: bool


class VoicesErased(msgspec.Struct, kw_only=True):
    """Number of voices that were deleted."""

    voices: Annotated[int, Meta(examples=[2])]


def routes(runtime: GatewayRuntime) -> Router:
    library, storage = runtime.stores.voices, runtime.settings.storage
    router = Router("/api/assets/ref_audio", tag="voices")
    adding = asyncio.Semaphore(2)

    @router.get("")
    async def voices(who: Requester) -> VoiceList:
        """The registered voices that the caller may see."""
        cards = await asyncio.to_thread(library.list, who.voice_user)
        listed = msgspec.convert(cards, list[VoiceListed], from_attributes=True)
        return VoiceList(total=len(listed), ref_audios=listed)

    @router.post("", body_bytes=BODY_BYTES, errors=(409, 503, 507))
    async def add(new: NewVoice, who: Requester) -> VoiceAdded:
        """Register a voice; it is kept as 16 kHz mono WAV, for its owner only."""
        limit = storage.min_free_gb * GB
        if await asyncio.to_thread(free_bytes, storage.data_dir) < limit:
            raise HTTPException(507, "The server's disk has too little free space for voices.")
        field, text = "audio_base64", new.audio_base64
        async with adding:
            data = await asyncio.to_thread(
                codec.from_base64, text, field=field, limit_bytes=LIMIT_BYTES
            )
            card = await asyncio.to_thread(library.add, new.name, data, who.voice_user)
        return VoiceAdded(id=card.id, name=card.name, message="The voice is registered.")

    @router.delete("", role="admin")
    async def erase(key: Annotated[str, Meta(min_length=1, max_length=200)]) -> VoicesErased:
        """Delete all voices that a key or signed-in user has registered."""
        return VoicesErased(
            voices=await asyncio.to_thread(library.remove_all, VoiceUser(key_id=key))
        )

    @router.get("/{voice_id}", errors=(404,))
    async def voice(voice_id: str, who: Requester) -> VoiceInfo:
        """A voice with its sound, base64 float32 at 16 kHz."""
        card = await asyncio.to_thread(library.card, voice_id, who.voice_user)
        pcm = await asyncio.to_thread(library.find, voice_id) if card else None
        if card is None or pcm is None:
            raise HTTPException(404, "There is no such voice.")
        return describe(card.name, pcm)

    @router.put("/{voice_id}/published", role="admin", errors=(404,))
    async def publish(voice_id: str, order: Publication) -> Publication:
        """Let all clients list, hear and use a voice, or only its owner."""
        if not await asyncio.to_thread(library.publish, voice_id, order.published):
            raise HTTPException(404, "There is no such voice.")
        return order

    @router.delete("/{voice_id}", errors=(404,))
    async def remove(voice_id: str, request: Request, who: Requester) -> Success:
        """Delete a voice: its owner, or an admin. Sessions that use it keep it."""
        user = who.voice_user
        request.state.is_audited = user.is_admin
        if not await asyncio.to_thread(library.remove, voice_id, user):
            raise HTTPException(404, "There is no such voice.")
        return Success()

    return router


def worker_routes(runtime: GatewayRuntime) -> Router:
    """What workers with a data folder of their own ask for. Not for clients: `auth.check`
    checks the worker secret before."""
    router, library = Router(is_documented=False), runtime.stores.voices

    @router.get(VOICE_PATH)
    async def voice(request: Request, name: Annotated[str, Meta(max_length=500)]) -> Response:
        """A registered voice that a session's client may use, as 32 bit WAV."""
        user = VoiceUser.named(request.headers.get(CALLER_HEADER, ""))
        pcm = await asyncio.to_thread(library.find, name, user)
        if pcm is None:
            raise HTTPException(404, "There is no such voice.")
        return Response(await asyncio.to_thread(encode_wav, pcm, 32), media_type="audio/wav")

    return router
