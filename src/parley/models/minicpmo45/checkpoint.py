"""The files of a checkpoint: lists their tensors and checks them against those that a model needs.

Every name is checked: one error names all tensors that are missing, unexpected or of the wrong
shape, before any data is read. Layout and names: model.md 2."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from parley.errors import SetupError
from parley.models.minicpmo45.awq import USE_INSTEAD, PackedScheme

INDEX_FILE = "model.safetensors.index.json"

SINGLE_FILE = "model.safetensors"

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Stored:
    """File, shape and type of a tensor, without its data.

    Args:
        parts: stored tensors of a packed matrix, by name; `file` is theirs, `shape` that of the
            matrix.
    """

    file: Path
    shape: tuple[int, ...]
    dtype: str
    parts: Mapping[str, Stored] = field(default_factory=dict)


LAYERS = "llm.model.layers."
"""Tensors that may be quantised."""

EMBEDDINGS, HEAD = "llm.model.embed_tokens.weight", "llm.lm_head.weight"
"""Tensors that the kind `smallest` stores in 8 bits."""


def catalogue(folder: Path) -> dict[str, Stored]:
    """All tensors of a checkpoint folder, by name, as its index lists them.

    Raises:
        SetupError: there are no safetensors files, or a shard is missing or broken.
    """
    index = folder / INDEX_FILE
    if index.is_file():
        try:
            places = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        except (ValueError, KeyError, OSError) as error:
            raise SetupError(f"{index} cannot be read: {error}") from error
        files = sorted({folder / name for name in places.values()})
    elif (folder / SINGLE_FILE).is_file():
        files, places = [folder / SINGLE_FILE], None
    elif any(folder.rglob("*.gguf")):
        raise SetupError(
            f"{folder} contains GGUF files, not a checkpoint.",
            hint="llama.cpp-omni serves GGUF files: start its server and set model.name to "
            f"llamacpp-omni:URL. {USE_INSTEAD}",
        )
    else:
        raise SetupError(
            f"{folder} holds neither {INDEX_FILE} nor {SINGLE_FILE}.",
            hint="A checkpoint folder is the whole content of the model's repository.",
        )
    absent = [file.name for file in files if not file.is_file()]
    if absent:
        raise SetupError(
            f"Shards are missing in {folder}: {', '.join(absent)}.",
            hint="The download is probably incomplete; fetch the model again.",
        )
    found: dict[str, Stored] = {}
    for file in files:
        try:
            with safe_open(file, framework="pt") as shard:
                for name in list(shard.keys()):
                    data = shard.get_slice(name)
                    found[name] = Stored(file, tuple(data.get_shape()), data.get_dtype())
        except Exception as error:  # safetensors raises its own class without a public name
            raise SetupError(f"{file} is not a readable safetensors file: {error}") from error
    if places is not None:
        lost = sorted(set(places) - set(found))
        if lost:
            raise SetupError(f"The index names tensors that no shard holds: {some_names(lost)}.")
    return found


def account(
    expected: Shapes,
    found: Mapping[str, Stored | Tensor],
    ignored: tuple[str, ...] = (),
    *,
    failure: str = "The checkpoint does not fit the model.",
    hint: str = "Compare config.json with the safetensors files; both must be of one release.",
) -> None:
    """Compare the tensors that a model needs with those of a checkpoint.

    Args:
        ignored: name prefixes that may be present without being needed.
        failure, hint: of the error.

    Raises:
        SetupError: names all tensors that are missing, unexpected or of another shape.
    """
    missing = sorted(set(expected) - set(found))
    extra = sorted(name for name in set(found) - set(expected) if not name.startswith(ignored))
    wrong = [
        f"{name} (needs {list(shape)}, has {list(found[name].shape)})"
        for name, shape in sorted(expected.items())
        if name in found and tuple(found[name].shape) != tuple(shape)
    ]
    complaints = [
        f"{len(names)} {what}: {some_names(names)}"
        for names, what in ((missing, "missing"), (extra, "unexpected"), (wrong, "of wrong shape"))
        if names
    ]
    if complaints:
        raise SetupError(f"{failure} Tensors " + "; ".join(complaints) + ".", hint=hint)


def some_names(names: list[str], limit: int = 12) -> str:
    """The first names of a list, for an error message."""
    shown = ", ".join(names[:limit])
    return shown if len(names) <= limit else f"{shown}, and {len(names) - limit} more"


def unfolded(stored: Mapping[str, Stored], scheme: PackedScheme | None) -> dict[str, Stored]:
    """A catalogue in which the parts of each complete packed matrix are replaced by the matrix
    under its own name."""
    found = dict(stored)
    if scheme is None:
        return found
    for name, numbers in stored.items():
        place, _, leaf = name.rpartition(".")
        names = [f"{place}.{suffix}" for suffix in scheme.suffixes]
        if leaf == scheme.suffixes[0] and all(part in stored for part in names):
            parts = {part: found.pop(part) for part in names}
            shape = scheme.matrix(numbers.shape)
            found[f"{place}.weight"] = Stored(numbers.file, shape, scheme.name, parts)
    return found


def stored_dtype(found: Mapping[str, Stored]) -> torch.dtype:
    """The precision of a checkpoint: float32 if most of its language model is, else bfloat16, to
    which the published code casts everything."""
    sizes: dict[str, int] = {}
    for name, stored in found.items():
        if name.startswith("llm."):
            count = torch.Size(stored.shape).numel()
            sizes[stored.dtype] = sizes.get(stored.dtype, 0) + count
    is_wide = bool(sizes) and max(sizes, key=lambda kind: sizes[kind]) in ("F32", "F64")
    return torch.float32 if is_wide else torch.bfloat16
