"""What holds for every test of this folder."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from tests.support.scheduling import pytest_configure, pytest_xdist_make_scheduler

from parley import logs

__all__ = ["pytest_configure", "pytest_xdist_make_scheduler"]

# Nothing of what is imported and collected is garbage: looking for some takes a sixth of the time.
gc.disable()

# Whoever has not configured the log gets structlog's own, whose tracebacks in colour show all local
# variables and take seconds where those are networks.
structlog.configure(
    processors=[
        *structlog.get_config()["processors"][:-1],
        structlog.dev.ConsoleRenderer(
            colors=False, exception_formatter=structlog.dev.plain_traceback
        ),
    ]
)

WHOLE = frozenset({"deploy", "docs", "executor", "openai", "system", "web"})
"""Folders whose tests start servers, browsers and other people's clients."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Several processes on a machine that does other things, too: such tests get a second try. The
    summary counts it as `rerun`; what fails twice has failed."""
    folder = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(folder) and item.path.relative_to(folder).parts[0] in WHOLE:
            item.add_marker(pytest.mark.flaky(reruns=1))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Why the first try of a test failed that got a second one: what happens once in ten runs on a
    busy machine is mended only by who reads why."""
    reports = terminalreporter.getreports("rerun")
    if reports:
        terminalreporter.section("first tries that failed")
    for report in reports:
        terminalreporter.write_sep("_", report.nodeid)
        terminalreporter.write_line(report.longreprtext[-4000:])


def pytest_collection_finish() -> None:
    """What was imported and collected stays until the end: without it in the garbage collector's
    books a full collection takes milliseconds instead of half a second."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    """A test that configures the log (a level, a format) does so for itself."""
    before, was_json = structlog.get_config(), logs._is_json
    logs._is_json = False
    yield
    structlog.configure(**before)
    logs._is_json = was_json
