"""Messages in flight to one client: bounds, order, and what an interruption drops."""

import asyncio

from tests.support.patience import HANG_S

from parley.session.outbox import Outbox, OutputLimits

LIMITS = OutputLimits(waiting_bytes=100, stall_s=10.0)


async def sent(outbox: Outbox) -> list[str | bytes]:
    """Everything that waits, sent to a client that reads."""
    taken: list[str | bytes] = []

    async def send(frame: str | bytes) -> None:
        taken.append(frame)

    outbox.close()
    await outbox.pump(send)
    return taken


async def test_one_message_larger_than_the_limit_is_taken_when_nothing_waits() -> None:
    outbox = Outbox(LIMITS)
    outbox.put(["x" * 1000])

    assert await sent(outbox) == ["x" * 1000]


async def test_anyone_who_speaks_faster_than_the_client_reads_can_wait_for_room() -> None:
    outbox = Outbox(LIMITS)
    gate = asyncio.Event()
    taken: list[str | bytes] = []

    async def send(text: str | bytes) -> None:
        await gate.wait()
        taken.append(text)

    pump = asyncio.create_task(outbox.pump(send))
    for _ in range(3):
        outbox.put(["x" * 30])
    waiting = asyncio.create_task(outbox.room())
    await asyncio.sleep(0)
    assert not waiting.done()

    gate.set()
    async with asyncio.timeout(HANG_S):
        await waiting
    assert taken
    outbox.close()
    await pump


async def test_what_an_interruption_dropped_takes_no_room() -> None:
    outbox = Outbox(LIMITS)
    outbox.put(["x" * 90], output_ms=1000.0)

    assert outbox.drop_output() == 1000.0
    async with asyncio.timeout(HANG_S):
        await outbox.room()
    outbox.put(["y" * 30])
    outbox.put(["z" * 60])

    assert await sent(outbox) == ["y" * 30, "z" * 60]


async def test_what_was_sent_takes_no_room() -> None:
    outbox = Outbox(LIMITS)
    taken: list[str | bytes] = []

    async def send(frame: str | bytes) -> None:
        taken.append(frame)
        if len(taken) < 10:
            outbox.put(["x" * 40])

    outbox.put(["x" * 40, "x" * 40])
    outbox.close()
    await outbox.pump(send)

    assert len(taken) == 11


async def test_an_interruption_drops_the_answer_and_nothing_else() -> None:
    outbox = Outbox(LIMITS)
    outbox.put(["status"])
    outbox.put(["sound", "more sound"], output_ms=800.0)
    outbox.put(["error"])

    dropped_ms = outbox.drop_output()

    assert dropped_ms == 800.0
    assert await sent(outbox) == ["status", "error"]
