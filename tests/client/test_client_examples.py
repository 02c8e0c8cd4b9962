"""The example programs and the programs on the client's page, against recorded conversations."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.support.fake_server import Elsewhere, FakeServer
from tests.support.transcripts import Conversation, find

from parley.media import wav
from parley.media.pcm import Pcm

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "do" / "python-client.md").read_text(encoding="utf-8")
PROGRAMS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def playing(request: pytest.FixtureRequest) -> Iterator[FakeServer]:
    elsewhere = Elsewhere(shortened(find(*request.param)))
    yield elsewhere.server
    elsewhere.close()


def shortened(talk: Conversation) -> Conversation:
    """Up to the first finished turn, then the goodbye; all sound of a turn in its first chunk."""
    ends = [
        index
        for index, line in enumerate(talk.lines)
        if (line.message or {}).get("type") == "turn_done" or '"end_of_turn": true' in line.raw
    ]
    if ends:
        heads = talk.lines[: ends[0] + 1]
        sounds = [i for i, line in enumerate(heads) if '"audio_chunk"' in line.raw]
        heads = [line for i, line in enumerate(heads) if i not in sounds[1:]]
        talk.lines = heads + talk.lines[-2:]
    return talk


def run(folder: Path, *command: str) -> str:
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    samples = 0.3 * np.sin(np.arange(24_000) * 0.1)
    wav.save(tmp_path / "speech.wav", Pcm(samples.astype(np.float32), 16_000))
    (tmp_path / "picture.jpg").write_bytes(b"\xff\xd8jpeg")
    return tmp_path


@pytest.mark.parametrize(
    ("playing", "words", "expected"),
    [
        (("chat", "one shot"), ["ask.py"], "A grey square."),
        (("chat", "streamed"), ["stream.py"], "Hello! How can I help?"),
        (("half_duplex", "two turns"), ["half_duplex.py", "speech.wav"], "Hi there."),
        (
            ("realtime_video", "listening, speaking"),
            ["realtime.py", "speech.wav", "picture.jpg"],
            "ended: stopped",
        ),
    ],
    indirect=["playing"],
)
def test_the_example_programs_run(
    playing: FakeServer, words: list[str], expected: str, folder: Path
) -> None:
    program, *files = words

    out = run(folder, str(ROOT / "examples" / program), *files, playing.url)

    assert expected in out


@pytest.mark.parametrize(
    ("playing", "number", "expected"),
    [
        (("chat", "one shot"), 0, "A grey square."),
        (("chat", "streamed"), 1, "Hello! How can I help?"),
        (("half_duplex", "two turns"), 2, "Hi there."),
    ],
    indirect=["playing"],
)
def test_the_programs_on_the_page_run(
    playing: FakeServer, number: int, expected: str, folder: Path
) -> None:
    program = PROGRAMS[number].replace("https://localhost:8006", playing.url)

    assert expected in run(folder, "-c", program)


def test_every_program_on_the_page_is_python() -> None:
    for program in PROGRAMS:
        compile(program, "python-client.md", "exec")
