"""Checkpoint folders in the official layout, with the weights of the golden vectors' rule.

`write_golden` writes the tiny model of the vectors, with the real vocabulary; with tokenizer files
it is complete for a server. `write_small` writes a far smaller one without a tokenizer.
"""

import atexit
import functools
import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from tests.support import rule_weights
from tests.support.small_minicpmo import CONFIG
from tests.support.tiny_voice import tiny_voice
from torch import Tensor

from parley.models.minicpmo45 import checkpoint, weights
from parley.models.minicpmo45.config import make_config
from parley.models.minicpmo45.token2wav.voices import write_pack

VECTORS = Path(__file__).parents[1] / "golden" / "data"

DEFAULT_VOICE = "default_voice.safetensors"


def write(
    folder: Path,
    raw_config: Mapping[str, Any],
    tensors: Iterable[tuple[str, Tensor]],
    *,
    shard_bytes: int = 5_000_000_000,
) -> None:
    """Store a checkpoint in the official layout: config.json, an index, and numbered shards."""
    folder.mkdir(parents=True, exist_ok=True)
    shards: list[dict[str, Tensor]] = [{}]
    filled = total = 0
    for name, tensor in tensors:
        size = tensor.numel() * tensor.element_size()
        if shards[-1] and filled + size > shard_bytes:
            shards.append({})
            filled = 0
        shards[-1][name] = tensor.contiguous()
        filled += size
        total += size
    places: dict[str, str] = {}
    for number, shard in enumerate(shards, 1):
        file = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        save_file(shard, folder / file, metadata={"format": "pt"})
        places.update(dict.fromkeys(shard, file))
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(places.items()))}
    (folder / checkpoint.INDEX_FILE).write_text(json.dumps(index, indent=2), encoding="utf-8")
    (folder / "config.json").write_text(json.dumps(raw_config, indent=2), encoding="utf-8")


def write_small(
    folder: Path, *, dtype: torch.dtype = torch.float32, shard_bytes: int = 500_000
) -> dict[str, tuple[int, ...]]:
    """Write a small checkpoint in several shards; returns the names and shapes of its tensors."""
    network = weights.build(make_config(CONFIG))
    width = CONFIG["tts_config"]["hidden_size"]
    shapes = {**weights.shapes_of(network), **_unused(width, CONFIG["hidden_size"])}
    write(folder, CONFIG, _tensors(shapes, dtype), shard_bytes=shard_bytes)
    return shapes


def write_golden(
    folder: Path,
    *,
    tokenizer: Path | None = None,
    dtype: torch.dtype = torch.bfloat16,
    shard_bytes: int = 60_000_000,
    has_voice: bool = True,
) -> None:
    """Write the tiny model of the vectors, about 180 MB in bfloat16; a process computes it once."""
    made = _golden_weights(dtype, shard_bytes)
    for file in made.iterdir():
        os.link(file, folder / file.name)
    if tokenizer is not None:
        for file in tokenizer.iterdir():
            shutil.copyfile(file, folder / file.name)
    if has_voice:
        _write_vocoder(folder / "assets" / "token2wav")
        write_pack(folder / DEFAULT_VOICE, tiny_voice())


_scratch = tempfile.TemporaryDirectory(prefix="parley-checkpoint-")
atexit.register(_scratch.cleanup)


@functools.cache
def _golden_weights(dtype: torch.dtype, shard_bytes: int) -> Path:
    """Folder with the files to link; they must not be changed."""
    folder = Path(_scratch.name, secrets.token_hex(8))
    folder.mkdir()
    raw = json.loads((VECTORS / "config.json").read_text(encoding="utf-8"))
    listed = json.loads((VECTORS / "tensors.json").read_text(encoding="utf-8"))
    shapes = {name: tuple(entry["shape"]) for name, entry in listed.items()}
    write(folder, raw, _tensors(shapes, dtype), shard_bytes=shard_bytes)
    return folder


def _write_vocoder(folder: Path) -> None:
    folder.mkdir(parents=True)
    path = VECTORS / "token2wav_config.json"
    shapes: Mapping[str, Sequence[int]] = json.loads(path.read_text(encoding="utf-8"))["tensors"]
    for part, file in (("flow.", "flow.pt"), ("hift.", "hift.pt")):
        tensors = {
            name.removeprefix(part): torch.from_numpy(rule_weights.weight(f"t2w.{name}", shape))
            for name, shape in shapes.items()
            if name.startswith(part)
        }
        torch.save(tensors, folder / file)


def _unused(width: int, llm_width: int) -> dict[str, tuple[int, ...]]:
    """Tensors of the speech decoder in checkpoints that are never read."""
    return {
        "tts.model.embed_tokens.weight": (100, width),
        "tts.projector_spk.linear1.weight": (width, llm_width),
        "tts.projector_spk.linear1.bias": (width,),
        "tts.projector_spk.linear2.weight": (width, width),
        "tts.projector_spk.linear2.bias": (width,),
    }


def _tensors(
    shapes: Mapping[str, Sequence[int]], dtype: torch.dtype
) -> Iterator[tuple[str, Tensor]]:
    for name, shape in shapes.items():
        values: Any = np.ascontiguousarray(rule_weights.weight(name, shape))
        yield name, torch.from_numpy(values).to(dtype)
