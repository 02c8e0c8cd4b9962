"""Formats of ggml: a tensor is a row of blocks, each with its own scale.

| format | block | a number is                                                       |
|--------|-------|-------------------------------------------------------------------|
| Q4_0   | 32    | `d (q - 8)`, 4 bits                                               |
| Q4_1   | 32    | `d q + m`, 4 bits                                                 |
| Q5_0   | 32    | `d (q - 16)`, 5 bits                                              |
| Q5_1   | 32    | `d q + m`, 5 bits                                                 |
| Q8_0   | 32    | `d q`, 8 bits                                                     |
| Q4_K   | 256   | `d s q - e m`, 4 bits, `s` and `m` of 6 bits for each 32 of them  |
| Q5_K   | 256   | the same with 5 bits                                              |
| Q6_K   | 256   | `d s (q - 32)`, 6 bits, `s` of 8 bits for each 16 of them         |

and F32, F16, BF16 as they are. Source: ggml, ggml-common.h and ggml-quants.c.

Letters: `n` blocks; every function takes them as uint8 of shape (n, bytes of a block).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

FourBits = tuple[Tensor, Tensor, Tensor]
"""Numbers 0 to 15, int32, and for each 32 of them a scale and a zero in float32, as in
`quantize.Groups`: a weight is `(q - 8) scale + zero`."""


@dataclass(frozen=True, slots=True)
class BlockFormat:
    """One format.

    Args:
        block: numbers of a block; nbytes: its bytes.
        numbers: blocks to float32, shape (n, block).
        groups: blocks of 4-bit numbers, with nothing rounded; None for other formats.
    """

    name: str
    block: int
    nbytes: int
    numbers: Callable[[Tensor], Tensor]
    groups: Callable[[Tensor], FourBits] | None = None


def _plain(dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    return lambda blocks: blocks.contiguous().view(dtype).float()


def _half(blocks: Tensor, start: int) -> Tensor:
    """A float16 of each block, as float32, shape (n, 1)."""
    return blocks[:, start : start + 2].contiguous().view(torch.float16).float()


def _nibbles(packed: Tensor) -> Tensor:
    """Bytes (..., k) to their low and then their high four bits, int32 (..., 2 k)."""
    wide = packed.to(torch.int32)
    return torch.cat((wide & 15, wide >> 4), dim=-1)


def _fifth_bits(blocks: Tensor, start: int) -> Tensor:
    """32 bits of each block as 0 or 16, int32, shape (n, 32)."""
    wide = blocks[:, start : start + 4].to(torch.int32)
    bits = (wide[:, :, None] >> torch.arange(8)) & 1
    return bits.flatten(1) << 4


def _of(groups: Callable[[Tensor], FourBits]) -> Callable[[Tensor], Tensor]:
    """Numbers of a 4-bit format."""

    def numbers(blocks: Tensor) -> Tensor:
        q, scales, zeros = groups(blocks)
        wide = (q.view(-1, 32) - 8) * scales.reshape(-1, 1) + zeros.reshape(-1, 1)
        return wide.view(blocks.shape[0], -1)

    return numbers


def _q4_0(blocks: Tensor) -> FourBits:
    scales = _half(blocks, 0)
    return _nibbles(blocks[:, 2:]), scales, torch.zeros_like(scales)


def _q4_1(blocks: Tensor) -> FourBits:
    scales = _half(blocks, 0)
    return _nibbles(blocks[:, 4:]), scales, _half(blocks, 2) + 8 * scales


def _q5_0(blocks: Tensor) -> Tensor:
    q = _nibbles(blocks[:, 6:]) | _fifth_bits(blocks, 2)
    return (q - 16) * _half(blocks, 0)


def _q5_1(blocks: Tensor) -> Tensor:
    q = _nibbles(blocks[:, 8:]) | _fifth_bits(blocks, 4)
    return q * _half(blocks, 0) + _half(blocks, 2)


def _q8_0(blocks: Tensor) -> Tensor:
    return blocks[:, 2:].contiguous().view(torch.int8).float() * _half(blocks, 0)


def _six_bits(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Scales and minimums of eight parts, float32, (n, 8) each, from the 12 bytes behind `d`, `e`:
    the first four parts have their six bits in one byte, the others theirs in two."""
    wide = blocks[:, 4:16].to(torch.int32)
    low, middle, high = wide[:, :4], wide[:, 4:8], wide[:, 8:]
    scales = torch.cat((low & 63, (high & 15) | (low >> 6 << 4)), dim=1)
    minimums = torch.cat((middle & 63, (high >> 4) | (middle >> 6 << 4)), dim=1)
    return scales * _half(blocks, 0), minimums * _half(blocks, 2)


def _q4_k(blocks: Tensor) -> FourBits:
    scales, minimums = _six_bits(blocks)
    # Each 32 bytes hold two parts: the low four bits one, the high four bits the next.
    q = _nibbles(blocks[:, 16:].reshape(-1, 4, 32))
    return q.flatten(1), scales, 8 * scales - minimums


def _q5_k(blocks: Tensor) -> Tensor:
    scales, minimums = _six_bits(blocks)
    q = _nibbles(blocks[:, 48:].reshape(-1, 4, 32)).view(-1, 8, 32)
    fifth = (blocks[:, None, 16:48].to(torch.int32) >> torch.arange(8)[:, None]) & 1
    q = q | (fifth << 4)
    return (q * scales[..., None] - minimums[..., None]).flatten(1)


def _q6_k(blocks: Tensor) -> Tensor:
    low = _nibbles(blocks[:, :128].reshape(-1, 2, 64)).view(-1, 2, 4, 32)
    high = blocks[:, 128:192].reshape(-1, 2, 1, 32).to(torch.int32)
    q = low | (((high >> torch.tensor([0, 2, 4, 6])[:, None]) & 3) << 4)
    scales = blocks[:, 192:208].contiguous().view(torch.int8).float() * _half(blocks, 208)
    return ((q - 32).view(-1, 16, 16) * scales[..., None]).flatten(1)


FORMATS: Final = {
    0: BlockFormat("F32", 1, 4, _plain(torch.float32)),
    1: BlockFormat("F16", 1, 2, _plain(torch.float16)),
    2: BlockFormat("Q4_0", 32, 18, _of(_q4_0), _q4_0),
    3: BlockFormat("Q4_1", 32, 20, _of(_q4_1), _q4_1),
    6: BlockFormat("Q5_0", 32, 22, _q5_0),
    7: BlockFormat("Q5_1", 32, 24, _q5_1),
    8: BlockFormat("Q8_0", 32, 34, _q8_0),
    12: BlockFormat("Q4_K", 256, 144, _of(_q4_k), _q4_k),
    13: BlockFormat("Q5_K", 256, 176, _q5_k),
    14: BlockFormat("Q6_K", 256, 210, _q6_k),
    30: BlockFormat("BF16", 1, 2, _plain(torch.bfloat16)),
}
"""By ggml's number of the type."""
