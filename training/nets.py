"""The pocket model's parts as plain modules for training.

Mathematically the classes of `parley.models.minicpmo45`, with the checkpoint's tensor names; lean,
because a step on one CPU core is all overhead otherwise. `tests/training/test_nets.py` holds them
against transformers' own layers.

`B` batch, `T` tokens, `F` mel frames (100 Hz), `C` encoder frames (50 Hz), `P` patches, `D` width.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from training.shape import Shape


class _Rms(torch.autograd.Function):
    """Root-mean-square norm with its own backward: three times as fast on a CPU as the composite,
    which goes through float32 element by element."""

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
        mean = torch.linalg.vector_norm(x, dim=-1, keepdim=True).float().square() / x.shape[-1]
        inverse = (mean + 1e-6).rsqrt()
        normed = x * inverse.to(x.dtype)
        ctx.save_for_backward(normed, inverse, weight)
        return normed * weight.to(x.dtype)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[no-untyped-def]
        normed, inverse, weight = ctx.saved_tensors
        product = grad * normed
        by_weight = product.flatten(0, -2).sum(0, dtype=torch.float32).to(weight.dtype)
        along = (product @ weight.to(grad.dtype)).unsqueeze(-1) / normed.shape[-1]
        by_input = (grad * weight.to(grad.dtype) - normed * along) * inverse.to(grad.dtype)
        return by_input, by_weight


class RmsNorm(nn.Module):
    """Root-mean-square norm, eps 1e-6."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):
            return _Rms.apply(x, self.weight)


class CausalAttention(nn.Module):
    """Rotary causal attention; with `has_norms` as in Qwen3, without as in Llama."""

    def __init__(
        self, width: int, heads: int, kv_heads: int, head_dim: int, *, has_norms: bool
    ) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, head_dim
        self.q_proj = nn.Linear(width, heads * head_dim, bias=False)
        self.k_proj = nn.Linear(width, kv_heads * head_dim, bias=False)
        self.v_proj = nn.Linear(width, kv_heads * head_dim, bias=False)
        self.o_proj = nn.Linear(heads * head_dim, width, bias=False)
        self.has_norms = has_norms
        if has_norms:
            self.q_norm, self.k_norm = RmsNorm(head_dim), RmsNorm(head_dim)

    def forward(self, x: Tensor, rotation: tuple[Tensor, Tensor], cache: list | None) -> Tensor:
        batch, length, _ = x.shape
        q = self.q_proj(x).view(batch, length, self.heads, self.head_dim).transpose(1, 2)
        k = self.k_proj(x).view(batch, length, self.kv_heads, self.head_dim).transpose(1, 2)
        v = self.v_proj(x).view(batch, length, self.kv_heads, self.head_dim).transpose(1, 2)
        if self.has_norms:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k = rotate(q, rotation), rotate(k, rotation)
        past = 0
        if cache is not None:
            if cache:
                past = cache[0].shape[2]
                k, v = torch.cat([cache[0], k], 2), torch.cat([cache[1], v], 2)
            cache[:] = [k, v]
        mask = torch.ones(length, past + length, dtype=torch.bool, device=x.device).tril(past)
        if self.heads != self.kv_heads:
            k, v = (y.repeat_interleave(self.heads // self.kv_heads, 1) for y in (k, v))
        out = attend(q, k, v, mask)
        return self.o_proj(out.transpose(1, 2).reshape(batch, length, -1))


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """Softmax attention, (B, heads, T, head_dim). Spelled out on a CPU: for these short sequences
    two matrix products are several times faster there than the fused kernel's backward."""
    if q.device.type != "cpu":
        return functional.scaled_dot_product_attention(q, k, v.to(q.dtype), attn_mask=mask)
    batch, heads, length, width = q.shape
    bias = torch.zeros(mask.shape, dtype=q.dtype).masked_fill_(~mask, -1e4)
    bias = bias.expand(batch, heads, length, k.shape[2]).reshape(batch * heads, length, -1)
    q, k, v = (x.reshape(batch * heads, -1, x.shape[-1]) for x in (q, k, v))
    scores = torch.baddbmm(bias, q, k.transpose(1, 2), alpha=width**-0.5)
    out = torch.bmm(scores.softmax(-1, dtype=scores.dtype), v)
    return out.view(batch, heads, length, -1)


def rotation(positions: Tensor, head_dim: int, theta: float) -> tuple[Tensor, Tensor]:
    """Cosines and sines (B, 1, T, head_dim/2) for `positions` (B, T)."""
    steps = torch.arange(0, head_dim, 2, device=positions.device, dtype=torch.float32) / head_dim
    angles = positions[:, None, :, None].float() * theta**-steps
    return angles.cos(), angles.sin()


def rotate(x: Tensor, by: tuple[Tensor, Tensor]) -> Tensor:
    """Half-split rotary embedding of x (B, heads, T, head_dim)."""
    cos, sin = by[0].to(x.dtype), by[1].to(x.dtype)
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class GatedMlp(nn.Module):
    """SwiGLU."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(width, inner, bias=False)
        self.up_proj = nn.Linear(width, inner, bias=False)
        self.down_proj = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class DecoderLayer(nn.Module):
    """Pre-norm attention and MLP."""

    def __init__(
        self, width: int, heads: int, kv_heads: int, head_dim: int, inner: int, *, has_norms: bool
    ) -> None:
        super().__init__()
        self.self_attn = CausalAttention(width, heads, kv_heads, head_dim, has_norms=has_norms)
        self.mlp = GatedMlp(width, inner)
        self.input_layernorm = RmsNorm(width)
        self.post_attention_layernorm = RmsNorm(width)

    def forward(self, x: Tensor, by: tuple[Tensor, Tensor], cache: list | None) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), by, cache)
        return x + self.mlp(self.post_attention_layernorm(x))


class Decoder(nn.Module):
    """A stack of decoder layers: the body of the brain and of the mouth."""

    def __init__(
        self,
        *,
        width: int,
        layers: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
        inner: int,
        theta: float,
        has_norms: bool,
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            DecoderLayer(width, heads, kv_heads, head_dim, inner, has_norms=has_norms)
            for _ in range(layers)
        )
        self.norm = RmsNorm(width)
        self.head_dim, self.theta = head_dim, theta

    def forward(
        self, x: Tensor, positions: Tensor | None = None, caches: list[list] | None = None
    ) -> Tensor:
        if positions is None:
            past = caches[0][0].shape[2] if caches and caches[0] else 0
            positions = torch.arange(past, past + x.shape[1], device=x.device)[None]
        by = rotation(positions, self.head_dim, self.theta)
        x = low_precision(x)
        for index, layer in enumerate(self.layers):
            x = layer(x, by, None if caches is None else caches[index])
        return self.norm(x)

    def new_caches(self) -> list[list]:
        return [[] for _ in self.layers]


class Brain(nn.Module):
    """`llm.*`: embeddings, decoder, output layer. The output layer shares the embedding while
    training; the checkpoint stores both."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.model = Decoder(
            width=shape.hidden, layers=shape.layers, heads=shape.heads, kv_heads=shape.kv_heads,
            head_dim=shape.head_dim, inner=shape.mlp, theta=shape.rope_theta, has_norms=True,
        )  # fmt: skip
        self.model.embed_tokens = nn.Embedding(shape.vocab, shape.hidden)
        nn.init.normal_(self.model.embed_tokens.weight, std=0.02)

    @property
    def table(self) -> Tensor:
        return self.model.embed_tokens.weight

    def embed(self, ids: Tensor) -> Tensor:
        return self.model.embed_tokens(ids)

    def logits(self, hidden: Tensor) -> Tensor:
        return functional.linear(hidden, self.table)


class EarLayer(nn.Module):
    """A Whisper encoder layer."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.self_attn = nn.Module()
        self.self_attn.q_proj = nn.Linear(width, width)
        self.self_attn.k_proj = nn.Linear(width, width, bias=False)
        self.self_attn.v_proj = nn.Linear(width, width)
        self.self_attn.out_proj = nn.Linear(width, width)
        self.self_attn_layer_norm = LayerNorm(width)
        self.fc1, self.fc2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.final_layer_norm = LayerNorm(width)
        self.heads = heads

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        batch, length, width = x.shape
        y, attn = self.self_attn_layer_norm(x), self.self_attn
        q, k, v = (
            proj(y).view(batch, length, self.heads, -1).transpose(1, 2)
            for proj in (attn.q_proj, attn.k_proj, attn.v_proj)
        )
        out = attend(q, k, v, mask)
        x = x + attn.out_proj(out.transpose(1, 2).reshape(batch, length, width))
        return x + self.fc2(functional.gelu(self.fc1(self.final_layer_norm(x))))


class Ears(nn.Module):
    """`apm.*` and `audio_projection_layer.*`: mel (B, F, 80) to frames at 50 Hz and to language
    model embeddings at 10 Hz."""

    CHUNK = 50
    """Encoder frames of one second."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width = shape.ear_width
        self.apm = nn.Module()
        self.apm.conv1 = nn.Conv1d(shape.mel_bins, width, 3, padding=1)
        self.apm.conv2 = nn.Conv1d(width, width, 3, stride=2, padding=1)
        self.apm.embed_positions = nn.Embedding(1500, width)
        self.apm.embed_positions.weight.data = sinusoids(1500, width)
        self.apm.layers = nn.ModuleList(
            EarLayer(width, shape.ear_heads) for _ in range(shape.ear_layers)
        )
        self.apm.layer_norm = LayerNorm(width)
        self.audio_projection_layer = nn.Module()
        self.audio_projection_layer.linear1 = nn.Linear(width, shape.hidden)
        self.audio_projection_layer.linear2 = nn.Linear(shape.hidden, shape.hidden)
        self.pool = shape.pool

    def hear(
        self,
        mel: Tensor,
        frames: Tensor,
        *,
        is_chunked: Tensor | None = None,
        offsets: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Frames (B, C, D) after the last norm, and how many of them are real.

        Args:
            mel: (B, F, 80), right-padded.
            frames: (B,), real mel frames.
            is_chunked: (B,) bool; True: a frame sees only its own second and the past.
            offsets: (B,) first position of each row; 0 where absent.
        """
        x = functional.gelu(self.apm.conv1(mel.transpose(1, 2)))
        x = functional.gelu(self.apm.conv2(x)).transpose(1, 2)
        length = x.shape[1]
        steps = torch.arange(length, device=x.device)
        positions = steps[None] + (0 if offsets is None else offsets[:, None])
        x = low_precision(x + self.apm.embed_positions(positions.clamp(max=1499)))
        real = (frames - 1) // 2 + 1
        allowed = (steps[None] < real[:, None])[:, None, None, :]
        if is_chunked is not None:
            causal = steps[None, :] < (steps[:, None] // self.CHUNK + 1) * self.CHUNK
            allowed = allowed & (causal[None, None] | ~is_chunked[:, None, None, None])
        for layer in self.apm.layers:
            x = layer(x, allowed)
        return self.apm.layer_norm(x), real

    def embed(self, frames: Tensor) -> Tensor:
        """Frames (B, C, D) to embeddings (B, C // 5, hidden): projection, then mean of five."""
        proj = self.audio_projection_layer
        y = proj.linear2(functional.relu(proj.linear1(frames)))
        count = y.shape[1] // self.pool
        return y[:, : count * self.pool].unflatten(1, (count, self.pool)).mean(2)


class LayerNorm(nn.LayerNorm):
    """Layer norm that keeps a half-precision stream as it is."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):
            if x.device.type == "cpu":
                return super().forward(x)
            return super().forward(x.float()).to(x.dtype)


def low_precision(x: Tensor) -> Tensor:
    """The residual stream in autocast's type: half the memory traffic."""
    if torch.is_autocast_enabled(x.device.type):
        return x.to(torch.get_autocast_dtype(x.device.type))
    return x


def sinusoids(length: int, width: int) -> Tensor:
    """Whisper's position table."""
    step = math.log(10_000) / (width // 2 - 1)
    angles = torch.arange(length)[:, None] * torch.exp(-step * torch.arange(width // 2))[None]
    return torch.cat([angles.sin(), angles.cos()], 1)


class EyeLayer(nn.Module):
    """A SigLIP encoder layer."""

    def __init__(self, width: int, heads: int, inner: int) -> None:
        super().__init__()
        self.self_attn = nn.Module()
        for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
            setattr(self.self_attn, name, nn.Linear(width, width))
        self.layer_norm1 = LayerNorm(width, eps=1e-6)
        self.layer_norm2 = LayerNorm(width, eps=1e-6)
        self.mlp = nn.Module()
        self.mlp.fc1, self.mlp.fc2 = nn.Linear(width, inner), nn.Linear(inner, width)
        self.heads = heads

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        y, attn = self.layer_norm1(x), self.self_attn
        q, k, v = (
            proj(y).view(batch, length, self.heads, -1).transpose(1, 2)
            for proj in (attn.q_proj, attn.k_proj, attn.v_proj)
        )
        out = attend(q, k, v, torch.ones(1, 1, dtype=torch.bool, device=x.device))
        x = x + attn.out_proj(out.transpose(1, 2).reshape(batch, length, width))
        y = functional.gelu(self.mlp.fc1(self.layer_norm2(x)), approximate="tanh")
        return x + self.mlp.fc2(y)


class Eyes(nn.Module):
    """`vpm.*` and `resampler.*`: pictures of one size (B, 3, 14 h, 14 w) to (B, Q, hidden)."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width, hidden = shape.eye_width, shape.hidden
        self.side = shape.image_side // shape.patch
        self.vpm = nn.Module()
        self.vpm.embeddings = nn.Module()
        self.vpm.embeddings.patch_embedding = nn.Conv2d(3, width, shape.patch, shape.patch)
        self.vpm.embeddings.position_embedding = nn.Embedding(self.side**2, width)
        self.vpm.encoder = nn.Module()
        self.vpm.encoder.layers = nn.ModuleList(
            EyeLayer(width, shape.eye_heads, shape.eye_mlp) for _ in range(shape.eye_layers)
        )
        self.vpm.post_layernorm = LayerNorm(width, eps=1e-6)
        heads = hidden // 128
        self.resampler = nn.Module()
        self.resampler.query = nn.Parameter(torch.zeros(shape.queries, hidden))
        self.resampler.proj = nn.Parameter(torch.randn(hidden, hidden) * hidden**-0.5)
        self.resampler.kv_proj = nn.Linear(width, hidden, bias=False)
        self.resampler.attn = nn.MultiheadAttention(hidden, heads)
        for name in ("ln_q", "ln_kv", "ln_post"):
            setattr(self.resampler, name, LayerNorm(hidden, eps=1e-6))
        self._start_among_neighbours(shape)
        self._start_on_grid(shape)

    def _start_among_neighbours(self, shape: Shape) -> None:
        """Each patch begins by looking at those that are near and alike: positions as waves of two
        to eighty patches, as loud as the picture, and keys that are queries. From small random
        positions a shape of three patches is not found in the time there is."""
        width, heads, count = shape.eye_width, shape.eye_heads, shape.eye_width // 4
        waves = 1.2 * 16.0 ** -(torch.arange(count) / count)
        steps = torch.arange(self.side)[:, None] * waves
        line = torch.cat([steps.sin(), steps.cos()], 1)
        rows = line[:, None].expand(-1, self.side, -1)
        columns = line[None].expand(self.side, -1, -1)
        table = 0.6 * torch.cat([columns, rows], 2).flatten(0, 1)
        self.vpm.embeddings.position_embedding.weight.data = table
        share = torch.eye(width)[torch.cat([torch.arange(h, width, heads) for h in range(heads)])]
        for layer in self.vpm.encoder.layers:
            for projection in (layer.self_attn.q_proj, layer.self_attn.k_proj):
                projection.weight.data = 0.8 * share + 0.2 * projection.weight.data

    def _start_on_grid(self, shape: Shape) -> None:
        """Each query begins by looking at its own cell of a square grid: queries that must find
        their places by themselves were the bottleneck. Heads share out the position channels, so
        that each head knows both axes."""
        hidden, resampler = shape.hidden, self.resampler
        grid = math.isqrt(shape.queries)
        centers = ((torch.arange(grid) + 0.5) * self.side / grid - 0.5).tolist()
        resampler.query.data = torch.stack(
            [_position(x, y, hidden) for y in centers for x in centers]
        )
        heads = hidden // 128
        order = torch.cat([torch.arange(head, hidden, heads) for head in range(heads)])
        share = torch.eye(hidden)[order]
        weight = resampler.attn.in_proj_weight.data
        weight[:hidden] = 3.0 * share
        weight[hidden : 2 * hidden] = share
        resampler.ln_kv.weight.data.fill_(0.3)

    def patches(self, images: Tensor) -> Tensor:
        """Patch features (B, P, D) after the last norm."""
        x = self.vpm.embeddings.patch_embedding(images)
        height, width = x.shape[2:]
        ids = position_ids(height, width, self.side).to(x.device)
        x = x.flatten(2).transpose(1, 2) + self.vpm.embeddings.position_embedding(ids)
        x = low_precision(x)
        for layer in self.vpm.encoder.layers:
            x = layer(x)
        return self.vpm.post_layernorm(x)

    def resample(self, patches: Tensor, height: int, width: int) -> Tensor:
        """Patch features (B, h*w, D) to (B, queries, hidden)."""
        part = self.resampler
        values = part.ln_kv(part.kv_proj(patches)).transpose(0, 1)
        table = position_table(height, width, values.shape[-1]).to(values)
        keys = values + table.flatten(0, 1)[:, None]
        queries = part.ln_q(part.query)[:, None].expand(-1, patches.shape[0], -1).to(values.dtype)
        out = part.attn(queries, keys, values, need_weights=False)[0].transpose(0, 1)
        return part.ln_post(out) @ part.proj.to(out.dtype)

    def forward(self, images: Tensor) -> Tensor:
        height, width = images.shape[2] // 14, images.shape[3] // 14
        return self.resample(self.patches(images), height, width)


def position_ids(height: int, width: int, side: int) -> Tensor:
    """Row in the position table of each patch of an (h, w) picture, row-major."""
    bounds = torch.arange(1 / side, 1.0, 1 / side)

    def buckets(count: int) -> Tensor:
        step = torch.tensor(1, dtype=torch.int32) / torch.tensor(count, dtype=torch.int32)
        return torch.bucketize(torch.arange(0, 1 - 1e-6, step), bounds, right=True)

    return (buckets(height)[:, None] * side + buckets(width)).flatten()


def position_table(height: int, width: int, dim: int) -> Tensor:
    """Sines and cosines of column, then row: (h, w, dim)."""
    rows = [torch.stack([_position(x, y, dim) for x in range(width)]) for y in range(height)]
    return torch.stack(rows)


def _position(x: float, y: float, dim: int) -> Tensor:
    omega = 10_000.0 ** -(torch.arange(dim // 4) / (dim / 4))
    return torch.cat([(x * omega).sin(), (x * omega).cos(), (y * omega).sin(), (y * omega).cos()])


class Mouth(nn.Module):
    """`tts.*`: text and the brain's states to speech codes."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width = shape.mouth_width
        self.codes = shape.codes
        self.emb_text = nn.Embedding(shape.vocab, width)
        self.emb_code = nn.ModuleList([nn.Embedding(shape.codes + 1, width)])
        nn.init.normal_(self.emb_text.weight, std=0.5)
        nn.init.normal_(self.emb_code[0].weight, std=0.5)
        self.projector_semantic = nn.Module()
        self.projector_semantic.linear1 = nn.Linear(shape.hidden, width)
        self.projector_semantic.linear2 = nn.Linear(width, width)
        self.model = Decoder(
            width=width, layers=shape.mouth_layers, heads=shape.mouth_heads,
            kv_heads=shape.mouth_heads, head_dim=width // shape.mouth_heads,
            inner=shape.mouth_mlp, theta=10_000.0, has_norms=False,
        )  # fmt: skip
        self.head_code = nn.ModuleList(
            [nn.utils.parametrizations.weight_norm(nn.Linear(width, shape.codes + 1, bias=False))]
        )

    def condition(self, ids: Tensor, states: Tensor) -> Tensor:
        """Rows (T, D) for text `ids` (T,) with their own states (T, hidden)."""
        part = self.projector_semantic
        projected = part.linear2(functional.relu(part.linear1(states)))
        return self.emb_text(ids) + functional.normalize(projected, dim=-1)


class Pocket(nn.Module):
    """All parts, under the checkpoint's names."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.llm = Brain(shape)
        self.ears = Ears(shape)
        self.eyes = Eyes(shape)
        self.tts = Mouth(shape)

    def checkpoint(self) -> dict[str, Tensor]:
        """Tensors by their official names; the output layer is written out."""
        named: dict[str, Tensor] = {}
        for key, value in self.state_dict().items():
            for part in ("ears.", "eyes."):
                key = key.removeprefix(part)
            named[key] = value.detach().float()
        named["llm.lm_head.weight"] = named["llm.model.embed_tokens.weight"].clone()
        return named
