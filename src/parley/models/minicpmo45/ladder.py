"""Which fast parts a model is loaded with: each is tried, and steps down to its plain form.

Runs before weights are read, so that a machine that cannot compile a kernel says so in seconds, and
before slots are counted, because plain attention needs other memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch

from parley.errors import SetupError
from parley.models.minicpmo45 import trials
from parley.models.minicpmo45.device import set_precision
from parley.models.minicpmo45.quantize import Kind
from parley.models.minicpmo45.runtime.attention import FusedAttention, SlotAttention, why_no_kernel
from parley.models.minicpmo45.runtime.fast_paths import FastPaths
from parley.settings import ModelSettings


@dataclass(frozen=True, slots=True)
class Rung:
    """What a model is loaded with.

    Args:
        has_small_caches: contexts are kept in 8 bits.
        unpacks: matrices in fewer bits are unpacked for every product.
    """

    attention: FusedAttention
    has_small_caches: bool = False
    unpacks: bool = False


def choose(
    settings: ModelSettings,
    device: torch.device,
    geometry: trials.Geometry,
    *,
    kind: Kind,
    has_small_caches: bool,
    paths: FastPaths,
) -> Rung:
    """Try what the settings ask for.

    Args:
        has_small_caches: keep contexts in 8 bits, if that can be done.
        paths: learns the states.

    Raises:
        SetupError: a part failed, and `model.strict` is set; or the kernel cannot be used.
    """
    # First: the attention kernel multiplies float32 numbers as it says.
    _choose_precision(settings, device, paths)
    has_small_caches = _keeps_small(device, geometry.dtype, has_small_caches, paths)
    attention = _attention(settings, device, geometry, has_small_caches, paths)
    if not attention.reads_in_place:
        paths.settle("fused", "plain", "it serves with our attention kernel only")
    else:
        trial = partial(trials.fused, geometry, device, has_small_caches=has_small_caches)
        attention.is_fused = paths.tried("fused", trial)
    if not attention.is_fused:
        paths.settle("products", "plain", "they serve with the kernels between them only")
    else:
        trial = partial(trials.products, device, geometry.dtype)
        attention.has_products = paths.tried("products", trial)
    unpacks = _unpacks(device, geometry.dtype, kind, paths)
    if not (settings.compile and device.type == "cuda"):
        why = "model.compile is off" if device.type == "cuda" else "graphs need an NVIDIA GPU"
        paths.settle("graphs", "plain", why)
    return Rung(attention, has_small_caches, unpacks)


def _keeps_small(
    device: torch.device, dtype: torch.dtype, is_wanted: bool, paths: FastPaths
) -> bool:
    if not is_wanted:
        paths.settle("caches", "plain", "kept in the model's own precision")
        return False
    return paths.tried("caches", partial(trials.eight_bits, device, dtype))


def _attention(
    settings: ModelSettings,
    device: torch.device,
    geometry: trials.Geometry,
    has_small_caches: bool,
    paths: FastPaths,
) -> FusedAttention:
    problem = why_no_kernel(device)
    if settings.attention == "sdpa":
        problem = "model.attention is sdpa."
    elif problem is not None and settings.attention == "triton":
        paths.settle("attention", "refused", problem)
        raise SetupError(problem, hint="Set model.attention to auto.")
    uses = trials.uses_of(geometry)
    if problem is None and not uses:
        problem = "The kernel takes no head of this model."
    if problem is not None:
        paths.settle("attention", "plain", problem)
    elif paths.tried("attention", partial(trials.attention, uses, device, has_small_caches=False)):
        if not has_small_caches or paths.tried(
            "caches", partial(trials.attention, uses, device, has_small_caches=True)
        ):
            return SlotAttention()
        reason = f"it cannot read caches in 8 bits: {paths.states['caches'].reason}"
        paths.step_down("attention", reason)
        return FusedAttention()
    if has_small_caches:
        paths.settle("caches", "plain", "unpacked before PyTorch's attention reads them")
    return FusedAttention()


def _unpacks(device: torch.device, dtype: torch.dtype, kind: Kind, paths: FastPaths) -> bool:
    for part, kinds in (("int4", ("int4", "smallest")), ("fp8", ("fp8",))):
        if kind not in kinds:
            paths.settle(part, "plain", f"model.quantize is {kind}")
    match kind:
        case "int4" | "smallest":
            return not paths.tried("int4", partial(trials.int4, device, dtype))
        case "fp8":
            return not paths.tried("fp8", partial(trials.fp8, device, dtype))
        case _:
            return False


def _choose_precision(settings: ModelSettings, device: torch.device, paths: FastPaths) -> None:
    wanted = settings.token2wav_precision
    if device.type != "cuda":
        paths.settle("flow_precision", "plain", "float32 on a CPU")
        return
    if wanted == "float32":
        paths.settle("flow_precision", "plain", "model.token2wav_precision is float32")
    elif paths.tried("flow_precision", partial(trials.precision, device, wanted)):
        return
    set_precision("float32")
