"""OpenAI Live on `/v1/live/sessions`: full duplex, without turns.

Audio in chunks of any length is split into the model's units by media time. Nothing is sent while
the model listens; an interruption makes it listen. Delegation is accepted and never used, because
no model here delegates. Source: openai-python 3.54 `types/live`.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, ClassVar, Final

import msgspec

from parley.dialects import events
from parley.dialects import openai_session as sessions
from parley.dialects.base import Reply, SessionContext
from parley.dialects.openai_base import Decoded, OpenAIDialect
from parley.dialects.openai_fields import object_of
from parley.dialects.sound import OPENAI_RATES, OpenAIInput, OpenAIOutput, within
from parley.errors import BadInput, InvalidRequest, NotReady, ParleyError
from parley.media.pcm import Pcm, in_pieces
from parley.protocol import codec
from parley.protocol import openai_live as wire
from parley.protocol.kinds import Kind, Phase
from parley.protocol.legacy import CloseReason
from parley.protocol.values import DuplexConfig, InterruptionOptions, image_file

TYPES: Final = frozenset(wire.SHAPES)
REASONS: Final[Mapping[CloseReason, str]] = {
    "stopped": "close_requested",
    "timeout": "expired",
    "context_full": "expired",
    "server_shutdown": "connection_lost",
    "error": "connection_lost",
}
USAGE_EVERY_UNITS: Final = 10
PIECE_MS: Final = 100
"""Length of audio per message to a client that does not receive interruptions."""
DELEGATES: Final = ("client", "responses", "decisions")
BEGIN: Final = frozenset({"session.start", "session.close"})

_interruption = codec.Converter(InterruptionOptions)


class OpenAILiveDialect(OpenAIDialect):
    """See the module's text."""

    name = "openai_live"
    paths = (wire.PATH,)
    kind = Kind.OMNI_DUPLEX
    accepts: ClassVar[Mapping[Phase, frozenset[str]]] = {
        Phase.QUEUED: BEGIN,
        Phase.CONNECTED: BEGIN,
        Phase.PREPARING: frozenset({"session.close"}),
        Phase.ACTIVE: TYPES - {"session.start"},
    }
    keeps = frozenset({"session.start"})
    stops = frozenset({"session.close"})
    event_id_name = "client_event_id"
    client_messages = wire.MESSAGES

    def __init__(self, context: SessionContext) -> None:
        super().__init__(context)
        self._session: dict[str, Any] = {"id": context.session_id, "model": "", "status": "active"}
        self._input, self._output = OpenAIInput(), OpenAIOutput()
        self._is_muted = False
        self._heard_ms = 0
        self._said_ms = 0
        self._sends_interruptions = False

    # ---- client → server -------------------------------------------------------------------

    def misplaced(self, phase: Phase, type_name: str) -> BadInput:
        is_early = phase in (Phase.QUEUED, Phase.CONNECTED, Phase.PREPARING)
        if is_early and type_name in TYPES - BEGIN:
            return NotReady(type_name, phase)
        return super().misplaced(phase, type_name)

    def read(self, message: wire.LiveMessage) -> Decoded[wire.LiveMessage]:
        match message:
            case wire.SessionStart(session=session) | wire.SessionChange(session=session):
                session = codec.without_nulls(session)
                return Decoded(msgspec.structs.replace(message, session=session))
            case wire.LiveInputAudio(audio=audio):
                return Decoded(message, within(lambda: self._input.read(audio, field="audio")))
            case wire.LiveInputImage(image=image):
                return Decoded(message, within(lambda: image_file(image, field="image")))
            case _:
                return Decoded(message)

    def act(self, decoded: Decoded[wire.LiveMessage]) -> list[events.ClientEvent | Reply]:
        media = decoded.media
        match decoded.message:
            case wire.SessionStart(session=session):
                return [self._start(session)]
            case wire.SessionChange(session=session):
                if "delegation" in session:
                    self._session["delegation"] = _delegation(session["delegation"])
                return [self._reply(wire.Changed(session=copy.deepcopy(self._session)))]
            case wire.LiveInputAudio():
                pcm = Pcm.silence(len(media), media.rate_hz) if self._is_muted else media
                return [events.AudioInput(pcm)]
            case wire.LiveInputImage():
                return [events.VideoInput((media,))]
            case wire.Mute():
                self._is_muted = True
                return [self._reply(wire.Muted())]
            case wire.Unmute():
                self._is_muted = False
                return [self._reply(wire.Unmuted())]
            case wire.InstructionsAppend(content=content):
                return self._append(content, wire.InstructionsAppended)
            case wire.ThinkingAppend(content=content):
                return self._append(content, wire.ThinkingAppended)
            case wire.CommentaryAppend(content=content):
                return self._append(content, wire.CommentaryAppended)
            case wire.LiveClose():
                return [events.StopRequested()]

    def _append(
        self, content: str, appended: type[wire.Appended]
    ) -> list[events.ClientEvent | Reply]:
        """Text for the model, which it may also speak."""
        now_ms = self._heard_ms
        return [events.TextInput(content), self._reply(appended(start_ms=now_ms, end_ms=now_ms))]

    def _reply(self, message: wire.LiveServerEvent) -> Reply:
        """An answer with the id of the client's event."""
        if self._event_id is not None:
            message = msgspec.structs.replace(message, client_event_id=self._event_id)
        return Reply((message,))

    def _start(self, session: dict[str, Any]) -> events.DuplexSetup:
        instructions = sessions.instructions_of(session.get("instructions"))
        audio = object_of(session.get("audio"), "session.audio")
        form: dict[str, Any] = dict(sessions.PCM)
        if audio.get("format") is not None:
            form = sessions.format_of(audio["format"], "session.audio.format")
            form["rate"] = OPENAI_RATES[form["type"]]
        output = object_of(audio.get("output"), "session.audio.output")
        voice = sessions.named_voice(output, "session.audio.output") or sessions.OWN_VOICE
        self._input.take(form["type"])
        self._output = OpenAIOutput(form["type"])
        self._session |= {
            "model": str(session.get("model", "")),
            "expires_at": int(self.context.clock.time() + self.context.limit_s),
            "instructions": instructions,
            "audio": {"format": form, "output": {"voice": voice}},
            "delegation": _delegation(session.get("delegation")),
            "store": False,
        }
        self.wants_resume = session.get("resume") is True
        interruption = self._interruption(session)
        return events.DuplexSetup(
            prompt="\n".join([instructions, *_history(session.get("input"))]),
            voice_name=None if sessions.is_own_voice(voice) else voice,
            options=DuplexConfig(),
            interruption=interruption,
            cuts_by_time=True,
            wants_recording=session.get("store") is not False,
        )

    def _interruption(self, session: dict[str, Any]) -> InterruptionOptions:
        """Interruption policy: speech that is long enough stops the model. A client with extensions
        may choose another policy, and then receives interruptions."""
        asked = session.get("interruption")
        if asked is None or not self.extensions:
            return InterruptionOptions(mode="stop")
        self._sends_interruptions = True
        try:
            return _interruption.convert(asked)
        except msgspec.ValidationError as error:
            raise InvalidRequest(str(error), field="session.interruption") from None

    # ---- server → client -------------------------------------------------------------------

    @property
    def _is_paced(self) -> bool:
        """This dialect has no message for an interruption, and a client without the extension plays
        everything it has, so audio is sent as it is played. Not if the session can be resumed,
        because waiting audio is not in its log."""
        return not self._sends_interruptions and not self.wants_resume

    def encode(self, event: events.ServerEvent) -> Reply:
        reply = super().encode(event)
        if not isinstance(event, events.UnitDone) or not self._is_paced:
            return reply
        lengths = (
            message.end_ms - message.start_ms if isinstance(message, wire.OutputAudio) else 0
            for message in reply.messages
        )
        return replace(reply, sound_ms=tuple(lengths))

    def messages(self, event: events.ServerEvent) -> Sequence[msgspec.Struct]:
        match event:
            case events.SessionReady():
                return self._reply(wire.Started(session=copy.deepcopy(self._session))).messages
            case events.UnitDone():
                return self._unit(event)
            case events.InterruptionChanged() if self._sends_interruptions:
                return (wire.SessionInterruption(**asdict(event)),)
            case events.TurnTranscribed(text=str() as text):
                at_ms = self._heard_ms
                return (wire.LiveInputTranscript(delta=text, start_ms=at_ms, end_ms=at_ms),)
            case _:
                # Turns and pauses: this dialect has no such messages.
                return ()

    def _unit(self, unit: events.UnitDone) -> list[msgspec.Struct]:
        begins_ms = self._heard_ms
        self._heard_ms += 1000 if unit.unit is None else unit.unit.pcm.duration_ms
        found: list[msgspec.Struct] = []
        result = unit.result
        if not result.is_listen:
            sounds = in_pieces(result.pcm, PIECE_MS if self._is_paced else 1000)
            ends_ms = begins_ms + sum(sound.duration_ms for sound in sounds)
            if result.text:
                found.append(
                    wire.OutputTranscript(delta=result.text, start_ms=begins_ms, end_ms=ends_ms)
                )
            at_ms = begins_ms
            for sound in sounds:
                end_ms = at_ms + sound.duration_ms
                found.append(
                    wire.OutputAudio(delta=self._output.text(sound), start_ms=at_ms, end_ms=end_ms)
                )
                at_ms = end_ms
            self._said_ms += ends_ms - begins_ms
        if unit.index % USAGE_EVERY_UNITS == USAGE_EVERY_UNITS - 1:
            found.append(wire.UsageUpdated(usage=self._usage()))
        return found

    def _usage(self) -> dict[str, Any]:
        return {"seconds": (self._heard_ms + self._said_ms) / 1000}

    # ---- errors and the end ----------------------------------------------------------------

    def error(self, failure: ParleyError) -> msgspec.Struct:
        return wire.LiveError(error=self.error_object(failure))

    def last_words(self, reason: CloseReason, elapsed_s: float) -> tuple[msgspec.Struct, ...]:
        """The last snapshot, if the session had started."""
        if "expires_at" not in self._session:
            return ()
        session = copy.deepcopy(self._session)
        return (wire.LiveClosed(reason=REASONS[reason], session=session, usage=self._usage()),)


def _delegation(value: Any) -> dict[str, Any] | None:
    """The session's delegation, as it is returned to the client; None: none of `DELEGATES`."""
    given = object_of(value, "session.delegation")
    return given if given.get("type") in DELEGATES else None


def _history(items: Any) -> list[str]:
    """The conversation before the session, as lines of its prompt."""
    lines: list[str] = []
    for item in items if isinstance(items, list) else ():
        content = item.get("content") if isinstance(item, dict) else None
        parts = content if isinstance(content, list) else ()
        text = " ".join(str(part.get("text", "")) for part in parts if isinstance(part, dict))
        if text:
            role = str(item.get("role"))
            lines.append(text if role == "developer" else f"{role}: {text}")
    return lines
