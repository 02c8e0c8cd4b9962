"""Processes that die or freeze: gateway and workers run apart, as on several hosts, and one of them
is killed, stopped or replaced. Source: service.md 2.7."""

import asyncio
import json
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.apart import Apart
from tests.support.blocking import asked, ending, eventually, hear, prepare
from tests.support.patience import HANG_S
from tests.support.processes import Process, serving
from tests.support.resumed_talks import MAILBOX_UNITS, TALKS, comparable, whole_talk
from tests.support.resuming import WaitingClient

from parley.protocol.control import SILENCE_LIMIT_S


def test_a_gateway_that_stood_still_ends_no_session(apart: Apart) -> None:
    """As after a laptop's sleep, a virtual machine's move or swapping."""
    apart.start_worker()
    with apart.session("sleeps") as client:
        prepare(client)
        apart.gateway.send(signal.SIGSTOP)
        time.sleep(SILENCE_LIMIT_S + 2)
        apart.gateway.send(signal.SIGCONT)
        # The watch has looked at least twice when the server answers and two more seconds are over.
        began = time.monotonic()
        while time.monotonic() - began < 3:
            assert apart.status()["offline_workers"] == 0
            with pytest.raises(TimeoutError):
                hear(client, 0.5)
        client.send(json.dumps({"type": "stop"}))
        messages, code = ending(client)

    assert [message["type"] for message in messages] == ["stopped"]
    assert code == 1000


def test_a_worker_that_a_library_ends_says_where_it_was(tmp_path: Path) -> None:
    with serving(tmp_path) as process:
        (worker,) = (each for each in process.children if each.cmdline()[-1] == "worker")
        worker.send_signal(signal.SIGSEGV)

        process.line_with("Current thread")
        process.line_with("killed by SIGSEGV")


FLAGS = ("--slots", "6", "--vad", "energy")
DIALECTS = tuple(TALKS)


def drain(apart: Apart) -> None:
    """Drain the first worker, and wait until it is empty."""
    address = f"http://127.0.0.1:{apart.port}"

    def workers() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = asked(f"{address}/workers")[1]["workers"]
        return sorted(found, key=lambda worker: worker["index"])

    drained = f"{address}/api/admin/workers/{workers()[0]['worker_id']}"
    asked(drained, method="PUT", body={"draining": True})
    eventually(lambda: workers()[0]["status"] == "idle", "it is never empty")


async def test_a_worker_that_goes_changes_nothing(
    apart: Apart, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first is drained, the second killed, the third asked to stop: another one continues."""
    monkeypatch.setenv("PARLEY_LIMITS__MAILBOX_UNITS", str(MAILBOX_UNITS))
    apart.start_worker(0, *FLAGS)
    there, may_continue = asyncio.Semaphore(0), asyncio.Event()

    def client(name: str, waits_after: int = -1) -> asyncio.Task[WaitingClient]:
        path = TALKS[name].path()
        made = WaitingClient(f"ws://127.0.0.1:{apart.port}{path}")
        made.waits_after, made.there, made.may_continue = waits_after, there, may_continue
        return asyncio.create_task(whole_talk(made, name, path))

    whole = {name: await client(name) for name in DIALECTS}

    async def goes_on(index: int, go: Callable[[], object], *, is_late: bool = False) -> Process:
        """Start worker `index` in the middle of conversations, whose worker then goes.

        Args:
            is_late: it is started when the other one has gone.
        """
        may_continue.clear()
        talks = {name: client(name, len(whole[name].heard) // 2) for name in DIALECTS}
        for _ in DIALECTS:
            await there.acquire()
        if is_late:
            await asyncio.to_thread(go)
        next_worker = await asyncio.to_thread(apart.start_worker, index, *FLAGS)
        if not is_late:
            await asyncio.to_thread(go)
        may_continue.set()
        for name, talking in talks.items():
            after = await talking
            assert comparable(after.heard) == comparable(whole[name].heard), name
            assert (after.doubles, after.holes, after.resumes) == (0, 0, 1)
        await asyncio.to_thread(apart.until, HANG_S, busy_workers=0)
        return next_worker

    second = await goes_on(1, lambda: drain(apart))
    third = await goes_on(2, lambda: second.send(signal.SIGKILL))

    def end(worker: Process) -> None:
        worker.send(signal.SIGTERM)
        assert worker.popen.wait(HANG_S) == 0

    fourth = await goes_on(3, lambda: end(third))
    await goes_on(4, lambda: end(fourth), is_late=True)
