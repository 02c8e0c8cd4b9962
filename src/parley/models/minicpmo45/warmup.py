"""Warm-up before the first conversation: runs every kind of step once, and times units.

The time of a unit grows with the number of conversations that share it. Memory may have room for
more of them than the device can answer in time, so `slots_in_time` runs several together and times
them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

import numpy as np
import torch
from torch import Tensor

from parley import logs
from parley.engine.model import Model
from parley.engine.segments import Audio, Image, Mark, Marker, Segment, Text
from parley.engine.work import Finalize, Generate, Prefill, StartSession, StepUnit, Work
from parley.media.pcm import INPUT_RATE_HZ, Pcm
from parley.models.minicpmo45.conversation.state import Conversation
from parley.models.minicpmo45.llm.sampling import Ask, Choice
from parley.models.minicpmo45.runtime.caches import Span
from parley.models.minicpmo45.stages import Choosing, StepParts
from parley.models.minicpmo45.tokenizer import Tokenizer
from parley.models.minicpmo45.vision_encoder.pictures import Pixels
from parley.protocol.values import DuplexConfig

log = logs.get(__name__)

HELD_TOKENS: Final = 3000
"""Tokens of an average call, and of each row of a timed unit."""

TIMED_UNITS: Final = 2
"""Number of timed units; the slowest counts. The first unit of a turn is not timed: it may contain
less speech, and libraries choose their kernels in it."""

GROWTH: Final = 4
"""Factor between the numbers of rows of two tries; the time of a unit is interpolated linearly in
between."""

SYSTEM: Final[tuple[Segment, ...]] = (
    Marker(Mark.TURN_START, "system"),
    Text("Hello."),
    Marker(Mark.TURN_END, "system"),
)


def _unit(pixels: Pixels) -> Prefill:
    """A unit with a picture and a second of audio."""
    picture = Image(pixels, max_slices=1, with_id=False)
    second = Pcm.silence(INPUT_RATE_HZ, INPUT_RATE_HZ)
    return Prefill((Marker(Mark.UNIT), picture, Audio(second, "live")))


def _black() -> Pixels:
    return np.zeros((270, 480, 3), np.uint8)


def _duplex(*, speaks: bool) -> StartSession:
    return StartSession("duplex", speak=speaks, seed=1, duplex=DuplexConfig(force_listen_count=0))


def _together(model: Model, rows: int, work: Work) -> None:
    """Run a piece of work in the first rows, all of them in every step."""
    jobs = [model.start(row, work) for row in range(rows)]
    while waiting := [job for job in jobs if job.stage is not None]:
        stage = waiting[0].stage
        assert stage is not None
        model.step(stage, [job for job in waiting if job.stage is stage])


def warm_up(model: Model, *, speaks: bool) -> None:
    """Run one short conversation of each kind in row 0, which must be free.

    Args:
        speaks: speak with the default voice.
    """
    second = Pcm.silence(INPUT_RATE_HZ, INPUT_RATE_HZ)
    user = (Marker(Mark.TURN_START, "user"), Audio(second, "turn"), Text("Hello."))
    works: list[Work] = [
        StartSession("half_duplex", speak=speaks, seed=1),
        Prefill(SYSTEM),
        Prefill(user),
        Generate(max_new_tokens=20),
        _duplex(speaks=speaks),
        Prefill(SYSTEM),
        *(_unit(_black()), StepUnit(), Finalize()) * 2,
    ]
    progress = logs.Steps(log, "model_warmed")
    try:
        for work in works:
            _together(model, 1, work)
            progress.step(work=type(work).__name__)
        progress.end(speaks=speaks)
    finally:
        model.close(0)


class Timeable(StepParts, Model, Protocol):
    """A model whose units can be timed."""

    def conversation(self, row: int) -> Conversation: ...


@dataclass(frozen=True, slots=True)
class Talkative:
    """Calls the chooser, to take the same time, and then always chooses to speak."""

    chooser: Choosing
    tokenizer: Tokenizer

    def choose(self, logits: Tensor, asks: Sequence[Ask]) -> list[Choice]:
        (letter,) = self.tokenizer.encode("a")[:1]
        return [replace(one, token=letter) for one in self.chooser.choose(logits, asks)]


def slots_in_time(
    model: Timeable, limit_s: float, *, speaks: bool, now: Callable[[], float]
) -> tuple[int, dict[int, float]]:
    """Maximum number of conversations that can speak together within `limit_s` per unit; at least
    1.

    Args:
        now: returns the time in seconds, once the device has finished its work.

    Returns:
        That number, and the time of a unit in seconds for each number of rows that was tried.
    """
    took: dict[int, float] = {}
    rows = before = 1
    while True:
        took[rows] = _unit_s(model, rows, speaks=speaks, now=now)
        if took[rows] > limit_s:
            room = (limit_s - took[before]) / max(took[rows] - took[before], 1e-9)
            return max(1, before + int(room * (rows - before))), took
        if rows == model.rows:
            return rows, took
        before, rows = rows, min(GROWTH * rows, model.rows)


@torch.inference_mode()
def _unit_s(model: Timeable, rows: int, *, speaks: bool, now: Callable[[], float]) -> float:
    """Time in seconds of a unit in which each of the first `rows` rows receives a picture and
    speaks as much as a unit allows, all in every step together. The rows must be free."""
    chooser, model.chooser = model.chooser, Talkative(model.chooser, model.tokenizer)
    try:
        _together(model, rows, _duplex(speaks=speaks))
        for row in range(rows):
            _remember(model, row)
        pixels = _black()
        # Pictures are cut on other threads as soon as they arrive.
        model.media.begin_cut(pixels, 1)
        model.media.pieces(pixels, 1)
        times = []
        for _ in range(1 + TIMED_UNITS):
            began_s = now()
            for work in (_unit(pixels), StepUnit(), Finalize()):
                _together(model, rows, work)
            times.append(now() - began_s)
        return max(times[1:])
    finally:
        model.chooser = chooser
        for row in range(rows):
            model.close(row)


def _remember(model: Timeable, row: int) -> None:
    """Fill a row with as many positions as an average call has."""
    room = min(model.context.reach(row), model.spec.context_limit_tokens)
    count = max(0, min(HELD_TOKENS, room - 512))
    model.context.reserve(row, count)
    model.context.commit([Span(row, 0, count)])
    model.conversation(row).ledger.append(count)
