import subprocess
import time

import pytest
from tests.support.patience import HANG_S, PROCESS_S

from parley.executor import node_worker
from parley.executor.node_worker import NodeWorker


class LateReader(NodeWorker):
    """Reads what its worker writes a moment after it has ended, as on a busy machine."""

    def _read(self, child: subprocess.Popen[str]) -> None:
        child.wait()
        time.sleep(0.3)
        super()._read(child)


def ended(worker: NodeWorker) -> tuple[int, list[str]]:
    """How it ended, and what it had written when its state said so."""
    deadline = time.monotonic() + PROCESS_S
    lines: list[str] = []
    while time.monotonic() < deadline:
        state = worker.state()
        lines += state.lines
        if state.returncode is not None:
            return state.returncode, lines
        time.sleep(0.01)
    raise AssertionError("It has not ended.")


def worker_of(kind: type[NodeWorker], program: str) -> NodeWorker:
    return kind({}, ("-c", program))


def test_the_end_of_a_worker_comes_with_what_it_wrote_last() -> None:
    worker = worker_of(LateReader, "print('no such model'); raise SystemExit(2)")

    assert ended(worker) == (2, ["no such model"])


def test_an_output_that_something_else_holds_open_is_waited_for_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program = (
        "import subprocess; print('gone', flush=True)\n"
        "subprocess.Popen(['sleep', '3600'], start_new_session=True)\n"
        "raise SystemExit(3)"
    )
    worker = worker_of(NodeWorker, program)
    try:
        assert ended(worker) == (3, ["gone"])
        monkeypatch.setattr(node_worker, "LAST_LINES_S", HANG_S)
        began_s = time.monotonic()

        assert worker.state().returncode == 3
        assert time.monotonic() - began_s < HANG_S
    finally:
        worker.kill()
