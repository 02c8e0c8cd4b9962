"""A small server that speaks the OpenAI dialect: scripted, for tests, and named as such."""

import json
import select
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Script:
    """What the server does.

    Args:
        words: pieces of the next answer.
        pause_s: before each of them.
        status: of the answer to a request for words.
        hangs: no word is sent until the test ends.
        events: stream events to send instead of words.
        raw: bytes to send instead of a stream; `kind`: their type.
        headers: of a refusal.
        is_cut: the stream ends without saying so.
        is_mute: not even a status is sent until the test ends.
        thinks: pieces of thought are sent every 20 ms until the client has gone.
        finish: why the answer ends.
        asked: set when a request has come.
        gone: set when the client has closed its connection before the answer was over.
    """

    words: list[str] = field(default_factory=lambda: ["Hello ", "from ", "far away."])
    pause_s: float = 0.0
    status: int = 200
    hangs: bool = False
    events: list[dict[str, Any]] = field(default_factory=list)
    raw: bytes | None = None
    kind: str = "text/html"
    headers: dict[str, str] = field(default_factory=dict)
    is_cut: bool = False
    is_mute: bool = False
    thinks: bool = False
    finish: str | None = None
    asked: threading.Event = field(default_factory=threading.Event)
    gone: threading.Event = field(default_factory=threading.Event)
    requests: list[dict[str, Any]] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)


@contextmanager
def scripted_endpoint(script: Script) -> Iterator[str]:
    """The address, up to `/v1`."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            """Quiet."""

        def do_GET(self) -> None:
            self._send(200, json.dumps({"data": [{"id": "scripted"}]}).encode(), "application/json")

        def do_POST(self) -> None:
            sent = self.rfile.read(int(self.headers["Content-Length"]))
            if not sent:
                # The client closed between the request's head and its body.
                script.gone.set()
                return
            body = json.loads(sent)
            script.requests.append(body)
            script.asked.set()
            if script.status != 200:
                self._send(script.status, b"{}", "application/json")
                return
            if script.raw is not None:
                self._send(200, script.raw, script.kind)
                return
            if script.is_mute:
                self._wait_until_gone()
                return
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            if script.hangs:
                self.wfile.flush()
                self._wait_until_gone()
                return
            while script.thinks and not self._is_gone():
                thought = {"choices": [{"delta": {"reasoning_content": "Hm. "}}]}
                self.wfile.write(f"data: {json.dumps(thought)}\n\n".encode())
            words = [{"choices": [{"delta": {"content": word}}]} for word in script.words]
            for chunk in script.events or words:
                script.over.wait(script.pause_s)
                if script.pause_s and self._is_gone():
                    return
                self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
            if script.finish:
                end = {"choices": [{"delta": {}, "finish_reason": script.finish}]}
                self.wfile.write(f"data: {json.dumps(end)}\n\n".encode())
            if not script.is_cut:
                self.wfile.write(b"data: [DONE]\n\n")

        def _wait_until_gone(self) -> None:
            while not script.over.is_set() and not self._is_gone():
                pass

        def _is_gone(self) -> bool:
            readable, _, _ = select.select([self.connection], [], [], 0.02)
            if not readable or self.connection.recv(1):
                return False
            script.gone.set()
            return True

        def _send(self, status: int, body: bytes, kind: str) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            for name, value in script.headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=[0.02], daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        script.over.set()
        server.shutdown()
        server.server_close()
