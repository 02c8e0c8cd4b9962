"""What the speech decoder's slots remember: keys and values of a column side by side.

Letters: `S` slots, `C` columns of a slot, `H` key heads, `D` head width, `R` rows of a pass, `T`
tokens of each.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from parley.models.minicpmo45.runtime.eight_bits import SCALE_DTYPE, from_eight_bits, to_eight_bits


@dataclass(frozen=True, slots=True, eq=False)
class LayerCache:
    """One layer's part of a `SpeechCache`.

    Args:
        numbers: shape (S, C + 1, 2 H, D): keys, then values.
        scales: shape (S, C + 1, 2 H); None: the numbers are what they stand for.
        dtype: of what is written and read.
        lines: the columns of all slots in a row: views of numbers and scales.
    """

    numbers: Tensor
    scales: Tensor | None
    dtype: torch.dtype
    lines: tuple[Tensor, Tensor | None]

    @classmethod
    def of(cls, numbers: Tensor, scales: Tensor | None, dtype: torch.dtype) -> LayerCache:
        lines = (numbers.flatten(0, 1), None if scales is None else scales.flatten(0, 1))
        return cls(numbers, scales, dtype, lines)

    def write(self, places: Tensor, entries: Tensor) -> None:
        """Store entries (R T, 2 H, D) at places `slot (C + 1) + column` (R T)."""
        numbers, scales = self.lines
        if scales is None:
            numbers.index_copy_(0, places, entries)
        else:
            small, their_scales = to_eight_bits(entries)
            numbers.index_copy_(0, places, small)
            scales.index_copy_(0, places, their_scales)

    def read(self, rows: Tensor | slice, count: int) -> tuple[Tensor, Tensor]:
        """Keys and values of the first columns of rows, shape (R, H, count, D) each; views for a
        slice, unless they are kept in 8 bits."""
        found = self.numbers[rows, :count]
        if self.scales is not None:
            found = from_eight_bits(found, self.scales[rows, :count], self.dtype)
        keys, values = found.transpose(1, 2).chunk(2, dim=1)
        return keys, values

    def in_place(self) -> tuple[Tensor, Tensor, tuple[Tensor | None, Tensor | None]]:
        """Keys and values of all slots (S, H, C + 1, D), and their scales (S, H, C + 1)."""
        keys, values = self.numbers.transpose(1, 2).chunk(2, dim=1)
        if self.scales is None:
            return keys, values, (None, None)
        of_keys, of_values = self.scales.transpose(1, 2).chunk(2, dim=1)
        return keys, values, (of_keys, of_values)


class SpeechCache:
    """Keys and values of all layers and slots, allocated once and written in place.

    Args:
        columns: of a slot; there is one more, for writes that must not matter.
        is_eight_bit: keep them in 8 bits (`runtime/eight_bits.py`).
    """

    def __init__(
        self,
        *,
        layers: int,
        slots: int,
        columns: int,
        heads: int,
        width: int,
        dtype: torch.dtype,
        device: torch.device,
        is_eight_bit: bool = False,
    ) -> None:
        shape = (layers, slots, columns + 1, 2 * heads, width)
        self.columns, self.heads, self.dtype = columns, heads, dtype
        self.numbers = torch.zeros(
            shape, dtype=torch.int8 if is_eight_bit else dtype, device=device
        )
        self.scales: Tensor | None = None
        if is_eight_bit:
            self.scales = torch.zeros(shape[:-1], dtype=SCALE_DTYPE, device=device)
        self.layers = [
            LayerCache.of(
                self.numbers[number],
                None if self.scales is None else self.scales[number],
                dtype,
            )
            for number in range(layers)
        ]
        """Views of each layer's part."""

    @property
    def tensors(self) -> list[Tensor]:
        """Everything that it keeps, each of shape (layers, S, C + 1, …)."""
        return [self.numbers] if self.scales is None else [self.numbers, self.scales]

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors)

    def copied(self, slot: int, length: int) -> list[Tensor]:
        """Copy of the first columns of a slot, as stored."""
        return [tensor[:, slot, :length].clone() for tensor in self.tensors]

    def put_back(self, slot: int, copy: list[Tensor]) -> None:
        """Restore columns from `copied`."""
        for tensor, kept in zip(self.tensors, copy, strict=True):
            tensor[:, slot, : kept.shape[1]] = kept

    def keep(self, slot: int, columns: Tensor) -> None:
        """Move these columns of a slot to the front."""
        for tensor in self.tensors:
            tensor[:, slot, : columns.shape[0]] = tensor[:, slot, columns].clone()

    def keys(self, slot: int, start: int, end: int) -> Tensor:
        """Keys of some columns of a slot, shape (layers, columns, H, D); a view unless they are
        kept in 8 bits."""
        found = self.numbers[:, slot, start:end, : self.heads]
        if self.scales is None:
            return found
        scales = self.scales[:, slot, start:end, : self.heads]
        return from_eight_bits(found, scales, self.dtype)

    def replace_keys(self, slot: int, start: int, keys: Tensor) -> None:
        where = (slice(None), slot, slice(start, start + keys.shape[1]), slice(self.heads))
        if self.scales is None:
            self.numbers[where] = keys
        else:
            self.numbers[where], self.scales[where] = to_eight_bits(keys)
