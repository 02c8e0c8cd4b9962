"""Slots by time: as many conversations as can speak together within a unit's limit."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from tests.support.fake_capture import FakeCapture
from tests.support.small_minicpmo import small_model

from parley.clock import ManualClock
from parley.engine.engine import Engine
from parley.engine.model import DeviceFault, Job
from parley.engine.work import Stage
from parley.models.minicpmo45.config import full_size_config
from parley.models.minicpmo45.conversation.prefill import StartJob
from parley.models.minicpmo45.load_choice import LoadChoice
from parley.models.minicpmo45.model import MiniCPMO45
from parley.models.minicpmo45.runtime.pages import PagePool
from parley.models.minicpmo45.vision_encoder.pictures import MediaThreads, Pieces
from parley.settings import ModelSettings

BASE_S = 0.004
ROW_S = 0.0005
"""What every step of the stand-in device takes, and what each row adds to it."""


class Timed(MiniCPMO45):
    """Its device takes a known time for each step, by a clock of its own."""

    device_clock: ManualClock
    taken: Counter[tuple[Stage, int]]

    def _step(self, stage: Stage, jobs: Sequence[Job]) -> None:
        super()._step(stage, jobs)
        self.device_clock.advance(BASE_S + ROW_S * len(jobs))
        # How many steps a start takes depends on the thread that prepares the voice.
        if not isinstance(jobs[0], StartJob):
            self.taken[stage, len(jobs)] += 1


def timed(slots: int, limit_s: float | None, **options: Any) -> Timed:
    clock = ManualClock()
    model = small_model(slots, unit_limit_s=limit_s, clock=clock, context_tokens=3000, **options)
    model.__class__ = Timed
    assert isinstance(model, Timed)
    model.device_clock, model.taken = clock, Counter()
    return model


def unit_s(rows: int) -> float:
    """Encode, prefill, 19 tokens, 5 calls for speech and one for sound."""
    return (1 + 1 + UNIT_TOKENS + 5 + 1) * (BASE_S + ROW_S * rows)


UNIT_TOKENS = 19


@pytest.mark.parametrize("fits", [1, 5])
def test_only_as_many_slots_are_offered_as_can_speak_together_in_time(fits: int):
    model = timed(8, unit_s(fits) + BASE_S / 2)

    model.warm_up()

    assert model.spec.slots == fits
    assert f"{fits} of the 8 slots" in model.spec.details["slots_limit"]
    assert model.rows == 8


def test_all_slots_are_offered_where_all_are_in_time():
    model = timed(5, 1.0)

    model.warm_up()

    assert model.spec.slots is None
    assert "slots_limit" not in model.spec.details
    assert model.taken[Stage.DECODE, 5] == 3 * UNIT_TOKENS
    assert model.taken[Stage.VOCODE, 5] == 3


def test_pictures_that_are_cut_on_other_threads_cost_the_device_nothing(
    monkeypatch: pytest.MonkeyPatch,
):
    model = timed(2, 1.0)
    cut = MediaThreads._cut

    def slowly(self: MediaThreads, *given: Any) -> Pieces:
        model.device_clock.advance(1.0)
        return cut(self, *given)

    monkeypatch.setattr(MediaThreads, "_cut", slowly)

    model.warm_up()

    assert model.spec.slots is None


def test_a_device_that_cannot_time_units_serves_as_many_as_its_memory_holds(
    monkeypatch: pytest.MonkeyPatch,
):
    model = timed(2, 1.0)
    step = Timed._step

    def refuse(self: Timed, stage: Stage, jobs: Sequence[Job]) -> None:
        if len(jobs) > 1:
            raise torch.OutOfMemoryError("no room")
        step(self, stage, jobs)

    monkeypatch.setattr(Timed, "_step", refuse)

    model.warm_up()

    assert model.spec.slots is None
    assert model.context.lengths == [0] * 2


def test_a_card_that_fails_while_units_are_timed_does_not_serve(monkeypatch: pytest.MonkeyPatch):
    def failing(self: Timed) -> float:
        raise torch.AcceleratorError("CUDA error: unspecified launch failure")

    monkeypatch.setattr(Timed, "_now", failing)

    with pytest.raises(DeviceFault, match="launch failure"):
        timed(2, 1.0).warm_up()


def test_nothing_is_timed_without_a_limit():
    model = timed(5, None)

    model.warm_up()

    assert {rows for _, rows in model.taken} == {1}


def test_timed_conversations_leave_nothing_behind():
    pool = PagePool(60, 1024)
    model = timed(3, 1.0, pool=pool, capture=FakeCapture())

    model.warm_up()

    assert model.context.lengths == model.audio_cache.lengths == [0, 0, 0]
    assert model.context_pages == (0, 60)
    assert model.graphs.refusals == {}


async def test_an_engine_takes_no_more_conversations_than_are_in_time():
    model = timed(6, unit_s(2) + BASE_S / 2)
    async with Engine(model) as engine:
        assert engine.slots == 6

        await engine.warm_up()

        assert engine.slots == engine.free_slots == 2


@pytest.mark.parametrize(
    ("slots", "limit_ms", "expected"), [("auto", 400, 0.4), ("auto", 0, None), (32, 400, None)]
)
def test_only_automatic_slots_are_limited(slots: Any, limit_ms: int, expected: float | None):
    settings = ModelSettings(slots=slots, unit_limit_ms=limit_ms)

    chosen = LoadChoice(settings, torch.device("cpu"), full_size_config())

    assert chosen.unit_limit_s == expected
