"""Conversion of samples to log-mel frames on the CPU, for whole clips and a live stream.

Independent of networks and devices, so any thread may use it. Shapes: `M` mel bins, `F` mel frames
(100 per second). Source: model.md 6.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from parley.media.mel_filters import mel_filters

Samples = npt.NDArray[np.float32]
Floor = Literal["dynamic", "fixed"]
"""The log floor: 8 below the loudest bin, or always -10. Source: model.md 6.2."""
RATE_HZ = 16_000
HOP = 160
N_FFT = 400
PIECE_SAMPLES = 30 * RATE_HZ
"""Maximum length of a piece that the encoder processes."""
FIRST_LIVE_SAMPLES = 16_560
"""Number of samples to which a live stream's first chunk is padded with silence on the left (1035
ms)."""
FIRST_FED_SAMPLES = 16_480
"""Number of these samples that the first unit consumes: 1035 ms, rounded down to whole hops of
frames."""
LIVE_SAMPLES = 16_000
"""Number of samples that every later unit consumes."""


def token_count(samples: int, pool_step: int = 5) -> int:
    """Number of context tokens of a clip of this many samples."""
    return encoder_frames(math.ceil(samples / HOP)) // pool_step


def encoder_frames(mel_frames: int) -> int:
    """Number of frames after the strided convolution."""
    return (mel_frames - 1) // 2 + 1


class MelExtractor:
    """Whisper's log-mel features, without hidden state."""

    def __init__(self, bins: int = 80) -> None:
        filters = mel_filters(bins, N_FFT, RATE_HZ, RATE_HZ / 2)
        self.bins = bins
        self._filters = torch.from_numpy(filters).float()
        self._window = torch.hann_window(N_FFT)

    def log_mel(self, samples: Samples) -> Tensor:
        """log10 of the mel power, without any floor except 1e-10; (M, len // 160).

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
        loudest bin, and affects only the frames around the end.
        """
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
    """Options of the conversion of a live stream to frames. Source: model.md 6.5.

    Args:
        redundancy_frames: number of extra frames on both sides of a unit: 2 in duplex, 0 in plain
            streaming.
        slide_at_samples, slide_by_samples: the buffer drops its oldest part, of the second length,
            when it reaches the first length.
        dynamic_from_samples: buffer length from which the floor follows the loudest bin.
    """

    redundancy_frames: int = 2
    core_frames: int = 100
    slide_at_samples: int = 30 * RATE_HZ
    slide_by_samples: int = 10 * RATE_HZ
    dynamic_from_samples: int = 5 * RATE_HZ


@dataclass(frozen=True, slots=True, eq=False)
class LiveMel:
    """A stream's sample buffer and counters. Immutable: `push` returns the next state, and an
    earlier state serves as a checkpoint.

    Frame indices are global, counted from the start of the stream.

    Args:
        samples: buffered samples, (n,).
        base_frame: index of the buffer's first frame.
        next_frame: index of the next core frame to return.
        pushed_chunks: number of chunks pushed so far.
        inner: raw log-mel of the buffer's frames that touch no edge, (M, k); the first of them is
            frame `base_frame + 2`.
    """

    options: LiveMelOptions = LiveMelOptions()
    samples: Samples = field(default_factory=lambda: np.zeros(0, np.float32))
    base_frame: int = 0
    next_frame: int = 0
    pushed_chunks: int = 0
    inner: Tensor | None = None

    @property
    def frames(self) -> int:
        return len(self.samples) // HOP

    @property
    def stable_frames(self) -> int:
        """Number of frames in the buffer that no future sample can change."""
        return min(self.frames, (len(self.samples) - N_FFT // 2) // HOP + 1)

    @property
    def floor(self) -> Floor:
        return "fixed" if len(self.samples) < self.options.dynamic_from_samples else "dynamic"

    def push(
        self, samples: Samples, extractor: MelExtractor, *, last: bool = False
    ) -> tuple[LiveMel, Tensor]:
        """Append samples; returns the next state and the frames that became final, (M, f), f >= 0.

        Raises:
            ValueError: fewer than one analysis window is buffered.
        """
        options = self.options
        buffer = np.concatenate([self.samples, samples])
        base, inner = self.base_frame, self.inner
        if len(buffer) >= options.slide_at_samples:
            keep = min(RATE_HZ, len(buffer) - options.slide_by_samples)
            away = min(options.slide_by_samples, len(buffer) - keep) // HOP * HOP
            buffer = buffer[away:].copy()
            base += away // HOP
            inner = None if inner is None else inner[:, away // HOP :]
        if len(buffer) < N_FFT:
            raise ValueError(f"a live stream needs {N_FFT} samples, has {len(buffer)}")
        state = replace(
            self,
            samples=buffer,
            base_frame=base,
            pushed_chunks=self.pushed_chunks + 1,
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


def _all_frames(
    buffer: Samples, inner: Tensor | None, extractor: MelExtractor
) -> tuple[Tensor, Tensor]:
    """Raw log-mel of the whole buffer, computing only frames that are not known: new ones, and the
    few at both ends that contain the reflected edge."""
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
