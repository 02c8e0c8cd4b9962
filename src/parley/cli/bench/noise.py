"""`parley bench noise`: measures which sounds wrongly stop an answer, and how soon speech stops it.

Runs the rules of interruptions (`turns/interruption.py`) with the real detector, faster than real
time, in chunks like those of a microphone: minutes of coughs and clicks, of music, of a crowd 10 dB
below speech, of the assistant's own echo 20 dB below the playback (also in a reverberant room, and
two seconds late, as from a client that buffers without reporting it); acknowledgements; sentences.
There are no playback reports. Voices are those of the pocket model.

With `--people` or `--folder` recordings of people follow, in rooms made by rule: the table of
docs/understand/turn-taking.md. The user says one sentence while nothing is played, then the
assistant speaks in another person's voice.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import numpy as np
import typer

from parley.cli.bench.duplex_material import SPOKEN_DBFS, Material, bundled_words, own
from parley.cli.bench.duplex_score import percentiles
from parley.cli.bench.figures import columns
from parley.cli.bench.noises import at_level, coughs, crowd, echo, in_room, music, room
from parley.cli.bench.people import PAUSES_MS, installed, overdriven, with_pause
from parley.errors import SetupError
from parley.media.pcm import INPUT_RATE_HZ, Pcm, Samples
from parley.protocol.values import BARGE_IN, InterruptionOptions, VadOptions
from parley.settings import WorkerSettings
from parley.turns import TurnJudges
from parley.turns.interruption import InterruptionDetector
from parley.vad import DetectorFactory, SpeechEnded, UtteranceFinder
from parley.vad.silero import SileroModel

CHUNK_SAMPLES: Final = INPUT_RATE_HZ // 10
ROOM_S: Final = 1.0
DEFAULTS: Final = InterruptionOptions(mode="stop")

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
    from parley.worker.main import load_judges

    model = SileroModel()
    # Report missing recordings before the long part starts.
    voices = own(folder) if folder is not None else installed() if people else None
    if voices is not None and not voices.others:
        raise SetupError(
            f"{folder} needs WAV files in turns/ and in others/.",
            hint="Also looked for: commands/ and acknowledgements/.",
        )
    found = {name: measure(model, options, minutes) for name, options in POLICIES.items()}
    table = [] if voices is None else rows(voices, model, load_judges(WorkerSettings()), minutes)
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


@dataclass(frozen=True, slots=True)
class NoiseRow:
    """One line of the table."""

    name: str
    found: str
    aim: str


def rows(
    people: Material,
    detectors: DetectorFactory,
    judges: TurnJudges,
    minutes: float,
) -> list[NoiseRow]:
    """All lines of the table; `minutes` of each sound that should not stop an answer."""
    bench = _Bench(people, detectors, judges, 60 * minutes)
    return [*bench.others(), *bench.echoes(), *bench.words(), *bench.interruptions(), *bench.ends()]


def as_table(found: Sequence[NoiseRow]) -> str:
    table = [("", "found", "aim"), *((row.name, row.found, row.aim) for row in found)]
    return "\n".join(columns(table))


@dataclass(frozen=True, slots=True)
class _Bench:
    people: Material
    detectors: DetectorFactory
    judges: TurnJudges
    seconds: float

    def others(self) -> list[NoiseRow]:
        """A voice in the next room, while the assistant plays in headphones."""
        found = []
        for softer in (10, 20):
            talk = _looped(self.people.others, self.seconds, SPOKEN_DBFS - softer)
            stops = self._stops(talk + room(self.seconds))
            found.append(
                NoiseRow(f"another person, {softer} dB softer", self._rate(stops), "1 in 10 min")
            )
        return found

    def echoes(self) -> list[NoiseRow]:
        """The assistant's own voice from a loudspeaker, with reflections as loud as the direct
        sound."""
        played = _looped(self.people.others, self.seconds, SPOKEN_DBFS)
        ways: dict[str, Callable[[Samples], Samples]] = {
            "clean": lambda dry: dry,
            **{f"room {rt} s": _walls(rt) for rt in (0.35, 0.6, 0.9)},
            "overdriven": overdriven,
        }
        found = []
        for name, way in ways.items():
            for softer, delay_s in ((10, 0.05), (20, 0.15), (30, 0.3)):
                loud = at_level(way(played), SPOKEN_DBFS)
                heard = echo(loud, delay_s, softer) + room(self.seconds)
                stops = self._stops(heard, played)
                name_of = f"own echo, {name}, {softer} dB softer"
                found.append(NoiseRow(name_of, self._rate(stops), "1 in 10 min"))
        return found

    def words(self) -> list[NoiseRow]:
        """Short words during an answer."""
        found = []
        for name, clips, aim in (
            ("commands that stop it", self.people.commands, "66 of 70"),
            ("acknowledgements that do", self.people.acknowledgements, "5 of 98"),
        ):
            if clips:
                after = [self._onset(clip, seed) for seed, clip in enumerate(clips)]
                late = [
                    ms - 1000 * len(clip) / INPUT_RATE_HZ
                    for ms, clip in zip(after, clips, strict=True)
                    if ms is not None
                ]
                most = f", at most {max(late):.0f} ms after their end" if late else ""
                found.append(NoiseRow(name, f"{len(late)} of {len(clips)}{most}", aim))
        return found

    def interruptions(self) -> list[NoiseRow]:
        """Sentences during an answer, in silence and over its echo."""
        found = []
        for name, softer in (("interruptions", None), ("interruptions over echo of -10 dB", 10)):
            after = [self._onset(clip, seed, softer) for seed, clip in enumerate(self.people.turns)]
            known = [ms for ms in after if ms is not None]
            times = percentiles(known)
            found.append(
                NoiseRow(name, f"{len(known)} of {len(after)}, {times}", "all, 300 / 600 ms")
            )
        return found

    def ends(self) -> list[NoiseRow]:
        """Sentences with a pause in the middle, and their real ends."""
        turns = self.people.turns
        found = []
        for pause_ms in PAUSES_MS:
            paused = [with_pause(clip, pause_ms) for clip in turns]
            early = sum(bool(self._ends(sound, before=resumes)) for sound, resumes in paused)
            found.append(
                NoiseRow(f"cut by a pause of {pause_ms} ms", f"{early} of {len(turns)}", "1 of 12")
            )
        waited = [
            1000 * (end - len(clip)) / INPUT_RATE_HZ
            for clip in turns
            for end in self._ends(clip)[-1:]
        ]
        aim = "500 / 900 ms, with the answer"
        found.append(NoiseRow("quiet before an answer", percentiles(waited), aim))
        return found

    def _rate(self, stops: int) -> str:
        return f"{stops} in {self.seconds / 60:g} min"

    def _detector(self) -> InterruptionDetector:
        detector = InterruptionDetector(self.detectors(), DEFAULTS, self.judges)
        turn = np.concatenate([np.zeros(INPUT_RATE_HZ, np.float32), *self.people.turns[:1]])
        detector.learn(Pcm(turn + room(len(turn) / INPUT_RATE_HZ), INPUT_RATE_HZ))
        return detector

    def _stops(self, heard: Samples, played: Samples | None = None) -> int:
        return len(list(interrupted(self._detector(), heard, played)))

    def _onset(self, clip: Samples, seed: int, softer: float | None = None) -> float | None:
        heard, begin = placed(clip, seed)
        played = None
        if softer is not None:
            played = _looped(self.people.others, len(heard) / INPUT_RATE_HZ, SPOKEN_DBFS)
            heard = heard + _walls(0.35)(echo(played, 0.15, softer))
        return onset_ms(self._detector(), heard, begin, played)

    def _ends(self, clip: Samples, before: int | None = None) -> list[int]:
        """Position in `clip`, in samples, at which a turn ended."""
        lead = round(ROOM_S * INPUT_RATE_HZ)
        sound = np.concatenate([np.zeros(lead, np.float32), clip, np.zeros(3 * lead, np.float32)])
        sound += room(len(sound) / INPUT_RATE_HZ)
        finder = UtteranceFinder(self.detectors(), silence=self.judges.silence(VadOptions()))
        ends = []
        step = INPUT_RATE_HZ // 50
        for start in range(0, len(sound), step):
            events = finder.feed(Pcm(sound[start : start + step], INPUT_RATE_HZ))
            ends += [
                start + step - lead
                for event in events
                if isinstance(event, SpeechEnded) and event.utterance is not None
            ]
        return [end for end in ends if before is None or end <= before]


def placed(clip: Samples, seed: int) -> tuple[Samples, int]:
    """A clip in a quiet room, at some offset within a chunk, and the position of its first
    sample."""
    begin = 3 * INPUT_RATE_HZ + int(np.random.default_rng(seed).integers(CHUNK_SAMPLES))
    heard = room((begin + len(clip)) / INPUT_RATE_HZ + 1.0, seed=seed)
    heard[begin : begin + len(clip)] += clip
    return heard, begin


def onset_ms(
    detector: InterruptionDetector, heard: Samples, begin: int, played: Samples | None = None
) -> float | None:
    """Time from the first sample of speech to the end of the chunk that decides; None: it is not an
    interruption."""
    after = (end - begin for end in interrupted(detector, heard, played))
    return next((1000 * samples / INPUT_RATE_HZ for samples in after if samples > 0), None)


def interrupted(
    detector: InterruptionDetector, heard: Samples, played: Samples | None
) -> Iterator[int]:
    """The samples at which interruptions are detected, in chunks like those of a microphone."""
    for start in range(0, len(heard), CHUNK_SAMPLES):
        end = start + CHUNK_SAMPLES
        if played is not None:
            detector.play(Pcm(played[start:end], INPUT_RATE_HZ), start / INPUT_RATE_HZ)
        for event in detector.feed(Pcm(heard[start:end], INPUT_RATE_HZ), end / INPUT_RATE_HZ):
            if event.kind == "interrupted":
                yield end


def _looped(clips: Sequence[Samples], seconds: float, dbfs: float) -> Samples:
    """The clips one after the other, with pauses of 0.4 s."""
    gap = np.zeros(2 * INPUT_RATE_HZ // 5, np.float32)
    once = np.concatenate([part for clip in clips for part in (clip, gap)])
    count = round(seconds * INPUT_RATE_HZ)
    looped = np.tile(once, 1 + count // len(once))[:count]
    spoken = float(np.sqrt(np.mean(np.concatenate(list(clips)).astype(np.float64) ** 2)))
    return np.asarray(looped * (10 ** (dbfs / 20) / max(spoken, 1e-9)), np.float32)


def _walls(seconds: float) -> Callable[[Samples], Samples]:
    return lambda dry: in_room(dry, seconds, direct_db=0.0)
