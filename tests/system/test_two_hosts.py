"""The recipe of docs/do/more-machines.md for several hosts, executed: a gateway and a worker in
folders of their own, its self-made certificate between them."""

import base64
import contextlib
import json
import re
import shlex
import signal
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from tests.support.blocking import eventually, hear, prepare
from tests.support.patience import HANG_S
from tests.support.processes import Process, running
from websockets.sync.client import connect

from parley.media.pcm import Pcm
from parley.media.wav import encode_wav

ROOT = Path(__file__).parents[2]
ON_LOOPBACK = ("--host", "127.0.0.1")
"""What the recipe's `--host 0.0.0.0` becomes in a test; `--no-http` then asks for what is the
default off loopback."""


def recipe(verb: str) -> list[str]:
    text = (ROOT / "docs/do/more-machines.md").read_text()
    (line,) = re.findall(rf"^    parley {verb}\b(.*?)(?:#.*)?$", _section(text), re.MULTILINE)
    return shlex.split(line)


def _section(text: str) -> str:
    return text.split("## Several hosts")[1].split("###")[0]


class TwoHosts:
    """A gateway in one folder, and workers in another."""

    def __init__(self, folder: Path) -> None:
        self.here, self.there = folder / "gateway", folder / "worker"
        for one in (self.here, self.there):
            one.mkdir()
        self.stack: list[Any] = []
        self.gateway = self.start(self.here, "gateway", *recipe("gateway"), "--port", "0")
        ready = json.loads(self.gateway.line_with("gateway ready"))
        self.port = int(ready["url"].rpartition(":")[2])
        said = json.loads(self.gateway.line_with("workers on other hosts"))["message"]
        self.fingerprint = said.split("--fingerprint ")[1].split()[0]
        context = ssl.create_default_context(cafile=str(self.here / "certs/cert.pem"))
        context.check_hostname = False
        self.context = context
        self.http = httpx.Client(
            base_url=f"https://127.0.0.1:{self.port}", verify=context, timeout=HANG_S
        )

    def start(self, folder: Path, verb: str, *flags: str) -> Process:
        kept = running(folder, verb, *flags, *ON_LOOPBACK)
        self.stack.append(kept)
        process: Process = kept.__enter__()
        return process

    def start_worker(self, *more: str, fingerprint: str | None = None) -> Process:
        words = " ".join(recipe("worker"))
        words = words.replace("gateway:8006", f"127.0.0.1:{self.port}")
        words = words.replace("FINGERPRINT", fingerprint or self.fingerprint)
        return self.start(
            self.there, "worker", *words.split(), "--no-http", "--model", "parrot", *more
        )

    def close(self) -> None:
        self.http.close()
        for one in reversed(self.stack):
            one.__exit__(None, None, None)

    def get(self, path: str) -> Any:
        answer = self.http.get(path)
        assert answer.status_code == 200, (path, answer.text)
        return answer.json()

    def chat(self, **request: Any) -> dict[str, Any]:
        """One chat over its socket; its last message."""
        url = f"wss://127.0.0.1:{self.port}/ws/chat?extensions=true"
        with connect(url, ssl=self.context) as socket:
            socket.send(json.dumps({"messages": [{"role": "user", "content": "hi"}], **request}))
            while True:
                message = hear(socket)
                if message["type"] in ("done", "error"):
                    return message


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[TwoHosts]:
    with contextlib.closing(TwoHosts(tmp_path)) as built:
        yield built


def recorded(hosts: TwoHosts) -> list[str]:
    return [one["session_id"] for one in hosts.get("/api/sessions")["recordings"]]


def test_a_call_its_recording_and_a_registered_voice_on_two_hosts(hosts: TwoHosts) -> None:
    hosts.start_worker().line_with("gateway_welcomed")
    (worker,) = hosts.get("/status")["workers"]
    assert worker["url"].startswith("https://")
    assert hosts.get("/status")["certificate_fingerprint"] == hosts.fingerprint

    done = hosts.chat()
    assert done["type"] == "done", done
    (recording_id,) = eventually(lambda: recorded(hosts), "the recording never came")
    eventually(
        lambda: not any((hosts.there / "data/sessions").iterdir()),
        "the worker keeps what was taken over",
    )

    assert hosts.get(f"/api/sessions/{recording_id}")["session_id"] == recording_id
    assert hosts.get(f"/api/sessions/{recording_id}/recording")["turns"]
    shared = hosts.http.post(f"/api/sessions/{recording_id}/share", json={}).json()
    assert hosts.http.get(shared["path"]).status_code == 200
    assert hosts.http.delete(f"/api/sessions/{recording_id}").status_code == 200
    assert hosts.http.get(f"/api/sessions/{recording_id}").status_code == 404
    assert recorded(hosts) == []

    tone = Pcm(np.sin(np.arange(32_000) / 20).astype(np.float32) * 0.3, 16_000)
    added = hosts.http.post(
        "/api/assets/ref_audio",
        json={"name": "Anna", "audio_base64": base64.b64encode(encode_wav(tone)).decode()},
    ).json()
    voice = {"enabled": True, "ref_audio_path": added["id"]}
    assert hosts.chat(tts=voice)["type"] == "done"
    unknown = hosts.chat(tts={**voice, "ref_audio_path": "Berta"})
    assert unknown["type"] == "error"
    assert "no registered voice called 'Berta'" in unknown["error"]


def test_a_recording_outlives_a_gateway_and_a_worker_that_are_killed(hosts: TwoHosts) -> None:
    worker = hosts.start_worker()
    worker.line_with("gateway_welcomed")
    # With the gateway stopped nothing is taken over; the call that runs ends without it.
    url = f"wss://127.0.0.1:{hosts.port}/ws/half_duplex/kept?extensions=true"
    with connect(url, ssl=hosts.context) as socket:
        recording_id = prepare(socket)["recording_session_id"]
        hosts.gateway.send(signal.SIGKILL)
    sessions = hosts.there / "data/sessions"
    eventually((sessions / recording_id / "recording.json").exists, "not completed")
    worker.send(signal.SIGKILL)

    port = str(hosts.port)
    hosts.start(hosts.here, "gateway", "--port", port).line_with("gateway ready")
    assert recorded(hosts) == []
    hosts.start_worker().line_with("gateway_welcomed")

    eventually(lambda: recorded(hosts) == [recording_id], "the recording never came")
    assert hosts.get(f"/api/sessions/{recording_id}/recording")["session_id"] == recording_id


def test_a_worker_without_trust_says_what_to_do(hosts: TwoHosts) -> None:
    address = f"wss://127.0.0.1:{hosts.port}"
    flags = ("worker", "--gateway", address, "--model", "parrot")
    unknown = hosts.start(hosts.there, *flags)
    other = hosts.start_worker(fingerprint="AB" * 32)

    for worker, hint in (
        (unknown, "--fingerprint"),
        (other, "start this worker with the fingerprint"),
    ):
        said = json.loads(worker.line_with("gateway_unreachable"))
        assert said["level"] == "warning"
        assert hint in said["hint"]

    assert hosts.fingerprint in said["why"]
    assert hosts.get("/status")["total_workers"] == 0
