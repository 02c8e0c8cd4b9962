"""Reference voices: the default one of a server, and those that people registered.

A registered voice is a WAV file (16 kHz, mono, 16 bit) under a random id, with a small JSON file
beside it. Names never become paths: a voice is found by its id, or by its name in the list.
Functions here block on the disk; the gateway and the worker call them in threads.
"""

from __future__ import annotations

import io
import json
import os
import re
import secrets
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from parley import logs
from parley.errors import InvalidPayload, Refused, TooLarge
from parley.media.pcm import INPUT_RATE_HZ, Pcm, from_float32_bytes
from parley.media.reference import MIN_S
from parley.media.resample import resample
from parley.media.wav import encode_wav, load

SHIPPED: Final = Path(__file__).parent / "default_voice.wav"
"""Comes with the package: six seconds of the synthesiser espeak-ng, voice `en-us+f3`, level and
edges evened. The sound of such a program is free of its licence."""

CHECKPOINT_VOICE: Final = Path("assets") / "HT_ref_audio.wav"
"""Where a MiniCPM-o 4.5 checkpoint keeps its own. Source: model.md 2.1."""

LIMIT_BYTES: Final = 10 * 1024 * 1024
"""Source: service.md 5.6."""

LIMIT_VOICES: Final = 500
NAME_CHARS: Final = 80
CHANNELS_MOST: Final = 8
RATE_MOST_HZ: Final = 192_000

_ID = re.compile(r"[0-9a-f]{32}")

_log = logs.get(__name__)


class TooManyVoices(Refused):
    """The library is full."""

    code = "too_many_voices"
    http_status = 409

    def __init__(self) -> None:
        super().__init__(f"There are {LIMIT_VOICES} voices already; delete one first.")


@dataclass(frozen=True, slots=True)
class Voice:
    """Reference audio and what people call it; mono at 16 kHz."""

    name: str
    pcm: Pcm


@dataclass(frozen=True, slots=True)
class VoiceCard:
    """What is known of a registered voice."""

    id: str
    name: str
    filename: str
    source_type: str
    duration_ms: int
    sample_rate: int
    created_at: str


def default_voice_path(configured: Path | None, model: str) -> Path:
    """The voice file that clients are offered when they bring none.

    Args:
        configured: `model.default_voice` of the settings; wins.
        model: model name or checkpoint folder; a checkpoint's own voice comes next.
    """
    if configured is not None:
        return configured
    own = Path(model) / CHECKPOINT_VOICE
    return own if own.is_file() else SHIPPED


def read_voice(path: Path, *, limit_s: float) -> Voice:
    """Read a voice file; any rate and width.

    Raises:
        InvalidPayload, TooLarge: not a voice of at most `limit_s`.
        OSError: the file cannot be read.
    """
    return Voice(path.stem, resample(load(path, limit_s=limit_s), INPUT_RATE_HZ))


class VoiceShelf:
    """Registered voices in `data_dir/voices`. Gateway and workers may look at the same folder.

    Args:
        limit_s: the longest voice.
    """

    def __init__(self, data_dir: Path, *, limit_s: float) -> None:
        self._root = data_dir / "voices"
        self._limit_s = limit_s
        self._lock = threading.Lock()
        self.problems: list[str] = []
        """Files that were found broken and put aside."""

    def list(self) -> list[VoiceCard]:
        """All voices, oldest first."""
        return sorted(self._cards(), key=lambda card: (card.created_at, card.id))

    def find(self, id_or_name: str) -> Pcm | None:
        """A voice by its id or else its name (the oldest of that name); None when there is none."""
        path = self._wav(id_or_name)
        if path is None or not path.is_file():
            card = next((card for card in self.list() if card.name == id_or_name), None)
            path = self._wav(card.id) if card else None
        if path is None:
            return None
        try:
            return read_voice(path, limit_s=self._limit_s).pcm
        except (OSError, InvalidPayload, TooLarge) as error:
            _log.error("voice cannot be read", voice=path.stem, why=str(error))
            return None

    def card(self, voice_id: str) -> VoiceCard | None:
        """What is known of one."""
        path = self._wav(voice_id)
        return self._read_card(path.with_suffix(".json")) if path else None

    def add(self, name: str, data: bytes) -> VoiceCard:
        """Register a voice from a sound file of any common format.

        Raises:
            InvalidPayload: no sound, too short, or no name.
            TooLarge: too many bytes or seconds.
            TooManyVoices: the library is full.
        """
        name = " ".join(name.split())
        if not name or len(name) > NAME_CHARS or not name.isprintable():
            raise InvalidPayload(f"A name is 1 to {NAME_CHARS} printable characters.", field="name")
        if len(data) > LIMIT_BYTES:
            raise TooLarge("The voice", len(data), LIMIT_BYTES)
        pcm = decode_sound(data, limit_s=self._limit_s)
        if pcm.duration_s < MIN_S:
            raise InvalidPayload(f"The voice is too short: at least {MIN_S:g} s are needed.")
        voice_id = secrets.token_hex(16)
        card = VoiceCard(
            id=voice_id,
            name=name,
            filename=f"{voice_id}.wav",
            source_type="upload",
            duration_ms=pcm.duration_ms,
            sample_rate=pcm.rate_hz,
            created_at=time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime()),
        )
        with self._lock:
            self._root.mkdir(parents=True, exist_ok=True, mode=0o750)
            if sum(1 for _ in self._root.glob("*.wav")) >= LIMIT_VOICES:
                raise TooManyVoices
            # The card comes last: a voice without one is not there.
            _write(self._root / card.filename, encode_wav(pcm))
            _write(
                self._root / f"{voice_id}.json",
                json.dumps(asdict(card), ensure_ascii=False).encode(),
            )
        return card

    def remove(self, voice_id: str) -> bool:
        """Delete one; whether it was there."""
        path = self._wav(voice_id)
        if path is None:
            return False
        with self._lock:
            card = path.with_suffix(".json")
            was_there = card.is_file() or path.is_file()
            card.unlink(missing_ok=True)
            path.unlink(missing_ok=True)
            return was_there

    def _wav(self, voice_id: str) -> Path | None:
        return self._root / f"{voice_id}.wav" if _ID.fullmatch(voice_id) else None

    def _cards(self) -> Iterator[VoiceCard]:
        try:
            names = sorted(os.listdir(self._root))
        except FileNotFoundError:
            return
        for name in names:
            stem, dot, extension = name.rpartition(".")
            if dot and extension == "json" and _ID.fullmatch(stem):
                card = self._read_card(self._root / name)
                if card is not None and (self._root / card.filename).is_file():
                    yield card

    def _read_card(self, path: Path) -> VoiceCard | None:
        try:
            facts = json.loads(path.read_bytes())
            card = VoiceCard(**facts)
        except FileNotFoundError:
            return None
        except (ValueError, TypeError) as error:
            self._put_aside(path, error)
            return None
        return card if card.id == path.stem and card.filename == f"{card.id}.wav" else None

    def _put_aside(self, path: Path, error: Exception) -> None:
        aside = path.with_suffix(".json.corrupt")
        os.replace(path, aside)
        self.problems.append(f"voices/{path.name} was broken and is kept as {aside.name}.")
        _log.error("broken file put aside", file=str(path), kept_as=aside.name, why=str(error))


def decode_sound(data: bytes, *, limit_s: float) -> Pcm:
    """A sound file of any common format (WAV, FLAC, Ogg, MP3; M4A and WebM where PyAV is
    installed), or raw float32 samples at 16 kHz, as 16 kHz mono.

    Nothing is taken on trust: lengths in headers are not believed, and what is decoded is bounded
    by `limit_s` before it is kept.

    Raises:
        InvalidPayload: nothing that can be heard.
        TooLarge: longer than `limit_s`.
    """
    import soundfile

    try:
        with soundfile.SoundFile(io.BytesIO(data)) as file:
            pcm = _read_blocks(file, limit_s)
    except (soundfile.LibsndfileError, RuntimeError, OverflowError) as error:
        pcm = _decode_with_av(data, limit_s, error)
    if not np.isfinite(pcm.samples).all():
        raise InvalidPayload("Audio holds samples that are not finite numbers.")
    return resample(Pcm(np.clip(pcm.samples, -1.0, 1.0), pcm.rate_hz), INPUT_RATE_HZ)


def _read_blocks(file: Any, limit_s: float) -> Pcm:
    rate_hz = int(file.samplerate)
    if not 1000 <= rate_hz <= RATE_MOST_HZ or file.channels > CHANNELS_MOST:
        raise InvalidPayload(
            f"Sound has at most {CHANNELS_MOST} channels and {RATE_MOST_HZ} samples a second."
        )
    blocks: list[np.ndarray[Any, np.dtype[np.float32]]] = []
    count, limit = 0, round(limit_s * rate_hz)
    while len(block := file.read(65_536, dtype="float32", always_2d=True)):
        count += len(block)
        if count > limit:
            raise TooLarge("The voice", max(file.frames, count) / rate_hz, limit_s, "s")
        blocks.append(block.mean(axis=1, dtype=np.float32))
    return Pcm(np.concatenate(blocks) if blocks else np.zeros(0, np.float32), rate_hz)


def _decode_with_av(data: bytes, limit_s: float, failure: Exception) -> Pcm:
    """What libsndfile cannot read; last, raw samples as the wire has them."""
    try:
        import av
    except ModuleNotFoundError:
        return _raw(data, limit_s, failure)
    blocks: list[np.ndarray[Any, np.dtype[np.float32]]] = []
    count = 0
    try:
        with av.open(io.BytesIO(data), mode="r") as container:
            stream = next(iter(container.streams.audio), None)
            if stream is None:
                raise InvalidPayload("The file holds no sound.")
            # Channels are averaged here: FFmpeg's own mixing makes equal channels louder.
            resampler = av.AudioResampler("fltp", None, INPUT_RATE_HZ)
            for frame in container.decode(stream):
                for piece in resampler.resample(frame):
                    block = piece.to_ndarray().mean(axis=0, dtype=np.float32)
                    count += len(block)
                    if count > limit_s * INPUT_RATE_HZ:
                        raise TooLarge("The voice", count / INPUT_RATE_HZ, limit_s, "s")
                    blocks.append(block)
    except (av.FFmpegError, ValueError) as error:
        return _raw(data, limit_s, error)
    return Pcm(np.concatenate(blocks) if blocks else np.zeros(0, np.float32), INPUT_RATE_HZ)


def _raw(data: bytes, limit_s: float, failure: Exception) -> Pcm:
    sentence = "The audio is in no format that is known here."
    if len(data) % 4 or not data:
        raise InvalidPayload(sentence) from failure
    # A text or a picture read as float32 has wild numbers in it; sound has not.
    samples = np.frombuffer(data, "<f4")
    if not np.isfinite(samples).all() or np.abs(samples).max() > 8:
        raise InvalidPayload(sentence) from failure
    if len(samples) > limit_s * INPUT_RATE_HZ:
        raise TooLarge("The voice", len(samples) / INPUT_RATE_HZ, limit_s, "s")
    return from_float32_bytes(data, INPUT_RATE_HZ)


def _write(path: Path, data: bytes) -> None:
    partial = path.with_name(f".{path.name}.partial")
    partial.write_bytes(data)
    os.replace(partial, path)
