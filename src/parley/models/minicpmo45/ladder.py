"""Selection of the fast parts for a model: each is tried, and steps down to its plain form if it
fails.

This runs before weights are read, so that a machine that cannot compile a kernel reports it within
seconds, and before slots are counted, because plain attention needs a different amount of memory.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch

from parley.errors import SetupError
from parley.models.minicpmo45 import trials
from parley.models.minicpmo45.device import set_precision
from parley.models.minicpmo45.load_choice import LoadChoice
from parley.models.minicpmo45.runtime.attention import FusedAttention, SlotAttention, why_no_kernel
from parley.models.minicpmo45.runtime.fast_paths import FastPaths


def tried(asked: LoadChoice, paths: FastPaths) -> LoadChoice:
    """The choice, limited to what this machine supports.

    Args:
        paths: receives the states.

    Raises:
        SetupError: a part failed, and `model.strict` is set; or the kernel cannot be used.
    """
    # First, because it sets the precision with which the attention kernel multiplies float32.
    flow_dtype = _flow_dtype(asked, paths)
    device, is_small = asked.device, _keeps_small(asked, paths)
    attention = _attention(replace(asked, has_small_caches=is_small), paths)
    if not attention.reads_in_place:
        paths.settle("fused", "plain", "it serves with our attention kernel only")
    else:
        trial = partial(trials.fused, asked, has_small_caches=is_small)
        attention.is_fused = paths.tried("fused", trial)
    if not attention.is_fused:
        paths.settle("products", "plain", "they serve with the kernels between them only")
    else:
        trial = partial(trials.products, device, asked.dtype)
        attention.has_products = paths.tried("products", trial)
    unpacks = _unpacks(asked, paths)
    if not asked.captures:
        why = "model.compile is off" if device.type == "cuda" else "graphs need an NVIDIA GPU"
        paths.settle("graphs", "plain", why)
    return replace(
        asked,
        flow_dtype=flow_dtype,
        has_small_caches=is_small,
        attention=attention,
        unpacks=unpacks,
    )


def _keeps_small(asked: LoadChoice, paths: FastPaths) -> bool:
    if not asked.has_small_caches:
        paths.settle("caches", "plain", "kept in the model's own precision")
        return False
    return paths.tried("caches", partial(trials.eight_bits, asked.device, asked.dtype))


def _attention(asked: LoadChoice, paths: FastPaths) -> FusedAttention:
    problem, setting = why_no_kernel(asked.device), asked.settings.attention
    if setting == "sdpa":
        problem = "model.attention is sdpa."
    elif problem is not None and setting == "triton":
        paths.settle("attention", "refused", problem)
        raise SetupError(problem, hint="Set model.attention to auto.")
    if problem is None and not trials.uses_of(asked):
        problem = "The kernel takes no head of this model."
    if problem is not None:
        paths.settle("attention", "plain", problem)
    elif paths.tried("attention", partial(trials.attention, asked, has_small_caches=False)):
        if not asked.has_small_caches or paths.tried(
            "caches", partial(trials.attention, asked, has_small_caches=True)
        ):
            return SlotAttention()
        reason = f"it cannot read caches in 8 bits: {paths.states['caches'].reason}"
        paths.step_down("attention", reason)
        return FusedAttention()
    if asked.has_small_caches:
        paths.settle("caches", "plain", "unpacked before PyTorch's attention reads them")
    return FusedAttention()


def _unpacks(asked: LoadChoice, paths: FastPaths) -> tuple[str, ...]:
    """The parts whose products with packed matrices fail."""
    unpacks = []
    for part, kinds, trial in (
        ("int4", ("int4", "smallest"), trials.int4),
        ("int4_kernels", ("int4", "smallest"), trials.int4_kernels),
        ("fp8", ("fp8",), trials.fp8),
    ):
        if asked.kind not in kinds:
            paths.settle(part, "plain", f"model.quantize is {asked.kind}")
        elif part == "int4_kernels" and asked.device.type == "cpu":
            paths.settle(part, "plain", "PyTorch's product serves on a CPU")
        elif not paths.tried(part, partial(trial, asked.device, asked.dtype)):
            unpacks.append(part)
    return tuple(unpacks)


def _flow_dtype(asked: LoadChoice, paths: FastPaths) -> torch.dtype:
    """The flow's precision; also sets this process's precision of float32 products."""
    wanted = asked.settings.token2wav_precision
    if asked.device.type != "cuda":
        paths.settle("flow_precision", "plain", "float32 on a CPU")
        return torch.float32
    if wanted == "float32":
        paths.settle("flow_precision", "plain", "model.token2wav_precision is float32")
    elif paths.tried("flow_precision", partial(trials.precision, asked.device, wanted)):
        return asked.flow_dtype
    set_precision("float32")
    return torch.float32
