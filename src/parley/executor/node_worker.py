"""One worker process and its output, on the machine with the device: in the process of `parley
serve`, or in an actor on a node of a Ray cluster. Ends with the process that holds it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from parley import __version__

WORKER_COMMAND: Final = ("-P", "-m", "parley.executor.child", "{parent}", "worker")
"""Arguments of Python. -P: a file in the working folder must not replace a module with the same
name."""
LINES_KEPT: Final = 10_000
LINE_CHARS: Final = 1 << 16
KILL_WAIT_S: Final = 10.0
LAST_LINES_S: Final = 1.0
"""Time limit for reading the last output of an ended worker, because a process that left its group
may keep the output open."""


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
        environment: in addition to this process's own, in which Ray has chosen the device.
        command: arguments of Python; `{parent}` is replaced by this process's id.
        version: of the server that starts it.
        digest: identifies the set-up.
        prepared: a process that becomes the first worker (`local.prepare_worker`).
        wake: called in a thread when there is output, or the worker has ended.
    """

    def __init__(
        self,
        environment: Mapping[str, str],
        command: Sequence[str],
        *,
        version: str = __version__,
        digest: str = "",
        prepared: subprocess.Popen[str] | None = None,
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        self._environment = dict(environment)
        self._command = command
        self._version = version
        self._digest = digest
        self._prepared = prepared
        self._wake = wake
        self._lines: deque[str] = deque(maxlen=LINES_KEPT)
        self._child: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None
        self.begin()

    def version(self) -> tuple[str, str]:
        """This node's parley version, and the current set-up."""
        return __version__, self._digest

    def begin(self) -> None:
        """Start the worker unless one is running. Another version is refused."""
        if __version__ != self._version:
            self._lines.append(
                f"error: This node has parley {__version__}, the gateway {self._version}."
            )
            return
        if self._child is not None and self._child.poll() is None:
            return
        self._child = self._take_prepared() or start(self._command, self._environment)
        self._reader = threading.Thread(target=self._read, args=(self._child,), daemon=True)
        self._reader.start()

    def _take_prepared(self) -> subprocess.Popen[str] | None:
        """Send the environment to the prepared process and return it; None if there is none or it
        has ended."""
        child, self._prepared = self._prepared, None
        if child is None or child.poll() is not None:
            return None
        assert child.stdin is not None
        try:
            with child.stdin as pipe:
                pipe.write(json.dumps(self._environment) + "\n")
        except BrokenPipeError:
            return None
        return child

    def state(self) -> NodeWorkerState:
        """State of the worker; after its end, with all its output, which shows the reason."""
        child = self._child
        pid, returncode = (0, 2) if child is None else (child.pid, child.poll())
        if returncode is not None and self._reader is not None:
            # A worker's own child processes must not remain.
            kill_group(pid)
            self._reader.join(LAST_LINES_S)
            self._reader = None
        lines = tuple(self._lines.popleft() for _ in range(len(self._lines)))
        return NodeWorkerState(pid, returncode, socket.gethostname(), lines)

    def kill(self) -> None:
        if self._child is not None:
            kill_group(self._child.pid)

    def stop(self, grace_s: float) -> None:
        """End the worker; kill it after `grace_s`."""
        child = self._child
        if child is None:
            return
        child.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(grace_s)
        kill_group(child.pid)
        child.wait(KILL_WAIT_S)

    def _read(self, child: subprocess.Popen[str]) -> None:
        assert child.stdout is not None
        with child.stdout as lines:
            while line := lines.readline(LINE_CHARS):
                if line.strip():
                    self._lines.append(line.rstrip())
                    self._wake()
        child.wait()
        self._wake()


def start(
    command: Sequence[str], environment: Mapping[str, str], stdin: int = subprocess.DEVNULL
) -> subprocess.Popen[str]:
    """Start Python in its own process group, so that Ctrl-C at the terminal reaches only this
    process."""
    words = [word.replace("{parent}", str(os.getpid())) for word in command]
    return subprocess.Popen(
        [sys.executable, *words],
        env={**os.environ, **environment},
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,
    )


def kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
