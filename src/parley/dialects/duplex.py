"""The duplex dialect. Source: service.md 4.4."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import ClassVar, Final, assert_never

import msgspec

from parley import errors
from parley.dialects import events
from parley.dialects.base import Reply, UpgradeRequest
from parley.dialects.legacy import LegacyDialect, written
from parley.dialects.sound import SoundDialect, reference, within
from parley.media.pcm import from_float32_bytes
from parley.protocol import duplex, realtime, values
from parley.protocol.kinds import Kind, Phase
from parley.protocol.legacy import CLOSE_SENTENCES, CloseReason, InputText, Stop, Stopped

AUDIO_PREFIXES: Final = ("adx_", "adx-", "audio_duplex", "audio_")
"""Prefix of the id of a duplex session without video. Source: service.md 4.4."""

_ALWAYS: Final = frozenset({"stop", "client_diagnostic"})


class DuplexDialect(SoundDialect, LegacyDialect):
    """Units, with one result each. `prepare` may also request extensions."""

    name = "duplex"
    paths = (duplex.PATH,)
    kind = Kind.OMNI_DUPLEX
    accepts: ClassVar[Mapping[Phase, frozenset[str]]] = {
        Phase.QUEUED: _ALWAYS | {"prepare"},
        Phase.CONNECTED: _ALWAYS | {"prepare"},
        Phase.PREPARING: _ALWAYS,
        Phase.ACTIVE: _ALWAYS | {"audio_chunk", "video_frame", "input_text", "pause", "interrupt"},
        Phase.PAUSED: _ALWAYS | {"resume"},
    }
    """A `prepare` that arrives while the client is queued is kept and applied after
    `queue_done`."""
    extra_types = frozenset({"input_text"})
    leaves_open = (errors.BadInput, errors.InferenceFailed)
    closes_after = (errors.InvalidJson, errors.TooLarge, errors.BadSessionId, errors.SlotLost)
    heard_field = "audio_base64"
    said_field = "audio_data"

    @classmethod
    def kind_of(cls, request: UpgradeRequest) -> Kind:
        is_audio = request.session_id.startswith(AUDIO_PREFIXES)
        return Kind.AUDIO_DUPLEX if is_audio else Kind.OMNI_DUPLEX

    # ---- client → server -------------------------------------------------------------------

    def misplaced(self, phase: Phase, type_name: str) -> errors.BadInput:
        """`NotReady` for audio or a frame before `prepared`; the session stays open."""
        if phase is Phase.PREPARING and type_name != "prepare":
            # Clients do not know this phase: for them `connected` lasts until `prepared`.
            phase = Phase.CONNECTED
        is_input = type_name in ("audio_chunk", "video_frame")
        if is_input and phase in (Phase.QUEUED, Phase.CONNECTED):
            return errors.NotReady(type_name, phase)
        if is_input and phase is Phase.PAUSED:
            return errors.WrongPhase(type_name, phase, sentence="Worker is paused")
        return errors.WrongPhase(type_name, phase)

    def decode(self, frame: str, phase: Phase) -> events.ClientEvent | None:
        message = duplex.decode_client(frame, partial(self.check, phase))
        match message:
            case duplex.Prepare():
                self.extensions = self.extensions or message.extensions
                self.wants_transcript = message.transcribe
                self.wants_resume = message.resume
                self.agree(message.audio_format)
                return _setup(message, cuts_by_time=self.extensions)
            case duplex.AudioChunk():
                return self._input(message)
            case duplex.VideoFrame():
                return events.VideoInput(within(message.frame_bytes))
            case InputText():
                return written(message)
            case duplex.Pause():
                return events.PauseRequested(message.seconds)
            case duplex.Resume():
                return events.ResumeRequested()
            case Stop():
                return events.StopRequested()
            case duplex.Interrupt():
                return events.InterruptRequested()
            case duplex.ClientDiagnostic():
                # The gateway keeps these; one that arrives here is ignored.
                return None
            case _ as never:
                assert_never(never)

    def _input(self, message: duplex.AudioChunk) -> events.AudioInput | events.VideoInput | None:
        if self.sound.format.input == "float32" or not message.audio_base64:
            pcm = from_float32_bytes(message.audio_bytes())
        else:
            pcm = self.sound.read(message.audio_base64, field="audio_base64")
            if not len(pcm):
                # The decoder buffers a few milliseconds: the first audio arrives with the next
                # message.
                return events.VideoInput(within(message.frame_bytes))
        values.check_samples(len(pcm), field="audio_base64", most=realtime.APPEND_MOST_SAMPLES)
        return events.AudioInput(
            pcm,
            # Most units have none: this saves three calls each.
            frames=within(message.frame_bytes) if message.frame_base64_list else (),
            force_listen=message.force_listen,
            max_slices=message.max_slice_nums,
            playback=message.playback or None,
        )

    # ---- server → client -------------------------------------------------------------------

    def messages(self, event: events.ServerEvent) -> Sequence[msgspec.Struct]:
        match event:
            case events.SessionReady():
                ready = self.ready_fields(event)
                return (duplex.Prepared(prompt_length=event.prompt_tokens, **ready),)
            case events.TurnTranscribed():
                return self.transcript(event)
            case events.UnitDone(result=result) if result.is_listen:
                self.sound.forget()
                return [self._result(event, "", ends=result.end_of_turn)]
            case events.UnitDone():
                return self._results(event)
            case events.SessionPaused():
                return (duplex.DuplexPaused(timeout=event.seconds),)
            case events.SessionResumed():
                return (duplex.DuplexResumed(),)
            case events.SessionInterrupted():
                return (duplex.Interrupted(),)
            case _:
                # Requests and turns: this dialect has no such messages.
                return ()

    def _results(self, unit: events.UnitDone) -> list[duplex.Result]:
        """The output of a unit; if its audio is longer than a second, in several results. The
        measurements are in the first."""
        result = unit.result
        first, *others = self.sound.seconds(result.pcm, ends=result.end_of_turn)
        return [
            self._result(unit, first, ends=result.end_of_turn and not others),
            *(
                duplex.Result(
                    is_listen=False,
                    audio_data=sound,
                    end_of_turn=result.end_of_turn and index == len(others),
                    current_time=unit.time_ms,
                    unit_index=unit.index,
                    kv_cache_length=result.context_tokens,
                    server_send_ts=self.context.clock.time(),
                )
                for index, sound in enumerate(others, start=1)
            ),
        ]

    def _result(self, unit: events.UnitDone, sound: str, *, ends: bool) -> duplex.Result:
        result = unit.result
        return duplex.Result(
            is_listen=result.is_listen,
            text=result.text,
            audio_data=sound,
            end_of_turn=ends,
            current_time=unit.time_ms,
            unit_index=unit.index,
            cost_llm_ms=round(result.cost_llm_ms, 1),
            cost_tts_ms=round(result.cost_tts_ms, 1),
            cost_token2wav_ms=round(result.cost_token2wav_ms, 1),
            cost_all_ms=round(result.cost_all_ms, 1),
            wall_clock_ms=round(unit.wall_ms, 1),
            n_tokens=result.text_tokens,
            n_tts_tokens=result.speech_tokens,
            kv_cache_length=result.context_tokens,
            vision_slices=result.prefilled.vision_slices,
            vision_tokens=result.prefilled.vision_tokens,
            server_send_ts=self.context.clock.time(),
        )

    # ---- errors and the end ----------------------------------------------------------------

    def answer(self, failure: errors.ParleyError) -> Reply:
        """Reaction to `failure`. After the third consecutive failed unit the session itself ends
        with `closed("error")`."""
        if isinstance(failure, errors.ContextFull):
            messages = (self.error(failure), Stopped(session_id=self.session_id))
            return Reply(messages, 1000, CLOSE_SENTENCES["context_full"])
        return super().answer(failure)

    def last_words(self, reason: CloseReason, elapsed_s: float) -> tuple[msgspec.Struct, ...]:
        words = super().last_words(reason, elapsed_s)
        stopped = (Stopped(session_id=self.session_id),) if reason == "context_full" else ()
        return (*words, *stopped)

    def timed_out(self, elapsed_s: float) -> msgspec.Struct:
        text = f"The session ended after {elapsed_s:.0f} seconds."
        return duplex.Timeout(reason=text, elapsed_s=round(elapsed_s, 1))


def _setup(message: duplex.Prepare, *, cuts_by_time: bool) -> events.DuplexSetup:
    return events.DuplexSetup(
        prompt=message.system_prompt,
        voice=reference(within(message.voice_bytes)),
        tts_voice=reference(within(message.tts_voice_bytes)),
        voice_name=message.ref_audio_path,
        max_slices=message.max_slice_nums,
        options=message.config,
        interruption=message.interruption,
        settles_late=message.deferred_finalize,
        cuts_by_time=cuts_by_time,
        wants_recording=message.record,
    )
