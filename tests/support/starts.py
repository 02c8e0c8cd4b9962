"""Starts processes by forking one that has already done their imports: parley's, and the test
processes of pytest-xdist.

While this is in use, `subprocess` (and asyncio's, which uses it) passes `[sys.executable, "-m",
"parley…", …]` to a fork server (`tests/support/fork_server.py`), which is started for the first of
them. Callers have a normal child with its process id, exit code, streams, session and command line.
All other commands start normally, and so do those that a fork server does not support (a terminal,
other variables for Python, limits set before the start).

Tests of the start of processes have the mark `starts_python`; their processes are not forked.
"""

import array
import ctypes
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from_python: Callable[..., int] = subprocess._fork_exec  # type: ignore[attr-defined]
HANG_S: Final = 20.0
FORK_SERVER: Final = Path(__file__).with_name("fork_server.py")
TEST_PROCESS: Final = ["-u", "-c", "import sys;exec(eval(sys.stdin.readline()))"]
"""How pytest-xdist starts a test process."""
PADDING: Final = "-" * 8000
"""Space for the command line of a forked process."""

_PR_SET_CHILD_SUBREAPER: Final = 36
_FIXED: Final = ("PYTHON", "LD_", "LC_", "LANG", "GLIBC", "OPENSSL", "SSL_")
"""Prefixes of variables that are read when Python starts."""
_IGNORED: Final = ("PYTHONDONTWRITEBYTECODE",)


class ForkServer:
    """This process's fork server, started for the first order."""

    def __init__(self, link: socket.socket | None = None) -> None:
        self.is_used = True
        self._link = link
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._fixed = _fixed(os.environ)

    def fork_exec(self, *parts: Any) -> int:
        """Replacement of `subprocess._fork_exec`, with its arguments."""
        order = self._order(*parts) if self.is_used else None
        if order is None:
            return from_python(*parts)
        with self._lock:
            return self._fork(*order)

    @property
    def is_running(self) -> bool:
        return self._link is not None

    def close(self) -> None:
        """Stop the fork server; forked processes continue."""
        with self._lock:
            self.is_used = False
            if self._link is not None:
                self._link.close()
            if self._process is not None:
                self._process.wait(HANG_S)

    def _order(
        self,
        args: Sequence[Any],
        executables: Sequence[bytes],
        close_fds: bool,
        pass_fds: Sequence[int],
        cwd: Any,
        env: Sequence[bytes] | None,
        *more: Any,
    ) -> tuple[dict[str, Any], list[int], Any] | None:
        """The order for the fork server, the streams, and the folder; None if it does not support
        the command."""
        p2cread, _, _, c2pwrite, _, errwrite, _, told, restore_signals, new_session = more[:10]
        process_group, gid, gids, uid, umask, preexec = more[10:16]
        words = [os.fsdecode(arg) for arg in args]
        if not is_ours(words):
            return None
        plain = (process_group, gid, gids, uid, umask, preexec) == (-1, None, None, None, -1, None)
        if not (plain and close_fds and restore_signals) or set(pass_fds) != {told}:
            return None
        environment = dict(os.environ)
        if env is not None:
            pairs = (os.fsdecode(pair).partition("=") for pair in env)
            environment = {name: value for name, _, value in pairs}
        streams = [own if fd == -1 else fd for own, fd in enumerate((p2cread, c2pwrite, errwrite))]
        if _fixed(environment) != self._fixed:
            return None
        if any(map(os.isatty, streams)) and words[1:] != TEST_PROCESS:
            return None
        order = {"args": words, "environment": environment, "new_session": bool(new_session)}
        return order, streams, cwd

    def _fork(self, order: dict[str, Any], streams: list[int], cwd: Any) -> int:
        link = self._connected()
        folder = os.open(cwd if cwd is not None else ".", os.O_RDONLY | os.O_DIRECTORY)
        libc = ctypes.CDLL(None, use_errno=True)
        # The process, whose parent ends, becomes a child of the nearest ancestor with this option.
        libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        try:
            fds = array.array("i", [*streams, folder])
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)]
            link.sendmsg([json.dumps(order).encode()], rights)
            answer = link.recv(64)
            if not answer:
                raise RuntimeError("The fork server has ended; what it said is above.")
            pid = int(answer)
            while not _is_child(pid):
                os.sched_yield()
            return pid
        finally:
            libc.prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
            os.close(folder)

    def _connected(self) -> socket.socket:
        if self._link is None:
            self._link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self.is_used = False
            try:
                self._process = subprocess.Popen(
                    [sys.executable, str(FORK_SERVER), str(theirs.fileno()), PADDING],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    # Loaded libraries would start threads, which a fork does not have.
                    env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
                )
            finally:
                self.is_used = True
                theirs.close()
        return self._link


def is_ours(words: Sequence[str]) -> bool:
    """True if a command is Python with one of parley's modules, or a test process."""
    if not words or words[0] != sys.executable:
        return False
    if words[1:] == TEST_PROCESS:
        return True
    words = words[2:] if list(words[1:2]) == ["-P"] else words[1:]
    return len(words) > 1 and words[0] == "-m" and words[1].partition(".")[0] == "parley"


def use(link: socket.socket | None = None) -> ForkServer:
    """Start this process's children of parley by the fork server at the other end of `link`, or by
    a new one; on systems other than Linux they start normally."""
    server = ForkServer(link)
    if sys.platform == "linux":
        subprocess._fork_exec = server.fork_exec  # type: ignore[attr-defined]
    return server


def _fixed(environment: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(_FIXED) and name not in _IGNORED
    }


def _is_child(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    return int(stat.rpartition(")")[2].split()[1]) == os.getpid()
