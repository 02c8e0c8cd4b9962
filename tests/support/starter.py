"""Starts parley's processes for a program in another language, such as Node.js.

The program runs `Starter.program` with Python's arguments. That is a small process: it sends its
arguments, environment, folder and streams to this process, which starts the real one by the fork
server (`tests/support/starts.py`). The small process forwards signals and returns the exit code. A
server that is started like this needs a tenth of the processor time of one that imports everything
itself. Linux only.

    python starter.py SOCKET ARGUMENT…      what `Starter.program` runs
"""

import json
import os
import select
import shlex
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Final

ORDER_BYTES: Final = 1 << 18


class Starter:
    """Starts a process each time that `program` is run, until it is closed."""

    def __init__(self, folder: Path) -> None:
        self.program = folder / "python"
        path = folder / "starter"
        forward = shlex.join([sys.executable, "-S", "-E", __file__, str(path)])
        self.program.write_text(f'#!/bin/sh\nexec {forward} "$@"\n', encoding="utf-8")
        self.program.chmod(0o700)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(str(path))
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                link, _ = self._listener.accept()
            except OSError:  # closed
                return
            threading.Thread(target=_start, args=(link,), daemon=True).start()


def _start(link: socket.socket) -> None:
    """Run the process that a small process requests; it is killed if that one is killed."""
    with link:
        data, fds, _, _ = socket.recv_fds(link, ORDER_BYTES, 3)
        order = json.loads(data)
        stdin, stdout, stderr = fds
        try:
            process = subprocess.Popen(
                [sys.executable, *order["args"]],
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                cwd=order["folder"],
                env=order["environment"],
            )
        finally:
            for fd in fds:
                os.close(fd)
        link.send(str(process.pid).encode())
        ended = os.pidfd_open(process.pid)
        ready, _, _ = select.select([link.fileno(), ended], [], [])
        os.close(ended)
        is_killed = link.fileno() in ready
        if is_killed:
            process.kill()
        code = process.wait()
        if not is_killed:
            link.send(str(code).encode())


def main(path: str, *args: str) -> int:
    """Request a process, forward signals to it and return its exit code."""
    link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    link.connect(path)
    order = {"args": args, "folder": os.getcwd(), "environment": dict(os.environ)}
    socket.send_fds(link, [json.dumps(order).encode()], [0, 1, 2])
    process = int(link.recv(64))
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: os.kill(process, number))
    code = int(link.recv(64))
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
