"""The realtime dialect: messages ↔ events of the same units as duplex, in its own words.

Source: realtime video protocol; service.md 4.5, 4.6.
"""

from __future__ import annotations

from typing import Final, assert_never

import msgspec

from parley.errors import WrongPhase
from parley.media.pcm import from_float32_bytes
from parley.protocol import codec, realtime
from parley.session.events import (
    ClientEvent,
    Ended,
    Failed,
    Heard,
    Ready,
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

PHASES: Final[dict[Phase, realtime.Phase]] = {
    "connected": "connected",
    "preparing": "connected",
    "active": "active",
    "generating": "active",
    "paused": "active",
    "closed": "closed",
}


class RealtimeTranslator:
    """Units, one `response.*` event each.

    Args:
        session_id: made by the gateway.
        sees_video: False in audio mode, where frames are ignored.
        recording_id: told to the client when the session is recorded.
    """

    def __init__(
        self, session_id: str, *, sees_video: bool, recording_id: str | None = None
    ) -> None:
        self._session_id = session_id
        self._sees_video = sees_video
        self._recording_id = recording_id

    def name_recording(self, recording_id: str | None) -> None:
        """See `Translator`."""
        self._recording_id = recording_id

    def read(self, frame: str, phase: Phase) -> ClientEvent | None:
        name = codec.type_of(frame)
        if name in realtime.SHAPES:
            if phase == "preparing" and name == "session.update":
                raise WrongPhase(name, phase)
            realtime.check(PHASES[phase], name)
        message = realtime.decode_client(frame)
        match message:
            case realtime.SessionUpdate():
                return _prepared(message.session)
            case realtime.Append():
                return self._heard(message)
            case realtime.SessionClose():
                return StopAsked()
            case _ as never:
                assert_never(never)

    def write(self, event: ServerEvent) -> Outgoing:
        match event:
            case Ready():
                return spoken(
                    realtime.SessionCreated(
                        session_id=self._session_id,
                        prompt_length=event.prompt_tokens,
                        recording_session_id=self._recording_id or msgspec.UNSET,
                    )
                )
            case UnitDone(is_listen=True):
                return spoken(realtime.Listen(kv_cache_length=event.context_tokens))
            case UnitDone():
                return spoken(
                    realtime.AudioDelta(
                        text=event.text,
                        audio=pcm_text(event.pcm) or "",
                        end_of_turn=event.end_of_turn,
                        kv_cache_length=event.context_tokens,
                    )
                )
            case Failed():
                return closing(realtime.answer(event.error))
            case Ended():
                return ending(event, realtime.answer, realtime.closed)
            case _:
                # Requests, turns, pauses: this dialect has no such words.
                return Outgoing()

    def _heard(self, message: realtime.Append) -> Heard:
        return Heard(
            from_float32_bytes(message.audio_bytes()),
            frames=within(message.frame_bytes) if self._sees_video else (),
            force_listen=message.force_listen,
            max_slices=message.max_slice_nums,
        )


def _prepared(session: realtime.SessionOptions) -> UnitsPrepared:
    return UnitsPrepared(
        prompt=session.instructions,
        voice=sound(within(session.voice_bytes)),
        tts_voice=sound(within(session.tts_voice_bytes)),
        max_slices=session.max_slice_nums,
        options=unit_options(session.voice_config),
        wants_recording=session.record,
    )
