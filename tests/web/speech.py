"""What the fake microphone hears: a spoken sentence and a pause, played again and again.

`python -m tests.web.speech FILE [SENTENCE]` writes it as a WAV file; with `--people` in place of
the sentence, twelve recorded sentences of a person.
"""

import sys
from pathlib import Path

import numpy as np
from tests.support.speech import say

from parley.cli.bench.people import installed
from parley.media import wav
from parley.media.pcm import INPUT_RATE_HZ, Pcm, Samples

SENTENCE = "Hello there, how are you doing today?"

BEFORE_S = 0.4
AFTER_S = 5.4
"""Silence around the sentence: calls wait for it in real time, and the answer to a sentence of two
seconds, which a test may listen to undisturbed, takes four of those after it."""

PEOPLE = 12
FIRST_S = 6.0
"""Silence before the first of several sentences: the first units of a call only listen."""
ANSWER_S = 9.0
"""Silence at least behind each of them, for the answer."""


def write(path: Path, sentence: str = SENTENCE) -> Path:
    """The sentence, with silence before and after it."""
    return _save(path, [_silence(BEFORE_S), say(sentence).samples, _silence(AFTER_S)])


def write_people(path: Path) -> Path:
    """Sentences with silence for an answer behind each; they end evenly in the seconds."""
    parts, end_s = [_silence(FIRST_S)], FIRST_S
    for number, sentence in enumerate(installed().turns[:PEOPLE]):
        end_s += len(sentence) / INPUT_RATE_HZ
        due = (5 * number % PEOPLE + 0.5) / PEOPLE
        wait_s = (due - end_s) % 1.0
        parts += [_silence(wait_s), sentence, _silence(ANSWER_S)]
        end_s += wait_s + ANSWER_S
    return _save(path, parts)


def _silence(seconds: float) -> Samples:
    return np.zeros(round(seconds * INPUT_RATE_HZ), np.float32)


def _save(path: Path, parts: list[Samples]) -> Path:
    wav.save(path, Pcm(np.concatenate(parts), INPUT_RATE_HZ))
    return path


if __name__ == "__main__":
    if sys.argv[2:] == ["--people"]:
        write_people(Path(sys.argv[1]))
    else:
        write(Path(sys.argv[1]), *sys.argv[2:3])
