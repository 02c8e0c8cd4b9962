"""Speech from programs: espeak-ng and flite in process, festival by command.

A `Voice` names one speaker; `TRAIN` and `HELD_OUT` never share one. `speak` gives 16 kHz mono and,
where the synthesiser tells (espeak-ng), when each phone begins. The synthesisers are found by
soname (`training/setup.sh` installs them); espeak-ng may also come from `espeakng_loader`. Neither
library is safe for threads: one process, one caller.

`N` samples.
"""

from __future__ import annotations

import ctypes
import functools
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import numpy as np
import numpy.typing as npt
import soundfile
import soxr

Samples = npt.NDArray[np.float32]
RATE_HZ = 16_000

ACCENTS = ("en-us", "en-gb", "en-gb-x-rp", "en-gb-scotland", "en-gb-x-gbclan", "en-029")
# Variants that whisper, croak or shout are left out: nobody would understand them.
VARIANTS = (
    "f1 f2 f3 f4 f5 m1 m2 m3 m4 m5 m6 m7 m8 Alex Alicia Andrea Andy Annie antonio AnxiousAndy "
    "aunty belinda benjamin boris david Denis Diogo ed edward edward2 Gene Gene2 Henrique "
    "Hugo iven iven2 iven3 iven4 Jacky john Lee linda Marco Mario max Michael michel miguel "
    "Mike mike2 Mr Nguyen norbert pablo paul pedro quincy RicishayMax rob robert sandro "
    "shelby steph steph2 steph3 victor zac"
).split()
HELD_OUT_VARIANTS = ("f5", "m8", "Alicia", "Mario", "iven3", "steph2", "boris", "zac")
FOREIGN = ("de", "fr-fr", "es", "it", "pt", "nl", "sv", "pl", "tr", "fi", "ru", "cs")


@dataclass(frozen=True, slots=True)
class Voice:
    """One speaker of one synthesiser.

    Args:
        engine: `espeak`, `flite` or `festival`.
        name: the engine's name of the voice (espeak: `accent` or `accent+variant`).
        rate: speaking rate relative to the engine's normal.
        pitch: espeak 0..99; flite: mean pitch in Hz, 0 leaves it.
        spread: espeak pitch range 0..99.
    """

    engine: str
    name: str
    rate: float = 1.0
    pitch: float = 0.0
    spread: float = 50.0


@dataclass(frozen=True, slots=True)
class Phone:
    """A phone that begins at `start_s`."""

    start_s: float
    name: str


@dataclass(frozen=True, slots=True, eq=False)
class Speech:
    """What a voice said: samples (N,), 16 kHz, and its phones where known."""

    samples: Samples
    phones: tuple[Phone, ...] = ()


def train_voice(random: Random) -> Voice:
    """A voice that training may hear."""
    if random.random() < 0.3:
        name = random.choice(("kal", "kal16", "awb", "awb", "slt", "slt"))
        pitch = 0.0 if name in ("awb", "slt") else random.uniform(85, 170)
        return Voice("flite", name, random.uniform(0.85, 1.2), pitch)
    variants = [v for v in VARIANTS if v not in HELD_OUT_VARIANTS]
    return _espeak_voice(random, random.choice(variants) if random.random() < 0.9 else "")


def held_out_voice(random: Random) -> Voice:
    """A voice that training never hears: other speakers, and with festival another program."""
    kind = random.random()
    if kind < 0.5:
        return Voice("flite", "rms", random.uniform(0.9, 1.1))
    if kind < 0.7 and shutil.which("festival"):
        return Voice("festival", "ked_diphone", random.uniform(0.95, 1.1))
    return _espeak_voice(random, random.choice(HELD_OUT_VARIANTS))


def _espeak_voice(random: Random, variant: str) -> Voice:
    accent = "en-us" if random.random() < 0.4 else random.choice(ACCENTS)
    return Voice(
        "espeak",
        f"{accent}+{variant}" if variant else accent,
        random.uniform(0.78, 1.28),
        random.randint(20, 80),
        random.randint(25, 85),
    )


def speak(text: str, voice: Voice) -> Speech:
    """Say `text` (plain words). Silence at both ends is cut to about 20 ms.

    Raises:
        RuntimeError: the synthesiser is not installed, or made no sound.
    """
    phones: tuple[Phone, ...] = ()
    if voice.engine == "espeak":
        samples, rate_hz, phones = _espeak().say(text, voice)
    elif voice.engine == "flite":
        samples, rate_hz = _flite().say(text, voice)
    else:
        samples, rate_hz = _festival(text, voice)
    if rate_hz != RATE_HZ:
        samples = np.asarray(soxr.resample(samples, rate_hz, RATE_HZ, quality="MQ"), np.float32)
    loud = np.flatnonzero(np.abs(samples) > 0.003)
    if len(loud) == 0:
        raise RuntimeError(f"{voice} made no sound for {text!r}")
    start = max(0, int(loud[0]) - 320)
    samples = samples[start : int(loud[-1]) + 320]
    cut_s = start / RATE_HZ
    return Speech(samples, tuple(Phone(p.start_s - cut_s, p.name) for p in phones))


class _Event(ctypes.Structure):
    _fields_ = [
        ("type", ctypes.c_int),
        ("unique_id", ctypes.c_uint),
        ("text_position", ctypes.c_int),
        ("length", ctypes.c_int),
        ("audio_position_ms", ctypes.c_int),
        ("sample", ctypes.c_int),
        ("user_data", ctypes.c_void_p),
        ("id", ctypes.c_char * 8),
    ]


_EVENT_PHONE = 7
_CALLBACK = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.POINTER(_Event)
)
# Stress, length, nasality, ties: finer than the ears need.
_PHONE_MARKS = re.compile("[ˈˌː\u0303\u0329\u02b2\u0361\u032a\u02d0 .;0-9]")


@dataclass
class _Espeak:
    """espeak-ng, synchronous, with phone events."""

    library: ctypes.CDLL
    rate_hz: int
    chunks: list[npt.NDArray[np.int16]] = field(default_factory=list)
    phones: list[Phone] = field(default_factory=list)
    callback: object = None

    def say(self, text: str, voice: Voice) -> tuple[Samples, int, tuple[Phone, ...]]:
        self.chunks.clear()
        self.phones.clear()
        self.library.espeak_SetVoiceByName(voice.name.encode())
        for parameter, value in ((1, 165 * voice.rate), (3, voice.pitch or 50), (4, voice.spread)):
            self.library.espeak_SetParameter(parameter, int(value), 0)
        data = text.encode() + b"\0"
        self.library.espeak_Synth(data, len(data), 0, 1, 0, 1, None, None)
        self.library.espeak_Synchronize()
        if not self.chunks:
            return np.zeros(0, np.float32), self.rate_hz, ()
        samples = np.concatenate(self.chunks).astype(np.float32) / 32768
        return samples, self.rate_hz, tuple(self.phones)

    def receive(self, wave, count, events) -> int:  # type: ignore[no-untyped-def]
        if wave and count > 0:
            self.chunks.append(np.ctypeslib.as_array(wave, (count,)).copy())
        index = 0
        while events[index].type != 0:
            event = events[index]
            if event.type == _EVENT_PHONE:
                name = _PHONE_MARKS.sub("", event.id.decode("utf8", "ignore"))
                self.phones.append(Phone(event.audio_position_ms / 1000, name))
            index += 1
        return 0


@functools.cache
def _espeak() -> _Espeak:
    path: bytes | None = None
    try:
        library = ctypes.CDLL("libespeak-ng.so.1")
    except OSError:
        import espeakng_loader

        library = ctypes.CDLL(espeakng_loader.get_library_path())
        path = os.fsencode(Path(espeakng_loader.get_data_path()).parent)
    # AUDIO_OUTPUT_SYNCHRONOUS, events for phones, IPA names
    rate_hz = library.espeak_Initialize(2, 0, path, 3)
    if rate_hz <= 0:
        raise RuntimeError("espeak-ng could not be initialised; run training/setup.sh")
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
        if voice.pitch:
            self.library.feat_set_float(features, b"int_f0_target_mean", voice.pitch)
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
        raise RuntimeError("flite is not installed; run training/setup.sh") from error
    for name in ("usenglish", "cmulex"):
        ctypes.CDLL(f"libflite_{name}.so.1", mode=ctypes.RTLD_GLOBAL)
    library.flite_init()
    library.flite_text_to_wave.restype = ctypes.POINTER(_Wave)
    library.flite_text_to_wave.argtypes = [ctypes.c_char_p, ctypes.c_void_p]
    library.delete_wave.argtypes = [ctypes.POINTER(_Wave)]
    library.feat_set_float.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_float]
    return _Flite(library)


def _festival(text: str, voice: Voice) -> tuple[Samples, int]:
    """About 0.3 s per sentence: for reports and tests, not for training batches."""
    words = re.sub(r"[^a-zA-Z' ]", " ", text)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "said.wav"
        commands = (
            f"(voice_{voice.name})",
            f"(Parameter.set 'Duration_Stretch {1 / voice.rate:.3f})",
            f'(utt.save.wave (SynthText "{words}") "{path}" (quote riff))',
        )
        subprocess.run(
            ["festival", "--batch", *commands], check=True, timeout=60, capture_output=True
        )
        samples, rate_hz = soundfile.read(path, dtype="float32")
    return np.asarray(samples, np.float32), int(rate_hz)


def available_engines() -> Sequence[str]:
    """Which synthesisers work here."""
    found = []
    for name, probe in (("espeak", _espeak), ("flite", _flite)):
        try:
            probe()
        except (OSError, RuntimeError, ImportError):
            continue
        found.append(name)
    if shutil.which("festival"):
        found.append("festival")
    return found
