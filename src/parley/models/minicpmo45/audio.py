"""Hearing: samples to log-mel frames, frames to encoder states, states to context tokens.

Three ways of hearing exist, and the same sound gives different numbers in each: whole clips with a
one-second chunk mask (chat, reference voice), whole clips with full attention (a finished user
turn), and a live stream with cached keys and values (duplex). Composed on `transformers`' Whisper
encoder layers; `WhisperEncoder.forward` itself insists on 30 s, ignores masks and has no cache.

Shapes: `N` pieces, `M` mel bins, `F` mel frames (100 per second), `C` encoder frames (50 per
second), `Da` encoder width, `H` width of the language model. Source: model.md 6 and 7.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import WhisperConfig
from transformers.audio_utils import mel_filter_bank
from transformers.models.whisper.modeling_whisper import WhisperEncoderLayer

from parley.models.minicpmo45.attention import FusedAttention
from parley.models.minicpmo45.caches import SlotCache, Span

Samples = npt.NDArray[np.float32]
Floor = Literal["dynamic", "fixed"]
"""The log floor: 8 below the sound's loudest bin, or -10 always. Source: model.md 6.2."""

RATE_HZ = 16_000
HOP = 160
N_FFT = 400
PIECE_SAMPLES = 30 * RATE_HZ
"""Longest piece the encoder sees at once."""
FIRST_LIVE_SAMPLES = 16_560
"""A live stream's first chunk is padded with silence on the left up to this (1035 ms)."""
FIRST_FED_SAMPLES = 16_480
"""... of which the first unit consumes this much: 1035 ms, down to a whole hop of frames."""
LIVE_SAMPLES = 16_000
"""Every later unit."""

_ATTENTION = FusedAttention()


def token_count(samples: int, pool_step: int = 5) -> int:
    """Context tokens of a clip of this many samples."""
    return encoder_frames(math.ceil(samples / HOP)) // pool_step


def encoder_frames(mel_frames: int) -> int:
    """Length after the strided convolution."""
    return (mel_frames - 1) // 2 + 1


# ------------------------------------------------------------------------------------------ mel


class MelExtractor:
    """Whisper's log-mel features, without hidden state."""

    def __init__(self, bins: int = 80) -> None:
        filters = mel_filter_bank(
            num_frequency_bins=1 + N_FFT // 2,
            num_mel_filters=bins,
            min_frequency=0.0,
            max_frequency=RATE_HZ / 2,
            sampling_rate=RATE_HZ,
            norm="slaney",
            mel_scale="slaney",
        )
        self.bins = bins
        self._filters = torch.from_numpy(filters.T.copy()).float()
        self._window = torch.hann_window(N_FFT)

    def log_mel(self, samples: Samples) -> Tensor:
        """log10 of the mel power before any floor but 1e-10; (M, len // 160).

        Centred frames with reflection at both ends, so at least 201 samples are needed.
        """
        spectrum = torch.stft(
            torch.from_numpy(np.ascontiguousarray(samples)),
            N_FFT,
            HOP,
            window=self._window,
            return_complex=True,
        )
        power = (spectrum[..., :-1].abs() ** 2).contiguous()
        return torch.clamp(self._filters @ power, min=1e-10).log10()

    def whole(self, samples: Samples, floor: Floor = "dynamic") -> Tensor:
        """Features of one piece of at most 30 s, (M, ceil(len / 160)).

        Equal to padding with silence to 30 s and cutting off the padding: silence never raises the
        loudest bin, and only the frames around the end see it.
        """
        if len(samples) > PIECE_SAMPLES:
            raise ValueError(f"a piece holds at most {PIECE_SAMPLES} samples")
        frames = math.ceil(len(samples) / HOP)
        padded = np.zeros(min(PIECE_SAMPLES, (frames + 4) * HOP), np.float32)
        padded[: len(samples)] = samples
        return scale(self.log_mel(padded), floor)[:, :frames]


def scale(log_mel: Tensor, floor: Floor) -> Tensor:
    """Apply the floor, then map to about [-1, 1.5]."""
    if floor == "dynamic":
        log_mel = torch.maximum(log_mel, log_mel.max() - 8.0)
    else:
        log_mel = torch.clamp(log_mel, min=-10.0)
    return (log_mel + 4.0) / 4.0


@dataclass(frozen=True, slots=True)
class LiveMelOptions:
    """How a live stream becomes frames. Source: model.md 6.5.

    Args:
        redundancy_frames: extra frames on both sides of a unit: 2 in duplex, 0 in plain streaming.
        slide_at_samples, slide_by_samples: the buffer forgets its oldest part when it reaches the
            first length.
        dynamic_from_samples: buffer length from which the floor follows the loudest bin.
    """

    redundancy_frames: int = 2
    core_frames: int = 100
    slide_at_samples: int = 30 * RATE_HZ
    slide_by_samples: int = 10 * RATE_HZ
    dynamic_from_samples: int = 5 * RATE_HZ


@dataclass(frozen=True, slots=True, eq=False)
class LiveMel:
    """A stream's sample buffer and counters. Immutable: `push` gives the next state, so an earlier
    one can be kept as a mark at no cost.

    Frame indices are global, counted from the stream's beginning.

    Args:
        samples: buffered samples, (n,).
        base_frame: index of the buffer's first frame.
        next_frame: next core frame to give out.
        pushed_samples, pushed_chunks: counters.
        inner: raw log-mel of the buffer's frames that touch no edge, (M, k); the first of them is
            frame `base_frame + 2`.
    """

    options: LiveMelOptions = LiveMelOptions()
    samples: Samples = field(default_factory=lambda: np.zeros(0, np.float32))
    base_frame: int = 0
    next_frame: int = 0
    pushed_samples: int = 0
    pushed_chunks: int = 0
    dropped_samples: int = 0
    inner: Tensor | None = None

    @property
    def chunk_samples(self) -> int:
        """How much the next push should bring."""
        return FIRST_FED_SAMPLES if self.pushed_chunks == 0 else LIVE_SAMPLES

    @property
    def frames(self) -> int:
        """Frames in the buffer."""
        return len(self.samples) // HOP

    @property
    def stable_frames(self) -> int:
        """Frames in the buffer that no future sample can change."""
        return min(self.frames, (len(self.samples) - N_FFT // 2) // HOP + 1)

    @property
    def floor(self) -> Floor:
        """The floor in force for the buffer as it is."""
        return "fixed" if len(self.samples) < self.options.dynamic_from_samples else "dynamic"

    def push(
        self, samples: Samples, extractor: MelExtractor, *, last: bool = False
    ) -> tuple[LiveMel, Tensor]:
        """Take samples in; give the next state and the frames that became final, (M, f), f >= 0.

        Raises:
            ValueError: fewer than one analysis window is buffered.
        """
        options = self.options
        buffer = np.concatenate([self.samples, samples])
        base, inner, dropped = self.base_frame, self.inner, self.dropped_samples
        if len(buffer) >= options.slide_at_samples:
            keep = min(RATE_HZ, len(buffer) - options.slide_by_samples)
            away = min(options.slide_by_samples, len(buffer) - keep) // HOP * HOP
            buffer = buffer[away:].copy()
            base += away // HOP
            dropped += away
            inner = None if inner is None else inner[:, away // HOP :]
        if len(buffer) < N_FFT:
            raise ValueError(f"a live stream needs {N_FFT} samples, has {len(buffer)}")
        state = replace(
            self,
            samples=buffer,
            base_frame=base,
            pushed_samples=self.pushed_samples + len(samples),
            pushed_chunks=self.pushed_chunks + 1,
            dropped_samples=dropped,
            inner=None,
        )
        log_mel, inner = _all_frames(buffer, inner, extractor)
        begin = self.next_frame
        end = begin + options.core_frames
        margin = options.redundancy_frames
        if not last and base + state.stable_frames < end + margin:
            return replace(state, inner=inner), log_mel[:, :0]
        mel = scale(log_mel, state.floor)
        first = max(0, max(0, begin - margin) - base)
        emitted = mel[:, first : min(mel.shape[1], max(0, end + margin - base))]
        return replace(state, inner=inner, next_frame=end), emitted

    def rest(self, extractor: MelExtractor) -> Tensor:
        """Whatever has not been given out, as if the stream ended here."""
        mel = scale(extractor.log_mel(self.samples), self.floor)
        return mel[:, max(0, self.next_frame - self.base_frame) :]


def _all_frames(
    buffer: Samples, inner: Tensor | None, extractor: MelExtractor
) -> tuple[Tensor, Tensor]:
    """Raw log-mel of the whole buffer, computing only what is not known: new frames, and the few
    at both ends that see the reflected edge."""
    total = len(buffer) // HOP
    inner_end = (len(buffer) - N_FFT // 2) // HOP + 1  # first frame that sees the right edge
    known = 0 if inner is None else inner.shape[1]
    if inner is None or total < 16:
        full = extractor.log_mel(buffer)
        return full, full[:, 2 : max(2, inner_end)]
    # A cut that starts two frames early reproduces every frame from the third on.
    start = known + 2 - 2
    tail = extractor.log_mel(buffer[start * HOP :])[:, 2:]
    head = extractor.log_mel(buffer[: 8 * HOP])[:, :2]
    full = torch.cat((head, inner, tail), dim=1)
    return full, full[:, 2 : max(2, inner_end)]


# -------------------------------------------------------------------------------------- encoder


class AudioEncoder(nn.Module):
    """Whisper's encoder with masks and a cache. Parameter names are those below `apm.`."""

    def __init__(self, config: WhisperConfig) -> None:
        super().__init__()
        width = config.d_model
        self.conv1 = nn.Conv1d(config.num_mel_bins, width, kernel_size=3, padding=1)
        self.conv2 = nn.Conv1d(width, width, kernel_size=3, stride=2, padding=1)
        self.embed_positions = nn.Embedding(config.max_source_positions, width)
        self.layers = nn.ModuleList(
            [WhisperEncoderLayer(config) for _ in range(config.encoder_layers)]
        )
        self.layer_norm = nn.LayerNorm(width)
        self.heads = config.encoder_attention_heads
        self.head_dim = width // config.encoder_attention_heads
        self.positions = config.max_source_positions

    def front(self, mel: Tensor) -> Tensor:
        """Mel (N, M, F) through the convolutions to (N, C, Da)."""
        x = mel.to(self.conv1.weight.device, self.conv1.weight.dtype)
        x = F.gelu(self.conv1(x))
        x = F.gelu(self.conv2(x))
        return x.transpose(1, 2)

    def whole(
        self,
        mel: Tensor,
        lengths: Sequence[int],
        chunk_frames: int,
        layer_states: list[Tensor] | None = None,
    ) -> Tensor:
        """Encode whole pieces that belong together, (N, M, Fmax) to (N, Cmax, Da).

        Args:
            lengths: valid mel frames per piece.
            chunk_frames: 0 for full attention; else a frame sees its own chunk and all before.
        """
        x = self.front(mel)
        x = x + self.embed_positions.weight[: x.shape[1]]
        if layer_states is not None:
            layer_states.append(x)
        mask = _whole_mask(lengths, x, chunk_frames)
        for layer in self.layers:
            x = layer(x, mask)
            if layer_states is not None:
                layer_states.append(x)
        x = self.layer_norm(x)
        if layer_states is not None:
            layer_states[-1] = x
        return x

    def live(
        self, mel: Tensor, rows: Sequence[int], cache: SlotCache, *, trim: tuple[int, int]
    ) -> tuple[Tensor, list[Span]]:
        """Encode the next chunk of several streams, (N, M, F) to (N, C, Da), extending their cache.

        Every new frame sees everything cached and its own chunk in both directions. The rows'
        lengths do not change: `cache.commit` the returned spans when the chunk counts.

        Args:
            rows: cache row of each stream.
            trim: encoder frames to cut off left and right after the convolutions.
        """
        x = self.front(mel)
        left, right = trim
        right = 0 if left + right >= x.shape[1] else right
        x = x[:, left : x.shape[1] - right]
        count = x.shape[1]
        spans = [Span(row, cache.lengths[row], count) for row in rows]
        last = self.positions - 1
        places = torch.tensor(
            [[min(span.start + step, last) for step in range(count)] for span in spans]
        )
        x = x + self.embed_positions(places.to(x.device))
        for index, layer in enumerate(self.layers):
            x = self._live_layer(index, layer, x, spans, cache)
        return self.layer_norm(x), spans

    def _live_layer(
        self, index: int, layer: Any, x: Tensor, spans: Sequence[Span], cache: SlotCache
    ) -> Tensor:
        attention = layer.self_attn
        normed = layer.self_attn_layer_norm(x)

        def split(projected: Tensor) -> Tensor:
            return projected.view(*projected.shape[:2], self.heads, self.head_dim).transpose(1, 2)

        query = split(attention.q_proj(normed))
        keys = split(attention.k_proj(normed))
        values = split(attention.v_proj(normed))
        heard = torch.empty_like(query)
        for place, span in enumerate(spans):
            cache.write(index, span, keys[place], values[place])
            seen = cache.view(index, span.row, span.end)
            heard[place] = _ATTENTION.one(query[place], *seen, start=None)
        x = x + attention.out_proj(heard.transpose(1, 2).reshape(*x.shape))
        hidden = layer.fc1(layer.final_layer_norm(x))
        return x + layer.fc2(layer.activation_fn(hidden))


def _whole_mask(lengths: Sequence[int], x: Tensor, chunk_frames: int) -> Tensor | None:
    """Additive mask (N or 1, 1, C, C), or None where nothing is masked.

    The padding test compares encoder frames with the *mel* length, which is twice as long, so
    padded frames of a batch stay visible in part. That is how the published model was run.
    """
    frames = x.shape[1]
    padded = any(length < frames for length in lengths)
    chunked = 0 < chunk_frames < frames
    if not padded and not chunked:
        return None
    places = torch.arange(frames, device=x.device)
    hidden = torch.zeros(1, frames, frames, dtype=torch.bool, device=x.device)
    if chunked:
        hidden = hidden | (places[None, :] >= (places[:, None] // chunk_frames + 1) * chunk_frames)
    if padded:
        ends = torch.tensor(list(lengths), device=x.device)
        hidden = hidden | (places[None, None, :] >= ends[:, None, None])
    mask = torch.zeros(hidden.shape, dtype=x.dtype, device=x.device)
    return mask.masked_fill_(hidden, float("-inf"))[:, None]


class AudioProjection(nn.Module):
    """Encoder width to the language model's. Names as below `audio_projection_layer.`."""

    def __init__(self, inner: int, width: int) -> None:
        super().__init__()
        self.linear1 = nn.Linear(inner, width)
        self.linear2 = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear2(F.relu(self.linear1(x)))


class Ears:
    """Sound to context tokens, whole or live."""

    def __init__(
        self,
        encoder: AudioEncoder,
        projection: AudioProjection,
        extractor: MelExtractor,
        *,
        pool_step: int,
        chunk_frames: int,
    ) -> None:
        self.encoder = encoder
        self.projection = projection
        self.extractor = extractor
        self.pool_step = pool_step
        self.chunk_frames = chunk_frames

    def pool(self, states: Tensor) -> Tensor:
        """Encoder states (N, C, Da) to tokens (N, C // pool_step, H); a remainder is dropped."""
        projected = self.projection(states)
        if states.shape[1] < self.pool_step:
            return projected[:, :0]
        return F.avg_pool1d(projected.transpose(1, 2), self.pool_step).transpose(1, 2)

    def pieces(self, clips: Sequence[Samples], floor: Floor = "dynamic") -> list[Tensor]:
        """Features of clips, cut every 30 s; (M, f) each."""
        return [
            self.extractor.whole(clip[first : first + PIECE_SAMPLES], floor)
            for clip in clips
            for first in range(0, max(1, len(clip)), PIECE_SAMPLES)
        ]

    def encode_pieces(
        self, mels: Sequence[Tensor], *, chunked: bool, longest: int | None = None
    ) -> list[Tensor]:
        """Tokens (n, H) per piece; the pieces are one batch, padded to the longest.

        Args:
            longest: pad to this many mel frames instead, so that a long request may be encoded in
                several calls with the result of one.
        """
        if not mels:
            return []
        lengths = [int(mel.shape[1]) for mel in mels]
        longest = max(lengths) if longest is None else longest
        if longest == 0:
            width = self.projection.linear2.out_features
            weight = self.projection.linear2.weight
            return [torch.zeros(0, width, dtype=weight.dtype, device=weight.device) for _ in mels]
        batch = torch.zeros(len(mels), mels[0].shape[0], longest)
        for index, mel in enumerate(mels):
            batch[index, :, : mel.shape[1]] = mel
        states = self.encoder.whole(batch, lengths, self.chunk_frames if chunked else 0)
        tokens = self.pool(states)
        return [
            tokens[index, : encoder_frames(length) // self.pool_step]
            for index, length in enumerate(lengths)
        ]

    def hear(self, clips: Sequence[Samples], *, chunked: bool) -> Tensor:
        """All tokens of the clips of one request, in order, (n, H)."""
        return torch.cat(self.encode_pieces(self.pieces(clips), chunked=chunked))

    def is_full(self, cached_frames: int, mel_frames: int) -> bool:
        """Whether a live row's cache must be emptied before the next chunk, because it would reach
        the last position. Counted before trimming. Source: model.md 7.3.
        """
        return cached_frames + encoder_frames(mel_frames) >= self.encoder.positions

    def hear_live(
        self,
        mels: Sequence[Tensor],
        rows: Sequence[int],
        cache: SlotCache,
        *,
        prefixes: Sequence[int],
        suffixes: Sequence[int],
    ) -> tuple[list[Tensor], list[Span]]:
        """Tokens (n, H) of the next chunk of several live streams.

        Chunks of one shape go through the encoder together. The cache's lengths do not change:
        `cache.commit` the returned spans when the chunks count.

        Args:
            prefixes, suffixes: redundant mel frames at the left and right of each chunk.
        """
        tokens: dict[int, Tensor] = {}
        spans: list[Span] = []
        groups: dict[tuple[int, int, int], list[int]] = {}
        for index, mel in enumerate(mels):
            shape = (int(mel.shape[1]), prefixes[index], suffixes[index])
            groups.setdefault(shape, []).append(index)
        for (frames, prefix, suffix), members in groups.items():
            states, taken = self.encoder.live(
                torch.stack([mels[index] for index in members]),
                [rows[index] for index in members],
                cache,
                trim=(math.ceil(prefix / 2), math.ceil(suffix / 2)),
            )
            spans += taken
            pooled = self.pool(states)
            count = encoder_frames(frames) // self.pool_step
            for place, index in enumerate(members):
                tokens[index] = pooled[place, :count]
        return [tokens[index] for index in range(len(mels))], spans
