"""Two gateways of which one is active, a worker that dials both, and a real Redis: every process
killed in turn."""

from __future__ import annotations

import base64
import contextlib
import json
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.patience import HANG_S
from tests.support.processes import Process, running
from tests.support.redis_server import RedisServer, redis_server
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

pytestmark = pytest.mark.slow

A_SECOND = {"type": "audio_chunk", "audio_base64": base64.b64encode(bytes(4 * 16_000)).decode()}


def answer(url: str) -> tuple[int, Any]:
    try:
        with urllib.request.urlopen(url, timeout=HANG_S) as found:
            return found.status, json.loads(found.read())
    except urllib.error.HTTPError as refused:
        return refused.code, json.loads(refused.read())
    except OSError as error:
        return 0, str(error)


def until(condition: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + HANG_S
    while not (found := condition()):
        assert time.monotonic() < deadline, what
        time.sleep(0.1)
    return found


class Pair:
    """A Redis, two gateways with one data folder, and a worker."""

    def __init__(self, folder: Path, redis: RedisServer, stack: contextlib.ExitStack) -> None:
        self.folder, self.redis, self._stack = folder, redis, stack
        self.ports: dict[str, str] = {}
        self.a = self.gateway("a", "gateway ready")
        self.b = self.gateway("b", "gateway_on_standby")
        both = ",".join(self.url(name) for name in "ab")
        self.worker = stack.enter_context(
            running(folder, "worker", "--gateway", both, "--model", "parrot")
        )
        until(lambda: self.is_ready("a"), "the first gateway has no worker")

    def gateway(self, name: str, words: str) -> Process:
        config = self.folder / f"{name}.toml"
        config.write_text(
            f'[standby]\nredis_url = "{self.redis.url}"\nname = "{name}"\nttl_s = 4.0\n'
            f'[storage]\ndata_dir = "{self.folder / "data"}"\n'
        )
        flags = ("--http", "--host", "127.0.0.1", "--port", self.ports.get(name, "0"))
        process = self._stack.enter_context(
            running(self.folder, "gateway", *flags, "--config", str(config))
        )
        line = json.loads(process.line_with(words))
        self.ports[name] = line["url"].rpartition(":")[2]
        return process

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self.ports[name]}"

    def is_ready(self, name: str) -> bool:
        return answer(f"{self.url(name)}/ready")[0] == 200

    def call(self, name: str, more: str = "") -> Any:
        url = f"ws://127.0.0.1:{self.ports[name]}/ws/duplex/omni_1?extensions=true{more}"
        return connect(url)


def test_every_process_killed_in_turn_and_there_is_always_one_gateway(tmp_path: Path) -> None:
    """One scenario, because two gateways, a worker and their Redis take ten seconds to start."""
    with redis_server(tmp_path) as redis, contextlib.ExitStack() as stack:
        pair = Pair(tmp_path, redis, stack)
        a_gateway_that_is_killed(pair)
        a_gateway_that_was_stopped_and_knows_nothing(pair)
        no_redis(pair)


def a_gateway_that_is_killed(pair: Pair) -> None:
    assert answer(f"{pair.url('b')}/health")[1]["status"] == "standby"
    assert answer(f"{pair.url('b')}/ready")[0] == 503
    with pytest.raises(InvalidStatus, match="503"), pair.call("b"):
        pass
    make_key = urllib.request.Request(
        f"{pair.url('a')}/api/admin/keys",
        data=json.dumps({"name": "kept"}).encode(),
        headers={"content-type": "application/json"},
    )
    urllib.request.urlopen(make_key, timeout=HANG_S).close()
    with pair.call("a") as call:
        assert json.loads(call.recv(HANG_S))["type"] == "queue_done"
        call.send(json.dumps({"type": "prepare", "resume": True}))
        prepared = json.loads(call.recv(HANG_S))
        assert prepared["type"] == "prepared"
        call.send(json.dumps(A_SECOND))
        heard = json.loads(call.recv(HANG_S))
        pair.a.send(signal.SIGKILL)

        until(lambda: pair.is_ready("b"), "the standby never became ready")
    with pair.call("b", "&resume=true") as call:
        again = {"type": "session.resume", "session_id": "omni_1", "seq": heard["seq"]}
        call.send(json.dumps({**again, "resume_token": prepared["resume_token"]}))
        resumed = json.loads(call.recv(HANG_S))
        assert resumed["type"] == "session.resumed", resumed
        call.send(json.dumps({"type": "stop"}))
        until(lambda: json.loads(call.recv(HANG_S))["type"] == "stopped", "the call never ended")
    pair.b.line_with("gateway ready")
    assert not any('"level": "error"' in line for line in pair.b.seen), pair.b.seen
    with pair.call("b") as call:
        # The slot of the call before may take a moment to be free.
        until(lambda: json.loads(call.recv(HANG_S))["type"] == "queue_done", "its slot stays taken")
    (key,) = answer(f"{pair.url('b')}/api/admin/keys")[1]["keys"]
    assert key["name"] == "kept"
    pair.a = pair.gateway("a", "gateway_on_standby")


def a_gateway_that_was_stopped_and_knows_nothing(pair: Pair) -> None:
    """As a machine that swaps."""
    pair.b.send(signal.SIGSTOP)
    until(lambda: pair.is_ready("a"), "the standby never became ready")

    pair.b.send(signal.SIGCONT)
    pair.b.line_with("other_gateway_active")

    assert pair.b.popen.wait(HANG_S) == 75, "to be started again, to stand by"
    pair.b = pair.gateway("b", "gateway_on_standby")


def no_redis(pair: Pair) -> None:
    """Calls go on; new ones wait. With Redis back a draining gateway hands over."""
    with pair.call("a") as call:
        assert json.loads(call.recv(HANG_S))["type"] == "queue_done"
        pair.redis.kill()
        until(lambda: not pair.is_ready("a"), "it does not notice")
        assert not pair.is_ready("b")
        call.send(json.dumps({"type": "prepare"}))
        assert json.loads(call.recv(HANG_S))["type"] == "prepared"
    pair.redis.start()
    active = until(lambda: next(filter(pair.is_ready, "ab"), ""), "nobody is active again")
    if active == "b":
        # It was the first to ask the Redis that had forgotten everything.
        assert pair.a.popen.wait(HANG_S) == 75
        pair.a = pair.gateway("a", "gateway_on_standby")
    getattr(pair, active).send(signal.SIGTERM)
    until(lambda: pair.is_ready("b" if active == "a" else "a"), "nobody took over")
