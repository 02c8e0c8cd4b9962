"""Conversations in headless Chromium, with a microphone that plays a spoken WAV and a test camera.

The scenarios are in browser.mjs; here they are grouped so that a server and a browser start once
per group.
"""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.web import speech

ROOT = Path(__file__).parents[2]
NODE = shutil.which("node")
NO_BROWSER = 77

GROUPS = {
    "voices": ["half_duplex", "audio_duplex", "duplex_gapless", "interrupted"],
    "pictures": ["omni", "chat", "voice_note", "writing", "file_mode", "recording"],
    "lives": ["pause", "queue", "restart", "app_off", "keys", "viewer", "look_again"],
    "troubles": ["permission_denied", "no_microphone", "insecure", "turned_away"],
    "cares": ["accessible", "weight", "languages", "keyboard", "memory"],
    "examples": ["example_node", "example_page"],
}

# The wait for one's turn (`alone`) does not count.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300, func_only=True)]


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    """Two calls at once on a small machine would measure each other."""
    with open(Path(tempfile.gettempdir()) / "parley-browser-tests.lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@pytest.fixture(scope="module")
def spoken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return speech.write(tmp_path_factory.mktemp("voice") / "speech.wav")


@pytest.mark.parametrize("group", GROUPS)
def test_in_a_browser(group: str, spoken: Path):
    if NODE is None:
        pytest.skip("Node.js is not installed")
    if not (ROOT / "node_modules/playwright-core").is_dir():
        pytest.skip("the browser tools are not installed (npm ci)")

    driver = [NODE, "--experimental-websocket", "tests/web/browser.mjs"]
    done = subprocess.run(
        [*driver, "--wav", str(spoken), "--python", sys.executable, *GROUPS[group]],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=290,
        check=False,
    )

    if done.returncode == NO_BROWSER:
        pytest.skip(done.stdout.strip())
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
