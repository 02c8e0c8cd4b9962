"""Phase `ears`: the audio encoder alone, on phones.

Two losses that need no language: CTC over the phones of a sentence, and where the synthesiser
reports timings the phone of every frame. The three ways of hearing (a whole turn, a clip in
seconds, a live stream somewhere in its half minute) are drawn per sentence, so that one encoder
serves all of them.
"""

from __future__ import annotations

from random import Random

import torch
from torch import Tensor, nn
from torch.nn import functional

from training import sound, utterances
from training.nets import Ears
from training.trainer import Batch, Losses, Phase, Run
from training.utterances import BLANK, PHONES, UNLABELLED, Utterance


class EarHeads(nn.Module):
    """Phones from encoder frames: only there while training and in reports on the ears."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.ctc = nn.Linear(width, len(PHONES))
        self.frame = nn.Linear(width, len(PHONES))


def hearing_batch(said: list[Utterance], random: Random) -> Batch:
    """Features, ways of hearing and labels of utterances."""
    is_floored = [random.random() < 0.7 for _ in said]
    mel, frames = sound.log_mel([u.samples for u in said], is_floored=is_floored)
    if random.random() < 0.6:
        spoil(mel, frames, random)
    is_chunked = torch.tensor([random.random() < 0.5 for _ in said])
    offsets = torch.tensor(
        [
            random.randrange(0, 1300) if chunked and random.random() < 0.6 else 0
            for chunked in is_chunked
        ]
    )
    labels = torch.full((len(said), mel.shape[1] // 2), UNLABELLED)
    for row, utterance in zip(labels, said, strict=True):
        if utterance.frames is not None:
            count = min(len(row), len(utterance.frames))
            row[:count] = torch.from_numpy(utterance.frames[:count])
    return {
        "mel": mel,
        "frames": frames,
        "is_chunked": is_chunked,
        "offsets": offsets,
        "frame_labels": labels,
        "phones": torch.tensor([p for u in said for p in u.phones]),
        "phone_counts": torch.tensor([len(u.phones) for u in said]),
    }


def spoil(mel: Tensor, frames: Tensor, random: Random) -> None:
    """Masks a few bands and moments (SpecAugment)."""
    for row, count in zip(mel, frames.tolist(), strict=True):
        for _ in range(random.randint(0, 2)):
            band = random.randint(2, 12)
            first = random.randrange(0, 80 - band)
            row[:, first : first + band] = row.mean()
        for _ in range(random.randint(0, 2)):
            length = random.randint(3, 12)
            first = random.randrange(0, max(1, count - length))
            row[first : first + length] = row.mean()


def phone_losses(heads: EarHeads, heard: Tensor, real: Tensor, batch: Batch) -> dict[str, Tensor]:
    """CTC and frame losses of encoder frames `heard` (B, C, D)."""
    with torch.autocast(heard.device.type, enabled=False):
        heard = heard.float()
        logs = heads.ctc(heard).log_softmax(-1).transpose(0, 1)
        ctc = functional.ctc_loss(
            logs, batch["phones"], real, batch["phone_counts"], blank=BLANK, zero_infinity=True
        )
        labels = batch["frame_labels"][:, : heard.shape[1]]
        known = labels != UNLABELLED
        guesses = heads.frame(heard[known])
        frame = functional.cross_entropy(guesses, labels[known]) if known.any() else ctc * 0
        right = (guesses.argmax(-1) == labels[known]).float().mean() if known.any() else ctc * 0
    return {"ctc": ctc, "frame": frame, "frame_right": right}


def build(run: Run, ears: Ears, *, minutes: float, rows: int) -> Phase:
    heads = EarHeads(ears.apm.layer_norm.weight.shape[0])

    def make(index: int) -> Batch:
        random = Random(run.seed * 2_000_003 + index)
        said = [utterances.say(random, utterances.training_turn(random)) for _ in range(rows)]
        return hearing_batch(said, random)

    def losses(batch: Batch) -> Losses:
        heard, real = ears.hear(
            batch["mel"], batch["frames"], is_chunked=batch["is_chunked"], offsets=batch["offsets"]
        )
        terms = phone_losses(heads, heard, real, batch)
        return {"total": terms["ctc"] + terms["frame"], **terms}

    return Phase("ears", {"ears": ears, "ear_heads": heads}, make, losses, minutes, rate=1.5e-3)
