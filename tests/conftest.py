import gc
import logging
import os
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
import structlog
from tests.support import scheduling, starts
from tests.support.process_state import ProcessState, seed
from tests.support.scheduling import (
    pytest_sessionstart,
    pytest_xdist_make_scheduler,
    slow_tests,
)

from parley import logs
from parley.session_log import places
from tools import pages

__all__ = ["pytest_sessionstart", "pytest_xdist_make_scheduler"]

SHELLS = (
    *("FORCE_COLOR", "PY_COLORS", "GITHUB_ACTIONS", "NO_COLOR", "COLUMNS", "TERMINAL_WIDTH"),
    *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"),
)
"""Variables by which a shell or a CI service changes what is printed, and what is reached."""
for name in SHELLS:
    os.environ.pop(name, None)
    os.environ.pop(name.lower(), None)

# For a small model's matrices two threads of PyTorch take ten times the processor time of one, and
# on a busy machine wait for each other for minutes.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Nothing of what is imported and collected is garbage: looking for some takes a sixth of the time.
gc.disable()

# A test that configures no log gets structlog's own, whose tracebacks in colour show all local
# variables and take seconds if those are networks.
structlog.configure(
    processors=[
        *structlog.get_config()["processors"][:-1],
        structlog.dev.ConsoleRenderer(
            colors=False, exception_formatter=structlog.dev.plain_traceback
        ),
    ]
)


# Logs of sessions lie in the data folder. A folder in memory stays when its server has ended, for
# an hour, and every server looks through all of them when it starts: a run has a thousand servers.
places.MEMORY = Path("/none")  # type: ignore[misc]

forked = starts.use()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Processes of parley are forked from one that has made their imports, but for tests about how
    they start."""
    forked.is_used = item.get_closest_marker("starts_python") is None
    return (yield)


def pytest_configure(config: pytest.Config) -> None:
    """The pages that servers of tests serve are those of this tree."""
    if not hasattr(config, "workerinput"):
        pages.make()
    scheduling.pytest_configure(config)


def pytest_unconfigure() -> None:
    forked.close()


RERUN_FOLDERS = ("executor", "system", "web")
"""Their tests share the machine with other processes and browsers, and get a second try. A test
elsewhere that fails once in ten runs has found a race."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    slow = slow_tests()
    for item in items:
        if item.nodeid in slow:
            item.add_marker(pytest.mark.slow)
        if any(item.nodeid.startswith(f"tests/{folder}/") for folder in RERUN_FOLDERS):
            item.add_marker(pytest.mark.flaky(reruns=1))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what skipped tests need, and why first tries failed (counted as `rerun`)."""
    needs = Counter(_need(report) for report in terminalreporter.getreports("skipped"))
    if needs:
        terminalreporter.section("skipped tests need")
    for need, count in needs.most_common():
        terminalreporter.write_line(f"{count:5} {need}")
    reports = terminalreporter.getreports("rerun")
    if reports:
        terminalreporter.section("first tries that failed")
    for report in reports:
        terminalreporter.write_sep("_", report.nodeid)
        terminalreporter.write_line(report.longreprtext[-4000:])
        terminalreporter.write_line(report.capstdout[-4000:])


def _need(report: pytest.TestReport) -> str:
    """The reason of a skip, in one line."""
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return " ".join(reason.removeprefix("Skipped: ").split())[:160]


def pytest_collection_finish() -> None:
    """What was imported and collected stays until the end: without it in the garbage collector's
    books a full collection takes milliseconds instead of half a second."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def process_as_it_was(request: pytest.FixtureRequest) -> Iterator[None]:
    """No test finds in its process what another one left there."""
    seed(request.node.nodeid)
    before = ProcessState()
    logs._is_json = False
    yield
    before.restore()


@pytest.fixture
def logged() -> Iterator[list[logging.LogRecord]]:
    """What Python's own loggers log during a test."""
    records: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = records.append  # type: ignore[assignment]
    logging.getLogger().addHandler(handler)
    yield records
    logging.getLogger().removeHandler(handler)
