"""`parley bench`: measurements that operators make of a server, a model or a card.

Benches that only developers of parley need are in `tools/bench` of the repository.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Final

import typer

from parley.cli import lazy

BENCHES: Final = {
    "model": "Measure how many conversations a device can run.",
    "gpu": "Check and measure the full-size model on a GPU.",
    "load": "Measure concurrent conversations on any running server.",
    "duplex": "Measure turn-taking of a server: takeover, latency, interruptions, noise.",
    "noise": "Measure what wrongly stops an answer: coughs, music, a crowd, its own echo.",
    "field": "Write a server's answers to recordings in the formats of public scorers.",
    "attack": "Measure live sessions while one client misbehaves.",
}


def group(package: str, benches: Mapping[str, str], description: str) -> typer.Typer:
    """A command with one verb per bench: `NAME` is the function of that name in `package.NAME`.

    Args:
        benches: names, and what each measures.
    """
    return lazy.group(
        {name: {"help": text} for name, text in benches.items()},
        lambda name: getattr(importlib.import_module(f"{package}.{name}"), name),
        help=description,
        add_completion=False,
    )


app = group(__name__, BENCHES, "Run benchmarks.")
