"""The 2048 speech codes: 40 ms of log-mel in 64 principal directions, by k-means."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np
import torch
from torch import Tensor

from training import dialogue, own_voice, pictures
from training.own_voice import Said
from training.trainer import save

CODES = 2048
DIRECTIONS = 64
MEL_VALUES = 320
"""Four frames of 80 bins."""


@dataclass(frozen=True, slots=True, eq=False)
class Codebook:
    """Args:
    mean: (320,) and `directions` (320, 64): into the space of `centers` (2048, 64).
    silence: the code of quiet.
    """

    mean: Tensor
    directions: Tensor
    centers: Tensor
    silence: int

    def encode(self, mel: np.ndarray) -> list[int]:
        """Codes of log-mel rows (F, 80)."""
        count = len(mel) // 4
        rows = torch.from_numpy(mel[: 4 * count].reshape(count, MEL_VALUES)) - self.mean
        return torch.cdist(rows @ self.directions, self.centers).argmin(1).tolist()

    def spectra(self) -> Tensor:
        """Log-mel that each code stands for: (2048, 320)."""
        return self.centers @ self.directions.T + self.mean

    def save(self, path: Path) -> None:
        save(path, {"mean": self.mean, "directions": self.directions, "centers": self.centers,
                    "silence": self.silence})  # fmt: skip

    @classmethod
    def load(cls, path: Path) -> Codebook:
        return cls(**torch.load(path, weights_only=True))


def sentence_to_say(random: Random) -> str:
    """Something the assistant might say: an answer, now and then a question."""
    if random.random() < 0.2:
        turn = dialogue.scene_turn(random, pictures.make_scene(random))
    else:
        turn = dialogue.make_dialogue(random, turns=1).turns[0]
    if random.random() < 0.8 or turn.language or turn.spoken:
        return turn.answer
    return dialogue.sentence(turn.heard) + "."


def train(seed: int, sentences: int = 1500, rounds: int = 12) -> Codebook:
    """Learn the codes from `sentences` different answers."""
    random = Random(seed * 17 + 5)
    texts = sorted({sentence_to_say(random) for _ in range(3 * sentences)})
    random.shuffle(texts)
    rows = np.concatenate(
        [own_voice.say(text).mel().reshape(-1, MEL_VALUES) for text in texts[:sentences]]
    )
    # Quiet as it sounds between units, so that silence has a code of its own.
    rows = np.concatenate([rows, np.full((200, MEL_VALUES), -8, np.float32)])
    torch.manual_seed(seed)
    values = torch.from_numpy(rows)
    mean = values.mean(0)
    directions = torch.pca_lowrank(values - mean, DIRECTIONS, center=False)[2]
    points = (values - mean) @ directions
    centers = points[torch.randperm(len(points))[:CODES]].clone()
    for _ in range(rounds):
        nearest = torch.cat([torch.cdist(p, centers).argmin(1) for p in points.split(8192)])
        counts = torch.zeros(CODES).index_add_(0, nearest, torch.ones(len(points)))
        sums = torch.zeros_like(centers).index_add_(0, nearest, points)
        used = counts > 0
        centers[used] = sums[used] / counts[used, None]
        centers[~used] = points[torch.randint(len(points), (int((~used).sum()),))]
    spectra = centers @ directions.T + mean
    return Codebook(mean, directions, centers, int(spectra.mean(1).argmin()))


def item(book: Codebook, said: Said) -> tuple[list[int], np.ndarray, np.ndarray]:
    """Codes, samples and pitch of a sentence."""
    return book.encode(said.mel()), said.samples, said.pitch()
