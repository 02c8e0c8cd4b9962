"""The language model: a small Llama with its state outside the weights, one row per conversation.

Shapes: `T` new tokens of one row, `P` tokens already in its cache, `D` width, `H` heads, `K`
key-value heads, `V` vocabulary. Rows are run one after the other: with dynamic int8 scales, a row
in a batch would depend on the other rows, and at this size batching on a CPU gains nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from parley.models.cascade.int8 import Int8Linear

MATRICES = ("qkv", "out", "gate_up", "down")
"""Names of a layer's matrices."""


@dataclass(frozen=True, slots=True)
class LlamaShape:
    """Sizes; the defaults are SmolLM2-135M's with the pruned vocabulary."""

    vocabulary: int = 16384
    width: int = 576
    layers: int = 30
    heads: int = 9
    kv_heads: int = 3
    hidden: int = 1536
    norm_eps: float = 1e-5
    rope_theta: float = 100_000.0

    @property
    def head_width(self) -> int:
        return self.width // self.heads


def row_bytes(shape: LlamaShape, tokens: int) -> int:
    """Size of a conversation's keys and values in bytes."""
    return shape.layers * 2 * shape.kv_heads * shape.head_width * 4 * tokens


class Norm(nn.Module):
    """Root mean square normalisation."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return functional.rms_norm(x, (x.shape[-1],), self.weight, self.eps)


class Layer(nn.Module):
    """Attention and a gated layer; `qkv` and `gate_up` are concatenated matrices."""

    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        inner = shape.heads * shape.head_width
        self.before = Norm(shape.width, shape.norm_eps)
        self.qkv: nn.Module = nn.Linear(
            shape.width, inner + 2 * shape.kv_heads * shape.head_width, bias=False
        )
        self.out: nn.Module = nn.Linear(inner, shape.width, bias=False)
        self.between = Norm(shape.width, shape.norm_eps)
        self.gate_up: nn.Module = nn.Linear(shape.width, 2 * shape.hidden, bias=False)
        self.down: nn.Module = nn.Linear(shape.hidden, shape.width, bias=False)


class Cache:
    """Keys and values of one row: (L, 2, K, capacity, head width), grown in steps."""

    STEP = 256

    def __init__(self, shape: LlamaShape) -> None:
        self.shape = shape
        self.length = 0
        self._room = torch.empty(0)
        self._capacity = 0

    def reserve(self, tokens: int) -> None:
        """Make room for `tokens` in total; keeps the contents."""
        if tokens <= self._capacity:
            return
        shape = self.shape
        capacity = -(-tokens // self.STEP) * self.STEP
        room = torch.zeros(shape.layers, 2, shape.kv_heads, capacity, shape.head_width)
        if self.length:
            room[:, :, :, : self.length] = self._room[:, :, :, : self.length]
        self._room, self._capacity = room, capacity

    def put(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Append (K, T, W); returns the keys and values so far (K, P + T, W)."""
        stop = self.length + key.shape[1]
        self._room[layer, 0, :, self.length : stop] = key
        self._room[layer, 1, :, self.length : stop] = value
        return self._room[layer, 0, :, :stop], self._room[layer, 1, :, :stop]

    def cut(self, length: int) -> None:
        """Drop everything from `length` on."""
        assert length <= self.length
        self.length = length

    @property
    def nbytes(self) -> int:
        return self._room.nbytes


class Llama(nn.Module):
    """The network; see the module's docstring. The output matrix is that of the embedding."""

    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        self.shape = shape
        # Weights are always read from files. Drawing random ones on the meta device, on which
        # loading builds the network, would import torch's compiler, which takes seconds at every
        # start.
        self.embed = nn.Embedding(
            shape.vocabulary, shape.width, _weight=torch.empty(shape.vocabulary, shape.width)
        )
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = Norm(shape.width, shape.norm_eps)
        self.head: nn.Module | None = None
        half = shape.head_width // 2
        steps = torch.arange(half, device="cpu").double() / half
        speeds = shape.rope_theta**-steps
        self._speeds = speeds
        self._waves = torch.empty(0, device="cpu")

    def waves(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Cosines and sines of positions (stop - start, W / 2)."""
        if self._waves.numel() == 0 or self._waves.shape[1] < stop:
            angles = torch.arange(max(1024, 2 * stop)).double()[:, None] * self._speeds
            self._waves = torch.stack((angles.cos(), angles.sin())).float()
        return self._waves[0, start:stop], self._waves[1, start:stop]

    def turned(self, layer: Layer, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """Rotated query and key of inputs (T, D) together (H + K, T, W), and value (K, T, W)."""
        shape = self.shape
        mixed = layer.qkv(x).view(x.shape[0], -1, shape.head_width).transpose(0, 1)
        both = shape.heads + shape.kv_heads
        return turn(mixed[:both], cos, sin), mixed[both:]

    @torch.inference_mode()
    def run(self, ids: list[int], cache: Cache) -> Tensor:
        """Append tokens to a row; returns the logits (V,) after the last one.

        The cache's length is advanced at the very end: a call that raises leaves the valid part of
        the cache unchanged.
        """
        return self._append(ids, cache, 1)[0]

    @torch.inference_mode()
    def run_each(self, ids: list[int], cache: Cache, wanted: int) -> Tensor:
        """Like `run`, with the logits after each of the last `wanted` tokens (wanted, V)."""
        return self._append(ids, cache, wanted)

    def _append(self, ids: list[int], cache: Cache, wanted: int) -> Tensor:
        start, count = cache.length, len(ids)
        heads = self.shape.heads
        cache.reserve(start + count)
        cos, sin = self.waves(start, start + count)
        x = self.embed(torch.tensor(ids))
        mask = None
        if count > 1:
            mask = torch.ones(count, start + count, dtype=torch.bool).tril(start)
        for index, layer in enumerate(self.layers):
            assert isinstance(layer, Layer)
            turned, value = self.turned(layer, layer.before(x), cos, sin)
            keys, values = cache.put(index, turned[heads:], value)
            mixed = functional.scaled_dot_product_attention(
                turned[None, :heads],
                keys[None],
                values[None],
                attn_mask=mask,
                enable_gqa=True,
            )[0]
            x = x + layer.out(mixed.transpose(0, 1).reshape(count, -1))
            gate, up = layer.gate_up(layer.between(x)).chunk(2, -1)
            x = x + layer.down(functional.silu(gate) * up)
        last = self.norm(x[-wanted:])
        logits: Tensor = self.head(last) if self.head is not None else last @ self.embed.weight.T
        cache.length = start + count
        return logits


def turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply rotary positions: (..., T, W) by (T, W / 2)."""
    left, right = x.chunk(2, -1)
    return torch.cat((left * cos - right * sin, right * cos + left * sin), -1)


def quantize(model: Llama) -> None:
    """Quantise all matrices to int8; the embedding stays float, the head becomes int8."""
    for layer in model.layers:
        assert isinstance(layer, Layer)
        for name in MATRICES:
            setattr(layer, name, Int8Linear.of(getattr(layer, name).weight.detach()))
    model.head = Int8Linear.of(model.embed.weight.detach())


def fill(model: Llama, tensors: Mapping[str, Tensor]) -> None:
    """Load float tensors named as the module's own."""
    model.load_state_dict(dict(tensors), strict=True)
    model.eval().requires_grad_(False)
