"""Levels of the echo of played audio, per band; learned while the user is silent. Pure.

In any band, an echo is at most as loud as the loudest audio played in the last half second, times
the usual ratio of that band. So neither the delay needs to be known, nor how walls and an
overdriven loudspeaker change the waveform. Speech over the echo is louder in most of the bands and
frames that count.

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
"""Minimum share at which audio, or audio of less than 0.35 s, is an echo."""
EXPLAINED_MOMENT: Final = 0.1
"""Minimum share at which audio of less than 0.128 s may be an echo."""

HELD_FRAMES: Final = 14
HELD_S: Final = 0.032 * HELD_FRAMES
"""Time until the echo of played audio is over: network, devices, and most of the reverberation."""

LEARNT_FRAMES: Final = 160
"""Number of frames from which the echo's level is learnt: five seconds of played audio."""
LEAST_FRAMES, HASTY_LEAST_FRAMES = 16, 6
QUANTILE: Final = 0.9
MARGIN: Final = 2.0
"""Factor on the usual ratio: 3 dB."""

_EDGES: Final = (5, 6, 8, 10, 11, 13, 16, 19, 22, 27, 32, 38, 45, 53, 62)
"""In steps of 31.25 Hz: 14 bands from 150 Hz to 2 kHz."""

Powers = npt.NDArray[np.float64]
"""Per frame and band, shape (F, 14)."""


def powers_of(heard: Samples) -> Powers:
    """Powers of a microphone (N,), 16 kHz, every 32 ms."""
    return powers(heard, 512, _EDGES)


def powers_of_slow(played: Samples) -> Powers:
    """The same for audio at 4 kHz."""
    return powers(played, 128, _EDGES)


def powers(sound: Samples, frame: int, edges: Sequence[int]) -> Powers:
    """Mean power in the bands between `edges`, in bins of a frame's spectrum."""
    whole = sound[: len(sound) // frame * frame].reshape(-1, frame)
    power = np.abs(np.fft.rfft(whole * np.hanning(frame), axis=1)) ** 2
    return np.stack([power[:, a:b].mean(axis=1) for a, b in itertools.pairwise(edges)], axis=1)


def held(powers: Powers, frames: int) -> Powers:
    """For each of the last `frames` frames, the maximum of it and the `HELD_FRAMES` before it."""
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
        """Learn from frames in which only the echo was heard, if anything.

        Args:
            expected: `held` of the played audio.
        """
        is_played = expected.sum(axis=1) > 0
        self._ratios.extend(heard[is_played] / np.maximum(expected[is_played], 1e-9))
        self._usual = None

    def explained(self, heard: Powers, expected: Powers) -> float | None:
        """The share of the audio that may be echo, 0 to 1, each band and frame weighted by the root
        of its power; None if too little echo has been heard."""
        if len(self._ratios) < self._least_frames or not len(heard):
            return None
        if self._usual is None:
            self._usual = np.quantile(np.array(self._ratios), QUANTILE, axis=0)
        weights = np.sqrt(heard)
        whole = float(weights.sum())
        is_echo = heard <= expected * self._usual * MARGIN
        return float(weights[is_echo].sum()) / whole if whole > 0 else None
