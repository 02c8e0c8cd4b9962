"""Benchmarks for developers of parley: `python -m tools.bench NAME` in the root of a checkout.

`parley.cli.bench.server` starts servers and other processes; the clients are in `parley.client` and
`parley.cli.bench.talkers`.
"""

from __future__ import annotations

from typing import Final

from parley.cli.bench import group

BENCHES: Final = {
    "relay": "What the gateway adds to a conversation, and how many it carries.",
    "session": "What the whole stack adds around a model that answers immediately.",
    "engine": "What the engine thread waits for while sessions talk alongside it.",
    "units": "How the time and memory of a unit change over a long conversation.",
    "interruption": "How soon answers end when the user speaks up, many times over.",
    "turn": "From the end of speech to the first sound that can be heard, part by part.",
    "dialects": "CPU that a second of sound costs the worker, dialect by dialect.",
    "chaos": "What conversations lose when connections break and processes die.",
    "hour": "An hour of conversation with a cut every minute: memory, clocks, late units.",
    "turnbench": "Write when turns end in TurnBench's recordings, without a server.",
    "recording": "What a recorded unit costs its session, and how fast lists are.",
}

app = group(__name__, BENCHES, "Run a developer's benchmark.")
