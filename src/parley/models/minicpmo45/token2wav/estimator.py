"""The flow's estimator: a diffusion transformer over mel frames.

Letters: `R` rows (conversations) in a call, `T` new mel frames, `C` history places per row, `W`
width, `H` heads, `N` Euler steps. Classifier-free guidance doubles every row: index 0 with its
conditions, index 1 without.

Two facts make streaming cheap. Attention has no positional encoding, so a row's history may be in
any order: it is a set of places in a preallocated cache with a mask, new frames are written into
free places, and data is never moved or concatenated. And the time grid is fixed, so everything that
depends on time alone (a third of the parameters) is computed once, at load.

Shapes on a GPU: a call is a pure function of `R`, `T` and `C`; `T` is 50 for every full window.

Source: speech.md 3.4.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from parley.models.minicpmo45.runtime import slot_attention
from parley.models.minicpmo45.runtime.attention import added
from parley.models.minicpmo45.runtime.layers import PackedLinear
from parley.models.minicpmo45.token2wav.convolution import FrameProduct
from parley.models.minicpmo45.token2wav.flow_shape import FlowShape
from parley.models.minicpmo45.token2wav.voice_pack import MEL_BINS

TIME_WIDTH = 256
"""Width of the sine/cosine code of time. Source: shape of `t_embedder.mlp.0`."""

CONV_FRAMES = 2
"""Number of past frames that a causal convolution of width 3 needs."""


@dataclass(slots=True, eq=False)
class Modulation:
    """Modulation of the network by the time of one Euler step.

    Args:
        blocks: per block shift, scale and gate of attention, feed-forward and convolution; shape
            (blocks, 9, W).
        final: shift and scale before the last projection, shape (2, W).
    """

    blocks: Tensor
    final: Tensor


@dataclass(slots=True, eq=False)
class Schedule:
    """Lengths of the Euler steps, and the modulations of their times."""

    steps: list[float]
    modulations: list[Modulation]

    @property
    def count(self) -> int:
        return len(self.steps)


@dataclass(slots=True, eq=False)
class EstimatorMemory:
    """History of all slots for one Euler step.

    Args:
        keys, values: shape (blocks, S, 2, C, H, head width), written in place.
        conv: shape (blocks, S, 2, 2, 2 frames, W): inputs of the two convolutions.
    """

    keys: Tensor
    values: Tensor
    conv: Tensor


@dataclass(slots=True, eq=False)
class Places:
    """Places in the history that a call's rows read and write.

    Args:
        slots: int64, shape (R,).
        first_slot: the first of consecutive slots, whose history is read without a copy; None if
            they are not consecutive.
        new: int64, shape (R, T): free places for the new frames.
        mask: bool, shape (2 R, 1, 1, reads): places with history or new frames; without a kernel,
            after `prepared`, the values that are added to scores.
        reads: number of places that are read.
        in_place: True if a kernel reads the slots in place.
        ends: further arguments of the kernel, the same for all blocks.
        sides: with conditions, without, or both.
    """

    slots: Tensor
    first_slot: int | None
    new: Tensor
    mask: Tensor
    reads: int
    in_place: bool = False
    ends: tuple[Tensor, Tensor, Tensor] | None = None
    sides: slice = field(default_factory=lambda: slice(2))

    def prepared(self, dtype: torch.dtype) -> Places:
        """The same, with the values that all blocks of all steps share, computed once."""
        if not self.in_place:
            return replace(self, mask=added(self.mask, dtype))
        sides = torch.arange(2, device=self.slots.device)
        lines = (2 * self.slots[:, None] + sides).flatten()
        last = torch.full_like(lines, self.reads - 1)[:, None].repeat(1, self.new.shape[1])
        return replace(self, ends=(lines, torch.zeros_like(lines), last))

    def side(self, side: int, rows: slice) -> Places:
        """One side of some of the rows; without a kernel."""
        first = None if self.first_slot is None else self.first_slot + rows.start
        mask = self.mask[2 * rows.start + side : 2 * rows.stop : 2]
        sides = slice(side, side + 1)
        return Places(self.slots[rows], first, self.new[rows], mask, self.reads, sides=sides)

    @property
    def rows(self) -> Tensor | slice:
        """The rows among the slots."""
        if self.first_slot is None:
            return self.slots
        return slice(self.first_slot, self.first_slot + self.slots.shape[0])

    def read(self, cache: Tensor) -> Tensor:
        """History of one block, shape (2 R, H, reads, head width)."""
        return cache[self.rows, self.sides, : self.reads].flatten(0, 1).transpose(1, 2)

    def attend(self, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Attention of queries (2 R, T, H, head width) over one block's history, in place; after
        `prepared`."""
        assert self.ends is not None
        lines, first, last = self.ends
        return slot_attention.attend(
            query,
            keys.flatten(0, 1).transpose(1, 2),
            values.flatten(0, 1).transpose(1, 2),
            lines,
            first=first,
            last=last,
            reads=self.reads,
            mask=self.mask[:, 0, 0],
        )

    def write(self, cache: Tensor, entries: Tensor) -> None:
        """Put new entries of shape (2 R, T, H, head width) into their places."""
        rows = torch.unflatten(entries, 0, (self.slots.shape[0], -1))
        sides = torch.arange(2, device=entries.device)[self.sides]
        places = (self.slots[:, None, None], sides[None, :, None], self.new[:, None, :])
        cache[places] = rows.to(cache.dtype)


class TimeEmbedder(nn.Module):
    """Encodes time in [0, 1] as a vector."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(TIME_WIDTH, width), nn.SiLU(), nn.Linear(width, width))

    def forward(self, t: Tensor) -> Tensor:
        half = TIME_WIDTH // 2
        rates = torch.exp(
            -math.log(10_000) * torch.arange(half, dtype=torch.float32, device=t.device) / half
        )
        angles = (t.float() * 1000)[:, None] * rates
        code = torch.cat([angles.cos(), angles.sin()], dim=-1)
        return self.mlp(code.to(next(self.parameters()).dtype))


class FrameAttention(nn.Module):
    """Attention of every new frame to all history and all new frames."""

    def __init__(self, shape: FlowShape) -> None:
        super().__init__()
        width, head_width = shape.estimator_width, shape.estimator_head_width
        self.heads, self.head_width = shape.estimator_heads, head_width
        inner = self.heads * head_width
        self.to_q = nn.Linear(width, inner)
        self.to_k = nn.Linear(width, inner)
        self.to_v = nn.Linear(width, inner)
        self.q_norm = nn.LayerNorm(head_width)
        self.k_norm = nn.LayerNorm(head_width)
        self.proj = nn.Linear(inner, width)

    def forward(self, x: Tensor, keys: Tensor, values: Tensor, places: Places) -> Tensor:
        """`x` has shape (2 R, T, W); caches are one block's."""
        shape = (*x.shape[:2], self.heads, self.head_width)
        q = self.q_norm(self.to_q(x).view(shape)).transpose(1, 2)
        k = self.k_norm(self.to_k(x).view(shape))
        v = self.to_v(x).view(shape)
        places.write(keys, k)
        places.write(values, v)
        if places.ends is not None and slot_attention.fits(x.shape[1], self.head_width):
            return self.proj(places.attend(q.transpose(1, 2), keys, values).flatten(2))
        read = places.read(keys).to(q.dtype), places.read(values).to(q.dtype)
        out = F.scaled_dot_product_attention(q, *read, attn_mask=places.mask)
        return self.proj(out.transpose(1, 2).flatten(2))


class FrameConv(nn.Module):
    """Two causal convolutions over frames with a norm and Mish between them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        # Items 0, 2, 5 and 7 of the published sequence only transpose; they have no weights.
        self.block = nn.ModuleDict(
            {
                "1": FrameProduct(width, 3),
                "3": nn.LayerNorm(width),
                "6": FrameProduct(width, 3),
            }
        )

    def forward(self, x: Tensor, past: Tensor) -> tuple[Tensor, Tensor]:
        """Shapes (2 R, T, W) and (2 R, 2 convolutions, 2 frames, W); returns the next past too."""
        first = torch.cat([past[:, 0], x], dim=1)
        y = F.mish(self.block["3"](self.block["1"](first)))
        second = torch.cat([past[:, 1], y], dim=1)
        y = self.block["6"](second)
        return y, torch.stack([first[:, -CONV_FRAMES:], second[:, -CONV_FRAMES:]], dim=1)


class FrameMlp(nn.Module):
    """Feed-forward with the tanh form of GELU."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.fc1: nn.Module = nn.Linear(width, inner)
        self.fc2 = nn.Linear(inner, width)

    def forward(self, x: Tensor) -> Tensor:
        if isinstance(self.fc1, PackedLinear):
            return self.fc2(self.fc1(x, "gelu"))
        return self.fc2(F.gelu(self.fc1(x), approximate="tanh"))


class TimeModulation(nn.Sequential):
    """SiLU and a projection of the time vector; named as in the checkpoint."""

    def __init__(self, width: int, parts: int) -> None:
        super().__init__(nn.SiLU(), nn.Linear(width, parts * width))


class EstimatorBlock(nn.Module):
    """Attention, convolution, feed-forward, each shifted, scaled and gated by time."""

    def __init__(self, shape: FlowShape) -> None:
        super().__init__()
        self.width = width = shape.estimator_width
        self.attn = FrameAttention(shape)
        self.conv = FrameConv(width)
        self.mlp = FrameMlp(width, shape.estimator_inner)
        self.adaLN_modulation = TimeModulation(width, 9)

    def forward(
        self,
        x: Tensor,
        time: Tensor,
        past: Tensor,
        keys: Tensor,
        values: Tensor,
        places: Places,
    ) -> tuple[Tensor, Tensor]:
        """`time` is this block's (9, W); returns the frames, in `x`'s place, and the convolutions'
        next past."""
        shift_a, scale_a, gate_a, shift_m, scale_m, gate_m, shift_c, scale_c, gate_c = time
        heard = self.attn(self._norm(x, shift_a, scale_a), keys, values, places)
        x.addcmul_(gate_a, heard)
        y, past = self.conv(self._norm(x, shift_c, scale_c), past)
        x.addcmul_(gate_c, y)
        return x.addcmul_(gate_m, self.mlp(self._norm(x, shift_m, scale_m))), past

    def modulate(self, code: Tensor) -> Tensor:
        """Shifts, scales and gates of a time, shape (9, W)."""
        modulated: Tensor = self.adaLN_modulation(code)
        return modulated.view(9, self.width)

    def _norm(self, x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
        """Normalise, then scale and shift, which have the role of a norm's own weights."""
        return F.layer_norm(x, (self.width,), scale, shift, eps=1e-6)


class FinalLayer(nn.Module):
    """Projects frames to mel bins."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.adaLN_modulation = TimeModulation(width, 2)
        self.linear = nn.Linear(width, MEL_BINS)


class Estimator(nn.Module):
    """Velocity of the mel at a time, with and without conditions."""

    def __init__(self, shape: FlowShape) -> None:
        super().__init__()
        self.width = width = shape.estimator_width
        self.t_embedder = TimeEmbedder(width)
        # The mel so far, the content, the speaker, the voice's prompt.
        self.in_proj = nn.Linear(4 * MEL_BINS, width)
        self.blocks = nn.ModuleList([EstimatorBlock(shape) for _ in range(shape.estimator_depth)])
        self.final_layer = FinalLayer(width)

    def _blocks(self) -> list[EstimatorBlock]:
        return [block for block in self.blocks if isinstance(block, EstimatorBlock)]

    def modulation(self, t: Tensor) -> Modulation:
        """Everything that depends on time alone; `t` has shape (1,).

        Scales come out as `1 + scale`, ready to multiply with.
        """
        if t.is_meta:
            # Nothing is computed: for operators on "meta", PyTorch imports its compiler, a second
            # of processor time that a memory plan does not need.
            blocks = self.in_proj.weight.new_empty(len(self.blocks), 9, self.width)
            return Modulation(blocks, blocks.new_empty(2, self.width))
        code = self.t_embedder(t)
        parts = [block.modulate(code) for block in self._blocks()]
        blocks = torch.stack(parts)
        blocks[:, [1, 4, 7]] += 1
        final = self.final_layer.adaLN_modulation(code).view(2, self.width).clone()
        final[1] += 1
        return Modulation(blocks, final)

    def conditions(self, mu: Tensor, speaker: Tensor, prompt: Tensor | None) -> Tensor:
        """The part of the input projection that is the same in all Euler steps.

        Args:
            mu: shape (R, T, 80); prompt: the same or None (zeros); speaker: shape (R, 80).

        Returns:
            Shape (2 R, T, W): with conditions, without, for each row.
        """
        bins = mu.shape[-1]
        weight, bias = self.in_proj.weight, self.in_proj.bias
        given = F.linear(mu, weight[:, bins : 2 * bins], bias)
        given = given + F.linear(speaker, weight[:, 2 * bins : 3 * bins])[:, None]
        if prompt is not None:
            given = given + F.linear(prompt, weight[:, 3 * bins :])
        without = bias.expand_as(given)
        return torch.stack([given, without], dim=1).flatten(0, 1)

    def forward(
        self,
        x: Tensor,
        conditions: Tensor,
        time: Modulation,
        memory: EstimatorMemory,
        places: Places,
    ) -> tuple[Tensor, Tensor]:
        """One evaluation.

        Args:
            x: shape (R, T, 80).
            conditions: from `conditions`, for the sides of `places`.

        Returns:
            Velocities of shape (R, sides, T, 80), and the convolutions' next past, shape (blocks,
            sides R, 2, 2, W).
        """
        past = memory.conv[:, places.rows, places.sides].flatten(1, 2)
        seen = F.linear(x, self.in_proj.weight[:, : x.shape[2]])
        h = seen.repeat_interleave(len(conditions) // len(x), dim=0) + conditions
        new_past: list[Tensor] = []
        for number, block in enumerate(self.blocks):
            keys, values = memory.keys[number], memory.values[number]
            h, kept = block(h, time.blocks[number], past[number], keys, values, places)
            new_past.append(kept)
        shift, scale = time.final
        h = F.layer_norm(h, (self.width,), scale, shift, eps=1e-6)
        velocity = torch.unflatten(self.final_layer.linear(h), 0, (len(x), -1))
        return velocity, torch.stack(new_past)


def euler_grid(steps: int) -> tuple[list[float], list[float]]:
    """Times and step lengths of `steps` Euler steps from 0 to 1, denser at 0. The time is summed up
    step by step in float32, as published, not looked up."""
    times = 1 - torch.cos(torch.linspace(0, 1, steps + 1, device="cpu") * 0.5 * torch.pi)
    t = times[0]
    starts: list[float] = []
    lengths: list[float] = []
    for end in times[1:]:
        length = end - t
        starts.append(float(t))
        lengths.append(float(length))
        t = t + length
    return starts, lengths
