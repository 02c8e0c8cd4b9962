"""What workers with a data folder of their own ask the gateway for. Not for clients: the worker
secret is checked before (`AuthMiddleware`)."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import Query, Request, Response
from starlette.exceptions import HTTPException

from parley.gateway.http.routing import Router
from parley.library.voices import VoiceLibrary, VoiceUser
from parley.media.wav import encode_wav
from parley.protocol.control import CALLER_HEADER, VOICE_PATH


def routes(*, library: VoiceLibrary) -> Router:
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
