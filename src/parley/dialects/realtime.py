"""The realtime dialect: the units of duplex in other messages.

Source: service.md 4.5.
"""

from __future__ import annotations

import secrets
import string
from collections.abc import Mapping, Sequence
from functools import partial
from typing import ClassVar, Final, assert_never

import msgspec

from parley import errors
from parley.dialects import events
from parley.dialects.base import Reply, SessionContext, UpgradeRequest
from parley.dialects.realtime_call import RealtimeCallDialect, setup_of
from parley.dialects.sound import SoundDialect, within
from parley.media.pcm import OUTPUT_RATE_HZ, Pcm
from parley.protocol import realtime
from parley.protocol.kinds import Kind, Phase
from parley.protocol.legacy import CLOSE_CODES, CloseReason
from parley.results import UnitResult

SHORT_SAMPLES: Final = 240
"""Ten milliseconds."""

_ID_LETTERS: Final = string.ascii_letters + string.digits


class RealtimeDialect(SoundDialect, RealtimeCallDialect):
    """Units, one `response.*` message each. `session.update` may also request extensions."""

    name = "realtime"
    paths = (realtime.PATH,)
    accepts: ClassVar[Mapping[Phase, frozenset[str]]] = {
        Phase.QUEUED: frozenset({"session.update", "session.close"}),
        Phase.CONNECTED: frozenset({"session.update", "session.close"}),
        Phase.PREPARING: frozenset({"session.close"}),
        Phase.ACTIVE: frozenset(
            {"input_audio_buffer.append", "conversation.item.create", "session.close"}
        ),
    }
    """A `session.update` that arrives while the client is queued is kept and applied after
    `session.queue_done`. A failed update returns to `CONNECTED`."""
    extra_types = frozenset({"conversation.item.create"})
    leaves_open = (errors.BadInput, errors.InferenceFailed)
    closes_after = (errors.TooLarge, errors.BadSessionId)
    heard_field = said_field = "audio"
    event_words: ClassVar[Mapping[type, type[msgspec.Struct]]] = {
        events.InterruptionChanged: realtime.ResponseInterruption,
        events.SilenceExplained: realtime.SessionStatus,
        events.RecordingLost: realtime.SessionRecordingLost,
    }
    keeps = frozenset({"session.update"})
    ignores = frozenset({"client_diagnostic"})

    def __init__(self, context: SessionContext) -> None:
        super().__init__(context)
        self._is_in_turn = False
        self._wants_transcript = False

    @classmethod
    def kind_of(cls, request: UpgradeRequest) -> Kind:
        """Video, unless `mode` is `audio`."""
        match request.query.get("mode"):
            case None | "" | "video":
                return Kind.OMNI_DUPLEX
            case "audio":
                return Kind.AUDIO_DUPLEX
            case text:
                raise errors.InvalidPayload(
                    f"mode is '{text[:40]}'; it must be 'video' or 'audio'.", field="mode"
                )

    @classmethod
    def new_session_id(cls, now_s: float) -> str:
        """`rt_{timestamp_ms}` as published, then `_` and 17 random letters and digits (101 bits):
        an id that can be guessed would let strangers end sessions."""
        tail = "".join(secrets.choice(_ID_LETTERS) for _ in range(17))
        return f"rt_{int(now_s * 1000)}_{tail}"

    # ---- client → server -------------------------------------------------------------------

    def misplaced(self, phase: Phase, type_name: str) -> errors.BadInput:
        """`NotReady` for audio before `session.created`; the connection stays open."""
        if type_name == "input_audio_buffer.append" and phase is not Phase.CLEANUP:
            # Clients do not know `preparing`: for them `connected` lasts until `session.created`.
            seen = Phase.QUEUED if phase is Phase.QUEUED else Phase.CONNECTED
            return errors.NotReady(type_name, seen)
        return errors.WrongPhase(type_name, phase)

    def decode(self, frame: str, phase: Phase) -> events.ClientEvent | None:
        message = realtime.decode_client(frame, partial(self.check, phase))
        match message:
            case realtime.SessionUpdate():
                self.extensions = self.extensions or message.extensions
                self._wants_transcript = message.session.transcribe
                self.wants_resume = message.session.resume
                self.agree(message.session.audio_format)
                return setup_of(message.session, cuts_by_time=self.extensions)
            case realtime.Append():
                if self.sound.format.input == "float32":
                    return self.unit_of(message)
                pcm = self.sound.read(message.audio, field="audio")
                unit = self.unit_of(message, pcm)
                # The decoder buffers a few milliseconds: the first audio arrives with the next
                # message.
                return unit if len(pcm) else events.VideoInput(unit.frames)
            case realtime.ConversationItemCreate(item=item):
                pictures = within(item.image_bytes)
                if not item.text and not pictures:
                    raise errors.MissingField("item.content")
                return events.TextInput(item.text, pictures)
            case realtime.SessionClose():
                return events.StopRequested()
            case _ as never:
                assert_never(never)

    # ---- server → client -------------------------------------------------------------------

    def messages(self, event: events.ServerEvent) -> Sequence[msgspec.Struct]:
        match event:
            case events.SessionReady():
                ready = self.ready_fields(event)
                return (realtime.SessionCreated(prompt_length=event.prompt_tokens, **ready),)
            case events.UnitDone():
                if not event.result.is_listen:
                    return self._deltas(event)
                self._is_in_turn = False
                self.sound.forget()
                tokens = event.result.context_tokens
                return (realtime.Listen(kv_cache_length=tokens, **self._times(event)),)
            case events.TurnTranscribed(text=str() as text):
                if not self._wants_transcript:
                    return ()
                item_id = f"item_{event.index}"
                return (realtime.InputTranscriptionCompleted(item_id=item_id, transcript=text),)
            case _:
                # Requests, turns, pauses: this dialect has no such messages.
                return ()

    def _times(self, event: events.UnitDone) -> dict[str, float]:
        return {
            "wall_clock_ms": round(event.wall_ms, 1),
            "server_send_ts": self.context.clock.time(),
        }

    def _deltas(self, event: events.UnitDone) -> list[realtime.AudioDelta]:
        """The output of a unit; if its audio is longer than a second, in several deltas."""
        unit = event.result
        pcm = unit.pcm if unit.pcm or self.extensions else self._pause(unit)
        sounds = self.sound.seconds(pcm, ends=unit.end_of_turn)
        self._is_in_turn = not unit.end_of_turn
        return [
            realtime.AudioDelta(
                text="" if index else unit.text,
                audio=sound,
                end_of_turn=unit.end_of_turn and index == len(sounds) - 1,
                kv_cache_length=unit.context_tokens,
                **self._times(event),
            )
            for index, sound in enumerate(sounds)
        ]

    def _pause(self, unit: UnitResult) -> Pcm:
        """Silence for text that has no audio (yet), because a delta always has audio: a whole
        second in the middle of a turn, and almost none in its first and last delta, which may be
        shorter. Source: service.md 4.5, output audio length."""
        is_middle = self._is_in_turn and not unit.end_of_turn
        return Pcm.silence(OUTPUT_RATE_HZ if is_middle else SHORT_SAMPLES, OUTPUT_RATE_HZ)

    # ---- errors and the end ----------------------------------------------------------------

    def error(self, failure: errors.ParleyError) -> realtime.RealtimeError:
        """An error as a message, with a published code if one fits."""
        return realtime.RealtimeError(
            error=realtime.ErrorBody(
                code=_code(failure),
                message=str(failure),
                type="client_error" if failure.is_client_error else "server_error",
            )
        )

    def answer(self, failure: errors.ParleyError) -> Reply:
        """Reaction to `failure`.

        Client errors and a failed unit leave the connection open; after the third consecutive
        failed unit the session itself ends with `closed("error")`.
        """
        match failure:
            case errors.InvalidJson():
                return Reply((), failure.close_code, str(failure))
            case errors.ContextFull():
                return self.closed("context_full")
            case errors.SlotLost():
                return self._broken(failure)
            case (
                errors.BadInput()
                | errors.InferenceFailed()
                | errors.Refused()
                | errors.SlowClient()
                | errors.WorkerLostEarly()
            ):
                return super().answer(failure)
            case _:
                return self._broken(failure)

    def _broken(self, failure: errors.ParleyError) -> Reply:
        messages = (self.error(failure), realtime.SessionClosed(reason="error"))
        return Reply(messages, CLOSE_CODES["error"], str(failure))

    def last_words(self, reason: CloseReason, elapsed_s: float) -> tuple[msgspec.Struct, ...]:
        return (realtime.SessionClosed(reason=reason),)


def _code(failure: errors.ParleyError) -> str:
    match failure:
        case errors.InvalidConfig() | errors.InvalidRequest():
            return errors.InvalidPayload.code
        case errors.InferenceFailed():
            return errors.InferenceFailed.code
        case (
            errors.BadInput()
            | errors.Refused()
            | errors.SlowClient()
            | errors.ContextFull()
            | errors.WorkerLost()
        ):
            return failure.code
        case _:
            return errors.InferenceFailed.code
