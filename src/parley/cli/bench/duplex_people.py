"""`parley bench duplex --people`: recorded sentences of a person against a running server.

For each of `WAYS`: the number of answers that start in a pause inside a sentence, and the time from
the last word of a sentence to the first sound. Every sentence is spoken in a separate session with
the server's default settings. Sentences with pauses run `AT_ONCE` in parallel and end where the
sentence continues or, with units, is over; timed ones run one after the other. Pauses and ends are
spread evenly over the seconds of a client that sends whole ones.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from parley.cli.bench.duplex_score import percentiles
from parley.cli.bench.duplex_talk import SimulatedLoudspeaker, SimulatedMicrophone, hold
from parley.cli.bench.figures import columns
from parley.cli.bench.people import PAUSES_MS, with_pause
from parley.cli.bench.talkers import client_of
from parley.client.access import AccessOptions
from parley.errors import ParleyError
from parley.media.pcm import INPUT_RATE_HZ, Samples
from parley.protocol.values import InterruptionOptions

AT_ONCE: Final = 4
SENTENCES: Final = 12
LEAD_S: Final = 0.6
"""Silence before a sentence, and up to a second more; with units, three more."""
ONE_IN: Final = 12
"""One wrong cut per this number of sentences is allowed."""


@dataclass(frozen=True, slots=True)
class Way:
    """A dialect with its default settings.

    Args:
        pauses_ms: pauses that must not be taken for an end.
        aims_ms: median and 95th percentile of the time to the first sound.
        has_units: it answers in units of a second, of which the first only listen
            (`DuplexConfig.force_listen_count`).
    """

    name: str
    dialect: str
    interruption: InterruptionOptions
    pauses_ms: tuple[int, ...]
    aims_ms: tuple[int, int]
    has_units: bool = False


WAYS: Final = (
    Way("half-duplex", "half_duplex", InterruptionOptions(), PAUSES_MS[:4], (500, 900)),
    Way(
        "server_vad", "openai_realtime", InterruptionOptions(mode="stop", backchannel="heed"),
        PAUSES_MS[:4], (500, 900),
    ),
    Way(
        "semantic_vad", "openai_realtime", InterruptionOptions(mode="stop"), PAUSES_MS,
        (500, 900),
    ),
    Way("duplex", "duplex", InterruptionOptions(), PAUSES_MS, (700, 700), has_units=True),
    Way("OpenAI Live", "openai_live", InterruptionOptions(), PAUSES_MS, (700, 700), has_units=True),
)  # fmt: skip


@dataclass(slots=True)
class WayOutcome:
    """Results: by length of a pause, True for each sentence that was cut; ms to each first sound
    (None: there was no answer); failures."""

    way: Way
    cuts: dict[int, list[bool]] = field(default_factory=dict)
    first_ms: list[float | None] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def cells(self) -> list[str]:
        cuts = [
            f"{sum(self.cuts[ms])} of {len(self.cuts[ms])}" if self.cuts.get(ms) else "-"
            for ms in PAUSES_MS
        ]
        known = [ms for ms in self.first_ms if ms is not None]
        aims = " / ".join(map(str, self.way.aims_ms))
        return [self.way.name, *cuts, percentiles(known), f"{aims} ms"]

    def as_data(self) -> dict[str, Any]:
        return {"cuts": self.cuts, "first_ms": self.first_ms, "failures": self.failures}


async def measure(
    url: str,
    access: AccessOptions,
    sentences: Sequence[Samples],
    limit_s: float,
    ways: Sequence[Way] = WAYS,
) -> list[WayOutcome]:
    sentences = sentences[:SENTENCES]
    outcomes = [WayOutcome(way, {ms: [] for ms in way.pauses_ms}) for way in ways]
    gate = asyncio.Semaphore(AT_ONCE)

    async def cut(outcome: WayOutcome, pause_ms: int, sentence: Samples, seed: int) -> None:
        async with gate:
            paused = _Paused(sentence, pause_ms, outcome.way.has_units)
            found = await _say(url, access, outcome, seed, paused)
        outcome.cuts[pause_ms] += [] if found is None else [bool(found)]

    await asyncio.gather(
        *(
            cut(outcome, pause_ms, sentence, seed)
            for outcome in outcomes
            for pause_ms in outcome.way.pauses_ms
            for seed, sentence in enumerate(sentences)
        )
    )
    for outcome in outcomes:
        for seed, sentence in enumerate(sentences):
            found = await _say(url, access, outcome, seed, _Ended(sentence, limit_s))
            outcome.first_ms.append(found)
    return outcomes


@dataclass(frozen=True, slots=True, eq=False)
class _Paused:
    """1.0 if an answer starts in the pause, else 0.0.

    Args:
        has_units: an answer to the unit that ended in the pause starts in the next one, so until
            the end of the sentence counts, too.
    """

    sentence: Samples
    pause_ms: int
    has_units: bool

    @property
    def silent_s(self) -> float:
        """Time at which the pause starts."""
        return with_pause(self.sentence, self.pause_ms)[1] / INPUT_RATE_HZ - self.pause_ms / 1000

    async def said(
        self, microphone: SimulatedMicrophone, loudspeaker: SimulatedLoudspeaker
    ) -> float:
        words, resumes = with_pause(self.sentence, self.pause_ms)
        start_s, end_s = microphone.say(words)
        until_s = end_s if self.has_units else start_s + resumes / INPUT_RATE_HZ
        await _until(until_s)
        return float(any(start_s < one.start_s < until_s for one in loudspeaker.played))


@dataclass(frozen=True, slots=True, eq=False)
class _Ended:
    """Milliseconds from the end of the sentence to the first sound; None: there is none."""

    sentence: Samples
    limit_s: float

    @property
    def silent_s(self) -> float:
        return len(self.sentence) / INPUT_RATE_HZ

    async def said(
        self, microphone: SimulatedMicrophone, loudspeaker: SimulatedLoudspeaker
    ) -> float | None:
        start_s, end_s = microphone.say(self.sentence)
        answer = await loudspeaker.answer(start_s, end_s + self.limit_s)
        return None if answer is None else 1000 * (answer.start_s - end_s)


async def _say(
    url: str, access: AccessOptions, outcome: WayOutcome, seed: int, scene: _Paused | _Ended
) -> float | None:
    """Play a scene in a session of its own; None, and a failure, if that breaks."""
    way = outcome.way
    # Adjacent sentences, which are often similar, end in different parts of a second.
    silent_s = (5 * seed % SENTENCES + 0.5) / SENTENCES
    lead_s = LEAD_S + 3 * way.has_units + (silent_s - scene.silent_s - LEAD_S) % 1.0
    found: list[float | None] = []

    async def play(microphone: SimulatedMicrophone, loudspeaker: SimulatedLoudspeaker) -> None:
        await asyncio.sleep(lead_s)
        found.append(await scene.said(microphone, loudspeaker))

    try:
        await hold(client_of(url, access, way.dialect, way.interruption), way.dialect, play)
    except ParleyError as error:
        outcome.failures.append(f"{type(error).__name__}: {error}")
    return found[0] if found else None


async def _until(at_s: float) -> None:
    await asyncio.sleep(max(0.0, at_s - asyncio.get_running_loop().time()))


def as_table(outcomes: Sequence[WayOutcome]) -> str:
    """The table of docs/understand/turn-taking.md."""
    rows = [
        ["answers started in pauses of", *(f"{ms} ms" for ms in PAUSES_MS),
         "first sound (median / p95)", "aim"],
        *(one.cells() for one in outcomes),
        ["aim", *[f"1 of {ONE_IN}"] * len(PAUSES_MS), "", ""],
    ]  # fmt: skip
    lines = columns(rows)
    for one in outcomes:
        missed = one.first_ms.count(None)
        lines += [f"{one.way.name}: {missed} sentences were not answered"] if missed else []
        lines += [
            f"{one.way.name}: {failure} ({count} times)"
            for failure, count in Counter(one.failures).items()
        ]
    return "\n".join(lines)
