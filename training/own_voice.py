"""The assistant's own voice: sentences spoken by flite's slt, with the time of every word.

Times are in codes of 40 ms from the start of the sound. The voice is rendered at 24 kHz; its
content ends at 8 kHz, as its recordings do.
"""

from __future__ import annotations

import ctypes
import functools
import re
from dataclasses import dataclass

import numpy as np
import soxr

from parley.models.pocket.vocoder import RATE_HZ, log_mel, pitch_track
from training import synth
from training.synth import Samples

CODE_SAMPLES = 960
LEAD_SAMPLES = 2 * CODE_SAMPLES
OWN_PITCH_HZ = 172.0
"""Median pitch of the voice. Source: `Said.pitch` over 40 answers."""
RATE = 1.06
"""A little faster than the voice's own pace."""


@dataclass(frozen=True, slots=True)
class SpokenWord:
    """A word, from code `begins` up to code `ends`."""

    text: str
    begins: float
    ends: float


@dataclass(frozen=True, slots=True, eq=False)
class Said:
    """A sentence in the assistant's voice; samples are whole codes long."""

    text: str
    samples: Samples
    words: tuple[SpokenWord, ...]

    @property
    def codes(self) -> int:
        return len(self.samples) // CODE_SAMPLES

    def mel(self) -> Samples:
        return log_mel(self.samples)

    def pitch(self) -> Samples:
        return pitch_track(self.samples, RATE_HZ)[: 4 * self.codes]


def written_for_voice(text: str) -> str:
    """What the synthesiser is given: single letters by name, so that "A" is not an article."""
    if re.fullmatch(r"[A-Z]( [A-Z])*\.?", text):
        return ", ".join(text.rstrip(".").replace("A", "ay").split(" ")) + "."
    text = re.sub(r"(letter) ([A-Z])\b", lambda m: f"{m[1]} {m[2].replace('A', 'eh')}", text)
    return text


def say(text: str) -> Said:
    """Speak `text`. Word texts are the synthesiser's (lower case, no punctuation)."""
    library, voice = _library()
    features = ctypes.cast(voice, ctypes.POINTER(ctypes.c_void_p))[1]
    library.feat_set_float(features, b"duration_stretch", 1 / RATE)
    utterance = library.flite_synth_text(written_for_voice(text).encode(), voice)
    wave = library.utt_wave(utterance).contents
    samples = np.ctypeslib.as_array(wave.samples, (wave.count,)).astype(np.float32) / 32768
    rate_hz = wave.rate_hz
    words = []
    item = library.relation_head(library.utt_relation(utterance, b"Word"))
    while item:
        name = library.item_feat_string(item, b"name").decode()
        begins = library.ffeature_float(item, b"R:SylStructure.daughter1.daughter1.R:Segment.p.end")
        ends = library.ffeature_float(item, b"R:SylStructure.daughtern.daughtern.R:Segment.end")
        words.append((name, begins, ends))
        item = library.item_next(item)
    library.delete_utterance(utterance)
    samples = np.asarray(soxr.resample(samples, rate_hz, RATE_HZ, quality="HQ"), np.float32)
    # Keep 80 ms before the first word and 120 ms after the last.
    begin = max(0, int(words[0][1] * RATE_HZ) - LEAD_SAMPLES) if words else 0
    end = int(words[-1][2] * RATE_HZ) + 3 * CODE_SAMPLES if words else len(samples)
    samples = samples[begin:end] * 0.9
    samples = np.pad(samples, (0, -len(samples) % CODE_SAMPLES))
    per_code = CODE_SAMPLES / RATE_HZ
    placed = tuple(
        SpokenWord(name, (b - begin / RATE_HZ) / per_code, (e - begin / RATE_HZ) / per_code)
        for name, b, e in words
    )
    return Said(text, samples.astype(np.float32), placed)


@functools.cache
def _library() -> tuple[ctypes.CDLL, int]:
    flite = synth._flite()
    library, voice = flite.library, flite._voice("slt")
    pointer, name = ctypes.c_void_p, ctypes.c_char_p
    for function, result, arguments in (
        ("flite_synth_text", pointer, [name, pointer]),
        ("utt_wave", ctypes.POINTER(synth._Wave), [pointer]),
        ("utt_relation", pointer, [pointer, name]),
        ("relation_head", pointer, [pointer]),
        ("item_next", pointer, [pointer]),
        ("item_feat_string", name, [pointer, name]),
        ("ffeature_float", ctypes.c_float, [pointer, name]),
        ("delete_utterance", None, [pointer]),
    ):
        getattr(library, function).restype = result
        getattr(library, function).argtypes = arguments
    return library, voice
