"""Messages in flight to one client: bounds, order, and what an interruption drops."""

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
