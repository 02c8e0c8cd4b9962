"""Changes the tempo of audio at constant pitch while it is generated, with FFmpeg's `atempo`."""

from __future__ import annotations

import itertools
from fractions import Fraction
from typing import Any, Final

import numpy as np

from parley.errors import InvalidRequest
from parley.media.pcm import Pcm

SLOWEST: Final = 0.5
"""Limit of one filter; two in a row are used beyond it."""


class Tempo:
    """Changes the speed of mono audio, piece by piece.

    Args:
        speed: 0.25 to 4; 1 means no change.

    Raises:
        InvalidRequest: PyAV is not installed.
    """

    def __init__(self, speed: float, rate_hz: int) -> None:
        try:
            import av
        except ImportError:
            raise InvalidRequest(
                "speed must be 1.0 on this server, until PyAV is installed.", field="speed"
            ) from None
        self._av: Any = av
        self._rate_hz = rate_hz
        self._samples = 0
        graph = av.filter.Graph()
        layout = {"sample_rate": str(rate_hz), "sample_fmt": "flt", "channel_layout": "mono"}
        parts: list[Any] = [
            graph.add("abuffer", time_base=f"1/{rate_hz}", **layout),
            *(graph.add("atempo", str(step)) for step in _steps(speed)),
            graph.add("aformat", "sample_fmts=flt:channel_layouts=mono"),
            graph.add("abuffersink"),
        ]
        for before, after in itertools.pairwise(parts):
            before.link_to(after)
        graph.configure()
        # FFmpeg's filters do not keep a reference to it.
        self._graph = graph
        self._source, self._sink = parts[0], parts[-1]

    def add(self, pcm: Pcm) -> Pcm:
        """Add audio; returns the part that is final."""
        if len(pcm):
            samples = pcm.samples.astype(np.float32).reshape(1, -1)
            frame = self._av.AudioFrame.from_ndarray(samples, format="flt", layout="mono")
            frame.sample_rate, frame.pts = self._rate_hz, self._samples
            frame.time_base = Fraction(1, self._rate_hz)
            self._samples += len(pcm)
            self._source.push(frame)
        return self._taken()

    def finish(self) -> Pcm:
        """Return the rest."""
        self._source.push(None)
        return self._taken()

    def _taken(self) -> Pcm:
        pieces = [np.zeros(0, np.float32)]
        while True:
            try:
                pieces.append(self._sink.pull().to_ndarray().reshape(-1))
            except (self._av.error.BlockingIOError, self._av.error.EOFError):
                break
        return Pcm(np.concatenate(pieces).astype(np.float32), self._rate_hz)


def _steps(speed: float) -> list[float]:
    """A speed as a chain of filters, each within its range."""
    return [speed] if speed >= SLOWEST else [SLOWEST, speed / SLOWEST]
