"""OpenAI Realtime (GA) on `/v1/realtime?model=…`: a conversation of items.

Runs on the half-duplex view: voice detection, or the client, ends a turn. Sound is 24 kHz PCM16 in
both directions. A model that calls no tools says so: `tools` stays empty in every session. Nothing
is sent that the published types do not name.
Source: OpenAI API reference, Realtime; openai-python 3.54 `types/realtime`.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

import msgspec
import numpy as np

from parley.dialects.base import Dialect, Reply, SessionContext, UpgradeRequest
from parley.dialects.events import (
    AudioCleared,
    AudioCommitted,
    AudioInput,
    ClientEvent,
    Content,
    DetectionChanged,
    Failed,
    InputCommitted,
    InputTranscribed,
    ItemCreated,
    ItemDeleted,
    ItemTruncated,
    OutputDelta,
    Picture,
    ResponseCancelled,
    ResponseEnded,
    ResponseRequested,
    ResponseStarted,
    ServerEvent,
    SetupChanged,
    Sound,
    SpeechStarted,
    SpeechStopped,
)
from parley.dialects.openai_session import (
    RealtimeSettings,
    default_session,
    limit_of,
    merged,
    settings_of,
)
from parley.dialects.sound import in_seconds, within
from parley.errors import (
    BadInput,
    InvalidPayload,
    InvalidRequest,
    ParleyError,
    QueueFull,
    UnknownEvent,
)
from parley.media.pcm import INPUT_RATE_HZ, Pcm, to_float32_bytes
from parley.media.resample import ResampleStream, resample
from parley.protocol import codec
from parley.protocol import openai_realtime as wire
from parley.protocol.content import Message
from parley.protocol.kinds import Ending, Kind, Phase
from parley.protocol.legacy import CLOSE_CODES, CLOSE_SENTENCES, CloseReason
from parley.protocol.values import IMAGE_LIMIT_BYTES, Role, TextPart, make_id

TYPES: Final = frozenset(wire.SHAPES)
ITEMS_MOST: Final = 512
"""Items that can be retrieved; the oldest are forgotten first."""
METADATA_MOST: Final = 16


@dataclass(frozen=True, slots=True, eq=False)
class Decoded:
    """A message with its media decoded.

    Args:
        pcm: of appended sound, 16 kHz.
        content: of an item.
        items: of a response's own input.
    """

    message: wire.ClientMessage
    pcm: Pcm | None = None
    content: tuple[Content, ...] = ()
    items: tuple[Message[Content], ...] | None = None


@dataclass(slots=True)
class OngoingResponse:
    """The response that is being told."""

    started: ResponseStarted
    asked: dict[str, Any]
    session: dict[str, Any]
    text: str = ""
    conversation_id: str | None = None
    limit: int | str = "inf"
    metadata: dict[str, str] | None = None
    has_sound: bool = field(default=False)

    @property
    def place(self) -> dict[str, Any]:
        """Where its parts belong."""
        return {"response_id": self.started.response_id, "item_id": self.started.item_id}


class OpenAIRealtimeDialect(Dialect):
    """See the module's text."""

    name = "openai_realtime"
    paths = (wire.PATH,)
    kind = Kind.HALF_DUPLEX
    accepts: ClassVar[Mapping[Phase, frozenset[str]]] = dict.fromkeys(
        (Phase.QUEUED, Phase.CONNECTED, Phase.ACTIVE, Phase.GENERATING), TYPES
    )
    precedence = 10
    parameters = frozenset({"model"})
    subprotocol = wire.SUBPROTOCOL
    announces_assignment = False
    keeps = TYPES
    keeps_most = 64
    stops: ClassVar[frozenset[str]] = frozenset()
    refuses_by_status = True
    has_items = True

    def __init__(self, context: SessionContext) -> None:
        super().__init__(context)
        model = context.parameters.get("model", "")
        self._session = default_session(context.session_id, model, context.clock.time())
        self._settings = RealtimeSettings()
        self._conversation_id = make_id("conv")
        self._resampler = ResampleStream(wire.RATE_HZ, INPUT_RATE_HZ)
        self._items: dict[str, dict[str, Any]] = {}
        self._has_begun = False
        self._event_id: str | None = None
        self._references = 0
        self._asked: dict[int, dict[str, Any]] = {}
        self._telling: OngoingResponse | None = None

    @classmethod
    def claims(cls, request: UpgradeRequest) -> bool:
        return "model" in request.query or cls.subprotocol in request.subprotocols

    def refuse_upgrade(self, failure: ParleyError) -> tuple[int, dict[str, Any]]:
        status = 429 if isinstance(failure, QueueFull) else failure.http_status
        return status, {"error": self._error_object(failure)}

    def greet(self) -> Reply:
        """The session, at once: clients wait for it."""
        return Reply((wire.SessionCreated(session=copy.deepcopy(self._session)),))

    # ---- client → server -------------------------------------------------------------------

    def decode(self, frame: str, phase: Phase) -> Decoded:
        del phase
        value = codec.parse(frame)
        given = value.get("event_id") if isinstance(value, dict) else None
        event_id = given if isinstance(given, str) else None
        try:
            return self._decoded(value)
        except BadInput as error:
            error.client_event_id = event_id  # type: ignore[attr-defined]
            raise

    def _decoded(self, value: Any) -> Decoded:
        if not isinstance(value, dict):
            raise UnknownEvent("(not an object)")
        name = value.get("type")
        shape = wire.SHAPES.get(name) if isinstance(name, str) else None
        if shape is None:
            raise UnknownEvent(str(name))
        nulls = _nulls(value)
        message: wire.ClientMessage = codec.read(value, shape)
        match message:
            case wire.SessionUpdate():
                # `null` means something here: it switches off.
                message = msgspec.structs.replace(message, session=nulls.get("session", {}))
                return Decoded(message)
            case wire.AudioAppend(audio=audio):
                pcm = within(lambda: pcm_of(audio, field="audio"))
                return Decoded(message, pcm=self._resampler.feed(pcm))
            case wire.ItemCreate(item=item):
                return Decoded(message, content=content_of(item))
            case wire.ResponseCreate(response=response):
                message = msgspec.structs.replace(message, response=response)
                return Decoded(message, items=_input_of(response.get("input")))
            case _:
                return Decoded(message)

    def events(self, decoded: Decoded, phase: Phase) -> Sequence[ClientEvent | Reply]:
        self._event_id = decoded.message.event_id
        try:
            found = self._events(decoded)
        except BadInput as error:
            error.client_event_id = self._event_id  # type: ignore[attr-defined]
            raise
        if self._has_begun or isinstance(decoded.message, wire.SessionUpdate):
            return found
        # From here on there is something to record.
        self._has_begun = True
        return [self._settings.setup, *found]

    def _events(self, decoded: Decoded) -> list[ClientEvent | Reply]:
        match decoded.message:
            case wire.SessionUpdate(session=session):
                return self._update(session)
            case wire.AudioAppend():
                assert decoded.pcm is not None
                return [AudioInput(decoded.pcm)]
            case wire.AudioCommit():
                return [AudioCommitted(make_id("item"))]
            case wire.AudioClear():
                return [AudioCleared(), Reply((wire.BufferCleared(),))]
            case wire.ItemCreate():
                return self._create(decoded.message, decoded.content)
            case wire.ItemRetrieve(item_id=item_id):
                return [Reply((wire.ItemRetrieved(item=self._item(item_id)),))]
            case wire.ItemDelete(item_id=item_id):
                self._item(item_id)
                del self._items[item_id]
                return [ItemDeleted(item_id), Reply((wire.ItemGone(item_id=item_id),))]
            case wire.ItemTruncate():
                return self._truncate(decoded.message)
            case wire.ResponseCreate(response=response):
                return [self._ask(response, decoded.items)]
            case wire.ResponseCancel(response_id=response_id):
                return [ResponseCancelled(response_id)]

    def _update(self, changes: dict[str, Any]) -> list[ClientEvent | Reply]:
        session = merged(self._session, changes)
        settings = settings_of(session)
        found: list[ClientEvent | Reply] = []
        if settings.setup != self._settings.setup:
            found.append(SetupChanged(settings.setup))
        if settings.detection != self._settings.detection:
            found.append(DetectionChanged(settings.detection))
        self._session, self._settings = session, settings
        told = wire.SessionUpdated(session=copy.deepcopy(session))
        return [*found, Reply((told,))]

    def _create(
        self, message: wire.ItemCreate, content: tuple[Content, ...]
    ) -> list[ClientEvent | Reply]:
        brought = message.item
        item_id = str(brought.get("id") or make_id("item"))
        if item_id in self._items:
            raise InvalidRequest(f"There is an item '{item_id[:80]}' already.", field="item.id")
        previous = message.previous_item_id
        after = "" if previous == "root" else previous
        if after:
            self._item(after)
        role: Role = brought["role"]
        item: dict[str, Any] = {
            "id": item_id,
            "object": "realtime.item",
            "type": "message",
            "status": "completed",
            "role": role,
            "content": [_light(part) for part in brought.get("content", [])],
        }
        if after is None:
            previous = next(reversed(self._items), None)
        self._keep(item)
        told: dict[str, Any] = {
            "item": item,
            "previous_item_id": None if previous == "root" else previous,
        }
        return [
            ItemCreated(item_id, Message(role, content), after),
            Reply((wire.ItemAdded(**told), wire.ItemDone(**told))),
        ]

    def _truncate(self, message: wire.ItemTruncate) -> list[ClientEvent | Reply]:
        item = self._item(message.item_id)
        if item.get("role") != "assistant":
            raise InvalidRequest("Only an answer can be truncated.", field="item_id")
        if message.content_index != 0:
            raise InvalidRequest("An answer has one part: content_index is 0.")
        for part in item["content"]:
            # Which of the words were heard is not known to the client.
            part.pop("transcript", None)
        told = wire.ItemCut(
            item_id=message.item_id, content_index=0, audio_end_ms=message.audio_end_ms
        )
        return [ItemTruncated(message.item_id, message.audio_end_ms), Reply((told,))]

    def _ask(
        self, response: dict[str, Any], items: tuple[Message[Content], ...] | None
    ) -> ResponseRequested:
        modalities = response.get("output_modalities")
        if modalities is not None and modalities not in (["text"], ["audio"]):
            raise InvalidRequest(
                'output_modalities is ["audio"] or ["text"].', field="response.output_modalities"
            )
        metadata = response.get("metadata")
        if metadata is not None and not _is_metadata(metadata):
            raise InvalidRequest("metadata holds at most 16 texts.", field="response.metadata")
        self._references += 1
        # One is told at a time, and one may wait.
        while len(self._asked) > 1:
            self._asked.pop(next(iter(self._asked)))
        self._asked[self._references] = response
        instructions = response.get("instructions")
        return ResponseRequested(
            reference=self._references,
            instructions=instructions if isinstance(instructions, str) else None,
            wants_speech=None if modalities is None else modalities == ["audio"],
            limit_tokens=limit_of(response.get("max_output_tokens"), "response"),
            items=items,
            is_apart=response.get("conversation") == "none",
        )

    def _item(self, item_id: str) -> dict[str, Any]:
        item = self._items.get(item_id)
        if item is None:
            raise _NoItem(item_id)
        return item

    def _keep(self, item: dict[str, Any]) -> None:
        self._items[item["id"]] = item
        while len(self._items) > ITEMS_MOST:
            del self._items[next(iter(self._items))]

    # ---- server → client -------------------------------------------------------------------

    def encode(self, event: ServerEvent) -> Reply:
        if isinstance(event, Failed) and event.event is not None:
            event.error.client_event_id = self._event_id  # type: ignore[attr-defined]
        return super().encode(event)

    def messages(self, event: ServerEvent) -> Sequence[msgspec.Struct]:
        match event:
            case SpeechStarted():
                told = wire.UserSpeechStarted(audio_start_ms=event.at_ms, item_id=event.item_id)
                return (told,)
            case SpeechStopped():
                return (wire.UserSpeechStopped(audio_end_ms=event.at_ms, item_id=event.item_id),)
            case InputCommitted():
                return self._committed(event)
            case InputTranscribed():
                return self._transcribed(event)
            case ResponseStarted():
                return self._started(event)
            case OutputDelta():
                return self._said(event)
            case ResponseEnded():
                return self._ended(event)
            case _:
                # Turns and units have no words here.
                return ()

    def _committed(self, event: InputCommitted) -> list[msgspec.Struct]:
        item: dict[str, Any] = {
            "id": event.item_id,
            "object": "realtime.item",
            "type": "message",
            "status": "completed",
            "role": "user",
            "content": [{"type": "input_audio", "transcript": None}],
        }
        self._keep(item)
        told: dict[str, Any] = {"item": copy.deepcopy(item), "previous_item_id": event.previous_id}
        return [
            wire.BufferCommitted(item_id=event.item_id, previous_item_id=event.previous_id),
            wire.ItemAdded(**told),
            wire.ItemDone(**told),
        ]

    def _transcribed(self, event: InputTranscribed) -> list[msgspec.Struct]:
        if self._session["audio"]["input"]["transcription"] is None:
            return []
        if event.text is None:
            error = {
                "type": "transcription_error",
                "code": "transcription_unavailable",
                "message": "This model does not write down what it hears.",
                "param": None,
            }
            return [wire.TranscriptionFailed(item_id=event.item_id, content_index=0, error=error)]
        item = self._items.get(event.item_id)
        if item is not None:
            item["content"][0]["transcript"] = event.text
        return [
            wire.TranscriptionCompleted(
                item_id=event.item_id,
                content_index=0,
                transcript=event.text,
                usage={"type": "duration", "seconds": event.audio_ms / 1000},
            )
        ]

    def _started(self, event: ResponseStarted) -> list[msgspec.Struct]:
        asked = self._asked.pop(event.reference, {})
        is_apart = asked.get("conversation") == "none"
        telling = self._telling = OngoingResponse(
            event,
            asked,
            self._session,
            conversation_id=None if is_apart else self._conversation_id,
            limit=asked.get("max_output_tokens") or self._session["max_output_tokens"],
            metadata=asked.get("metadata"),
        )
        item = self._answer_item(telling, "in_progress", [])
        if not is_apart:
            self._keep(item)
        told = copy.deepcopy(item)
        return [
            wire.ResponseCreated(response=self._response(telling, "in_progress", None, [])),
            wire.OutputItemAdded(
                response_id=event.response_id, output_index=0, item=copy.deepcopy(item)
            ),
            wire.ItemAdded(item=told, previous_item_id=event.previous_id),
            wire.ContentPartAdded(**telling.place, part=_part(telling, "")),
        ]

    def _said(self, event: OutputDelta) -> list[msgspec.Struct]:
        telling = self._telling
        if telling is None:
            return []
        telling.text += event.text
        if not telling.started.is_spoken:
            return [wire.TextDelta(**telling.place, delta=event.text)] if event.text else []
        found: list[msgspec.Struct] = []
        if event.text:
            found.append(wire.TranscriptDelta(**telling.place, delta=event.text))
        first, others = in_seconds(event.pcm)
        sounds = [] if first is None else [first, *others]
        found += [wire.AudioDelta(**telling.place, delta=pcm16_text(pcm)) for pcm in sounds]
        return found

    def _ended(self, event: ResponseEnded) -> list[msgspec.Struct]:
        telling, self._telling = self._telling, None
        if telling is None:
            return []
        status, details = _status(event)
        item_status = "completed" if event.ending is Ending.DONE else "incomplete"
        content = [_content(telling, event.text)]
        item = self._answer_item(telling, item_status, content)
        if event.item_id in self._items:
            self._keep(item)
        place = telling.place
        closing: list[msgspec.Struct] = (
            [
                wire.AudioDone(**place),
                wire.TranscriptDone(**place, transcript=event.text),
            ]
            if event.is_spoken
            else [wire.TextDone(**place, text=event.text)]
        )
        response = self._response(telling, status, details, [copy.deepcopy(item)])
        response["usage"] = _usage(event)
        return [
            *closing,
            wire.ContentPartDone(**place, part=_part(telling, event.text)),
            wire.ItemDone(item=copy.deepcopy(item), previous_item_id=telling.started.previous_id),
            wire.OutputItemDone(
                response_id=event.response_id, output_index=0, item=copy.deepcopy(item)
            ),
            wire.ResponseDone(response=response),
            wire.RateLimitsUpdated(),
        ]

    def _answer_item(
        self, telling: OngoingResponse, status: str, content: list[dict[str, Any]]
    ) -> dict[str, Any]:
        return {
            "id": telling.started.item_id,
            "object": "realtime.item",
            "type": "message",
            "status": status,
            "role": "assistant",
            "content": content,
        }

    def _response(
        self, telling: OngoingResponse, status: str, details: Any, output: list[Any]
    ) -> dict[str, Any]:
        voice = telling.session["audio"]["output"]
        return {
            "object": "realtime.response",
            "id": telling.started.response_id,
            "status": status,
            "status_details": details,
            "output": output,
            "conversation_id": telling.conversation_id,
            "output_modalities": ["audio" if telling.started.is_spoken else "text"],
            "max_output_tokens": telling.limit,
            "audio": {"output": {"format": voice["format"], "voice": voice["voice"]}},
            "usage": None,
            "metadata": telling.metadata,
        }

    def frame(self, message: msgspec.Struct) -> str:
        return wire.encode(message)

    # ---- errors and the end ----------------------------------------------------------------

    def error(self, failure: ParleyError) -> msgspec.Struct:
        return wire.ErrorEvent(error=self._error_object(failure))

    def _error_object(self, failure: ParleyError) -> dict[str, Any]:
        return {
            "type": "invalid_request_error" if failure.is_client_error else "server_error",
            "code": failure.code,
            "message": str(failure),
            "param": getattr(failure, "field", None),
            "event_id": getattr(failure, "client_event_id", None),
        }

    def closed(self, reason: CloseReason, *, elapsed_s: float = 0.0) -> Reply:
        """Only a time that ran out is told; a connection that is closed says the rest."""
        messages: tuple[msgspec.Struct, ...] = ()
        if reason == "timeout":
            error = {
                "type": "invalid_request_error",
                "code": "session_expired",
                "message": f"The session has ended after {elapsed_s:g} s.",
                "param": None,
                "event_id": None,
            }
            messages = (wire.ErrorEvent(error=error),)
        return Reply(messages, CLOSE_CODES[reason], CLOSE_SENTENCES[reason])


class _NoItem(InvalidRequest):
    code = "item_not_found"

    def __init__(self, item_id: str) -> None:
        super().__init__(f"There is no item '{item_id[:80]}'.", field="item_id")


# ---- media ---------------------------------------------------------------------------------


def pcm_of(text: str, *, field: str) -> Pcm:
    """Base64 of 16-bit little-endian samples at 24 kHz.

    Raises:
        InvalidPayload: it is none.
    """
    data = codec.from_base64(text, field=field)
    if len(data) % 2:
        raise InvalidPayload(f"{field} must hold 16-bit samples.", field=field)
    samples = np.frombuffer(data, "<i2").astype(np.float32) / np.float32(32768)
    return Pcm(samples, wire.RATE_HZ)


def pcm16_text(pcm: Pcm) -> str:
    """Sound at 24 kHz as base64 of 16-bit little-endian samples."""
    scaled = np.clip(np.rint(pcm.samples * 32767.0), -32768, 32767)
    return codec.to_base64(scaled.astype("<i2").tobytes())


def content_of(value: dict[str, Any], *, field: str = "item") -> tuple[Content, ...]:
    """What an item that a client brings says; files are not opened.

    Raises:
        InvalidPayload, InvalidRequest: it is no message, or one that no model here understands.
    """
    item: wire.MessageItem = codec.read(dict(value), wire.ITEM)
    if item.type != "message":
        raise InvalidRequest(
            f"Items of type '{item.type[:80]}' are not taken: this model cannot call tools.",
            field=f"{field}.type",
        )
    if item.role not in ("system", "user", "assistant"):
        raise InvalidRequest("A role is system, user or assistant.", field=f"{field}.role")
    if not item.content:
        raise InvalidRequest("An item has content.", field=f"{field}.content")
    where = f"{field}.content"
    return tuple(_content_of(part, item.role, where) for part in item.content)


def _content_of(part: wire.MessageContent, role: str, where: str) -> Content:
    match part.type, role:
        case ("input_text", "system" | "user"):
            return TextPart(part.text)
        case ("output_text" | "text", "assistant"):
            return TextPart(part.text)
        case ("output_audio" | "audio", "assistant"):
            return TextPart(part.transcript)
        case ("input_audio", "user"):
            pcm = within(lambda: pcm_of(part.audio, field=f"{where}.audio"))
            return Sound(to_float32_bytes(resample(pcm, INPUT_RATE_HZ)), INPUT_RATE_HZ)
        case ("input_image", "user"):
            if not part.image_url.startswith("data:"):
                raise InvalidRequest("image_url must be a data URL.", field=f"{where}.image_url")
            return Picture(
                within(
                    lambda: codec.image_bytes(
                        part.image_url, field=f"{where}.image_url", limit_bytes=IMAGE_LIMIT_BYTES
                    )
                )
            )
    raise InvalidRequest(
        f"Content of type '{part.type[:80]}' is not taken from a {role}.", field=f"{where}.type"
    )


def _input_of(value: Any) -> tuple[Message[Content], ...] | None:
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise InvalidRequest("input is a list of items.", field="response.input")
    return tuple(
        Message(each.get("role", ""), content_of(each, field="response.input")) for each in value
    )


def _nulls(value: dict[str, Any]) -> dict[str, Any]:
    """A message as it was sent: reading drops what is null."""
    return copy.deepcopy(value) if value.get("type") == "session.update" else {}


def _light(part: Any) -> dict[str, Any]:
    """A part as it is told again: without its media, which may be large."""
    return {
        name: value
        for name, value in part.items()
        if name in ("type", "text", "transcript", "detail")
    }


# ---- answers -------------------------------------------------------------------------------


def _part(telling: OngoingResponse, text: str) -> dict[str, Any]:
    if telling.started.is_spoken:
        return {"type": "audio", "transcript": text}
    return {"type": "text", "text": text}


def _content(telling: OngoingResponse, text: str) -> dict[str, Any]:
    if telling.started.is_spoken:
        return {"type": "output_audio", "transcript": text}
    return {"type": "output_text", "text": text}


def _status(event: ResponseEnded) -> tuple[str, dict[str, Any] | None]:
    match event.ending:
        case None:
            error = event.error
            code = error.code if error is not None else "inference_error"
            told = {"type": "server_error", "code": code}
            if error is not None and error.is_client_error:
                told["type"] = "invalid_request_error"
            return "failed", {"type": "failed", "error": told}
        case Ending.CANCELLED:
            reason = "turn_detected" if event.is_turn else "client_cancelled"
            return "cancelled", {"type": "cancelled", "reason": reason}
        case Ending.LIMIT:
            return "incomplete", {"type": "incomplete", "reason": "max_output_tokens"}
        case _:
            return "completed", None


def _usage(event: ResponseEnded) -> dict[str, Any]:
    tokens = event.tokens
    output = tokens.output + tokens.speech
    return {
        "total_tokens": tokens.input + output,
        "input_tokens": tokens.input,
        "output_tokens": output,
        "input_token_details": {
            "text_tokens": max(0, tokens.input - tokens.audio - tokens.image),
            "audio_tokens": tokens.audio,
            "image_tokens": tokens.image,
            "cached_tokens": tokens.cached,
            "cached_tokens_details": {
                "text_tokens": tokens.cached,
                "audio_tokens": 0,
                "image_tokens": 0,
            },
        },
        "output_token_details": {"text_tokens": tokens.output, "audio_tokens": tokens.speech},
    }


def _is_metadata(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and len(value) <= METADATA_MOST
        and all(isinstance(each, str) and len(each) <= 512 for each in value.values())
    )
