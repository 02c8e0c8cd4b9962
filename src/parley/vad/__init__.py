"""Voice detection: detectors return probabilities of speech, `UtteranceFinder` finds utterances."""

from parley.vad.base import Detector as Detector
from parley.vad.base import DetectorFactory as DetectorFactory
from parley.vad.utterance import SpeechBegan as SpeechBegan
from parley.vad.utterance import SpeechEnded as SpeechEnded
from parley.vad.utterance import Utterance as Utterance
from parley.vad.utterance import UtteranceFinder as UtteranceFinder
from parley.vad.utterance import VadEvent as VadEvent
