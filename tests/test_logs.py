from __future__ import annotations

import io
import logging

import pytest
import structlog

from parley import logs


@pytest.fixture
def _restored():
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


@pytest.mark.usefixtures("_restored")
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
        log.exception("turn failed", session_id="s1")

    written = out.getvalue()
    assert "ValueError" in written
    assert "s1" in written
    assert "my secret" not in written.replace('answer("my secret")', "")


@pytest.mark.usefixtures("_restored")
def test_values_from_strangers_do_not_steer_a_terminal():
    out = io.StringIO()
    logs.configure(style="text", stream=out)

    logs.get("test").info("request", path="/\x1b]0;owned\x07\x9b31m", client="\u202e1.2.3.4")

    assert r"/\x1b]0;owned\x07\x9b31m" in out.getvalue()
    assert r"\u202e1.2.3.4" in out.getvalue()
    assert "\x1b]" not in out.getvalue()


@pytest.mark.usefixtures("_restored")
def test_bad_requests_of_strangers_do_not_push_warnings_out():
    logs.configure(style="json", stream=io.StringIO())
    uvicorn = logging.getLogger("uvicorn.error")

    with logs.keeping_recent(2) as recent:
        logs.get("test").warning("worker died")
        for _ in range(5):
            uvicorn.warning("Invalid HTTP request received.")
            uvicorn.warning("Unsupported upgrade request.")

    assert [line.event for line in recent.lines] == ["worker died"]
