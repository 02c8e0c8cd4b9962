"""The start of a local worker process: `python -m parley.executor.child PARENT_PID VERB …`.

It never outlives the process that started it, even if that is killed. Then it becomes `python -m
parley VERB …`. With `--prepare MODULE,…` before the verb it is started before its settings are
known: it imports these modules and waits for the rest of its environment, one line of JSON on
standard input.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import logging
import os
import runpy
import signal
import sys
import threading
import time
from typing import Final

from parley import logs
from parley.executor.base import SIGN_OF_LIFE
from parley.importing import importing

CHECK_EVERY_S: Final = 1.0
SIGN_EVERY_S: Final = 1.0
GRACE_S: Final = 15.0
"""Time to finish sessions after the parent has ended."""

PREPARE: Final = "--prepare"

SUPERVISED_VARIABLE: Final = "_PARLEY_SUPERVISED"
"""Id of a process that an executor restarts. It is an id because child processes inherit the
variable, but are not restarted."""

ORPHANED: Final = signal.SIGUSR2 if hasattr(signal, "SIGUSR2") else signal.SIGTERM
"""Signal to a process whose parent has died. It may be sent several times: Linux sends it for each
thread of the parent that ends, and a second SIGTERM would end sessions instead of leaving them to
their logs.
"""

_PR_SET_PDEATHSIG: Final = 1


def is_supervised() -> bool:
    """True if an executor started this process and will restart it."""
    return os.environ.get(SUPERVISED_VARIABLE) == str(os.getpid())


def follow(parent: int) -> None:
    """Make this process exit soon after process `parent` has ended."""
    if sys.platform == "linux":
        # Immediate, but tied to the parent's thread and lost on setuid: the watch below
        # is reliable.
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, ORPHANED)
    threading.Thread(target=_watch, args=(parent,), name="parent watch", daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(CHECK_EVERY_S)
    os.kill(os.getpid(), ORPHANED)
    time.sleep(GRACE_S)
    os.kill(os.getpid(), signal.SIGKILL if hasattr(signal, "SIGKILL") else signal.SIGTERM)


def prepare(modules: str) -> None:
    """Import modules, then wait for the environment; exit if the parent does not send it."""
    with importing(plain=True):
        for module in modules.split(","):
            # Code that needs it imports it again, and reports the error.
            with contextlib.suppress(Exception):
                importlib.import_module(module)
    line = sys.stdin.readline()
    if not line:
        sys.exit(0)
    os.environ.update(json.loads(line))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)


class ProgressSigns:
    """Reports progress of loading to the parent by a line of output, at most once a second."""

    def __init__(self) -> None:
        self._told_at = -SIGN_EVERY_S

    def __call__(self) -> None:
        now = time.monotonic()
        if now - self._told_at >= SIGN_EVERY_S:
            self._told_at = now
            # The parent has died: no process reads this.
            with contextlib.suppress(OSError):
                os.write(1, f"{SIGN_OF_LIFE}\n".encode())


def main() -> None:
    """Watch the parent, then run the command line."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # The parent reloads its workers.
    follow(int(sys.argv[1]))
    if sys.argv[2] == PREPARE:
        prepare(sys.argv[3])
        del sys.argv[2:4]
    os.environ[SUPERVISED_VARIABLE] = str(os.getpid())
    logs.on_progress(ProgressSigns())
    # The parent has read the same file and variables, and reported unknown names.
    logging.getLogger("parley.settings").setLevel(logging.ERROR)
    sys.argv = ["parley", *sys.argv[2:]]
    runpy.run_module("parley", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
