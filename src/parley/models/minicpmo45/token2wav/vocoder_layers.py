"""Common parts of both vocoders: convolutions, residual blocks, a short Fourier transform.

Letters: `R` rows, `B` channels, `N` samples at 24 kHz, `T` mel frames (480 samples each), `K`
Fourier frames (4 samples each).

The transform is two small matrix products instead of a library call: it works in batches, inside
captured graphs, and needs no workspace. Source: speech.md 3.5.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from parley.models.minicpmo45.runtime.graphs import Function, GraphRunner, bucket, buckets
from parley.models.minicpmo45.token2wav.convolution import PaddedConv, channels_last, mirrored
from parley.models.minicpmo45.token2wav.windows import WINDOW_FRAMES

RATE_HZ = 24_000
FRAME_SAMPLES = 480
"""Number of samples per mel frame."""

NOISE_SAMPLES = 20 * RATE_HZ
"""Length of the excitation's noise; it repeats after that."""

HARMONICS = 9
WINDOW = 16
HOP = 4
BANDS = WINDOW // 2 + 1
"""Frequencies of the inner spectrogram."""

UP_RATES = (8, 5, 3)
UP_KERNELS = (16, 11, 7)
SOURCE_KERNELS = (7, 7, 11)
KERNELS = (3, 7, 11)
DILATIONS = (1, 3, 5)
LIMIT = 0.99
"""Samples are clamped to plus and minus this."""

CACHED_NUMBERS = 65_536
"""Number of values in one piece of an activation on a CPU: a quarter of a MiB."""

SINE_LEVEL = 0.1
VOICED_NOISE = 0.003
VOICED_HZ = 10.0


class Snake(nn.Module):
    """`x + sin(a x)^2 / a`, one `a` per channel."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.ones(channels))

    def forward(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        """`x` has shape (R, channels, N); `out`: destination, may be `x`."""
        alpha = self.alpha[:, None]
        height = 1 / (alpha + 1e-9)
        if x.device.type != "cpu":
            wave = (x * alpha).sin_()
            return torch.addcmul(x, wave.mul_(wave), height)
        # A piece stays in the processor's cache through all four passes.
        out = torch.empty_like(x) if out is None else out
        length = max(1, CACHED_NUMBERS // (x.shape[0] * x.shape[1]))
        for piece, result in zip(
            torch.split(x, length, 2), torch.split(out, length, 2), strict=True
        ):
            wave = (piece * alpha).sin_()
            torch.addcmul(piece, wave.mul_(wave), height, out=result)
        return out


class ResidualBlock(nn.Module):
    """Three dilated convolutions, each followed by a plain one, with Snake before both."""

    def __init__(self, channels: int, kernel: int, *, is_causal: bool) -> None:
        super().__init__()

        def conv(dilation: int) -> PaddedConv:
            reach = (kernel - 1) * dilation
            left, right = (reach, 0) if is_causal else (reach // 2, reach // 2)
            return PaddedConv(channels, channels, kernel, left=left, right=right, dilation=dilation)

        self.convs1 = nn.ModuleList([conv(dilation) for dilation in DILATIONS])
        self.convs2 = nn.ModuleList([conv(1) for _ in DILATIONS])
        self.activations1 = nn.ModuleList([Snake(channels) for _ in DILATIONS])
        self.activations2 = nn.ModuleList([Snake(channels) for _ in DILATIONS])

    def forward(self, x: Tensor) -> Tensor:
        for conv1, conv2, snake1, snake2 in zip(
            self.convs1, self.convs2, self.activations1, self.activations2, strict=True
        ):
            y = conv1(snake1(x))
            x = conv2(snake2(y, out=y)).add_(x)
        return x


class SourceMixer(nn.Module):
    """Combines nine harmonics to one excitation."""

    def __init__(self) -> None:
        super().__init__()
        self.l_linear = nn.Linear(HARMONICS, 1)

    def forward(self, sines: Tensor, voiced: Tensor, noise: Tensor) -> Tensor:
        """Shapes (R, N, 9), (R, N, 1), (R, N, 9) to (R, N)."""
        level = torch.where(voiced, VOICED_NOISE, SINE_LEVEL / 3)
        mixed = SINE_LEVEL * sines * voiced + level * noise
        return torch.tanh(self.l_linear(mixed))[..., 0]


class ShortFourier(nn.Module):
    """Spectrogram with windows of 16 samples every 4 samples, and its inverse."""

    forward_basis: Tensor
    inverse_basis: Tensor
    squared_window: Tensor

    def __init__(self) -> None:
        super().__init__()
        time = torch.arange(WINDOW, dtype=torch.float64, device="cpu")
        band = torch.arange(BANDS, dtype=torch.float64, device="cpu")
        window = 0.5 - 0.5 * torch.cos(2 * torch.pi * time / WINDOW)
        angle = 2 * torch.pi * band[:, None] * time / WINDOW
        forward = torch.cat([angle.cos(), -angle.sin()]) * window
        # Every band except the first and the last represents two frequencies of the full transform.
        weight = torch.full((BANDS, 1), 2.0, dtype=torch.float64, device="cpu")
        weight[0] = weight[-1] = 1.0
        inverse = torch.cat([weight * angle.cos(), -weight * angle.sin()]) * window / WINDOW
        bases = {
            "forward_basis": forward[:, None],
            "inverse_basis": inverse[:, None],
            "squared_window": window.square()[None, None],
        }
        for name, basis in bases.items():
            self.register_buffer(name, basis.float(), persistent=False)

    def spectrum(self, wave: Tensor) -> Tensor:
        """Shape (R, N) to (R, 18, N / 4 + 1): nine real parts, nine imaginary parts."""
        padded = F.pad(wave[:, None], (WINDOW // 2, WINDOW // 2), mode="reflect")
        return F.conv1d(padded, self.forward_basis, stride=HOP)

    def wave(self, spectrum: Tensor) -> Tensor:
        """Shape (R, 18, K) to (R, 4 (K - 1))."""
        ones = spectrum.new_ones(1, 1, spectrum.shape[2])
        envelope = F.conv_transpose1d(ones, self.squared_window, stride=HOP)
        joined = F.conv_transpose1d(spectrum, self.inverse_basis, stride=HOP)
        half = WINDOW // 2
        return joined[:, 0, half:-half] / envelope[:, 0, half:-half]


class Generator(nn.Module):
    """Converts mel and excitation to samples; the common part of both vocoders.

    Subclasses create `conv_pre`, `conv_post`, the items of `ups` and `source_downs`, and streams
    (`row`, `stream`).

    Args of state:
        draw: the distribution of the excitation's noise.
        slots: maximum number of rows of a call; `graphs`: captures calls of full windows.
    """

    conv_pre: nn.Module
    conv_post: nn.Module
    draw: Callable[..., Tensor]
    row: Callable[[], Any]
    stream: Callable[..., tuple[Tensor, list[Any]]]

    def __init__(self, channels: int, mel_bins: int, *, is_causal: bool) -> None:
        super().__init__()
        self.mel_bins = mel_bins
        self.slots = 1
        self.graphs = GraphRunner()
        self.ups, self.source_downs = nn.ModuleList(), nn.ModuleList()
        self.m_source = SourceMixer()
        widths = [channels // 2 ** (stage + 1) for stage in range(len(UP_RATES))]
        self.source_resblocks = nn.ModuleList(
            [
                ResidualBlock(width, kernel, is_causal=is_causal)
                for width, kernel in zip(widths, SOURCE_KERNELS, strict=True)
            ]
        )
        self.resblocks = nn.ModuleList(
            [
                ResidualBlock(width, kernel, is_causal=is_causal)
                for width in widths
                for kernel in KERNELS
            ]
        )
        self.fourier = ShortFourier()
        self.noise = torch.empty(0)
        """Shape (samples, 9); created when it is first read."""

    @property
    def device(self) -> torch.device:
        return self.fourier.forward_basis.device

    def pack(self) -> None:
        """Change the layout of the long filters for a CPU. Call once the weights are loaded."""
        for part in (*self.resblocks.modules(), *self.source_resblocks.modules()):
            if isinstance(part, PaddedConv):
                part.pack()

    @classmethod
    def make_noise(cls) -> Tensor:
        """The table that the excitation's noise is read from, float32, shape (samples, 9).

        The published code draws noise in every call. A table that is indexed by the sample's number
        in its stream makes audio repeatable and independent of how the stream was cut.
        """
        generator = torch.Generator().manual_seed(0)
        return cls.draw(NOISE_SAMPLES, HARMONICS, generator=generator, dtype=torch.float32)

    def noise_from(self, starts: Sequence[int], samples: int) -> Tensor:
        """Shape (R, samples, 9): the table from each sample number on, repeated at its end."""
        if self.noise.numel() == 0:
            self.noise = self.make_noise()
        if self.noise.device != self.device:
            self.noise = self.noise.to(self.device)
        length = self.noise.shape[0]
        parts: list[Tensor] = []
        for start in starts:
            first = start % length
            parts.append(self.noise[first : first + samples])
            left = samples - len(parts[-1])
            while left > 0:
                parts.append(self.noise[:left])
                left -= len(parts[-1])
        return torch.cat(parts).view(len(starts), samples, HARMONICS)

    @torch.inference_mode()
    def capture(self) -> None:
        """Capture the calls of full windows, for every number of rows: the first of a turn, the
        second, and the third, whose shape all later ones have."""
        for size in buckets(self.slots) if self.graphs.is_active else []:
            rows = [self.row() for _ in range(size)]
            mel = torch.zeros(size, self.mel_bins, WINDOW_FRAMES, device=self.device)
            for _ in range(3):
                _, rows = self.stream(rows, mel, is_last=False)

    def captured(
        self, function: Function, inputs: Sequence[Tensor], *, is_usual: bool, key: Hashable = None
    ) -> tuple[Tensor, ...]:
        """Call `function` with tensors of rows; by a graph, with rows of zeros if some are missing.

        Args:
            is_usual: True if the call is that of a full window; others have no graph.
            key: everything on which the function depends, except its inputs.
        """
        if not (is_usual and self.graphs.is_active):
            return function(*inputs)
        rows = inputs[0].shape[0]
        missing = bucket(rows, self.slots) - rows
        filled = [F.pad(x, (0, 0) * (x.dim() - 1) + (0, missing)) for x in inputs]
        shape = (key, *(x.shape for x in filled))
        results = self.graphs.run("vocoder", shape, function, filled)
        return tuple(result[:rows] for result in results)

    def generate(self, x: Tensor, spectrum: Tensor) -> Tensor:
        """Samples.

        Args:
            x: output of `conv_pre`, shape (R, B, T).
            spectrum: of the excitation, shape (R, 18, 120 T + 1).

        Returns:
            Shape (R, 480 T).
        """
        spectrum = channels_last(spectrum)
        for stage, up in enumerate(self.ups):
            x = up(F.leaky_relu(x, 0.1))
            if stage == len(self.ups) - 1:
                x = mirrored(x)
            x = self.source_resblocks[stage](self.source_downs[stage](spectrum)).add_(x)
            first = stage * len(KERNELS)
            total = self.resblocks[first](x)
            for number in range(1, len(KERNELS)):
                total = total.add_(self.resblocks[first + number](x))
            x = total.div_(len(KERNELS))
        # 0.01 here, 0.1 above: the published code uses the library's default here.
        x = self.conv_post(F.leaky_relu(x, 0.01))
        magnitude = x[:, :BANDS].exp().clamp(max=100.0)
        phase = x[:, BANDS:].sin()
        parts = torch.cat([magnitude * phase.cos(), magnitude * phase.sin()], dim=1)
        return self.fourier.wave(parts).clamp(-LIMIT, LIMIT)


class PitchPredictor(nn.Module):
    """Predicts one pitch in Hz per mel frame."""

    def __init__(self, convs: Sequence[PaddedConv], channels: int) -> None:
        super().__init__()
        # Odd items of the published sequence are activations without weights.
        self.condnet = nn.ModuleDict({str(2 * i): conv for i, conv in enumerate(convs)})
        self.classifier = nn.Linear(channels, 1)

    def forward(self, mel: Tensor) -> Tensor:
        """Shape (R, 80, T) to (R, T)."""
        x = channels_last(mel)
        for conv in self.condnet.values():
            x = F.elu(conv(x))
        return self.classifier(x.transpose(1, 2))[..., 0].abs()


def folded(tensors: dict[str, Tensor], *, precise: str | None = None) -> dict[str, Tensor]:
    """Fold weight norms: `original0` is a gain per first axis, `original1` a direction.

    Args:
        precise: fold names with this prefix in float64, and keep that type.
    """
    gain, direction = ".parametrizations.weight.original0", ".parametrizations.weight.original1"
    plain: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if precise is not None and name.startswith(precise):
            tensor = tensor.double()
        if name.endswith(gain):
            continue
        if name.endswith(direction):
            place = name.removesuffix(direction)
            size = tensors[place + gain].to(tensor.dtype)
            # The library's own product, because pitch is summed over seconds, so the last bit
            # matters.
            plain[f"{place}.weight"] = torch._weight_norm(tensor, size, 0)
        else:
            plain[name] = tensor
    return plain
