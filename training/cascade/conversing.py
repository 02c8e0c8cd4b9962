"""Asking a running server over its sockets: typed, in turns by voice, and in full duplex.

Everything goes as fast as the server takes it, so a call of ten minutes lasts as long as its
computing; times are of the clock between a message and its answer.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from websockets.sync.client import ClientConnection, connect

Samples = npt.NDArray[np.float32]
SECOND = 16_000
LIMIT_S = 120.0


@dataclass
class Server:
    """A server of our own: its address, how long it took to be ready, and its processes."""

    url: str
    ready_s: float
    process: subprocess.Popen[str] | None = None

    def memory_mb(self) -> float:
        """Resident memory of the largest process, which is the worker."""
        import psutil

        assert self.process is not None
        family = psutil.Process(self.process.pid).children(recursive=True)
        return max(one.memory_info().rss for one in family) / 1e6


@contextlib.contextmanager
def serving(folder: Path, *flags: str) -> Iterator[Server]:
    """`parley serve` on a free port of this machine, from ready to its end."""
    command = [sys.executable, "-m", "parley", "serve", "--http", "--host", "127.0.0.1"]
    log = folder / "server.log"
    began = time.perf_counter()
    process = subprocess.Popen(
        [*command, "--port", "0", *flags],
        cwd=folder,
        env={**os.environ, "PARLEY_STORAGE__RECORDING": "false", "PYTHONUNBUFFERED": "1"},
        stdout=log.open("w"),
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        found = None
        while found is None:
            if process.poll() is not None:
                raise RuntimeError(f"the server did not start: {log.read_text()}")
            time.sleep(0.02)
            found = re.search(r"ready after [\d.]+ s: http://\S+?:(\d+)", log.read_text())
        ready_s = time.perf_counter() - began
        yield Server(f"ws://127.0.0.1:{found[1]}", ready_s, process)
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()


def sound64(samples: Samples) -> str:
    return base64.b64encode(np.ascontiguousarray(samples, "<f4").tobytes()).decode()


def quiet(seconds: float, seed: int = 0) -> Samples:
    """The noise of a quiet room, 60 dB below full."""
    noise = np.random.default_rng(seed).standard_normal(round(seconds * SECOND))
    return (1e-3 * noise).astype(np.float32)


class Wire:
    """A socket that speaks JSON."""

    def __init__(self, url: str) -> None:
        self.socket: ClientConnection = connect(url, max_size=None, open_timeout=30)

    def say(self, **message: Any) -> None:
        self.socket.send(json.dumps(message))

    def hear(self) -> dict[str, Any]:
        message: dict[str, Any] = json.loads(self.socket.recv(LIMIT_S))
        if message["type"] == "error":
            raise RuntimeError(str(message))
        return message

    def until(self, *types: str) -> dict[str, Any]:
        while (message := self.hear())["type"] not in types:
            continue
        return message


def typed(server: Server, turns: list[str]) -> list[str]:
    """The answers to typed turns, each asked with everything before it."""
    history: list[dict[str, str]] = []
    answers = []
    for text in turns:
        history.append({"role": "user", "content": text})
        wire = Wire(server.url + "/ws/chat")
        wire.say(messages=history, record=False)
        answers.append(wire.until("done")["text"])
        history.append({"role": "assistant", "content": answers[-1]})
        wire.socket.close()
    return answers


def told_of(server: Server, picture: bytes, text: str) -> str:
    """The answer to a question about a picture (a file's bytes)."""
    wire = Wire(server.url + "/ws/chat")
    content = [{"type": "image", "data": base64.b64encode(picture).decode()},
               {"type": "text", "text": text}]  # fmt: skip
    wire.say(messages=[{"role": "user", "content": content}], record=False)
    answer: str = wire.until("done")["text"]
    wire.socket.close()
    return answer


def heard(server: Server, samples: Samples) -> str:
    """What the server hears in a sound."""
    wire = Wire(server.url + "/ws/chat?extensions=true")
    content = [{"type": "audio", "data": sound64(samples)}]
    wire.say(
        messages=[{"role": "user", "content": content}], record=False, extensions=True,
        generation={"max_new_tokens": 1},
    )  # fmt: skip
    text: str = wire.until("done").get("heard", "")
    wire.socket.close()
    return text


class Turns:
    """A half-duplex session."""

    def __init__(self, server: Server, name: str) -> None:
        self.wire = Wire(f"{server.url}/ws/half_duplex/hdx_{name}")
        self.wire.until("queue_done")
        self.wire.say(type="prepare", record=False)
        self.wire.until("prepared")

    def ask(self, speech: Samples) -> dict[str, Any]:
        """Says something; text of the answer, and milliseconds to its first sound."""
        sound = np.concatenate((quiet(0.6), speech, quiet(1.6)))
        for start in range(0, len(sound), SECOND // 2):
            self.wire.say(
                type="audio_chunk", audio_base64=sound64(sound[start : start + SECOND // 2])
            )
        self.wire.until("generating")
        began, first = time.perf_counter(), None
        while (message := self.wire.hear())["type"] != "turn_done":
            if first is None and message["type"] == "chunk" and message.get("audio_data"):
                first = 1000 * (time.perf_counter() - began)
        return {"answer": message["text"], "first_ms": first}

    def close(self) -> None:
        self.wire.say(type="stop")
        self.wire.until("stopped")
        self.wire.socket.close()


class Call:
    """A full-duplex session, unit by unit."""

    def __init__(self, server: Server, name: str) -> None:
        self.wire = Wire(f"{server.url}/ws/duplex/adx_{name}")
        self.wire.until("queue_done")
        self.wire.say(type="prepare", record=False)
        self.wire.until("prepared")
        self.units_ms: list[float] = []
        self._seed = 0

    def unit(self, sound: Samples | None = None) -> dict[str, Any]:
        """One second; None is a quiet room."""
        self._seed += 1
        base = quiet(1, self._seed)
        if sound is not None:
            base[: len(sound)] += sound
        began = time.perf_counter()
        self.wire.say(type="audio_chunk", audio_base64=sound64(base))
        message = self.wire.until("result")
        self.units_ms.append(1000 * (time.perf_counter() - began))
        return message

    def ask(self, speech: Samples, *, lead_s: float = 0.1, patience: int = 6) -> str:
        """Says something and listens to the answer to its end; "" for none within `patience`."""
        sound = np.concatenate((np.zeros(round(lead_s * SECOND), np.float32), speech))
        said, waited, speaks = "", 0, False
        starts = list(range(0, len(sound), SECOND))
        while waited < (30 if speaks else patience):
            piece = sound[starts[0] : starts[0] + SECOND] if starts else None
            waited += not starts
            del starts[:1]
            message = self.unit(piece)
            speaks = speaks or not message["is_listen"]
            said += message.get("text") or ""
            if speaks and (message.get("end_of_turn") or message["is_listen"]):
                break
        return said.strip()

    def close(self) -> None:
        self.wire.say(type="stop")
        self.wire.until("stopped")
        self.wire.socket.close()
