"""A worker's memory: the pools of its allocator, and its GPU, which is a fake, as is torch."""

import platform
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from parley.clock import SystemClock
from parley.gateway.dispatcher import Dispatcher
from parley.gateway.http.status import worker_info
from parley.gateway.metrics import Metrics
from parley.protocol.control import ContextPages, DeviceMemory, Heartbeat, Hello
from parley.settings import EtaSettings, QueueSettings
from parley.worker.memory import read_device


def fake_torch(monkeypatch: pytest.MonkeyPatch, mem_get_info: Any) -> None:
    cuda = SimpleNamespace(mem_get_info=mem_get_info)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))


def test_used_is_what_is_not_free(monkeypatch: pytest.MonkeyPatch):
    fake_torch(monkeypatch, lambda device: {"cuda:1": (30, 100)}[device])

    assert read_device("cuda:1") == DeviceMemory(used_bytes=70, total_bytes=100)
    assert read_device("cpu") is None


def test_a_device_with_an_error_reports_nothing(monkeypatch: pytest.MonkeyPatch):
    def failing(device: str) -> tuple[int, int]:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    fake_torch(monkeypatch, failing)

    assert read_device("cuda:0") is None


def test_torch_is_not_imported_for_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delitem(sys.modules, "torch", raising=False)

    assert read_device("cuda:0") is None
    assert "torch" not in sys.modules


def metrics_page(dispatcher: Dispatcher) -> str:
    metrics = Metrics(
        authenticator=Mock(keys=0),
        open_connections=Mock(ended={}),
        sessions=Mock(dispatcher=dispatcher, rebuilding=Mock(outcomes={}), away=0),
        session_logs=Mock(count=0, size_bytes=0, dropped=0),
        data_dir=Path("/nowhere"),
    )
    return metrics.page().decode()


def test_the_gateway_shows_what_a_worker_reports_of_its_device():
    dispatcher = Dispatcher(SystemClock(), QueueSettings(), EtaSettings())
    pool = dispatcher.worker_pool
    details = {"slots_limit": "2 of the 8 slots"}
    hello = Hello("w", "http://h:1", 2, "m", "cuda:0", "0", 1, details=details)
    worker = pool.welcome(hello, object())
    parts = {"attention": "plain: RuntimeError: Failed to find C compiler", "int4": "fast"}
    memory, pages = DeviceMemory(70, 100), ContextPages(7, 3)
    beat = Heartbeat(
        "idle", 1, 0, 0.0, 0, device_memory=memory, context_pages=pages, fast_paths=parts
    )
    pool.heard(worker, beat)

    page = metrics_page(dispatcher)
    shown, to_admin = (worker_info(worker, is_admin=is_admin) for is_admin in (False, True))

    for name, used, free in (("device_memory_bytes", 70.0, 30.0), ("context_pages", 7.0, 3.0)):
        labels = 'device="cuda:0",state="%s",worker="w"'
        assert f"parley_worker_{name}{{{labels % 'used'}}} {used}" in page
        assert f"parley_worker_{name}{{{labels % 'free'}}} {free}" in page
    for part, state in (("attention", "plain"), ("int4", "fast")):
        labels = f'device="cuda:0",part="{part}",state="{state}",worker="w"'
        assert f"parley_fast_path{{{labels}}} 1.0" in page
    assert shown.context_pages is not None
    assert (shown.context_pages.used, shown.context_pages.free) == (7, 3)
    assert (shown.slots, shown.slots_limit) == (2, "2 of the 8 slots")
    kernel, products = to_admin.fast_paths
    assert (kernel.part, kernel.state) == ("attention", "plain")
    assert kernel.reason == "RuntimeError: Failed to find C compiler"
    assert (products.state, products.reason) == ("fast", None)
    # What a compiler says names folders.
    assert shown.fast_paths[0].reason is None


PROGRAM = """
import ctypes, sys, threading
from parley.worker.memory import limit_arenas

if sys.argv[1] == "limited":
    assert limit_arenas()
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
all_there = threading.Barrier(8)

def allocate():
    all_there.wait()
    libc.malloc(1000)
    all_there.wait()

threads = [threading.Thread(target=allocate) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
stdout = ctypes.c_void_p.in_dll(libc, "stdout")
libc.malloc_info(0, stdout)
libc.fflush(stdout)
"""

GROWN = """
import gc
from parley.worker import memory

memory.KEPT_BYTES = 32 << 20
gc.disable()
least = memory.resident_bytes()
pieces = [bytearray(100_000) for _ in range(1000)]
pieces.append(pieces)
last = bytearray(100_000)
del pieces
grown = memory.resident_bytes()
assert memory.trim(least) <= least
print(grown - least, memory.resident_bytes() - least)
"""


def run(*program: str) -> str:
    arguments = [sys.executable, "-c", *program]
    return subprocess.run(arguments, capture_output=True, text=True, check=True).stdout


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has pools")
def test_threads_share_two_pools() -> None:
    assert run(PROGRAM, "limited").count("<heap nr=") == 2
    assert run(PROGRAM, "as it is").count("<heap nr=") > 2


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has pools")
def test_memory_of_large_objects_is_returned_to_the_system() -> None:
    before, after = map(int, run(GROWN).split())

    assert before > 90_000_000
    assert after < 20_000_000
