"""Conversations in headless Chromium, with a microphone that plays a spoken WAV and a test camera.

The scenarios are in browser.mjs; here they are grouped so that a server and a browser start once
per group.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.web import speech

ROOT = Path(__file__).parents[2]
NODE = shutil.which("node")
NO_BROWSER = 77
POCKET = ROOT / "packages/parley-pocket-data/parley_pocket_data"

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
    "operators": ["app_off", "keys", "operations", "viewer", "recording_coming", "look_again"],
    "troubles": ["permission_denied", "no_microphone", "insecure", "turned_away"],
    "access": ["accessible"],
    "starts": ["w3_asked_before_anything_is_kept", "w8_the_answer_to_a_photo_is_seen"],
    "presses": [
        "w1_second_press",
        "w2_space_mutes",
        "media_keys",
        "w14_second_call",
        "w18_leaving",
    ],
    "reach": ["w12_full_screen", "w13_phone_sheet"],
    "losses": ["w6_network_cut", "w6_offline", "left_while_mended", "w19_go_on_after_a_loss"],
    "waits": ["w6_stalled_server", "w7_the_sign_recovers"],
    "sounds": ["w4_muted_is_not_recorded", "w15_another_microphone", "w20_ducking"],
    "beside": ["push_to_talk", "small_window", "words_in_a_call", "without_camera"],
    "written": ["w9_no_free_place", "w9_written_into_the_call", "scenes", "speech_found"],
    "firefox": ["firefox_call", "firefox_video_and_turns", "firefox_chat"],
    "lines": ["slow_line", "small_sound", "slow_processor", "stress", "walk", "below_a_path"],
    "cares": ["weight", "languages", "keyboard", "memory"],
    "examples": ["example_node", "example_page"],
}
ANSWERED = {"speaks": ["half_duplex", "audio_duplex", "duplex_gapless"], "sees": ["chat", "omni"]}
"""Scenarios in which an answer is heard, asked of the shipped model too once it has weights."""

GROUP_S = 900
"""What a group has not done by then it will not do. The longest takes about two minutes on two
cores that do nothing else."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(GROUP_S + 60, func_only=True)]


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
    names = ("browser", "calls", "extras", "firefox", "lines")
    files = [ROOT / f"tests/web/{name}.mjs" for name in names]
    source = "".join(file.read_text() for file in files)
    written = set(re.findall(r"^  async (\w+)\(", source, re.MULTILINE))

    assert written == {name for group in GROUPS.values() for name in group}


def converse(scenarios: list[str], spoken: Path, *, model: str) -> None:
    """Run scenarios against a server with `model`."""
    if NODE is None:
        pytest.skip("Node.js is not installed")
    if not (ROOT / "node_modules/playwright-core").is_dir():
        pytest.skip("the browser tools are not installed (npm ci)")

    driver = [NODE, "--experimental-websocket", "tests/web/browser.mjs"]
    child = subprocess.Popen(
        [*driver, "--wav", str(spoken), "--python", sys.executable, "--model", model, *scenarios],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A group of its own: the server and the browsers end with it.
        start_new_session=True,
    )
    try:
        out, err = child.communicate(timeout=GROUP_S)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        out, err = child.communicate()
        pytest.fail(f"not done after {GROUP_S} s\n{out[-8000:]}{err[-2000:]}")

    if child.returncode == NO_BROWSER:
        pytest.skip(out.strip())
    assert child.returncode == 0, out[-8000:] + err[-2000:]
