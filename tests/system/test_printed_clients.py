"""The programs printed in the published texts, run as printed against the whole server.

What stands around them is in `clients/shims`: an address, and the parts of a page that node lacks.
"""

import json
import os
import re
import shutil
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.support import speech
from tests.support.patience import PROCESS_S
from tests.support.programs import ended
from tests.support.stack import RunningStack, running_stack

from parley.media import wav
from parley.media.pcm import INPUT_RATE_HZ, Pcm, join, to_float32_bytes
from parley.media.resample import resample

CLIENTS = Path(__file__).parent / "clients"

needs_node = pytest.mark.skipif(
    shutil.which("node") is None, reason="node is not installed; the JavaScript programs need it"
)


@pytest.fixture
async def server() -> AsyncIterator[Any]:
    async with running_stack(model="parrot", slots=1) as running:
        yield running


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A working folder with the sound files the programs name."""
    words = speech.say("Good morning, how are you today?")
    pause = Pcm.silence(INPUT_RATE_HZ // 2, INPUT_RATE_HZ)
    # The server ignores the first half second: microphones click when they open.
    spoken = join([pause, pause, words, pause, pause, pause], INPUT_RATE_HZ)
    wav.save(tmp_path / "test_audio.wav", spoken)
    # Another rate than the program asks for, as people have it lying about.
    wav.save(tmp_path / "ref.wav", resample(words, 44_100))
    (tmp_path / "speech.f32").write_bytes(to_float32_bytes(spoken))
    (tmp_path / "ref.f32").write_bytes(to_float32_bytes(words))
    return tmp_path


async def run(*command: str, folder: Path, ws_url: str) -> tuple[str, str]:
    """What the program wrote to standard output and standard error; it must exit cleanly."""
    environment = {
        **os.environ,
        "SERVER_WS_URL": ws_url,
        "PYTHONPATH": str(CLIENTS / "shims"),
        "PYTHONUNBUFFERED": "1",
        "SSL_CERT_FILE": str(folder / "cert.pem"),
        "NODE_EXTRA_CA_CERTS": str(folder / "cert.pem"),
        "SPEECH": str(folder / "speech.f32"),
        "REFERENCE": str(folder / "ref.f32"),
    }
    code, out, err = await ended(*command, limit_s=PROCESS_S, cwd=folder, environment=environment)
    assert code == 0, err
    return out, err


async def run_in_node(program: str, folder: Path, ws_url: str) -> list[dict[str, Any]]:
    """What the stand-in page reported about the program."""
    command = ["node", "--experimental-websocket", "--no-warnings"]
    out, _ = await run(
        *command,
        str(CLIENTS / "shims" / "browser.cjs"),
        str(CLIENTS / program),
        folder=folder,
        ws_url=ws_url,
    )
    return [json.loads(line) for line in out.splitlines()]


# The parrot gives back what it heard; "Hello!" is written, so these answers have no sound.


async def test_the_printed_python_chat_program_streams_text(
    server: RunningStack, folder: Path
) -> None:
    program = str(CLIENTS / "chat_printed.py")

    out, _ = await run(sys.executable, program, folder=folder, ws_url=server.ws_url)

    assert re.search(r"^Prefill done, [1-9]\d* input tokens$", out, re.MULTILINE)
    assert re.search(r"^Streaming: .+$", out, re.MULTILINE)
    assert re.search(r"^Final: .+$", out, re.MULTILINE)
    assert re.search(r"^Tokens: [1-9]\d* in, [1-9]\d* out$", out, re.MULTILINE)


async def test_the_printed_python_half_duplex_program_has_its_turn(
    server: RunningStack, folder: Path
) -> None:
    program = str(CLIENTS / "half_duplex_printed.py")

    out, _ = await run(sys.executable, program, folder=folder, ws_url=server.ws_url)

    order = [
        out.find("Session ready: hdx_"),
        out.find("Speaking..."),
        out.find("Stopped speaking"),
        out.find("Generating ("),
        out.find("--- Turn 0 done ---"),
    ]
    assert -1 not in order, out
    assert order == sorted(order)


@needs_node
async def test_the_printed_javascript_chat_program_gets_its_answer(
    server: RunningStack, folder: Path
) -> None:
    lines = await run_in_node("chat_printed.js", folder, server.ws_url)

    kinds = [line["type"] for line in lines if not line["type"].startswith("(")]
    assert kinds[0] == "prefill_done"
    assert kinds[-1] == "done"
    assert set(kinds[1:-1]) == {"chunk"}
    assert lines[-1] == {"type": "(closed)", "code": 1000}


@needs_node
async def test_the_printed_javascript_half_duplex_program_talks_and_stops(
    server: RunningStack, folder: Path
) -> None:
    lines = await run_in_node("half_duplex_printed.js", folder, server.ws_url)

    kinds = [line["type"] for line in lines if not line["type"].startswith("(")]
    first = kinds[: kinds.index("turn_done") + 1]
    assert first[:5] == ["queue_done", "prepared", "vad_state", "vad_state", "generating"]
    assert set(first[5:-1]) == {"chunk"}
    assert any(line["type"] == "(played)" for line in lines)
    assert lines[-1]["type"] == "(closed)"
