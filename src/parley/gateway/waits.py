"""Waits for a condition that changes with signals."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable

from parley.gateway.signals import Signal


async def wait_until(
    condition: Callable[[], bool], signals: Iterable[Signal[()]], left_s: Callable[[], float]
) -> bool:
    """Wait until a condition holds, which changes only with these signals; returns whether it
    does.

    Args:
        left_s: remaining time in seconds; it may change with the signals, too.
    """
    changed = asyncio.Event()
    stops = [signal.listen(changed.set) for signal in signals]
    try:
        while not condition() and (timeout_s := left_s()) > 0:
            changed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await changed.wait()
    finally:
        for stop in stops:
            stop()
    return condition()
