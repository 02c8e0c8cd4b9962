"""Whisper (tiny.en as shipped) in plain torch, int8.

Shapes: `N` samples at 16 kHz, `F` mel frames of 10 ms, `E` = F / 2 encoder frames, `D` width,
`T` tokens. One utterance at a time; `Recognition` works in bounded steps, so that an engine can do
other work between them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from parley.media.mel_filters import whisper_features
from parley.media.pcm import Samples
from parley.models.cascade.int8 import Int8Linear, quantized

RATE_HZ = 16_000
HOP, WINDOW, MELS = 160, 400, 80


@dataclass(frozen=True, slots=True)
class WhisperShape:
    """Sizes; the defaults are tiny.en's."""

    vocabulary: int = 51864
    width: int = 384
    layers: int = 4
    heads: int = 6
    window_s: float = 30.0


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Text tokens and special tokens.

    Args:
        pieces: bytes of each text token, in the order of the (pruned) ids.
        start: tokens that start every transcript.
        end: the token that ends it.
        silence: the token for audio without speech.
        banned: ids that are never chosen.
        leading: ids that may not come first (blank, and the end).
    """

    pieces: tuple[bytes, ...]
    start: tuple[int, ...]
    end: int
    silence: int
    banned: tuple[int, ...]
    leading: tuple[int, ...]
    _tokens: dict[bytes, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        tokens = {piece: token for token, piece in reversed(list(enumerate(self.pieces)))}
        object.__setattr__(self, "_tokens", tokens)

    def text(self, ids: list[int]) -> str:
        return b"".join(self.pieces[one] for one in ids if one < len(self.pieces)).decode(
            "utf-8", "replace"
        )

    def ids(self, text: str) -> list[int]:
        """The tokens of a text: the fewest pieces, and of equally few, the most frequent ones.

        The network writes " cheetah" as " che", "et", "ah", and considers " che", "eta", "h" e^24
        times less likely.
        """
        words = re.findall(r" ?[^ ]+", text)
        return [token for word in words for token in self._split(word.encode())]

    def _split(self, word: bytes) -> tuple[int, ...]:
        # For each position: number of pieces, sum of their tokens, the tokens.
        ways: list[tuple[int, int, tuple[int, ...]] | None] = [(0, 0, ())]
        for end in range(1, len(word) + 1):
            pieces = ((way, self._tokens.get(word[start:end])) for start, way in enumerate(ways))
            longer = (
                (way[0] + 1, way[1] + token, (*way[2], token))
                for way, token in pieces
                if way is not None and token is not None
            )
            ways.append(min(longer, default=None))
        assert ways[-1] is not None
        return ways[-1][2]


class Attention(nn.Module):
    """Multi-head attention."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q: nn.Module = nn.Linear(width, width)
        self.k: nn.Module = nn.Linear(width, width, bias=False)
        self.v: nn.Module = nn.Linear(width, width)
        self.out: nn.Module = nn.Linear(width, width)

    def cut(self, x: Tensor) -> Tensor:
        """(T, D) as (H, T, W)."""
        return x.view(x.shape[0], self.heads, -1).transpose(0, 1)

    def scores(self, x: Tensor, keys: Tensor) -> Tensor:
        """Attention scores of inputs (T, D) and keys (H, S, W), before the softmax (H, T, S)."""
        query = self.cut(self.q(x))
        result: Tensor = query @ keys.transpose(1, 2) / query.shape[-1] ** 0.5
        return result

    def mix(self, x: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Attention of inputs (T, D) to keys and values (H, S, W)."""
        query = self.cut(self.q(x))
        mixed = functional.scaled_dot_product_attention(query[None], keys[None], values[None])[0]
        result: Tensor = self.out(mixed.transpose(0, 1).reshape(x.shape))
        return result


class Block(nn.Module):
    """A layer of the encoder or, with `has_cross`, of the decoder."""

    def __init__(self, width: int, heads: int, *, has_cross: bool) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.cross_norm = nn.LayerNorm(width) if has_cross else None
        self.cross = Attention(width, heads) if has_cross else None
        self.norm = nn.LayerNorm(width)
        self.up: nn.Module = nn.Linear(width, 4 * width)
        self.down: nn.Module = nn.Linear(4 * width, width)

    def think(self, x: Tensor) -> Tensor:
        result: Tensor = x + self.down(functional.gelu(self.up(self.norm(x))))
        return result


class Whisper(nn.Module):
    """The network. Parameter names are ours; `training/cascade/parts.py` maps them."""

    def __init__(self, shape: WhisperShape) -> None:
        super().__init__()
        self.shape = shape
        width = shape.width
        self.conv1 = nn.Conv1d(MELS, width, 3, padding=1)
        self.conv2 = nn.Conv1d(width, width, 3, stride=2, padding=1)
        self.places = nn.Parameter(torch.zeros(1500, width))
        self.encoder = nn.ModuleList(
            Block(width, shape.heads, has_cross=False) for _ in range(shape.layers)
        )
        self.encoder_norm = nn.LayerNorm(width)
        self.embed = nn.Embedding(
            shape.vocabulary, width, _weight=torch.empty(shape.vocabulary, width)
        )
        self.text_places = nn.Parameter(torch.zeros(448, width))
        self.decoder = nn.ModuleList(
            Block(width, shape.heads, has_cross=True) for _ in range(shape.layers)
        )
        self.decoder_norm = nn.LayerNorm(width)
        self.head: nn.Module | None = None

    def quantize(self) -> None:
        """Quantise matrices to int8; convolutions and the embedding stay."""
        for module in list(self.modules()):
            for name, child in list(module.named_children()):
                if isinstance(child, nn.Linear):
                    setattr(module, name, quantized(child))
        self.head = Int8Linear.of(self.embed.weight.detach())

    @torch.inference_mode()
    def begin(self, mel: Tensor) -> Tensor:
        """Frames (80, F) to the encoder's input (E, D)."""
        x = functional.gelu(self.conv1(mel[None]))
        x = functional.gelu(self.conv2(x))[0].T
        return x + self.places[: x.shape[0]]

    @torch.inference_mode()
    def encode(self, x: Tensor, layer: int) -> Tensor:
        """Run one encoder layer; the last one also normalises."""
        block = self.encoder[layer]
        assert isinstance(block, Block)
        own = block.attention_norm(x)
        attention = block.attention
        x = x + attention.mix(own, attention.cut(attention.k(own)), attention.cut(attention.v(own)))
        x = block.think(x)
        return self.encoder_norm(x) if layer == len(self.encoder) - 1 else x

    @torch.inference_mode()
    def listen(self, encoded: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Keys and values of the audio for each decoder layer."""
        kept = []
        for block in self.decoder:
            assert isinstance(block, Block)
            assert block.cross is not None
            kept.append((
                block.cross.cut(block.cross.k(encoded)), block.cross.cut(block.cross.v(encoded))
            ))  # fmt: skip
        return kept

    @torch.inference_mode()
    def write(
        self,
        ids: list[int],
        start: int,
        past: list[tuple[Tensor, Tensor]],
        heard: list[tuple[Tensor, Tensor]],
        looks: list[Tensor] | None = None,
    ) -> Tensor:
        """Append tokens; extends `past` in place. Returns the logits after the last one (V,).

        Args:
            looks: receives `Attention.scores` of the audio for each layer.
        """

        def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            if layer < len(past):
                key = torch.cat((past[layer][0], key), 1)
                value = torch.cat((past[layer][1], value), 1)
                past[layer] = (key, value)
            else:
                past.append((key, value))
            mask = None
            if len(ids) > 1:
                mask = torch.ones(len(ids), key.shape[1], dtype=torch.bool).tril(start)
            return functional.scaled_dot_product_attention(
                query[None], key[None], value[None], attn_mask=mask
            )[0]

        x = self.embed(torch.tensor(ids)) + self.text_places[start : start + len(ids)]
        return self._logits(self._decode(x, heard, attend, looks)[-1:])[0]

    @torch.inference_mode()
    def likelihoods(
        self, start: tuple[int, ...], texts: list[list[int]], heard: list[tuple[Tensor, Tensor]]
    ) -> Tensor:
        """Log probability of each of several texts in the same audio, regardless of how they
        continue (R,).

        Args:
            start: see `Vocabulary`.
        """
        longest = max(map(len, texts))
        padded = torch.tensor([[*start, *ids, *[0] * (longest - len(ids))] for ids in texts])
        rows, length = padded.shape

        def each(x: Tensor) -> Tensor:
            return x.view(len(x), rows, length, -1).transpose(0, 1)

        def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            mixed = functional.scaled_dot_product_attention(
                each(query), each(key), each(value), is_causal=True
            )
            return mixed.transpose(0, 1).reshape(query.shape)

        x = (self.embed(padded) + self.text_places[:length]).flatten(0, 1)
        x = self._decode(x, heard, attend).view(rows, length, -1)[:, len(start) - 1 : -1]
        chances = torch.log_softmax(self._logits(x.flatten(0, 1)).float(), -1).view(
            *x.shape[:2], -1
        )
        chosen = chances.gather(-1, padded[:, len(start) :, None])[..., 0]
        is_there = torch.arange(longest) < torch.tensor(list(map(len, texts)))[:, None]
        return (chosen * is_there).sum(1)

    def _decode(
        self,
        x: Tensor,
        heard: list[tuple[Tensor, Tensor]],
        attend: Callable[[int, Tensor, Tensor, Tensor], Tensor],
        looks: list[Tensor] | None = None,
    ) -> Tensor:
        """Run the decoder's layers (T, D).

        Args:
            attend: attention to the written tokens, from a layer, queries, keys and values (H, T,
                W).
        """
        for layer, block in enumerate(self.decoder):
            assert isinstance(block, Block)
            assert block.cross is not None
            assert block.cross_norm is not None
            own = block.attention_norm(x)
            attention = block.attention
            parts = (attention.cut(part(own)) for part in (attention.q, attention.k, attention.v))
            x = x + attention.out(attend(layer, *parts).transpose(0, 1).reshape(x.shape))
            asked = block.cross_norm(x)
            if looks is not None:
                looks.append(block.cross.scores(asked, heard[layer][0]))
            x = block.think(x + block.cross.mix(asked, *heard[layer]))
        return x

    def _logits(self, x: Tensor) -> Tensor:
        """Logits after each token (T, V)."""
        last = self.decoder_norm(x)
        logits: Tensor = self.head(last) if self.head is not None else last @ self.embed.weight.T
        return logits


def log_mel(samples: Samples, window_s: float) -> Tensor:
    """Log-mel frames of audio padded to `window_s` (80, F), scaled as Whisper expects."""
    count = round(window_s * RATE_HZ)
    padded = np.zeros(count + WINDOW, np.float32)
    kept = samples[:count]
    padded[WINDOW // 2 : WINDOW // 2 + len(kept)] = kept
    padded[: WINDOW // 2] = padded[WINDOW // 2 + 1 : WINDOW + 1][::-1]
    return torch.from_numpy(whisper_features(padded, count // HOP))
