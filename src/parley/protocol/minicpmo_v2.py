"""The newest public MiniCPM-o dialect (V2), `/v1/realtime?mode=video|audio`, in full duplex.

    client                     server
                         ◀─    session.queued, session.queue_update*, session.queue_done
    session.init         ─▶    session.created
    input.append         ─▶    response.output.delta          one kind per message
    session.close        ─▶    session.closed                 then close

It says what the realtime dialect says in other words: its messages are read as that one's, under
their new names. Source: docs of the public project, realtime API, video and audio.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType

from parley.errors import InvalidPayload, MissingField, UnknownEvent
from parley.protocol import codec, realtime

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
    payload = value.get("payload")
    if payload is None:
        raise MissingField("payload")
    if not isinstance(payload, dict):
        raise InvalidPayload("payload must be an object.", field="payload")
    config = payload.get("config") if isinstance(payload.get("config"), dict) else {}
    options = dict(config or {})
    if isinstance(payload.get("use_tts"), bool):
        options["generate_audio"] = payload["use_tts"]
    session: Json = {
        "instructions": payload.get("system_prompt") or payload.get("instructions"),
        "max_slice_nums": payload.get("max_slice_nums"),
        "voice_config": options,
        "record": payload.get("record"),
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
    given = value.get("input")
    if given is None:
        raise MissingField("input")
    if not isinstance(given, dict):
        raise InvalidPayload("input must be an object.", field="input")
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


class Closed(msgspec.Struct, tag="session.closed", frozen=True, kw_only=True):
    """The end."""

    session_id: str
    reason: str
    usage: Json
    diagnostic: Json | UnsetType = UNSET


class ErrorMessage(msgspec.Struct, tag="error", frozen=True, kw_only=True):
    """Something went wrong; `session.closed` follows."""

    error: Json
