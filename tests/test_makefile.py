"""`make serve` installs what serving needs, and no CUDA where there is no card.

The recipes run for real; only Python is a stand-in that notes what pip was asked for.
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.support.patience import PROCESS_S

ROOT = Path(__file__).resolve().parents[1]

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")

SERVER = "-e .[worker,talk] -e packages/parley-pocket-data"

PIP = """#!/bin/sh
[ "$1" != -c ] || exit ${LACKS:-0}
echo "$@" >>asked
case "$*" in $REFUSES) exit 1;; esac
"""


class Clone:
    """A folder with our Makefile, and a Python that installs nothing."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("Makefile", "pyproject.toml", "constraints.txt"):
            shutil.copy(ROOT / name, folder / name)
        (folder / ".venv" / "bin").mkdir(parents=True)
        (folder / "path").mkdir()
        self.program(".venv/bin/python", PIP)
        self.program("path/nvidia-smi", "#!/bin/sh\nexit 9\n")
        self.program("path/uname", "#!/bin/sh\necho Linux\n")

    def program(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)
        (self.folder / name).chmod(0o755)

    def make(self, *words: str, refuses: str = "nothing", lacks: bool = False) -> str:
        path = f"{self.folder / 'path'}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            ["make", *words],
            cwd=self.folder,
            env={
                **os.environ,
                "PATH": path,
                "REFUSES": refuses,
                "LACKS": str(int(lacks)),
                "MAKEFLAGS": "",
            },
            capture_output=True,
            text=True,
            timeout=PROCESS_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    @property
    def asked(self) -> list[str]:
        """What pip was asked for, without the flags that are always there."""
        lines = (self.folder / "asked").read_text().splitlines()
        return [line.rpartition("-c constraints.txt ")[2] for line in lines]


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    return Clone(tmp_path)


VERSION = next(
    line.removeprefix("torch==")
    for line in (ROOT / "constraints.txt").read_text().splitlines()
    if line.startswith("torch==")
)


def test_without_a_card_the_cpu_build_and_only_the_server_are_installed(clone: Clone) -> None:
    clone.make(".venv/.serving")

    assert clone.asked == [f"torch=={VERSION}+cpu", SERVER]


def test_with_a_card_the_default_build_is_installed(clone: Clone) -> None:
    clone.program("path/nvidia-smi", "#!/bin/sh\necho 'GPU 0: a card'\n")

    clone.make(".venv/.serving")

    assert clone.asked == ["torch", SERVER]


def test_the_cpu_index_is_tried_first_and_may_be_out_of_reach(clone: Clone) -> None:
    clone.make(".venv/.serving", "TORCH_CPU_INDEX=file:///nowhere", refuses="*nowhere*")

    assert "--index-url file:///nowhere" in clone.asked[0]
    assert clone.asked[1] == f"torch=={VERSION}+cpu"


def test_where_no_cpu_build_is_offered_the_default_one_comes_with_a_word(clone: Clone) -> None:
    out = clone.make(".venv/.serving", refuses="*+cpu*")

    assert clone.asked[1] == "torch"
    assert "TORCH_CPU_INDEX" in out


def test_a_package_without_binaries_is_built_and_a_server_starts_without_it(clone: Clone) -> None:
    out = clone.make(".venv/.serving", lacks=True, refuses="*pocketsphinx")

    assert clone.asked[1:] == [SERVER, "pocketsphinx"]
    assert "needs a C compiler" in out


def test_tests_add_the_rest_and_nothing_is_installed_twice(clone: Clone) -> None:
    clone.make(".venv/.serving")
    clone.make(".venv/.ready")
    clone.make(".venv/.ready", ".venv/.serving")

    assert clone.asked[1:] == [SERVER, "-e .[dev]", "--no-deps openai-agents"]


def test_every_verb_that_the_makefile_promises_exists(clone: Clone) -> None:
    listed = [line.split()[1] for line in clone.make("help").splitlines()]

    assert "serve" in listed
