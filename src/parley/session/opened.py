"""What a client sent, opened: voices, sounds, pictures and clips, decoded away from the event loop.

A picture may take a second to decode, and one session must not hold up another. One session opens
one thing at a time, so a thread each is all that it can occupy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from parley.errors import InvalidPayload, TooLarge
from parley.media.image import LIMIT_PIXELS, Pixels, decode_image
from parley.media.pcm import INPUT_RATE_HZ, Pcm, from_float32_bytes
from parley.media.reference import decode_reference
from parley.media.resample import resample
from parley.media.video import decode_video
from parley.media.wav import decode_wav, is_wav
from parley.session.events import Clip, Content, Message, Picture, Sound, Words
from parley.views import content

SOUND_LIMIT_S = 600.0
"""One sound of a chat message. Source: service.md 4.1."""

REQUEST_PIXELS = 4 * LIMIT_PIXELS
"""All pictures of one request together: files of a few kilobytes can hold gigabytes of white."""

FRAME_PIXELS = 16_000_000
"""One frame of a live conversation: far above any camera, and decoded in a fraction of a unit."""

Voices = Callable[[str], Pcm | None]
"""Finds a registered voice by id or name; None when there is no such voice."""


def no_voices(name: str) -> Pcm | None:
    """A server without registered voices."""
    del name
    return None


async def open_voice(
    sound: Sound | None, name: str | None, *, voices: Voices, limit_s: float
) -> Pcm | None:
    """The voice a client brought, else the registered one it named; None when it did neither.

    Raises:
        InvalidPayload: it cannot be read, is too long, or there is no such voice.
    """
    if sound is not None:
        return await asyncio.to_thread(_open_reference, sound, limit_s)
    if name is None:
        return None
    voice = await asyncio.to_thread(voices, name)
    if voice is None:
        raise InvalidPayload(f"There is no registered voice called '{name[:80]}'.")
    return voice


async def open_frames(files: Sequence[bytes]) -> list[Pixels]:
    """Frames of a live conversation.

    Raises:
        InvalidPayload: one of them cannot be used.
    """
    if not files:
        return []
    return await asyncio.to_thread(_open_frames, files)


async def open_messages(messages: Sequence[Message]) -> list[content.Message]:
    """A chat history as a view takes it.

    Raises:
        InvalidPayload, TooLarge.
    """
    return await asyncio.to_thread(_open_messages, messages)


async def open_system(parts: Sequence[Words | Sound]) -> content.Message:
    """A system message of words and sounds.

    Raises:
        InvalidPayload: a sound cannot be read.
    """
    (message,) = await open_messages([Message("system", tuple(parts))])
    return message


def _open_reference(sound: Sound, limit_s: float) -> Pcm:
    try:
        if is_wav(sound.data) or sound.rate_hz == INPUT_RATE_HZ:
            return decode_reference(sound.data, limit_s=limit_s)
        return _open_sound(sound, limit_s)
    except TooLarge as error:
        # A voice that is too long spoils the message that brings it, not the connection.
        raise InvalidPayload(str(error)) from error


def _open_sound(sound: Sound, limit_s: float = SOUND_LIMIT_S) -> Pcm:
    if is_wav(sound.data):
        pcm = decode_wav(sound.data, limit_s=limit_s)
    else:
        pcm = from_float32_bytes(sound.data, sound.rate_hz)
    if pcm.duration_s > limit_s:
        raise TooLarge("The audio", pcm.duration_s, limit_s, "s")
    if not len(pcm):
        raise InvalidPayload("The audio is empty.")
    return resample(pcm, INPUT_RATE_HZ)


def _open_frames(files: Sequence[bytes]) -> list[Pixels]:
    try:
        return [decode_image(file, limit_pixels=FRAME_PIXELS) for file in files]
    except TooLarge as error:
        raise InvalidPayload(str(error)) from error


def _open_messages(messages: Sequence[Message]) -> list[content.Message]:
    room = REQUEST_PIXELS
    opened: list[content.Message] = []
    for message in messages:
        parts: list[content.Part] = []
        for each in message.content:
            part = _open(each, room)
            if isinstance(part, content.ImagePart):
                room -= part.pixels.shape[0] * part.pixels.shape[1]
            parts.append(part)
        opened.append(content.Message(message.role, tuple(parts)))
    return opened


def _open(part: Content, room_pixels: int) -> content.Part:
    match part:
        case Words(text):
            return content.TextPart(text)
        case Picture(file):
            pixels = decode_image(file, limit_pixels=min(LIMIT_PIXELS, room_pixels))
            return content.ImagePart(pixels)
        case Sound():
            return content.AudioPart(_open_sound(part))
        case Clip(file, stack_frames):
            return content.VideoPart(decode_video(file, stack_frames=stack_frames))
