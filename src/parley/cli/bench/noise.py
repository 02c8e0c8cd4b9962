"""`parley bench noise`: measures which sounds wrongly stop an answer, and how soon speech stops it.

Runs the rules of interruptions (`turns/interruption.py`) with the real detector, faster than real
time, in chunks like those of a microphone: minutes of coughs and clicks, of music, of a crowd 10 dB
below speech, of the assistant's own echo 20 dB below the playback (also in a reverberant room, and
two seconds late, as from a client that buffers without reporting it); acknowledgements; sentences.
There are no playback reports. Voices are those of the pocket model.

With `--people` or `--folder` recordings of people follow, in rooms made by rule (`noise_people`).
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import numpy as np
import typer

from parley.cli.bench.duplex_material import bundled_words, own
from parley.cli.bench.noise_people import (
    DEFAULTS,
    as_table,
    interrupted,
    onset_ms,
    percentiles,
    placed,
    rows,
)
from parley.cli.bench.noises import at_level, coughs, crowd, echo, in_room, music, room
from parley.cli.bench.people import installed
from parley.errors import SetupError
from parley.media.pcm import INPUT_RATE_HZ, Samples
from parley.protocol.values import BARGE_IN, InterruptionOptions
from parley.turns import TurnJudges
from parley.turns.interruption import InterruptionDetector
from parley.vad.silero import SileroModel

POLICIES: Final = {"ignore": DEFAULTS, "heed": BARGE_IN}
"""The default policy, and that of clients that cannot lower the volume."""

SENTENCES: Final = (
    "The weather was fine and we walked along the river until it was dark.",
    "My brother sells used cars in a small town near the coast.",
    "Could you pass me the salt and the bread please, thank you very much.",
    "There are seven people in the room and nobody listens to the other.",
    "I was told that the train leaves at half past nine from platform two.",
)
INTERRUPTIONS: Final = (
    "Wait, stop please, I wanted to ask something else.",
    "No, that is not what I meant at all.",
    "Hold on a moment, tell me about the price instead.",
    "Excuse me, what was the second thing you said?",
)
ACKNOWLEDGEMENTS: Final = ("Yes.", "Okay.", "Right.", "Sure.", "Yeah.", "I see.", "Mhm.", "Uh huh.")
VOICES: Final = (0, 1)
LATE_ECHO_S: Final = 2.0
"""Delay of a client that buffers without reporting it."""

MOST_STOPS: Final = 1.0
"""Limit per ten minutes of a noise."""
MOST_YIELD: Final = 0.05
"""Limit as a share of acknowledgements."""


@dataclass(slots=True)
class NoiseOutcome:
    """Results of one policy.

    Args:
        stops: by noise, in all minutes of it.
        minutes: of each noise.
        acknowledged: number of acknowledgements that stopped the answer, and their total.
        stopped: the same for sentences.
        onset_ms: time from the first sample of each of these sentences to the end of the chunk that
            decides.
    """

    stops: dict[str, int]
    minutes: float
    acknowledged: tuple[int, int]
    stopped: tuple[int, int]
    onset_ms: list[float]

    def misses(self) -> list[str]:
        """Limits for a policy that lets acknowledgements pass."""
        found = [
            f"{name}: {count} stops in {self.minutes:g} minutes"
            for name, count in self.stops.items()
            if count > MOST_STOPS * max(1.0, self.minutes / 10)
        ]
        if self.acknowledged[0] > MOST_YIELD * self.acknowledged[1]:
            found.append(f"{self.acknowledged[0]} of {self.acknowledged[1]} acknowledgements stop")
        return found


def noise(
    minutes: Annotated[float, typer.Option(min=0.5, max=60, help="Minutes of each noise.")] = 10.0,
    check: Annotated[
        bool, typer.Option("--check", help="Exit with status 1 if too many answers are stopped.")
    ] = False,
    people: Annotated[
        bool, typer.Option("--people", help="Also recordings of people from installed packages.")
    ] = False,
    folder: Annotated[
        Path | None,
        typer.Option(exists=True, file_okay=False, help="Also your own recordings: WAV files in "
                     "turns/, others/, commands/, acknowledgements/."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:  # fmt: skip
    """Measure which sounds wrongly stop an answer, and how soon speech stops it; needs no
    server."""
    model = SileroModel()
    # Report missing recordings before the long part starts.
    voices = own(folder) if folder is not None else installed() if people else None
    if voices is not None and not voices.others:
        raise SetupError(
            f"{folder} needs WAV files in turns/ and in others/.",
            hint="Also looked for: commands/ and acknowledgements/.",
        )
    found = {name: measure(model, options, minutes) for name, options in POLICIES.items()}
    table = [] if voices is None else rows(voices, model, default_judges(), minutes)
    if as_json:
        by_policy = {name: dataclasses.asdict(one) for name, one in found.items()}
        typer.echo(json.dumps({**by_policy, "people": [dataclasses.asdict(row) for row in table]}))
    else:
        typer.echo("\n".join(f"{name}: {as_line(one)}" for name, one in found.items()))
        if table:
            typer.echo(as_table(table))
    misses = found["ignore"].misses()
    if check and misses:
        typer.echo("\n".join(misses), err=True)
        raise typer.Exit(1)


def default_judges() -> TurnJudges:
    """The judges that a worker has by default."""
    from parley.turns import onset
    from parley.turns.keywords import KeywordMatcher
    from parley.turns.smart_turn import end_of_turn

    return TurnJudges(end_of_turn(), KeywordMatcher(), onset.bundled())


def measure(model: SileroModel, options: InterruptionOptions, minutes: float) -> NoiseOutcome:
    stops: dict[str, int] = {}
    for name, heard, played in _noises(60 * minutes):
        detector = InterruptionDetector(model(), options)
        stops[name] = len(list(interrupted(detector, heard, played)))
    words = [w for voice in VOICES for w in bundled_words(ACKNOWLEDGEMENTS, (voice,))]

    def onset(clip: Samples, seed: int) -> float | None:
        return onset_ms(InterruptionDetector(model(), options), *placed(clip, seed))

    yielded = [bool(onset(word, seed)) for seed, word in enumerate(words)]
    sentences = [w for voice in VOICES for w in bundled_words(INTERRUPTIONS, (voice,))]
    # Each at several offsets within a chunk.
    onsets = [onset(each, seed) for seed in range(5) for each in sentences]
    known = [ms for ms in onsets if ms is not None]
    acknowledged, stopped = (sum(yielded), len(yielded)), (len(known), len(onsets))
    return NoiseOutcome(stops, minutes, acknowledged, stopped, known)


def _noises(seconds: float) -> Iterator[tuple[str, Samples, Samples | None]]:
    """Name, microphone input, playback."""
    quiet = room(seconds)
    talks = [np.concatenate(bundled_words(SENTENCES, (voice,))) for voice in VOICES]
    yield "coughs", quiet + coughs(seconds), None
    yield "music", quiet + music(seconds), None
    yield "crowd", quiet + crowd(seconds, talks), None
    count = round(seconds * INPUT_RATE_HZ)
    played = at_level(np.tile(talks[0], 1 + count // len(talks[0]))[:count], -26.0)
    yield "echo", quiet + echo(played), played
    yield "echo in a room", quiet + in_room(echo(played)), played
    yield "late echo", quiet + echo(played, LATE_ECHO_S), played


def as_line(one: NoiseOutcome) -> str:
    stops = ", ".join(f"{name} {count}" for name, count in one.stops.items())
    return (
        f"stops in {one.minutes:g} minutes each: {stops}; "
        f"{one.acknowledged[0]} of {one.acknowledged[1]} acknowledgements stop; "
        f"{one.stopped[0]} of {one.stopped[1]} sentences stop, "
        f"after {percentiles(one.onset_ms)} (median / p95)"
    )
