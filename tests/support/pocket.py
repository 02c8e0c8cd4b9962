"""A pocket checkpoint with random weights: the whole export and loader in seconds."""

from pathlib import Path

import torch
from training.codebook import DIRECTIONS, MEL_VALUES, Codebook
from training.export import export
from training.nets import Pocket
from training.shape import Shape
from training.trainer import Run

from parley.models.pocket.vocoder import CodeVocoder
from training import tokenizer


def random_checkpoint(folder: Path, *, seed: int = 1) -> Path:
    """Write one and return its folder."""
    run = Run(folder / "run", seed=seed)
    words = tokenizer.train(run.path / "tokenizer", seed=seed, dialogues=300, merges=250)
    torch.manual_seed(seed)
    codes = 40
    Codebook(
        torch.full((MEL_VALUES,), -2.0),
        0.2 * torch.randn(MEL_VALUES, DIRECTIONS),
        torch.randn(codes, DIRECTIONS),
        silence=3,
    ).save(run.path / "codebook.pt")
    shape = Shape(
        words.get_vocab_size(), layers=2, mlp=64, ear_width=32, ear_layers=2, eye_width=32,
        eye_layers=1, eye_mlp=64, mouth_width=32, mouth_layers=1, mouth_heads=2, mouth_mlp=64,
        codes=codes,
    )  # fmt: skip
    pocket = Pocket(shape)
    with torch.no_grad():
        pocket.llm.table.mul_(20)  # as decided as a trained one
    run.save_part("vocoder", CodeVocoder(codes))
    export(run, pocket, words, folder / "model", own_pitch_hz=176.0)
    return folder / "model"
