"""The computations of a decoder's layer between its products and its attention, as three kernels
instead of PyTorch's fifteen. They round where PyTorch's operators round.

They are used together with the attention kernel, for any number of tokens, and also run on a GPU
and in Triton's interpreter.

Letters: `N` tokens of all rows, `H` query heads, `K` key heads, `D` head width, `W` width, `C`
columns of a cache.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from parley.models.minicpmo45.runtime.fast_paths import guarded

_GATE_BLOCK: Final = 1024
"""Numbers that one program of `gate` computes."""


@guarded("fused")
def add_norm(x: Tensor, added: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """`x + added`, and the root mean square norm of that; all (N, W), dense.

    Raises:
        FastPathFailed: the kernel cannot be built or launched. The other two functions raise it
            too.
    """
    from parley.models.minicpmo45.runtime import kernels

    rows, width = x.shape
    total, out = torch.empty_like(x), torch.empty_like(x)
    kernels.add_norm[(rows,)](
        x, added, weight, total, out, eps, width,
        BLOCK=1 << (width - 1).bit_length(), num_warps=8,
    )  # fmt: skip
    return total, out


@guarded("fused")
def place_heads(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    query_norm: Tensor | None,
    key_norm: Tensor | None,
    cos: Tensor,
    sin: Tensor,
    columns: Tensor,
    kept_keys: Tensor,
    kept_values: Tensor,
    key_scales: Tensor | None,
    value_scales: Tensor | None,
    eps: float,
) -> Tensor:
    """Norm and rotate queries and keys, and write keys and values into a cache.

    Args:
        query: (N, H D); keys, values: (N, K D); rows may be parts of longer ones.
        query_norm, key_norm: weights of their norms, (D,); None: no norm.
        cos, sin: tables of `caches.rotated`, N rows of D each, dense.
        columns: (N,) int64, where keys and values are written.
        kept_keys, kept_values: of a layer, (K, C, D).
        key_scales, value_scales: their scales, (K, C), if they are stored in 8 bits.

    Returns:
        (N, H, D).
    """
    from parley.models.minicpmo45.runtime import kernels

    tokens, width = query.shape[0], kept_keys.shape[2]
    heads, key_heads = query.shape[1] // width, kept_keys.shape[0]
    queries = torch.empty(tokens, heads, width, dtype=query.dtype, device=query.device)
    # The kernel does not read missing tensors.
    kernels.place_heads[(tokens, heads + 2 * key_heads)](
        query, keys, values,
        queries if query_norm is None else query_norm, queries if key_norm is None else key_norm,
        cos, sin, columns, queries, kept_keys, kept_values,
        queries if key_scales is None else key_scales,
        queries if value_scales is None else value_scales,
        eps, query.stride(0), keys.stride(0), values.stride(0), kept_keys.shape[1],
        HEADS=heads, KEY_HEADS=key_heads, WIDTH=width,
        HAS_NORM=query_norm is not None, HAS_SCALES=key_scales is not None, num_warps=1,
    )  # fmt: skip
    return queries


@guarded("fused")
def gate(gates: Tensor, ups: Tensor) -> Tensor:
    """SiLU of gates times `ups`, all (N, W); rows may be parts of longer ones."""
    from parley.models.minicpmo45.runtime import kernels

    rows, width = gates.shape
    out = torch.empty(rows, width, dtype=gates.dtype, device=gates.device)
    kernels.gate[(rows, -(-width // _GATE_BLOCK))](
        gates, ups, out, width, gates.stride(0), ups.stride(0), BLOCK=_GATE_BLOCK
    )
    return out
