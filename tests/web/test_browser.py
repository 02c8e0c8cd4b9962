"""Conversations in headless Chromium, with a microphone that plays a spoken WAV and a test camera.

The scenarios are in browser.mjs; here they are grouped so that a server and a browser start once
per group.
"""

from __future__ import annotations

import fcntl
import re
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
POCKET = ROOT / "src/parley/models/pocket/data"

GROUPS = {
    "voices": ["half_duplex", "audio_duplex", "duplex_gapless", "interrupted", "barge_in"],
    "pictures": ["omni", "chat", "voice_note", "writing", "screen", "phones"],
    "files": [
        "file_mode",
        "mixed",
        "film_file",
        "recording",
        "film",
        "voice_upload",
        "voice_record",
    ],
    "lives": ["pause", "queue", "given_back", "restart", "go_on", "other_server"],
    "operators": ["app_off", "keys", "operations", "viewer", "look_again"],
    "troubles": ["permission_denied", "no_microphone", "insecure", "turned_away"],
    "access": ["accessible"],
    "cares": ["weight", "languages", "keyboard", "memory"],
    "examples": ["example_node", "example_page"],
}
ANSWERED = {"speaks": ["half_duplex", "audio_duplex", "duplex_gapless"], "sees": ["chat", "omni"]}
"""Scenarios in which an answer is heard, asked of the shipped model too once it has weights."""

# The wait for one's turn (`alone`) does not count. One group: a second process that runs tests does
# others meanwhile (`--dist loadgroup`) instead of waiting.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300, func_only=True),
    pytest.mark.xdist_group("browser"),
]


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
    converse(GROUPS[group], spoken, model="parrot")


@pytest.mark.parametrize("group", ANSWERED)
def test_the_shipped_model_answers_in_a_browser(group: str, spoken: Path):
    if not any(POCKET.glob("*.safetensors")):
        pytest.skip("the pocket weights are not installed")
    converse(ANSWERED[group], spoken, model="pocket")


def test_every_scenario_belongs_to_a_group():
    source = (ROOT / "tests/web/browser.mjs").read_text()
    written = set(re.findall(r"^  async (\w+)\(", source, re.MULTILINE))

    assert written == {name for group in GROUPS.values() for name in group}


def converse(scenarios: list[str], spoken: Path, *, model: str) -> None:
    """Run scenarios against a server with `model`."""
    if NODE is None:
        pytest.skip("Node.js is not installed")
    if not (ROOT / "node_modules/playwright-core").is_dir():
        pytest.skip("the browser tools are not installed (npm ci)")

    driver = [NODE, "--experimental-websocket", "tests/web/browser.mjs"]
    done = subprocess.run(
        [*driver, "--wav", str(spoken), "--python", sys.executable, "--model", model, *scenarios],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=290,
        check=False,
    )

    if done.returncode == NO_BROWSER:
        pytest.skip(done.stdout.strip())
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
