"""The newest public MiniCPM-o dialect (V2), `/v1/realtime?mode=video|audio|chat`.

    client                     server
                         ◀─    session.queued, session.queue_update*, session.queue_done
    session.init         ─▶    session.created
    input.append         ─▶    response.output.delta          one kind per message
                         ◀─    response.done                  chat: the answer is complete
    session.close        ─▶    session.closed                 then close

In full duplex it says what the realtime dialect says in other words, and in chats what the chat
dialect says: its messages are read as theirs, under their new names. Source: docs of the public
project, realtime API: overview, video, audio, chat.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType

from parley.errors import InvalidPayload, MissingField, UnknownEvent
from parley.protocol import chat, codec, realtime
from parley.protocol.values import Message, Text

PATH: Final = realtime.PATH
Json = dict[str, Any]


# ---- client → server -----------------------------------------------------------------------

_VOICES: Final = {
    "ref_audio": ("ref_audio", "ref_audio_base64"),
    "tts_ref_audio": ("tts_ref_audio", "tts_ref_audio_base64"),
}
_INPUTS: Final = {
    "audio": ("audio", "audio_base64"),
    "video_frames": ("video_frames", "frame_base64_list"),
    "playback": ("playback",),
}
TYPES: Final = frozenset({"session.init", "input.append", "session.close"})


def type_of(value: Any) -> str:
    """The type of a parsed message.

    Raises:
        UnknownEvent: there is no such message.
    """
    name = value.get("type") if isinstance(value, dict) else None
    if not isinstance(name, str) or name not in TYPES:
        raise UnknownEvent(str(name))
    return name


def setup_of(value: Json) -> realtime.SessionUpdate:
    """`session.init` as the realtime dialect has it.

    Raises:
        MissingField, InvalidPayload: naming the field.
    """
    payload = _object(value, "payload")
    config = payload.get("config") if isinstance(payload.get("config"), dict) else {}
    options = dict(config or {})
    if isinstance(payload.get("use_tts"), bool):
        options["generate_audio"] = payload["use_tts"]
    session: Json = {
        "instructions": payload.get("system_prompt") or payload.get("instructions"),
        "max_slice_nums": payload.get("max_slice_nums"),
        "voice_config": options,
        "record": payload.get("record"),
        "resume": payload.get("resume"),
        "interruption": payload.get("interruption"),
    }
    voice = payload.get("voice") if isinstance(payload.get("voice"), dict) else {}
    for name, names in _VOICES.items():
        session[name] = _first({**payload, **(voice or {})}, names)
    read: realtime.SessionUpdate = codec.read(
        {"type": "session.update", "session": session}, realtime.SHAPES["session.update"]
    )
    return read


def input_of(value: Json) -> realtime.Append:
    """`input.append` as the realtime dialect has it.

    Raises:
        MissingField, InvalidPayload: naming the field.
    """
    given = _object(value, "input")
    hints = given.get("hints") if isinstance(given.get("hints"), dict) else {}
    slices = given.get("max_slice_nums", (hints or {}).get("max_slice_nums"))
    if isinstance(slices, list):
        # One number for each frame: the finest of them does for all.
        slices = max((each for each in slices if isinstance(each, int)), default=None)
    append: Json = {
        "type": "input_audio_buffer.append",
        "force_listen": given.get("force_listen", (hints or {}).get("force_listen")),
        "max_slice_nums": slices,
        **{name: _first(given, names) for name, names in _INPUTS.items()},
    }
    read: realtime.Append = codec.read(append, realtime.SHAPES["input_audio_buffer.append"])
    return read


class ChatOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`session.init` of a chat: what a request takes that does not say it itself.

    Args:
        prompt: the system's message, for requests without one.
        use_tts: whether answers are spoken.
    """

    prompt: Text = ""
    use_tts: bool = False
    ref_audio: str | None = None
    record: bool = True


_OPTIONS: Final = codec.Shape(ChatOptions)
CHAT_GENERATION: Final = {"max_new_tokens": 256, "length_penalty": 1.1}
"""Published defaults of a chat's `generation`."""


def chat_options_of(value: Json) -> ChatOptions:
    """`session.init` of a chat.

    Raises:
        MissingField, InvalidPayload: naming the field.
    """
    payload = _object(value, "payload")
    voice = payload.get("voice") if isinstance(payload.get("voice"), dict) else {}
    names = (*_VOICES["tts_ref_audio"], *_VOICES["ref_audio"])
    read: ChatOptions = codec.read(
        {
            "prompt": payload.get("system_prompt") or payload.get("instructions"),
            "use_tts": payload.get("use_tts"),
            "ref_audio": _first({**payload, **(voice or {})}, names),
            "record": payload.get("record"),
        },
        _OPTIONS,
    )
    return read


def request_of(value: Json, options: ChatOptions) -> chat.Request:
    """`input.append` of a chat as the chat dialect has it.

    Raises:
        MissingField, InvalidPayload, InvalidRequest: naming the field.
    """
    given = _object(value, "input")
    tts, generation = _object(given, "tts", {}), _object(given, "generation", {})
    request = chat.request_from(
        {
            name: given[name]
            for name in ("messages", "streaming", "image", "omni_mode", "use_tts_template")
            if name in given
        }
        | {
            "enable_thinking": given.get("enable_thinking", False),
            "generation": CHAT_GENERATION | generation,
            "tts": {"enabled": options.use_tts, "ref_audio_data": options.ref_audio} | tts,
            "record": options.record,
        }
    )
    if not options.prompt or any(message.role == "system" for message in request.messages):
        return request
    system = Message(role="system", content=options.prompt)
    return msgspec.structs.replace(request, messages=(system, *request.messages))


def _object(value: Json, name: str, default: Json | None = None) -> Json:
    given = value.get(name, default)
    if given is None:
        raise MissingField(name)
    if not isinstance(given, dict):
        raise InvalidPayload(f"{name} must be an object.", field=name)
    return given


def _first(value: Json, names: tuple[str, ...]) -> Any:
    return next((value[name] for name in names if value.get(name) is not None), None)


# ---- server → client -----------------------------------------------------------------------


class Created(msgspec.Struct, tag="session.created", frozen=True, kw_only=True):
    """The session is ready."""

    session_id: str
    mode: str
    metrics: Json
    usage: Json


class Delta(msgspec.Struct, tag="response.output.delta", frozen=True, kw_only=True):
    """What a unit came to: it listened, or a part of what it said."""

    kind: str
    session_id: str
    response_id: str
    input_id: str
    chunk_index: int
    metrics: Json
    server_send_ts: float
    text: str | UnsetType = UNSET
    audio: str | UnsetType = UNSET
    chunk_usage: Json | UnsetType = UNSET
    usage: Json | UnsetType = UNSET


class ChatResponseDone(msgspec.Struct, tag="response.done", frozen=True, kw_only=True):
    """A chat's answer is complete. `audio`: the whole sound where it was not streamed."""

    text: str
    audio: str | None
    reason: str
    session_id: str
    response_id: str
    input_id: str
    metrics: Json
    usage: Json
    server_send_ts: float


class Closed(msgspec.Struct, tag="session.closed", frozen=True, kw_only=True):
    """The end."""

    session_id: str
    reason: str
    usage: Json
    diagnostic: Json | UnsetType = UNSET


class ErrorMessage(msgspec.Struct, tag="error", frozen=True, kw_only=True):
    """Something went wrong; `session.closed` follows."""

    error: Json
