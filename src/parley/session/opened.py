"""Decodes a client's media (voices, sounds, pictures, clips) off the event loop.

A picture may take a second to decode, and one session must not delay another. A session decodes one
item at a time, so it occupies at most one thread. Media that could take much memory or time are
decoded in a child process (see `parley.media.decoder`), after checking that the context has room
for them. When a session ends, its job ends too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from parley.dialects.events import Clip, Content, Picture, Sound
from parley.errors import BadInput, InvalidPayload, TooLarge
from parley.media import decoder
from parley.media.image import LIMIT_PIXELS, Pixels, check_image
from parley.media.pcm import INPUT_RATE_HZ, Pcm, from_float32_bytes
from parley.media.reference import require_length
from parley.media.resample import resample
from parley.media.room import ContextRoom, require_text_room
from parley.media.wav import decode_wav
from parley.protocol.codec import is_wav
from parley.protocol.content import Message
from parley.protocol.values import (
    AUDIO_LIMIT_S,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)
from parley.views import content

REQUEST_PIXELS = 4 * LIMIT_PIXELS
"""Limit for all pictures of one request together: files of a few kilobytes can contain gigabytes of
white."""

PICTURE_PIXELS = 3840 * 2160
REQUEST_KEPT_PIXELS = 32_000_000
"""Larger pictures are scaled down to the first limit, and many pictures so that together they do
not exceed the second. The model's finest slicing uses 1.8 million pixels of a picture. Scaling a
frame of a 4K camera would take twice as long as decoding it."""

FRAME_PIXELS = 16_000_000
"""Limit for one frame of a live conversation: far above any camera, and decoded in a fraction of a
unit."""

LIGHT_SOUND_BYTES = 8 * 1024 * 1024
"""A WAV file up to this size is decoded without a child process: it contains at most eight times as
much."""

FindVoice = Callable[[str], Pcm | None]
"""Finds a registered voice by id or name, in any thread; returns None if there is no such voice."""


PathOf = Callable[[int, int], str]
"""The field of a part, by the indices of its message and of itself."""


def no_voice(name: str) -> Pcm | None:
    del name
    return None


@dataclass(frozen=True, slots=True)
class Voices:
    """The voices that a session's client may use. `limit_s`: maximum length of a voice that it
    sends."""

    limit_s: float
    find: FindVoice = no_voice

    async def open(self, sound: Sound | None, name: str | None) -> Pcm | None:
        """The voice that a client sent, else the registered one that it named; None if it did
        neither.

        Raises:
            InvalidPayload: it cannot be read, is too long, or does not exist.
        """
        if sound is not None:
            return await decoder.aside(partial(_voice, sound, self.limit_s))
        if name is None:
            return None
        voice = await asyncio.to_thread(self.find, name)
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
    return await decoder.aside(partial(_frames, files))


async def open_messages(
    messages: Sequence[Message[Content]],
    *,
    room: ContextRoom | None = None,
    path_of: PathOf | None = None,
) -> list[content.Message]:
    """A chat history in the form that a view takes.

    Args:
        path_of: the field that an error in a part's media names.
        room: free space of the context; checked before anything is decoded.

    Raises:
        InvalidPayload, TooLarge.
        ContextFull: the pictures, sounds and clips alone exceed the context.
    """
    return await decoder.aside(partial(_messages, messages, room, path_of))


def _voice(sound: Sound, limit_s: float) -> Pcm:
    try:
        voice = _sound(sound, limit_s)
    except TooLarge as error:
        # A voice that is too long makes its message invalid, but does not close the connection.
        raise InvalidPayload(str(error)) from error
    require_length(voice)
    return voice


def _sound(sound: Sound, limit_s: float = AUDIO_LIMIT_S) -> Pcm:
    if is_wav(sound.data):
        if len(sound.data) > LIGHT_SOUND_BYTES:
            pcm = decoder.shared().sound(sound.data, limit_s=limit_s)
        else:
            pcm = decode_wav(sound.data, limit_s=limit_s)
    else:
        pcm = from_float32_bytes(sound.data, sound.rate_hz)
    if pcm.duration_s > limit_s:
        raise TooLarge("The audio", pcm.duration_s, limit_s, "s")
    if not len(pcm):
        raise InvalidPayload("The audio is empty.")
    return resample(pcm, INPUT_RATE_HZ)


def _frames(files: Sequence[bytes]) -> list[Pixels]:
    image = partial(decoder.shared().image, limit_pixels=FRAME_PIXELS, keep_pixels=PICTURE_PIXELS)
    try:
        return list(map(image, files))
    except TooLarge as error:
        raise InvalidPayload(str(error)) from error


def _messages(
    messages: Sequence[Message[Content]], room: ContextRoom | None, path_of: PathOf | None
) -> list[content.Message]:
    parts = [part for message in messages for part in message.parts]
    pictures = [
        (part.file, at, index)
        for at, message in enumerate(messages)
        for index, part in enumerate(message.parts)
        if isinstance(part, Picture)
    ]
    claimed = REQUEST_PIXELS
    for file, at, index in pictures:
        try:
            claimed -= check_image(file, limit_pixels=min(LIMIT_PIXELS, claimed))
        except (InvalidPayload, TooLarge) as error:
            _locate(error, path_of, at, index)
            raise
    # A clip has at least one picture; the exact number is known once it is measured.
    clips = sum(isinstance(part, Clip) for part in parts)
    if room is not None:
        chars = sum(map(_chars, parts))
        require_text_room(room.limit_tokens, chars=chars, messages=len(messages))
        room = room.take(pictures=len(pictures))
        room.take(pictures=clips)
    keep_pixels = min(PICTURE_PIXELS, REQUEST_KEPT_PIXELS // max(1, len(pictures)))
    opened: list[content.Message] = []
    for at, message in enumerate(messages):
        there: list[content.Part] = []
        for index, each in enumerate(message.parts):
            try:
                part = _open(each, keep_pixels, room)
            except (InvalidPayload, TooLarge) as error:
                _locate(error, path_of, at, index)
                raise
            if room is not None:
                room = _less(room, part)
            there.append(part)
        opened.append(content.Message(message.role, tuple(there)))
    return opened


def _locate(error: BadInput, path_of: PathOf | None, at: int, index: int) -> None:
    """Name the field in an error of media that cannot be used, if it has a name."""
    if path_of is not None:
        error.field = path_of(at, index)
        error.args = (f"{error.field}: {error}",)


def _open(part: Content, keep_pixels: int, room: ContextRoom | None) -> content.Part:
    match part:
        case TextPart() | ToolCallPart() | ToolResultPart():
            return part
        case Picture(file):
            return content.ImagePart(decoder.shared().image(file, keep_pixels=keep_pixels))
        case Sound():
            return content.AudioPart(_sound(part))
        case Pcm():
            return content.AudioPart(part)
        case Clip(file, stack_frames):
            clip = decoder.shared().video(file, stack_frames=stack_frames, room=room)
            return content.VideoPart(clip)


def _chars(part: Content) -> int:
    match part:
        case TextPart(text):
            return len(text)
        case ToolCallPart(arguments=arguments):
            return len(arguments)
        case ToolResultPart(content=result):
            return len(result)
        case _:
            return 0


def _less(room: ContextRoom, part: content.Part) -> ContextRoom:
    """Remaining room after a part; pictures were counted at the start."""
    match part:
        case content.AudioPart(pcm):
            return room.take(sound_s=pcm.duration_s)
        case content.VideoPart(clip):
            stacks = sum(stack is not None for stack in clip.stacks)
            return room.take(pictures=len(clip.frames) + stacks)
        case _:
            return room
