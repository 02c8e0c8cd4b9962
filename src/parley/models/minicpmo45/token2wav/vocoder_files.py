"""Loads flow and vocoder from the files of a checkpoint, or makes random ones."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from parley.errors import SetupError
from parley.models.minicpmo45.checkpoint import account
from parley.models.minicpmo45.token2wav.flow import Flow
from parley.models.minicpmo45.token2wav.flow_shape import FlowShape
from parley.models.minicpmo45.token2wav.token2wav import Token2Wav
from parley.models.minicpmo45.token2wav.vocoder import ClassicVocoder
from parley.models.minicpmo45.token2wav.vocoder_causal import CausalVocoder
from parley.models.minicpmo45.token2wav.vocoder_layers import folded
from parley.models.minicpmo45.token2wav.voice_pack import VoicePack

FLOW_FILE, VOCODER_FILE = "flow.pt", "hift.pt"


def load_token2wav(
    folder: Path,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    **options: Any,
) -> Token2Wav:
    """Read `flow.pt` and `hift.pt`.

    Args:
        dtype: of the flow; the vocoder always computes in float32.
        options: of `Token2Wav`.

    Raises:
        SetupError: a file is missing or damaged, or its tensors are wrong.
    """
    flow = make_flow(read_tensors(folder / FLOW_FILE)).to(device=device, dtype=dtype)
    vocoder = make_vocoder(read_tensors(folder / VOCODER_FILE)).to(device=device)
    return Token2Wav(flow, vocoder, **options)


def missing_files(folder: Path) -> list[str]:
    """Names of the vocoder's files that are missing in a folder."""
    return [name for name in (FLOW_FILE, VOCODER_FILE) if not (folder / name).is_file()]


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Load a state dictionary as data only: no code in the file is executed."""
    if not path.is_file():
        raise SetupError(
            f"{path.name} is missing in {path.parent}.",
            hint="It belongs to the checkpoint's assets/token2wav folder. Text works without it.",
        )
    try:
        # Files from before torch 1.6 are not archives, and cannot be mapped.
        stored = torch.load(
            path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path)
        )
    except Exception as error:
        raise SetupError(f"{path} cannot be read as a weights file: {error}") from error
    if not isinstance(stored, dict):
        raise SetupError(f"{path} does not hold a dictionary of tensors.")
    prefix = "generator."
    return {
        str(name).removeprefix(prefix): value
        for name, value in stored.items()
        if isinstance(value, Tensor)
    }


def make_flow(tensors: dict[str, Tensor]) -> Flow:
    """A flow network from the tensors of `flow.pt`."""
    flow = Flow(FlowShape.of(tensors))
    _fill(flow, tensors, FLOW_FILE)
    return flow


def make_vocoder(tensors: dict[str, Tensor]) -> ClassicVocoder | CausalVocoder:
    """A vocoder from the tensors of `hift.pt`; the width of its first convolution determines the
    kind."""
    first = "conv_pre.parametrizations.weight.original1"
    pitch = "f0_predictor.condnet.0.parametrizations.weight.original1"
    for name in (first, pitch):
        if name not in tensors:
            raise SetupError(f"The vocoder's weights lack {name}.")
    channels, bins, width = tensors[first].shape
    pitch_channels = tensors[pitch].shape[0]
    vocoder: ClassicVocoder | CausalVocoder
    match width:
        case 7:
            vocoder, precise = ClassicVocoder(channels, pitch_channels, bins), None
        case 5:
            vocoder, precise = CausalVocoder(channels, pitch_channels, bins), "f0_predictor."
        case _:
            raise SetupError(
                f"{VOCODER_FILE} is of an unknown kind: its first convolution is {width} wide.",
                hint="Known are 7 (classic) and 5 (causal).",
            )
    _fill(vocoder, folded(tensors, precise=precise), VOCODER_FILE)
    return vocoder


def _fill(network: nn.Module, tensors: dict[str, Tensor], file: str) -> None:
    """Load strictly; one error names all mismatches."""
    wanted = {name: tuple(value.shape) for name, value in network.state_dict().items()}
    account(wanted, tensors, failure=f"{file} does not fit.", hint="")
    network.load_state_dict(tensors)
    network.requires_grad_(False)
    network.eval()


FULL_FLOW = FlowShape()
"""Geometry of the published flow. Source: speech.md 3.1."""

FULL_CHANNELS = 512
"""Channels of the published vocoder and of its pitch predictor."""


def random_token2wav(
    *,
    shape: FlowShape = FULL_FLOW,
    channels: int = FULL_CHANNELS,
    is_causal: bool = False,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    **options: Any,
) -> Token2Wav:
    """The published geometry with random weights, for benchmarks and tests: its output is noise.

    Args:
        options: of `Token2Wav`.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        flow = Flow(shape)
        vocoder = (CausalVocoder if is_causal else ClassicVocoder)(channels, channels)
    for network in (flow, vocoder):
        network.requires_grad_(False)
        network.eval()
    flow, vocoder = flow.to(device=device, dtype=dtype), vocoder.to(device=device)
    return Token2Wav(flow, vocoder, **options)


def random_voice(*, tokens: int = 150, seed: int = 0) -> VoicePack:
    """A voice of noise, six seconds by default, for benchmarks and tests."""
    random = np.random.default_rng(seed)
    return VoicePack(
        tokens=random.integers(0, FULL_FLOW.vocabulary, tokens),
        embedding=random.standard_normal(FULL_FLOW.speaker).astype(np.float32),
        mel=(random.standard_normal((2 * tokens, 80)) - 5).astype(np.float32),
    )
