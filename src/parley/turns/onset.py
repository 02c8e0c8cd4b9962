"""Judges whether the start of speech during an answer is certainly not an acknowledgement.

A person who interrupts must wait until that is known. A network processes the last 0.7 s, at
`ASKED_MS` after speech was noticed and when it is over, and returns the odds that it is something
other than "mhm", "yeah" or "okay". If it is unsure, words decide later (`keywords.py`).

It is the first half of the encoder that judges the end of a turn, with a head that was trained on
recorded people and synthetic voices. The recipe is in training/turns/README.md.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np

from parley.media.pcm import Samples
from parley.turns.smart_turn import MelNetwork
from parley.vad.base import power_of

BUNDLED: Final = Path(__file__).parent / "data" / "onset.onnx"

ASKED_MS: Final = (160, 224, 288, 352, 416, 480, 544, 608)
"""Times after the detected start of speech at which the network is called; the audio starts about
20 ms earlier."""

OVER: Final = len(ASKED_MS)
"""Index of the judgement of speech that is over."""

LEAST_ODDS: Final = 1.4
"""Log odds from which it interrupts immediately. The results of voices left out of training are in
docs/log/conversation.md."""

LEVEL: Final = 0.05
"""RMS to which audio is scaled, as in training."""


Onsets = Callable[[Samples, int], float]
"""Returns the log odds that the audio (N,), 16 kHz, is not an acknowledgement, at this index of
`ASKED_MS` or when it is over (`OVER`). Shared by all conversations, called from any thread."""


@functools.cache
def bundled() -> Onsets:
    """The network that comes with the package, loaded once per process.

    Raises:
        SetupError: ONNX Runtime is absent.
    """
    network = MelNetwork(BUNDLED, hint="worker.interruption_words: false goes without it.")

    def log_odds(heard: Samples, asked: int) -> float:
        power = power_of(heard) if len(heard) else 0.0
        loud = heard * np.float32(LEVEL / max(power**0.5, 1e-4))
        return float(network.run(loud)[asked])

    return log_odds
