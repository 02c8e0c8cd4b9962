"""Is the beginning of what a person says during an answer certainly not an acknowledgement?

A person who interrupts waits until that is known. A network hears the last 0.7 s, `ASKED_MS`
after speech was noticed and when it is over, and says how likely it is something else
than "mhm", "yeah" or "okay". Where it is unsure, words decide (`keywords.py`), later.

It is the first half of the encoder that hears the end of a turn, with a head that was taught on
recorded people and synthetic voices. How: training/turns/README.md.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np

from parley.media.pcm import Samples
from parley.turns.smart_turn import MelNetwork

BUNDLED: Final = Path(__file__).parent / "data" / "onset.onnx"

ASKED_MS: Final = (160, 224, 288, 352, 416, 480, 544, 608)
"""After so much time since it began; the sound is 20 ms older than that."""

OVER: Final = len(ASKED_MS)
"""The place of the judgement of what is over."""

LEAST_ODDS: Final = 1.4
"""Log odds from which it interrupts immediately. What voices left out of the teaching reach:
docs/understand/turn-taking.md."""

LEVEL: Final = 0.05
"""RMS to which sound is scaled, as it was for training."""


Onsets = Callable[[Samples, int], float]
"""Log odds of what was heard (N,), 16 kHz, being no acknowledgement, asked at that place of
`ASKED_MS` or when it is over (`OVER`). Shared by all conversations, called from any thread."""


@functools.cache
def bundled() -> Onsets:
    """The network that comes with the package, loaded once per process.

    Raises:
        SetupError: ONNX Runtime is absent.
    """
    network = MelNetwork(BUNDLED, hint="worker.interruption_words: false goes without it.")

    def log_odds(heard: Samples, asked: int) -> float:
        power = float(np.einsum("s,s->", heard, heard, dtype=np.float64)) / max(1, len(heard))
        loud = heard * np.float32(LEVEL / max(power**0.5, 1e-4))
        return float(network.run(loud)[asked])

    return log_odds
