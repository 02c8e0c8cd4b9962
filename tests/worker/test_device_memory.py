"""What a worker reports of its GPU's memory; the GPU is a fake, as is torch."""

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
from parley.worker import device_memory


def fake_torch(monkeypatch: pytest.MonkeyPatch, mem_get_info: Any) -> None:
    cuda = SimpleNamespace(mem_get_info=mem_get_info)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))


def test_used_is_what_is_not_free(monkeypatch: pytest.MonkeyPatch):
    fake_torch(monkeypatch, lambda device: {"cuda:1": (30, 100)}[device])

    assert device_memory.read("cuda:1") == DeviceMemory(used_bytes=70, total_bytes=100)
    assert device_memory.read("cpu") is None


def test_a_device_with_an_error_reports_nothing(monkeypatch: pytest.MonkeyPatch):
    def failing(device: str) -> tuple[int, int]:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    fake_torch(monkeypatch, failing)

    assert device_memory.read("cuda:0") is None


def test_torch_is_not_imported_for_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delitem(sys.modules, "torch", raising=False)

    assert device_memory.read("cuda:0") is None
    assert "torch" not in sys.modules


def metrics_page(dispatcher: Dispatcher) -> str:
    metrics = Metrics(
        dispatcher,
        authenticator=Mock(keys=0),
        open_connections=Mock(ended={}),
        rebuilding=Mock(outcomes={}),
        sessions=Mock(away=0),
        session_logs=Mock(count=0, size_bytes=0, dropped=0),
        data_dir=Path("/nowhere"),
    )
    return metrics.page().decode()


def test_the_gateway_shows_it():
    dispatcher = Dispatcher(SystemClock(), QueueSettings(), EtaSettings())
    pool = dispatcher.worker_pool
    worker = pool.welcome(Hello("w", "http://h:1", 1, "m", "cuda:0", "0", 1), object())
    pool.heard(worker, Heartbeat("idle", 1, 0, 0.0, 0, device_memory=DeviceMemory(70, 100)))

    page = metrics_page(dispatcher)

    name = 'parley_worker_device_memory_bytes{device="cuda:0",state="%s",worker="w"}'
    assert f"{name % 'used'} 70.0" in page
    assert f"{name % 'free'} 30.0" in page


def test_the_gateway_shows_the_pages_of_contexts():
    dispatcher = Dispatcher(SystemClock(), QueueSettings(), EtaSettings())
    pool = dispatcher.worker_pool
    worker = pool.welcome(Hello("w", "http://h:1", 1, "m", "cuda:0", "0", 1), object())
    pool.heard(worker, Heartbeat("idle", 1, 0, 0.0, 0, context_pages=ContextPages(7, 3)))

    page = metrics_page(dispatcher)
    shown = worker_info(worker, is_admin=False).context_pages

    name = 'parley_worker_context_pages{device="cuda:0",state="%s",worker="w"}'
    assert f"{name % 'used'} 7.0" in page
    assert f"{name % 'free'} 3.0" in page
    assert shown is not None
    assert (shown.used, shown.free) == (7, 3)


def test_the_gateway_shows_why_a_worker_offers_fewer_slots():
    dispatcher = Dispatcher(SystemClock(), QueueSettings(), EtaSettings())
    pool = dispatcher.worker_pool
    details = {"slots_limit": "2 of the 8 slots"}
    hello = Hello("w", "http://h:1", 2, "m", "cuda:0", "0", 1, details=details)

    shown = worker_info(pool.welcome(hello, object()), is_admin=False)

    assert (shown.slots, shown.slots_limit) == (2, "2 of the 8 slots")


def test_the_gateway_shows_which_fast_parts_serve():
    dispatcher = Dispatcher(SystemClock(), QueueSettings(), EtaSettings())
    pool = dispatcher.worker_pool
    worker = pool.welcome(Hello("w", "http://h:1", 1, "m", "cuda:0", "0", 1), object())
    parts = {"attention": "plain: RuntimeError: Failed to find C compiler", "int4": "fast"}
    pool.heard(worker, Heartbeat("idle", 1, 0, 0.0, 0, fast_paths=parts))

    page = metrics_page(dispatcher)
    (kernel, products) = worker_info(worker, is_admin=True).fast_paths

    name = 'parley_fast_path{device="cuda:0",part="%s",state="%s",worker="w"} 1.0'
    assert name % ("attention", "plain") in page
    assert name % ("int4", "fast") in page
    assert (kernel.part, kernel.state) == ("attention", "plain")
    assert kernel.reason == "RuntimeError: Failed to find C compiler"
    assert (products.state, products.reason) == ("fast", None)
    # What a compiler says names folders.
    assert worker_info(worker, is_admin=False).fast_paths[0].reason is None
