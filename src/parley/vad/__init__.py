"""Is someone speaking? Detectors give probabilities, `UtteranceFinder` makes utterances of them."""

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
