"""From checkpoint files to modules on the device.

The modules are built without memory, then every tensor of the checkpoint is read straight to the
device and becomes the parameter itself, so there is never a second copy. Every name is accounted
for: what is missing, unexpected or of the wrong shape is named in one error before any data is
read. Buffers that are not in the checkpoint are computed by the modules from their configuration,
never left over from the memoryless build.

Layout and names: model.md 2.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn

from parley.errors import SetupError
from parley.models.minicpmo45.audio_encoder.network import AudioEncoder, AudioProjection
from parley.models.minicpmo45.awq import (
    SUFFIXES,
    USE_INSTEAD,
    AwqScheme,
    dequantised,
    groups_of,
)
from parley.models.minicpmo45.config import MiniCPMOConfig
from parley.models.minicpmo45.llm.network import LanguageModel
from parley.models.minicpmo45.quantize import (
    Int4Linear,
    Kind,
    fits_int4,
    packed,
    planned_bytes,
    workspace_bytes,
)
from parley.models.minicpmo45.tts.config import SpeechConfig
from parley.models.minicpmo45.tts.decoder import MiniCPMTTS
from parley.models.minicpmo45.tts.network import UNUSED_TENSORS
from parley.models.minicpmo45.vision_encoder.network import Resampler, VisionTower

INDEX_FILE = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"

Shapes = Mapping[str, tuple[int, ...]]


class Network(nn.Module):
    """All parts with weights, named as in the checkpoint."""

    def __init__(self, config: MiniCPMOConfig, tts: nn.Module | None = None) -> None:
        super().__init__()
        width = config.hidden_size
        self.llm = LanguageModel(config.language)
        self.vpm = VisionTower(config.vision, drop_last_layer=config.drop_vision_last_layer)
        self.resampler = Resampler(
            queries=config.query_num,
            width=width,
            vision_width=config.vision.hidden_size,
            heads=width // 128,
        )
        self.apm = AudioEncoder(config.audio)
        # The published code takes a quarter of the feed-forward width, equal to d_model there.
        self.audio_projection_layer = AudioProjection(config.audio.encoder_ffn_dim // 4, width)
        if tts is not None:
            self.tts = tts


def build(config: MiniCPMOConfig, *, with_speech: bool = True) -> Network:
    """The modules without memory ("meta" tensors); fill them with `load` or `randomise`."""
    with torch.device("meta"):
        return Network(config, _speech(config) if with_speech and config.has_tts else None)


def _speech(config: MiniCPMOConfig) -> nn.Module:
    return MiniCPMTTS(SpeechConfig.from_json(config.tts, llm_width=config.hidden_size))


# ------------------------------------------------------------------------------------- reading


@dataclass(frozen=True, slots=True)
class Stored:
    """Where a tensor lies, without its data."""

    file: Path
    shape: tuple[int, ...]
    dtype: str

    @property
    def nbytes(self) -> int:
        return torch.Size(self.shape).numel() * _DTYPE_BYTES.get(self.dtype, 2)


LAYERS = "llm.model.layers."
"""Tensors that may be quantised."""

_DTYPE_BYTES = {"F64": 8, "F32": 4, "BF16": 2, "F16": 2, "I64": 8, "I32": 4, "I8": 1, "U8": 1}


def catalogue(folder: Path) -> dict[str, Stored]:
    """Every tensor of a checkpoint folder, by name, through its index.

    Raises:
        SetupError: no safetensors files, or a shard is absent or broken.
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
        raise SetupError(f"{folder} holds GGUF files, which are not read here.", hint=USE_INSTEAD)
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
            raise SetupError(f"The index names tensors that no shard holds: {_some(lost)}.")
    return found


def account(expected: Shapes, found: Mapping[str, Stored], ignored: Iterable[str] = ()) -> None:
    """Compare what the model needs with what a checkpoint holds.

    Args:
        ignored: name prefixes that may be present without being needed.

    Raises:
        SetupError: anything missing, unexpected or of another shape; all of it is named.
    """
    skip = tuple(ignored)
    missing = sorted(set(expected) - set(found))
    extra = sorted(name for name in set(found) - set(expected) if not name.startswith(skip or "\0"))
    wrong = [
        f"{name} (needs {list(shape)}, has {list(found[name].shape)})"
        for name, shape in sorted(expected.items())
        if name in found and tuple(found[name].shape) != tuple(shape)
    ]
    complaints = [
        f"{len(names)} {what}: {_some(names)}"
        for names, what in ((missing, "missing"), (extra, "unexpected"), (wrong, "of wrong shape"))
        if names
    ]
    if complaints:
        raise SetupError(
            "The checkpoint does not fit the model. Tensors " + "; ".join(complaints) + ".",
            hint="Compare config.json with the safetensors files; both must be of one release.",
        )


def _some(names: list[str], limit: int = 12) -> str:
    shown = ", ".join(names[:limit])
    return shown if len(names) <= limit else f"{shown}, and {len(names) - limit} more"


def shapes_of(network: nn.Module) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the tensors a network needs from a checkpoint."""
    return {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}


def unused_names(network: Network) -> tuple[str, ...]:
    """Prefixes of tensors that a checkpoint holds and that are never read."""
    if not hasattr(network, "tts"):
        return ("tts.",)
    return UNUSED_TENSORS


def load(
    network: Network,
    folder: Path,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
    quantize: Kind = "none",
    scheme: AwqScheme | None = None,
) -> Network:
    """Fill a memoryless network from a checkpoint folder.

    Args:
        dtype: convert to this; None takes the checkpoint's own (`stored_dtype`). Fine-tunes often
            hold single tensors of another precision; a matrix and its input must agree.
        quantize: pack the matrices of the language model's layers as they are read.
        scheme: how the checkpoint itself packs matrices; those of the layers stay in 4 bits.

    Raises:
        SetupError: see `catalogue` and `account`; or the device has not enough memory.
    """
    stored = catalogue(folder)
    found, triples = unfolded(stored, scheme)
    account(shapes_of(network), found, unused_names(network))
    wanted = set(shapes_of(network))
    dtype = dtype or stored_dtype(found)
    device = torch.device(device)
    by_file: dict[Path, list[str]] = {}
    for name in wanted - set(triples):
        by_file.setdefault(found[name].file, []).append(name)
    _place(network, _read(by_file, device, dtype), device, quantize)
    if scheme is not None:
        packed_ones = ((name, triples[name]) for name in sorted(wanted & set(triples)))
        _place(network, _read_packed(packed_ones, stored, scheme, device, dtype), device)
    return _finished(network, device)


def unfolded(
    stored: Mapping[str, Stored], scheme: AwqScheme | None
) -> tuple[dict[str, Stored], dict[str, tuple[str, str, str]]]:
    """A catalogue in which packed matrices stand under their own names, and the three tensors of
    each of them."""
    triples: dict[str, tuple[str, str, str]] = {}
    if scheme is not None:
        for name in stored:
            place, _, leaf = name.rpartition(".")
            parts = tuple(f"{place}.{suffix}" for suffix in SUFFIXES)
            if leaf == SUFFIXES[0] and all(part in stored for part in parts):
                triples[f"{place}.weight"] = (parts[0], parts[1], parts[2])
    away = {part for parts in triples.values() for part in parts}
    found = {name: one for name, one in stored.items() if name not in away}
    for name, (qweight, _, _) in triples.items():
        inputs, columns = stored[qweight].shape
        found[name] = Stored(stored[qweight].file, (8 * columns, inputs), "AWQ")
    return found, triples


def _read_packed(
    triples: Iterable[tuple[str, tuple[str, str, str]]],
    stored: Mapping[str, Stored],
    scheme: AwqScheme,
    device: torch.device,
    dtype: torch.dtype,
) -> Iterator[tuple[str, Tensor | nn.Module]]:
    """Matrices that are stored in 4 bits: those of the layers as they are, others as numbers."""
    for name, parts in triples:
        tensors = []
        for part in parts:
            with safe_open(stored[part].file, framework="pt", device=str(device)) as shard:
                tensors.append(shard.get_tensor(part))
        groups = groups_of(tensors[0], tensors[1], tensors[2], scheme)
        if name.startswith(LAYERS) and fits_int4(tuple(groups.q.shape), device):
            yield name, Int4Linear(groups, dtype)
        else:
            yield name, dequantised(tensors[0], tensors[1], tensors[2], scheme).to(dtype)


def stored_dtype(found: Mapping[str, Stored]) -> torch.dtype:
    """The precision a checkpoint asks for: float32 if most of its language model is, else bfloat16,
    as the published code casts everything to."""
    sizes: dict[str, int] = {}
    for name, stored in found.items():
        if name.startswith("llm."):
            count = torch.Size(stored.shape).numel()
            sizes[stored.dtype] = sizes.get(stored.dtype, 0) + count
    is_wide = bool(sizes) and max(sizes, key=lambda kind: sizes[kind]) in ("F32", "F64")
    return torch.float32 if is_wide else torch.bfloat16


def _read(
    by_file: Mapping[Path, list[str]], device: torch.device, dtype: torch.dtype
) -> Iterator[tuple[str, Tensor]]:
    for file, names in sorted(by_file.items()):
        with safe_open(file, framework="pt", device=str(device)) as shard:
            for name in sorted(names):
                tensor = shard.get_tensor(name)
                yield name, tensor.to(dtype) if tensor.is_floating_point() else tensor


def _place(
    network: nn.Module,
    tensors: Iterable[tuple[str, Tensor | nn.Module]],
    device: torch.device,
    quantize: Kind = "none",
) -> None:
    """Make each tensor the parameter of its name; a module takes the place of the linear layer that
    the name belongs to."""
    try:
        for name, tensor in tensors:
            place, _, leaf = name.rpartition(".")
            if isinstance(tensor, Tensor) and name.startswith(LAYERS) and tensor.dim() == 2:
                tensor = packed(tensor, quantize) or tensor
            if isinstance(tensor, nn.Module):
                above, _, own = place.rpartition(".")
                setattr(network.get_submodule(above), own, tensor)
                continue
            module = network.get_submodule(place)
            if leaf in module._parameters:
                module._parameters[leaf] = nn.Parameter(tensor, requires_grad=False)
            else:
                module._buffers[leaf] = tensor
    except torch.OutOfMemoryError as error:
        raise SetupError(
            f"The weights do not fit on {device}: {error}",
            hint="`parley doctor` prints the memory plan; int4 weights take about a third.",
        ) from error


def fill(
    network: Network,
    tensors: Iterable[tuple[str, Tensor | nn.Module]],
    device: torch.device,
    quantize: Kind = "none",
) -> Network:
    """Make each tensor the parameter of its name, then rebuild what checkpoints do not hold.

    Args:
        quantize: pack the matrices of the language model's layers as they come.
    """
    _place(network, tensors, device, quantize)
    return _finished(network, device)


def _finished(network: Network, device: torch.device) -> Network:
    """A filled network, with what checkpoints do not hold rebuilt."""
    for module in network.modules():
        rebuild = getattr(module, "rebuild_buffers", None)
        if rebuild is not None:
            rebuild(device)
    hollow = [name for name, tensor in _all_tensors(network) if tensor.is_meta]
    if hollow:
        raise SetupError(f"Tensors were left without content: {_some(sorted(hollow))}.")
    network.eval()
    network.requires_grad_(False)
    return network


def _all_tensors(network: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from network.named_parameters()
    yield from network.named_buffers()


def randomise(
    network: Network,
    *,
    device: torch.device | str,
    dtype: torch.dtype,
    seed: int = 0,
    quantize: Kind = "none",
) -> Network:
    """Fill a memoryless network with small random weights, for benchmarks without a checkpoint."""
    device = torch.device(device)
    generator = torch.Generator(device=device).manual_seed(seed)

    def tensors() -> Iterator[tuple[str, Tensor]]:
        for name, shape in shapes_of(network).items():
            tensor = torch.empty(shape, dtype=dtype, device=device)
            if (len(shape) == 1 and name.endswith("weight")) or name.endswith("original0"):
                tensor.fill_(1.0)
            elif len(shape) == 1:
                tensor.zero_()
            else:
                tensor.normal_(std=0.02, generator=generator)
            yield name, tensor

    return fill(network, tensors(), device, quantize)


# ---------------------------------------------------------------------------------------- plan


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Bytes a configuration takes on the device.

    Args:
        weights_bytes: once; loading_bytes: at most while loading: the result and one matrix.
        slot_bytes: per slot, at the configured context; all kinds of state together.
        per_1000_tokens_bytes: context caches per slot and 1,000 positions.
        parts: weight bytes per part.
    """

    weights_bytes: int
    loading_bytes: int
    slot_bytes: int
    per_1000_tokens_bytes: int
    slots: int
    parts: Mapping[str, int]

    @property
    def total_bytes(self) -> int:
        return self.weights_bytes + self.slots * self.slot_bytes

    def fits(self, free_bytes: int, *, headroom: float = 0.08) -> bool:
        """Whether it fits, leaving a share of the memory for activations."""
        is_loadable = self.loading_bytes <= free_bytes
        return is_loadable and self.total_bytes <= free_bytes * (1 - headroom)


def plan(
    config: MiniCPMOConfig,
    *,
    slots: int,
    context_tokens: int,
    dtype: torch.dtype = torch.bfloat16,
    found: Mapping[str, Stored] | None = None,
    speech_slot_bytes: int = 0,
    voice_bytes: int = 0,
    quantize: Kind = "none",
) -> MemoryPlan:
    """The memory plan of a configuration.

    Args:
        found: a checkpoint's catalogue, where the tensors keep the dtype they are stored in; None
            counts all of them in `dtype`.
        speech_slot_bytes: what the speech decoder and vocoder keep per slot.
        voice_bytes: the vocoder's weights.
        quantize: what becomes of the language model's layers once they are loaded.
    """
    size = dtype.itemsize
    shapes = shapes_of(build(config))
    stored = found or {}
    parts: dict[str, int] = {}
    for name, shape in shapes.items():
        nbytes = stored[name].nbytes if name in stored else torch.Size(shape).numel() * size
        part = name.split(".", 1)[0]
        parts[part] = parts.get(part, 0) + nbytes
    if voice_bytes:
        parts["vocoder"] = voice_bytes
    workspace = 0
    if quantize != "none":
        layers = {name: shape for name, shape in shapes.items() if name.startswith(LAYERS)}
        before = planned_bytes(layers, "none", size)
        parts["llm"] += planned_bytes(layers, quantize, size) - before
        workspace = workspace_bytes(layers.values(), size)
    loading = sum(parts.values()) + workspace
    language = config.language
    per_token = 2 * language.num_hidden_layers * language.num_key_value_heads * config.head_dim
    audio = 2 * config.audio.encoder_layers * config.audio_positions * config.audio.d_model
    return MemoryPlan(
        weights_bytes=sum(parts.values()),
        loading_bytes=loading,
        slot_bytes=size * (per_token * context_tokens + audio) + speech_slot_bytes,
        per_1000_tokens_bytes=size * per_token * 1000,
        slots=slots,
        parts=parts,
    )


# ------------------------------------------------------------------------------------- writing


def write(
    folder: Path,
    raw_config: Mapping[str, Any],
    tensors: Iterable[tuple[str, Tensor]],
    *,
    shard_bytes: int = 5_000_000_000,
) -> None:
    """Store a checkpoint in the official layout: config.json, an index, and numbered shards."""
    from safetensors.torch import save_file

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
    (folder / INDEX_FILE).write_text(json.dumps(index, indent=2), encoding="utf-8")
    (folder / "config.json").write_text(json.dumps(raw_config, indent=2), encoding="utf-8")
