"""Asks a server that cannot be used, with growing pauses, until it can."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from parley import logs
from parley.clock import Backoff
from parley.errors import SetupError

FIRST_PAUSE_S: Final = 1.0
LAST_PAUSE_S: Final = 15.0

log = logs.get(__name__)


class ServerAway(SetupError):
    """A server does not answer, or is not ready yet; it may be later."""


class ServerWatch:
    """See the module's docstring. A separate thread asks.

    Args:
        name: address of the server, for logs.
        ask: raises `SetupError` if the server cannot be used.
    """

    def __init__(self, name: str, ask: Callable[[], None]) -> None:
        self._name, self._ask = name, ask
        self._complaints = logs.Complaints()
        self._lock = threading.Lock()
        self._answered: threading.Event | None = None
        """Set when the server can be used, which ends the thread; None if no thread runs."""
        self.problem = ""
        """Why the server cannot be used, as a sentence without addresses; "" if it can, as far as
        is known."""

    def failed(self, problem: str, error: SetupError | None = None) -> None:
        """The server cannot be used: start to ask it. `error`: its answer, if it was asked."""
        if error is not None:
            self._complain(error)
        with self._lock:
            self.problem = problem
            if self._answered is not None:
                return
            self._answered = threading.Event()
            name, answered = "server-watch", self._answered
            threading.Thread(target=self._run, args=[answered], name=name, daemon=True).start()

    def answered(self) -> None:
        """The server can be used, or does not matter any more."""
        with self._lock:
            if self._answered is None:
                return
            self._answered.set()
            self._answered, self.problem = None, ""
        log.info("server_answers", url=self._name)

    def _run(self, answered: threading.Event) -> None:
        backoff = Backoff(FIRST_PAUSE_S, LAST_PAUSE_S)
        while not answered.wait(backoff.take()):
            try:
                self._ask()
            except SetupError as error:
                self._complain(error)
            else:
                self.answered()

    def _complain(self, error: SetupError) -> None:
        is_news = self._complaints.is_news(str(error), time.monotonic())
        (log.warning if is_news else log.debug)(
            "server_away", url=self._name, why=str(error), hint=error.hint
        )
