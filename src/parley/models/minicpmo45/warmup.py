"""Run every kind of step once, so that the first conversation is as fast as the second."""

from __future__ import annotations

import numpy as np

from parley import logs
from parley.engine.model import Model
from parley.engine.segments import Audio, Image, Mark, Marker, Segment, Text
from parley.engine.work import Finalize, Generate, Prefill, StartSession, StepUnit, Work
from parley.media.pcm import INPUT_RATE_HZ, Pcm
from parley.protocol.values import DuplexConfig

log = logs.get(__name__)


def warm_up(model: Model, *, speaks: bool) -> None:
    """Run one short conversation of each kind in row 0, which must be free.

    Args:
        speaks: with the default voice.
    """
    second = Pcm.silence(INPUT_RATE_HZ, INPUT_RATE_HZ)
    picture = Image(np.zeros((270, 480, 3), np.uint8), max_slices=1, with_id=False)
    system: list[Segment] = [Marker(Mark.TURN_START, "system"), Text("Hello.")]
    system += [Marker(Mark.TURN_END, "system")]
    user: list[Segment] = [Marker(Mark.TURN_START, "user"), Audio(second, "turn"), Text("Hello.")]
    options = DuplexConfig(force_listen_count=0)
    unit = Prefill((Marker(Mark.UNIT), picture, Audio(second, "live")))
    try:
        _run(model, StartSession("half_duplex", speak=speaks, seed=1))
        _run(model, Prefill(tuple(system)))
        _run(model, Prefill(tuple(user)))
        _run(model, Generate(max_new_tokens=20))
        _run(model, StartSession("duplex", speak=speaks, seed=1, duplex=options))
        _run(model, Prefill(tuple(system)))
        for _ in range(2):
            _run(model, unit)
            _run(model, StepUnit())
            _run(model, Finalize())
    finally:
        model.close(0)


def _run(model: Model, work: Work) -> None:
    job = model.start(0, work)
    while job.stage is not None:
        model.step(job.stage, [job])
    logs.progress(log, "model_warmed", work=type(work).__name__)
