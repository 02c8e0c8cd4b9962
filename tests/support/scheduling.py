"""Scheduler for pytest-xdist that assigns tests to processes (`--dist loadgroup`).

Some tests compute. Others wait most of their time: for servers to start, audio to play, time to
pass. Two processes in five start with tests that compute, at a lower priority; the others start
with tests that wait, so that processors are never idle and rarely delay a conversation. A process
that is finished helps the others. The longest tests run first (`tests/costs.tsv`), because a long
test at the end delays the whole run: a test that takes seconds belongs in the table.

Files whose tests must stay in one process are listed here: xdist's own mark, `xdist_group`, changes
a private name of pytest that pytest 9.2 does not have, and has no effect there.
"""

import os
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from pytest_rerunfailures import StatusDB
from xdist.scheduler import LoadScopeScheduling

COSTS: Final = Path(__file__).parents[1] / "costs.tsv"
"""CPU seconds, wall seconds and name of tests, as `tests.support.costs` writes them."""

COMPUTING: Final = tuple(
    f"tests/{folder}/"
    for folder in (
        *("dialects", "engine", "golden", "media", "models", "protocol", "recording", "session"),
        *("tools", "vad", "views"),
    )
)
"""Folders whose tests compute. The tests of one file there stay in one process, so that models and
networks that they share are created once."""

TOGETHER: Final = {
    "tests/bench/test_bench_interruption.py": "bench interruption",
    "tests/bench/test_bench_load.py": "bench load",
    "tests/client/test_client_verbs.py": "client verbs",
    "tests/clients/test_first_examples.py": "first examples",
    "tests/docs/test_printed_samples.py": "printed samples",
    "tests/executor/test_ray.py": "ray",
    "tests/gateway/test_openapi.py": "openapi",
    "tests/models/minicpmo45/test_loading.py": "checkpoint",
    "tests/openai/test_agents.py": "agents",
    "tests/session/test_interruption_timing.py": "interruption timing",
    "tests/system/test_media_bombs.py": "media bombs",
    "tests/system/test_minicpmo45.py": "checkpoint",
    "tests/system/test_pocket.py": "pocket",
    "tests/system/test_two_hosts.py": "two hosts",
    "tests/test_citations.py": "source",
    "tests/test_files_named.py": "source",
    "tests/test_one_chunk.py": "one chunk",
    "tests/test_starts.py": "starts",
    "tests/test_vocabulary.py": "source",
    "tests/test_wheel.py": "wheel",
}
"""Files whose tests share a server, a cluster, weights or a package, with a name for the group."""

BROWSERS: Final = "tests/web/test_browser.py::"
SLOW_CPU_S: Final = 0.3
"""Tests that took more CPU time are left out of `make test-fast`, as if they were marked `slow`."""

LANES: Final = 3
"""Number of lanes, each with a browser and a server that its scenarios share: calls mostly wait for
audio, but more lanes would starve each other on a small machine."""
LANE_OF: Final = {
    "test_recorded_in_a_browser": 0,
    "test_the_shipped_model_answers_in_a_browser": 0,
}
"""Lane of browser tests that need their own server; the others are distributed over the other lanes
in turn."""


def measured() -> Iterator[tuple[float, float, str]]:
    """CPU seconds, wall seconds and name of each test in the table."""
    for line in COSTS.read_text(encoding="utf-8").splitlines():
        cpu, wall, name = line.split("\t")
        yield float(cpu), float(wall), name


def wall_seconds() -> dict[str, float]:
    """Wall seconds of tests when they were measured."""
    return {name: wall for _, wall, name in measured()}


def slow_tests() -> set[str]:
    """Names of tests that took more CPU time than `make test-fast` allows for one test."""
    return {name for cpu, _, name in measured() if cpu > SLOW_CPU_S}


def computes(worker_id: str, processes: int) -> bool:
    """True if a process (`gw0`, `gw1`, …) starts with tests that compute."""
    computing = max(1, processes * 2 // 5)
    return int(worker_id.removeprefix("gw")) % processes < computing


def is_computing(nodeid: str) -> bool:
    """True if a test computes, and may do so at a lower priority than conversations."""
    return nodeid.startswith(COMPUTING) and _file(nodeid) not in TOGETHER


def _file(nodeid: str) -> str:
    return nodeid.partition("::")[0]


class Scheduler(LoadScopeScheduling):  # type: ignore[misc]
    """See the module's docstring."""

    def __init__(self, config: pytest.Config, log: Any = None) -> None:
        super().__init__(config, log)
        self._lanes: dict[str, str] = {}
        self._queues: dict[bool, deque[str]] | None = None

    def _split_scope(self, nodeid: str) -> str:
        file = _file(nodeid)
        if nodeid.startswith(BROWSERS) and nodeid.endswith("]"):
            test = nodeid.removeprefix(BROWSERS).partition("[")[0]
            lane = LANE_OF.get(test, 1 + len(self._lanes) % (LANES - 1))
            return self._lanes.setdefault(nodeid, f"browser {lane}")
        return TOGETHER.get(file) or (file if is_computing(nodeid) else nodeid)

    def _assign_work_unit(self, node: Any) -> None:
        if self._queues is None:
            self._queues = self._in_order()
        kind = computes(node.gateway.id, self.numnodes)
        for queue in (self._queues[kind], self._queues[not kind]):
            while queue:
                scope = queue.popleft()
                if scope in self.workqueue:
                    self.workqueue.move_to_end(scope, last=False)
                    super()._assign_work_unit(node)
                    return
        # The remaining tests of a process that crashed.
        super()._assign_work_unit(node)

    def _in_order(self) -> dict[bool, deque[str]]:
        known = wall_seconds()
        costs = {
            scope: sum(known.get(nodeid, 0.0) for nodeid in tests)
            for scope, tests in self.workqueue.items()
        }
        # Tests that have not been measured stay in the order in which they were found.
        ordered = sorted(self.workqueue.items(), key=lambda unit: -costs[unit[0]])
        queues: dict[bool, deque[str]] = {True: deque(), False: deque()}
        for scope, tests in ordered:
            queues[is_computing(next(iter(tests)))].append(scope)
        return queues


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Scheduler | None:
    """Hook of xdist: creates the scheduler."""
    return Scheduler(config, log) if config.getvalue("dist") == "loadgroup" else None


def pytest_sessionstart(session: pytest.Session) -> None:
    """Let each test process count reruns itself: this scheduler never gives the test of a crashed
    process to another one, and asking the first process takes 40 ms per test."""
    config: Any = session.config
    if hasattr(config, "workerinput"):
        config.failures_db.sock.close()
        config.failures_db = StatusDB()


def pytest_configure(config: pytest.Config) -> None:
    """Lower the priority of processes that start with tests that compute."""
    told = getattr(config, "workerinput", None)
    if told is not None and computes(told["workerid"], told["workercount"]):
        os.nice(5)
