"""The duplex dialect: messages ↔ events. Source: duplex details; service.md 4.4."""

from __future__ import annotations

from typing import Final, assert_never

import msgspec

from parley.clock import Clock
from parley.errors import WrongPhase
from parley.media.pcm import from_float32_bytes
from parley.protocol import codec, duplex, realtime, values
from parley.session.events import (
    ClientEvent,
    Ended,
    Failed,
    Heard,
    InterruptAsked,
    Interrupted,
    PauseAsked,
    Paused,
    Ready,
    ResumeAsked,
    Resumed,
    Seen,
    ServerEvent,
    StopAsked,
    UnitDone,
    UnitsPrepared,
)
from parley.session.life import Outgoing, Phase
from parley.session.translate.wire import (
    closing,
    ending,
    pcm_text,
    sound,
    spoken,
    unit_options,
    within,
)

PHASES: Final[dict[Phase, duplex.Phase]] = {
    "connected": "connected",
    "preparing": "connected",
    "active": "active",
    "generating": "active",
    "paused": "paused",
    "closed": "closed",
}


class DuplexTranslator:
    """Units, one result each.

    Args:
        session_id: as the client chose it.
        clock: for the time of sending that results carry.
        pause_s: how long a pause may last when the client does not say.
        recording_id: told to the client when the session is recorded.
    """

    def __init__(
        self,
        session_id: str,
        *,
        clock: Clock,
        pause_s: float = 60.0,
        recording_id: str | None = None,
    ) -> None:
        self._session_id = session_id
        self._clock = clock
        self._pause_s = pause_s
        self._recording_id = recording_id

    def name_recording(self, recording_id: str | None) -> None:
        """See `Translator`."""
        self._recording_id = recording_id

    def read(self, frame: str, phase: Phase) -> ClientEvent | None:
        name = codec.type_of(frame)
        if name in duplex.SHAPES:
            if phase == "preparing" and name == "prepare":
                raise WrongPhase(name, phase)
            duplex.check(PHASES[phase], name)
        message = duplex.decode_client(frame)
        match message:
            case duplex.Prepare():
                return _prepared(message)
            case duplex.AudioChunk():
                return _heard(message)
            case duplex.VideoFrame():
                return Seen(within(message.frame_bytes))
            case duplex.Pause():
                return PauseAsked(message.seconds(self._pause_s))
            case duplex.Resume():
                return ResumeAsked()
            case duplex.Stop():
                return StopAsked()
            case duplex.Interrupt():
                return InterruptAsked()
            case duplex.ClientDiagnostic():
                # The gateway keeps these; one that comes through is none of our business.
                return None
            case _ as never:
                assert_never(never)

    def write(self, event: ServerEvent) -> Outgoing:
        match event:
            case Ready():
                return spoken(
                    duplex.Prepared(
                        prompt_length=event.prompt_tokens,
                        session_id=self._session_id,
                        recording_session_id=self._recording_id or msgspec.UNSET,
                    )
                )
            case UnitDone():
                return spoken(self._result(event))
            case Paused():
                return spoken(duplex.Paused(timeout=event.seconds))
            case Resumed():
                return spoken(duplex.Resumed())
            case Interrupted():
                return spoken(duplex.Interrupted())
            case Failed():
                return closing(duplex.answer(event.error))
            case Ended():
                return ending(event, duplex.answer, duplex.closed, session_id=self._session_id)
            case _:
                # Requests and turns: this dialect has no such words.
                return Outgoing()

    def _result(self, unit: UnitDone) -> duplex.Result:
        costs = {name: round(ms, 1) for name, ms in unit.costs_ms.items()}
        return duplex.Result(
            is_listen=unit.is_listen,
            text=unit.text,
            audio_data=pcm_text(unit.pcm) or "",
            end_of_turn=unit.end_of_turn,
            current_time=unit.time_ms,
            unit_index=unit.index,
            cost_llm_ms=costs.get("llm", 0.0),
            cost_tts_prep_ms=costs.get("tts_prep", 0.0),
            cost_tts_ms=costs.get("tts", 0.0),
            cost_token2wav_ms=costs.get("token2wav", 0.0),
            cost_all_ms=costs.get("all", 0.0),
            wall_clock_ms=round(unit.wall_ms, 1),
            n_tokens=unit.text_tokens,
            n_tts_tokens=unit.speech_tokens,
            kv_cache_length=unit.context_tokens,
            vision_slices=unit.vision_slices,
            vision_tokens=unit.vision_tokens,
            server_send_ts=self._clock.time(),
        )


def _prepared(message: duplex.Prepare) -> UnitsPrepared:
    return UnitsPrepared(
        prompt=message.system_prompt,
        voice=sound(within(message.voice_bytes)),
        tts_voice=sound(within(message.tts_voice_bytes)),
        voice_name=message.ref_audio_path,
        max_slices=message.max_slice_nums,
        options=unit_options(message.config),
        settles_late=message.deferred_finalize,
        wants_recording=message.record,
    )


def _heard(message: duplex.AudioChunk) -> Heard:
    data = message.audio_bytes()
    values.check_length(data, field="audio_base64", least=1, most=realtime.APPEND_MOST_SAMPLES)
    return Heard(
        from_float32_bytes(data),
        frames=within(message.frame_bytes),
        force_listen=message.force_listen,
        max_slices=message.max_slice_nums,
    )
