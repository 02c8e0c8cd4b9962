"""Recognisers and voices of optional libraries: faster-whisper (a Whisper in CTranslate2's format),
Piper and Kokoro (voices as ONNX files).

Each library is imported only if it is configured. Users decide whether its licence suits them:
Piper is GPL-3.0, and both voices read English with espeak-ng, which is GPL-3.0, too.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, Final

import numpy as np

from parley.errors import SetupError
from parley.media.pcm import OUTPUT_RATE_HZ, Pcm, Samples
from parley.media.resample import resample
from parley.models.cascade.parts import OneStep
from parley.models.cascade.recognition import Heard
from parley.models.cascade.transcript import clean

CTRANSLATE2_FILE: Final = "model.bin"
VOICES: Final = ("voices*.bin", "voices*.npz")
"""Names of Kokoro's voice files next to its network."""
DEFAULT_KOKORO_VOICE: Final = "af_heart"


PACKAGES: Final = {
    "faster_whisper": "faster-whisper", "piper": "piper-tts", "kokoro_onnx": "kokoro-onnx"
}  # fmt: skip
"""Library → package that provides it."""


def library(name: str) -> Any:
    """An installed library.

    Raises:
        SetupError: it is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = PACKAGES[name]
        raise SetupError(
            f"The package {package} is not installed.",
            hint=f"Install it with: pip install {package}",
        ) from error


class FasterWhisper:
    """A Whisper run by faster-whisper, int8 on the CPU.

    Raises:
        SetupError: the library is not installed, or cannot load the folder.
    """

    def __init__(self, name: str) -> None:
        faster_whisper = library("faster_whisper")
        try:
            self._model = faster_whisper.WhisperModel(name, device="cpu", compute_type="int8")
        except Exception as error:  # it raises what its parts raise
            raise SetupError(
                f"faster-whisper cannot load '{name}': {error}",
                hint="Give a folder with a Whisper converted for CTranslate2.",
            ) from error

    def begin(self, samples: Samples) -> OneStep:
        return OneStep(lambda: self._hear(samples))

    def _hear(self, samples: Samples) -> Heard:
        found, _ = self._model.transcribe(
            samples, beam_size=1, condition_on_previous_text=False, without_timestamps=True
        )
        segments = list(found)
        text = " ".join(" ".join(segment.text for segment in segments).split())
        scores = [segment.avg_logprob for segment in segments]
        silence = min((segment.no_speech_prob for segment in segments), default=1.0)
        confidence = sum(scores) / len(scores) if scores else 0.0
        return Heard(clean(text), confidence, silence)


def is_ctranslate2(name: str) -> bool:
    """True if a folder contains a Whisper in CTranslate2's format."""
    return (Path(name).expanduser() / CTRANSLATE2_FILE).is_file()


class OneVoice(ABC):
    """A library with one voice, whatever the reference."""

    def find(self, voice: Pcm | None) -> int:
        return 0

    def can_say(self, text: str) -> bool:
        return True

    def say(self, clause: str, voice: int) -> Samples:
        if not any(map(str.isalnum, clause)):
            return np.zeros(0, np.float32)
        samples, rate_hz = self._speak(clause.strip())
        pcm = Pcm(np.asarray(samples, np.float32).reshape(-1), rate_hz)
        return resample(pcm, OUTPUT_RATE_HZ).samples

    @abstractmethod
    def _speak(self, clause: str) -> tuple[Any, int]:
        """Samples and their rate."""


class PiperSpeaker(OneVoice):
    """A voice of Piper: `NAME.onnx` with `NAME.onnx.json` next to it.

    Raises:
        SetupError: the library is not installed.
    """

    def __init__(self, path: Path) -> None:
        self._voice = library("piper").PiperVoice.load(str(path))

    def _speak(self, clause: str) -> tuple[Any, int]:
        chunks = list(self._voice.synthesize(clause))
        if not chunks:
            return (), OUTPUT_RATE_HZ
        samples = np.concatenate([chunk.audio_float_array for chunk in chunks])
        return samples, chunks[0].sample_rate


class KokoroSpeaker(OneVoice):
    """Kokoro: its network as ONNX, its voices in a file next to it.

    Args:
        voice: name of one of the voices.

    Raises:
        SetupError: the library is not installed, or there is no such voice.
    """

    def __init__(self, path: Path, voices: Path, voice: str) -> None:
        self._kokoro = library("kokoro_onnx").Kokoro(str(path), str(voices))
        known = self._kokoro.get_voices()
        self._voice = voice if voice in known else DEFAULT_KOKORO_VOICE
        if self._voice not in known:
            raise SetupError(
                f"{voices.name} has no voice '{voice}'.",
                hint=f"Set model.tts_voice to one of: {', '.join(sorted(known)[:20])}",
            )

    def _speak(self, clause: str) -> tuple[Any, int]:
        samples, rate_hz = self._kokoro.create(clause, voice=self._voice, lang="en-us")
        return samples, rate_hz


def recogniser_package(name: str) -> str:
    """The library that a recogniser needs; "" for those of transformers and for the bundled one."""
    return "faster_whisper" if is_ctranslate2(name) else ""


def voice_package(name: str) -> str:
    """The library that a voice file needs; "" if it is not a file."""
    path = Path(name).expanduser()
    if not path.is_file():
        return ""
    return "piper" if path.with_name(path.name + ".json").is_file() else "kokoro_onnx"


def load_voice(name: str, voice: str) -> OneVoice:
    """The voice of an ONNX file: a Piper voice if its settings are next to it, else Kokoro.

    Raises:
        SetupError: the file is neither, or its library is not installed.
    """
    path = Path(name).expanduser()
    if voice_package(name) == "piper":
        return PiperSpeaker(path)
    for pattern in VOICES:
        for voices in sorted(path.parent.glob(pattern)):
            return KokoroSpeaker(path, voices, voice)
    raise SetupError(
        f"{path} is not a voice of a known format.",
        hint="A Piper voice has its settings beside it (NAME.onnx.json), Kokoro its voices "
        "(voices….bin).",
    )
