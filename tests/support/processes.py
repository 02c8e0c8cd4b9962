"""parley's processes, started as users start them, and ended in every case."""

import contextlib
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
from tests.support import fork_server
from tests.support.patience import HANG_S, PROCESS_S

from parley.session_log.places import memory_name

SECRET = "a-secret-for-tests"
MEMORY = Path("/dev/shm")
"""Where servers that are not forked store session logs; for the others see `tests/conftest.py`."""


class Process:
    """A running `parley VERB` and its output lines."""

    def __init__(self, folder: Path, verb: str, *flags: str) -> None:
        self._memory = MEMORY / memory_name(folder / "data")
        self.popen = subprocess.Popen(
            [sys.executable, "-m", "parley", verb, *flags],
            cwd=folder,
            env={
                # Making one takes a process, and no test looks at it.
                "PARLEY_STORAGE__REPLAYS": "false",
                **os.environ,
                "OMP_NUM_THREADS": "1",
                "PARLEY_SECURITY__WORKER_SECRET": SECRET,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._title = f"{verb} {self.popen.pid}: "
        self.seen: list[str] = []
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.popen.stdout is not None
        with self.popen.stdout as lines:
            for line in lines:
                self._lines.put(line)
                # pytest shows it if the test fails.
                print(self._title, line, sep="", end="")
        self._lines.put(None)

    def line_with(self, words: str, limit_s: float = PROCESS_S) -> str:
        """Wait for a line with `words`. If it does not appear, fails with all output."""
        deadline = time.monotonic() + limit_s
        while True:
            why = f"in {limit_s:.0f} s"
            try:
                line = self._lines.get(timeout=max(0.01, deadline - time.monotonic()))
            except queue.Empty:
                line = None
            else:
                if line is None:
                    why = f"before it ended with {self.popen.wait(HANG_S)}"
            if line is None:
                raise AssertionError(f"no line with {words!r} {why}, in:\n{''.join(self.seen)}")
            self.seen.append(line)
            if words in line:
                return line

    @property
    def url(self) -> str:
        """URL that a server on plain HTTP has printed."""
        said = re.search(r"ready.* http://\S+?:(\d+)", "".join(self.seen))
        assert said is not None, self.seen
        return f"http://127.0.0.1:{said[1]}"

    @property
    def children(self) -> list[psutil.Process]:
        """All its descendant processes, without the fork servers of tests
        (`tests/support/starts.py`)."""
        found = psutil.Process(self.popen.pid).children(recursive=True)
        return [each for each in found if not is_fork_server(each)]

    def send(self, number: signal.Signals) -> None:
        self.popen.send_signal(number)

    def end(self) -> None:
        """Kill it and its children; does nothing if it has ended."""
        children: list[psutil.Process] = []
        if self.popen.poll() is None:
            with contextlib.suppress(psutil.NoSuchProcess):
                children = self.children
            self.popen.kill()
        self.popen.wait(HANG_S)
        for child in children:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        psutil.wait_procs(children, HANG_S)
        self._reader.join(HANG_S)
        # Another server would remove it, an hour later at the earliest.
        shutil.rmtree(self._memory, ignore_errors=True)


def is_fork_server(process: psutil.Process) -> bool:
    try:
        return process.cmdline()[:1] == [fork_server.NAME]
    except psutil.NoSuchProcess:
        return False


PARROT = ("--http", "--host", "127.0.0.1", "--port", "0", "--model", "parrot")
"""Flags of a server for tests: a free loopback port, and a model that loads immediately."""


@contextlib.contextmanager
def running(folder: Path, verb: str, *flags: str) -> Iterator[Process]:
    process = Process(folder, verb, *flags)
    try:
        yield process
    finally:
        process.end()


@contextlib.contextmanager
def serving(folder: Path, *flags: str) -> Iterator[Process]:
    """A ready `parley serve` with the parrot."""
    with running(folder, "serve", *PARROT, *flags) as process:
        process.line_with("ready after")
        yield process
