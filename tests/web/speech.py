"""What the fake microphone hears: a spoken sentence and a pause, played again and again.

`python -m tests.web.speech FILE [SENTENCE]` writes it as a WAV file.
"""

import sys
from pathlib import Path

import numpy as np
from tests.support.speech import say

from parley.media import wav
from parley.media.pcm import INPUT_RATE_HZ, Pcm

SENTENCE = "Hello there, how are you doing today?"

BEFORE_S = 0.4
AFTER_S = 5.4
"""Silence around the sentence: calls wait for it in real time, and the answer to a sentence of two
seconds, which a test may listen to undisturbed, takes four of those after it."""


def write(path: Path, sentence: str = SENTENCE) -> Path:
    """The sentence, with silence before and after it."""
    before, after = (
        np.zeros(round(seconds * INPUT_RATE_HZ), np.float32) for seconds in (BEFORE_S, AFTER_S)
    )
    samples = np.concatenate([before, say(sentence).samples, after])
    wav.save(path, Pcm(samples, INPUT_RATE_HZ))
    return path


if __name__ == "__main__":
    write(Path(sys.argv[1]), *sys.argv[2:3])
