"""The Silero detector, run by ONNX Runtime on one CPU thread.

The network ships inside the installed `silero-vad` package; that package itself is never imported,
because it would load torch. One inference session serves the whole process (it keeps nothing
between runs); what the network remembers of a conversation lives in each `SileroDetector`.

Shapes: `H` hops, one following the other, `S` = 128 state channels. The network takes any number of
hops in one run, with the same results to the last bit as one by one at a third to half the cost.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np

from parley.errors import SetupError
from parley.media.pcm import Samples

MODEL_FILE = Path("data") / "silero_vad_16k_sequence.onnx"
"""Takes any number of hops in one run; `silero_vad.onnx` next to it takes one."""

HOP_SAMPLES = 512
"""Samples of one run at 16 kHz. Source: silero-vad 5 and 6, `OnnxWrapper`."""

CONTEXT_SAMPLES = 64
"""The end of the previous hop, repeated in front of each. Source: as above."""

STATE_SHAPE = (1, 1, 128)

State = tuple[Samples, Samples]
"""Hidden and cell state of the network's LSTM."""

_SILENT: State = (np.zeros(STATE_SHAPE, np.float32), np.zeros(STATE_SHAPE, np.float32))

_HINT = "Install the worker's packages again, or start with --vad energy."


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


class SileroModel:
    """The network, loaded once per process. Call it to get a detector for one conversation."""

    def __init__(self, path: Path | None = None) -> None:
        """Load the network.

        Raises:
            SetupError: ONNX Runtime or the network is absent, or the network has inputs that
                this module does not know.
        """
        try:
            import onnxruntime
        except ImportError as error:
            raise SetupError("onnxruntime is not installed.", hint=_HINT) from error

        options = onnxruntime.SessionOptions()
        # One window costs a tenth of a millisecond: more threads would only wait for each other.
        options.inter_op_num_threads = 1
        options.intra_op_num_threads = 1
        options.log_severity_level = 3
        self._session: Any = onnxruntime.InferenceSession(
            str(path or model_path()), sess_options=options, providers=["CPUExecutionProvider"]
        )
        names = {node.name for node in self._session.get_inputs()}
        if names != {"input", "h", "c"}:
            raise SetupError(
                f"The installed silero-vad network wants the inputs {sorted(names)}; "
                "this version of parley knows c, h and input.",
                hint="Install silero-vad 6.2.3.",
            )

    def __call__(self) -> SileroDetector:
        return SileroDetector(self)

    def run(self, hops: Samples, state: State) -> tuple[Samples, State]:
        """Some hops.

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
        self._context: Samples = np.zeros(CONTEXT_SAMPLES, np.float32)

    def probabilities(self, windows: Samples) -> list[float]:
        """The larger probability of each window's two halves; of half a window, its own.

        The protocol counts in windows of 1024 samples, the network hears 512. A syllable that
        begins in the second half must start the speech, and one that ends in the first half must
        not yet begin a pause: the maximum does both, at the price of a boundary that errs by half
        a window (32 ms) towards speech.
        """
        fresh = windows.reshape(-1, HOP_SAMPLES)
        hops = np.empty((len(fresh), CONTEXT_SAMPLES + HOP_SAMPLES), np.float32)
        hops[:, CONTEXT_SAMPLES:] = fresh
        hops[0, :CONTEXT_SAMPLES] = self._context
        hops[1:, :CONTEXT_SAMPLES] = fresh[:-1, -CONTEXT_SAMPLES:]
        probabilities, self._state = self._model.run(hops, self._state)
        self._context = fresh[-1, -CONTEXT_SAMPLES:].copy()
        heard: list[float] = probabilities.reshape(len(windows), -1).max(axis=1).tolist()
        return heard

    def reset(self) -> None:
        self._state = _SILENT
        self._context = np.zeros(CONTEXT_SAMPLES, np.float32)

    def snapshot(self) -> tuple[State, Samples]:
        return self._state, self._context

    def restore(self, kept: tuple[State, Samples]) -> None:
        self._state, self._context = kept
