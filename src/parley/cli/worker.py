"""`parley worker`: load a model and serve the sessions that a gateway hands over."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final, NoReturn

import typer
import uvloop

from parley import logs
from parley.cli import flags
from parley.cli.announce import set_up
from parley.cli.signals import ending_on_signals
from parley.executor.child import ORPHANED, is_supervised
from parley.settings import Settings
from parley.worker.main import RESTART, SWITCH_INTERVAL_S, WorkerProcess
from parley.worker.memory import limit_arenas

EXIT_LIMIT_S: Final = 10.0
"""Time for the interpreter to exit after a failure."""
LEAVE_LIMIT_S: Final = 30.0
"""Time for a worker that failed, or restarts, to shut down."""
DESCRIPTORS: Final = Path("/dev/fd")

log = logs.get(__name__)


@flags.sets(
    *("worker.gateway_url", "worker.gateway_fingerprint", "worker.gateway_ca", "worker.http"),
    *("worker.port", "worker.host", "worker.advertise_url", "worker.index", "model.name"),
    *("model.slots", "model.device", "model.compile", "model.llm", "model.llm_model", "model.asr"),
    *("model.tts", "worker.vad", "limits.pause_s"),
    *("storage.data_dir", "worker.drain_timeout_s", "log.level", "log.format"),
)
def worker(read: flags.Reader) -> None:
    """Run one worker; `parley serve` does this by itself."""
    settings = set_up(read)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    limit_arenas()
    code = uvloop.run(_run(settings, read))
    if code == RESTART:
        if not is_supervised():
            _begin_again()
        log.info("worker_ended", exit_code=code, next="its executor starts it again")
    if code:
        # A device that hangs may keep the interpreter from ending, too.
        last_resort = threading.Timer(EXIT_LIMIT_S, os._exit, (code,))
        last_resort.daemon = True
        last_resort.start()
        raise typer.Exit(code)


async def _run(settings: Settings, read: Callable[[], Settings]) -> int:
    # Modules and model stay. Looking through them for garbage stops every conversation for a tenth
    # of a second.
    running = WorkerProcess(settings, leaving=_leave_at_last, warm=gc.freeze)
    with ending_on_signals(
        running.stop,
        running.stop_now,
        drain=lambda: running.stop(settings.worker.drain_timeout_s),
        # The gateway of `serve` reloads its own workers.
        reload=None if is_supervised() else lambda: running.reload(read),
        others={ORPHANED: lambda: running.stop(is_orphan=True)} if is_supervised() else {},
    ):
        code = await running.run()
    if running.is_loading:
        # The end of the interpreter crashes a thread that is in a library of C++.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


def _leave_at_last(code: int) -> None:
    """Exit even if something hangs during shutdown."""
    is_again = code == RESTART and not is_supervised()
    end = _begin_again if is_again else lambda: os._exit(code)
    last_resort = threading.Timer(LEAVE_LIMIT_S, end)
    last_resort.daemon = True
    last_resort.start()


def _begin_again() -> NoReturn:
    """Replace this process by a new one with the same command, because no executor restarts it. If
    that fails, exit so that systemd or the container runtime restarts it."""
    log.info("worker_restarting", pid=os.getpid())
    sys.stdout.flush()
    sys.stderr.flush()
    inherit_no_descriptors()
    try:
        # As it was typed: `-m parley` would look for modules in the working folder first.
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
    except OSError as error:
        log.error("worker_restart_failed", program=sys.executable, why=error.strerror)
        os._exit(RESTART)


def inherit_no_descriptors() -> None:
    """Close all descriptors except the standard streams before exec. A library may keep a device
    open across exec, and with it the device's memory."""
    for name in os.listdir(DESCRIPTORS):
        with contextlib.suppress(OSError):  # the one that listed them, and what threads closed
            if int(name) > 2:
                os.set_inheritable(int(name), False)
