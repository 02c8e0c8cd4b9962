"""Gateway and workers as separate processes, as on several hosts."""

import signal
import time
from pathlib import Path
from typing import Any

from tests.support.blocking import asked
from tests.support.patience import HANG_S
from tests.support.ports import free_port
from tests.support.processes import Process, running
from websockets.sync.client import ClientConnection, connect


class Apart:
    """One gateway on a fixed port, and workers that dial it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.stack: list[Any] = []
        self.gateway = self.start_gateway()

    def _enter(self, verb: str, *flags: str) -> Process:
        context = running(self.folder, verb, *flags)
        self.stack.append(context)
        return context.__enter__()

    def start_gateway(self, *flags: str) -> Process:
        address = ("--http", "--host", "127.0.0.1", "--port", str(self.port))
        process = self._enter("gateway", *address, *flags)
        process.line_with("gateway ready")
        return process

    def restart_gateway(self, *flags: str) -> None:
        self.gateway.send(signal.SIGTERM)
        self.gateway.popen.wait(HANG_S)
        self.gateway = self.start_gateway(*flags)

    def start_worker(self, index: int = 0, *flags: str) -> Process:
        process = self._enter(
            "worker",
            *("--gateway", f"http://127.0.0.1:{self.port}"),
            *("--model", "parrot", "--worker-index", str(index)),
            *flags,
        )
        process.line_with("gateway_welcomed")
        return process

    def close(self) -> None:
        for context in reversed(self.stack):
            context.__exit__(None, None, None)

    def status(self) -> dict[str, Any]:
        return dict(asked(f"http://127.0.0.1:{self.port}/status")[1])

    def until(self, limit_s: float, **expected: int) -> float:
        """Wait for a status; returns the seconds it took."""
        began = time.monotonic()
        while True:
            status = self.status()
            if all(status[name] == value for name, value in expected.items()):
                return time.monotonic() - began
            assert time.monotonic() - began < limit_s, (expected, status)
            time.sleep(0.2)

    def session(self, session_id: str) -> ClientConnection:
        return connect(f"ws://127.0.0.1:{self.port}/ws/half_duplex/{session_id}?extensions=true")
