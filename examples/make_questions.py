"""How examples/questions.wav was made: python examples/make_questions.py (needs flite).

Three sentences by flite's voice `slt` (Carnegie Mellon University, BSD-like licence), two seconds
of silence between them. Run in the root of a clone; `training` holds the binding to flite.
"""

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from training.cascade.speakers import Voice, speak

from parley.media import wav
from parley.media.pcm import INPUT_RATE_HZ, Pcm

SENTENCES = ("My name is Anna.", "What is the opposite of happy?", "What is my name?")
VOICE = Voice("flite", sys.argv[1] if len(sys.argv) > 1 else "slt")

pause = np.zeros(2 * INPUT_RATE_HZ, np.float32)
parts = [pause[:INPUT_RATE_HZ]]
for sentence in SENTENCES:
    parts += [speak(sentence, VOICE), pause]
samples = np.concatenate(parts)
wav.save(
    Path(__file__).with_name("questions.wav"),
    Pcm(0.7 * samples / np.abs(samples).max(), INPUT_RATE_HZ),
)
