"""Finds speech in a recording by its level, which is good enough to split it between sentences.

It does not decide if a sound is speech; the voice detector of sessions does that.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt

from parley.media.pcm import Pcm

FRAME_S: Final = 0.02
PAUSE_S: Final = 0.5
"""Shorter silences do not split a sentence."""
MARGIN_S: Final = 0.15
"""Margin before and after, because words start quietly."""
LONGEST_S: Final = 28.0
"""Maximum length of a segment: recognisers process half a minute at a time."""
PIECE_S, SPLIT_S = 8.0, 0.3
"""Minimum length of a piece of a long turn, and of the pause in which it ends."""
MOST_S, SOFT_S = 14.0, 0.1
"""Maximum length of a piece, and the length of the moment that counts as its softest one."""
QUIETER: Final = 0.05
"""Share of the level of the loud parts below which audio counts as silence."""


def segments_of(pcm: Pcm) -> list[tuple[float, float]]:
    """Start and end of each segment in seconds, in order; empty if there is only silence."""
    heard = _loud_frames(pcm)
    if not len(heard):
        return []
    breaks = np.flatnonzero(np.diff(heard) * FRAME_S > PAUSE_S)
    firsts = [int(heard[0]), *(int(heard[place + 1]) for place in breaks)]
    lasts = [*(int(heard[place]) for place in breaks), int(heard[-1])]
    found: list[tuple[float, float]] = []
    for first, last in zip(firsts, lasts, strict=True):
        start = max(0.0, first * FRAME_S - MARGIN_S)
        end = min(pcm.duration_s, (last + 1) * FRAME_S + MARGIN_S)
        while end - start > LONGEST_S:
            found.append((start, start + LONGEST_S))
            start += LONGEST_S
        found.append((start, end))
    return found


def bounds_of(pcm: Pcm) -> tuple[float, float]:
    """Start and end of all speech in seconds, without a margin; of the whole audio if it is
    silent."""
    heard = _loud_frames(pcm)
    if not len(heard):
        return 0.0, pcm.duration_s
    return float(heard[0]) * FRAME_S, float(heard[-1] + 1) * FRAME_S


def _loud_frames(pcm: Pcm) -> npt.NDArray[np.intp]:
    """Indices of the frames that are not silent."""
    loudness = _loudness(pcm)
    return np.flatnonzero(loudness > _silence(loudness)) if len(loudness) else np.zeros(0, np.intp)


def _loudness(pcm: Pcm) -> npt.NDArray[np.float64]:
    """Level of each frame."""
    size = max(1, int(FRAME_S * pcm.rate_hz))
    frames = pcm.samples[: len(pcm) // size * size].reshape(-1, size)
    # Without each frame's own mean: microphones add a constant, and some voices do in speech only.
    return np.asarray(frames.std(axis=1, dtype=np.float64))


def _silence(loudness: npt.NDArray[np.float64]) -> float:
    """Maximum level of a silent frame."""
    return max(QUIETER * float(np.percentile(loudness, 95)), 1e-4)


def stretches_of(pcm: Pcm) -> list[tuple[float, float]]:
    """As `segments_of`, but with one segment for everything that a recogniser can process in one
    call."""
    found = segments_of(pcm)
    return [(0.0, pcm.duration_s)] if found and pcm.duration_s <= LONGEST_S else found


def pieces_of(pcm: Pcm) -> Iterator[tuple[Pcm, bool]]:
    """Audio of any length in pieces of at most `MOST_S`; each but the last ends in the first pause
    after `PIECE_S` or, without a pause, in the softest moment after it. The second value is true if
    more audio would not change the piece. Silent pieces are left out, because recognisers find
    words in silence."""
    loudness = _loudness(pcm)
    pause, least, most = (round(s / FRAME_S) for s in (SPLIT_S, PIECE_S, MOST_S))
    start, is_last = 0, False
    while not is_last:
        limit = min(start + most, len(loudness))
        ends = (
            end - pause // 2
            for end in range(start + least, limit, pause // 4)
            if loudness[end - pause : end].max() <= _silence(loudness[start:end])
        )
        is_longer = limit < len(loudness)
        end = next(ends, _softest(loudness, start + least, limit) if is_longer else limit)
        is_last = end == len(loudness)
        if not start or loudness[start:end].max(initial=0.0) > _silence(loudness[:end]):
            first, last = (round(place * FRAME_S * pcm.rate_hz) for place in (start, end))
            yield pcm.slice(first, len(pcm) if is_last else last), not is_last
        start = end


def _softest(loudness: npt.NDArray[np.float64], first: int, last: int) -> int:
    """The middle of the softest moment between two frames."""
    length = round(SOFT_S / FRAME_S)
    powers = np.convolve(np.square(loudness[first:last]), np.ones(length), "valid")
    return first + int(np.argmin(powers)) + length // 2
