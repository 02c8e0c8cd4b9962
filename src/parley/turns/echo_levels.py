"""How loud is the echo of what is played, per band? Learned while the user is silent; pure.

An echo is no louder, in any band, than the loudest of what was played in the last half second,
times what that band usually is. So neither the delay has to be known nor what walls and an
overdriven loudspeaker make of the waveform. Speech over the echo is louder in most of what counts.

On recordings of people the levels account for 65 % and more of 0.4 s of echo (one in 50 below; dry,
in rooms of 0.35 to 0.9 s with walls as loud as the direct sound, and from an overdriven
loudspeaker), and for 59 % at most of 0.4 s of a person who speaks 10 dB louder than it (one in 50
above).
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from parley.media.pcm import Samples

EXPLAINED: Final = 0.62
EXPLAINED_SHORT: Final = 0.44
"""From these shares on a sound, or one of less than 0.35 s, is an echo."""
EXPLAINED_MOMENT: Final = 0.1
"""From this share on one of less than 0.128 s may be."""

HELD_FRAMES: Final = 14
HELD_S: Final = 0.032 * HELD_FRAMES
"""Until its echo is over: network, devices, and most of what a room makes of it."""

LEARNT_FRAMES: Final = 160
"""Five seconds of played sound show how loud its echo is."""
LEAST_FRAMES, HASTY_LEAST_FRAMES = 16, 6
QUANTILE: Final = 0.9
MARGIN: Final = 2.0
"""3 dB."""

_EDGES: Final = (5, 6, 8, 10, 11, 13, 16, 19, 22, 27, 32, 38, 45, 53, 62)
"""In steps of 31.25 Hz: 14 bands from 150 Hz to 2 kHz."""

Powers = npt.NDArray[np.float64]
"""Per frame and band, shape (F, 14)."""


def powers_of(heard: Samples) -> Powers:
    """Of a microphone (N,), 16 kHz, every 32 ms."""
    return powers(heard, 512, _EDGES)


def powers_of_slow(played: Samples) -> Powers:
    """The same at 4 kHz."""
    return powers(played, 128, _EDGES)


def powers(sound: Samples, frame: int, edges: Sequence[int]) -> Powers:
    """Mean power in the bands between `edges`, in bins of a frame's spectrum."""
    whole = sound[: len(sound) // frame * frame].reshape(-1, frame)
    power = np.abs(np.fft.rfft(whole * np.hanning(frame), axis=1)) ** 2
    return np.stack([power[:, a:b].mean(axis=1) for a, b in itertools.pairwise(edges)], axis=1)


def held(powers: Powers, frames: int) -> Powers:
    """Of the last `frames` frames, the most in each and the `HELD_FRAMES` before it."""
    padded = np.zeros((frames + HELD_FRAMES, powers.shape[1]))
    padded[max(0, len(padded) - len(powers)) :] = powers[-len(padded) :]
    windows = np.lib.stride_tricks.sliding_window_view(padded, HELD_FRAMES + 1, axis=0)
    found: Powers = windows.max(axis=2)
    return found


class EchoLevels:
    def __init__(self, least_frames: int = LEAST_FRAMES) -> None:
        self._least_frames = least_frames
        self._ratios: deque[npt.NDArray[np.float64]] = deque(maxlen=LEARNT_FRAMES)
        self._usual: npt.NDArray[np.float64] | None = None

    def learn(self, heard: Powers, expected: Powers) -> None:
        """Frames in which only the echo was heard, if anything.

        Args:
            expected: `held` of what was played.
        """
        is_played = expected.sum(axis=1) > 0
        self._ratios.extend(heard[is_played] / np.maximum(expected[is_played], 1e-9))
        self._usual = None

    def explained(self, heard: Powers, expected: Powers) -> float | None:
        """The share of a sound that may be echo, 0 to 1, each band and frame by the root of its
        power; None: too little was heard of what is played."""
        if len(self._ratios) < self._least_frames or not len(heard):
            return None
        if self._usual is None:
            self._usual = np.quantile(np.array(self._ratios), QUANTILE, axis=0)
        weights = np.sqrt(heard)
        whole = float(weights.sum())
        is_echo = heard <= expected * self._usual * MARGIN
        return float(weights[is_echo].sum()) / whole if whole > 0 else None
