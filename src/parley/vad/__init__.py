"""Is the user speaking? Detectors return probabilities, `UtteranceFinder` finds utterances."""

from parley.vad.base import Detector, DetectorFactory
from parley.vad.utterance import (
    SpeechBegan,
    SpeechEnded,
    Utterance,
    UtteranceFinder,
    VadEvent,
)

__all__ = [
    "Detector",
    "DetectorFactory",
    "SpeechBegan",
    "SpeechEnded",
    "Utterance",
    "UtteranceFinder",
    "VadEvent",
]
