"""Speech codes to sound: a pulse train and noise, shaped by what each code sounds like.

Every code stands for 40 ms of log-mel spectrum; that table is the vocoder's starting point, and a
small convolutional network only corrects it and finds the pitch. The shape is applied in the
frequency domain (short-time Fourier transform, 10 ms steps), so there is nothing to learn about
waveforms. Streaming gives the same samples as one call over the whole turn: the network looks three
codes ahead at most, the pulses' phase is carried over, and the noise is a fixed table that depends
on the sample's place in the turn.

A voice is a pitch ratio and a stretch of the frequency axis; that is all that a reference recording
can change here.

`B` batch, `T` codes, `F` frames of 10 ms (4 per code), `W` width, `K` bins of the spectrum. A frame
is 240 samples at 24 kHz.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

RATE_HZ = 24_000
HOP = 240
WINDOW = 960
BINS = WINDOW // 2 + 1
FRAMES_PER_CODE = 4
LOOK_AHEAD = 3
"""Codes that must be known beyond the sound that is final."""
HISTORY = 20
"""Codes of the past that a frame depends on, rounded up (the convolutions see 18)."""
MEL_BINS = 80
PITCH_HZ = 180.0
"""The pitch that the network's output is relative to; also that of the silent pulse train."""
_NOISE_SAMPLES = 48_000


@dataclass(frozen=True, slots=True)
class VoiceColor:
    """How a voice differs from the built-in one.

    Args:
        pitch: factor on the pitch.
        formants: factor on the frequency axis; above 1 sounds smaller.
    """

    pitch: float = 1.0
    formants: float = 1.0


class Causal(nn.Module):
    """A ConvNeXt block that sees `ahead` steps of the future and the rest of its width behind."""

    def __init__(self, width: int, ahead: int, kernel: int = 7) -> None:
        super().__init__()
        self.depthwise = nn.Conv1d(width, width, kernel, groups=width)
        self.norm = nn.LayerNorm(width)
        self.widen = nn.Linear(width, 3 * width)
        self.narrow = nn.Linear(3 * width, width)
        self.gain = nn.Parameter(torch.full((width,), 0.3))
        self.pad = (kernel - 1 - ahead, ahead)

    def forward(self, x: Tensor) -> Tensor:
        y = self.depthwise(functional.pad(x.transpose(1, 2), self.pad)).transpose(1, 2)
        y = self.narrow(functional.gelu(self.widen(self.norm(y))))
        return x + self.gain * y


@dataclass(frozen=True, slots=True, eq=False)
class Shaped:
    """What the network says about each frame.

    Args:
        pitch: (B, F) in Hz, positive everywhere.
        voicing: (B, F) logits.
        pulses, hiss: (B, F, K) natural-log gains of the two sources.
    """

    pitch: Tensor
    voicing: Tensor
    pulses: Tensor
    hiss: Tensor


class CodeVocoder(nn.Module):
    """The network and the two sources. Fill `spectra` from the codebook before use."""

    spectra: Tensor

    def __init__(self, codes: int = 2048, width: int = 192, layers: int = 5) -> None:
        super().__init__()
        self.codes = codes
        self.register_buffer("spectra", torch.zeros(codes, FRAMES_PER_CODE * MEL_BINS))
        self.embed = nn.Embedding(codes, width)
        self.by_code = nn.ModuleList([Causal(width, 1), Causal(width, 0)])
        self.place = nn.Parameter(torch.randn(FRAMES_PER_CODE, width) * 0.1)
        self.read = nn.Linear(MEL_BINS, width)
        self.by_frame = nn.ModuleList(Causal(width, int(i < 2)) for i in range(layers))
        self.norm = nn.LayerNorm(width)
        self.pitch = nn.Linear(width, 2)
        self.shape = nn.Linear(width, 2 * BINS)
        self.level = nn.Parameter(torch.zeros(2))
        self._tools: dict[torch.device, tuple[Tensor, Tensor, Tensor, Tensor]] = {}

    def tools(self, device: torch.device) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Mel-to-bin matrix (K, 80), mel widths (80,), window, noise; constants, not weights."""
        if device not in self._tools:
            bank = mel_bank()
            centers = (bank * np.arange(513)).sum(1) / bank.sum(1) * RATE_HZ / 1024
            hertz = np.arange(BINS) * RATE_HZ / WINDOW
            spread = np.stack([np.interp(hertz, centers, row) for row in np.eye(MEL_BINS)], 1)
            noise = np.random.default_rng(20).standard_normal(_NOISE_SAMPLES)
            self._tools[device] = (
                torch.from_numpy(spread.astype(np.float32)).to(device),
                torch.from_numpy(np.log10(bank.sum(1)).astype(np.float32)).to(device),
                torch.hann_window(WINDOW, device=device),
                torch.from_numpy(noise.astype(np.float32)).to(device),
            )
        return self._tools[device]

    def shaped(self, codes: Tensor) -> Shaped:
        """Network outputs for codes (B, T)."""
        spread, widths, _, _ = self.tools(codes.device)
        x = self.embed(codes)
        for block in self.by_code:
            x = block(x)
        mel = self.spectra[codes].unflatten(-1, (FRAMES_PER_CODE, MEL_BINS)).flatten(1, 2)
        x = (x[:, :, None] + self.place).flatten(1, 2) + self.read((mel + 3) / 2)
        for block in self.by_frame:
            x = block(x)
        x = self.norm(x)
        # Half of ln(10), because mel tables hold log10 of power.
        base = 0.5 * math.log(10) * ((mel - widths).clamp(min=-8) @ spread.T)
        base = base.clamp(-9, 6)
        change = 0.5 * self.shape(x).float()
        pitch = self.pitch(x).float()
        return Shaped(
            PITCH_HZ * pitch[..., 0].clamp(-1.2, 1.2).exp(),
            pitch[..., 1],
            (change[..., :BINS] + base + self.level[0]).clamp(-9, 6),
            (change[..., BINS:] + base + self.level[1] - 2).clamp(-9, 6),
        )

    def render(
        self,
        shaped: Shaped,
        *,
        pitch: Tensor | None = None,
        voiced: Tensor | None = None,
        color: VoiceColor = VoiceColor(),
        first_frame: int = 0,
        start: int = 0,
        stop: int | None = None,
        phase: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Samples of frames [start, stop) and the pulses' phase where the next call continues.

        Args:
            pitch, voiced: (B, F); the network's own where absent.
            first_frame: place of the shapes' first frame in the turn.
            start, stop: frames of the turn to render; `stop` None: to the end of the shapes.
            phase: in turns, at frame `start - 4` (or at 0 where that is before the turn).

        Returns:
            (B, 240 * frames) and the phase at frame `stop - 4` (or 0).
        """
        last = first_frame + shaped.pitch.shape[1]
        stop = last if stop is None else stop
        hertz = shaped.pitch if pitch is None else pitch
        is_voiced = shaped.voicing > 0 if voiced is None else voiced > 0
        hertz = torch.where(is_voiced, hertz, torch.full_like(hertz, PITCH_HZ)) * color.pitch
        hertz = hertz.clamp(50, 500)
        # Sources are needed a window's half beyond the spectra that reach into the output.
        low, high = max(0, start - 4), min(last, stop + 4)
        pulse, hiss, phases = self._sources(
            hertz[:, low - first_frame : high - first_frame],
            is_voiced[:, low - first_frame : high - first_frame].float(),
            low,
            phase,
        )
        pick = torch.arange(max(0, start - 1), stop + 2, device=hertz.device)
        rows = (pick - first_frame).clamp(max=last - first_frame - 1)
        gains = (shaped.pulses[:, rows], shaped.hiss[:, rows])
        if color.formants != 1.0:
            gains = tuple(stretch(gain, color.formants) for gain in gains)  # type: ignore[assignment]
        samples = self._filtered((pulse, hiss), gains, pick, low, start, stop)
        return samples, phases[:, max(0, stop - 4) - low]

    def _sources(
        self, hertz: Tensor, voiced: Tensor, low: int, phase: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Band-limited pulses and noise (B, 240 F), and the phase at each frame (B, F)."""
        count = hertz.shape[1]
        _, _, _, noise = self.tools(hertz.device)

        def per_sample(x: Tensor) -> Tensor:
            following = torch.cat([x[:, 1:], x[:, -1:]], 1)
            ramp = torch.arange(HOP, device=x.device) / HOP
            return (x[..., None] + ramp * (following - x)[..., None]).flatten(1)

        smooth, gate = per_sample(hertz), per_sample(voiced)
        turns = torch.cumsum(smooth.double() / RATE_HZ, 1)
        if phase is not None:
            turns = turns + phase[:, None]
        before = torch.cat([
            torch.zeros_like(turns[:, :1]) if phase is None else phase[:, None].double(), turns
        ], 1)[:, ::HOP][:, :count] % 1  # fmt: skip
        angle = (turns % 1).float() * (2 * math.pi)
        harmonics = torch.floor(8000 / smooth)
        half = torch.sin(angle / 2)
        safe = torch.where(half.abs() < 1e-4, torch.ones_like(half), half)
        comb = torch.sin((harmonics + 0.5) * angle) / (2 * safe) - 0.5
        pulse = torch.where(half.abs() < 1e-4, harmonics, comb) * gate * 0.08
        places = torch.arange(low * HOP, (low + count) * HOP, device=hertz.device) % _NOISE_SAMPLES
        return pulse, (noise[places] * 0.3).expand_as(pulse), before

    def _filtered(
        self,
        sources: tuple[Tensor, Tensor],
        gains: tuple[Tensor, Tensor],
        pick: Tensor,
        low: int,
        start: int,
        stop: int,
    ) -> Tensor:
        """Overlap-add of the sources' spectra times their gains, samples of frames [start, stop).

        Spectrum `t` is centred on sample 240 t.
        """
        _, _, window, _ = self.tools(pick.device)
        spectrum: Tensor | None = None
        for source, gain in zip(sources, gains, strict=True):
            half = WINDOW // 2
            padded = functional.pad(source, (half + HOP, half + 3 * HOP))
            # Sample 0 of `padded` is sample low * HOP - half - HOP of the turn.
            first = int(pick[0]) * HOP - half - (low * HOP - half - HOP)
            length = (len(pick) - 1) * HOP + WINDOW
            frames = padded[:, first : first + length].unfold(1, WINDOW, HOP) * window
            part = torch.fft.rfft(frames) * gain.exp()
            spectrum = part if spectrum is None else spectrum + part
        assert spectrum is not None
        waves = torch.fft.irfft(spectrum, WINDOW) * window
        length = (len(pick) - 1) * HOP + WINDOW
        joined = functional.fold(waves.transpose(1, 2), (1, length), (1, WINDOW), stride=(1, HOP))[
            :, 0, 0
        ]
        # Four Hann-squared windows at a quarter's step sum to 1.5.
        offset = start * HOP - (int(pick[0]) * HOP - WINDOW // 2)
        return joined[:, offset : offset + (stop - start) * HOP] / 1.5

    def forward(
        self, codes: Tensor, pitch: Tensor | None = None, voiced: Tensor | None = None
    ) -> tuple[Tensor, Shaped]:
        """A whole turn at once: samples (B, 960 T) and the shapes they came from."""
        shaped = self.shaped(codes)
        return self.render(shaped, pitch=pitch, voiced=voiced)[0], shaped


@dataclass
class Spoken:
    """One turn's progress through the vocoder. `push` may be called with any number of codes."""

    vocoder: CodeVocoder
    silence: int
    color: VoiceColor = field(default_factory=VoiceColor)
    codes: list[int] = field(default_factory=list)
    dropped: int = 0
    """Codes of the turn that are no longer in `codes`."""
    rendered: int = 0
    """Frames of the turn that are sound already."""
    phase: Tensor | None = None

    @torch.inference_mode()
    def push(self, codes: list[int], *, is_last: bool = False) -> npt.NDArray[np.float32]:
        """Append codes; everything that is final now comes out (24 kHz). With `is_last` all of it,
        and the next push begins a turn. Codes outside the book are silence."""
        known = self.vocoder.codes
        self.codes += [code if 0 <= code < known else self.silence for code in codes]
        total = self.dropped + len(self.codes)
        stop = FRAMES_PER_CODE * (total if is_last else max(0, total - LOOK_AHEAD))
        samples = np.zeros(0, np.float32)
        if stop > self.rendered:
            device = self.vocoder.place.device
            shaped = self.vocoder.shaped(torch.tensor([self.codes], device=device))
            wave, self.phase = self.vocoder.render(
                shaped,
                color=self.color,
                first_frame=FRAMES_PER_CODE * self.dropped,
                start=self.rendered,
                stop=stop,
                phase=self.phase,
            )
            samples = wave[0].clamp(-1, 1).cpu().numpy()
            self.rendered = stop
        if is_last:
            self.codes, self.dropped, self.rendered, self.phase = [], 0, 0, None
            return samples
        spare = self.rendered // FRAMES_PER_CODE - 1 - HISTORY - self.dropped
        if spare > 0:
            self.codes, self.dropped = self.codes[spare:], self.dropped + spare
        return samples


def stretch(gain: Tensor, factor: float) -> Tensor:
    """Gains (..., K) with the frequency axis stretched by `factor`."""
    count = gain.shape[-1]
    places = (torch.arange(count, device=gain.device) / factor).clamp(max=count - 1.001)
    left = places.long()
    part = places - left
    return gain[..., left] * (1 - part) + gain[..., left + 1] * part


def mel_bank() -> npt.NDArray[np.float64]:
    """80 triangular filters, 0 to 8 kHz, over a 1024-point spectrum at 24 kHz: (80, 513)."""

    def to_mel(hertz: float) -> float:
        return 2595 * math.log10(1 + hertz / 700)

    edges = 700 * (10 ** (np.linspace(to_mel(0), to_mel(8000), MEL_BINS + 2) / 2595) - 1)
    hertz = np.arange(513) * RATE_HZ / 1024
    low, mid, high = (edges[i : MEL_BINS + i, None] for i in range(3))
    up, down = (hertz - low) / (mid - low), (high - hertz) / (high - mid)
    return np.maximum(0, np.minimum(up, down))


def log_mel(wave: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """log10 mel power of 24 kHz samples, one row per 240 samples (F, 80)."""
    frames = len(wave) // HOP
    padded = np.pad(wave, (512, 1024))
    places = np.arange(frames)[:, None] * HOP + np.arange(1024)
    windowed = padded[places] * np.hanning(1025)[:-1].astype(np.float32)
    power = np.abs(np.fft.rfft(windowed, axis=1)) ** 2
    return np.log10(np.maximum(power @ mel_bank().T, 1e-8)).astype(np.float32)


def pitch_track(wave: npt.NDArray[np.float32], rate_hz: int) -> npt.NDArray[np.float32]:
    """Pitch in Hz every 10 ms by autocorrelation, 0 where unvoiced (F,)."""
    step = rate_hz // 8000
    usable = len(wave) // step * step
    slow = wave[:usable].reshape(-1, step).mean(1).astype(np.float32)  # 8 kHz
    frames = len(slow) // 80
    if frames == 0:
        return np.zeros(0, np.float32)
    padded = np.pad(slow, (320, 640))
    pieces = padded[np.arange(frames)[:, None] * 80 + np.arange(640)]
    pieces = pieces - pieces.mean(1, keepdims=True)
    power = np.abs(np.fft.rfft(pieces, 2048)) ** 2
    similar = np.fft.irfft(power)[:, :140]
    energy = similar[:, :1] + 1e-6
    similar = similar / energy * (640 / (640 - np.arange(140)))
    inside = similar[:, 20:110]
    # Of nearly equal peaks the shortest lag is the period; the others are its multiples.
    is_peak = (inside >= similar[:, 19:109]) & (inside >= similar[:, 21:111])
    is_good = is_peak & (inside > 0.85 * inside.max(1, keepdims=True))
    lag = is_good.argmax(1) + 20
    rows = np.arange(frames)
    before, here, after = (similar[rows, lag + d] for d in (-1, 0, 1))
    bend = before - 2 * here + after
    exact = lag + np.where(bend < -1e-6, 0.5 * (before - after) / np.minimum(bend, -1e-6), 0)
    is_voiced = is_good.any(1) & (here > 0.5) & (energy[:, 0] > 0.02)
    return np.where(is_voiced, 8000 / exact, 0).astype(np.float32)


def color_of(wave: npt.NDArray[np.float32], rate_hz: int, own_pitch_hz: float) -> VoiceColor:
    """The colour that comes closest to a reference recording: its median pitch, and a formant
    stretch that goes with it (short vocal tracts come with high voices). Silence changes nothing.
    """
    track = pitch_track(wave, rate_hz)
    track = track[track > 0]
    if len(track) < 10:
        return VoiceColor()
    ratio = float(np.clip(np.median(track) / own_pitch_hz, 0.5, 1.6))
    return VoiceColor(ratio, float(np.clip(ratio**0.3, 0.84, 1.15)))
