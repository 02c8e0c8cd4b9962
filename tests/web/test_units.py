"""The browser code without a browser: types, worklets, state machines, the shared transcripts."""

import shutil
import subprocess
from pathlib import Path

import pytest
from tests.support.patience import PROCESS_S

ROOT = Path(__file__).parents[2]
NODE = shutil.which("node")

pytestmark = pytest.mark.skipif(NODE is None, reason="Node.js is not installed")


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=PROCESS_S, check=False
    )


def test_node_tests_pass():
    files = sorted(str(path) for path in (ROOT / "tests/web/unit").glob("*.test.mjs"))
    assert files

    done = run(str(NODE), "--experimental-websocket", "--no-warnings", "--test", *files)

    assert done.returncode == 0, done.stdout[-6000:]


def test_types_hold():
    compiler = ROOT / "node_modules/typescript-native/bin/tsc"
    if not compiler.is_file():
        pytest.skip("the browser tools are not installed (npm ci)")

    done = run(str(NODE), str(compiler), "-p", "tsconfig.json")

    assert done.returncode == 0, done.stdout[-6000:]
