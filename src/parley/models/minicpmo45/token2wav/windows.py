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

FORCED_TOKENS = 8
"""A unit's window may be as short as this: five tokens and the look-ahead."""

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
        self._size = first_tokens
        self.tokens: list[int] = []
        self.reset()

    def add(self, tokens: Iterable[int], *, is_last: bool = False) -> list[VocoderWindow]:
        """Append tokens and take the windows that are complete.

        Args:
            is_last: the turn is over; the rest comes out as the last window, and the buffer is
                ready for the next turn.
        """
        self.tokens += tokens
        windows: list[VocoderWindow] = []
        while len(self.tokens) >= self._size + LOOK_AHEAD:
            windows.append(VocoderWindow(tuple(self.tokens[: self._size + LOOK_AHEAD]), False))
            del self.tokens[: self._size]
            self._size = WINDOW_TOKENS
        if is_last:
            windows.append(VocoderWindow(tuple(self.tokens), True))
            self.reset()
        return windows

    def reset(self) -> None:
        self.tokens = [SILENT_TOKEN] * LOOK_AHEAD
        self._size = self._first_tokens


class UnitBuffer:
    """Tokens of a duplex turn: every unit speaks what it has, down to windows of eight tokens."""

    def __init__(self) -> None:
        self.tokens: list[int] = [SILENT_TOKEN] * LOOK_AHEAD

    def add(self, tokens: Iterable[int], *, ends_turn: bool) -> list[VocoderWindow]:
        """Append a unit's tokens and take its windows."""
        self.tokens += tokens
        windows: list[VocoderWindow] = []
        while len(self.tokens) >= FORCED_TOKENS:
            count = min(WINDOW_TOKENS + LOOK_AHEAD, len(self.tokens))
            windows.append(VocoderWindow(tuple(self.tokens[:count]), False))
            del self.tokens[: min(WINDOW_TOKENS, count - LOOK_AHEAD)]
        if ends_turn:
            if self.tokens:
                windows.append(VocoderWindow(tuple(self.tokens), True))
            self.reset()
        return windows

    def reset(self) -> None:
        """Start a turn, or drop it at a forced listen."""
        self.tokens = [SILENT_TOKEN] * LOOK_AHEAD


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
