"""The flow's products on a CPU, in float32.

A library of matrix products packs a weight anew in every call, and does so fastest where the
inputs' numbers lie one behind the other: (inputs, outputs) in memory, whatever the shape says. A
convolution of three taps needs four products for two results instead of six. Two activations take
longer in the library than the few sums and one exponential that they are.

Nothing here is used on a GPU or in another precision.

Letters: `R` rows, `T` frames, `W` width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from parley.models.minicpmo45.token2wav.convolution import FrameProduct

MISH_LINEAR_FROM = 20.0
"""From here on Mish is its argument in float32, and the square of the exponential still a
number."""


def prepare(network: nn.Module) -> None:
    """Lay out the weights of a network that computes on a CPU in float32; names, shapes and
    values of its parameters stay."""
    for module in network.modules():
        weight = getattr(module, "weight", None)
        if not isinstance(weight, Tensor) or not is_served(weight):
            continue
        if isinstance(module, FrameProduct):
            module.lay_for_pairs()
        elif isinstance(module, nn.Linear):
            module.weight = nn.Parameter(weight.detach().t().contiguous().t(), weight.requires_grad)


def added_bytes(network: nn.Module) -> int:
    """What `prepare` needs besides the parameters."""
    return sum(
        module.added_bytes for module in network.modules() if isinstance(module, FrameProduct)
    )


def is_served(x: Tensor) -> bool:
    """Whether this module's ways are taken for a tensor."""
    return x.device.type == "cpu" and x.dtype == torch.float32


def mish(x: Tensor) -> Tensor:
    """`x tanh(ln(1 + e^x))`, that is `x n / (n + 2)` with `n = e^x (e^x + 2)`."""
    if not is_served(x):
        return F.mish(x)
    grown = x.clamp(max=MISH_LINEAR_FROM).exp_()
    n = (grown + 2).mul_(grown)
    return n.div_(torch.add(n, 2, out=grown)).mul_(x)


def linear_gelu(x: Tensor, linear: nn.Linear) -> Tensor:
    """A projection and the tanh form of GELU."""
    if is_served(x) and is_served(linear.weight) and torch._C._has_mkldnn:
        # oneDNN computes the activation while the product is still in the processor's cache.
        out: Tensor = torch.ops.mkldnn._linear_pointwise(
            x, linear.weight, linear.bias, "gelu", [], "tanh"
        )
        return out
    return F.gelu(linear(x), approximate="tanh")
