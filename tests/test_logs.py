import asyncio
import io
import json
import logging
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from types import SimpleNamespace

import pytest
from structlog.testing import capture_logs

from parley import logs


@pytest.mark.parametrize("style", ["json", "text"])
def test_a_logged_error_shows_where_but_not_what_was_said(style):
    out = io.StringIO()
    logs.configure(style=style, stream=out)
    log = logs.get("test")

    def answer(prompt: str) -> None:
        raise ValueError("no")

    try:
        answer("my secret")
    except ValueError:
        log.exception("turn_failed", session_id="s1")

    written = out.getvalue()
    assert "ValueError" in written
    assert "s1" in written
    assert "my secret" not in written.replace('answer("my secret")', "")


def test_a_reader_that_stalls_does_not_stall_the_server(monkeypatch):
    monkeypatch.setattr(logs, "ROOM_S", 0.01)
    reader, writer = os.pipe()
    with open(reader, "rb", buffering=0) as read, open(writer, "w") as out:
        logs.configure(style="json", stream=out)
        log = logs.get("test")
        long = "x" * 3000
        for number in range(100):
            log.info("said", number=number, more=long)
            logs.print_line(json.dumps({"event": "printed", "more": long}), out)
        told = read.read(1 << 20)
        log.info("said", number=100)
        told += read.read(1 << 20)

    *lines, dropped, last = told.decode().splitlines()
    torn = [line for line in lines if not line.endswith("}")]
    assert len(torn) <= 1
    assert (json.loads(dropped)["event"], json.loads(last)["number"]) == ("log_lines_dropped", 100)
    assert json.loads(dropped)["lines"] == 200 - len(lines) + len(torn)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such terminals")
@pytest.mark.parametrize("ends", [os.pipe, os.openpty])
def test_a_reader_that_exits_does_not_end_the_server(ends) -> None:
    reader, writer = ends()
    with open(writer, "w") as out:
        logs.configure(style="json", stream=out)
        os.close(reader)
        for _ in range(2):
            logs.print_line("a worker's line", out)
            logs.get("test").info("said")


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such terminals")
def test_a_terminal_that_is_paused_does_not_stall_the_server(monkeypatch):
    monkeypatch.setattr(logs, "ROOM_S", 0.01)
    leader, follower = os.openpty()
    with open(leader, "rb", buffering=0) as shown, open(follower, "w") as out:

        def print_on() -> None:
            for _ in range(2000):
                logs.print_line("x" * 300, out)

        printing = threading.Thread(target=print_on, daemon=True)
        printing.start()
        printing.join(10)
        is_over = not printing.is_alive()
        shown.close()  # Who waits for it, waits no more.

    assert is_over


def test_long_lines_of_threads_stay_whole():
    reader, writer = os.pipe()
    with open(reader) as read, ThreadPoolExecutor(3) as threads:
        lines = threads.submit(read.readlines)
        with open(writer, "w") as out:
            logs.configure(style="json", stream=out)
            log, long = logs.get("test"), "x" * 6000
            printed = [threads.submit(log.info, "said", more=long) for _ in range(200)]
            for _ in range(200):
                logs.print_line(json.dumps({"event": "printed", "more": long}), out)
            wait(printed)

        told = [json.loads(line)["event"] for line in lines.result()]
    assert (told.count("said"), told.count("printed")) == (200, 200)


def test_values_from_strangers_do_not_steer_a_terminal():
    out = io.StringIO()
    logs.configure(style="text", stream=out)

    logs.get("test").info("request", path="/\x1b]0;owned\x07\x9b31m", client="\u202e1.2.3.4")

    assert r"/\x1b]0;owned\x07\x9b31m" in out.getvalue()
    assert r"\u202e1.2.3.4" in out.getvalue()
    assert "\x1b]" not in out.getvalue()


def test_bad_requests_of_strangers_do_not_push_warnings_out():
    logs.configure(style="json", stream=io.StringIO())
    uvicorn = logging.getLogger("uvicorn.error")

    with logs.keeping_recent(2) as recent:
        logs.get("test").warning("worker_died")
        for _ in range(5):
            uvicorn.warning("Invalid HTTP request received.")
            uvicorn.warning("Unsupported upgrade request.")

    assert [line.event for line in recent.lines] == ["worker_died"]


def test_work_in_many_steps_is_logged_now_and_then_and_at_its_end(monkeypatch) -> None:
    lines: list[tuple[str, dict[str, object]]] = []
    signs: list[int] = []
    monkeypatch.setattr(logs, "_progress_listeners", [lambda: signs.append(1)])
    logger = SimpleNamespace(info=lambda event, **facts: lines.append((event, facts)))
    now = 100.0

    progress = logs.Steps(logger, "weights_read", every_s=5.0, clock=lambda: now)
    for count in range(1, 13):
        now += 1.0
        progress.step(tensors=count)
    progress.end(tensors=12)

    assert lines == [
        ("weights_read", {"tensors": 5}),
        ("weights_read", {"tensors": 10}),
        ("weights_read", {"took_s": 12.0, "tensors": 12}),
    ]
    # Anyone who waits for a sign of life hears every step.
    assert len(signs) == 12


def test_ctrl_c_at_the_start_prints_no_traceback():
    out = io.StringIO()
    logs.configure(style="text", stream=out)
    log = logging.getLogger("uvicorn.error")

    log.error("Traceback (most recent call last):\n …\nasyncio.exceptions.CancelledError\n")
    log.error("Traceback (most recent call last):\n …\nOSError: [Errno 28]\n")

    assert out.getvalue().count("Traceback") == 1
    assert "Errno 28" in out.getvalue()


async def test_a_background_task_is_kept_to_its_end_and_its_failure_is_logged() -> None:
    async def fail() -> None:
        raise ValueError("no")

    tasks: set[asyncio.Task[None]] = set()
    with capture_logs() as lines:
        kept = logs.keep(asyncio.create_task(fail(), name="handover"), tasks)
        assert tasks == {kept}
        await asyncio.wait(tasks)

    assert not tasks
    assert [(line["event"], line["task"]) for line in lines] == [("task_failed", "handover")]
