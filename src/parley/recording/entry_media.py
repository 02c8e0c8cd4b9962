"""Stores audio and files of a recording's entries, and describes them in the entries' lines.

Everything here runs in the journal's writer thread and may raise `OSError`. The media of an entry
are written before its line, so that a crash leaves no line without its file.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np

from parley.dialects.events import (
    AnswerDone,
    ChatRequested,
    Clip,
    DuplexSetup,
    HalfDuplexSetup,
    InputCommitted,
    OutputDelta,
    Picture,
    Sound,
    TurnStarted,
    TurnTranscribed,
    UnitDone,
)
from parley.errors import InvalidPayload
from parley.media.encoder import wav_header
from parley.media.pcm import Pcm, from_float32_bytes, to_pcm16_bytes
from parley.media.wav import encode_wav
from parley.protocol.codec import is_wav
from parley.recording import layout, lines
from parley.recording.layout import Folder
from parley.recording.lines import EntryLine, KeptSound, Number, SamplePlace
from parley.recording.speech_times import SpeechTimes
from parley.session_log.append_file import AppendFile
from parley.session_log.entries import Recorded

MediaPart = Sound | Picture | Clip
"""Media as a client sent them."""

CHAT_VOICE: Final = "voice/tts"
"""Stem of the files of voices that answers imitate; a chat may have several, one per request."""


class WavFile:
    """A growing file of mono 16-bit audio. Its header is updated with every piece, so it can be
    played even if the process dies."""

    def __init__(self, path: Path, rate_hz: int) -> None:
        self._rate_hz = rate_hz
        self._bytes = 0
        self._file = AppendFile(path)
        try:
            self._file.append(wav_header(rate_hz, 0))
        except OSError:
            self._file.close()
            path.unlink(missing_ok=True)
            raise

    def append(self, pcm: Pcm) -> None:
        """Append samples: all or none."""
        data = to_pcm16_bytes(pcm)
        self._file.append(data)
        self._bytes += len(data)
        self._file.overwrite(wav_header(self._rate_hz, self._bytes))

    def close(self) -> None:
        """Safe to repeat."""
        self._file.close()


class EntryMedia:
    """The media files of one recording.

    Args:
        keeps_inputs: True to also store audio exactly as the model receives it, in addition to the
            playable files.
    """

    def __init__(self, folder: Folder, *, keeps_inputs: bool) -> None:
        self._folder = folder
        self._keeps_inputs = keeps_inputs
        self._turn = self._committed = -1
        """Index of the newest turn; -1: a turn may be in progress that started in the previous
        recording."""
        self._counts: Counter[str] = Counter()
        """Number of media of each type that clients sent; determines the name of the next one."""
        self._voice: tuple[bytes, str] | None = None
        """The newest voice of a chat and its file: most requests repeat it, and it is stored
        once."""
        self._has_ended = self._was_speaking = False
        """True if the turn ended in the previous unit or that unit spoke."""
        self._speech_times = SpeechTimes()
        self._inputs: AppendFile | None = None
        self._newest: tuple[Pcm, SamplePlace] | None = None
        """The input that was stored last."""
        self._growing: tuple[str, WavFile] | None = None
        """The file of the answer in progress, and its path."""

    def line(self, entry: Recorded, at_ms: Number) -> EntryLine | None:
        """Store the audio and files of an entry; returns its line. None: it does not belong in this
        recording."""
        self._follow(entry)
        if isinstance(entry, OutputDelta) and self._turn < 0:
            # What it answers is in the previous recording.
            return None
        paths = {id(_content(media)): self._keep_sent(media, to) for media, to in _media_of(entry)}
        sounds: list[KeptSound] = []
        files = 0

        def keep(content: Pcm | bytes) -> int | str:
            nonlocal files
            if isinstance(content, Pcm):
                sounds.append(self._keep_sound(entry, content))
                return len(sounds) - 1
            if id(content) in paths:
                return paths[id(content)]
            path = self._path(entry, content, files)
            self._write(path, content)
            files += 1
            return path

        line = lines.written(entry, at_ms, keep)
        if sounds:
            line.sounds = sounds
        if isinstance(entry, TurnTranscribed) and (times := self._speech_times.take()) is not None:
            start_s, end_s = times
            line.spoken_ago_ms = (round(1000 * start_s), round(1000 * end_s))
        return line

    def sync(self) -> None:
        """Wait until the inputs are on the disk."""
        if self._inputs is not None:
            self._inputs.sync()

    def close(self) -> None:
        """Safe to repeat."""
        self._close_growing()
        if self._inputs is not None:
            self._inputs.close()
            self._inputs = None

    def _follow(self, entry: Recorded) -> None:
        """Update the counts, even if the entry cannot be written."""
        match entry:
            case ChatRequested() | DuplexSetup() | TurnStarted():
                self._turn += 1
            case InputCommitted():
                self._committed += 1
            case UnitDone(result=result, unit=unit):
                self._turn += self._has_ended or (self._was_speaking and result.is_listen)
                self._has_ended, self._was_speaking = result.end_of_turn, not result.is_listen
                if unit is not None and len(unit.pcm):
                    self._speech_times.feed(unit.pcm)
            case _:
                return

    # ---- what the model heard and made ---------------------------------------------------------

    def _keep_sound(self, entry: Recorded, pcm: Pcm) -> KeptSound:
        match entry:
            case UnitDone(index=index) if pcm is entry.result.pcm:
                path = layout.unit_audio(self._turn, index)
                self._write(path, encode_wav(pcm))
                return _made(pcm, path)
            case UnitDone(index=index):
                return self._keep_heard(pcm, layout.user_audio(index))
            case InputCommitted():
                return self._keep_heard(pcm, layout.user_audio(self._committed))
            case OutputDelta() | AnswerDone() if len(pcm):
                path = layout.turn_audio(self._turn)
                self._continue(path, pcm)
                return _made(pcm, path)
            case _:
                return KeptSound(samples=self._keep_samples(pcm))

    def _keep_heard(self, pcm: Pcm, path: str) -> KeptSound:
        """Store audio that the model heard; if it is empty, only that fact."""
        if len(pcm):
            self._write(path, encode_wav(pcm))
        return KeptSound(path if len(pcm) else "", samples=self._keep_samples(pcm))

    def _keep_samples(self, pcm: Pcm) -> SamplePlace:
        """Append samples as the model received them; returns their position."""
        if not self._keeps_inputs:
            return (None, len(pcm), pcm.rate_hz)
        if self._newest is not None and self._newest[0] is pcm:
            # A turn and the item that it answers share their audio.
            return self._newest[1]
        if self._inputs is None:
            self._inputs = AppendFile(self._folder.inputs)
        first = self._inputs.size // 4
        self._inputs.append(np.ascontiguousarray(pcm.samples, "<f4").tobytes())
        place = (first, len(pcm), pcm.rate_hz)
        self._newest = (pcm, place)
        return place

    def _continue(self, path: str, pcm: Pcm) -> None:
        if self._growing is None or self._growing[0] != path:
            self._close_growing()
            self._growing = (path, WavFile(self._place(path), pcm.rate_hz))
        self._growing[1].append(pcm)

    def _close_growing(self) -> None:
        if self._growing is not None:
            self._growing[1].close()
            self._growing = None

    # ---- files that a client sent --------------------------------------------------------------

    def _path(self, entry: Recorded, content: bytes, number: int) -> str:
        """The path of a file that came with an entry. `number` counts those of the entry."""
        extension = layout.picture_extension(content)
        match entry:
            case UnitDone(index=index):
                return layout.user_frame(index, number, extension)
            case InputCommitted():
                return layout.user_frame(self._committed, number, extension)
            case _:
                return layout.item_file(self._next("item"), "wav" if is_wav(content) else extension)

    def _keep_sent(self, media: MediaPart, stem: str) -> str:
        """Store media of a request unchanged; returns their path."""
        match media:
            case Sound():
                return self._keep_sent_sound(media, stem)
            case Picture(file):
                path = layout.user_image(self._next("image"), layout.picture_extension(file))
            case Clip(file):
                path = layout.user_video(self._next("video"))
        self._write(path, file)
        return path

    def _keep_sent_sound(self, sound: Sound, stem: str) -> str:
        """Also store raw samples as a WAV file that players understand."""
        if stem == CHAT_VOICE:
            if self._voice is not None and self._voice[0] == sound.data:
                return self._voice[1]
            number = self._next("voice")
            stem = f"{CHAT_VOICE}_{number}" if number else CHAT_VOICE
        path = f"{stem}.wav" if stem else layout.user_audio(self._next("audio"))
        if not is_wav(sound.data):
            # The session rejects such samples too, so there is nothing to hear.
            with contextlib.suppress(InvalidPayload):
                self._write(path, encode_wav(from_float32_bytes(sound.data, sound.rate_hz)))
            path = f"{path.removesuffix('.wav')}.f32"
        self._write(path, sound.data)
        if stem.startswith(CHAT_VOICE):
            self._voice = (sound.data, path)
        return path

    def _next(self, kind: str) -> int:
        self._counts[kind] += 1
        return self._counts[kind] - 1

    def _write(self, path: str, content: bytes) -> None:
        write_new(self._place(path), content)

    def _place(self, path: str) -> Path:
        target = self._folder.path / path
        target.parent.mkdir(exist_ok=True)
        return target


def _media_of(entry: Recorded) -> Iterator[tuple[MediaPart, str]]:
    """The media of a request and, for voices, their file names."""
    named: list[tuple[Sound | None, str]] = []
    match entry:
        case DuplexSetup():
            named = [(entry.voice, "voice/prompt"), (entry.tts_voice, CHAT_VOICE)]
        case HalfDuplexSetup():
            named = [(entry.voice, CHAT_VOICE)]
            for number, part in enumerate(entry.system):
                if isinstance(part, Sound):
                    named.append((part, f"voice/system_{number}"))
        case ChatRequested():
            if entry.voice is not None:
                yield entry.voice, CHAT_VOICE
            for message in entry.messages:
                yield from ((part, "") for part in message.parts if isinstance(part, MediaPart))
        case _:
            return
    for sound, stem in named:
        if sound is not None:
            yield sound, stem


def _content(media: MediaPart) -> bytes:
    return media.data if isinstance(media, Sound) else media.file


def _made(pcm: Pcm, path: str) -> KeptSound:
    """Store audio of the model, which a rerun generates again and compares."""
    return KeptSound(path, round(1000 * pcm.duration_s, 2), sha256=fingerprint(pcm))


def fingerprint(pcm: Pcm) -> str:
    """Hash of the samples as the model generated them, before conversion to 16 bits."""
    return hashlib.sha256(np.ascontiguousarray(pcm.samples, "<f4").data).hexdigest()


def write_new(path: Path, data: bytes) -> None:
    """Write a small file completely; if there is no space, it is removed."""
    try:
        path.write_bytes(data)
    except OSError:
        with contextlib.suppress(OSError):
            path.unlink()
        raise
