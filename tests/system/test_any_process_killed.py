"""Whichever process is killed, stopped or drained, no finished recording is lost, no slot stays
taken, and `/ready` reports the truth: a gateway with another on standby, a worker of another host,
their Redis, and the folder in which recordings are kept. Ray's head: tests/executor/test_ray.py."""

import base64
import contextlib
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.blocking import asked, hear, hear_until, say
from tests.support.patience import HANG_S
from tests.support.processes import Process, running
from tests.support.redis_server import RedisServer, redis_server
from websockets.exceptions import InvalidStatus, WebSocketException
from websockets.sync.client import ClientConnection, connect

pytestmark = pytest.mark.starts_python

READY_S = 5.0
SLOT_S = 10.0
A_SECOND = base64.b64encode(bytes(4 * 16_000)).decode()


def within(limit_s: float, condition: Callable[[], Any], what: str) -> Any:
    """The limits are promised for a machine that has its processors to itself; on any other one it
    has to happen at all."""
    began, was_busy = time.monotonic(), False
    while not (found := condition()):
        was_busy = was_busy or _is_busy()
        limit = HANG_S if was_busy else limit_s
        assert time.monotonic() - began < limit, f"{what}, in {limit:.0f} s"
        time.sleep(0.1)
    return found


def _is_busy() -> bool:
    """True if more runs than there are processors, now or in the last minute."""
    processors = os.cpu_count() or 1
    if os.getloadavg()[0] > processors:
        return True
    now = Path("/proc/loadavg")
    return now.exists() and int(now.read_text().split()[3].split("/")[0]) > processors


class Company:
    """Two gateways that agree in a Redis and share a folder; a worker with a folder of its own."""

    def __init__(self, folder: Path, redis: RedisServer, stack: contextlib.ExitStack) -> None:
        self.folder, self.redis, self._stack = folder, redis, stack
        self.ports: dict[str, str] = {}
        self.finished: set[str] = set()
        self.calls = 0
        self.gateways = {"a": self.gateway("a", "gateway ready")}
        self.gateways["b"] = self.gateway("b", "gateway_on_standby")
        self.worker = self.start_worker()
        self.active = "a"
        within(HANG_S, lambda: self.is_ready("a"), "the first gateway has no worker")

    @property
    def kept(self) -> Path:
        return self.folder / "gateways" / "sessions"

    def gateway(self, name: str, words: str) -> Process:
        config = self.folder / f"{name}.toml"
        config.write_text(
            f'[standby]\nredis_url = "{self.redis.url}"\nname = "{name}"\n'
            f'[storage]\ndata_dir = "{self.folder / "gateways"}"\n'
        )
        flags = ("--http", "--host", "127.0.0.1", "--port", self.ports.get(name, "0"))
        process = self._stack.enter_context(
            running(self.folder, "gateway", *flags, "--config", str(config))
        )
        line = json.loads(process.line_with(words))
        self.ports[name] = line["url"].rpartition(":")[2]
        return process

    def start_worker(self) -> Process:
        both = ",".join(self.url(name) for name in "ab")
        flags = ("--model", "parrot", "--vad", "energy", "--data-dir", str(self.folder / "worker"))
        return self._stack.enter_context(running(self.folder, "worker", "--gateway", both, *flags))

    def url(self, name: str = "") -> str:
        return f"http://127.0.0.1:{self.ports[name or self.active]}"

    def is_ready(self, name: str = "") -> bool:
        return asked(f"{self.url(name)}/ready")[0] == 200

    def other(self) -> str:
        return "b" if self.active == "a" else "a"

    def connection(self, session_id: str, name: str = "", more: str = "") -> ClientConnection:
        ws = "ws" + self.url(name).removeprefix("http")
        return connect(f"{ws}/ws/duplex/{session_id}?extensions=true{more}")

    @contextlib.contextmanager
    def call(self) -> Any:
        """One that is prepared, has said something, and is recorded."""
        self.calls += 1
        with self.connection(f"omni_{self.calls}") as socket:
            hear_until(socket, "queue_done")
            say(socket, "prepare")
            prepared = hear(socket)
            assert prepared["type"] == "prepared", prepared
            self.say(socket)
            yield socket, prepared["recording_session_id"]

    def say(self, socket: ClientConnection) -> None:
        say(socket, "audio_chunk", audio_base64=A_SECOND)
        hear_until(socket, "result")

    def one_whole_call(self) -> str:
        """Gives its recording's id."""
        with self.call() as (socket, recording_id):
            self.end(socket, recording_id)
        return str(recording_id)

    def end(self, socket: ClientConnection, recording_id: str) -> None:
        say(socket, "stop")
        hear_until(socket, "stopped")
        self.finished.add(recording_id)

    def slot_is_given(self) -> bool:
        """True if a newcomer gets the only slot immediately."""
        lost = contextlib.suppress(OSError, WebSocketException, TimeoutError)
        with lost, self.connection("omni_0") as socket:
            return bool(hear(socket, 1.0)["type"] == "queue_done")
        return False

    def nothing_is_lost(self) -> None:
        def listed() -> set[str]:
            status, found = asked(f"{self.url()}/api/sessions?limit=100")
            return {one["session_id"] for one in found["recordings"]} if status == 200 else set()

        within(HANG_S, lambda: self.finished <= listed(), "a finished recording is not there")


def test_whichever_process_is_killed(tmp_path: Path) -> None:
    """One scenario: a Redis, two gateways and a worker take ten seconds to start."""
    with redis_server(tmp_path) as redis, contextlib.ExitStack() as stack:
        company = Company(tmp_path, redis, stack)
        company.one_whole_call()
        for kill in (
            the_worker,
            the_store,
            the_redis,
            the_gateway,
            the_frozen_gateway,
            a_draining_gateway,
        ):
            kill(company)
            company.nothing_is_lost()
        assert len(company.finished) == 8


def the_worker(company: Company) -> None:
    company.one_whole_call()
    with company.call():
        company.worker.send(signal.SIGKILL)
        within(READY_S, lambda: not company.is_ready(), "ready without a worker")

    company.worker = company.start_worker()
    company.worker.line_with("gateway_welcomed")

    within(READY_S, company.is_ready, "not ready with a worker")
    within(SLOT_S, company.slot_is_given, "the new worker's slot is not given")


def the_store(company: Company) -> None:
    """The folder is away, as a file system of the network: calls continue, recordings wait."""
    away = company.kept.rename(company.kept.with_name("away"))
    company.kept.touch()
    recording_id = company.one_whole_call()
    assert company.is_ready(), "calls are served"
    within(SLOT_S, company.slot_is_given, "the slot stays taken")
    left = company.folder / "worker" / "sessions" / recording_id / "recording.json"
    within(HANG_S, left.exists, "the worker does not keep what could not be taken over")

    company.kept.unlink()
    away.rename(company.kept)


def the_redis(company: Company) -> None:
    with company.call() as (socket, recording_id):
        company.redis.kill()
        within(READY_S, lambda: not company.is_ready("a"), "ready, though nobody gets a slot")
        assert not company.is_ready("b")
        company.say(socket)
        company.end(socket, recording_id)
    company.redis.start()

    within(HANG_S, lambda: company.is_ready("a") or company.is_ready("b"), "nobody is active again")
    if company.is_ready("b"):
        # It was the first to ask the Redis that had forgotten everything; the other ends.
        company.active = "b"
        assert company.gateways["a"].popen.wait(HANG_S) == 75
        company.gateways["a"] = company.gateway("a", "gateway_on_standby")
    within(SLOT_S, company.slot_is_given, "the slot stays taken")


def the_gateway(company: Company) -> None:
    """Its call continues at the other, which has its keys; what it does not resume gives its slot
    back."""
    company.one_whole_call()
    killed, company.active = company.active, company.other()
    assert asked(f"{company.url()}/health")[1]["status"] == "standby"
    with pytest.raises(InvalidStatus, match="502"), company.connection("omni_0"):
        pass
    asked(f"{company.url(killed)}/api/admin/keys", method="POST", body={"name": "kept"})
    with company.connection("omni_cut", killed) as socket:
        # The slot of the call before is free soon, if not yet.
        while (said := hear(socket)["type"]) != "queue_done":
            assert said in ("queued", "queue_update")
        say(socket, "prepare", resume=True)
        prepared = hear(socket)
        assert prepared["type"] == "prepared"
        say(socket, "audio_chunk", audio_base64=A_SECOND)
        heard = hear(socket)
        company.gateways[killed].send(signal.SIGKILL)
        within(READY_S, lambda: not company.is_ready(killed), "ready, though it is gone")
        within(HANG_S, company.is_ready, "the standby never became ready")
    with company.connection("omni_cut", more="&resume=true") as socket:
        again = {"seq": heard["seq"], "resume_token": prepared["resume_token"]}
        say(socket, "session.resume", session_id="omni_cut", **again)
        resumed = hear(socket)
        assert resumed["type"] == "session.resumed", resumed
        company.end(socket, prepared["recording_session_id"])
    within(SLOT_S, company.slot_is_given, "the slot stays taken at the next gateway")
    seen = company.gateways[company.active].seen
    assert not any('"level": "error"' in line for line in seen), seen
    (key,) = asked(f"{company.url()}/api/admin/keys")[1]["keys"]
    assert key["name"] == "kept"
    company.gateways[killed] = company.gateway(killed, "gateway_on_standby")


def the_frozen_gateway(company: Company) -> None:
    """As on a machine that swaps: it was stopped, and knows nothing of the other."""
    frozen, company.active = company.active, company.other()
    company.gateways[frozen].send(signal.SIGSTOP)
    within(HANG_S, company.is_ready, "the standby never became ready")

    company.gateways[frozen].send(signal.SIGCONT)
    company.gateways[frozen].line_with("other_gateway_active")

    assert company.gateways[frozen].popen.wait(HANG_S) == 75, "to be started again, to stand by"
    company.gateways[frozen] = company.gateway(frozen, "gateway_on_standby")
    company.one_whole_call()


def a_draining_gateway(company: Company) -> None:
    """It hands over."""
    drained, company.active = company.active, company.other()
    company.gateways[drained].send(signal.SIGTERM)

    within(HANG_S, company.is_ready, "nobody took over")
    company.one_whole_call()
