"""The newest public MiniCPM-o dialect (V2), `/v1/realtime?mode=video|audio|chat`.

    client                     server
                         ◀─    session.queued, session.queue_update*, session.queue_done
    session.init         ─▶    session.created
    input.append         ─▶    response.output.delta          one kind per message
                         ◀─    response.done                  chat: the answer is complete
    session.close        ─▶    session.closed                 then close

In full duplex it corresponds to the realtime dialect, and in chats to the chat dialect, with other
names. Source: docs of the public project, realtime API: overview, video, audio, chat.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType

from parley.errors import InvalidPayload, MissingField
from parley.protocol import chat, codec, realtime, values
from parley.protocol.openai import Json
from parley.protocol.wire import Wire

PATH: Final = realtime.PATH


# ---- client → server -----------------------------------------------------------------------


class VoiceFields(Wire):
    """Reference voices under their two names: base64 of raw 16 kHz samples or of a WAV file."""

    ref_audio: str | None = None
    ref_audio_base64: str | None = None
    tts_ref_audio: str | None = None
    tts_ref_audio_base64: str | None = None


class InitPayload(VoiceFields):
    """Configuration of a session; also the defaults of a chat's requests."""

    system_prompt: values.Text | None = None
    instructions: values.Text | None = None
    voice: VoiceFields | None = None
    config: values.DuplexConfig | None = None
    use_tts: bool | None = None
    max_slice_nums: values.Slices = 1
    record: bool = True
    resume: bool = False
    interruption: values.InterruptionOptions = values.InterruptionOptions()

    @property
    def prompt(self) -> str:
        """The system prompt; "" if there is none."""
        return self.system_prompt or self.instructions or ""

    def reference(self, *names: str) -> str | None:
        """The first voice found under one of these names; those in `voice` take precedence."""
        found = (getattr(each, name, None) for name in names for each in (self.voice, self))
        return next((each for each in found if each is not None), None)


class SessionInit(Wire, tag="session.init"):
    """The first message."""

    payload: InitPayload

    def options(self) -> realtime.SessionOptions:
        """The setup of a call, as a message of the realtime dialect.

        Raises:
            MissingField: no prompt.
        """
        payload = self.payload
        if not payload.prompt:
            raise MissingField("payload.system_prompt")
        config = payload.config or values.DuplexConfig()
        if payload.use_tts is not None:
            config = msgspec.structs.replace(config, generate_audio=payload.use_tts)
        return realtime.SessionOptions(
            instructions=payload.prompt,
            max_slice_nums=payload.max_slice_nums,
            ref_audio=payload.reference("ref_audio", "ref_audio_base64"),
            tts_ref_audio=payload.reference("tts_ref_audio", "tts_ref_audio_base64"),
            voice_config=config,
            interruption=payload.interruption,
            record=payload.record,
            resume=payload.resume,
        )


class UnitHints(Wire):
    """Options of a unit, in their earlier place. If there is a number of slices per frame, the
    highest is used for all frames."""

    force_listen: bool | None = None
    max_slice_nums: values.Slices | tuple[values.Slices, ...] | None = None


class UnitInput(UnitHints):
    """A second of audio, and frames, under their two names."""

    audio: str | None = None
    audio_base64: str | None = None
    video_frames: values.Frames | str | None = None
    frame_base64_list: values.Frames | str | None = None
    hints: UnitHints | None = None
    playback: values.PlaybackReport | None = None


class InputAppend(Wire, tag="input.append"):
    """A unit of a call."""

    input: UnitInput

    def unit(self) -> realtime.Append:
        """The unit, as a message of the realtime dialect.

        Raises:
            MissingField: no audio.
        """
        given, hints = self.input, self.input.hints or UnitHints()
        audio = given.audio_base64 if given.audio is None else given.audio
        if audio is None:
            raise MissingField("input.audio")
        frames = given.video_frames or given.frame_base64_list or ()
        listens = hints.force_listen if given.force_listen is None else given.force_listen
        slices = given.max_slice_nums or hints.max_slice_nums
        if isinstance(slices, tuple):
            slices = max(slices, default=None)
        return realtime.Append(
            audio=audio,
            video_frames=(frames,) if isinstance(frames, str) else frames,
            force_listen=bool(listens),
            max_slice_nums=slices or None,
            playback=given.playback or UNSET,
        )


class ChatAppend(Wire, tag="input.append"):
    """A request of a chat; see `request_of`."""

    input: Json


class V2Close(Wire, tag="session.close"):
    """End the session."""

    reason: Any = None


CallMessage = SessionInit | InputAppend | V2Close
CHAT_SHAPES: Final = codec.shapes_of(SessionInit | ChatAppend | V2Close)
SHAPES: Final = codec.shapes_of(CallMessage)
MESSAGES: Final[codec.Messages[CallMessage, CallMessage]] = codec.Messages(SHAPES, CallMessage)
CHAT_MESSAGES: Final[codec.Messages[Any, Any]] = codec.Messages(CHAT_SHAPES, V2Close)
"""We have no client for this dialect: server messages are only encoded."""

CHAT_GENERATION: Final = {"max_new_tokens": 256, "length_penalty": 1.1}
"""Published defaults of a chat's `generation`."""


def request_of(given: Json, payload: InitPayload) -> chat.Request:
    """`input` of a chat's `input.append`, as a message of the chat dialect.

    Raises:
        InvalidPayload, InvalidRequest: naming the field.
    """
    tts, generation = _object(given, "tts"), _object(given, "generation")
    names = ("tts_ref_audio", "tts_ref_audio_base64", "ref_audio", "ref_audio_base64")
    voice = {"enabled": bool(payload.use_tts), "ref_audio_data": payload.reference(*names)}
    request = chat.request_from(
        {
            name: given[name]
            for name in ("messages", "streaming", "image", "omni_mode", "use_tts_template")
            if name in given
        }
        | {
            "enable_thinking": given.get("enable_thinking", False),
            "generation": CHAT_GENERATION | generation,
            "tts": voice | tts,
            "record": payload.record,
        }
    )
    if not payload.prompt or any(message.role == "system" for message in request.messages):
        return request
    system = values.Message(role="system", content=payload.prompt)
    return msgspec.structs.replace(request, messages=(system, *request.messages))


def _object(value: Json, name: str) -> Json:
    given = value.get(name)
    if given is not None and not isinstance(given, dict):
        raise InvalidPayload(f"{name} must be an object, got {type(given).__name__}.", field=name)
    return given or {}


# ---- server → client -----------------------------------------------------------------------


class Created(Wire, tag="session.created"):
    """The session is ready."""

    session_id: str
    mode: str
    metrics: Json
    usage: Json


class Delta(Wire, tag="response.output.delta"):
    """Result of a unit: it listened, or a part of its output."""

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


class ChatResponseDone(Wire, tag="response.done"):
    """A chat's answer is complete. `audio`: the whole audio if it was not streamed."""

    text: str
    audio: str | None
    reason: str
    session_id: str
    response_id: str
    input_id: str
    metrics: Json
    usage: Json
    server_send_ts: float


class Closed(Wire, tag="session.closed"):
    """The session has ended."""

    session_id: str
    reason: str
    usage: Json
    diagnostic: Json | UnsetType = UNSET


class ErrorMessage(Wire, tag="error"):
    """An error; `session.closed` follows."""

    error: Json
