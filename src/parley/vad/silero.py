"""The Silero detector, run by ONNX Runtime on one CPU thread.

The network is part of the installed `silero-vad` package; that package itself is never imported,
because it would load torch. One inference session serves the whole process (it keeps no state
between runs); the network's state of a conversation is in its `SileroDetector`.

Shapes: `H` contiguous hops, `S` = 128 state channels. The network processes any number of hops in
one run. The results are bit-identical to those of single hops, at a third to half of the cost.

The network relies on the fundamental of a voice, which telephones remove: it does not detect some
people at all by telephone. The fundamental can be restored, because the envelope of such a voice
rises and falls with it.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from parley.errors import SetupError
from parley.media.pcm import Samples

MODEL_FILE = Path("data") / "silero_vad_16k_sequence.onnx"
"""Processes any number of hops in one run; `silero_vad.onnx` next to it processes one."""

HOP_SAMPLES = 512
"""Samples of one run at 16 kHz. Source: silero-vad 5 and 6, `OnnxWrapper`."""

CONTEXT_SAMPLES = 64
"""The end of the previous hop, repeated in front of each. Source: as above."""

FAST_SAMPLES, SLOW_SAMPLES = 48, 224
"""3 and 14 ms: a component that changes more slowly than in the first and faster than in the second
is the fundamental."""

NARROW_SHARE = 0.06
"""Share of a hop's power below about 300 Hz, below which its fundamental is missing. Source:
docs/log/conversation.md."""

STATE_SHAPE = (1, 1, 128)

State = tuple[Samples, Samples]
"""Hidden and cell state of the network's LSTM."""

_SILENT: State = (np.zeros(STATE_SHAPE, np.float32), np.zeros(STATE_SHAPE, np.float32))

_HINT = 'Install the worker\'s packages again, or set worker.vad = "energy".'


def model_path() -> Path:
    """Path of the network in the installed package.

    Raises:
        SetupError: the package or the file is absent.
    """
    spec = importlib.util.find_spec("silero_vad")
    if spec is None or spec.origin is None:
        raise SetupError("The voice detector is not installed (package silero-vad).", hint=_HINT)
    path = Path(spec.origin).parent / MODEL_FILE
    if not path.is_file():
        raise SetupError("The installed silero-vad package has no ONNX network.", hint=_HINT)
    return path


def one_thread(path: Path, *, absent: str, broken: str) -> Any:
    """Load an ONNX network to run on one thread: it is so fast that more threads would wait for
    each other.

    Raises:
        SetupError: ONNX Runtime is absent, or cannot load the file; each with its hint.
    """
    try:
        import onnxruntime
    except ImportError as error:
        raise SetupError("onnxruntime is not installed.", hint=absent) from error
    options = onnxruntime.SessionOptions()
    options.inter_op_num_threads = options.intra_op_num_threads = 1
    options.log_severity_level = 3
    # Without VNNI, x86 adds products of 8 bits in 16 bits, which saturate: the networks of `turns`
    # then take sentences for acknowledgements and miss ends of turns (docs/log/conversation.md).
    options.add_session_config_entry("session.x64quantprecision", "1")
    try:
        return onnxruntime.InferenceSession(
            str(path), sess_options=options, providers=["CPUExecutionProvider"]
        )
    except Exception as error:
        raise SetupError(
            f"The network could not be loaded from {path}: {error}", hint=broken
        ) from error


class SileroModel:
    """The network, loaded once per process. Call it to get a detector for one conversation."""

    def __init__(self, path: Path | None = None) -> None:
        """Load the network.

        Raises:
            SetupError: ONNX Runtime or the network is absent, or the network has inputs that
                this module does not know.
        """
        self._session = one_thread(path or model_path(), absent=_HINT, broken=_HINT)
        names = {node.name for node in self._session.get_inputs()}
        if names != {"input", "h", "c"}:
            raise SetupError(
                f"The installed silero-vad network expects the inputs {sorted(names)}; "
                "this version of parley knows c, h and input.",
                hint="Install silero-vad 6.2.3.",
            )

    def __call__(self) -> SileroDetector:
        return SileroDetector(self)

    def run(self, hops: Samples, state: State) -> tuple[Samples, State]:
        """Run the network on hops.

        Args:
            hops: shape (H, CONTEXT_SAMPLES + HOP_SAMPLES).
            state: two of shape (1, 1, S).

        Returns:
            The probabilities, shape (H,), and the next state.
        """
        hidden, cell = state
        probabilities, hidden, cell = self._session.run(
            None, {"input": hops, "h": hidden, "c": cell}
        )
        return probabilities, (hidden, cell)


class SileroDetector:
    """One conversation's detector on a shared `SileroModel`."""

    def __init__(self, model: SileroModel) -> None:
        self._model = model
        self._state: State = _SILENT
        self._before: Samples = np.zeros(SLOW_SAMPLES + CONTEXT_SAMPLES, np.float32)

    def probabilities(self, windows: Samples) -> list[float]:
        """The larger probability of each window's two halves; for half a window, its own.

        The protocol has windows of 1024 samples, the network processes 512. A syllable that starts
        in the second half must start the speech, and one that ends in the first half must not yet
        start a pause: the maximum does both, at the cost of a boundary that errs by half a window
        (32 ms) towards speech.
        """
        kept = len(self._before)
        sound = np.concatenate([self._before, windows.reshape(-1)])
        hops = np.lib.stride_tricks.sliding_window_view(sound, kept + HOP_SAMPLES)[::HOP_SAMPLES]
        probabilities, self._state = self._model.run(_with_fundamental(hops), self._state)
        self._before = sound[-kept:].copy()
        heard: list[float] = probabilities.reshape(len(windows), -1).max(axis=1).tolist()
        return heard

    def reset(self) -> None:
        self._state = _SILENT
        self._before = np.zeros(SLOW_SAMPLES + CONTEXT_SAMPLES, np.float32)

    def snapshot(self) -> tuple[State, Samples]:
        return self._state, self._before

    def restore(self, kept: tuple[State, Samples]) -> None:
        self._state, self._before = kept


def _with_fundamental(hops: Samples) -> Samples:
    """Convert hops with their preceding samples, (H, SLOW_SAMPLES + CONTEXT_SAMPLES + HOP_SAMPLES),
    to the network's input, and add the fundamental where it is missing."""
    heard = hops[:, SLOW_SAMPLES:].copy()
    low_power = np.square(_moving_mean(hops, FAST_SAMPLES)).mean(1)
    is_narrow = low_power < NARROW_SHARE * np.square(heard, dtype=np.float64).mean(1)
    if is_narrow.any():
        envelope = np.abs(hops[is_narrow])
        fast, slow = (_moving_mean(envelope, count) for count in (FAST_SAMPLES, SLOW_SAMPLES))
        heard[is_narrow] += fast - slow
    return heard


def _moving_mean(hops: Samples, count: int) -> npt.NDArray[np.float64]:
    """Mean of the last `count` samples, at all but the first `SLOW_SAMPLES`."""
    sums = np.cumsum(hops, axis=1, dtype=np.float64)
    found: npt.NDArray[np.float64] = sums[:, SLOW_SAMPLES:] - sums[:, SLOW_SAMPLES - count : -count]
    return found / count
