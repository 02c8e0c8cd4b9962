"""What a decoder's layer computes between its products and its attention: three kernels of ours
instead of fifteen of PyTorch's. They round where PyTorch's operators round.

They serve where the attention kernel does, for any number of tokens, and like it run on a GPU, and
in Triton's interpreter.

Letters: `N` tokens of all rows, `H` query heads, `K` key heads, `D` head width, `W` width, `C`
columns of a cache.
"""

from __future__ import annotations

from typing import Final, Optional

import torch
from torch import Tensor

from parley.models.minicpmo45.runtime.fast_paths import guarded

_GATE_BLOCK: Final = 1024
"""Numbers that a program of `gate` makes."""


def add_norm(x: Tensor, added: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """`x + added`, and the root mean square norm of that; all (N, W), dense.

    Raises:
        FastPathFailed: the kernel cannot be built or launched. So do the other two.
    """
    with guarded("fused"):
        return launch_add_norm(x, added, weight, eps)


def place_heads(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    norms: tuple[Tensor | None, Tensor | None],
    turn: tuple[Tensor, Tensor],
    columns: Tensor,
    cache: tuple[Tensor, Tensor, Tensor | None, Tensor | None],
    eps: float,
) -> Tensor:
    """Norm and rotate queries and keys, and write keys and values into a cache.

    Args:
        query: (N, H D); keys, values: (N, K D); rows may be parts of longer ones.
        norms: weights of the norms of queries and keys, (D,); None: they have none.
        turn: tables of `caches.rotated`, N rows of D each, dense.
        columns: (N,) int64, where keys and values go.
        cache: keys and values of a layer, (K, C, D), and their scales, (K, C), if it has 8 bits.

    Returns:
        (N, H, D).
    """
    with guarded("fused"):
        given = (query, keys, values, norms[0], norms[1], turn[0], turn[1], columns)
        return launch_place_heads(*given, *cache, eps)


def gate(gates: Tensor, ups: Tensor) -> Tensor:
    """SiLU of gates times `ups`, all (N, W); rows may be parts of longer ones."""
    with guarded("fused"):
        return launch_gate(gates, ups)


def launch_add_norm(x: Tensor, added: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    from parley.models.minicpmo45.runtime import kernels

    rows, width = x.shape
    total, out = torch.empty_like(x), torch.empty_like(x)
    kernels.add_norm[(rows,)](
        x, added, weight, total, out, eps, width,
        BLOCK=1 << (width - 1).bit_length(), num_warps=8,
    )  # fmt: skip
    return total, out


def launch_place_heads(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    query_norm: Optional[Tensor],  # noqa: UP045 -- torch reads the schema off this annotation
    key_norm: Optional[Tensor],  # noqa: UP045
    cos: Tensor,
    sin: Tensor,
    columns: Tensor,
    kept_keys: Tensor,
    kept_values: Tensor,
    key_scales: Optional[Tensor],  # noqa: UP045
    value_scales: Optional[Tensor],  # noqa: UP045
    eps: float,
) -> Tensor:
    """`place_heads`, its tensors one by one."""
    from parley.models.minicpmo45.runtime import kernels

    tokens, width = query.shape[0], kept_keys.shape[2]
    heads, key_heads = query.shape[1] // width, kept_keys.shape[0]
    queries = torch.empty(tokens, heads, width, dtype=query.dtype, device=query.device)
    # What is missing is not read.
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


def launch_gate(gates: Tensor, ups: Tensor) -> Tensor:
    from parley.models.minicpmo45.runtime import kernels

    rows, width = gates.shape
    out = torch.empty(rows, width, dtype=gates.dtype, device=gates.device)
    kernels.gate[(rows, -(-width // _GATE_BLOCK))](
        gates, ups, out, width, gates.stride(0), ups.stride(0), BLOCK=_GATE_BLOCK
    )
    return out
