"""Write a checkpoint of the published size and layout, with generated weights.

    python tools/full_size_checkpoint.py FOLDER --tokenizer FOLDER_WITH_TOKENIZER_FILES

Needs 18.7 GB on disk and a few hundred MB of memory. The output of such a model is meaningless; it
shows that the loader, the memory and the protocols can handle the real size. Delete the folder
after use.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from parley.models.minicpmo45 import checkpoint, weights
from parley.models.minicpmo45.config import _FULL_SIZE, full_size_config
from parley.models.minicpmo45.token2wav.flow import Flow
from parley.models.minicpmo45.token2wav.vocoder import ClassicVocoder
from parley.models.minicpmo45.token2wav.vocoder_files import FULL_CHANNELS, FULL_FLOW

SHARD_BYTES = 5_000_000_000
TOKENIZER_FILES = ("tokenizer_config.json", "vocab.json", "merges.txt", "added_tokens.json")


def by_rule(name: str, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Generate a tensor in bfloat16: ones for norms, zeros for biases, small random numbers for
    matrices."""
    if (len(shape) == 1 and name.endswith("weight")) or name.endswith("original0"):
        return torch.ones(shape, dtype=torch.bfloat16)
    if len(shape) == 1:
        return torch.zeros(shape, dtype=torch.bfloat16)
    # Each row is a random slice of the same random numbers, which is as fast as the disk.
    count = int(np.prod(shape[1:]))
    line = torch.randn(2 * count, generator=generator).mul_(0.02).bfloat16()
    starts = torch.randint(0, count, (shape[0],), generator=generator).tolist()
    tensor = torch.empty(shape[0], count, dtype=torch.bfloat16)
    for row, start in enumerate(starts):
        tensor[row] = line[start : start + count]
    return tensor.view(shape)


def tensors() -> Iterator[tuple[str, Tensor]]:
    """All tensors of the published model, in the order of its parts."""
    generator = torch.Generator().manual_seed(0)
    for name, shape in weights.shapes_of(weights.build(full_size_config())).items():
        yield name, by_rule(name, shape, generator)
    yield "tts.model.embed_tokens.weight", torch.zeros(32000, 768, dtype=torch.bfloat16)


def write_weights(folder: Path) -> int:
    """Write numbered shards and their index; returns the size of all tensors in bytes."""
    total, filled = 0, 0
    shard: dict[str, Tensor] = {}
    files: list[list[str]] = []

    def flush() -> None:
        nonlocal shard, filled
        save_file(shard, folder / f"part-{len(files):05d}", metadata={"format": "pt"})
        files.append(list(shard))
        shard, filled = {}, 0

    for name, tensor in tensors():
        if shard and filled + tensor.nbytes > SHARD_BYTES // 5:
            flush()
        shard[name] = tensor.contiguous()
        filled += tensor.nbytes
        total += tensor.nbytes
    flush()
    places: dict[str, str] = {}
    for number, names in enumerate(files):
        file = f"model-{number + 1:05d}-of-{len(files):05d}.safetensors"
        (folder / f"part-{number:05d}").rename(folder / file)
        places.update(dict.fromkeys(names, file))
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(places.items()))}
    (folder / checkpoint.INDEX_FILE).write_text(json.dumps(index, indent=1), encoding="utf-8")
    return total


def write_vocoder(folder: Path) -> None:
    """Write `flow.pt` and `hift.pt` of the published geometry."""
    folder.mkdir(parents=True, exist_ok=True)
    flow, vocoder = Flow(FULL_FLOW), ClassicVocoder(FULL_CHANNELS, FULL_CHANNELS)
    torch.save(flow.state_dict(), folder / "flow.pt")
    # The published file contains weight norms unfolded; g = |v| leaves the weights unchanged.
    unfolded: dict[str, Tensor] = {}
    for name, tensor in vocoder.state_dict().items():
        if name.endswith(".weight") and tensor.dim() == 3 and "source_downs" not in name:
            place = name.removesuffix(".weight")
            norm = tensor.norm(dim=(1, 2), keepdim=True)
            unfolded[f"{place}.parametrizations.weight.original0"] = norm
            unfolded[f"{place}.parametrizations.weight.original1"] = tensor
        else:
            unfolded[name] = tensor
    torch.save(unfolded, folder / "hift.pt")


def main() -> None:
    """Write the checkpoint into the folder on the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--with-vocoder", action="store_true")
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    for name in TOKENIZER_FILES:
        if (asked.tokenizer / name).is_file():
            shutil.copyfile(asked.tokenizer / name, asked.folder / name)
    (asked.folder / "config.json").write_text(json.dumps(_FULL_SIZE, indent=1), encoding="utf-8")
    total = write_weights(asked.folder)
    if asked.with_vocoder:
        write_vocoder(asked.folder / "assets" / "token2wav")
    print(f"{asked.folder}: {total / 1e9:.2f} GB of weights")


if __name__ == "__main__":
    main()
