"""Shows a conversation on a terminal: text on standard output, everything else on standard error,
with one status line that is rewritten in place.
"""

from __future__ import annotations

import sys
from typing import TextIO

from parley.client.events import Assigned, Reconnecting, Waiting


class Screen:
    """Two streams and a status line."""

    def __init__(self, out: TextIO | None = None, status: TextIO | None = None) -> None:
        self._out = out or sys.stdout
        self._status = status or sys.stderr
        self._is_terminal = self._status.isatty()
        self._live = ""
        self._mid_line = False
        self._place = 0

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
        alone changes every few seconds."""
        self.live(describe(event))
        if not self._is_terminal and event.position != self._place:
            self.note(describe(event))
        self._place = event.position

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
            about = "waiting time unknown" if wait_s is None else f"about {wait_s:.0f} s"
            return f"waiting: place {position} of {max(length, position)}, {about}"
        case Assigned():
            return "connected to a worker"
        case Reconnecting(attempt=attempt, why=why):
            return f"reconnecting (attempt {attempt}): {why}"
