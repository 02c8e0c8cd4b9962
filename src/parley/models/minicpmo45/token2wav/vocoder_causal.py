"""Converts mel frames to audio: the causal vocoder of the later voice files.

The same idea as the classic vocoder, but the total look-ahead is 8 frames, so a stream equals the
whole utterance, and nothing is computed twice and cross-faded. A stream is 8 frames (160 ms) behind
until its last call. Pitch, and the running sum that gives the phase, are computed in float64.

Letters: `R` rows in a call, `T` new mel frames, `N` samples (480 per frame).

Source: speech.md 3.6.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from parley.models.minicpmo45.token2wav.convolution import PaddedConv, channels_last
from parley.models.minicpmo45.token2wav.vocoder_layers import (
    BANDS,
    FRAME_SAMPLES,
    HARMONICS,
    HOP,
    RATE_HZ,
    UP_KERNELS,
    UP_RATES,
    VOICED_HZ,
    Generator,
    PitchPredictor,
)
from parley.models.minicpmo45.token2wav.windows import WINDOW_FRAMES

PITCH_AHEAD = 3
"""Look-ahead of the pitch predictor in frames."""

PITCH_PAST = 8
"""Number of past frames that its four causal convolutions need."""

MEL_AHEAD = 4
"""Look-ahead of `conv_pre` in frames."""

SEAM_FRAMES = 1
"""Frames by which the inverse transform lags: its last frame is complete only with the next one."""

PAST_FRAMES = 31
"""Number of frames that are decoded again, so that there is no seam between two calls."""

DELAY_FRAMES = PITCH_AHEAD + MEL_AHEAD + SEAM_FRAMES


@dataclass(frozen=True, slots=True, eq=False)
class CausalRow:
    """State of one stream between calls.

    Args:
        mel: frames from `first` on, shape (80, F).
        source: excitation of the same frames, as far as it is known.
        phase: running phase of the harmonics in turns, float64, shape (9,).
        first: number of the first stored frame; emitted: number of frames returned so far.
    """

    mel: Tensor
    source: Tensor
    phase: Tensor
    first: int = 0
    emitted: int = 0

    @property
    def signature(self) -> tuple[int, ...]:
        """Rows with the same signature may share a call."""
        return (self.mel.shape[1], self.source.shape[0], self.emitted - self.first)


class NearestUp(PaddedConv):
    """Repeat every step, then a causal convolution."""

    def __init__(self, wide: int, narrow: int, kernel: int, rate: int) -> None:
        super().__init__(wide, narrow, kernel, left=kernel - 1, right=0)
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(
            x.transpose(1, 2).repeat_interleave(self.rate, dim=1).transpose(1, 2)
        )


class CausalVocoder(Generator):
    """Parameter names are those of the causal `hift.pt` with folded weight norms. Float32, the
    pitch predictor float64."""

    draw = staticmethod(torch.rand)

    def __init__(self, channels: int, pitch_channels: int, mel_bins: int = 80) -> None:
        super().__init__(channels, mel_bins, is_causal=True)
        self.conv_pre = PaddedConv(mel_bins, channels, MEL_AHEAD + 1, left=0, right=0)
        for stage, (rate, kernel) in enumerate(zip(UP_RATES, UP_KERNELS, strict=True)):
            wide, narrow = channels // 2**stage, channels // 2 ** (stage + 1)
            self.ups.append(NearestUp(wide, narrow, kernel, rate))
            stride = (15, 3, 1)[stage]
            kernel = 2 * stride if stride > 1 else 1
            down = PaddedConv(2 * BANDS, narrow, kernel, left=stride - 1, right=0, stride=stride)
            self.source_downs.append(down)
        self.conv_post = PaddedConv(channels // 8, 2 * BANDS, 7, left=6, right=0)
        convs = [PaddedConv(mel_bins, pitch_channels, PITCH_AHEAD + 1, left=0, right=0)]
        convs += [PaddedConv(pitch_channels, pitch_channels, 3, left=2, right=0) for _ in range(4)]
        self.f0_predictor = PitchPredictor(convs, pitch_channels).double()

    def row(self) -> CausalRow:
        """A stream that has not started."""
        mel = torch.zeros(self.mel_bins, 0, device=self.device)
        phase = torch.zeros(HARMONICS, dtype=torch.float64, device=self.device)
        return CausalRow(mel, mel[0], phase)

    def pitch(self, mel: Tensor) -> Tensor:
        """Hz, shape (R, 80, T + 3) to (R, T): the last three frames are look-ahead.

        Computed in float64 and returned in float32, as published.
        """
        return self.f0_predictor(mel.double()).float()

    def source(self, pitch: Tensor, phase: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Excitation of frames with a pitch.

        A frame's phase applies to all its samples; the running sum continues from `phase`. Turns
        per sample are rounded to float32, as published, but their sum is not.

        Args:
            pitch: Hz, shape (R, T), T > 0; phase: turns, float64, shape (R, 9).
            noise: of these samples, shape (R, 480 T, 9).

        Returns:
            Shape (R, 480 T), and the phase after the last frame.
        """
        harmonics = torch.arange(1, HARMONICS + 1, dtype=pitch.dtype, device=pitch.device)
        turns = (pitch[..., None] * harmonics / RATE_HZ) % 1
        phases = (phase[:, None] + torch.cumsum(turns.double() * FRAME_SAMPLES, dim=1)) % 1
        sines = torch.sin(2 * torch.pi * phases).float()
        sines = sines.repeat_interleave(FRAME_SAMPLES, dim=1)
        voiced = (pitch > VOICED_HZ).repeat_interleave(FRAME_SAMPLES, dim=1)[..., None]
        return self.m_source(sines, voiced, noise), phases[:, -1]

    @torch.inference_mode()
    def stream(
        self, rows: Sequence[CausalRow], mel: Tensor, *, is_last: bool
    ) -> tuple[Tensor, list[CausalRow]]:
        """The next samples of streams with equal signatures. Rows are immutable values.

        Args:
            mel: new frames, shape (R, 80, T).
            is_last: give out everything.

        Returns:
            Samples, float32, shape (R, N), N a multiple of 480; the stream is 8 frames behind until
            its last call, and a call may return none. And the rows after this call.
        """
        mel = torch.cat([torch.stack([row.mel for row in rows]), mel.float()], dim=2)
        source = torch.stack([row.source for row in rows])
        phase = torch.stack([row.phase for row in rows])
        total, known = mel.shape[2], source.shape[1] // FRAME_SAMPLES
        pitched = total if is_last else max(known, total - PITCH_AHEAD)
        done = rows[0].emitted - rows[0].first
        ready = total if is_last else max(done, pitched - MEL_AHEAD - SEAM_FRAMES)
        starts = [(row.first + known) * FRAME_SAMPLES for row in rows]
        noise = self.noise_from(starts, (pitched - known) * FRAME_SAMPLES)
        wave, source, phase = self.captured(
            partial(self._sound, done, ready, is_last),
            (mel, source, phase, noise),
            key=(done, ready),
            is_usual=ready - done == WINDOW_FRAMES and not is_last,
        )
        drop = max(0, ready - PAST_FRAMES)
        after = [
            CausalRow(
                mel=mel[number, :, drop:].clone(),
                source=source[number, drop * FRAME_SAMPLES :].clone(),
                phase=phase[number].clone(),
                first=row.first + drop,
                emitted=row.first + ready,
            )
            for number, row in enumerate(rows)
        ]
        return wave, after

    def _sound(
        self,
        done: int,
        ready: int,
        is_last: bool,
        mel: Tensor,
        source: Tensor,
        phase: Tensor,
        noise: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Samples that are known now, the excitation of stored and new frames, and the phase after
        them.

        Args:
            done, ready: numbers of stored frames that were returned before, and that will be after
                the call.
            mel: shape (R, 80, all); source: of known frames, (R, 480 known); phase: (R, 9).
            noise: of frames whose pitch can be known now, (R, 480 new, 9).
        """
        if noise.shape[1]:
            known = source.shape[1] // FRAME_SAMPLES
            past = min(known, PITCH_PAST)
            window = mel[:, :, known - past :]
            if is_last:
                window = F.pad(window, (0, PITCH_AHEAD))
            pitch = self.pitch(window)[:, past:]
            new, phase = self.source(pitch, phase, noise)
            source = torch.cat([source, new], dim=1)
        wave = source.new_zeros(source.shape[0], 0)
        if ready > done:
            wave = self._decoded(mel, source, is_last=is_last)
            wave = wave[:, done * FRAME_SAMPLES : ready * FRAME_SAMPLES]
        return wave, source, phase

    def _decoded(self, mel: Tensor, source: Tensor, *, is_last: bool) -> Tensor:
        """Samples of the stored frames, as far as they are known."""
        spectrum = self.fourier.spectrum(source)
        if is_last:
            x = channels_last(F.pad(mel, (0, MEL_AHEAD)))
            return self.generate(self.conv_pre(x), spectrum)
        cut = MEL_AHEAD * FRAME_SAMPLES // HOP
        x = channels_last(mel[:, :, : source.shape[1] // FRAME_SAMPLES])
        wave = self.generate(self.conv_pre(x), spectrum[:, :, :-cut])
        return wave[:, : -SEAM_FRAMES * FRAME_SAMPLES]
