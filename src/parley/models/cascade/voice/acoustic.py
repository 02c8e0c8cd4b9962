"""Acoustic model: converts phones to the lengths, pitch and spectra of a voice.

Shapes: `S` sounds of one clause, `F` frames of 12.5 ms, `C` = 60 coefficients of the spectral
envelope, `A` = 3 bands of aperiodicity. Clauses are processed one at a time, each as a whole: a
clause of two seconds takes some hundredths of a second on one core.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from parley.models.cascade.voice.lexicon import ALPHABET

FRAME_SAMPLES = 300
"""12.5 ms at 24 kHz."""
ENVELOPE, APERIODICITY = 60, 3
USED = 36
"""Number of predicted coefficients; the others describe inaudible ripples."""
PITCH_HZ = 150.0
"""Pitch is stored as the logarithm of its ratio to this."""

_IDS = {sound: index for index, sound in enumerate(ALPHABET, 1)}
EDGE = 0
"""Id before the first and after the last sound: the silence around a clause."""


def ids_of(sounds: str) -> list[int]:
    """A reading as ids, with an edge on both sides."""
    return [EDGE, *(_IDS[sound] for sound in sounds if sound in _IDS), EDGE]


@dataclass(frozen=True, slots=True)
class VoiceShape:
    """Sizes of the network."""

    sounds: int = len(ALPHABET) + 1
    voices: int = 2
    width: int = 192
    layers: int = 4
    frame_width: int = 256
    frame_layers: int = 6


@dataclass(frozen=True, slots=True, eq=False)
class ClauseFrames:
    """The frames of a clause.

    Args:
        pitch: natural logarithm of hertz over `PITCH_HZ` (F,).
        voicing: above 0 for voiced frames (F,).
        envelope: normalised coefficients (F, C).
        aperiodicity: normalised bands (F, A).
    """

    pitch: Tensor
    voicing: Tensor
    envelope: Tensor
    aperiodicity: Tensor


class Mixer(nn.Module):
    """A depthwise convolution over time and a small network at each position."""

    def __init__(self, width: int, *, spread: int = 7) -> None:
        super().__init__()
        self.over = nn.Conv1d(width, width, spread, padding=spread // 2, groups=width)
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 3 * width)
        self.down = nn.Linear(3 * width, width)
        self.gain = nn.Parameter(torch.full((width,), 0.1))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """(B, T, D) to the same shape; `mask` (B, T, 1) is 0 at padding."""
        y = x if mask is None else x * mask
        y = self.norm(self.over(y.transpose(1, 2)).transpose(1, 2))
        mixed: Tensor = x + self.gain * self.down(functional.gelu(self.up(y)))
        return mixed


class VoiceNetwork(nn.Module):
    """Converts sounds to the frames of a clause."""

    def __init__(self, shape: VoiceShape) -> None:
        super().__init__()
        self.shape = shape
        self.embed = nn.Embedding(shape.sounds, shape.width)
        self.who = nn.Embedding(shape.voices, shape.width)
        self.readers = nn.ModuleList(Mixer(shape.width, spread=5) for _ in range(shape.layers))
        self.reader_norm = nn.LayerNorm(shape.width)
        self.duration = nn.Sequential(
            nn.Linear(shape.width, shape.width), nn.GELU(), nn.Linear(shape.width, 1)
        )
        self.widen = nn.Linear(shape.width + 4, shape.frame_width)
        self.who_frames = nn.Embedding(shape.voices, shape.frame_width)
        self.tellers = nn.ModuleList(Mixer(shape.frame_width) for _ in range(shape.frame_layers))
        self.teller_norm = nn.LayerNorm(shape.frame_width)
        self.tell = nn.Linear(shape.frame_width, 2 + ENVELOPE + APERIODICITY)

    def read(
        self, sounds: Tensor, voice: Tensor, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Encode sounds (B, S) to vectors (B, S, D) and the log of their length in frames (B,
        S)."""
        x = self.embed(sounds) + self.who(voice)[:, None]
        for reader in self.readers:
            x = reader(x, mask)
        x = self.reader_norm(x)
        return x, self.duration(x)[..., 0]

    def course(
        self, spread: Tensor, place: Tensor, voice: Tensor, mask: Tensor | None = None
    ) -> Tensor:
        """Decode frames (B, F, D) and positions within sounds (B, F, 4) to all heads."""
        x = self.widen(torch.cat((spread, place), -1)) + self.who_frames(voice)[:, None]
        for teller in self.tellers:
            x = teller(x, mask)
        result: Tensor = self.tell(self.teller_norm(x))
        return result

    @torch.inference_mode()
    def speak(self, sounds: list[int], voice: int, *, pace: float = 1.0) -> ClauseFrames:
        """Generate the frames of a clause.

        Args:
            pace: factor on the durations; above 1 is slower.
        """
        who = torch.tensor([voice])
        x, lengths = self.read(torch.tensor([sounds]), who)
        frames = (lengths[0].exp() * pace).round().clamp(1, 120).long()
        # The silence before and after a clause is shortened, so that clauses join well.
        frames[0], frames[-1] = min(int(frames[0]), 6), min(int(frames[-1]), 6)
        spread, place = spread_out(x[0], frames)
        heads = self.course(spread[None], place[None], who)[0]
        return ClauseFrames(
            heads[:, 0], heads[:, 1], heads[:, 2 : 2 + ENVELOPE], heads[:, 2 + ENVELOPE :]
        )


def spread_out(x: Tensor, frames: Tensor) -> tuple[Tensor, Tensor]:
    """Vectors (S, D) repeated for their frames (F, D), and each frame's position within its sound
    (F, 4)."""
    spread = x.repeat_interleave(frames, 0)
    length = frames.repeat_interleave(frames).float()
    starts = (frames.cumsum(0) - frames).repeat_interleave(frames)
    index = torch.arange(len(spread), device=starts.device) - starts
    part = (index + 0.5) / length
    return spread, torch.stack((part, 1 - part, (length / 20).clamp(max=3), 1 / length), -1)
