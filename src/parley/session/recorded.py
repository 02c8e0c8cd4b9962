"""The request in a journal's head: what `parley rerun` needs to run a session again.

Structs for each kind, made of the event that asked for the session, and the media they name.
`config` is the same request for people.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from parley.dialects.events import (
    ChatRequested,
    Clip,
    Content,
    DuplexSetup,
    HalfDuplexSetup,
    Picture,
    Sound,
)
from parley.media.pcm import Pcm
from parley.media.wav import is_wav
from parley.protocol.codec import Converter
from parley.protocol.content import Message
from parley.protocol.values import (
    DuplexConfig,
    Generation,
    Role,
    TextPart,
    Tool,
    ToolCallPart,
    ToolResultPart,
    TtsMode,
    VadOptions,
)
from parley.recording import layout
from parley.recording.journal import Sent
from parley.recording.lines import TurnInput
from parley.session.entries import SessionRequest

_options = Converter(DuplexConfig)

Files = dict[str, "bytes | Sent"]
"""Content by path within the recording."""

ReadFile = Callable[[str], bytes]


class KeptSound(msgspec.Struct):
    """Audio as it was sent: a WAV file, or raw float32 samples with their rate."""

    file: str
    rate_hz: int | UnsetType = UNSET

    def load(self, read: ReadFile) -> Sound:
        """The audio as it was sent."""
        return Sound(read(self.file), self.rate_hz or 16_000)


class KeptPart(msgspec.Struct):
    """A content part: text, or the file of an image, sound or video."""

    type: Literal["text", "image", "audio", "video", "tool_call", "tool_result"]
    text: str | UnsetType = UNSET
    file: str | UnsetType = UNSET
    rate_hz: int | UnsetType = UNSET
    stack_frames: int | UnsetType = UNSET
    name: str | UnsetType = UNSET

    def load(self, read: ReadFile) -> Content:
        """The part as it was sent."""
        if self.type == "text":
            return TextPart(self.text or "")
        if self.type == "tool_call":
            return ToolCallPart(name=self.name or "", arguments=self.text or "")
        if self.type == "tool_result":
            return ToolResultPart(content=self.text or "")
        data = read(self.file or "")
        match self.type:
            case "image":
                return Picture(data)
            case "audio":
                return Sound(data, self.rate_hz or 16_000)
            case _:
                return Clip(data, self.stack_frames or 1)


class KeptMessage(msgspec.Struct):
    """A chat message."""

    role: Role
    content: list[KeptPart]

    def load(self, read: ReadFile) -> Message[Content]:
        """The message as it was sent."""
        return Message(self.role, tuple(part.load(read) for part in self.content))


class DuplexAsked(msgspec.Struct):
    """Request of a duplex session."""

    prompt: str
    voice: KeptSound | None
    tts_voice: KeptSound | None
    voice_name: str | None
    max_slices: int
    options: dict[str, Any]
    """`DuplexConfig.choices`."""
    slides: tuple[int, int] | None = None

    def load(self, read: ReadFile) -> DuplexSetup:
        """The request as it was made."""
        return DuplexSetup(
            self.prompt,
            _loaded(self.voice, read),
            _loaded(self.tts_voice, read),
            self.voice_name,
            self.max_slices,
            _options.convert(self.options),
            slides=self.slides,
        )


class HalfDuplexAsked(msgspec.Struct):
    """Request of a half-duplex session."""

    system: list[KeptPart]
    voice: KeptSound | None
    wants_speech: bool
    generation: Generation
    vad: VadOptions
    voice_name: str | None = None

    def load(self, read: ReadFile) -> HalfDuplexSetup:
        """The request as it was made."""
        parts = (part.load(read) for part in self.system)
        return HalfDuplexSetup(
            tuple(part for part in parts if isinstance(part, TextPart | Sound)),
            _loaded(self.voice, read),
            self.voice_name,
            self.wants_speech,
            self.vad,
            self.generation,
        )


class ChatAsked(msgspec.Struct):
    """Request of a chat."""

    messages: list[KeptMessage]
    streaming: bool
    wants_speech: bool
    voice: KeptSound | None
    voice_name: str | None
    tts_mode: TtsMode
    language: str | None
    generation: Generation
    max_slices: int | None
    numbers_images: bool | None
    is_omni: bool
    tools: tuple[Tool, ...] = ()

    def load(self, read: ReadFile, seed: int) -> ChatRequested:
        """The request as it was made."""
        return ChatRequested(
            tuple(message.load(read) for message in self.messages),
            self.streaming,
            self.wants_speech,
            _loaded(self.voice, read),
            self.voice_name,
            self.tts_mode,
            self.language,
            self.generation,
            self.max_slices,
            self.numbers_images,
            self.is_omni,
            seed=seed,
            tools=self.tools,
        )

    def turn_input(self) -> TurnInput:
        """The last user message, as `recording.json` shows it."""
        last = next((one for one in reversed(self.messages) if one.role == "user"), None)
        parts = last.content if last is not None else []
        files = {
            kind: [part.file for part in parts if part.type == kind and part.file]
            for kind in ("image", "audio", "video")
        }
        audio = next((f"{_stem(path)}.wav" for path in files["audio"]), UNSET)
        return TurnInput(
            type="+".join(dict.fromkeys(part.type for part in parts)) or "text",
            text="\n".join(part.text or "" for part in parts if part.type == "text"),
            audio=audio,
            images=files["image"] or UNSET,
            videos=files["video"] or UNSET,
        )


def keep_duplex(event: DuplexSetup, files: Files) -> tuple[DuplexAsked, dict[str, Any]]:
    """`asked` and `config` of a duplex session; its media go into `files`."""
    asked = DuplexAsked(
        prompt=event.prompt,
        voice=_voice(event.voice, "prompt", files),
        tts_voice=_voice(event.tts_voice, "tts", files),
        voice_name=event.voice_name,
        max_slices=event.max_slices,
        options=event.options.choices(),
        slides=event.slides,
    )
    config = {
        "system_prompt": event.prompt,
        "ref_audio": _voice_name(event.voice or event.tts_voice, event.voice_name),
        "max_slice_nums": event.max_slices,
        **event.options.choices(),
    }
    return asked, config


def keep_half_duplex(
    event: HalfDuplexSetup, files: Files
) -> tuple[HalfDuplexAsked, dict[str, Any]]:
    """`asked` and `config` of a half-duplex session; its media go into `files`."""
    system = []
    for number, part in enumerate(event.system):
        if isinstance(part, TextPart):
            system.append(KeptPart("text", text=part.text))
        else:
            system.append(_sound_part(part, f"voice/system_{number}", files))
    asked = HalfDuplexAsked(
        system=system,
        voice=_voice(event.voice, "tts", files),
        wants_speech=event.wants_speech,
        generation=event.generation,
        vad=event.vad,
        voice_name=event.voice_name,
    )
    config = {
        "system_prompt": _joined(event.system),
        "ref_audio": _voice_name(event.voice, None),
        "tts": event.wants_speech,
        "generation": event.generation,
        "vad": event.vad,
        "timeout_s": event.idle_s,
    }
    return asked, config


class MediaCounts(dict[str, int]):
    """How many media of each type a recording has: where the next one goes."""

    voice: tuple[bytes, KeptSound] | None = None
    """The newest voice of a chat: the next request has mostly the same, which is kept once."""

    def __missing__(self, name: str) -> int:
        return 0


def keep_chat(
    event: ChatRequested, files: Files, counts: MediaCounts
) -> tuple[ChatAsked, dict[str, Any]]:
    """`asked` and `config` of a chat; its media go into `files`, and are counted."""

    def kept(part: Content) -> KeptPart:
        match part:
            case TextPart():
                return KeptPart("text", text=part.text)
            case ToolCallPart():
                return KeptPart("tool_call", text=part.arguments, name=part.name)
            case ToolResultPart():
                return KeptPart("tool_result", text=part.content)
            case Picture():
                path = layout.user_image(counts["image"], layout.picture_extension(part.file))
                counts["image"] += 1
                files[path] = part.file
                return KeptPart("image", file=path)
            case Pcm():
                raise TypeError("a request holds sound as it was sent")
            case Sound():
                stem = _stem(layout.user_audio(counts["audio"]))
                counts["audio"] += 1
                return _sound_part(part, stem, files)
            case Clip():
                path = layout.user_video(counts["video"])
                counts["video"] += 1
                files[path] = part.file
                return KeptPart("video", file=path, stack_frames=part.stack_frames)

    messages = [
        KeptMessage(message.role, [kept(part) for part in message.parts])
        for message in event.messages
    ]
    asked = ChatAsked(
        messages=messages,
        streaming=event.is_streaming,
        wants_speech=event.wants_speech,
        voice=_chat_voice(event.voice, files, counts),
        voice_name=event.voice_name,
        tts_mode=event.tts_mode,
        language=event.language,
        generation=event.generation,
        max_slices=event.max_slices,
        numbers_images=event.numbers_images,
        is_omni=event.is_omni,
        tools=event.tools,
    )
    system = [one for one in event.messages if one.role == "system"]
    config = {
        "system_prompt": _joined([part for message in system for part in message.parts]),
        "ref_audio": _voice_name(event.voice, event.voice_name),
        "tts": event.wants_speech,
        "tts_mode": event.tts_mode,
        "generation": event.generation,
        "max_slice_nums": event.max_slices,
        "streaming": event.is_streaming,
    }
    return asked, config


def title(event: SessionRequest) -> str:
    """The first text of a chat's last user message that has one, on one line; "" otherwise."""
    if not isinstance(event, ChatRequested):
        return ""
    for message in reversed(event.messages):
        for part in message.parts:
            if message.role == "user" and isinstance(part, TextPart):
                return " ".join(part.text.split())
    return ""


def _keep_sound(sound: Sound, stem: str, files: Files) -> KeptSound:
    """Keep audio as it was sent, and raw samples also as a WAV file that players understand."""
    if is_wav(sound.data):
        files[f"{stem}.wav"] = sound.data
        return KeptSound(f"{stem}.wav")
    files[f"{stem}.f32"] = sound.data
    files[f"{stem}.wav"] = Sent(sound.data, sound.rate_hz)
    return KeptSound(f"{stem}.f32", sound.rate_hz)


def _sound_part(sound: Sound, stem: str, files: Files) -> KeptPart:
    kept = _keep_sound(sound, stem, files)
    return KeptPart("audio", file=kept.file, rate_hz=kept.rate_hz)


def _loaded(kept: KeptSound | None, read: ReadFile) -> Sound | None:
    return None if kept is None else kept.load(read)


def _voice(sound: Sound | None, name: str, files: Files) -> KeptSound | None:
    return None if sound is None else _keep_sound(sound, f"voice/{name}", files)


def _chat_voice(sound: Sound | None, files: Files, counts: MediaCounts) -> KeptSound | None:
    if sound is None:
        return None
    if counts.voice is None or counts.voice[0] != sound.data:
        number = counts["voice"]
        counts["voice"] += 1
        kept = _keep_sound(sound, f"voice/tts_{number}" if number else "voice/tts", files)
        counts.voice = (sound.data, kept)
    return counts.voice[1]


def _voice_name(sound: Sound | None, name: str | None) -> str | None:
    return "uploaded" if sound is not None else name


def _joined(parts: Sequence[Content]) -> str:
    return "\n".join(part.text for part in parts if isinstance(part, TextPart))


def _stem(path: str) -> str:
    return path.rpartition(".")[0]
