"""Measures of spoken conversations for `parley bench duplex`, with confidence intervals, and their
plot as SVG.

Names and definitions follow Full-Duplex-Bench if it has them; times are those of a listener who
plays audio immediately and without gaps.

- takeover rate: share of the user's completed turns that were answered; others are missed turns.
- response latency: from the end of the user's speech to the first sound of the answer; negative if
  the answer started before the end.
- pause takeover rate: share of pauses within turns, by length, in which the assistant started to
  speak (lower is better).
- stop rate and stop latency: share of interruptions that ended the answer, and the time from their
  first sample.
- backchannel yield: share of short acknowledgements that ended the answer (lower is better).
- false stops: answers ended by noise, per ten minutes of noise during answers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Final

import numpy as np

Z: Final = 1.959964
"""97.5th percentile of the normal distribution."""

BOOTSTRAPS: Final = 2000

WIDTH: Final = 960
NAME_WIDTH: Final = 200
VALUE_WIDTH: Final = 190
ROW_HEIGHT: Final = 22
HEAD_HEIGHT: Final = 30
FOOT_HEIGHT: Final = 14
COLOURS: Final = ("#1b6ca8", "#c1440e", "#3a7d44", "#7a4ea3", "#8a6d00", "#5a5a5a")
"""Colours of the dialects in order; dark enough on white."""


@dataclass(frozen=True, slots=True)
class Measure:
    """A value with its 95 % interval.

    Args:
        count: number of observations; 0: nothing was measured, the other fields are NaN.
        unit: `share`, `ms`, or `per 10 min`.
    """

    name: str
    unit: str
    count: int
    value: float = math.nan
    low: float = math.nan
    high: float = math.nan

    def __str__(self) -> str:
        if not self.count:
            return "-"
        if self.unit == "share":
            return f"{100 * self.value:.0f} % [{100 * self.low:.0f}, {100 * self.high:.0f}]"
        if self.unit == "ms":
            return f"{self.value:.0f} ms [{self.low:.0f}, {self.high:.0f}]"
        return f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}] {self.unit}"


@dataclass(slots=True)
class TalkOutcome:
    """Results of all conversations.

    Args:
        turns: latency in ms of each completed turn; None: it was not answered.
        pauses: by length in ms, True for each pause in which the assistant started to speak.
        interruptions: ms until each stopped the answer; None: it did not.
        acknowledgements: True for each that stopped the answer.
        noise_s: seconds of noise during answers; `false_stops` of them were ended by it.
        failures: conversations that broke, with reasons.
    """

    turns: list[float | None] = field(default_factory=list)
    pauses: dict[int, list[bool]] = field(default_factory=dict)
    interruptions: list[float | None] = field(default_factory=list)
    acknowledgements: list[bool] = field(default_factory=list)
    noise_s: float = 0.0
    false_stops: int = 0
    failures: list[str] = field(default_factory=list)

    def measures(self) -> list[Measure]:
        answered = [ms for ms in self.turns if ms is not None]
        stopped = [ms for ms in self.interruptions if ms is not None]
        return [
            share("takeover rate", [ms is not None for ms in self.turns]),
            share("missed turns", [ms is None for ms in self.turns]),
            median("response latency", answered),
            percentile("response latency p95", answered, 95),
            *(
                share(f"takeover rate in {ms} ms of pause", self.pauses[ms])
                for ms in sorted(self.pauses)
            ),
            share("stop rate", [ms is not None for ms in self.interruptions]),
            median("stop latency", stopped),
            percentile("stop latency p95", stopped, 95),
            share("backchannel yield", self.acknowledgements),
            rate("false stops", self.false_stops, self.noise_s),
        ]


def share(name: str, outcomes: Sequence[bool]) -> Measure:
    """Share of true values with Wilson's interval."""
    count = len(outcomes)
    if not count:
        return Measure(name, "share", 0)
    p = sum(outcomes) / count
    middle = (p + Z * Z / (2 * count)) / (1 + Z * Z / count)
    half = Z * math.sqrt(p * (1 - p) / count + Z * Z / (4 * count * count)) / (1 + Z * Z / count)
    return Measure(name, "share", count, p, max(0.0, middle - half), min(1.0, middle + half))


def median(name: str, values_ms: Sequence[float]) -> Measure:
    """Median with a bootstrap interval."""
    return percentile(name, values_ms, 50)


def percentile(name: str, values_ms: Sequence[float], percent: float) -> Measure:
    """Percentile with a bootstrap interval from a fixed seed."""
    if not values_ms:
        return Measure(name, "ms", 0)
    values = np.asarray(values_ms, np.float64)
    drawn = np.random.default_rng(0).choice(values, (BOOTSTRAPS, len(values)))
    low, high = np.percentile(np.percentile(drawn, percent, axis=1), (2.5, 97.5))
    value = float(np.percentile(values, percent))
    return Measure(name, "ms", len(values_ms), value, float(low), float(high))


def rate(name: str, events: int, seconds: float) -> Measure:
    """Events in ten minutes, with Byar's interval of a Poisson count."""
    unit = "per 10 min"
    if seconds <= 0:
        return Measure(name, unit, 0)
    after = events + 1
    low = 0.0
    if events:
        low = events * (1 - 1 / (9 * events) - Z / (3 * math.sqrt(events))) ** 3
    high = after * (1 - 1 / (9 * after) + Z / (3 * math.sqrt(after))) ** 3
    scale = 600 / seconds
    return Measure(name, unit, max(1, round(seconds)), events * scale, low * scale, high * scale)


def percentiles(values: Sequence[float]) -> str:
    """Median and 95th percentile in milliseconds."""
    if not values:
        return "-"
    return " / ".join(f"{np.percentile(values, each):.0f}" for each in (50, 95)) + " ms"


def as_svg(measures: Mapping[str, Sequence[Measure]]) -> str:
    """SVG plot with one group per measure and one row per dialect; each scale starts at 0."""
    rows: list[str] = []
    top = 10
    for group in zip(*measures.values(), strict=True):
        rows += _group(dict(zip(measures, group, strict=True)), top)
        top += HEAD_HEIGHT + ROW_HEIGHT * len(measures) + FOOT_HEIGHT
    body = "\n".join(rows)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top}" '
        f'font-family="sans-serif" font-size="13">\n'
        f'<rect width="{WIDTH}" height="{top}" fill="#fff"/>\n{body}\n</svg>\n'
    )


def _group(found: Mapping[str, Measure], top: float) -> list[str]:
    first = next(iter(found.values()))
    known = [one for one in found.values() if one.count]
    edges = [edge for one in known for edge in (one.low, one.high) if math.isfinite(edge)]
    least, most = min([0.0, *edges]), max([1.0 if first.unit == "share" else 0.0, *edges])
    span = (most - least) or 1.0
    width = WIDTH - NAME_WIDTH - VALUE_WIDTH - 20

    def x(value: float) -> float:
        return NAME_WIDTH + width * (value - least) / span

    lines = [
        f'<text x="10" y="{top + 18:g}" font-weight="bold">{escape(first.name)}</text>',
        f'<line x1="{x(0):.1f}" x2="{x(0):.1f}" y1="{top + HEAD_HEIGHT:g}" '
        f'y2="{top + HEAD_HEIGHT + ROW_HEIGHT * len(found):g}" stroke="#bbb"/>',
    ]
    for index, (name, one) in enumerate(found.items()):
        middle = top + HEAD_HEIGHT + ROW_HEIGHT * (index + 0.5)
        colour = COLOURS[index % len(COLOURS)]
        lines.append(f'<text x="20" y="{middle + 4:g}">{escape(name)}</text>')
        text = f"{one} n={one.count}"
        lines.append(f'<text x="{WIDTH - VALUE_WIDTH:g}" y="{middle + 4:g}">{escape(text)}</text>')
        if one.count:
            lines += [
                f'<line x1="{x(one.low):.1f}" x2="{x(one.high):.1f}" y1="{middle:g}" '
                f'y2="{middle:g}" stroke="{colour}" stroke-width="3"/>',
                f'<circle cx="{x(one.value):.1f}" cy="{middle:g}" r="5" fill="{colour}"/>',
            ]
    return lines
