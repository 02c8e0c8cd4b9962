"""Loads checkpoint files into modules on the device.

The modules are built without memory, then every tensor of the checkpoint is read straight to the
device and becomes the parameter itself, so there is never a second copy. Every name is checked: one
error names all tensors that are missing, unexpected or of the wrong shape, before any data is read.
Modules compute buffers that are not in the checkpoint from their configuration, so that none is
left without data.

Layout and names: model.md 2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from itertools import chain, groupby
from pathlib import Path
from typing import Any, Final, TypeVar

import torch
from safetensors import safe_open
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from parley import logs
from parley.errors import SetupError
from parley.models.minicpmo45.audio_encoder.network import AudioEncoder
from parley.models.minicpmo45.awq import PackedScheme
from parley.models.minicpmo45.checkpoint import (
    EMBEDDINGS,
    HEAD,
    LAYERS,
    Stored,
    account,
    catalogue,
    some_names,
    stored_dtype,
    unfolded,
)
from parley.models.minicpmo45.config import MiniCPMOConfig
from parley.models.minicpmo45.llm.network import LanguageModel
from parley.models.minicpmo45.quantize import (
    Int4Linear,
    Kind,
    RowQuantizedEmbedding,
    RowQuantizedLinear,
    fits_int4,
    packed,
    stored_bytes,
)
from parley.models.minicpmo45.runtime.layers import Projection, in_large_pages
from parley.models.minicpmo45.tts.config import SpeechConfig
from parley.models.minicpmo45.tts.decoder import MiniCPMTTS
from parley.models.minicpmo45.tts.network import UNUSED_TENSORS
from parley.models.minicpmo45.vision_encoder.network import Resampler, VisionTower

log = logs.get(__name__)

NetworkT = TypeVar("NetworkT", bound=nn.Module)


class Network(nn.Module):
    """All parts with weights, named as in the checkpoint."""

    def __init__(self, config: MiniCPMOConfig) -> None:
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
        self.audio_projection_layer = Projection(config.audio.encoder_ffn_dim // 4, width)
        if config.has_tts:
            self.tts = MiniCPMTTS(SpeechConfig.from_json(config.tts, llm_width=width))


def build(config: MiniCPMOConfig) -> Network:
    """Create the modules without memory ("meta" tensors); fill them with `load` or `randomise`."""
    with without_memory():
        return Network(config)


def shapes_of(network: nn.Module) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the tensors that a network needs from a checkpoint."""
    return {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}


def unused_names(network: Network) -> tuple[str, ...]:
    """Name prefixes of checkpoint tensors that are never read."""
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
    scheme: PackedScheme | None = None,
) -> Network:
    """Fill a memoryless network from a checkpoint folder.

    Args:
        dtype: to which tensors are converted; None: the checkpoint's own (`stored_dtype`).
            Fine-tunes often contain single tensors of another precision; a matrix and its input
            must have the same.
        quantize: pack the matrices of the language model's layers as they are read.
        scheme: how the checkpoint itself packs matrices; those of the layers stay in 4 bits.

    Raises:
        SetupError: see `catalogue` and `account`; or the device does not have enough memory.
    """
    found = accounted(network, folder, scheme)
    device, dtype = torch.device(device), dtype or stored_dtype(found)
    needed = {name: found[name] for name in shapes_of(network)}
    return fill(network, _read(needed, scheme, device, dtype), device, quantize)


def accounted(network: Network, folder: Path, scheme: PackedScheme | None) -> dict[str, Stored]:
    """The tensors of a checkpoint folder, checked against those that the network needs.

    Raises:
        SetupError: they differ; see `catalogue` and `account`.
    """
    found = unfolded(catalogue(folder), scheme)
    account(shapes_of(network), found, unused_names(network))
    return found


def _read(
    needed: Mapping[str, Stored],
    scheme: PackedScheme | None,
    device: torch.device,
    dtype: torch.dtype,
) -> Iterator[tuple[str, Tensor | nn.Module]]:
    """Read tensors file by file. Matrices of the layers that are stored in 4 bits stay packed."""
    by_file = sorted(needed.items(), key=lambda one: (one[1].file, one[0]))
    for file, some in groupby(by_file, key=lambda one: one[1].file):
        with safe_open(file, framework="pt", device=str(device)) as shard:
            for name, stored in some:
                if scheme is not None and stored.parts:
                    yield name, _unpacked(name, stored, scheme, device, dtype)
                else:
                    tensor = shard.get_tensor(name)
                    yield name, tensor.to(dtype) if tensor.is_floating_point() else tensor


def _unpacked(
    name: str, stored: Stored, scheme: PackedScheme, device: torch.device, dtype: torch.dtype
) -> Tensor | nn.Module:
    tensors = []
    for part, one in stored.parts.items():
        with safe_open(one.file, framework="pt", device=str(device)) as shard:
            tensors.append(shard.get_tensor(part))
    groups = scheme.groups(tensors)
    if name.startswith(LAYERS) and fits_int4(tuple(groups.q.shape), device):
        return Int4Linear(groups, dtype)
    return groups.weight().to(dtype)


def fill(
    network: Network,
    tensors: Iterable[tuple[str, Tensor | nn.Module]],
    device: torch.device,
    quantize: Kind = "none",
) -> Network:
    """Set each tensor as the parameter of its name, then rebuild buffers that checkpoints do not
    contain.

    Args:
        tensors: a module replaces the linear layer to which its name belongs.
        quantize: pack the matrices of the language model's layers as they arrive.
    """
    progress = logs.Steps(log, "weights_read")
    count = 0
    try:
        for name, tensor in tensors:
            count += 1
            progress.step(tensors=count)
            place, _, leaf = name.rpartition(".")
            if isinstance(tensor, Tensor) and tensor.dim() == 2:
                tensor = _packed(name, tensor, quantize) or tensor
            if isinstance(tensor, nn.Module):
                network.set_submodule(place, tensor)
                continue
            module = network.get_submodule(place)
            if leaf in module._parameters:
                module._parameters[leaf] = nn.Parameter(tensor, requires_grad=False)
            else:
                module._buffers[leaf] = tensor
        size = stored_bytes(network.parameters()) / 2**30
        progress.end(tensors=count, gib=round(size, 2))
    except torch.OutOfMemoryError as error:
        raise SetupError(
            f"The weights do not fit on {device}: {error}",
            hint="`parley doctor` prints the memory plan; int4 weights take about a third.",
        ) from error
    return finished(network, device)


def _packed(name: str, matrix: Tensor, kind: Kind) -> nn.Module | None:
    """The quantized module for a matrix; None: it is not quantized."""
    if name.startswith(LAYERS):
        return packed(matrix, kind)
    if kind == "smallest" and name == EMBEDDINGS:
        return RowQuantizedEmbedding(matrix)
    return RowQuantizedLinear(matrix) if kind == "smallest" and name == HEAD else None


def pack_without_memory(network: Network, kind: Kind) -> None:
    """Pack a network without memory in the same way as loading does, to count its bytes."""
    by_shape: dict[tuple[str, torch.Size], nn.Module | None] = {}
    for name, tensor in network.state_dict().items():
        # Layers have the same shapes.
        key = ("" if name.startswith(LAYERS) else name, tensor.shape)
        if key not in by_shape:
            by_shape[key] = _packed(name, tensor, kind) if tensor.dim() == 2 else None
        if (module := by_shape[key]) is not None:
            network.set_submodule(name.rpartition(".")[0], deepcopy(module))


def finished(network: NetworkT, device: torch.device) -> NetworkT:
    """Rebuild the buffers of a filled network that checkpoints do not contain; also called after it
    was moved."""
    for module in network.modules():
        rebuild = getattr(module, "rebuild_buffers", None)
        if rebuild is not None:
            rebuild(device)
    tensors = chain(network.named_parameters(), network.named_buffers())
    hollow = [name for name, tensor in tensors if tensor.is_meta]
    if hollow:
        raise SetupError(f"Tensors were left without content: {some_names(sorted(hollow))}.")
    network.eval()
    network.requires_grad_(False)
    in_large_pages(network.parameters())
    return network


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


@contextmanager
def without_memory() -> Iterator[None]:
    """Tensors created within the context have shapes and no data ("meta" tensors).

    Initialization is skipped: there is no data to fill, and on "meta" PyTorch would import its
    compiler for it, which takes more than a second of processor time.
    """
    with torch.device("meta"), _Unfilled():
        yield


_FILLING: Final = frozenset(
    {
        *(Tensor.fill_, Tensor.normal_, Tensor.uniform_, Tensor.zero_),
        *(nn.init.kaiming_uniform_, nn.init.normal_, nn.init.uniform_),
    }
)


class _Unfilled(TorchFunctionMode):
    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func in _FILLING:
            return args[0] if args else kwargs["tensor"]
        if func is torch.norm_except_dim:
            # Lengths of a matrix's rows, for `weight_norm`.
            return torch.empty(args[0].shape[0], 1)
        return func(*args, **kwargs)
