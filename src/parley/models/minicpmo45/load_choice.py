"""The options with which a model is loaded: as the settings request, then as this machine
supports."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

import torch

from parley.errors import SetupError
from parley.models.minicpmo45.awq import PackedScheme
from parley.models.minicpmo45.config import MiniCPMOConfig
from parley.models.minicpmo45.quantize import Kind
from parley.models.minicpmo45.runtime.attention import FusedAttention
from parley.models.minicpmo45.token2wav.flow_shape import FlowShape
from parley.models.minicpmo45.token2wav.token2wav import VOICES_READY
from parley.models.minicpmo45.token2wav.vocoder_files import FULL_FLOW
from parley.settings import ModelSettings

SMALL_CARD_BYTES: Final = 28 * 1024**3
"""Cards with less memory store the caches of conversations in 8 bits, unless `model.kv_cache_dtype`
is set."""

OFFLINE_STEPS: Final = 10
"""Euler steps of an answer that is heard only once it is complete; the published class uses as
many."""


@dataclass(frozen=True, slots=True)
class LoadChoice:
    """Settings on a device, and the options that follow from them.

    Args:
        config, flow: sizes of the networks.
        dtype: of the weights.
        kind: quantization of the language model's layers.
        has_small_caches: the caches of context, audio input and speech decoder are in 8 bits.
        flow_dtype: in which the flow computes.
        unpacks: fast parts that failed, so that quantized matrices are unpacked for their products.
    """

    settings: ModelSettings
    device: torch.device
    config: MiniCPMOConfig
    flow: FlowShape = FULL_FLOW
    dtype: torch.dtype = torch.bfloat16
    kind: Kind = "none"
    has_small_caches: bool = False
    flow_dtype: torch.dtype = torch.float32
    attention: FusedAttention = field(default_factory=FusedAttention)
    unpacks: tuple[str, ...] = ()

    @property
    def history(self) -> torch.dtype | None:
        """Precision of the flow's memory; None: the same as that of its computation."""
        match self.settings.token2wav_history:
            case "auto":
                return torch.bfloat16 if self.device.type == "cuda" else None
            case "float32":
                return torch.float32
            case "bfloat16":
                return torch.bfloat16

    @property
    def captures(self) -> bool:
        """True if steps are captured as graphs."""
        return self.settings.compile and self.device.type == "cuda"

    @property
    def slots(self) -> int | Literal["auto"]:
        """Number of slots in the settings; on a GPU `auto` by default."""
        if self.settings.slots is not None:
            return self.settings.slots
        return "auto" if self.device.type == "cuda" else 1

    @property
    def unit_limit_s(self) -> float | None:
        """Maximum time of a unit of all conversations, if slots are counted automatically; None: no
        limit."""
        if self.slots != "auto" or self.settings.unit_limit_ms == 0:
            return None
        return self.settings.unit_limit_ms / 1000

    @property
    def is_paged(self) -> bool:
        """True if contexts take pages of a pool: if `auto` counts the slots and the kernel reads
        pages as fast as rows, or if the settings set a slot's guaranteed share."""
        share = self.settings.context_share_tokens
        if share is not None:
            return share < self.settings.context_tokens
        counts = self.slots == "auto" and self.device.type == "cuda"
        return counts and self.attention.reads_in_place

    @property
    def voices_ready(self) -> int:
        """Number of primed voices kept on the device."""
        return 1 if self.kind == "smallest" else VOICES_READY

    @property
    def offline_steps(self) -> int | None:
        """Euler steps of answers in one piece; None: the same as for all others."""
        live = self.settings.token2wav_steps
        usual = live if self.has_small_caches else OFFLINE_STEPS
        steps = self.settings.token2wav_steps_offline or usual
        return None if steps == live else steps


def asked(
    settings: ModelSettings,
    device: torch.device,
    config: MiniCPMOConfig,
    flow: FlowShape,
    dtype: torch.dtype,
    kind: Kind = "none",
) -> LoadChoice:
    """The choice that the settings request, before any part is tried."""
    is_short = device.type == "cuda" and settings.token2wav_precision == "bfloat16"
    flow_dtype = torch.bfloat16 if is_short else torch.float32
    is_small = keeps_eight_bits(settings, device)
    return LoadChoice(settings, device, config, flow, dtype, kind, is_small, flow_dtype)


def dtype_of(settings: ModelSettings, device: torch.device) -> torch.dtype | None:
    """Precision of the weights; None: as the checkpoint stores them."""
    if settings.dtype == "auto":
        if settings.random_weights:
            return torch.bfloat16 if device.type == "cuda" else torch.float32
        return None
    return torch.float32 if settings.dtype == "float32" else torch.bfloat16


def kind_of(settings: ModelSettings, scheme: PackedScheme | None) -> Kind:
    """Quantization of the layers' matrices; a checkpoint in 4 bits keeps its own."""
    if scheme is None:
        return settings.quantize
    if settings.quantize in ("int8", "fp8"):
        raise SetupError(
            "The checkpoint's weights have 4 bits already.",
            hint="Set model.quantize to none or int4.",
        )
    return "smallest" if settings.quantize == "smallest" else "int4"


def keeps_eight_bits(settings: ModelSettings, device: torch.device) -> bool:
    """True if the caches are to be stored in 8 bits: on small cards, unless the settings specify
    otherwise."""
    if settings.kv_cache_dtype != "auto":
        return settings.kv_cache_dtype == "int8"
    if device.type != "cuda":
        return False
    return int(torch.cuda.get_device_properties(device).total_memory) < SMALL_CARD_BYTES
