"""A run in one small folder: `keep` packs what is needed to go on elsewhere, `restore` unpacks it.

Weights go through int8 rows, so a restored run continues from what would be shipped; optimizers
and logs stay behind, and every phase begins its schedule anew. About 16 MB.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch

from parley.models.pocket import quantized
from training.codebook import Codebook
from training.trainer import Run, save

PARTS = ("llm", "ears", "eyes", "tts", "vocoder", "ear_heads", "eye_heads")
CODEBOOK = "codebook"


def keep(run: Run, out: Path) -> int:
    """Pack `run` into `out`; returns bytes. Parts that the run does not have yet are left out."""
    tensors = {}
    for part in PARTS:
        path = run.path / "parts" / f"{part}.pt"
        if path.exists():
            state = torch.load(path, map_location="cpu", weights_only=True)
            tensors |= {f"{part}:{name}": tensor for name, tensor in state.items()}
    notes = {"seed": run.seed}
    if (run.path / "codebook.pt").exists():
        book = Codebook.load(run.path / "codebook.pt")
        # Vectors of halves are exact enough, rows of int8 are not: distances decide between codes.
        for name in ("mean", "directions", "centers"):
            tensors[f"{CODEBOOK}:{name}"] = getattr(book, name).flatten()
        notes["silence"] = book.silence
    quantized.write(out, tensors)
    (out / "run.json").write_text(json.dumps(notes))
    shutil.copytree(run.path / "tokenizer", out / "tokenizer", dirs_exist_ok=True)
    return sum(file.stat().st_size for file in out.rglob("*") if file.is_file())


def restore(source: Path, run: Run) -> list[str]:
    """Unpack into an empty run; returns the parts found.

    Raises:
        FileExistsError: the run has parts already.
    """
    if (run.path / "parts").exists():
        raise FileExistsError(f"{run.path} holds a run already")
    notes = json.loads((source / "run.json").read_text())
    states: dict[str, dict[str, torch.Tensor]] = {}
    for name, tensor in quantized.read(source):
        part, _, key = name.partition(":")
        states.setdefault(part, {})[key] = tensor
    book = states.pop(CODEBOOK, None)
    if book is not None:
        mean = book["mean"]
        directions = book["directions"].view(len(mean), -1)
        centers = book["centers"].view(-1, directions.shape[1])
        Codebook(mean, directions, centers, notes["silence"]).save(run.path / "codebook.pt")
    for part, state in states.items():
        save(run.path / "parts" / f"{part}.pt", state)
    shutil.copytree(source / "tokenizer", run.path / "tokenizer", dirs_exist_ok=True)
    return sorted(states)
