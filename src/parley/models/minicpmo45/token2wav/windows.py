"""Splits speech tokens into windows for the vocoder, and assembles the audio of a unit.

A window consists of up to 25 tokens that become audio and 3 tokens of look-ahead, which stay in the
buffer and start the next window. A turn starts with three silent tokens, the past of its first
window. Independent of tensors and models.

`k` counts speech tokens, one token is 960 samples. Source: speech.md 4.1, 4.2; sessions.md 2.5,
2.6, 4.7.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

WINDOW_TOKENS = 25
"""Number of tokens that become audio in a full window: one second."""

WINDOW_FRAMES = 2 * WINDOW_TOKENS
"""Mel frames of a full window, two per token; only calls of this length are captured."""

LOOK_AHEAD = 3
"""Number of look-ahead tokens of a window."""

SILENT_TOKEN = 4218
"""Silent token with which a turn's buffer starts, three times."""

FORCED_TOKENS = 5
"""Minimum number of tokens that become audio in a unit's window."""

UNIT_SAMPLES = 24_000
"""Samples of one second at 24 kHz."""

Wave = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class VocoderWindow:
    """Tokens of one vocoder call. With `is_last` all of them become audio, and the stream is
    closed."""

    tokens: tuple[int, ...]
    is_last: bool


class TurnBuffer:
    """Tokens of one turn that wait for the vocoder (half-duplex): full windows only.

    Args:
        first_tokens: number of tokens that become audio in the first window of a turn; fewer than
            `WINDOW_TOKENS` are heard sooner. See docs/understand/minicpmo45.md for the
            consequences.
    """

    def __init__(self, first_tokens: int = WINDOW_TOKENS) -> None:
        self._first_tokens = first_tokens
        self.reset()

    def reset(self) -> None:
        """Start a turn, or drop it at a forced listen."""
        self.tokens = [SILENT_TOKEN] * LOOK_AHEAD
        self._size = self._first_tokens

    def add(self, tokens: Iterable[int], *, is_last: bool = False) -> list[VocoderWindow]:
        """Append tokens and take the windows that are complete.

        Args:
            is_last: True if the turn is over: the rest is returned as the last window, and the
                buffer is ready for the next turn.
        """
        self.tokens += tokens
        windows: list[VocoderWindow] = []
        while count := self._ready():
            windows.append(VocoderWindow(tuple(self.tokens[: count + LOOK_AHEAD]), False))
            del self.tokens[:count]
            self._size = WINDOW_TOKENS
        if is_last:
            windows.append(VocoderWindow(tuple(self.tokens), True))
            self.reset()
        return windows

    def _ready(self) -> int:
        """Number of tokens that become audio in the next window; 0 if it is not complete."""
        return self._size if len(self.tokens) >= self._size + LOOK_AHEAD else 0


class UnitBuffer(TurnBuffer):
    """Tokens of a duplex turn: every unit speaks what it has, if there are at least
    `FORCED_TOKENS`."""

    def _ready(self) -> int:
        count = min(WINDOW_TOKENS, len(self.tokens) - LOOK_AHEAD)
        return count if count >= FORCED_TOKENS else 0


def utterance_windows(tokens: Sequence[int]) -> list[VocoderWindow]:
    """Windows of a finished utterance (chat), without silent tokens at the start."""
    windows: list[VocoderWindow] = []
    rest = list(tokens)
    while len(rest) > WINDOW_TOKENS + LOOK_AHEAD:
        windows.append(VocoderWindow(tuple(rest[: WINDOW_TOKENS + LOOK_AHEAD]), False))
        del rest[:WINDOW_TOKENS]
    if rest:
        windows.append(VocoderWindow(tuple(rest), True))
    return windows


def sixteen_bit(wave: Wave) -> Wave:
    """The effect of converting samples to 16 bits and back, as in duplex: clip, multiply by 32767,
    truncate, divide by 32768."""
    whole = (np.clip(wave, -1.0, 1.0) * np.float32(32767)).astype(np.int16)
    return whole.astype(np.float32) / np.float32(32768)


def unit_wave(parts: Sequence[Wave], *, ends_turn: bool) -> Wave:
    """The audio of one speaking unit.

    Without speech it is a second of silence. A unit within a turn is at least a second long, padded
    with silence at its start; the last one is unpadded, up to 1.28 s.
    """
    if not parts:
        return np.zeros(UNIT_SAMPLES, np.float32)
    wave = sixteen_bit(np.concatenate(parts))
    if ends_turn or len(wave) >= UNIT_SAMPLES:
        return wave
    return np.concatenate([np.zeros(UNIT_SAMPLES - len(wave), np.float32), wave])
