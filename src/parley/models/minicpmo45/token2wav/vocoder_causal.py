"""Mel frames to sound: the causal vocoder of the later voice files.

The same idea as the classic vocoder, but no layer looks further ahead than 8 frames in total, so a
stream equals the whole utterance: nothing is computed twice and faded. A stream runs 8 frames
(160 ms) behind until its last call. Pitch is computed in float64, and so is the running sum that
makes it a phase.

Letters: `R` rows that share a call, `T` new mel frames, `N` samples (480 per frame).

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
"""Frames the pitch predictor looks ahead."""

PITCH_PAST = 8
"""Frames of the past that its four causal convolutions see."""

MEL_AHEAD = 4
"""Frames `conv_pre` looks ahead."""

SEAM_FRAMES = 1
"""The inverse transform's last frame is complete only with the next one."""

PAST_FRAMES = 31
"""Frames decoded again, so that the seam of two calls leaves no trace."""

DELAY_FRAMES = PITCH_AHEAD + MEL_AHEAD + SEAM_FRAMES


@dataclass(frozen=True, slots=True, eq=False)
class CausalRow:
    """What one stream remembers between calls.

    Args:
        mel: frames from `first` on, shape (80, F).
        source: excitation of the same frames as far as it is known.
        phase: running phase of the harmonics in turns, float64, shape (9,).
        first: number of the first remembered frame; received, pitched, emitted: frames so far.
    """

    mel: Tensor | None = None
    source: Tensor | None = None
    phase: Tensor | None = None
    first: int = 0
    received: int = 0
    pitched: int = 0
    emitted: int = 0

    @property
    def signature(self) -> tuple[int, ...]:
        """Rows with the same signature may share a call."""
        return (
            self.received - self.first,
            self.pitched - self.first,
            self.emitted - self.first,
            min(self.pitched, PITCH_PAST),
        )


@dataclass(frozen=True, slots=True)
class _Cut:
    """Which frames a call is about, counted from the first remembered one.

    Args:
        total: received; known: excitation known before the call; pitched: known after it; done:
            given out before; ready: given out after it.
    """

    total: int
    known: int
    pitched: int
    done: int
    ready: int
    is_last: bool


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
        self.f0_predictor = PitchPredictor(convs, pitch_channels)

    def row(self) -> CausalRow:
        """A stream that has not started."""
        return CausalRow()

    def pitch(self, mel: Tensor) -> Tensor:
        """Hz, shape (R, 80, T + 3) to (R, T): the last three frames are look-ahead.

        Computed in float64, handed on in float32, as published.
        """
        return self.f0_predictor(mel.double()).float()

    def source(self, pitch: Tensor, phase: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Excitation of frames with a pitch.

        A frame's phase holds for all its samples; the running sum continues from `phase`. Turns
        per sample are rounded to float32, as published, their sum is not.

        Args:
            pitch: Hz, shape (R, T); phase: turns, float64, shape (R, 9).
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
        last = phases[:, -1] if phases.shape[1] else phase
        return self.m_source(sines, voiced, noise), last

    @torch.inference_mode()
    def stream(
        self, rows: Sequence[CausalRow], mel: Tensor, *, is_last: bool
    ) -> tuple[Tensor, list[CausalRow]]:
        """The next samples of streams with equal signatures. Rows are values: none is changed.

        Args:
            mel: new frames, shape (R, 80, T).
            is_last: give out everything.

        Returns:
            Samples, float32, shape (R, N), N a multiple of 480; the stream is 8 frames behind until
            its last call, and a call may give nothing. And the rows after this call.
        """
        head = rows[0]
        mel = mel.float()
        olds = [row.mel for row in rows if row.mel is not None]
        if olds:
            mel = torch.cat([torch.stack(olds), mel], dim=2)
        total = mel.shape[2]
        known = head.pitched - head.first
        pitched = total if is_last else max(known, total - PITCH_AHEAD)
        done = head.emitted - head.first
        ready = total if is_last else max(done, pitched - MEL_AHEAD - SEAM_FRAMES)
        zeros = torch.zeros(HARMONICS, dtype=torch.float64, device=mel.device)
        phase = torch.stack([zeros if row.phase is None else row.phase for row in rows])
        sources = [mel.new_zeros(0) if row.source is None else row.source for row in rows]
        starts = [(row.first + known) * FRAME_SAMPLES for row in rows]
        noise = self.noise_from(starts, (pitched - known) * FRAME_SAMPLES)
        cut = _Cut(total, known, pitched, done, ready, is_last)
        wave, source, phase = self._sounded(cut, mel, torch.stack(sources), phase, noise)
        drop = max(0, ready - PAST_FRAMES)
        after = [
            CausalRow(
                mel=mel[number, :, drop:].clone(),
                source=source[number, drop * FRAME_SAMPLES :].clone(),
                phase=phase[number].clone(),
                first=row.first + drop,
                received=row.first + total,
                pitched=row.first + pitched,
                emitted=row.first + ready,
            )
            for number, row in enumerate(rows)
        ]
        return wave, after

    def _sounded(self, cut: _Cut, *inputs: Tensor) -> tuple[Tensor, ...]:
        """`_sound`, by a graph for the calls of full windows."""
        if not self.graphs.is_active or cut.is_last or cut.ready - cut.done != WINDOW_FRAMES:
            return self._sound(cut, *inputs)
        return self.captured(cut, partial(self._sound, cut), inputs)

    def _sound(
        self, cut: _Cut, mel: Tensor, source: Tensor, phase: Tensor, noise: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Samples that are known now, the excitation of the remembered frames and the new ones,
        and the phase after them.

        Shapes: (R, 80, total), (R, 480 known), (R, 9) and (R, 480 (pitched - known), 9).
        """
        if cut.pitched > cut.known:
            past = min(cut.known, PITCH_PAST)
            window = mel[:, :, cut.known - past :]
            if cut.is_last:
                window = F.pad(window, (0, PITCH_AHEAD))
            pitch = self.pitch(window)[:, past:]
            new, phase = self.source(pitch, phase, noise)
            source = torch.cat([source, new], dim=1)
        wave = source.new_zeros(source.shape[0], 0)
        if cut.ready > cut.done:
            wave = self._decoded(mel, source, cut.pitched, is_last=cut.is_last)
            wave = wave[:, cut.done * FRAME_SAMPLES : cut.ready * FRAME_SAMPLES]
        return wave, source, phase

    def _decoded(self, mel: Tensor, source: Tensor, pitched: int, *, is_last: bool) -> Tensor:
        """Samples of the remembered frames, as far as they are known."""
        spectrum = self.fourier.spectrum(source)
        if is_last:
            x = channels_last(F.pad(mel, (0, MEL_AHEAD)))
            return self.generate(self.conv_pre(x), spectrum)
        cut = MEL_AHEAD * FRAME_SAMPLES // HOP
        x = channels_last(mel[:, :, :pitched])
        wave = self.generate(self.conv_pre(x), spectrum[:, :, :-cut])
        return wave[:, : -SEAM_FRAMES * FRAME_SAMPLES]
