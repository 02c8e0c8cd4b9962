"""The measures of `parley bench duplex` as a picture: values with their 95 % intervals, as SVG."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Final

from parley.cli.bench.duplex_score import Measure

WIDTH: Final = 960
NAME_WIDTH: Final = 200
VALUE_WIDTH: Final = 190
ROW_HEIGHT: Final = 22
HEAD_HEIGHT: Final = 30
FOOT_HEIGHT: Final = 14
COLOURS: Final = ("#1b6ca8", "#c1440e", "#3a7d44", "#7a4ea3", "#8a6d00", "#5a5a5a")
"""Colours of the dialects in order; dark enough on white."""


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
