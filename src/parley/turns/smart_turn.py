"""Judges the end of a turn by its sound: a network of Smart Turn's shape, run by ONNX Runtime.

It runs on one thread, processes Whisper's log-mel features of the last seconds, padded with silence
in front, and returns one probability. The file determines the number of seconds: its input has the
shape (1, 80, F), with frames of 10 ms. The network that comes with the package has F = 400; Smart
Turn v3 has 800.

Source: Smart Turn v3 (Daily, BSD-2-Clause); features as `WhisperFeatureExtractor(chunk_length=8)`
with `do_normalize`. The recipe of ours is in training/turns/README.md.
"""

from __future__ import annotations

import functools
import math
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from parley.errors import SetupError
from parley.media.mel_filters import whisper_features
from parley.media.pcm import INPUT_RATE_HZ, Samples
from parley.turns.end_of_turn import EndOfTurn
from parley.vad.silero import one_thread

BUNDLED: Final = Path(__file__).parent / "data" / "end_of_turn.onnx"

BINS: Final = 80
HOP: Final = INPUT_RATE_HZ // 100
_NORMALISED_S: Final = 8
"""Length over which levels are normalised, regardless of the network's input length, as in its
training."""


class MelNetwork:
    """A network over Whisper's features of the last audio, on one thread."""

    def __init__(self, path: Path, *, hint: str) -> None:
        """Load the network.

        Raises:
            SetupError: ONNX Runtime is absent, or the file has another shape.
        """
        self._session = one_thread(
            path,
            absent="Install the worker's packages again, or set worker.end_of_turn to silence "
            "and worker.interruption_words to false.",
            broken=hint,
        )
        inputs = self._session.get_inputs()
        shape = inputs[0].shape if len(inputs) == 1 else []
        if len(shape) != 3 or shape[1] != BINS or not isinstance(shape[2], int):
            raise SetupError(
                f"The network at {path} takes {[one.shape for one in inputs]}; "
                f"one of Smart Turn's shape takes (1, {BINS}, F).",
                hint=hint,
            )
        self._input = inputs[0].name
        self._frames = shape[2]

    def run(self, audio: Samples) -> npt.NDArray[np.float32]:
        """The network's first output for the end of `audio` (N,), 16 kHz, flattened."""
        features = log_mel(audio, self._frames)[np.newaxis]
        (found, *_) = self._session.run(None, {self._input: features})
        return np.reshape(found, -1)


@functools.cache
def end_of_turn(path: Path = BUNDLED) -> EndOfTurn:
    """The network, loaded once per process; runs concurrently in several threads.

    Raises:
        SetupError: ONNX Runtime is absent, or the file has another shape.
    """
    network = MelNetwork(path, hint="worker.end_of_turn is model, silence, or an ONNX file.")
    return lambda audio: float(network.run(audio)[0])


def log_mel(audio: Samples, frames: int) -> npt.NDArray[np.float32]:
    """Whisper's features of the end of `audio` (N,): shape (`BINS`, frames)."""
    count = frames * HOP
    heard = audio[-count:].astype(np.float32, copy=False)
    # The mean and the variance include silence in front, as if the input had 8 seconds.
    whole = max(count, _NORMALISED_S * INPUT_RATE_HZ)
    mean = float(heard.sum(dtype=np.float64)) / whole
    power = float(np.einsum("n,n->", heard, heard, dtype=np.float64)) / whole
    half = 200  # Half a window.
    padded = np.zeros(half + count + half, np.float32)
    padded[half + count - len(heard) : half + count] = heard
    padded = (padded - np.float32(mean)) / np.float32(math.sqrt(power - mean * mean + 1e-7))
    padded[half + count :] = padded[count - 1 + half - 1 : count - 2 : -1]
    if count == whole:
        # Shorter audio is preceded by silence; audio that fills the input is reflected.
        padded[:half] = padded[2 * half : half : -1]
    return whisper_features(padded, frames)
