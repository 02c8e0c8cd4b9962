"""Write tensors as `parley.models.cascade.store` reads them."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

SHARD_BYTES = 48_000_000
ZLIB_SHARE = 0.75
"""Rows are compressed if they become smaller than this: an embedding to 0.7, others to 0.9."""


def pack(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Float matrices as int8 rows, the rest as float16."""
    packed: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if tensor.dtype == torch.uint8 or tensor.ndim < 2 or tensor.shape[-1] == 1:
            packed[name] = (tensor if tensor.dtype == torch.uint8 else tensor.half()).contiguous()
            continue
        rows = tensor.float().flatten(1)
        scale = (rows.abs().amax(1) / 127).clamp(min=1e-7).half()
        values = (rows / scale.float()[:, None]).round().clamp(-127, 127).to(torch.int8)
        packed[name + ".scale"] = scale
        squeezed = zlib.compress(values.numpy().tobytes(), 9)
        if tensor.ndim == 2 and len(squeezed) < ZLIB_SHARE * values.nbytes:
            packed[name + ".zlib"] = torch.frombuffer(bytearray(squeezed), dtype=torch.uint8)
        else:
            packed[name] = values.view(tensor.shape).contiguous()
    return packed


def write(folder: Path, name: str, packed: Mapping[str, Tensor]) -> list[Path]:
    """Write tensors as shards `NAME-1.safetensors` …, each under the limit."""
    folder.mkdir(parents=True, exist_ok=True)
    shards: list[dict[str, Tensor]] = [{}]
    size = 0
    for key, tensor in packed.items():
        if size + tensor.nbytes > SHARD_BYTES and shards[-1]:
            shards.append({})
            size = 0
        shards[-1][key] = tensor
        size += tensor.nbytes
    paths = []
    for number, shard in enumerate(shards, 1):
        path = folder / f"{name}-{number}.safetensors"
        save_file(shard, path)
        paths.append(path)
    return paths


def blocked(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """GGUF's rows of Q4_1 blocks, 20 bytes each, as blocks of 18: scale and minimum in one byte.

    Returns:
        The blocks (O, 18 I / 32), and per row what a scale's and a minimum's step is worth (O, 2).
    """
    raw = blocks.numpy().reshape(blocks.shape[0], -1, 20)
    head = raw[..., :4].copy().view(np.float16).astype(np.float32)
    scale_step = np.maximum(head[..., 0].max(1), 1e-8) / 255
    minimum_step = np.minimum(head[..., 1].min(1), -1e-8) / 255
    steps = np.stack((scale_step, minimum_step), 1).astype(np.float16)
    exact = steps.astype(np.float32)
    new = np.empty((*raw.shape[:2], 18), np.uint8)
    new[..., 0] = np.clip(np.round(head[..., 0] / exact[:, :1]), 0, 255)
    new[..., 1] = np.clip(np.round(head[..., 1] / exact[:, 1:]), 0, 255)
    new[..., 2:] = raw[..., 4:]
    return torch.from_numpy(new.reshape(blocks.shape[0], -1)), torch.from_numpy(steps)
