"""Realtime: full duplex on `/v1/realtime`, with sound alone or with video frames.

async with RealtimeClient("https://localhost:8006", mode="audio") as talk:
    await talk.ready()
    talk.send_unit(pcm)
    async for event in talk: ...
"""

from __future__ import annotations

from typing import Any, Unpack

import msgspec

from parley.client.access import recording_lost
from parley.client.connection import Access, AccessOptions, as_error
from parley.client.duplex import UnitClient
from parley.client.events import (
    Ended,
    Event,
    Interruption,
    Listening,
    Problem,
    Ready,
    Speaking,
    Transcript,
)
from parley.client.live import given, voice_out
from parley.client.sound import fitting
from parley.clock import Clock
from parley.media.pcm import Pcm
from parley.protocol import realtime as wire
from parley.protocol.values import (
    DEFAULT_SYSTEM_PROMPT,
    AudioFormat,
    DuplexConfig,
    InterruptionOptions,
)


class RealtimeClient(UnitClient):
    """A realtime conversation.

    Args:
        url: the server, e.g. `https://localhost:8006`.
        mode: `video` or `audio`; cannot change within a session.
        instructions: who the model is.
        voice, tts_voice: what it sounds like: sound, or the bytes of a WAV file.
        config: how units are decided.
        interruption: what happens when the user speaks while the model does; nothing by default.
        transcribe: ask for what the user was heard to say (`Transcript`).
        record: False asks the server not to keep the session.
        resume: resume the session when the connection breaks.
        audio_format: how sound crosses the wire; by default what fits the network (see
            `parley.client.sound.fitting`).
    """

    _messages = wire
    _sound_fields = ("audio", "audio")

    def __init__(
        self,
        url: str = "",
        *,
        mode: wire.Mode = "video",
        instructions: str = DEFAULT_SYSTEM_PROMPT,
        voice: Pcm | bytes | None = None,
        tts_voice: Pcm | bytes | None = None,
        config: DuplexConfig | None = None,
        max_slice_nums: int = 1,
        interruption: InterruptionOptions | None = None,
        transcribe: bool = False,
        record: bool = True,
        resume: bool = True,
        audio_format: AudioFormat | None = None,
        clock: Clock | None = None,
        **access: Unpack[AccessOptions],
    ) -> None:
        super().__init__(
            Access(url, **access), f"{wire.PATH}?mode={mode}", clock=clock, resume=resume
        )
        self.session_id: str | None = None
        self._update = wire.SessionUpdate(
            session=wire.SessionOptions(
                instructions=instructions,
                max_slice_nums=max_slice_nums,
                ref_audio=voice_out(voice),
                tts_ref_audio=voice_out(tts_voice),
                voice_config=config or DuplexConfig(),
                interruption=interruption or InterruptionOptions(),
                audio_format=audio_format or fitting(self._access),
                transcribe=transcribe,
                record=record,
                resume=resume,
            )
        )

    def _opening(self) -> msgspec.Struct:
        return self._update

    def _closing(self) -> msgspec.Struct:
        return wire.SessionClose(reason="user_stop")

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

    def _translate(self, message: Any) -> Event | None:
        match message:
            case wire.SessionCreated():
                self.session_id = message.session_id
                self._sound.agree(message.audio_format)
                return Ready(
                    message.session_id,
                    given(message.recording_session_id),
                    prompt_tokens=message.prompt_length,
                )
            case wire.Listen(kv_cache_length=tokens):
                return Listening(tokens, self._latency_ms())
            case wire.AudioDelta():
                return Speaking(
                    message.text,
                    self._sound.come_in(message.audio),
                    message.end_of_turn,
                    message.kv_cache_length,
                    self._latency_ms(),
                )
            case wire.ResponseInterruption():
                return Interruption(message.state, message.heard_ms, message.text)
            case wire.SessionRecordingLost(entries=entries):
                return Problem(recording_lost(entries))
            case wire.InputTranscriptionCompleted(transcript=text):
                return Transcript(text)
            case wire.SessionClosed(reason=reason):
                return Ended(reason)
            case wire.RealtimeError(error=body):
                return Problem(as_error(body.code, body.message))
            case _:
                return None
