"""The request of a recorded session: an entry, the media that it names, and a summary for people.

`asked` in a journal is the entry as `state_codec` writes it; media are files of the recording.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec import UNSET

from parley.dialects.events import (
    ChatRequested,
    Clip,
    Content,
    DuplexSetup,
    HalfDuplexSetup,
    Picture,
    Sound,
)
from parley.errors import InvalidRequest
from parley.media.pcm import Pcm
from parley.media.wav import is_wav
from parley.protocol.codec import Converter
from parley.protocol.content import Message
from parley.protocol.kinds import Mode
from parley.protocol.values import (
    DuplexConfig,
    Generation,
    TextPart,
    Tool,
    ToolCallPart,
    ToolResultPart,
    VadOptions,
)
from parley.recording import layout
from parley.recording.journal import Media, Sent
from parley.recording.lines import TurnInput
from parley.session import state_codec
from parley.session.entries import SessionRequest

_options = Converter(DuplexConfig)
_vad = Converter(VadOptions)
_generation = Converter(Generation)
_tools = Converter(tuple[Tool, ...])

ReadFile = Callable[[str], bytes]
Kept = Sound | Picture | Clip
"""Media as a client sent them."""


class MediaCounts(Counter[str]):
    """Number of media of each type in a recording: where the next one goes."""

    voice: tuple[bytes, str] | None = None
    """The newest voice of a chat and its file: most requests repeat it, and it is kept once."""


@dataclass(slots=True)
class RequestMedia:
    """The media of one request.

    Args:
        files: content by path within the recording.
    """

    counts: MediaCounts = field(default_factory=MediaCounts)
    files: Media = field(default_factory=dict)
    _paths: dict[int, str] = field(default_factory=dict)
    """By the identity of the content."""

    def keep(self, event: SessionRequest) -> msgspec.Raw:
        """`asked` of a request; its media go into `files`."""
        for media, stem in _media_of(event):
            self._paths[id(_content(media))] = self._keep(media, stem)
        plain = state_codec.to_plain(event, lambda content: self._paths[id(content)])
        return msgspec.Raw(msgspec.json.encode(plain))

    def turn_input(self, event: ChatRequested) -> TurnInput:
        """The last user message of a chat, as `recording.json` shows it; after `keep`."""
        users = (one for one in reversed(event.messages) if one.role == "user")
        parts: Sequence[Content] = next((one.parts for one in users), ())
        paths = {
            kind: [self._paths[id(_content(part))] for part in parts if isinstance(part, kind)]
            for kind in (Sound, Picture, Clip)
        }
        return TurnInput(
            type="+".join(dict.fromkeys(map(_type_of, parts))) or "text",
            text=_joined(parts),
            audio=next((f"{_stem(path)}.wav" for path in paths[Sound]), UNSET),
            images=paths[Picture] or UNSET,
            videos=paths[Clip] or UNSET,
        )

    def _keep(self, media: Kept, stem: str) -> str:
        match media:
            case Sound():
                return self._keep_sound(media, stem)
            case Picture(file):
                path = layout.user_image(self._next("image"), layout.picture_extension(file))
            case Clip(file):
                path = layout.user_video(self._next("video"))
        self.files[path] = file
        return path

    def _keep_sound(self, sound: Sound, stem: str) -> str:
        """Keep audio as it was sent, and raw samples also as a WAV file that players understand."""
        if stem == CHAT_VOICE:
            if self.counts.voice is not None and self.counts.voice[0] == sound.data:
                return self.counts.voice[1]
            number = self._next("voice")
            stem = f"{CHAT_VOICE}_{number}" if number else CHAT_VOICE
        stem = stem or _stem(layout.user_audio(self._next("audio")))
        path = f"{stem}.wav"
        if is_wav(sound.data):
            self.files[path] = sound.data
        else:
            self.files[path] = Sent(sound.data, sound.rate_hz)
            path = f"{stem}.f32"
            self.files[path] = sound.data
        if stem.startswith(CHAT_VOICE):
            self.counts.voice = (sound.data, path)
        return path

    def _next(self, kind: str) -> int:
        self.counts[kind] += 1
        return self.counts[kind] - 1


CHAT_VOICE = "voice/tts"
"""Stem of the files of voices that answers imitate; a chat may have several, one per request."""


def _media_of(event: SessionRequest) -> Iterator[tuple[Kept, str]]:
    """The media of a request and, for voices, where they go."""
    named: list[tuple[Sound | None, str]] = []
    match event:
        case DuplexSetup():
            named = [(event.voice, "voice/prompt"), (event.tts_voice, CHAT_VOICE)]
        case HalfDuplexSetup():
            named = [(event.voice, CHAT_VOICE)]
            for number, part in enumerate(event.system):
                if isinstance(part, Sound):
                    named.append((part, f"voice/system_{number}"))
        case ChatRequested():
            if event.voice is not None:
                yield event.voice, CHAT_VOICE
            for message in event.messages:
                yield from ((part, "") for part in message.parts if isinstance(part, Kept))
    for sound, stem in named:
        if sound is not None:
            yield sound, stem


def summary(event: SessionRequest) -> dict[str, Any]:
    """`config` of a recording: the request for people."""
    match event:
        case DuplexSetup():
            return {
                "system_prompt": event.prompt,
                "ref_audio": _voice_name(event.voice or event.tts_voice, event.voice_name),
                "max_slice_nums": event.max_slices,
                **event.options.choices(),
            }
        case HalfDuplexSetup():
            return {
                "system_prompt": _joined(event.system),
                "ref_audio": _voice_name(event.voice, None),
                "tts": event.wants_speech,
                "generation": event.generation,
                "vad": event.vad,
                "timeout_s": event.idle_s,
            }
        case ChatRequested():
            system = [part for one in event.messages if one.role == "system" for part in one.parts]
            return {
                "system_prompt": _joined(system),
                "ref_audio": _voice_name(event.voice, event.voice_name),
                "tts": event.wants_speech,
                "tts_mode": event.tts_mode,
                "generation": event.generation,
                "max_slice_nums": event.max_slices,
                "streaming": event.is_streaming,
            }


def title(event: SessionRequest) -> str:
    """The first text of a chat's last user message that has one, on one line; "" otherwise."""
    if isinstance(event, ChatRequested):
        for message in reversed(event.messages):
            for part in message.parts:
                if message.role == "user" and isinstance(part, TextPart):
                    return " ".join(part.text.split())
    return ""


def load_request(asked: msgspec.Raw, mode: Mode, read: ReadFile) -> Any:
    """The request that `asked` describes.

    Raises:
        InvalidRequest, InvalidPayload: it cannot be read.
    """
    try:
        plain = msgspec.json.decode(asked)
        if isinstance(plain, dict):
            return _load_earlier(plain, mode, read)
    except (msgspec.MsgspecError, KeyError, TypeError) as error:
        raise InvalidRequest(f"The recorded request cannot be read: {error}") from None
    return state_codec.from_plain(plain, lambda path: read(str(path)))


def _load_earlier(asked: dict[str, Any], mode: Mode, read: ReadFile) -> SessionRequest:
    """A request in a recording of an earlier version, which has an object for each kind."""

    def sound(kept: dict[str, Any] | None) -> Sound | None:
        return None if kept is None else Sound(read(kept["file"]), kept.get("rate_hz") or 16_000)

    def part(kept: dict[str, Any]) -> Any:
        match kept["type"]:
            case "text":
                return TextPart(kept.get("text", ""))
            case "tool_call":
                return ToolCallPart(name=kept.get("name", ""), arguments=kept.get("text", ""))
            case "tool_result":
                return ToolResultPart(content=kept.get("text", ""))
            case "image":
                return Picture(read(kept["file"]))
            case "audio":
                return sound(kept)
            case _:
                return Clip(read(kept["file"]), kept.get("stack_frames") or 1)

    known = dict(asked)
    for name in ("voice", "tts_voice"):
        if name in known:
            known[name] = sound(known[name])
    match mode:
        case "duplex":
            slides = known.get("slides")
            known["slides"] = None if slides is None else tuple(slides)
            return DuplexSetup(**known | {"options": _options.convert(known["options"])})
        case "half_duplex":
            known["system"] = tuple(map(part, known["system"]))
            known["vad"] = _vad.convert(known["vad"])
            known["generation"] = _generation.convert(known["generation"])
            return HalfDuplexSetup(**known)
        case "chat":
            known["is_streaming"] = known.pop("streaming")
            known["generation"] = _generation.convert(known["generation"])
            known["tools"] = _tools.convert(known.get("tools", ()))
            known["messages"] = tuple(
                Message(one["role"], tuple(map(part, one["content"]))) for one in known["messages"]
            )
            return ChatRequested(**known)


def _content(media: Kept) -> bytes:
    return media.data if isinstance(media, Sound) else media.file


def _type_of(part: Content) -> str:
    """As recordings name it."""
    match part:
        case TextPart():
            return "text"
        case ToolCallPart():
            return "tool_call"
        case ToolResultPart():
            return "tool_result"
        case Picture():
            return "image"
        case Clip():
            return "video"
        case Sound() | Pcm():
            return "audio"


def _voice_name(sound: Sound | None, name: str | None) -> str | None:
    return "uploaded" if sound is not None else name


def _joined(parts: Sequence[Content]) -> str:
    return "\n".join(part.text for part in parts if isinstance(part, TextPart))


def _stem(path: str) -> str:
    return path.rpartition(".")[0]
