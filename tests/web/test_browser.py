"""Conversations in headless Chromium and in Firefox, with a microphone that plays a spoken WAV and
a test camera.

The scenarios are in browser.mjs, each of them a test. One process of Node.js has a server and a
browser for all those that run in one test process.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.long import IS_LONG
from tests.support.starter import Starter
from tests.web import speech

ROOT = Path(__file__).parents[2]
NODE = shutil.which("node")
POCKET = ROOT / "packages/parley-pocket-data/parley_pocket_data"
FILES = ("browser", "calls", "extras", "firefox", "lines", "pages", "whole")

RECORDED = ["look_again", "below_a_path", "firefox"]
"""Scenarios that look at recordings, whose server renders them: one after the other."""
ANSWERED = ["half_duplex", "omni"]
"""Scenarios in which an answer is heard, asked of the shipped model too once it has weights."""
if IS_LONG:
    ANSWERED += ["duplex_gapless", "chat", "look_again"]

SCENARIO_S = 300
"""What a scenario has not done by then it will not do. The longest takes half a minute on two cores
that do nothing else."""

pytestmark = pytest.mark.timeout(SCENARIO_S + 60, func_only=True)


def written() -> list[str]:
    """Names of the scenarios in the files."""
    source = "".join((ROOT / f"tests/web/{name}.mjs").read_text("utf-8") for name in FILES)
    return re.findall(r"^  async (\w+)\(", source, re.MULTILINE)


class Driver:
    """The process that performs scenarios, with its output."""

    def __init__(self, spoken: Path, python: Path) -> None:
        if NODE is None:
            pytest.skip("Node.js is not installed")
        if not (ROOT / "node_modules/playwright-core").is_dir():
            pytest.skip("the browser tools are not installed (npm ci)")
        driver = [NODE, "--experimental-websocket", "--no-warnings", "tests/web/browser.mjs"]
        self._child = subprocess.Popen(
            [*driver, "--wav", str(spoken), "--python", str(python)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            # A group of its own: the browsers and what started the server end with it.
            start_new_session=True,
        )

    def perform(self, scenario: str, *, model: str = "parrot") -> None:
        """Run a scenario against a server with `model`; fails or skips the test as it does."""
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        late = threading.Timer(SCENARIO_S, self.kill)
        late.start()
        said = ""
        try:
            if self._child.poll() is None:
                print(json.dumps({"name": scenario, "model": model}), file=self._child.stdin)
                self._child.stdin.flush()
            for line in self._child.stdout:
                if line.startswith("= "):
                    break
                said += line
            else:
                line = f"ended with {self._child.wait()}"
        finally:
            late.cancel()
        if line == "= skipped\n" or said.startswith("skipped"):
            pytest.skip(said.strip())
        assert line == "= ok\n", f"{line}\n{said[-8000:]}"

    @property
    def is_running(self) -> bool:
        return self._child.poll() is None

    def kill(self) -> None:
        """End it, its server and its browsers."""
        if self.is_running:
            os.killpg(self._child.pid, signal.SIGKILL)

    def close(self) -> None:
        """Let it end what it has started."""
        assert self._child.stdin is not None
        self._child.stdin.close()
        try:
            self._child.wait(30)
        except subprocess.TimeoutExpired:
            self.kill()
            self._child.wait()


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The program that starts servers."""
    if sys.platform != "linux":
        yield Path(sys.executable)
        return
    starter = Starter(tmp_path_factory.mktemp("starter"))
    yield starter.program
    starter.close()


@pytest.fixture(scope="module")
def drivers(tmp_path_factory: pytest.TempPathFactory, python: Path) -> Iterator[list[Driver]]:
    """The driver that runs, if one does; what was killed is followed by another."""
    spoken = speech.write(tmp_path_factory.mktemp("voice") / "speech.wav")
    running = [Driver(spoken, python)]
    yield running
    for driver in running:
        driver.close()


@pytest.fixture
def driver(drivers: list[Driver], python: Path, tmp_path: Path) -> Driver:
    if not drivers[-1].is_running:
        drivers.append(Driver(speech.write(tmp_path / "speech.wav"), python))
    return drivers[-1]


@pytest.mark.parametrize("scenario", [name for name in written() if name not in RECORDED])
def test_in_a_browser(scenario: str, driver: Driver):
    driver.perform(scenario)


@pytest.mark.parametrize("scenario", RECORDED)
def test_recorded_in_a_browser(scenario: str, driver: Driver):
    driver.perform(scenario)


@pytest.mark.parametrize("scenario", ANSWERED)
def test_the_shipped_model_answers_in_a_browser(scenario: str, driver: Driver):
    if not any(POCKET.glob("*.safetensors")):
        pytest.skip("the pocket weights are not installed")
    driver.perform(scenario, model="pocket")
