"""A real redis-server on loopback, if one is installed."""

import contextlib
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.patience import HANG_S
from tests.support.ports import free_port

PROGRAM = shutil.which("redis-server") or shutil.which("valkey-server")


class RedisServer:
    """A redis-server that the test starts and stops; it keeps its port."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self._popen: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        assert PROGRAM is not None
        options = ("--bind", "127.0.0.1", "--port", str(self.port), "--save", "")
        self._popen = subprocess.Popen(
            [PROGRAM, *options, "--dir", str(self.folder)],
            stdout=subprocess.DEVNULL,
            stdin=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + HANG_S
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port)):
                return
            assert self._popen.poll() is None, "redis-server ended"
            assert time.monotonic() < deadline, "redis-server does not answer"
            time.sleep(0.1)

    def keys(self, pattern: str) -> list[bytes]:
        """The keys that it stores."""
        import redis

        with redis.Redis.from_url(self.url) as client:
            return list(client.scan_iter(pattern))

    def kill(self) -> None:
        """Kill it; does nothing if it is not running."""
        if self._popen is not None:
            self._popen.kill()
            self._popen.wait(HANG_S)
            self._popen = None


@contextlib.contextmanager
def redis_server(folder: Path) -> Iterator[RedisServer]:
    """A running server; the test is skipped if none is installed."""
    pytest.importorskip("redis", reason="the package 'redis' is not installed")
    if PROGRAM is None:
        pytest.skip("no redis-server or valkey-server is installed (Debian: redis-server)")
    server = RedisServer(folder)
    server.start()
    try:
        yield server
    finally:
        server.kill()
