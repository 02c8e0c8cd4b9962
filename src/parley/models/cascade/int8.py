"""Matrices as int8 rows, run by torch's own dynamic kernel on a CPU."""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Iterator

import torch
from torch import Tensor, nn

_process_wide = threading.Lock()
"""Warning filters and the choice of kernels are process-wide; several threads read weights."""


class Int8Linear(nn.Module):
    """A matrix as int8 rows; inputs are quantised at run time, with one scale per call.

    Inputs have seven bits. With eight, the kernels for x86 without AVX-512 VNNI (those of most
    laptops) saturate when they add two products in 16 bits, and the language model generates
    gibberish. QNNPACK's kernels do not saturate, and use eight bits.

    Args:
        weight: int8 (O, I).
        scale: (O,), factor of each row's values.
        bias: (O,), if any.
    """

    def __init__(self, weight: Tensor, scale: Tensor, bias: Tensor | None = None) -> None:
        super().__init__()
        with _process_wide, warnings.catch_warnings(), _kernels() as kernels:
            # The class of quantised tensors is deprecated; the packed matrix created from one is
            # not.
            warnings.simplefilter("ignore", UserWarning)
            quantized = torch._make_per_channel_quantized_tensor(
                weight, scale.double(), torch.zeros(len(scale), dtype=torch.long), 0
            )
            self.packed = torch.ops.quantized.linear_prepack(quantized, bias)
        # QNNPACK's kernels warn if seven bits are requested.
        self._has_seven_bits = kernels != "qnnpack"

    def forward(self, x: Tensor) -> Tensor:
        # The kernel is fast with two dimensions; it joins further ones itself.
        result: Tensor = torch.ops.quantized.linear_dynamic(
            x, self.packed, reduce_range=self._has_seven_bits
        )
        return result

    @classmethod
    def of(cls, weight: Tensor, bias: Tensor | None = None) -> Int8Linear:
        """Quantise float rows."""
        low, high = weight.aminmax(dim=1)
        scale = (torch.maximum(-low, high) / 127).clamp(min=1e-8)
        rows = (weight / scale[:, None]).round_().clamp_(-127, 127).to(torch.int8)
        return cls(rows, scale, bias)


def quantized(linear: nn.Linear) -> Int8Linear:
    """The int8 form of a float layer."""
    bias = None if linear.bias is None else linear.bias.detach().float()
    return Int8Linear.of(linear.weight.detach().float(), bias)


@contextlib.contextmanager
def _kernels() -> Iterator[str]:
    """While the block runs, matrices are packed for the kernels whose name is yielded.

    These are torch's kernels for x86 if torch has chosen them (with AVX2), else QNNPACK's.
    Elsewhere torch chooses oneDNN's kernels: on older x86 they end the process, and on 64-bit ARM
    the language model generates gibberish with them.
    """
    backend = torch.backends.quantized
    chosen = backend.engine
    if chosen != "x86" and "qnnpack" in backend.supported_engines:
        backend.engine = "qnnpack"
    try:
        yield backend.engine
    finally:
        backend.engine = chosen
