"""Run every kind of step once, so that the first conversation is as fast as the second."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from parley.engine.segments import Audio, Image, Mark, Marker, Segment, Text
from parley.engine.work import Answer, DuplexOptions, Opening, Prefill, Reply, Settle, Work
from parley.media.pcm import INPUT_RATE_HZ, Pcm

if TYPE_CHECKING:
    from parley.models.minicpmo45.model import MiniCPMO45


def warm_up(model: MiniCPMO45) -> None:
    """One short conversation of each kind in row 0, which must be free."""
    second = Pcm.silence(INPUT_RATE_HZ, INPUT_RATE_HZ)
    picture = Image(np.zeros((270, 480, 3), np.uint8), max_slices=1, with_id=False)
    speaks = model.mouth is not None and model.has_default_voice
    system: list[Segment] = [Marker(Mark.TURN_START, "system"), Text("Hello.")]
    system += [Marker(Mark.TURN_END, "system")]
    user: list[Segment] = [Marker(Mark.TURN_START, "user"), Audio(second, "turn"), Text("Hello.")]
    options = DuplexOptions(force_listen_count=0)
    unit = Prefill((Marker(Mark.UNIT), picture, Audio(second, "live")))
    try:
        _run(model, Opening("half_duplex", speak=speaks, seed=1))
        _run(model, Prefill(tuple(system)))
        _run(model, Prefill(tuple(user)))
        _run(model, Reply(max_new_tokens=20))
        _run(model, Opening("duplex", speak=speaks, seed=1, duplex=options))
        _run(model, Prefill(tuple(system)))
        for _ in range(2):
            _run(model, unit)
            _run(model, Answer())
            _run(model, Settle())
    finally:
        model.close(0)


def _run(model: MiniCPMO45, work: Work) -> None:
    job = model.start(0, work)
    while job.stage is not None:
        model.step(job.stage, [job])
