"""Signal handling of a server process."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

from parley.cli.announce import announce
from parley.importing import early_reloads


@contextlib.contextmanager
def ending_on_signals(
    stop: Callable[[], object],
    stop_now: Callable[[], object],
    *,
    drain: Callable[[], object] | None = None,
    reload: Callable[[], object] | None = None,
    others: Mapping[signal.Signals, Callable[[], object]] = MappingProxyType({}),
) -> Iterator[None]:
    """Ctrl-C and SIGTERM stop gracefully, a second signal immediately.

    Args:
        drain: called on SIGTERM instead of `stop`.
        reload: called on SIGHUP, except if SIGHUP means that a terminal was closed.
        others: called on other signals.
    """
    loop = asyncio.get_running_loop()
    times = 0

    def asked(begin: Callable[[], object]) -> None:
        nonlocal times
        times += 1
        if times == 1:
            announce(
                "signal_received",
                "\nShutting down. Press Ctrl-C again to quit immediately.",
                err=True,
            )
            begin()
        else:
            stop_now()

    handlers: dict[signal.Signals, Callable[[], object]] = {
        signal.SIGINT: lambda: asked(stop),
        signal.SIGTERM: lambda: asked(drain or stop),
        **others,
    }
    if reload is not None and not sys.stderr.isatty():
        handlers[signal.SIGHUP] = reload
    for number, handler in handlers.items():
        loop.add_signal_handler(number, handler)
    if reload is not None and early_reloads:
        reload()
    early_reloads.clear()
    try:
        yield
    finally:
        for number in handlers:
            loop.remove_signal_handler(number)
