"""`GET /v1/audio/voices`, and the voice for a voice name of OpenAI.

OpenAI does not publish this route. Open WebUI, wyoming-openai and others read it from servers of
speech, and offer its voices for choice.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from starlette.requests import Request

from parley.errors import InvalidRequest
from parley.gateway.http.requester import Requester
from parley.gateway.http.routing import Router
from parley.library.voices import VoiceLibrary, VoiceUser
from parley.protocol.openai import BUILT_IN_VOICES


class VoiceName(msgspec.Struct, kw_only=True):
    """A voice for `voice` in requests."""

    id: Annotated[str, Meta(examples=["default"])]
    name: Annotated[str, Meta(examples=["Default"])]


class VoiceNames(msgspec.Struct, kw_only=True):
    """The server's own voice, and the registered voices that the caller may see."""

    voices: list[VoiceName]


def routes(library: VoiceLibrary) -> Router:
    router = Router("/v1/audio/voices", tag="openai")

    @router.get("")
    async def voice_names(who: Requester) -> VoiceNames:
        """The voices that requests may name. Names of OpenAI's voices stand for the first."""
        cards = await asyncio.to_thread(library.list, who.voice_user)
        own = VoiceName(id="default", name="Default")
        return VoiceNames(voices=[own, *(VoiceName(id=card.id, name=card.name) for card in cards)])

    return router


async def find_voice(
    library: VoiceLibrary, request: Request, voice: str | dict[str, Any], field: str = "voice"
) -> str | None:
    """The id of a registered voice, by its id or name; None for the server's own voice, which is
    also used for names of OpenAI's voices unless a voice with that name is registered.

    Raises:
        InvalidRequest: there is no such voice for this caller.
    """
    name = voice.get("id") if isinstance(voice, dict) else voice
    if not isinstance(name, str):
        raise InvalidRequest(f'{field} must be a string or {{"id": "…"}}.', field=field)
    if name in ("", "default"):
        return None
    found = await asyncio.to_thread(_registered, library, name, request.state.requester.voice_user)
    if found is not None or name.lower() in BUILT_IN_VOICES:
        return found
    raise InvalidRequest(
        f'{field} must be "default" or a voice that GET /v1/audio/voices lists, got '
        f"'{name[:80]}'.",
        field=field,
    )


def _registered(library: VoiceLibrary, name: str, user: VoiceUser) -> str | None:
    card = library.card(name, user)
    if card is None:
        card = next((each for each in library.list(user) if each.name == name), None)
    return None if card is None else card.id
