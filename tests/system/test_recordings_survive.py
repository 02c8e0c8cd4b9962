"""A worker is killed in the middle of a recorded session: all that was said is there afterwards."""

from __future__ import annotations

import base64
import json
import re
import signal
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from tests.support.patience import HANG_S
from tests.support.processes import Process, running
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from parley.recording.layout import RecordingFolders

pytestmark = pytest.mark.slow


def unit(seed: int) -> str:
    samples = np.random.default_rng(seed).uniform(-0.3, 0.3, 16_000).astype("<f4")
    message = {"type": "audio_chunk", "audio_base64": base64.b64encode(samples.tobytes()).decode()}
    return json.dumps(message)


def hear(socket: ClientConnection, kind: str) -> dict[str, Any]:
    while True:
        message = json.loads(socket.recv(timeout=HANG_S))
        if message["type"] == kind:
            return dict(message)


def ask(port: int, path: str) -> dict[str, Any]:
    url = f"http://127.0.0.1:{port}/api/sessions/{path}"
    with urllib.request.urlopen(url, timeout=HANG_S) as answer:
        return dict(json.loads(answer.read()))


def until(condition: Any) -> Any:
    began = time.monotonic()
    while True:
        found = condition()
        if found:
            return found
        assert time.monotonic() - began < HANG_S
        time.sleep(0.1)


def test_a_killed_workers_recording_is_there_after_a_restart(tmp_path: Path) -> None:
    with running(tmp_path, "gateway", "--http", "--host", "127.0.0.1", "--port", "0") as gateway:
        port = _port(gateway)
        flags = ("--gateway", f"http://127.0.0.1:{port}", "--model", "parrot", "--vad", "energy")
        with running(tmp_path, "worker", *flags) as worker:
            worker.line_with("gateway_welcomed")
            with connect(f"ws://127.0.0.1:{port}/ws/duplex/omni_1") as socket:
                hear(socket, "queue_done")
                socket.send(json.dumps({"type": "prepare"}))
                recording_id = hear(socket, "prepared")["recording_session_id"]
                for seed in range(4):
                    socket.send(unit(seed))
                    hear(socket, "result")
                folder = RecordingFolders(tmp_path / "data").folder(recording_id)
                until(lambda: folder.journal.read_bytes().count(b'"kind":"unit"') == 4)
                assert ask(port, f"{recording_id}/recording") == {
                    "status": "recording",
                    "session_id": recording_id,
                }
                worker.send(signal.SIGKILL)
                with pytest.raises(ConnectionClosed):
                    hear(socket, "never")
        with running(tmp_path, "worker", *flags) as successor:
            successor.line_with("gateway_welcomed")
            recording = until(lambda: _recording(port, recording_id))
            meta = ask(port, recording_id)
            until(lambda: ask(port, recording_id).get("replay", {}).get("state") == "done")

    assert len(recording["chunks"]) == 4
    assert meta["end_reason"] == "crashed"
    assert meta["recovered"]
    assert soundfile.info(folder.replay_wav).duration > 4


def _recording(port: int, recording_id: str) -> dict[str, Any] | None:
    answer = ask(port, f"{recording_id}/recording")
    return answer if "chunks" in answer else None


def _port(gateway: Process) -> int:
    line = gateway.line_with("gateway ready")
    (port,) = re.findall(r"https?://[^:]+:(\d+)", json.loads(line)["url"])
    return int(port)
