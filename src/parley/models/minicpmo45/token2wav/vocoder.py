"""Converts mel frames to audio: the classic vocoder, for which the published voice files were made.

A pitch per frame drives nine harmonics; a convolutional net shapes them into a spectrogram of very
short windows, and an inverse transform makes samples. It is not causal, so a stream computes the
last 8 frames of a call again in the next one and cross-fades; the first call therefore returns
3,840 samples fewer, and the last one as many more.

Letters: `R` rows in a call, `T` new mel frames, `N` samples (480 per frame).

Source: speech.md 3.5. The two halves of the fade's window add up to 1.08, as published.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from parley.models.minicpmo45.token2wav.convolution import PaddedConv, SpreadConv, channels_last
from parley.models.minicpmo45.token2wav.vocoder_layers import (
    BANDS,
    FRAME_SAMPLES,
    HARMONICS,
    RATE_HZ,
    UP_KERNELS,
    UP_RATES,
    VOICED_HZ,
    Generator,
    PitchPredictor,
)
from parley.models.minicpmo45.token2wav.windows import WINDOW_FRAMES

OVERLAP_FRAMES = 8
"""Number of frames that are computed twice at the seam of two calls."""

OVERLAP_SAMPLES = OVERLAP_FRAMES * FRAME_SAMPLES

_DOWN_KERNELS = (30, 6, 1)


@dataclass(frozen=True, slots=True, eq=False)
class ClassicRow:
    """State of one stream between calls; empty before the first.

    Args:
        mel: last frames, shape (80, up to 8); source: their excitation; speech: their samples that
            were not returned yet, float64.
        frames: mel frames received so far.
    """

    mel: Tensor
    source: Tensor
    speech: Tensor
    frames: int = 0

    @property
    def signature(self) -> tuple[int, ...]:
        """Rows with the same signature may share a call."""
        return (self.mel.shape[1],)


class ClassicVocoder(Generator):
    """Parameter names are those of `hift.pt` with folded weight norms. Always float32."""

    draw = staticmethod(torch.randn)

    def __init__(self, channels: int, pitch_channels: int, mel_bins: int = 80) -> None:
        super().__init__(channels, mel_bins, is_causal=False)
        self.conv_pre = PaddedConv(mel_bins, channels, 7, left=3, right=3)
        for stage, (rate, kernel) in enumerate(zip(UP_RATES, UP_KERNELS, strict=True)):
            wide, narrow = channels // 2**stage, channels // 2 ** (stage + 1)
            self.ups.append(SpreadConv(wide, narrow, kernel, rate, padding=(kernel - rate) // 2))
            down = _DOWN_KERNELS[stage]
            stride = down // 2 or 1
            pad = stride // 2
            self.source_downs.append(
                PaddedConv(2 * BANDS, narrow, down, left=pad, right=pad, stride=stride)
            )
        self.conv_post = PaddedConv(channels // 8, 2 * BANDS, 7, left=3, right=3)
        convs = [PaddedConv(mel_bins, pitch_channels, 3, left=1, right=1)]
        convs += [PaddedConv(pitch_channels, pitch_channels, 3, left=1, right=1) for _ in range(4)]
        self.f0_predictor = PitchPredictor(convs, pitch_channels)
        self._fade = torch.hamming_window(
            2 * OVERLAP_SAMPLES, periodic=False, dtype=torch.float64, device="cpu"
        )

    def row(self) -> ClassicRow:
        """A stream that has not started."""
        mel = torch.zeros(self.mel_bins, 0, device=self.device)
        return ClassicRow(mel, mel[0], mel[0].double())

    def source(self, pitch: Tensor, noise: Tensor) -> Tensor:
        """Excitation (R, 480 T) of frames with a pitch in Hz (R, T), and the noise of its samples,
        shape (R, 480 T, 9)."""
        harmonics = torch.arange(1, HARMONICS + 1, dtype=pitch.dtype, device=pitch.device)
        turns = (pitch[..., None] * harmonics / RATE_HZ) % 1
        # Order of operations as published: the phases are large, and float32 rounds them
        # noticeably.
        phase = torch.cumsum(turns, dim=1) * 2 * torch.pi
        phase = phase.transpose(1, 2) * FRAME_SAMPLES
        phase = F.interpolate(phase, scale_factor=float(FRAME_SAMPLES), mode="linear")
        sines = torch.sin(phase).transpose(1, 2)
        voiced = (pitch > VOICED_HZ).repeat_interleave(FRAME_SAMPLES, dim=1)[..., None]
        return self.m_source(sines, voiced, noise)

    def decode(self, mel: Tensor, source: Tensor) -> Tensor:
        """Shapes (R, 80, T) and (R, 480 T) to (R, 480 T)."""
        return self.generate(self.conv_pre(channels_last(mel)), self.fourier.spectrum(source))

    @torch.inference_mode()
    def stream(
        self, rows: Sequence[ClassicRow], mel: Tensor, *, is_last: bool
    ) -> tuple[Tensor, list[ClassicRow]]:
        """The next samples of streams with equal signatures. Rows are immutable values.

        Args:
            mel: new frames, shape (R, 80, T).
            is_last: True: return everything.

        Returns:
            Samples, float32, shape (R, N): 480 T; 3,840 fewer in a first call that is not the last,
            as many more in a last call that is not the first. And the rows after this call.
        """
        received, kept = mel.shape[2], rows[0].mel.shape[1]
        mel = torch.cat([torch.stack([row.mel for row in rows]), mel.float()], dim=2)
        known = torch.stack([row.source for row in rows])
        starts = [(row.frames - kept) * FRAME_SAMPLES for row in rows]
        noise = self.noise_from(starts, mel.shape[2] * FRAME_SAMPLES)
        inputs, is_usual = (mel, known, noise), received == WINDOW_FRAMES
        wave, source = self.captured(self._sound, inputs, is_usual=is_usual)
        wave = self._faded(torch.stack([row.speech for row in rows]), wave)
        # Copies, so that a row's state does not keep the whole call in memory.
        after = [
            ClassicRow(
                mel=mel[number, :, -OVERLAP_FRAMES:].clone(),
                source=source[number, -OVERLAP_SAMPLES:].clone(),
                speech=wave[number, -OVERLAP_SAMPLES:].clone(),
                frames=row.frames + received,
            )
            for number, row in enumerate(rows)
        ]
        return (wave if is_last else wave[:, :-OVERLAP_SAMPLES]).float(), after

    def _sound(self, mel: Tensor, known: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Samples and excitation of frames, the first of which have known excitation.

        Shapes (R, 80, T), (R, known samples) and (R, 480 T, 9) to (R, 480 T) twice.
        """
        source = self.source(self.f0_predictor(mel), noise)
        source = torch.cat([known, source[:, known.shape[1] :]], dim=1)
        return self.decode(mel, source), source

    def _faded(self, old: Tensor, wave: Tensor) -> Tensor:
        """Cross-fade from the frames that the previous call held back to this call's version of
        them."""
        count = old.shape[1]
        fade = self._fade = self._fade.to(wave.device)
        seam = wave[:, :count].double() * fade[:count]
        seam = seam + old.double() * fade[OVERLAP_SAMPLES : OVERLAP_SAMPLES + count]
        return torch.cat([seam, wave[:, count:].double()], dim=1)
