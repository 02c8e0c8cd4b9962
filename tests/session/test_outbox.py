"""Messages in flight to one client: bounds, order, and what an interruption drops."""

import asyncio

from tests.support.patience import HANG_S

from parley.session.outbox import SLOWEST_BYTES_PER_S, Outbox, OutputLimits, PacedOutput

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
    for _ in range(3):  # It lets others run first.
        await asyncio.sleep(0)
    assert not waiting.done()

    gate.set()
    async with asyncio.timeout(HANG_S):
        await waiting
    assert taken
    outbox.close()
    await pump
    # What was sent takes no room.
    for size in (10, 85):
        outbox.put(["x" * size])


async def test_patience_counts_what_is_in_flight() -> None:
    outbox = Outbox(LIMITS)
    outbox.put(["x" * SLOWEST_BYTES_PER_S])
    reads, is_sending = asyncio.Event(), asyncio.Event()

    async def send(_: str | bytes) -> None:
        is_sending.set()
        await reads.wait()

    pump = asyncio.create_task(outbox.pump(send))
    await is_sending.wait()
    assert outbox.patience_s == LIMITS.stall_s + 1
    reads.set()
    outbox.close()
    await pump


async def test_an_interruption_drops_the_answer_which_takes_no_room_and_nothing_else() -> None:
    outbox = Outbox(LIMITS)
    outbox.put(["status"])
    outbox.put(["x" * 40, "y" * 40], output_ms=800.0)
    outbox.put(["error"])
    waiting = asyncio.create_task(outbox.room())
    await asyncio.sleep(0)

    assert outbox.drop_output() == 800.0
    async with asyncio.timeout(HANG_S):
        await waiting
    outbox.put(["z" * 89])

    assert await sent(outbox) == ["status", "error", "z" * 89]


def test_sound_is_due_a_little_before_it_is_played():
    paced = PacedOutput()
    paced.put(["text", "a", "b", "c"], [0, 100, 200, 100], 10.0)

    assert paced.take_due(10.0) == ["text", "a", "b"]
    assert paced.next_due_s is not None
    assert 10.09 < paced.next_due_s < 10.11
    assert paced.take_due(10.05) == []
    assert paced.take_due(10.11) == ["c"]
    assert not paced.waiting


def test_sound_follows_what_is_being_played_and_is_due_immediately_after_a_pause():
    paced = PacedOutput()
    paced.put(["a"], [1000], 10.0)
    paced.take_due(10.0)
    paced.put(["b"], [1000], 10.5)

    assert paced.take_due(10.7) == []
    assert paced.take_due(10.81) == ["b"]
    paced.put(["c"], [1000], 20.0)
    assert paced.take_due(20.0) == ["c"]


def test_what_is_dropped_is_neither_sent_nor_waited_for():
    paced = PacedOutput()
    paced.put(["a", "b", "c"], [100, 500, 500], 10.0)
    paced.take_due(10.0)

    assert paced.drop(10.1) == 500
    assert paced.next_due_s is None
    paced.put(["d"], [100], 10.2)
    assert paced.take_due(10.2) == ["d"]


def test_all_of_it_can_be_taken_at_the_end():
    paced = PacedOutput()
    paced.put(["a", "b"], [1000, 1000], 10.0)

    assert paced.take_all() == ["a", "b"]
    assert not paced.waiting
