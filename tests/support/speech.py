"""Spoken words for tests, from espeak-ng in the wheel `espeakng_loader`."""

import _ctypes
import contextlib
import ctypes
import functools
import threading
from collections.abc import Iterator

import espeakng_loader
import numpy as np
import soxr

from parley.media.pcm import INPUT_RATE_HZ, Pcm

# Values of espeak-ng's speak_lib.h.
_AUDIO_OUTPUT_SYNCHRONOUS = 2
_INITIALIZE_DONT_EXIT = 0x8000
_POS_CHARACTER = 1
_CHARS_UTF8 = 1
_EE_OK = 0

_Callback = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p
)

# One synthesiser at a time in a process.
_lock = threading.Lock()


@contextlib.contextmanager
def _synthesiser() -> Iterator[tuple[ctypes.CDLL, int]]:
    """A newly loaded espeak-ng and its rate in Hz.

    Earlier speech affects the next words (phases and noise are static variables of the library),
    and no call resets it. So the library is unloaded: the same words sound the same in every test.
    """
    with _lock:
        library = ctypes.CDLL(espeakng_loader.get_library_path())
        try:
            rate_hz = library.espeak_Initialize(
                _AUDIO_OUTPUT_SYNCHRONOUS,
                0,
                espeakng_loader.get_data_path().encode(),
                _INITIALIZE_DONT_EXIT,
            )
            if rate_hz <= 0:
                raise RuntimeError(f"espeak-ng could not start ({rate_hz})")
            yield library, rate_hz
            library.espeak_Terminate()
        finally:
            _ctypes.dlclose(library._handle)


@functools.lru_cache(maxsize=256)
def say(text: str, voice: str = "en", rate_hz: int = INPUT_RATE_HZ) -> Pcm:
    """`text` as speech, about 150 words per minute, with the synthesiser's short silences at both
    ends."""
    parts: list[np.ndarray] = []

    def take(samples, count, events):
        if samples and count > 0:
            parts.append(np.ctypeslib.as_array(samples, shape=(count,)).copy())
        return 0

    callback = _Callback(take)
    with _synthesiser() as (library, native_hz):
        library.espeak_SetSynthCallback(callback)
        if library.espeak_SetVoiceByName(voice.encode()) != _EE_OK:
            raise ValueError(f"espeak-ng has no voice {voice!r}")
        encoded = text.encode() + b"\0"
        status = library.espeak_Synth(
            encoded, len(encoded), 0, _POS_CHARACTER, 0, _CHARS_UTF8, None, None
        )
        if status != _EE_OK:
            raise RuntimeError(f"espeak-ng failed ({status})")
        library.espeak_Synchronize()

    samples = np.concatenate(parts).astype(np.float32) / 32768.0
    if native_hz != rate_hz:
        samples = soxr.resample(samples, native_hz, rate_hz)
    return Pcm(np.ascontiguousarray(samples, np.float32), rate_hz)
