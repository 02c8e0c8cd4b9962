"""Processes that die or freeze: gateway and workers run apart, as on several hosts, and one of them
is killed, stopped or replaced. Source: service.md 2.7."""

import json
import signal
import time
from pathlib import Path

import pytest
from tests.support.apart import Apart
from tests.support.blocking import ending, hear, prepare
from tests.support.processes import serving

from parley.protocol.control import SILENCE_LIMIT_S

pytestmark = pytest.mark.slow


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
