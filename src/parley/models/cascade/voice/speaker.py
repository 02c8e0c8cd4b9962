"""The bundled voice: converts clauses of text to samples."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import numpy as np

from parley.media.pcm import Pcm, Samples
from parley.models.cascade import store
from parley.models.cascade.voice import synth
from parley.models.cascade.voice.acoustic import (
    PITCH_HZ,
    USED,
    ClauseFrames,
    VoiceNetwork,
    VoiceShape,
    ids_of,
)
from parley.models.cascade.voice.lexicon import LetterNetwork, Lexicon
from parley.models.cascade.voice.pitch import pitch_track
from parley.models.cascade.voice.reading import PAUSES, STOPS, read_out

FEMALE, MALE = 0, 1
OWN_HZ = {FEMALE: 206.7, MALE: 118.6}
"""Pitch of the voices: the mean of four sentences' medians. Source: `pitch_track`, 2026-11-25."""
LOW_HZ = 150.0
"""A reference voice below this pitch is imitated by the male voice."""
LOWEST, HIGHEST = 0.6, 1.6
"""Range of the factor on a voice's own pitch."""
SHARPER = 1.12
"""Factor on the fine structure of the spectrum, which training blurs by averaging."""
PAUSE_S = {".": 0.22, "!": 0.22, "?": 0.22, ",": 0.09, ";": 0.12, ":": 0.12, "—": 0.1}


UNREADABLE = "Words that I cannot read."
"""Spoken in place of a clause in another script, such as Cyrillic or Chinese."""


def has_words(words: list[str]) -> bool:
    return any(word[0] not in STOPS + PAUSES for word in words)


def known_words(text: str) -> list[str] | None:
    """A text as `read_out`; None if it has words, and none that can be pronounced."""
    words = read_out(text)
    is_foreign = not has_words(words) and any(sign.isalpha() for sign in text)
    return None if is_foreign else words


class OwnSpeaker:
    """Reads English aloud with a female or a male voice.

    Args:
        folder: contains the weights and the lexicon.
    """

    def __init__(self, folder: Path) -> None:
        self.lexicon = Lexicon(folder / "lexicon.xz", LetterNetwork(folder / "letters.npz"))
        tensors = store.read(folder, "voice")
        self._norm = {
            name: tensors.pop(name).double().numpy()
            for name in ("envelope_mean", "envelope_std", "bands_mean", "bands_std")
        }
        self.network = VoiceNetwork(VoiceShape())
        self.network.load_state_dict(tensors)
        self.network.eval().requires_grad_(False)
        self.names: list[str] = json.loads((folder / "voice.json").read_text("utf-8"))["voices"]

    def find(self, voice: Pcm | None) -> int:
        """The voice that is closest to a reference, shifted to its pitch; the female one without
        it.

        Only the pitch of the reference is used. The result is `FEMALE` or `MALE`, plus twice the
        factor on the voice's pitch in thousandths.
        """
        if voice is None:
            return FEMALE
        track = pitch_track(voice.samples, voice.rate_hz)
        track = track[track > 0]
        if len(track) < 10:
            return FEMALE
        hertz = float(np.median(track))
        near = MALE if hertz < LOW_HZ else FEMALE
        factor = min(max(hertz / OWN_HZ[near], LOWEST), HIGHEST)
        return near + 2 * round(1000 * factor)

    def can_say(self, text: str) -> bool:
        """See `Speaker`."""
        return known_words(text) is not None

    @functools.lru_cache(maxsize=32)  # noqa: B019  (one speaker per process)
    def say(self, clause: str, voice: int) -> Samples:
        """A clause (N,) at 24 kHz, with the pause that its last character requires. Results are
        cached for all conversations: half of the answers without a note start with one of a few
        clauses."""
        words = known_words(clause)
        if words is None:
            words = read_out(UNREADABLE)
        if not has_words(words):
            return np.zeros(0, np.float32)
        if words[-1][0] not in STOPS + PAUSES:
            words.append(",")
        factor = voice // 2 / 1000 or 1.0
        pieces = []
        for part in parts(words):
            ids = ids_of(self.lexicon.read(part))
            frames = self.network.speak(ids, voice % 2)
            pieces.append(self._sound(frames, factor))
            pause = PAUSE_S.get(part[-1][0], 0.0)
            pieces.append(np.zeros(round(pause * synth.RATE_HZ), np.float32))
        wave = np.concatenate(pieces)
        return np.clip(wave, -0.98, 0.98).astype(np.float32)

    def _sound(self, frames: ClauseFrames, factor: float) -> Samples:
        norm = self._norm
        shape = frames.envelope.double().numpy()
        shape[:, 2:] *= SHARPER
        shape[:, USED:] = 0
        envelope = synth.envelope(shape * norm["envelope_std"] + norm["envelope_mean"])
        bands = frames.aperiodicity.double().numpy() * norm["bands_std"] + norm["bands_mean"]
        hertz = factor * np.exp(frames.pitch.double().numpy()) * PITCH_HZ
        hertz = np.where(frames.voicing.numpy() > 0, np.clip(hertz, 50, 500), 0.0)
        wave = synth.synthesise(hertz, envelope, synth.aperiodicity(bands))
        edge = np.minimum(1, np.arange(len(wave)) / 120)
        return (wave * edge * edge[::-1]).astype(np.float32)


def parts(words: list[str]) -> list[list[str]]:
    """Words, split at stops and pauses, and where there are too many of them for one breath."""
    cut: list[list[str]] = [[]]
    for word in words:
        if word[0] in STOPS + PAUSES:
            if cut[-1]:
                cut[-1].append(word)
                if word[0] in STOPS or len(cut[-1]) > 6:
                    cut.append([])
            continue
        if len(cut[-1]) >= 24:
            cut.append([])
        cut[-1].append(word)
    return [one for one in cut if any(word[0] not in STOPS + PAUSES for word in one)]
