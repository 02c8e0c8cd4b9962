"""Quantized weights, for smaller cards and for speed: the language model's layers in 8 or 4 bits.

Embeddings, head, encoders and speech decoder keep their weights; the layers are three quarters of
the model. A matrix is packed as soon as it has been read, so that loading needs memory for the
result and one matrix, never for the whole model. On a GPU, products of up to `FEW_ROWS` rows read
packed matrices directly. For more rows, our kernel unpacks tiles of 4 bits within the product; 8
bits are unpacked before it.

| kind | on a GPU                                     | on a CPU |
|------|----------------------------------------------|----------|
| fp8  | bfloat16 only, sm_89 and newer, with triton  | yes      |
| int4 | bfloat16 only                                | yes      |
| int8 | refused: PyTorch has no kernel that is faster than bfloat16 there | yes |

smallest is int4 with embeddings and head in 8 bits, for cards of 12 GB.

int4 has a scale and a zero for each group of neighbouring weights of a row: a weight is
`(q - 8) * scale + zero`, q from 0 to 15.

Shapes: `n` rows (outputs), `k` columns (inputs), `g` group size, `R` inputs of one call.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from parley.errors import SetupError
from parley.models.minicpmo45.runtime import products, slot_attention
from parley.models.minicpmo45.runtime.fast_paths import guarded
from parley.models.minicpmo45.runtime.products import (
    FEW_ROWS,
    Fp8Linear,
    fits,
    row_pieces,
)

Kind = Literal["none", "fp8", "int8", "int4", "smallest"]

GROUPS: Final = (128, 64, 32)
"""Group sizes of int4, best first; the largest that divides the columns is used."""

FP8_CAPABILITY: Final = (8, 9)
"""Compute capability of the oldest cards that multiply e4m3 (RTX 40xx, L4, L40S, H100)."""

_UNPACKED_ROWS: Final = 8192
"""Rows of a matrix in 8 bits that are unpacked together on a GPU: 64 MiB of the published head."""

_INNER_TILES: Final = 8

_TILE: Final = (8, 16 * _INNER_TILES)
"""Rows and columns of a tile of a GPU's 4-bit kernel; all tiles have the same order."""

ROW_BLOCKS: Final = ((128, 0), (64, 32), (64, 16))
"""Rows of a program of our product with such tiles, in one block or two."""


@dataclass(frozen=True, slots=True, eq=False)
class Groups:
    """A matrix in 4 bits.

    Args:
        q: int32, shape (n, k), 0 to 15.
        scales, zeros: shape (n, k / g), floating point.
    """

    q: Tensor
    scales: Tensor
    zeros: Tensor

    @property
    def size(self) -> int:
        """Weights per group."""
        return int(self.q.shape[1] // self.scales.shape[1])

    def to(self, device: torch.device) -> Groups:
        return Groups(self.q.to(device), self.scales.to(device), self.zeros.to(device))

    def weight(self) -> Tensor:
        """The dequantized matrix, float32, shape (n, k)."""
        rows, columns = self.q.shape
        q = self.q.view(rows, -1, self.size).float()
        weight = (q - 8) * self.scales.float()[..., None] + self.zeros.float()[..., None]
        return weight.reshape(rows, columns)


class Int4Linear(nn.Module):
    """`nn.Linear` without bias over a matrix in 4 bits, in the order of PyTorch's kernel.

    Args of state:
        is_plain: unpack the matrix for every product instead of using the kernel.
        has_tiles: multiply many rows by our kernel; otherwise the matrix is unpacked for them.
    """

    def __init__(self, groups: Groups, dtype: torch.dtype) -> None:
        super().__init__()
        self.group = groups.size
        self.shape = (int(groups.q.shape[0]), int(groups.q.shape[1]))
        self.is_plain = False
        self.has_tiles = slot_attention.is_installed()
        rows, count = groups.scales.shape
        both = torch.empty(count, rows, 2, dtype=dtype, device=groups.q.device)
        # Written, as PyTorch would import its compiler to stack tensors without memory.
        both[..., 0], both[..., 1] = groups.scales.T, groups.zeros.T
        self.is_on_cpu = groups.q.device.type == "cpu"
        self.packed = nn.Parameter(_kernel_order(groups.q), requires_grad=False)
        self.scales = nn.Parameter(both, requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        flat = x.reshape(-1, x.shape[-1])
        has_many = flat.shape[0] > FEW_ROWS and not self.is_on_cpu
        if self.is_plain or (has_many and not self.has_tiles):
            return F.linear(x, self.unpacked().to(x.dtype))
        with guarded("int4_kernels" if has_many else "int4"):
            if self.is_on_cpu:
                made = torch._weight_int4pack_mm_for_cpu(flat, self.packed, self.group, self.scales)
            elif has_many:
                made = product_of_tiles(flat, self.packed.data, self.scales.data)
            else:
                made = torch._weight_int4pack_mm(flat, self.packed, self.group, self.scales)
        return made.view(*x.shape[:-1], -1)

    def unpacked(self) -> Tensor:
        """The dequantized matrix, float32, shape (n, k)."""
        q = _rows_order(self.packed.data, self.shape)
        scales, zeros = self.scales.transpose(0, 1).float().unbind(-1)
        return Groups(q, scales, zeros).weight()


UNPACKS: Final = ("int4", "int4_kernels", "fp8")
"""Fast parts (`fast_paths.py`) whose plain form unpacks matrices."""


def unpack(network: nn.Module, part: str) -> None:
    """Dequantize matrices for the products of a part from now on."""
    for module in network.modules():
        match part, module:
            case "int4", Int4Linear():
                module.is_plain = True
            case "int4_kernels", RowQuantizedLinear():
                module.is_plain = True
            case "int4_kernels", Int4Linear():
                module.has_tiles = False
            case "fp8", Fp8Linear():
                module.is_plain = True


def _kernel_order(q: Tensor) -> Tensor:
    """Pack 4-bit numbers, int32 (n, k), in the order of their device's kernel."""
    if q.device.type == "cpu":
        return torch._convert_weight_to_int4pack_for_cpu(q, 1)
    pairs = torch.empty_like(q[:, ::2], dtype=torch.uint8)
    if not q.is_meta:
        pairs.copy_(q[:, ::2] << 4 | q[:, 1::2])
    return torch._convert_weight_to_int4pack(pairs, _INNER_TILES)


def _rows_order(packed: Tensor, shape: tuple[int, int]) -> Tensor:
    """Inverse of `_kernel_order`."""
    rows, columns = shape
    # A CPU's order depends on the whole shape.
    tile = shape if packed.device.type == "cpu" else _TILE
    found = _places(tile, packed.device)
    tiles: Tensor = _nibbles(packed).view(rows // tile[0], columns // tile[1], -1)[..., found]
    tiles = tiles.view(*tiles.shape[:2], *tile)
    return tiles.transpose(1, 2).reshape(rows, columns)


def _places(tile: tuple[int, int], device: torch.device) -> Tensor:
    """Index of each number within a packed tile, int64. The order is determined with the kernel's
    own packing: the numbers' indices are packed, digit by digit, and looked up in the result."""
    places = torch.arange(tile[0] * tile[1], dtype=torch.int32, device=device)
    origin = torch.zeros(places.numel(), dtype=torch.int64, device=device)
    digits = -(-(places.numel() - 1).bit_length() // 4)
    for digit in range(digits):
        q = ((places >> (4 * digit)) & 0xF).view(tile)
        origin += _nibbles(_kernel_order(q)).view(-1).long() << (4 * digit)
    found = torch.empty_like(origin)
    found[origin] = torch.arange(origin.numel(), device=device)
    return found


@functools.cache
def _tile_places(device: torch.device) -> Tensor:
    """`_places` of a GPU's tiles, int32."""
    return _places(_TILE, device).int()


def shape_of_product(x: Tensor, packed: Tensor, scales: Tensor) -> Tensor:
    return torch.empty(x.shape[0], scales.shape[1], dtype=x.dtype, device=x.device)


def product_of_tiles(x: Tensor, packed: Tensor, scales: Tensor) -> Tensor:
    """Products (R, n) of rows (R, k) with a matrix as `Int4Linear` stores it on a GPU."""
    return product_in_order(x, packed, scales, _tile_places(packed.device))


def product_in_order(x: Tensor, packed: Tensor, scales: Tensor, places: Tensor) -> Tensor:
    """Products of rows with tiles of 4-bit numbers, in the order that `places` specifies."""
    from parley.models.minicpmo45.runtime import kernels

    x, out = x.contiguous(), shape_of_product(x, packed, scales)
    rows, columns = x.shape
    (block, more), outs = row_blocks(rows), out.shape[1]
    programs = -(-rows // (block + more))
    tile, warps = tile_outs(outs, programs, is_split=more > 0)
    kernels.from_tiles[(-(-outs // tile), programs)](
        x, packed.view(torch.uint8), places, scales, out, rows, outs, columns,
        GROUP=columns // scales.shape[0], ROWS=block, MORE=more, OUTS=tile,
        num_warps=warps, num_stages=2,
    )  # fmt: skip
    return out


def row_blocks(rows: int) -> tuple[int, int]:
    """The blocks of a program with the least padding for `rows`: the 79 rows of a unit with a
    picture are padded to 80."""
    return min(ROW_BLOCKS, key=lambda blocks: -rows % sum(blocks))


def tile_outs(outs: int, programs: int, *, is_split: bool) -> tuple[int, int]:
    """Outputs and warps of a program. Outputs are halved if the programs would not fill a large
    card, or if two blocks of rows leave no registers for more.

    Args:
        programs: number of programs that share a tile of outputs.
        is_split: rows are in two blocks.
    """
    if is_split or -(-outs // 64) * programs < slot_attention.PROGRAMS:
        return 32, 4
    return 64, 8


def _nibbles(packed: Tensor) -> Tensor:
    """Unpack 4-bit numbers, lowest first, to int32."""
    words = packed.contiguous().view(torch.uint8)
    return torch.stack([words & 0xF, words >> 4], dim=-1).flatten().int()


class RowQuantized(nn.Module):
    """A matrix in 8 bits, with a scale per row."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        packed = torch.empty(weight.shape, dtype=torch.int8, device=weight.device)
        scales = torch.empty(weight.shape[0], dtype=weight.dtype, device=weight.device)
        for here in row_pieces(weight):
            rows = weight[here].float()
            scale = (rows.abs().amax(1) / 127).clamp(min=1e-12).to(weight.dtype)
            scales[here] = scale
            packed[here] = (rows / scale.float()[:, None]).round().clamp(-127, 127).to(torch.int8)
        self.packed = nn.Parameter(packed, requires_grad=False)
        self.scales = nn.Parameter(scales, requires_grad=False)

    def rows(self, which: Tensor | slice) -> Tensor:
        return self.packed[which].to(self.scales.dtype) * self.scales[which][..., None]


class RowQuantizedLinear(RowQuantized):
    """`nn.Linear` without bias over a matrix in 8 bits. On a GPU, our kernel multiplies few rows
    with the packed numbers; for more rows, and without the kernel, they are unpacked piece by
    piece.

    Args of state:
        is_plain: never use the kernel.
    """

    def __init__(self, weight: Tensor) -> None:
        super().__init__(weight)
        self.is_plain = False

    def forward(self, x: Tensor) -> Tensor:
        flat = x.reshape(-1, x.shape[-1])
        if x.device.type == "cpu":
            made = torch._weight_int8pack_mm(flat, self.packed, self.scales)
        elif self.is_plain or not fits(flat, FEW_ROWS) or not slot_attention.is_installed():
            made = self.in_pieces(flat)
        else:
            with guarded("int4_kernels"):
                made = products.few_rows(flat, [self.packed.data], [self.scales.data])
        return made.view(*x.shape[:-1], -1)

    def in_pieces(self, x: Tensor) -> Tensor:
        """Product of rows (R, k) that dequantizes one piece of the matrix at a time."""
        starts = range(0, self.packed.shape[0], _UNPACKED_ROWS)
        pieces = (self.rows(slice(start, start + _UNPACKED_ROWS)) for start in starts)
        return torch.cat([F.linear(x, piece) for piece in pieces], -1)


class RowQuantizedEmbedding(RowQuantized):
    """`nn.Embedding` over a table in 8 bits."""

    def forward(self, ids: Tensor) -> Tensor:
        return self.rows(ids)


def packed(weight: Tensor, kind: Kind) -> nn.Module | None:
    """A layer with this matrix quantized; None if the kernels do not support its shape, so that it
    stays unchanged."""
    if kind == "int8":
        return RowQuantizedLinear(weight)
    if kind == "fp8" and all(size % 16 == 0 for size in weight.shape):
        return Fp8Linear(weight)
    if kind in ("int4", "smallest") and fits_int4(tuple(weight.shape), weight.device):
        return Int4Linear(grouped(weight), weight.dtype)
    return None


def fits_int4(shape: tuple[int, ...], device: torch.device) -> bool:
    """True if the kernels of a device support a matrix of this shape."""
    rows, columns = shape
    if device.type == "cpu":
        return rows % 16 == 0 and group_of(columns) is not None
    return rows % 8 == 0 and columns % (16 * _INNER_TILES) == 0


def group_of(columns: int) -> int | None:
    """The group size for rows of `columns` columns; None if no size fits."""
    return next((size for size in GROUPS if columns % size == 0), None)


def grouped(weight: Tensor) -> Groups:
    """Round a matrix to 4 bits. Scales and zeros have the matrix's dtype and are rounded before the
    weights, so that their errors do not add to those of the weights."""
    count, columns = weight.shape
    size = group_of(columns)
    assert size is not None
    q = torch.empty(count, columns, dtype=torch.int32, device=weight.device)
    scales = torch.empty(count, columns // size, dtype=weight.dtype, device=weight.device)
    zeros = torch.empty_like(scales)
    for here in row_pieces(weight):
        rows = weight[here].float().view(-1, columns // size, size)
        low, high = rows.amin(-1), rows.amax(-1)
        scales[here] = ((high - low) / 15).clamp(min=1e-6).to(weight.dtype)
        scale = scales[here].float()
        zeros[here] = (low + 8 * scale).to(weight.dtype)
        wide = (rows - zeros[here].float()[..., None]) / scale[..., None] + 8
        q[here] = wide.round_().clamp_(0, 15).to(torch.int32).view(-1, columns)
    return Groups(q, scales, zeros)


def checked(kind: Kind, *, device: torch.device, dtype: torch.dtype) -> None:
    """Check that weights of this kind can be used.

    Raises:
        SetupError: they cannot be used.
    """
    if device.type == "cpu" or kind == "none":
        return
    if kind == "int8":
        raise SetupError(
            "int8 weights are slower than bfloat16 on a GPU.",
            hint="Set model.quantize to fp8, to int4, which takes less memory still, or to none.",
        )
    if kind == "fp8" and torch.cuda.get_device_capability(device) < FP8_CAPABILITY:
        major, minor = torch.cuda.get_device_capability(device)
        raise SetupError(
            f"fp8 weights need compute capability 8.9 or higher, this card has {major}.{minor}.",
            hint="Set model.quantize to int4 or none.",
        )
    if dtype is not torch.bfloat16:
        raise SetupError(
            f"{kind} weights on a GPU need bfloat16.", hint="Set model.dtype to bfloat16 or auto."
        )


def stored_bytes(tensors: Iterable[Tensor]) -> int:
    """Total bytes of tensors."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
