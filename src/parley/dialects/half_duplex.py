"""The half-duplex dialect. Source: service.md 4.3."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import ClassVar, assert_never

import msgspec

from parley import errors
from parley.dialects import events
from parley.dialects.legacy import LegacyDialect, phrase, written
from parley.dialects.sound import SoundDialect, reference
from parley.media.pcm import from_float32_bytes
from parley.protocol import half_duplex, values
from parley.protocol.kinds import Kind, Phase
from parley.protocol.legacy import InputText, Stop
from parley.protocol.values import Generation, TextPart


class HalfDuplexDialect(SoundDialect, LegacyDialect):
    """Turns. `prepare` may also request extensions."""

    name = "half_duplex"
    leaves_open = ()
    paths = (half_duplex.PATH,)
    kind = Kind.HALF_DUPLEX
    accepts: ClassVar[Mapping[Phase, frozenset[str]]] = {
        Phase.QUEUED: frozenset({"prepare", "stop"}),
        Phase.CONNECTED: frozenset({"prepare", "stop"}),
        Phase.PREPARING: frozenset({"stop"}),
        Phase.ACTIVE: frozenset({"audio_chunk", "input_text", "stop"}),
        Phase.GENERATING: frozenset({"audio_chunk", "input_text", "stop"}),
    }
    """A `prepare` that arrives while the client is queued is kept and applied after `queue_done`;
    an `audio_chunk` that arrives during an answer is read and discarded."""
    extra_types = frozenset({"input_text"})
    heard_field = "audio_base64"
    said_field = "audio_data"

    # ---- client → server -------------------------------------------------------------------

    def misplaced(self, phase: Phase, type_name: str) -> errors.BadInput:
        """`NotPrepared` for audio before `prepare`, `AlreadyPrepared` for a second `prepare`."""
        if type_name == "prepare" and phase in (Phase.PREPARING, Phase.ACTIVE, Phase.GENERATING):
            return errors.AlreadyPrepared(phase)
        if phase in (Phase.QUEUED, Phase.CONNECTED, Phase.PREPARING):
            return errors.NotPrepared(type_name, phase)
        return errors.WrongPhase(type_name, phase)

    def decode(self, frame: str, phase: Phase) -> events.ClientEvent | None:
        message = half_duplex.decode_client(frame, partial(self.check, phase))
        match message:
            case half_duplex.HalfDuplexPrepare():
                self.extensions = self.extensions or message.extensions
                self.wants_transcript = message.config.transcribe
                self.wants_resume = message.resume
                self.agree(message.config.audio_format)
                return _setup(message)
            case half_duplex.HalfDuplexAudioChunk():
                return self._input(message)
            case InputText():
                return written(message)
            case Stop():
                return events.StopRequested()
            case _ as never:
                assert_never(never)

    def _input(self, message: half_duplex.HalfDuplexAudioChunk) -> events.AudioInput | None:
        if not message.audio_base64:
            return None
        if self.sound.format.input == "float32":
            pcm = from_float32_bytes(message.audio_bytes())
        else:
            pcm = self.sound.read(message.audio_base64, field="audio_base64")
            if not len(pcm):
                return None
        return events.AudioInput(pcm, playback=message.playback or None)

    # ---- server → client -------------------------------------------------------------------

    def messages(self, event: events.ServerEvent) -> Sequence[msgspec.Struct]:
        match event:
            case events.SessionReady():
                ready = self.ready_fields(event)
                return (half_duplex.HalfDuplexPrepared(timeout_s=event.idle_s, **ready),)
            case events.SpeechStarted() | events.SpeechStopped():
                return (half_duplex.VadState(speaking=isinstance(event, events.SpeechStarted)),)
            case events.TurnStarted():
                self.sound.forget()
                return (half_duplex.Generating(speech_duration_ms=event.speech_ms),)
            case events.TurnTranscribed():
                return self.transcript(event)
            case events.OutputDelta():
                return (
                    half_duplex.HalfDuplexChunk(
                        text_delta=event.text or None,
                        audio_data=self.sound.text(event.pcm, ends=event.is_final),
                        chunk_index=event.index,
                        is_final=event.is_final,
                        duration_ms=event.duration_ms,
                    ),
                )
            case events.TurnCompleted():
                return (
                    half_duplex.HalfDuplexTurnDone(
                        turn_index=event.index,
                        text=event.text,
                        interrupted=event.is_interrupted,
                        failed=event.has_failed,
                        audio_duration_ms=event.audio_ms,
                    ),
                )
            case _:
                # Requests, units, pauses: this dialect has no such messages.
                return ()

    # ---- errors and the end ----------------------------------------------------------------

    def error(self, failure: errors.ParleyError) -> msgspec.Struct:
        if isinstance(failure, errors.UnknownEvent):
            return phrase(f"Unknown type: {(failure.type_name or '')[:80]}", failure.code)
        return super().error(failure)

    def timed_out(self, elapsed_s: float) -> msgspec.Struct:
        return half_duplex.HalfDuplexTimeout(elapsed_s=round(elapsed_s, 1))


def _setup(message: half_duplex.HalfDuplexPrepare) -> events.HalfDuplexSetup:
    config = message.config
    system = _system(message)
    return events.HalfDuplexSetup(
        system=system,
        # The first audio of the prompt is also the voice, unless the client names another one.
        voice=reference(message.voice_bytes())
        or next((part for part in system if isinstance(part, events.Sound)), None),
        voice_name=message.ref_audio_path,
        wants_speech=config.tts.enabled,
        vad=config.vad,
        interruption=config.interruption,
        generation=Generation(**msgspec.structs.asdict(config.generation)),
        idle_s=config.session.timeout_s,
        wants_recording=message.record,
    )


def _system(message: half_duplex.HalfDuplexPrepare) -> tuple[TextPart | events.Sound, ...]:
    """The system message: `system_content` takes precedence; a prompt with a voice becomes text,
    voice, text.

    Source: service.md 4.3, `prepare`.
    """
    if message.system_content:
        return tuple(
            TextPart(part.text)
            if isinstance(part, values.TextPart)
            else events.Sound(part.audio_bytes(), part.sample_rate)
            for part in message.system_content
        )
    prompt = TextPart(message.system_prompt or values.DEFAULT_SYSTEM_PROMPT)
    voice = reference(message.voice_bytes())
    if voice is None:
        return (prompt,)
    return (TextPart(values.VOICE_PROMPT), voice, prompt)
