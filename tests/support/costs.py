"""A pytest plugin that records the CPU seconds of each test: wall time means little on a busy
machine.

`python -m pytest -p tests.support.costs --costs costs.tsv` writes one line per test: CPU seconds of
its process and of all processes that it started, running or not (set-up, test and tear-down
together), wall seconds, name. A fixture shared by several tests counts for the test that creates it
and the test after which it ends.
"""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--costs", type=Path, help="file to append the CPU seconds of each test to")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    cpu, wall = _cpu_seconds(), time.monotonic()
    result = yield
    # The times of processes that ended without being waited for are lost.
    cpu, wall = max(0.0, _cpu_seconds() - cpu), time.monotonic() - wall
    path = item.config.getoption("--costs")
    if path is not None:
        with path.open("a", encoding="utf-8") as file:
            file.write(f"{cpu:.2f}\t{wall:.2f}\t{item.nodeid}\n")
    return result


def _cpu_seconds() -> float:
    times = os.times()
    own = times.user + times.system + times.children_user + times.children_system
    return own + sum(_of_descendants(os.getpid()))


def _of_descendants(parent: int) -> Iterator[float]:
    """CPU seconds of each descendant, with those of children that it has waited for."""
    for path in Path(f"/proc/{parent}/task").glob("*/children"):
        try:
            children = path.read_text(encoding="ascii").split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        for child in map(int, children):
            yield _seconds_of(child)
            yield from _of_descendants(child)


def _seconds_of(process: int) -> float:
    try:
        stat = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return sum(map(int, stat.rpartition(")")[2].split()[11:15])) / os.sysconf("SC_CLK_TCK")
