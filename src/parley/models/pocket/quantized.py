"""Weights as int8 rows with float16 scales, in safetensors.

A matrix `name` (R, ...) is stored as `name` int8 and `name.scale` float16 (R,): every row of the
first dimension has a scale of its own, so that its largest value maps to 127. Vectors and tensors
in `EXACT` are stored as float16. Reading gives back float32 under the plain names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from parley.errors import SetupError

WEIGHTS_FILE = "model.safetensors"
SCALE = ".scale"
EXACT = ("vpm.embeddings.position_embedding.weight", "resampler.query", "resampler.proj")
"""Small tables in which a row's largest value says little about the others."""


def pack(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Float tensors as they are stored."""
    packed: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if tensor.ndim < 2 or tensor.shape[-1] == 1 or name in EXACT:
            packed[name] = tensor.to(torch.float16).contiguous()
            continue
        rows = tensor.float().flatten(1)
        # Rounded before use, so that what is divided by is what will be multiplied by.
        scale = (rows.abs().amax(1) / 127).clamp(min=1e-7).to(torch.float16)
        values = (rows / scale.float()[:, None]).round().clamp(-127, 127).to(torch.int8)
        packed[name] = values.view(tensor.shape).contiguous()
        packed[name + SCALE] = scale
    return packed


def write(folder: Path, tensors: Mapping[str, Tensor]) -> int:
    """Pack and store; returns the file's size in bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / WEIGHTS_FILE
    save_file(pack(tensors), path, metadata={"format": "pt", "rows": "int8"})
    return path.stat().st_size


def read(folder: Path) -> Iterator[tuple[str, Tensor]]:
    """Name and float32 tensor of everything stored.

    Raises:
        SetupError: the file is absent or broken.
    """
    path = folder / WEIGHTS_FILE
    if not path.is_file():
        raise SetupError(
            f"The pocket model's weights are not at {path}.",
            hint="Install a release of parley, or make them with `python -m training.pocket all`.",
        )
    try:
        with safe_open(path, framework="pt") as file:
            names = set(file.keys())
            for name in sorted(names):
                if name.endswith(SCALE) and name.removesuffix(SCALE) in names:
                    continue
                tensor = file.get_tensor(name).float()
                if name + SCALE in names:
                    scale = file.get_tensor(name + SCALE).float()
                    tensor = tensor * scale.view(-1, *[1] * (tensor.ndim - 1))
                yield name, tensor
    except Exception as error:  # safetensors raises a class of its own without a public name
        raise SetupError(f"{path} is not a readable safetensors file: {error}") from error


def read_all(folder: Path) -> dict[str, Tensor]:
    """Everything at once."""
    return dict(read(folder))
