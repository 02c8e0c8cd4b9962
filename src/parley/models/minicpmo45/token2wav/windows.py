"""How speech tokens are cut into windows for the vocoder, and what a unit's sound is.

A window is up to 25 tokens to turn into sound plus 3 tokens of look-ahead, which stay in the buffer
and start the next window. A turn starts with three silent tokens, the past of its first window.
Knows nothing of tensors or models.

`k` counts speech tokens, one token is 960 samples. Source: speech.md 4.1, 4.2; sessions.md 2.5,
2.6, 4.7.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

WINDOW_TOKENS = 25
"""Tokens that a full window turns into sound: one second."""

WINDOW_FRAMES = 2 * WINDOW_TOKENS
"""Mel frames of a full window, two per token; only calls of this length are captured."""

LOOK_AHEAD = 3
"""Tokens a window needs to see beyond what it turns into sound."""

SILENT_TOKEN = 4218
"""What a turn's buffer begins with, three times."""

FORCED_TOKENS = 5
"""Fewest tokens that a unit's window turns into sound."""

UNIT_SAMPLES = 24_000
"""Samples of one second at 24 kHz."""

Wave = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class VocoderWindow:
    """Tokens of one vocoder call. `is_last` turns all of them into sound and closes the stream."""

    tokens: tuple[int, ...]
    is_last: bool


class TurnBuffer:
    """Tokens of one turn that wait for the vocoder (half-duplex): full windows only.

    Args:
        first_tokens: that the first window of a turn turns into sound; less than `WINDOW_TOKENS`
            is heard sooner. What stays the same: docs/understand/minicpmo45.md.
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
            is_last: the turn is over; the rest comes out as the last window, and the buffer is
                ready for the next turn.
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
        """Tokens that the next window turns into sound; 0 if it is not complete."""
        return self._size if len(self.tokens) >= self._size + LOOK_AHEAD else 0


class UnitBuffer(TurnBuffer):
    """Tokens of a duplex turn: every unit speaks what it has, down to `FORCED_TOKENS`."""

    def _ready(self) -> int:
        count = min(WINDOW_TOKENS, len(self.tokens) - LOOK_AHEAD)
        return count if count >= FORCED_TOKENS else 0


def utterance_windows(tokens: Sequence[int]) -> list[VocoderWindow]:
    """Windows of a finished utterance (chat): no silent tokens in front, nothing spoken twice."""
    windows: list[VocoderWindow] = []
    rest = list(tokens)
    while len(rest) > WINDOW_TOKENS + LOOK_AHEAD:
        windows.append(VocoderWindow(tuple(rest[: WINDOW_TOKENS + LOOK_AHEAD]), False))
        del rest[:WINDOW_TOKENS]
    if rest:
        windows.append(VocoderWindow(tuple(rest), True))
    return windows


def sixteen_bit(wave: Wave) -> Wave:
    """What is left of a wave after a trip through 16 bits, as the duplex way makes it: clip, times
    32767, cut off the fraction, divide by 32768."""
    whole = (np.clip(wave, -1.0, 1.0) * np.float32(32767)).astype(np.int16)
    return whole.astype(np.float32) / np.float32(32768)


def unit_wave(parts: Sequence[Wave], *, ends_turn: bool) -> Wave:
    """The sound of one speaking unit.

    Nothing spoken is a second of silence. A unit inside a turn is at least a second long, filled
    with silence in front; the last one has the length it has, up to 1.28 s.
    """
    if not parts:
        return np.zeros(UNIT_SAMPLES, np.float32)
    wave = sixteen_bit(np.concatenate(parts))
    if ends_turn or len(wave) >= UNIT_SAMPLES:
        return wave
    return np.concatenate([np.zeros(UNIT_SAMPLES - len(wave), np.float32), wave])
