"""Test speakers: synthetic voices that had no part in training, to ask questions with.

flite and its CMU voices are found by soname (Debian: libflite1), espeak-ng by the wheel
`espeakng_loader`. Both are used as programs; neither library is safe for threads.

`N` samples.
"""

from __future__ import annotations

import ctypes
import functools
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import soxr

Samples = npt.NDArray[np.float32]
RATE_HZ = 16_000


@dataclass(frozen=True, slots=True)
class Voice:
    """One speaker of one synthesiser.

    Args:
        engine: `espeak` or `flite`.
        name: the engine's name of the voice.
        rate: speaking rate relative to the engine's normal.
    """

    engine: str
    name: str
    rate: float = 1.0


FIVE = (
    Voice("flite", "slt"),
    Voice("flite", "rms"),
    Voice("flite", "awb"),
    Voice("espeak", "en-us", 0.95),
    Voice("espeak", "en-gb", 0.95),
)
"""The voices of the report card."""


def speak(text: str, voice: Voice) -> Samples:
    """Say `text`; silence at both ends is cut to about 20 ms. 16 kHz, (N,).

    Raises:
        RuntimeError: the synthesiser is not installed, or made no sound.
    """
    engine = _espeak() if voice.engine == "espeak" else _flite()
    samples, rate_hz = engine.say(text, voice)
    if rate_hz != RATE_HZ:
        samples = np.asarray(soxr.resample(samples, rate_hz, RATE_HZ), np.float32)
    loud = np.flatnonzero(np.abs(samples) > 0.003)
    if len(loud) == 0:
        raise RuntimeError(f"{voice} made no sound for {text!r}")
    return samples[max(0, int(loud[0]) - 320) : int(loud[-1]) + 320]


_CALLBACK = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p
)


@dataclass
class _Espeak:
    library: ctypes.CDLL
    rate_hz: int
    chunks: list[npt.NDArray[np.int16]] = field(default_factory=list)
    callback: object = None

    def say(self, text: str, voice: Voice) -> tuple[Samples, int]:
        self.chunks.clear()
        self.library.espeak_SetVoiceByName(voice.name.encode())
        self.library.espeak_SetParameter(1, int(165 * voice.rate), 0)
        data = text.encode() + b"\0"
        self.library.espeak_Synth(data, len(data), 0, 1, 0, 1, None, None)
        self.library.espeak_Synchronize()
        joined = np.concatenate(self.chunks) if self.chunks else np.zeros(0, np.int16)
        return joined.astype(np.float32) / 32768, self.rate_hz

    def receive(self, wave, count, events) -> int:  # type: ignore[no-untyped-def]
        if wave and count > 0:
            self.chunks.append(np.ctypeslib.as_array(wave, (count,)).copy())
        return 0


@functools.cache
def _espeak() -> _Espeak:
    import espeakng_loader

    library = ctypes.CDLL(espeakng_loader.get_library_path())
    # AUDIO_OUTPUT_SYNCHRONOUS; INITIALIZE_DONT_EXIT
    rate_hz = library.espeak_Initialize(2, 0, espeakng_loader.get_data_path().encode(), 0x8000)
    if rate_hz <= 0:
        raise RuntimeError("espeak-ng could not be initialised")
    espeak = _Espeak(library, rate_hz)
    espeak.callback = _CALLBACK(espeak.receive)
    library.espeak_SetSynthCallback(espeak.callback)
    return espeak


class _Wave(ctypes.Structure):
    _fields_ = [
        ("type", ctypes.c_char_p),
        ("rate_hz", ctypes.c_int),
        ("count", ctypes.c_int),
        ("channels", ctypes.c_int),
        ("samples", ctypes.POINTER(ctypes.c_short)),
    ]


@dataclass
class _Flite:
    library: ctypes.CDLL
    voices: dict[str, int] = field(default_factory=dict)

    def say(self, text: str, voice: Voice) -> tuple[Samples, int]:
        handle = self._voice(voice.name)
        features = ctypes.cast(handle, ctypes.POINTER(ctypes.c_void_p))[1]
        self.library.feat_set_float(features, b"duration_stretch", 1 / voice.rate)
        wave = self.library.flite_text_to_wave(text.encode(), handle)
        count, rate_hz = wave.contents.count, wave.contents.rate_hz
        samples = np.ctypeslib.as_array(wave.contents.samples, (count,)).astype(np.float32) / 32768
        self.library.delete_wave(wave)
        return samples, rate_hz

    def _voice(self, name: str) -> int:
        if name not in self.voices:
            library = ctypes.CDLL(f"libflite_cmu_us_{name}.so.1")
            register = getattr(library, f"register_cmu_us_{name}")
            register.restype, register.argtypes = ctypes.c_void_p, [ctypes.c_char_p]
            self.voices[name] = register(None)
        return self.voices[name]


@functools.cache
def _flite() -> _Flite:
    try:
        library = ctypes.CDLL("libflite.so.1", mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise RuntimeError("flite is not installed (Debian: apt install libflite1)") from error
    for name in ("usenglish", "cmulex"):
        ctypes.CDLL(f"libflite_{name}.so.1", mode=ctypes.RTLD_GLOBAL)
    library.flite_init()
    library.flite_text_to_wave.restype = ctypes.POINTER(_Wave)
    library.flite_text_to_wave.argtypes = [ctypes.c_char_p, ctypes.c_void_p]
    library.delete_wave.argtypes = [ctypes.POINTER(_Wave)]
    library.feat_set_float.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_float]
    return _Flite(library)
