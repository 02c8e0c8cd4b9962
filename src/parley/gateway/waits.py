"""Waits for a condition that changes with signals, and for work that an event may cancel."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

from parley.gateway.signals import Signal
from parley.tasks import wait_for_event

T = TypeVar("T")


async def wait_until(
    condition: Callable[[], bool],
    signals: Iterable[Signal[*tuple[Any, ...]]],
    left_s: Callable[[], float],
) -> bool:
    """Wait until a condition holds, which changes only with these signals; returns whether it
    does.

    Args:
        left_s: remaining time in seconds; it may change with the signals, too.
    """
    changed = asyncio.Event()
    stops = [signal.listen(lambda *_: changed.set()) for signal in signals]
    try:
        while not condition() and (timeout_s := left_s()) > 0:
            changed.clear()
            await wait_for_event(changed, timeout_s)
    finally:
        for stop in stops:
            stop()
    return condition()


async def unless(
    ended: asyncio.Future[Any], work: Coroutine[Any, Any, T], why: Callable[[], Exception]
) -> T:
    """The result of `work`. If `ended` completes first, `work` is cancelled and `why()` raised."""
    working = asyncio.ensure_future(work)
    first: set[asyncio.Future[Any]] = {working, ended}
    try:
        await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise why()
        return working.result()
    finally:
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
        # An error's traceback would keep this frame, and all callers' data, in a reference cycle.
        del working, first
