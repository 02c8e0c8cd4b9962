"""Processes that die or freeze: gateway and workers run apart, as on several hosts, and one of them
is killed, stopped or replaced. Source: service.md 2.7."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from tests.support.apart import Apart
from tests.support.patience import HANG_S
from tests.support.processes import serving
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection

from parley.protocol.control import SILENCE_LIMIT_S

pytestmark = pytest.mark.slow


def hear(client: ClientConnection, limit_s: float = HANG_S) -> dict[str, Any]:
    return json.loads(client.recv(timeout=limit_s))


def prepare(client: ClientConnection) -> None:
    assert hear(client)["type"] == "queue_done"
    client.send(json.dumps({"type": "prepare"}))
    assert hear(client)["type"] == "prepared"


def ending(client: ClientConnection, limit_s: float) -> tuple[list[dict[str, Any]], int | None]:
    messages = []
    while True:
        try:
            messages.append(hear(client, limit_s))
        except ConnectionClosed:
            return messages, client.close_code


def test_a_killed_worker_is_told_to_its_client_and_the_next_one_serves(apart: Apart) -> None:
    apart.start_worker().send(signal.SIGKILL)
    apart.until(HANG_S, idle_workers=0)

    with apart.session("waits") as client:
        queued = hear(client)
        assert queued["type"] == "queued"
        assert queued["estimated_wait_s"] is None
        worker = apart.start_worker(1)
        while (message := hear(client))["type"] == "queue_update":
            pass
        assert message["type"] == "queue_done"

        # Its session is assigned and no more.
        worker.send(signal.SIGKILL)
        told_of_a_lost_worker(client)

    assert apart.status()["idle_workers"] == 0
    worker = apart.start_worker(2)
    with apart.session("in-session") as client:
        prepare(client)
        worker.send(signal.SIGKILL)
        told_of_a_lost_worker(client)

    assert apart.status()["idle_workers"] == 0
    apart.start_worker(3)
    with apart.session("goes-on") as client:
        prepare(client)


def told_of_a_lost_worker(client: ClientConnection) -> None:
    messages, code = ending(client, HANG_S)
    assert [m["type"] for m in messages] == ["error"]
    assert messages[0]["code"] == "worker_lost"
    assert "lost" in messages[0]["error"]
    # 1013 if the worker died before the gateway learned that the session was ready.
    assert code in (1011, 1013)


def test_a_frozen_worker_is_given_up_and_comes_back_when_it_thaws(apart: Apart) -> None:
    worker = apart.start_worker()
    with apart.session("freezes") as client:
        prepare(client)
        worker.send(signal.SIGSTOP)
        messages, code = ending(client, HANG_S)
    assert messages[-1]["code"] == "worker_lost"
    assert code == 1011
    assert apart.status()["offline_workers"] == 1

    worker.send(signal.SIGCONT)

    apart.until(HANG_S, idle_workers=1, offline_workers=0)
    with apart.session("thawed") as client:
        prepare(client)


def test_a_gateway_that_stood_still_ends_no_session(apart: Apart) -> None:
    """As after a laptop's sleep, a virtual machine's move or swapping."""
    apart.start_worker()
    with apart.session("sleeps") as client:
        prepare(client)
        apart.gateway.send(signal.SIGSTOP)
        time.sleep(12)
        apart.gateway.send(signal.SIGCONT)
        # The watch has looked at least twice when the server answers and two more seconds are over.
        began = time.monotonic()
        while time.monotonic() - began < 2 * SILENCE_LIMIT_S:
            assert apart.status()["offline_workers"] == 0
            with pytest.raises(TimeoutError):
                hear(client, 0.5)
        client.send(json.dumps({"type": "stop"}))
        messages, code = ending(client, HANG_S)

    assert [message["type"] for message in messages] == ["stopped"]
    assert code == 1000


def test_workers_outlive_a_killed_gateway_and_serve_the_next_one(apart: Apart) -> None:
    apart.start_worker()
    with apart.session("orphan") as client:
        prepare(client)
        apart.gateway.send(signal.SIGKILL)
        _, code = ending(client, HANG_S)
    assert code in (None, 1006)

    apart.gateway.popen.wait(HANG_S)
    apart.start_gateway()

    apart.until(HANG_S, idle_workers=1)
    with apart.session("next") as client:
        prepare(client)


def test_two_workers_serve_two_at_once_and_one_death_harms_one_session(apart: Apart) -> None:
    first, second = apart.start_worker(0), apart.start_worker(1)
    with apart.session("one") as one, apart.session("two") as two:
        prepare(one)
        prepare(two)
        first.send(signal.SIGKILL)
        began = time.monotonic()
        ended: list[ClientConnection] = []
        while not ended:
            assert time.monotonic() - began < HANG_S
            for client in (one, two):
                try:
                    hear(client, 0.1)
                except TimeoutError:
                    continue
                ended.append(client)
        survivor = two if ended == [one] else one
        survivor.send(json.dumps({"type": "stop"}))
        assert hear(survivor)["type"] == "stopped"
    assert second.popen.poll() is None


def test_a_worker_that_a_library_ends_says_where_it_was(tmp_path: Path) -> None:
    with serving(tmp_path) as process:
        (worker,) = (each for each in process.children if each.cmdline()[-1] == "worker")
        worker.send_signal(signal.SIGSEGV)

        process.line_with("Current thread")
        process.line_with("killed by SIGSEGV")
