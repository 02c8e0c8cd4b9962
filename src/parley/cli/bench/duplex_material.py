"""Speech for `parley bench duplex` and `noise`: the bundled voice, or the user's own recordings.

A folder of recordings has WAV files in `turns/`, `interruptions/`, `acknowledgements/`, `commands/`
and `others/`; a folder without these contains turns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from parley.cli import files
from parley.cli.bench.noises import at_level
from parley.errors import SetupError
from parley.media.pcm import INPUT_RATE_HZ, OUTPUT_RATE_HZ, Pcm, Samples
from parley.media.resample import resample

TURNS: Final = (
    "What is the capital of Italy, and what would you like to see there?",
    "Tell me a story about a fox who could not sleep at night.",
    "How many days are there in a year, and why is it not always the same?",
    "Please count slowly from one to ten, and then back again to one.",
)
INTERRUPTIONS: Final = (
    "Wait, stop please, I wanted to ask something else.",
    "No, that is not what I meant at all.",
)
ACKNOWLEDGEMENTS: Final = ("Okay.", "Yes.", "Sure.")

SPOKEN_DBFS: Final = -26.0
SOUNDS: Final = (".wav",)


@dataclass(frozen=True, slots=True, eq=False)
class Material:
    """Speech without silence around it, mono float32 at 16 kHz, -26 dBFS. All fields except the
    first may be empty.

    Args:
        turns: whole sentences; of several people, one after the other.
        interruptions: sentences; `acknowledgements`, `commands`: short words.
        others: speech of another person, in the next room or from a loudspeaker.
    """

    turns: tuple[Samples, ...]
    interruptions: tuple[Samples, ...] = ()
    acknowledgements: tuple[Samples, ...] = ()
    commands: tuple[Samples, ...] = ()
    others: tuple[Samples, ...] = ()


def bundled(*, interrupting: int = 0) -> Material:
    """Sentences in the voices of the pocket model.

    Args:
        interrupting: the voice that interrupts.

    Raises:
        SetupError: its packages or weights are not installed here.
    """
    return Material(
        bundled_words(TURNS, (0,)),
        bundled_words(INTERRUPTIONS, (interrupting,)),
        bundled_words(ACKNOWLEDGEMENTS, (interrupting,)),
    )


def bundled_words(sentences: Sequence[str], voices: Sequence[int]) -> tuple[Samples, ...]:
    """Sentences in voices of the pocket model: each sentence by the next voice.

    Raises:
        SetupError: its packages or weights are not installed here.
    """
    try:
        from parley.models.cascade.voice.speaker import OwnSpeaker
        from parley.models.pocket_data import folder
        from parley.settings import ModelSettings
    except ImportError:
        raise SetupError(
            "The bundled voice needs the packages of a worker.",
            hint="Install parley[worker], or give recordings of your own with --folder.",
        ) from None
    place = folder(ModelSettings())
    if place is None:
        raise SetupError(
            "The weights of the bundled voice are not installed.",
            hint="Give recordings of your own with --folder.",
        )
    speaker = OwnSpeaker(place)
    return tuple(
        trimmed(Pcm(speaker.say(sentence, voices[number % len(voices)]), OUTPUT_RATE_HZ))
        for number, sentence in enumerate(sentences)
    )


def own(folder: Path) -> Material:
    """Recordings of a user's own.

    Raises:
        SetupError: there are none.
    """
    turns = recordings(folder / "turns") or recordings(folder)
    if not turns:
        raise SetupError(
            f"There are no recordings in {folder}.", hint="Put WAV files into its folder turns."
        )
    kinds = ("interruptions", "acknowledgements", "commands", "others")
    return Material(turns, *(recordings(folder / kind) for kind in kinds))


def recordings(place: Path) -> tuple[Samples, ...]:
    """The WAV files of one folder, trimmed; empty if the folder does not exist."""
    found = sorted(path for path in place.glob("*") if path.suffix.lower() in SOUNDS)
    return tuple(trimmed(files.sound(path, limit_s=files.SPOKEN_LIMIT_S)) for path in found)


def trimmed(pcm: Pcm) -> Samples:
    """Remove the silence around it, and set the level of speech.

    Raises:
        SetupError: it is silent.
    """
    samples = resample(pcm, INPUT_RATE_HZ).samples
    peak = float(np.abs(samples).max(initial=0.0))
    if peak < 1e-4:
        raise SetupError("A recording contains only silence.")
    loud = np.flatnonzero(np.abs(samples) > 0.02 * peak)
    return at_level(samples[loud[0] : loud[-1] + 1], SPOKEN_DBFS)
