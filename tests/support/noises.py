"""Sounds around an assistant: coughs, clicks, music, a crowd, its own echo, and people.

Generated from a seed and with espeak-ng's voices; levels in dB of full scale (RMS).
"""

import numpy as np
from tests.support.speech import say

from parley.cli.bench import noises
from parley.cli.bench.noises import at_level, coughs, echo, music, room
from parley.media.pcm import INPUT_RATE_HZ, Pcm, Samples

__all__ = ["at_level", "coughs", "crowd", "echo", "music", "pcm", "room", "spoken", "talk"]

VOICES = ("en", "en-us", "en-gb-scotland")

SENTENCES = (
    "The weather was fine and we walked along the river until it was dark.",
    "My brother sells used cars in a small town near the coast.",
    "Could you pass me the salt and the bread please, thank you very much.",
    "There are seven people in the room and nobody listens to the other.",
    "I was told that the train leaves at half past nine from platform two.",
)
INTERRUPTIONS = (
    "Wait, stop please, I wanted to ask something else.",
    "No, that is not what I meant.",
    "Hold on a moment, tell me about the price.",
    "Excuse me, what was the second thing?",
)
ACKNOWLEDGEMENTS = ("mhm", "yes", "okay", "uh huh", "right", "yeah", "sure", "I see")


def spoken(text: str, voice: str = "en", dbfs: float = -26.0) -> Samples:
    """A spoken sentence without the synthesiser's silence around it."""
    samples = say(text, voice).samples
    loud = np.flatnonzero(np.abs(samples) > 0.01 * np.abs(samples).max())
    return at_level(samples[loud[0] : loud[-1] + 1], dbfs)


def crowd(seconds: float, dbfs: float = -36.0, voices: int = 6) -> Samples:
    """Several people talking at the same time."""
    talks = [talk(20.0, voice, start=start) for start, voice in enumerate(VOICES)]
    return noises.crowd(seconds, talks, dbfs, voices)


def talk(seconds: float, voice: str = "en", dbfs: float = -26.0, start: int = 0) -> Samples:
    """One person talking continuously."""
    count = round(seconds * INPUT_RATE_HZ)
    said = [spoken(SENTENCES[(start + k) % len(SENTENCES)], voice) for k in range(len(SENTENCES))]
    once = np.concatenate(said)
    return at_level(np.tile(once, 1 + count // len(once))[:count], dbfs)


def pcm(samples: Samples) -> Pcm:
    """Samples as audio of a microphone."""
    return Pcm(samples.astype(np.float32), INPUT_RATE_HZ)
