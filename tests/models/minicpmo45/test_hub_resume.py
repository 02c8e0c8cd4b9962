"""A broken download continues where it was: the hub library against a server of our own."""

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(180)

COMMIT = "a" * 40
WEIGHTS = bytes(range(256)) * 163_840
"""Forty megabytes: the library writes ten at a time."""
FILES = {"config.json": b'{"model_type": "minicpmo"}', "model.safetensors": WEIGHTS}

PROGRAM = """
import sys
from parley.models.minicpmo45 import hub
print(hub.locate("some/model"))
"""


class Hub(ThreadingHTTPServer):
    """What a hub answers; the first time it sends half of the weights and hangs up."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.ranges: list[int] = []


class Handler(BaseHTTPRequestHandler):
    server: Hub

    def log_message(self, format: str, *arguments: object) -> None:
        """Quietly."""

    def do_HEAD(self) -> None:
        self._file(is_head=True)

    def do_GET(self) -> None:
        if not self.path.startswith("/api/"):
            self._file(is_head=False)
            return
        answer: object = [
            {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
            for name, data in FILES.items()
        ]
        if "/tree/" not in self.path:
            siblings = [{"rfilename": name, "size": len(data)} for name, data in FILES.items()]
            answer = {"id": "some/model", "sha": COMMIT, "siblings": siblings}
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _file(self, *, is_head: bool) -> None:
        data = FILES[self.path.rpartition("/")[2]]
        start = 0
        if asked := self.headers.get("Range"):
            start = int(asked.removeprefix("bytes=").partition("-")[0])
        self.send_response(206 if start else 200)
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("ETag", f'"{hashlib.sha256(data).hexdigest()}"')
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(len(data) - start))
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        self.end_headers()
        if is_head:
            return
        if data is not WEIGHTS:
            self.wfile.write(data)
            return
        self.server.ranges.append(start)
        end = len(data) // 2 if len(self.server.ranges) == 1 else len(data)
        self.wfile.write(data[start:end])
        if end < len(data):
            self.close_connection = True


@pytest.fixture
def hub() -> Iterator[Hub]:
    server = Hub()
    thread = threading.Thread(target=server.serve_forever, args=[0.02], daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_download_that_breaks_off_continues_where_it_was(hub: Hub, tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "HF_ENDPOINT": f"http://127.0.0.1:{hub.server_port}",
        "HF_HOME": str(tmp_path),
        "HF_HUB_DISABLE_XET": "1",
    }

    # As a worker that is started again, if once is not enough.
    for _ in range(2):
        ran = subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if ran.returncode == 0:
            break

    assert ran.returncode == 0, ran.stderr[-2000:]
    folder = Path(ran.stdout.strip().splitlines()[-1])
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    first, second = hub.ranges
    assert first == 0
    # Not all of what was sent need have been written; some of it was.
    assert 0 < second <= len(WEIGHTS) // 2
