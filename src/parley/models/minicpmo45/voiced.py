"""Voices and the vocoder put together: what `mouth.Vocoder` asks for.

A row gets its voice once (`prepare`); turns begin with it until the row is closed. Making a voice
that was never heard before takes seconds; a known one takes a copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from parley.errors import VoiceUnavailable
from parley.media.pcm import Pcm
from parley.models.minicpmo45.speech_buffer import Wave, Window
from parley.models.minicpmo45.token2wav import (
    PROMPT_FRAMES,
    STEPS,
    PrimedVoice,
    Snapshot,
    Token2Wav,
    load_token2wav,
)
from parley.models.minicpmo45.voices import VoiceMaker, VoiceShelf

ASSETS = Path("assets") / "token2wav"
"""Where a checkpoint keeps the vocoder's files."""

DEFAULT_VOICE = Path("assets") / "HT_ref_audio.wav"
"""The voice that the checkpoint brings along. Source: speech.md 3.1."""


class VoicedVocoder:
    """Speech tokens to sound, in the voice of each row."""

    def __init__(self, speech: Token2Wav, shelf: VoiceShelf, *, slots: int) -> None:
        self.speech = speech
        self.shelf = shelf
        self._voices: list[PrimedVoice | None] = [None] * slots

    @property
    def has_default_voice(self) -> bool:
        """Whether `prepare(row, None)` can work."""
        return self.shelf.has_default

    @property
    def slot_bytes(self) -> int:
        return self.speech.row_bytes

    def prepare(self, row: int, voice: Pcm | None) -> None:
        """Give a row a voice (None: the default one) and begin its stream.

        Raises:
            InvalidPayload: the sound cannot be a voice.
            VoiceUnavailable: it cannot be made here, or there is no default voice.
        """
        pack = self.shelf.default() if voice is None else self.shelf.voice(voice)
        primed = self.speech.prime(pack)
        self.speech.begin(row, primed)
        self._voices[row] = primed

    def restart(self, rows: Sequence[int]) -> None:
        """Begin a turn in each row, whatever it was saying."""
        for row in rows:
            self.speech.begin(row, self._voice(row))

    def speak(self, rows: Sequence[int], windows: Sequence[Window]) -> list[Wave]:
        """The next piece of each row's stream. A call that raises has changed no stream."""
        return self.speech.decode(rows, windows)

    def snapshot(self, row: int) -> Snapshot:
        """A row's stream as it is."""
        return self.speech.snapshot(row)

    def restore(self, row: int, snapshot: Snapshot) -> None:
        """Return to a snapshot, which stays valid."""
        self.speech.restore(row, snapshot)

    def close(self, row: int) -> None:
        """Forget a row's voice. Harmless on a row without one."""
        self._voices[row] = None
        self.speech.close(row)

    def _voice(self, row: int) -> PrimedVoice:
        voice = self._voices[row]
        if voice is None:
            raise VoiceUnavailable(f"Row {row} has no voice.")
        return voice


def load_voiced(
    checkpoint: Path,
    *,
    slots: int,
    assets: Path | None = None,
    default_voice: Path | None = None,
    voices: Path | None = None,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    steps: int = STEPS,
    prompt_frames: int = PROMPT_FRAMES,
) -> VoicedVocoder:
    """The vocoder of a checkpoint.

    Args:
        assets: folder of the vocoder's files; None takes the checkpoint's own.
        default_voice: WAV file or stored voice; None takes the checkpoint's own, if it has one.
        voices: where voices are kept between runs.
        dtype: of the flow.

    Raises:
        SetupError: flow or vocoder files are absent or do not fit. The networks that make new
            voices may be absent; then only kept voices and a stored default voice work.
    """
    folder = assets or checkpoint / ASSETS
    speech = load_token2wav(
        folder, slots=slots, device=device, dtype=dtype, steps=steps, prompt_frames=prompt_frames
    )
    shelf = VoiceShelf(
        VoiceMaker(folder), folder=voices, default=default_voice or checkpoint / DEFAULT_VOICE
    )
    return VoicedVocoder(speech, shelf, slots=slots)
