"""Half-duplex: you speak, the server hears when you have finished, and answers.

async with HalfDuplexClient("https://localhost:8006", insecure=True) as talk:
    await talk.ready()
    talk.send_audio(pcm)
    async for event in talk: ...
"""

from __future__ import annotations

import secrets
from typing import Any, Final, Unpack

import msgspec

from parley.client.connection import Access, AccessOptions, as_error
from parley.client.events import Ended, Event, Piece, Problem, Ready, Thinking, TurnDone, Voice
from parley.client.live import LiveClient, given, sound_in, sound_out, voice_out
from parley.clock import Clock
from parley.media.pcm import Pcm
from parley.protocol import half_duplex as wire
from parley.protocol import legacy
from parley.protocol.dialects import HALF_DUPLEX, check_session_id
from parley.protocol.half_duplex import Config
from parley.protocol.values import AudioPart, TextPart

RESUME_DELAY_S: Final = 0.8
"""Silence to keep after the answer was played. Source: half_duplex_api.txt, phase 5."""


class HalfDuplexClient(LiveClient):
    """A half-duplex conversation.

    Args:
        url: the server, e.g. `https://localhost:8006`.
        session_id: 1 to 64 letters, digits, `_`, `-`; made up when absent.
        system_prompt: who the model is.
        voice: what it sounds like: sound, or the bytes of a WAV file.
        config: voice detection, generation, speech, idle limit.
        record: False asks the server not to keep the session.
    """

    _dialect = HALF_DUPLEX
    _live_limit = 8
    _error_ends = True

    def __init__(
        self,
        url: str,
        *,
        session_id: str | None = None,
        system_prompt: str | None = None,
        voice: Pcm | bytes | None = None,
        config: Config | None = None,
        record: bool = True,
        clock: Clock | None = None,
        **access: Unpack[AccessOptions],
    ) -> None:
        self.session_id = check_session_id(session_id or f"hdx_{secrets.token_hex(8)}")
        super().__init__(
            Access(url, **access), wire.PATH.format(session_id=self.session_id), clock=clock
        )
        self._prepare = wire.Prepare(
            system_prompt=system_prompt,
            system_content=_content(system_prompt, voice),
            config=config or Config(),
            record=record,
        )
        self._thinking_since: float | None = None
        self._first_sound_ms: float | None = None
        self._quiet_until_s = 0.0
        self._turn_sound_s = 0.0
        self._is_answering = False

    def send_audio(self, pcm: Pcm) -> None:
        """Send about half a second of microphone; any rate. Oldest sound is dropped when the
        network cannot keep up (`dropped`).

        Raises:
            NotReady: before `Ready`.
            ConnectionLost: the connection is gone.
        """
        self._active("audio_chunk").post_live(wire.AudioChunk(audio_base64=sound_out(pcm)))

    @property
    def is_my_turn(self) -> bool:
        """Whether to send sound now: not while an answer is made or played, nor shortly after, or
        the server would hear its own voice."""
        return not self._is_answering and self._clock.monotonic() >= self._quiet_until_s

    def _opening(self) -> msgspec.Struct:
        return self._prepare

    def _closing(self) -> msgspec.Struct:
        return wire.Stop()

    def _translate(self, message: Any) -> Event | None:
        now_s = self._clock.monotonic()
        match message:
            case wire.Prepared():
                return Ready(
                    message.session_id,
                    given(message.recording_session_id),
                    timeout_s=message.timeout_s,
                )
            case wire.VadState(speaking=speaking):
                return Voice(speaking)
            case wire.Generating(speech_duration_ms=speech_ms):
                self._thinking_since = now_s
                self._first_sound_ms = None
                self._turn_sound_s = 0.0
                self._is_answering = True
                return Thinking(speech_ms)
            case wire.Chunk():
                return self._piece(message, now_s)
            case wire.TurnDone():
                self._is_answering = False
                # Playback runs from the first sound on; what is left of it must not be heard.
                started_s = now_s
                if self._thinking_since is not None and self._first_sound_ms is not None:
                    started_s = self._thinking_since + self._first_sound_ms / 1000
                self._quiet_until_s = started_s + self._turn_sound_s + RESUME_DELAY_S
                return TurnDone(
                    message.turn_index,
                    message.text,
                    message.interrupted,
                    message.failed,
                    message.audio_duration_ms or round(1000 * self._turn_sound_s),
                    self._first_sound_ms,
                )
            case legacy.Stopped():
                return Ended("stopped")
            case wire.Timeout(elapsed_s=elapsed_s):
                return Ended("timeout", elapsed_s)
            case legacy.Error():
                return Problem(as_error(message.code, message.error or message.message))
            case _:
                return None

    def _piece(self, message: wire.Chunk, now_s: float) -> Piece | None:
        sound = sound_in(message.audio_data, field="audio_data")
        if sound is not None:
            self._turn_sound_s += sound.duration_s
            if self._first_sound_ms is None and self._thinking_since is not None:
                self._first_sound_ms = 1000 * (now_s - self._thinking_since)
        if sound is None and not message.text_delta:
            return None
        return Piece(message.text_delta or "", sound)


def _content(
    prompt: str | None, voice: Pcm | bytes | None
) -> tuple[TextPart | AudioPart, ...] | None:
    """The published best practice: text, voice, text."""
    data = voice_out(voice)
    if data is None:
        return None
    return (
        TextPart(text="Mimic the voice from the audio sample."),
        AudioPart(data=data),
        TextPart(text=prompt or "You are a helpful assistant. Reply naturally."),
    )
