"""Shows a conversation on a terminal: text on standard output, everything else on standard error,
with one status line that is rewritten in place.
"""

from __future__ import annotations

import sys
from typing import Annotated, Final, TextIO

import typer

from parley.client.events import Assigned, Reconnecting, Waiting
from parley.clock import Clock, SystemClock
from parley.errors import SetupError

WAIT_S: Final = 300.0
Wait = Annotated[
    float, typer.Option(min=0, help="Seconds to wait for a worker if the server has none.")
]


class Screen:
    """Two streams and a status line.

    Args:
        wait_s: see `waiting`.
    """

    def __init__(
        self,
        out: TextIO | None = None,
        status: TextIO | None = None,
        *,
        wait_s: float = WAIT_S,
        clock: Clock | None = None,
    ) -> None:
        self._wait_s, self._clock = wait_s, clock or SystemClock()
        self._without_worker_s: float | None = None
        """Time since which the server has had no worker."""
        self._out = out or sys.stdout
        self._status = status or sys.stderr
        self._is_terminal = self._status.isatty()
        self._live = ""
        self._mid_line = False
        self._place = (0, False)

    def text(self, words: str) -> None:
        """Print words of the answer as they arrive."""
        if not words:
            return
        self._clear()
        self._out.write(words)
        self._out.flush()
        self._mid_line = not words.endswith("\n")

    def end_text(self) -> None:
        if self._mid_line:
            self._out.write("\n")
            self._out.flush()
            self._mid_line = False

    def note(self, line: str) -> None:
        self._clear()
        self.end_text()
        print(line, file=self._status, flush=True)

    def live(self, line: str) -> None:
        """Replace the status line. Not printed unless the output is a terminal."""
        if not self._is_terminal or line == self._live:
            return
        self._clear()
        self.end_text()
        self._status.write(line[:120])
        self._status.flush()
        self._live = line

    def waiting(self, event: Waiting) -> None:
        """Show the position in the queue. In a log it is printed when it changes; the estimate
        alone changes every few seconds.

        Raises:
            SetupError: the server has had no worker for `wait_s`.
        """
        has_worker, now_s = event.estimated_wait_s is not None, self._clock.monotonic()
        since_s = now_s if self._without_worker_s is None else self._without_worker_s
        self._without_worker_s = None if has_worker else since_s
        if not has_worker and now_s - since_s >= self._wait_s:
            raise SetupError(
                f"The server has no worker (waited {self._wait_s:.0f} s).",
                hint="Start one with parley worker; parley status shows those that are connected.",
            )
        self.live(describe(event))
        place = (event.position, has_worker)
        if not self._is_terminal and place != self._place:
            self.note(describe(event))
        self._place = place

    def close(self) -> None:
        self._clear()
        self.end_text()

    def _clear(self) -> None:
        if self._live:
            self._status.write("\r\x1b[K")
            self._status.flush()
            self._live = ""


def describe(event: Waiting | Assigned | Reconnecting) -> str:
    """Describe queue events in words."""
    match event:
        case Waiting(position=position, estimated_wait_s=wait_s, queue_length=length):
            place = f"place {position} of {max(length, position)}"
            if wait_s is None:
                return f"waiting for a worker, the server has none: {place}"
            return f"waiting: {place}, about {wait_s:.0f} s"
        case Assigned():
            return "connected to a worker"
        case Reconnecting(attempt=attempt, why=why):
            return f"reconnecting (attempt {attempt}): {why}"
