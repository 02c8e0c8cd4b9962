"""Realtime: full duplex on `/v1/realtime`, with audio alone or with video frames.

async with RealtimeClient("https://localhost:8006", mode="audio") as talk:
    await talk.ready()
    talk.send_unit(pcm)
    async for event in talk: ...
"""

from __future__ import annotations

from typing import Unpack

import msgspec

from parley.client.duplex import UnitClient, UnitOptions
from parley.protocol import realtime as wire
from parley.protocol.values import DEFAULT_SYSTEM_PROMPT


class RealtimeClient(UnitClient):
    """A realtime conversation.

    Args:
        url: the server, e.g. `https://localhost:8006`.
        mode: `video` or `audio`; cannot change within a session.
        instructions: the system prompt.
        options: see `UnitClient`.
    """

    _messages = wire
    _closing = wire.SessionClose(reason="user_stop")
    _sound_fields = ("audio", "audio")

    def __init__(
        self,
        url: str = "",
        *,
        mode: wire.CallMode = "video",
        instructions: str = DEFAULT_SYSTEM_PROMPT,
        **options: Unpack[UnitOptions],
    ) -> None:
        super().__init__(url, f"{wire.PATH}?mode={mode}", **options)
        self._opening = wire.SessionUpdate(
            session=wire.SessionOptions(
                instructions=instructions,
                ref_audio=self._voice,
                tts_ref_audio=self._tts_voice,
                voice_config=self._config,
                **self._options,
            )
        )

    def _unit(
        self, audio: str, frames: tuple[str, ...], force_listen: bool, slices: int | None
    ) -> msgspec.Struct:
        return wire.Append(
            audio=audio,
            video_frames=frames,
            force_listen=force_listen,
            max_slice_nums=slices,
            playback=self._playback(),
        )

    def _written(self, text: str, images: tuple[str, ...]) -> msgspec.Struct:
        parts = [wire.ItemPart(type="input_image", image_url=image) for image in images]
        if text:
            parts.append(wire.ItemPart(type="input_text", text=text))
        return wire.ConversationItemCreate(item=wire.WrittenItem(content=tuple(parts)))
