"""What Ray keeps on a node: one actor, which holds the device and runs the worker as its child.

The child is the same process that `parley serve` starts on one machine, so CUDA, the log and being
killed are the same too. It does not outlive the actor, however that ends. Knows Ray not: the class
is made an actor by `executor/ray.py`.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from parley import __version__

LINES_KEPT: Final = 1000
LINE_CHARS: Final = 1 << 16
KILL_WAIT_S: Final = 10.0
LAST_LINES_S: Final = 1.0
"""Time for reading the last output of an ended worker. A child of it may keep the output open
longer."""


@dataclass(frozen=True, slots=True)
class NodeWorkerState:
    """State of a worker; `lines` are its output since the last poll."""

    pid: int
    returncode: int | None
    host: str
    lines: tuple[str, ...]


class NodeWorker:
    """One worker process on this node.

    Args:
        environment: on top of the actor's own, in which Ray has chosen the device.
        version: of the server that wants it.
        command: what to run; `{parent}` becomes this process's id.
    """

    def __init__(
        self, environment: Mapping[str, str], version: str, digest: str, command: Sequence[str]
    ) -> None:
        self._environment = dict(environment)
        self._version = version
        self._digest = digest
        self._command = command
        self._lines: deque[str] = deque(maxlen=LINES_KEPT)
        self._child: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None
        self.begin()

    def version(self) -> tuple[str, str]:
        """This node's parley version, and the set-up that runs here."""
        return __version__, self._digest

    def begin(self) -> None:
        """Start the worker unless one runs. Another version is refused."""
        if __version__ != self._version:
            self._lines.append(
                f"error: This node has parley {__version__}, the gateway {self._version}."
            )
            return
        if self._child is not None and self._child.poll() is None:
            return
        command = [word.format(parent=os.getpid()) for word in self._command]
        self._child = subprocess.Popen(
            [sys.executable, *command],
            env={**os.environ, **self._environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, args=(self._child,), daemon=True)
        self._reader.start()

    def state(self) -> NodeWorkerState:
        """State of the worker; after its end, with all its output, which shows the reason."""
        child = self._child
        pid, returncode = (0, 2) if child is None else (child.pid, child.poll())
        if returncode is not None and self._reader is not None:
            self._reader.join(LAST_LINES_S)
            self._reader = None
        lines = tuple(self._lines.popleft() for _ in range(len(self._lines)))
        return NodeWorkerState(pid, returncode, socket.gethostname(), lines)

    def kill(self) -> None:
        if self._child is not None:
            _kill_group(self._child.pid)

    def stop(self, grace_s: float) -> None:
        """End the worker; kill it after `grace_s`."""
        child = self._child
        if child is None:
            return
        child.terminate()
        try:
            child.wait(grace_s)
        except subprocess.TimeoutExpired:
            pass
        finally:
            # The group too: a worker's own helpers must not stay behind.
            _kill_group(child.pid)
        child.wait(KILL_WAIT_S)

    def _read(self, child: subprocess.Popen[str]) -> None:
        assert child.stdout is not None
        with child.stdout as lines:
            while line := lines.readline(LINE_CHARS):
                if line.strip():
                    self._lines.append(line.rstrip())


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return
