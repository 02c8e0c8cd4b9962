"""`python -m tools.bench turn`: the parts of a turn, inside and over the wire."""

import pytest
from tests.support.noises import spoken
from tools.bench.turn import AFTER, SILENCE_MS, inside, through

from parley.cli.bench.server import server
from parley.models.parrot import Parrot


async def test_the_parts_inside_are_of_every_turn():
    words = [spoken("What is the capital of Italy?")]

    parts = await inside(Parrot(1), words, 2)

    assert {name: len(values) for name, values in parts.items()} == {
        "inside: queue": 2,
        "inside: prefill": 2,
        "inside: first text": 2,
        "inside: first window": 2,
        "inside: all": 2,
        "inside: all, taken in early": 2,
        **{f"inside: processor, {stage}": 2 for stage in ("encode", "prefill", "decode", "vocode")},
    }
    everything = parts["inside: all"]
    for name in ("queue", "prefill", "first text"):
        for part, whole in zip(parts[f"inside: {name}"], everything, strict=True):
            assert 0 < part <= whole


@pytest.mark.slow
@pytest.mark.timeout(120)
async def test_the_parts_over_the_wire_add_up():
    words = [spoken("What is the capital of Italy?")]
    async with server(1) as url:
        parts = await through(url, words, 1, 0.02)

    (detector,), (after,) = parts["wire: detector"], parts[AFTER]
    assert detector > SILENCE_MS
    assert parts["wire: first sound, after the end of speech"] == [pytest.approx(detector + after)]
