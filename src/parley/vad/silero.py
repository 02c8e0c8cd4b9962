"""The Silero detector, run by ONNX Runtime on one CPU thread.

The network ships inside the installed `silero-vad` package; that package itself is never imported,
because it would load torch. One inference session serves the whole process (it keeps nothing
between runs); what the network remembers of a conversation lives in each `SileroDetector`.

Shapes: `B` = 1 conversation, `S` = 128 state channels.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np

from parley.errors import SetupError
from parley.media.pcm import Samples
from parley.vad.base import RATE_HZ, WINDOW_SAMPLES

MODEL_FILE = Path("data") / "silero_vad.onnx"

HOP_SAMPLES = 512
"""What the network takes per run at 16 kHz. Source: silero-vad 5 and 6, `OnnxWrapper`."""

CONTEXT_SAMPLES = 64
"""The end of the previous hop, repeated in front of each. Source: as above."""

STATE_SHAPE = (2, 1, 128)

_HINT = "Install the worker's packages again, or start with --vad energy."


def model_path() -> Path:
    """Where the installed package keeps its network.

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
        if not {"input", "state"} <= names <= {"input", "state", "sr"}:
            raise SetupError(
                f"The installed silero-vad network wants the inputs {sorted(names)}; "
                "this version of parley knows input, state and sr.",
                hint="Install silero-vad 6.",
            )
        self._fixed = {"sr": np.array(RATE_HZ, np.int64)} if "sr" in names else {}

    def __call__(self) -> SileroDetector:
        return SileroDetector(self)

    def run(self, samples: Samples, state: Samples) -> tuple[float, Samples]:
        """One hop.

        Args:
            samples: shape (CONTEXT_SAMPLES + HOP_SAMPLES,).
            state: shape (2, B, S).

        Returns:
            The probability and the next state.
        """
        probability, next_state = self._session.run(
            None, {"input": samples[np.newaxis, :], "state": state, **self._fixed}
        )
        return float(probability[0, 0]), next_state


class SileroDetector:
    """One conversation's ear on a shared `SileroModel`."""

    def __init__(self, model: SileroModel) -> None:
        self._model = model
        self._state: Samples = np.zeros(STATE_SHAPE, np.float32)
        self._context: Samples = np.zeros(CONTEXT_SAMPLES, np.float32)

    def probability(self, window: Samples) -> float:
        """The larger probability of the window's two halves.

        The protocol counts in windows of 1024 samples, the network hears 512. A syllable that
        begins in the second half must start the speech, and one that ends in the first half must
        not yet begin a pause: the maximum does both, at the price of a boundary that errs by half
        a window (32 ms) towards speech.
        """
        heard = 0.0
        for start in range(0, WINDOW_SAMPLES, HOP_SAMPLES):
            hop = window[start : start + HOP_SAMPLES]
            samples = np.concatenate([self._context, hop])
            probability, self._state = self._model.run(samples, self._state)
            self._context = hop[-CONTEXT_SAMPLES:].copy()
            heard = max(heard, probability)
        return heard

    def reset(self) -> None:
        self._state = np.zeros(STATE_SHAPE, np.float32)
        self._context = np.zeros(CONTEXT_SAMPLES, np.float32)
