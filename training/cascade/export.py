"""Write the bundled folder from a run.

python -m training.cascade.export --run FOLDER --data FOLDER --out FOLDER
"""

from __future__ import annotations

import argparse
import json
import lzma
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from parley.models import pocket_data
from training.cascade import packing


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    run, out = options.run, options.out
    out.mkdir(parents=True, exist_ok=True)
    for old in out.glob("*.safetensors"):
        old.unlink()
    packing.write(out, "asr", packing.pack(load_file(run / "asr.safetensors")))
    shutil.copy(run / "asr.json", out)
    llm(run, out)
    for name in ("lexicon.xz", "letters.npz"):
        if (options.data / name).exists():
            shutil.copy(options.data / name, out)
    for name in ("voice", "eyes"):
        if (run / f"{name}.safetensors").exists():
            packing.write(out, name, packing.pack(load_file(run / f"{name}.safetensors")))
            shutil.copy(run / f"{name}.json", out)
    (out / pocket_data.INDEX).write_text(json.dumps({"format": 1}))
    print(sum(path.stat().st_size for path in out.iterdir()) / 1e6, "MB")


def llm(run: Path, out: Path) -> None:
    """Four-bit blocks as they came, what was learnt as int8 rows, the embedding as int8 rows."""
    floats = load_file(run / "llm.safetensors")
    blocks = load_file(run / "llm4.safetensors")
    stored = {}
    for name, tensor in blocks.items():
        stored[f"{name}.blocks"], stored[f"{name}.steps"] = packing.blocked(tensor)
    rest = {name: tensor for name, tensor in floats.items() if name not in blocks}
    if (run / "lora.safetensors").exists():
        learnt = load_file(run / "lora.safetensors")
        for name in {name.rpartition(".")[0] for name in learnt}:
            a, b = thinned(learnt[name + ".a"], learnt[name + ".b"])
            rest[f"{name}.weight.a"], rest[f"{name}.weight.b"] = a, b
    packed = packing.pack(rest)
    packing.write(out, "llm", packed | stored)
    words = lzma.compress((run / "tokenizer.json").read_bytes(), preset=9 | lzma.PRESET_EXTREME)
    (out / "tokenizer.json.xz").write_bytes(words)
    shutil.copy(run / "llm.json", out)


RANK = 20
"""Of what ships of the learnt additions."""


def thinned(a: Tensor, b: Tensor, rank: int = RANK) -> tuple[Tensor, Tensor]:
    """The best approximation of `b @ a` with fewer inner dimensions."""
    left, left_rest = torch.linalg.qr(b)
    right, right_rest = torch.linalg.qr(a.T)
    u, s, v = torch.linalg.svd(left_rest @ right_rest.T)
    root = s[:rank].sqrt()
    return (root[:, None] * v[:rank]) @ right.T, left @ (u[:, :rank] * root)


if __name__ == "__main__":
    main()
