"""Checks files named on the command line before a server receives a request.

An invalid file is reported by its name here; the server would report "the second image", after a
wait in the queue. Other files are sent unchanged: the server decides what it can decode.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

import soundfile

from parley.cli.screen import Screen
from parley.errors import BadInput, SetupError, TooLarge
from parley.media import wav
from parley.media.pcm import Pcm
from parley.media.sound import decode_sound
from parley.protocol.values import AUDIO_LIMIT_S, IMAGE_LIMIT_BYTES, VIDEO_LIMIT_BYTES

SPOKEN_LIMIT_S: Final = 3600.0
"""Maximum length of a file to talk with; a session ends before that."""

VOICE_LIMIT_S: Final = 60.0
"""Maximum length of a reference voice. Source: service.md 4.0."""

CONVERT: Final = "Convert it to WAV, for example with ffmpeg or sox."


def sound(path: Path, *, limit_s: float = AUDIO_LIMIT_S) -> Pcm:
    """The sound of a file: WAV, FLAC, MP3 or Ogg; M4A and WebM where PyAV is installed.

    Raises:
        SetupError: it cannot be read, is too long or empty; names the file.
    """
    hint = CONVERT
    if importlib.util.find_spec("av") is None:
        hint = f"M4A and WebM need PyAV: pip install av. {CONVERT}"
    return _sound(path, lambda: decode_sound(path.read_bytes(), limit_s=limit_s), hint)


def sample() -> Pcm:
    """Three spoken questions with pauses, for use without a microphone or a file."""
    samples, rate_hz = soundfile.read(Path(__file__).with_name("sample.flac"), dtype="float32")
    return Pcm(samples, rate_hz)


def voice(path: Path) -> bytes:
    """A WAV file with a voice to imitate, unchanged.

    Raises:
        SetupError: it is not a WAV file, empty or too long.
    """
    _sound(path, lambda: wav.load(path, limit_s=VOICE_LIMIT_S), CONVERT)
    return path.read_bytes()


def _sound(path: Path, read: Callable[[], Pcm], hint: str) -> Pcm:
    _size(path)
    try:
        pcm = read()
    except BadInput as error:
        hint = "Use a shorter part of it." if isinstance(error, TooLarge) else hint
        raise SetupError(f"{path}: {error}", hint=hint) from None
    if len(pcm) == 0:
        raise SetupError(f"{path}: The file contains no sound.")
    return pcm


def picture(path: Path) -> bytes:
    """A JPEG, PNG or WebP file, unchanged.

    Raises:
        SetupError: it is too large, or its first bytes are not those of such a file.
    """
    data = _read(path, IMAGE_LIMIT_BYTES, "A picture")
    is_picture = data.startswith((b"\xff\xd8", b"\x89PNG")) or (
        data[:4] == b"RIFF" and data[8:12] == b"WEBP"
    )
    if not is_picture:
        raise SetupError(f"{path}: The file is not a JPEG, PNG or WebP picture.")
    return data


def clip(path: Path) -> bytes:
    """A video file, unchanged.

    Raises:
        SetupError: it is too large or empty.
    """
    return _read(path, VIDEO_LIMIT_BYTES, "A clip")


def check_writable(path: Path) -> None:
    """Check in advance that an answer can be saved there.

    Raises:
        SetupError: the folder does not exist or is not writable.
    """
    folder = path.absolute().parent
    if not folder.is_dir():
        raise SetupError(f"The folder {folder} does not exist.", hint="Create it first.")
    target = path if path.exists() else folder
    if not os.access(target, os.W_OK):
        raise SetupError(f"{target} cannot be written.", hint="Choose another file.")


def save(path: Path, sound: Pcm | None, screen: Screen) -> None:
    """Write a spoken answer, if there is one."""
    if sound is None:
        screen.note("Nothing was spoken; nothing was saved.")
        return
    wav.save(path, sound)
    screen.note(f"saved {sound.duration_s:.1f} s to {path}")


def _read(path: Path, limit_bytes: int, what: str) -> bytes:
    size = _size(path)
    if size > limit_bytes:
        raise SetupError(
            f"{path}: The file has {size / 2**20:,.0f} MiB. "
            f"{what} may have {limit_bytes / 2**20:.0f} MiB."
        )
    return path.read_bytes()


def _size(path: Path) -> int:
    """Size in bytes.

    Raises:
        SetupError: the file is empty.
    """
    size = path.stat().st_size
    if not size:
        raise SetupError(f"{path}: The file is empty.")
    return size
