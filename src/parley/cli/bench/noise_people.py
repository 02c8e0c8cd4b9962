"""Tests the rules of turn-taking on recorded people in simulated rooms: the table of
docs/understand/turn-taking.md.

There is no server and no real time. The user says one sentence while nothing is played, then the
assistant speaks in another person's voice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from parley.cli.bench.duplex_material import SPOKEN_DBFS, Material
from parley.cli.bench.figures import columns
from parley.cli.bench.noises import at_level, echo, in_room, room
from parley.cli.bench.people import overdriven, with_pause
from parley.media.pcm import INPUT_RATE_HZ, Pcm, Samples
from parley.protocol.values import InterruptionOptions, VadOptions
from parley.turns import TurnJudges
from parley.turns.interruption import InterruptionDetector
from parley.vad import DetectorFactory, SpeechEnded, UtteranceFinder

CHUNK_SAMPLES: Final = INPUT_RATE_HZ // 10
PAUSES_MS: Final = (300, 500, 700, 900, 1200)
ROOM_S: Final = 1.0
DEFAULTS: Final = InterruptionOptions(mode="stop")


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
    options: InterruptionOptions = DEFAULTS,
) -> list[NoiseRow]:
    """All lines of the table; `minutes` of each sound that should not stop an answer."""
    bench = _Bench(people, detectors, judges, options, 60 * minutes)
    return [*bench.others(), *bench.echoes(), *bench.words(), *bench.interruptions(), *bench.ends()]


def as_table(found: Sequence[NoiseRow]) -> str:
    table = [("", "found", "aim"), *((row.name, row.found, row.aim) for row in found)]
    return "\n".join(columns(table))


@dataclass(frozen=True, slots=True)
class _Bench:
    people: Material
    detectors: DetectorFactory
    judges: TurnJudges
    options: InterruptionOptions
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
        detector = InterruptionDetector(self.detectors(), self.options, self.judges)
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
        options = VadOptions()
        finder = UtteranceFinder(self.detectors(), options, self.judges.silence(options))
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


def percentiles(values: Sequence[float]) -> str:
    """Median and 95th percentile in milliseconds."""
    if not values:
        return "-"
    return " / ".join(f"{np.percentile(values, each):.0f}" for each in (50, 95)) + " ms"
