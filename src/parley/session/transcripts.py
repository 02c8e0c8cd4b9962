"""Transcribes turns without answering them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Final

from parley.dialects.events import Content, HalfDuplexSetup, ResponseRequested
from parley.errors import InvalidRequest
from parley.media.pcm import Pcm
from parley.media.segments import stretches_of
from parley.protocol.content import Message
from parley.protocol.openai import CANNOT_TRANSCRIBE
from parley.protocol.values import Generation, TextPart
from parley.session.item_context import ItemContext
from parley.session_log.items import ConversationItem
from parley.views.half_duplex import HalfDuplexView

MOST_TOKENS: Final = 1024
"""Half a minute of speech has a third of it."""


async def words_of(
    sound: Pcm,
    session_id: str,
    view: HalfDuplexView,
    context: ItemContext,
    setup: HalfDuplexSetup,
) -> AsyncGenerator[str, None]:
    """The words of each stretch of sound between two pauses; of sound that a recogniser takes as a
    whole, all words. Nothing of it stays in the context.

    Raises:
        InvalidRequest: the model writes nothing down.
        InferenceFailed, ContextFull: as `ItemContext.fill`.
    """
    prompt = view.spec.transcription_prompt
    if not (prompt or view.spec.transcribes):
        raise InvalidRequest(CANNOT_TRANSCRIBE, field="session.type")
    for stretch in await asyncio.to_thread(stretches_of, sound):
        start, end = (round(at_s * sound.rate_hz) for at_s in stretch)
        piece = Pcm(sound.samples[start:end], sound.rate_hz)
        parts: tuple[Content, ...] = (TextPart(prompt), piece) if prompt else (piece,)
        item = ConversationItem("", Message("user", parts))
        context.invalidate()
        filled = await context.fill([item], "", ResponseRequested(), setup, speaks=False)
        context.invalidate()
        text = await _written(view, session_id) if prompt else filled.heard
        if text.strip():
            yield text.strip()


async def _written(view: HalfDuplexView, session_id: str) -> str:
    generation = Generation(max_new_tokens=MOST_TOKENS, do_sample=False)
    chunks = view.generate(session_id, generation, generate_audio=False)
    return "".join([chunk.text_delta or "" async for chunk in chunks])
