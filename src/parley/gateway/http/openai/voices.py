"""Finds the voice for a voice name of OpenAI."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.requests import Request

from parley.errors import InvalidRequest
from parley.library.voices import VoiceLibrary, VoiceUser
from parley.protocol.openai import BUILT_IN_VOICES


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
        f'{field} must be "default" or a voice that GET /api/assets/ref_audio lists, got '
        f"'{name[:80]}'.",
        field=field,
    )


def _registered(library: VoiceLibrary, name: str, user: VoiceUser) -> str | None:
    card = library.card(name, user)
    if card is None:
        card = next((each for each in library.list(user) if each.name == name), None)
    return None if card is None else card.id
