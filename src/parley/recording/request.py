"""The request of a recorded session: the media that it names, and a summary for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from parley.dialects.events import (
    ChatRequested,
    Clip,
    DuplexSetup,
    HalfDuplexSetup,
    Picture,
    Sound,
)
from parley.media.wav import is_wav
from parley.protocol.values import TextPart
from parley.recording import layout, lines
from parley.recording.journal import MediaFiles, Sent
from parley.recording.lines import EntryLine
from parley.recording.timeline import written_in
from parley.session_log.entries import SessionRequest

MediaPart = Sound | Picture | Clip
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
    files: MediaFiles = field(default_factory=dict)
    _paths: dict[int, str] = field(default_factory=dict)
    """By the identity of the content."""

    def keep(self, event: SessionRequest) -> EntryLine:
        """The line of a request; its media go into `files`."""
        for media, stem in _media_of(event):
            self._paths[id(_content(media))] = self._keep(media, stem)
        return lines.written(event, 0.0, lambda content: self._paths[id(content)])

    def _keep(self, media: MediaPart, stem: str) -> str:
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


def _media_of(event: SessionRequest) -> Iterator[tuple[MediaPart, str]]:
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
                yield from ((part, "") for part in message.parts if isinstance(part, MediaPart))
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
                "system_prompt": written_in(event.system),
                "ref_audio": _voice_name(event.voice, None),
                "tts": event.wants_speech,
                "generation": event.generation,
                "vad": event.vad,
                "timeout_s": event.idle_s,
            }
        case ChatRequested():
            system = [part for one in event.messages if one.role == "system" for part in one.parts]
            return {
                "system_prompt": written_in(system),
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


def _content(media: MediaPart) -> bytes:
    return media.data if isinstance(media, Sound) else media.file


def _voice_name(sound: Sound | None, name: str | None) -> str | None:
    return "uploaded" if sound is not None else name


def _stem(path: str) -> str:
    return path.rpartition(".")[0]
