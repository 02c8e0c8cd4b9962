import logging
import os
import random
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import structlog
from tests.support.process_state import UMASK, ProcessState, seed

from parley import logs
from parley.private import make_files_private

CHANGES: dict[str, Callable[[Path], object]] = {
    "umask": lambda _: make_files_private(),
    "environment": lambda _: os.environ.update(PARLEY_LOG="debug", PATH="/"),
    "folder": os.chdir,
    "path of imports": lambda folder: sys.path.append(str(folder)),
    "SIGTERM": lambda _: signal.signal(signal.SIGTERM, signal.SIG_IGN),
    "switch interval": lambda _: sys.setswitchinterval(0.5),
}


@pytest.mark.parametrize("what", CHANGES)
def test_what_a_test_leaves_changed_is_put_back(what: str, tmp_path: Path):
    before = ProcessState()

    CHANGES[what](tmp_path)

    assert before.restore() == [what]
    assert ProcessState() == before
    assert os.umask(UMASK) == UMASK


def test_a_folder_that_is_gone_is_left(tmp_path: Path):
    before = ProcessState()
    gone = tmp_path / "gone"
    gone.mkdir()
    os.chdir(gone)
    gone.rmdir()

    assert before.restore() == ["folder"]
    assert Path.cwd() == before.folder


def test_a_log_that_a_test_configures_is_its_own():
    before = ProcessState()

    logs.configure(level="debug", style="json")
    structlog.contextvars.bind_contextvars(session_id="left behind")

    assert before.restore() == []
    assert ProcessState() == before
    assert not structlog.contextvars.get_contextvars()
    assert logging.getLogger().handlers == before.loggers[0].handlers


def test_random_numbers_depend_on_the_test_alone():
    seed("one")
    first = random.random()
    seed("another")
    assert random.random() != first
    seed("one")
    assert random.random() == first
