"""Phase `vocoder`: from codes back to the assistant's voice.

Pieces of 0.8 s from sentences made on line; the pulses follow the true pitch while the shapes are
learned, and the network learns that pitch by itself alongside.
"""

from __future__ import annotations

from random import Random

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from parley.models.pocket.vocoder import CodeVocoder
from training import codebook, own_voice
from training.codebook import Codebook
from training.trainer import Batch, Losses, Phase, Run

PIECE = 24
"""Codes of one training piece."""
_RESOLUTIONS = ((512, 128), (1024, 240), (256, 64))


def spectral_loss(made: Tensor, wanted: Tensor) -> Tensor:
    """Log-magnitude and convergence terms over three resolutions."""
    total = made.new_zeros(())
    for size, hop in _RESOLUTIONS:
        window = torch.hann_window(size, device=made.device)
        a, b = (
            torch.stft(x, size, hop, window=window, return_complex=True).abs().clamp(min=1e-4)
            for x in (made, wanted)
        )
        total = total + (a.log() - b.log()).abs().mean()
        total = total + ((a - b) ** 2).sum().sqrt() / ((b**2).sum().sqrt() + 1e-3)
    return total / len(_RESOLUTIONS)


def build(run: Run, vocoder: CodeVocoder, book: Codebook, *, minutes: float, rows: int) -> Phase:
    vocoder.spectra.copy_(book.spectra())

    def make(index: int) -> Batch:
        random = Random(run.seed * 4_000_037 + index)
        pieces = []
        while len(pieces) < rows:
            codes, samples, pitch = codebook.item(
                book, own_voice.say(codebook.sentence_to_say(random))
            )
            if len(codes) < PIECE:
                continue
            for _ in range(3):
                at = random.randrange(len(codes) - PIECE + 1)
                pieces.append(
                    (
                        codes[at : at + PIECE],
                        samples[960 * at : 960 * (at + PIECE)],
                        pitch[4 * at : 4 * (at + PIECE)],
                    )
                )
        pieces = pieces[:rows]
        return {
            "codes": torch.tensor([c for c, _, _ in pieces]),
            "samples": torch.from_numpy(np.stack([s for _, s, _ in pieces])),
            "pitch": torch.from_numpy(np.stack([p for _, _, p in pieces])),
        }

    def losses(batch: Batch) -> Losses:
        with torch.autocast(batch["codes"].device.type, enabled=False):
            pitch = batch["pitch"]
            made, shaped = vocoder(batch["codes"], pitch=pitch, voiced=pitch)
            sound = spectral_loss(made, batch["samples"])
            voiced = pitch > 0
            voicing = functional.binary_cross_entropy_with_logits(shaped.voicing, voiced.float())
            off = (shaped.pitch / pitch.clamp(min=50)).log().abs()
            height = (off * voiced).sum() / voiced.sum().clamp(min=1)
        total = sound + 0.5 * voicing + 2.0 * height
        return {"total": total, "sound": sound, "voicing": voicing, "height": height}

    return Phase("vocoder", {"vocoder": vocoder}, make, losses, minutes, rate=1e-3)
