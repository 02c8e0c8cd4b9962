"""What the fake microphone hears: a spoken sentence and a pause, played again and again.

`python -m tests.web.speech FILE [SENTENCE]` writes it as a WAV file.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from tests.support.speech import say

from parley.media import wav
from parley.media.pcm import INPUT_RATE_HZ, Pcm

SENTENCE = "Hello there, how are you doing today? Please tell me something nice."


def write(path: Path, sentence: str = SENTENCE) -> Path:
    """A second of silence, the sentence, seven seconds of silence."""
    silence = np.zeros(INPUT_RATE_HZ, np.float32)
    samples = np.concatenate([silence, say(sentence).samples, *[silence] * 7])
    wav.save(path, Pcm(samples, INPUT_RATE_HZ))
    return path


if __name__ == "__main__":
    write(Path(sys.argv[1]), *sys.argv[2:3])
