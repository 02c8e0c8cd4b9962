import asyncio
import gc
import itertools
import threading
from unittest.mock import Mock

import pytest
from structlog.testing import capture_logs
from tests.support.patience import HANG_S
from tests.support.scripted_model import ScriptedModel

from parley.engine import Engine
from parley.engine.model import DeviceFault
from parley.engine.segments import Text
from parley.engine.work import Ending, Generate, Prefill, StartSession, StepUnit, WholeUnit
from parley.errors import ContextFull, InferenceFailed, ServiceUnavailable, SetupError, SlotLost

HELLO = [Text("hello")]


class Gate:
    """Lets the engine thread take its steps one by one."""

    def __init__(self):
        self.entered = threading.Semaphore(0)
        self.open = threading.Semaphore(0)

    def __call__(self, stage, rows):
        self.entered.release()
        assert self.open.acquire(timeout=HANG_S)

    async def wait_entered(self):
        assert await asyncio.to_thread(self.entered.acquire, timeout=HANG_S)

    def let_go(self, steps=1):
        for _ in range(steps):
            self.open.release()


async def test_text_that_cannot_fit_costs_the_engine_nothing():
    model = ScriptedModel(1)
    limit = model.spec.context_limit_tokens
    async with Engine(model) as engine, await engine.take_slot() as handle:
        await handle.start(StartSession("chat"))
        with pytest.raises(ContextFull, match=f"length is {limit} tokens"):
            await handle.prefill([Text("words " * limit)] * 6)
        with pytest.raises(ContextFull):
            handle.unit(WholeUnit(Prefill((Text("words " * limit),) * 6), StepUnit()))

        assert (await handle.prefill(HELLO)).context_tokens == 1


async def test_seats_are_given_first_come_first_served():
    async with Engine(ScriptedModel(1)) as engine:
        first = await engine.take_slot()
        assert engine.try_take_slot() is None
        order = []

        async def wait(name):
            handle = await engine.take_slot()
            order.append(name)
            await handle.close()

        async with asyncio.TaskGroup() as group:
            for name in ("a", "b", "c"):
                group.create_task(wait(name))
                await asyncio.sleep(0)
            await first.close()

        assert order == ["a", "b", "c"]
        assert engine.free_slots == 1


async def test_a_seat_that_arrives_as_its_waiter_leaves_is_passed_on(monkeypatch):
    async with Engine(ScriptedModel(1)) as engine:
        first = await engine.take_slot()
        waiting = asyncio.create_task(engine.take_slot())
        await asyncio.sleep(0)
        give_back = engine._give_back

        def give_back_and_leave(handle):
            give_back(handle)
            waiting.cancel()

        monkeypatch.setattr(engine, "_give_back", give_back_and_leave)
        await first.close()
        await asyncio.wait([waiting])

        assert waiting.cancelled()
        assert engine.free_slots == 1


async def test_close_returns_when_the_model_has_let_go():
    gate = Gate()
    model = ScriptedModel(1, on_step=gate)
    async with Engine(model) as engine:
        handle = await engine.take_slot()
        decoding = handle.generate(Generate())
        await gate.wait_entered()

        closing = asyncio.create_task(handle.close())
        await asyncio.sleep(0)
        assert not closing.done()
        assert (model.closed, engine.free_slots) == ([], 0)
        gate.let_go()
        await closing

        assert (model.closed, engine.free_slots) == ([0], 1)
        with pytest.raises(SlotLost):
            await decoding.result()
        await handle.close()
        assert engine.free_slots == 1


async def test_a_late_result_never_reaches_the_next_tenant():
    gate = Gate()
    async with Engine(ScriptedModel(1, on_step=gate)) as engine:
        old = await engine.take_slot()
        old_decoding = old.generate(Generate())
        await gate.wait_entered()
        closing = asyncio.create_task(old.close())
        await asyncio.sleep(0)  # the engine is told before its step ends, or it would take another
        gate.let_go()
        await closing

        new = await engine.take_slot()
        new_decoding = new.generate(Generate())
        gate.let_go(5)

        assert new.row == old.row
        assert (await new_decoding.result()).text == "xxxxx"
        assert len([piece async for piece in new_decoding]) == 5
        with pytest.raises(SlotLost):
            [piece async for piece in old_decoding]


async def test_the_slot_that_was_free_longest_is_next():
    async with Engine(ScriptedModel(3)) as engine:
        handles = [await engine.take_slot() for _ in range(3)]
        for row in (1, 0, 2):
            await handles[row].close()
            await handles[row].close()

        assert [(await engine.take_slot()).row for _ in range(3)] == [1, 0, 2]
        assert engine.try_take_slot() is None


async def test_a_closed_seat_takes_no_work():
    async with Engine(ScriptedModel(1)) as engine:
        handle = await engine.take_slot()
        await handle.close()

        with pytest.raises(SlotLost, match="lost its slot"):
            await handle.prefill(HELLO)
        with pytest.raises(SlotLost):
            handle.generate(StepUnit())


UNIT = WholeUnit(Prefill((*HELLO, *HELLO), takes_checkpoint=True), StepUnit())


async def test_a_unit_cancelled_in_its_prefill_is_taken_in_and_decides_nothing():
    gate = Gate()
    async with Engine(ScriptedModel(1, on_step=gate)) as engine, await engine.take_slot() as handle:
        decoding = handle.unit(UNIT)
        await gate.wait_entered()
        decoding.cancel()
        gate.let_go()

        decoded = await decoding.result()

    assert (decoded.ending, decoded.text) == (Ending.CANCELLED, "")
    assert decoded.context_tokens == 2


async def test_abandoning_the_wait_does_not_change_the_order():
    gate = Gate()
    model = ScriptedModel(1, on_step=gate)
    async with Engine(model) as engine, await engine.take_slot() as handle:
        waiting = asyncio.create_task(handle.prefill(HELLO))
        await gate.wait_entered()
        waiting.cancel()
        gate.let_go(4)

        prefilled = await handle.prefill(HELLO)

        assert waiting.cancelled()
        assert prefilled.context_tokens == 2


async def test_a_failure_nobody_waits_for_is_not_noise(logged):
    def fail(stage, rows):
        raise RuntimeError("always")

    async with Engine(ScriptedModel(1, on_step=fail)) as engine, await engine.take_slot() as handle:
        handle.generate(Generate())
        with pytest.raises(InferenceFailed):
            await handle.prefill(HELLO)
    gc.collect()

    assert not [record for record in logged if "never retrieved" in record.getMessage()]


async def test_a_device_fault_takes_every_seat():
    def fail(stage, rows):
        raise DeviceFault("gone")

    engine = Engine(ScriptedModel(2, on_step=fail))
    engine.start()
    first, second = await engine.take_slot(), await engine.take_slot()
    waiting = asyncio.create_task(engine.take_slot())
    await asyncio.sleep(0)

    with pytest.raises(InferenceFailed):
        await first.prefill(HELLO)
    await engine.broken.wait()

    assert not engine.is_running
    assert engine.free_slots == 0
    with pytest.raises(SlotLost):
        await second.prefill(HELLO)
    with pytest.raises(ServiceUnavailable):
        await waiting
    with pytest.raises(ServiceUnavailable):
        await engine.take_slot()
    await first.close()
    await engine.stop()


async def test_stop_fails_what_runs_and_frees_everything():
    gate = Gate()
    model = ScriptedModel(2, on_step=gate)
    engine = Engine(model)
    engine.start()
    handle = await engine.take_slot()
    await engine.take_slot()
    running = asyncio.create_task(handle.prefill(HELLO))
    waiting = asyncio.create_task(engine.take_slot())
    await gate.wait_entered()

    stopping = asyncio.create_task(engine.stop(unload=False))
    await asyncio.sleep(0)
    gate.let_go()
    await stopping

    with pytest.raises(SlotLost):
        await running
    with pytest.raises(ServiceUnavailable):
        await waiting
    assert sorted(model.closed) == [0, 1]
    assert not model.is_unloaded
    assert not any(thread.name == "engine" for thread in threading.enumerate())
    await engine.stop()
    await handle.close()


async def test_a_stuck_step_does_not_keep_stop_from_returning():
    gate = Gate()
    engine = Engine(ScriptedModel(1, on_step=gate))
    engine.start()
    handle = await engine.take_slot()
    running = asyncio.create_task(handle.prefill(HELLO))
    await gate.wait_entered()

    with capture_logs() as logged:
        await engine.stop(limit_s=0.01)

    assert [each["event"] for each in logged] == ["engine_thread_stuck"]
    with pytest.raises(SlotLost):
        await running
    gate.let_go(10)


async def test_warm_up_and_memory_run_on_the_engine_thread():
    model = ScriptedModel(1)
    async with Engine(model) as engine:
        await engine.warm_up()
        async with await engine.take_slot() as handle:
            await handle.prefill(HELLO * 9)
            assert (await engine.memory()).used_bytes == 9
    assert model.is_warm


@pytest.mark.parametrize(
    ("fails", "said"),
    [
        (RuntimeError("no kernel"), "The model failed while warming up: no kernel"),
        (SetupError("There is no voice."), "There is no voice."),
    ],
)
async def test_a_model_that_cannot_warm_up_says_so(monkeypatch, fails, said):
    model = ScriptedModel(1)
    monkeypatch.setattr(model, "warm_up", Mock(side_effect=fails))
    async with Engine(model) as engine:
        with pytest.raises(SetupError, match=f"^{said}$"):
            await engine.warm_up()


async def test_an_engine_starts_once():
    async with Engine(ScriptedModel(1)) as engine:
        with pytest.raises(SetupError, match="already started"):
            engine.start()


async def test_a_seat_has_a_bounded_number_of_requests():
    gate = Gate()
    async with Engine(ScriptedModel(1, on_step=gate)) as engine:
        handle = await engine.take_slot()
        for _ in range(64):
            handle.generate(Generate())

        with pytest.raises(InferenceFailed, match="Too much work"):
            handle.generate(Generate())

        await gate.wait_entered()
        gate.let_go()
        await handle.close()


async def test_a_thousand_tenants_leave_nothing_behind_though_steps_fail():
    steps = itertools.count(1)

    def fail(stage, rows):
        if next(steps) % 20 < 3:  # also when it is tried again with fewer rows
            raise RuntimeError("bad luck")

    model, failures = ScriptedModel(4, on_step=fail), []
    async with Engine(model) as engine:

        async def live(index):
            async with await engine.take_slot() as handle:
                try:
                    await handle.start(StartSession("chat"))
                    await handle.prefill(HELLO * 5)
                    decoding = handle.generate(Generate())
                    if index % 3 == 0:
                        decoding.cancel()
                    elif index % 3 == 1:
                        assert (await decoding.result()).text == "xxxxx"
                except InferenceFailed as failure:
                    failures.append(failure)

        async with asyncio.TaskGroup() as group:
            for index in range(1000):
                group.create_task(live(index))

        assert engine.free_slots == 4
        assert engine.context_tokens == 0
        assert model.lengths == [0] * 4
        assert len(model.closed) == 1000
        assert failures
