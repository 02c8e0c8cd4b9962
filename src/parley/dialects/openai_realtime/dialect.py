"""OpenAI Realtime (GA) on `/v1/realtime?model=…`: a conversation of items.

Runs on the half-duplex view: voice detection, or the client, ends a turn. In a session of the type
`transcription` (`?intent=transcription`) turns are only transcribed. Audio is 24 kHz PCM16 in both
directions. If the model calls no tools, `tools` stays empty in every session. Only published types
are sent, except to a client that requested resuming (`session.update` with `resume: true`). Source:
OpenAI API reference, Realtime; openai-python 3.54 `types/realtime`.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

import msgspec

from parley.dialects import events
from parley.dialects import openai_session as sessions
from parley.dialects.base import Reply, SessionContext, UpgradeRequest
from parley.dialects.openai_base import Decoded, OpenAIDialect
from parley.dialects.openai_fields import RESPONSE_FIELDS, check_names, checked_part
from parley.dialects.openai_realtime.answers import ResponseEvents
from parley.dialects.openai_realtime.items import (
    ConversationItems,
    DuplicateItem,
    NoCall,
    NothingToRetrieve,
    input_of,
    message_item,
    message_of,
    returned_item,
)
from parley.dialects.sound import OpenAIInput, within
from parley.errors import BadInput, InvalidRequest, ParleyError
from parley.protocol import codec
from parley.protocol import openai_realtime as wire
from parley.protocol.content import Message
from parley.protocol.kinds import Kind, Phase
from parley.protocol.legacy import CloseReason
from parley.protocol.values import Tool, make_id

TYPES: Final = frozenset(wire.SHAPES)
NOT_IN_TRANSCRIPTION: Final = frozenset(
    {"response.create", "response.cancel", "conversation.item.create", "conversation.item.truncate"}
)
"""Features of conversations only."""
ROUNDING_MS: Final = 100
"""Tolerance by which a client may report more playback than an answer has audio: players count in
frames."""


class OpenAIRealtimeDialect(OpenAIDialect):
    """See the module's text."""

    name = "openai_realtime"
    paths = (wire.PATH,)
    kind = Kind.HALF_DUPLEX
    accepts: ClassVar[Mapping[Phase, frozenset[str]]] = dict.fromkeys(
        (Phase.QUEUED, Phase.CONNECTED, Phase.ACTIVE, Phase.GENERATING), TYPES
    )
    precedence = 10
    parameters = frozenset({"model", "intent"})
    subprotocol = wire.SUBPROTOCOL
    keeps = TYPES
    keeps_most = 64
    stops: ClassVar[frozenset[str]] = frozenset()
    has_items = True
    client_messages = wire.MESSAGES
    takes_settings = True

    def __init__(self, context: SessionContext) -> None:
        super().__init__(context)
        model = context.parameters.get("model", "")
        is_asked = context.parameters.get("intent") == "transcription"
        kind = "transcription" if is_asked else "realtime"
        self._session = sessions.default_session(
            context.session_id, model, context.clock.time() + context.limit_s, kind=kind
        )
        self._sound = OpenAIInput()
        self._settings = sessions.settings_of(self._session)
        self._in_force = sessions.settings_of(sessions.default_session("", "", 0))
        """The session as sent to the client, and the settings for the runner."""
        self._unset: BadInput | None = None
        """Error in the settings of the client secret."""
        self._take_settings(context.parameters.get(sessions.SETTINGS_PARAMETER, ""))
        self._conversation_id = make_id("conv")
        self._items = ConversationItems()
        self._has_started = False
        self._references = 0
        self._asked: dict[int, dict[str, Any]] = {}
        self._telling: ResponseEvents | None = None
        self._answer_id: str | None = None
        """The item of the newest spoken answer."""
        self._heard_ms: int | None = None
        """Id of the answer that the user is interrupting."""

    def remembered(self) -> dict[str, Any]:
        found = super().remembered()
        if self._telling is not None:
            found["_telling"] = telling = copy.copy(self._telling)
            telling.items = ConversationItems()
            if telling.session is self._session:
                telling.session = {}
        return found

    def restore(self, remembered: Mapping[str, Any]) -> None:
        super().restore(remembered)
        if self._telling is not None:
            self._telling.items = self._items
            self._telling.session = self._telling.session or self._session

    @classmethod
    def claims(cls, request: UpgradeRequest) -> bool:
        is_asked = "model" in request.query or request.query.get("intent") == "transcription"
        return is_asked or cls.subprotocol in request.subprotocols

    def _take_settings(self, given: str) -> None:
        """Start with the settings of a client secret."""
        if not given:
            return
        changes = sessions.unpacked(given)
        model = changes.get("model")
        if not self._session["model"] and isinstance(model, str):
            self._session["model"] = model
        try:
            session = sessions.merged(self._session, changes, calls_tools=self._calls_tools)
            self._settings = sessions.settings_of(session, can_choose=self._can_choose)
        except BadInput as error:
            # The model has changed since the secret was made.
            self._unset = error
        else:
            self._session = session
            self._sound.take(session["audio"]["input"]["format"]["type"])

    def greet(self) -> Reply:
        """The session is sent immediately, because clients wait for it."""
        created = wire.SessionCreatedEvent(session=sessions.sent(self._session))
        return Reply((created,) if self._unset is None else (created, self.error(self._unset)))

    # ---- client → server -------------------------------------------------------------------

    def voice_in(self, decoded: Decoded[wire.ClientMessage]) -> tuple[str, BadInput] | None:
        match decoded.message:
            case wire.SessionUpdateEvent(session=given):
                where = "session"
            case wire.ResponseCreate(response=given):
                where = "response"
            case _:
                return None
        voice = sessions.voice_of(given)
        if voice is None or voice == self._session["audio"]["output"]["voice"]:
            return None
        error = InvalidRequest(
            f"There is no voice '{voice[:80]}': use \"default\" or one that GET "
            "/api/assets/ref_audio lists.",
            field=f"{where}.audio.output.voice",
        )
        error.client_event_id = decoded.message.event_id
        return voice, error

    def check(self, phase: Phase, type_name: str) -> None:
        """Any message may arrive at any time in a conversation."""
        if type_name in NOT_IN_TRANSCRIPTION and self._transcribes:
            raise InvalidRequest(
                f"{type_name} is not possible in a session of type transcription: use one of type "
                "realtime.",
                field="type",
            )

    def read(self, message: wire.ClientMessage) -> Decoded[wire.ClientMessage]:
        match message:
            case wire.AudioAppend(audio=audio):
                return Decoded(message, within(lambda: self._sound.read(audio, field="audio")))
            case wire.ItemCreate(item=item):
                item = codec.without_nulls(item)
                brought = message_of(item, calls_tools=self._calls_tools, form=self._sound.form)
                return Decoded(msgspec.structs.replace(message, item=item), brought)
            case wire.ResponseCreate(response=response):
                response = codec.without_nulls(response)
                check_names(response, RESPONSE_FIELDS, "response")
                given = response.get("input")
                items = input_of(given, calls_tools=self._calls_tools, form=self._sound.form)
                return Decoded(msgspec.structs.replace(message, response=response), items)
            case _:
                return Decoded(message)

    def act(self, decoded: Decoded[wire.ClientMessage]) -> Sequence[events.ClientEvent | Reply]:
        found = self._events(decoded)
        if self._has_started or isinstance(decoded.message, wire.SessionUpdateEvent):
            return found
        # From now on there is something to record.
        self._has_started = True
        self._in_force = self._settings
        return [self._settings.setup, events.DetectionChanged(self._settings.detection), *found]

    def _events(self, decoded: Decoded[wire.ClientMessage]) -> list[events.ClientEvent | Reply]:
        match decoded.message:
            case wire.SessionUpdateEvent(session=session):
                return self._update(session)
            case wire.AudioAppend():
                return [events.AudioInput(decoded.media)]
            case wire.AudioCommit():
                return [events.AudioCommitted(make_id("item"), decoded.message.event_id)]
            case wire.AudioClear():
                return [events.AudioCleared()]
            case wire.ItemCreate():
                return self._create(decoded.message, decoded.media)
            case wire.ItemRetrieve(item_id=item_id):
                if item_id not in self._items:
                    raise NothingToRetrieve(item_id)
                return [Reply((wire.ItemRetrieved(item=self._items.find(item_id)),))]
            case wire.ItemDelete(item_id=item_id):
                self._items.remove(item_id)
                return [events.ItemDeleted(item_id), Reply((wire.ItemGone(item_id=item_id),))]
            case wire.ItemTruncate():
                return self._truncate(decoded.message)
            case wire.ResponseCreate(response=response):
                return [self._ask(response, decoded.media)]
            case wire.ResponseCancel(response_id=response_id):
                return [events.ResponseCancelled(response_id)]

    def _update(self, changes: dict[str, Any]) -> list[events.ClientEvent | Reply]:
        session = sessions.merged(self._session, changes, calls_tools=self._calls_tools)
        if self._has_started and session["type"] != self._session["type"]:
            raise InvalidRequest(
                f'session.type must stay "{self._session["type"]}" once audio or items were sent.',
                field="session.type",
            )
        settings = sessions.settings_of(session, can_choose=self._can_choose)
        found: list[events.ClientEvent | Reply] = []
        if settings.setup != self._in_force.setup:
            found.append(events.SetupChanged(settings.setup))
        if settings.detection != self._in_force.detection:
            found.append(events.DetectionChanged(settings.detection))
        self._session, self._settings, self._in_force = session, settings, settings
        self._sound.take(session["audio"]["input"]["format"]["type"])
        if changes.get("resume") is True:
            self.wants_resume = True
        updated = wire.SessionUpdated(session=sessions.sent(session))
        return [*found, Reply((updated,), offers_resume=self.wants_resume)]

    def _create(
        self, message: wire.ItemCreate, content: Message[events.Content]
    ) -> list[events.ClientEvent | Reply]:
        brought = message.item
        item_id = str(brought.get("id") or make_id("item"))
        if item_id in self._items:
            raise DuplicateItem(item_id)
        if brought.get("type") == "function_call_output":
            call_id = brought.get("call_id")
            if not self._items.has_call(call_id):
                raise NoCall(str(call_id))
        previous = message.previous_item_id
        after = "" if previous == "root" else previous
        if after:
            self._items.find(after)
        item = returned_item(item_id, brought)
        if after is None:
            previous = self._items.last_id
        self._items.keep(item, after)
        fields: dict[str, Any] = {
            "item": item,
            "previous_item_id": None if previous == "root" else previous,
        }
        return [
            events.ItemCreated(item_id, content, after),
            Reply((wire.ItemAdded(**fields), wire.ItemDone(**fields))),
        ]

    def _truncate(self, message: wire.ItemTruncate) -> list[events.ClientEvent | Reply]:
        item = self._items.find(message.item_id)
        if item.get("role") != "assistant":
            raise InvalidRequest(
                "Only messages of the assistant can be truncated.", field="item_id"
            )
        if message.content_index != 0:
            raise InvalidRequest("content_index must be 0: an answer has one part.")
        spoken_ms = self._items.spoken_ms(message.item_id)
        if message.audio_end_ms > spoken_ms + ROUNDING_MS:
            raise InvalidRequest(
                f"audio_end_ms must be at most {spoken_ms:.0f}, the length of the audio, got "
                f"{message.audio_end_ms}.",
                field="audio_end_ms",
            )
        self._without_words(item)
        truncated = wire.ItemCut(
            item_id=message.item_id, content_index=0, audio_end_ms=message.audio_end_ms
        )
        return [events.ItemTruncated(message.item_id, message.audio_end_ms), Reply((truncated,))]

    @staticmethod
    def _without_words(item: dict[str, Any]) -> None:
        """Truncate an answer; the client does not know which of its words were heard."""
        for part in item["content"]:
            part.pop("transcript", None)

    def _ask(
        self, response: dict[str, Any], items: tuple[Message[events.Content], ...] | None
    ) -> events.ResponseRequested:
        modalities = response.get("output_modalities")
        speaks = None if modalities is None else sessions.is_spoken(modalities, "response")
        checked_part(response.get("metadata"), "metadata", "response.metadata")
        output = sessions.output_of(self._session, response)
        self._references += 1
        instructions = response.get("instructions")
        request = events.ResponseRequested(
            reference=self._references,
            instructions=instructions if isinstance(instructions, str) else None,
            wants_speech=speaks,
            limit_tokens=sessions.limit_of(response.get("max_output_tokens"), "response"),
            items=items,
            is_apart=response.get("conversation") == "none",
            tools=self._response_tools(response),
            voice_name=_voice_name(self._session, output),
        )
        self._asked[request.reference] = {**response, "audio": {"output": output}}
        return request

    def _response_tools(self, response: dict[str, Any]) -> tuple[Tool, ...] | None:
        """The functions of one response; None: those of the session."""
        tools, choice = response.get("tools"), response.get("tool_choice")
        if not self._calls_tools or (tools is None and choice is None):
            return None
        session = self._session
        return sessions.offered_tools(
            session["tools"] if tools is None else tools,
            session["tool_choice"] if choice is None else choice,
            "response",
            can_choose=self._can_choose,
        )

    @property
    def _transcribes(self) -> bool:
        """True if turns are only transcribed."""
        return bool(self._session["type"] == "transcription")

    @property
    def _calls_tools(self) -> bool:
        return "tools" in self.context.abilities

    @property
    def _can_choose(self) -> bool:
        return "tool_choice" in self.context.abilities

    # ---- server → client -------------------------------------------------------------------

    def encode(self, event: events.ServerEvent) -> Reply:
        if isinstance(event, events.Failed) and isinstance(event.event, events.ResponseRequested):
            self._asked.pop(event.event.reference, None)
        return super().encode(event)

    def messages(self, event: events.ServerEvent) -> Sequence[msgspec.Struct]:
        match event:
            case events.InterruptionChanged():
                self._heard_ms = event.heard_ms if event.state == "stopped" else None
                return ()
            case events.SpeechStarted():
                started = wire.UserSpeechStarted(audio_start_ms=event.at_ms, item_id=event.item_id)
                return (started, *self._cut_answer())
            case events.SpeechStopped():
                return (wire.UserSpeechStopped(audio_end_ms=event.at_ms, item_id=event.item_id),)
            case events.InputCleared():
                return [wire.BufferCleared()]
            case events.InputCommitted():
                return self._committed(event)
            case events.TurnTranscribed():
                return self._transcribed(event)
            case events.TurnStarted():
                return self._started(event)
            case events.OutputDelta(is_final=False) if self._telling is not None:
                return self._telling.say(event)
            case events.ToolCallStarted() if self._telling is not None:
                return self._telling.call(event)
            case events.ToolCallDelta() if self._telling is not None:
                return self._telling.arguments(event)
            case events.ToolCallDone() if self._telling is not None:
                return self._telling.call_done(event)
            case events.TurnCompleted():
                return self._ended(event)
            case _:
                # There are no messages for turns and units.
                return ()

    def _cut_answer(self) -> list[msgspec.Struct]:
        """Truncate an interrupted answer in the history to the part that was heard."""
        heard_ms, self._heard_ms = self._heard_ms, None
        item_id = self._answer_id
        if heard_ms is None or item_id is None or item_id not in self._items:
            return []
        self._without_words(self._items.find(item_id))
        return [wire.ItemCut(item_id=item_id, content_index=0, audio_end_ms=heard_ms)]

    def _committed(self, event: events.InputCommitted) -> list[msgspec.Struct]:
        item = message_item(event.item_id, "user", [{"type": "input_audio", "transcript": None}])
        previous_id = self._items.place(event.previous_id)
        self._items.keep(item, previous_id)
        fields: dict[str, Any] = {"item": copy.deepcopy(item), "previous_item_id": previous_id}
        return [
            wire.BufferCommitted(item_id=event.item_id, previous_item_id=previous_id),
            wire.ItemAdded(**fields),
            wire.ItemDone(**fields),
        ]

    def _transcribed(self, event: events.TurnTranscribed) -> list[msgspec.Struct]:
        if self._session["audio"]["input"]["transcription"] is None and not self._transcribes:
            return []
        known = self._items.find(event.item_id) if event.item_id in self._items else None
        if known is not None and known["content"][0].get("transcript", "") is not None:
            # A turn may be answered more than once.
            return []
        if event.text is None:
            if known is not None:
                del known["content"][0]["transcript"]
            why = event.error
            error = {
                "type": "transcription_error",
                "code": "transcription_unavailable" if why is None else why.code,
                "message": str(why or "This model does not write down what it hears."),
                "param": None,
            }
            return [wire.TranscriptionFailed(item_id=event.item_id, content_index=0, error=error)]
        if not event.is_final:
            return [
                wire.TranscriptionDelta(item_id=event.item_id, content_index=0, delta=event.text)
            ]
        if known is not None:
            known["content"][0]["transcript"] = event.text
        return [
            wire.TranscriptionCompleted(
                item_id=event.item_id,
                content_index=0,
                transcript=event.text,
                usage={"type": "duration", "seconds": event.audio_ms / 1000},
            )
        ]

    def _started(self, turn: events.TurnStarted) -> list[msgspec.Struct]:
        asked = self._asked.pop(turn.request.reference, {})
        self._answer_id = turn.item_id if turn.is_spoken else None
        is_apart = asked.get("conversation") == "none"
        self._telling = ResponseEvents(
            turn,
            asked,
            self._session,
            (asked.get("audio") or self._session["audio"])["output"],
            None if is_apart else self._conversation_id,
            self._items,
            may_call=bool(self._session["tools"] or asked.get("tools")) and self._calls_tools,
        )
        return self._telling.begin()

    def _ended(self, event: events.TurnCompleted) -> list[msgspec.Struct]:
        telling, self._telling = self._telling, None
        return [] if telling is None else telling.end(event)

    # ---- errors and the end ----------------------------------------------------------------

    def error(self, failure: ParleyError) -> msgspec.Struct:
        return wire.ErrorEvent(error=self.error_object(failure))

    def last_words(self, reason: CloseReason, elapsed_s: float) -> tuple[msgspec.Struct, ...]:
        """Only for a time limit; for other reasons the close frame is enough."""
        if reason != "timeout":
            return ()
        error = {
            "type": "invalid_request_error",
            "code": "session_expired",
            "message": f"The session has ended after {elapsed_s:g} s.",
            "param": None,
            "event_id": None,
        }
        return (wire.ErrorEvent(error=error),)


def _voice_name(session: dict[str, Any], output: dict[str, Any]) -> str | None:
    """Voice of one response, see `ResponseRequested`."""
    if output["voice"] == session["audio"]["output"]["voice"]:
        return None
    return "" if sessions.is_own_voice(output["voice"]) else output["voice"]
