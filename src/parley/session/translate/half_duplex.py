"""The half-duplex dialect: messages ↔ events. Source: half-duplex API; service.md 4.3."""

from __future__ import annotations

from typing import Final, assert_never

import msgspec

from parley.errors import AlreadyPrepared
from parley.media.pcm import from_float32_bytes
from parley.protocol import codec, half_duplex, values
from parley.session.events import (
    ClientEvent,
    Ended,
    Failed,
    Heard,
    Ready,
    Said,
    ServerEvent,
    Sound,
    StopAsked,
    TurnBegan,
    TurnDone,
    TurnsPrepared,
    VoiceChanged,
    Words,
)
from parley.session.life import Outgoing, Phase
from parley.session.translate.wire import closing, ending, pcm_text, spoken
from parley.vad import VadOptions
from parley.views.turns import Generation

PHASES: Final[dict[Phase, half_duplex.Phase]] = {
    "connected": "connected",
    "preparing": "connected",
    "active": "listening",
    "generating": "generating",
    "paused": "listening",
    "closed": "closed",
}


class HalfDuplexTranslator:
    """Turns.

    Args:
        session_id: as the client chose it.
        recording_id: told to the client when the session is recorded.
    """

    def __init__(self, session_id: str, *, recording_id: str | None = None) -> None:
        self._session_id = session_id
        self._recording_id = recording_id

    def name_recording(self, recording_id: str | None) -> None:
        """See `Translator`."""
        self._recording_id = recording_id

    def read(self, frame: str, phase: Phase) -> ClientEvent | None:
        name = codec.type_of(frame)
        if name in half_duplex.SHAPES:
            if phase == "preparing" and name == "prepare":
                raise AlreadyPrepared(phase)
            half_duplex.check(PHASES[phase], name)
        message = half_duplex.decode_client(frame)
        match message:
            case half_duplex.Prepare():
                return _prepared(message)
            case half_duplex.AudioChunk():
                data = message.audio_bytes()
                return Heard(from_float32_bytes(data)) if data else None
            case half_duplex.Stop():
                return StopAsked()
            case _ as never:
                assert_never(never)

    def write(self, event: ServerEvent) -> Outgoing:
        match event:
            case Ready():
                return spoken(
                    half_duplex.Prepared(
                        session_id=self._session_id,
                        timeout_s=event.idle_s,
                        recording_session_id=self._recording_id or msgspec.UNSET,
                    )
                )
            case VoiceChanged():
                return spoken(half_duplex.VadState(speaking=event.is_speaking))
            case TurnBegan():
                return spoken(half_duplex.Generating(speech_duration_ms=event.speech_ms))
            case Said():
                return spoken(
                    half_duplex.Chunk(
                        text_delta=event.text or None,
                        audio_data=pcm_text(event.pcm),
                        chunk_index=event.index,
                        is_final=event.is_final,
                        duration_ms=round(event.duration_ms, 1),
                    )
                )
            case TurnDone():
                return spoken(
                    half_duplex.TurnDone(
                        turn_index=event.index,
                        text=event.text,
                        interrupted=event.is_interrupted,
                        failed=event.has_failed,
                        audio_duration_ms=event.audio_ms,
                    )
                )
            case Failed():
                return closing(half_duplex.answer(event.error))
            case Ended():
                return ending(
                    event, half_duplex.answer, half_duplex.closed, session_id=self._session_id
                )
            case _:
                # Requests, units, pauses: this dialect has no such words.
                return Outgoing()


def _prepared(message: half_duplex.Prepare) -> TurnsPrepared:
    config = message.config
    system = _system(message)
    return TurnsPrepared(
        system=system,
        # The first sound of the prompt is also the voice, unless the client names another.
        voice=_voice(message) or next((part for part in system if isinstance(part, Sound)), None),
        wants_speech=config.tts.enabled,
        vad=VadOptions(
            threshold=config.vad.threshold,
            min_speech_duration_ms=config.vad.min_speech_duration_ms,
            min_silence_duration_ms=config.vad.min_silence_duration_ms,
            speech_pad_ms=config.vad.speech_pad_ms,
        ),
        generation=Generation(
            max_new_tokens=config.generation.max_new_tokens,
            temperature=config.generation.temperature,
            length_penalty=config.generation.length_penalty,
        ),
        idle_s=config.session.timeout_s,
        wants_recording=message.record,
    )


def _voice(message: half_duplex.Prepare) -> Sound | None:
    brought = message.voice_bytes() if message.ref_audio_base64 is not None else None
    return None if brought is None else Sound(brought)


def _system(message: half_duplex.Prepare) -> tuple[Words | Sound, ...]:
    """The system message: `system_content` wins; a prompt with a voice becomes text, voice, text.

    Source: service.md 4.3, `prepare`.
    """
    if message.system_content:
        return tuple(
            Words(part.text)
            if isinstance(part, values.TextPart)
            else Sound(part.audio_bytes(), part.sample_rate)
            for part in message.system_content
        )
    prompt = Words(message.system_prompt or values.DEFAULT_SYSTEM_PROMPT)
    voice = _voice(message)
    if voice is None:
        return (prompt,)
    return (Words(VOICE_PROMPT), voice, prompt)


VOICE_PROMPT: Final = "Mimic the voice from the audio sample."
"""What stands before the voice of a session. Source: half-duplex API, example."""
