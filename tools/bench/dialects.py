"""`python -m tools.bench dialects`: the worker's CPU time for a second of audio, by dialect.

One session after the other sends silence, or noise, to a separate server, whose parrot computes
almost nothing and which records nothing. The worker's CPU time beyond its idle time is parsing,
base64, resampling, units, voice detection and answers. Dialects that can listen for interruptions
do; duplex is measured without, with one message per second, and with, in pieces of the size that
the others send. Needs /proc (Linux).
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
import numpy.typing as npt
import typer
from tools.bench.processes import cpu_s
from websockets.asyncio.client import ClientConnection, connect

from parley.cli.bench.noises import at_level
from parley.cli.bench.server import server
from parley.errors import SetupError
from parley.media.pcm import Samples

SPEED: Final = 5
"""Factor by which audio is sent faster than real time."""
CHUNK_S: Final = 0.1
WARM_S: Final = 3

PLAIN: Final = "duplex"
ALIKE: Final = "duplex in pieces"

Talk = Callable[[ClientConnection, int, float | None], Awaitable[None]]
"""Sends a number of seconds of silence, or of noise if a level is given."""


def dialects(
    seconds: Annotated[
        int, typer.Option(min=10, max=600, help="Seconds of sound per session.")
    ] = 60,
    rounds: Annotated[
        int, typer.Option(min=1, max=20, help="Number of measurements; the least counts.")
    ] = 3,
    noise_dbfs: Annotated[
        float | None,
        typer.Option(
            min=-90,
            max=-20,
            help="Send noise of this level instead of silence: a fan, a room.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """CPU time of the worker for a second of audio."""
    found = asyncio.run(measure(seconds, rounds, noise_dbfs))
    if as_json:
        typer.echo(json.dumps(found))
        return
    for name, cpu_ms in found.items():
        plain, alike = cpu_ms - found[PLAIN], cpu_ms - found[ALIKE]
        typer.echo(
            f"{name:<28} {cpu_ms:6.2f} ms per second of sound, {plain:+6.2f} to {PLAIN}, "
            f"{alike:+6.2f} to {ALIKE}"
        )


async def measure(
    seconds: int, rounds: int = 1, noise_dbfs: float | None = None
) -> dict[str, float]:
    """Milliseconds of CPU time per second of audio, by name: the minimum of `rounds`, because other
    load on the machine only adds to it."""
    talks: dict[str, tuple[str, Talk]] = {
        PLAIN: ("/ws/duplex/bench", _duplex),
        ALIKE: ("/ws/duplex/bench", _duplex_in_pieces),
        "openai live": ("/v1/live/sessions", _live),
        "openai realtime, committed": ("/v1/realtime?model=m", _realtime(None)),
        "openai realtime, server_vad": ("/v1/realtime?model=m", _realtime({"type": "server_vad"})),
    }
    found: dict[str, float] = {}
    async with server(1, recording=False) as url:
        worker = worker_pid(os.getpid())
        idle_ms = await _idle(worker)
        base = url.replace("http", "ws", 1)
        for name, (path, talk) in [*talks.items()] * rounds:
            async with connect(base + path, max_size=None) as socket:
                # Imports, compilation and loading on first use must not be counted.
                await talk(socket, WARM_S, noise_dbfs)
            await asyncio.sleep(1.0)
            async with connect(base + path, max_size=None) as socket:
                begin_s, before_s = time.monotonic(), cpu_s(worker)
                await talk(socket, seconds, noise_dbfs)
                spent_s = cpu_s(worker) - before_s
                idle_s = idle_ms * (time.monotonic() - begin_s) / 1000
            cpu_ms = round(1000 * (spent_s - idle_s) / seconds, 2)
            found[name] = min(cpu_ms, found.get(name, cpu_ms))
            await asyncio.sleep(1.0)
    return found


async def _idle(worker: int) -> float:
    """Milliseconds of CPU time that the worker needs per second without a session."""
    before_s = cpu_s(worker)
    await asyncio.sleep(3.0)
    return 1000 * (cpu_s(worker) - before_s) / 3


async def _until(socket: ClientConnection, *names: str) -> dict[str, Any]:
    while True:
        message: dict[str, Any] = json.loads(await socket.recv())
        if message["type"] in names:
            return message


def _f32_16k(seconds: float, dbfs: float | None) -> str:
    return _base64(_sound(round(16_000 * seconds), dbfs).astype("<f4"))


def _pcm16_24k(seconds: float, dbfs: float | None) -> str:
    return _base64((32767 * _sound(round(24_000 * seconds), dbfs)).round().astype("<i2"))


def _sound(count: int, dbfs: float | None) -> Samples:
    if dbfs is None:
        return np.zeros(count, np.float32)
    return at_level(np.random.default_rng(1).standard_normal(count), dbfs)


def _base64(samples: npt.NDArray[Any]) -> str:
    return base64.b64encode(samples.tobytes()).decode()


async def _duplex(socket: ClientConnection, seconds: int, dbfs: float | None) -> None:
    await _until(socket, "queue_done")
    await socket.send(json.dumps({"type": "prepare", "record": False}))
    await _until(socket, "prepared")
    sound = _f32_16k(1.0, dbfs)
    for _ in range(seconds):
        await socket.send(json.dumps({"type": "audio_chunk", "audio_base64": sound}))
        await _until(socket, "result")
        await asyncio.sleep(1 / SPEED)


async def _duplex_in_pieces(socket: ClientConnection, seconds: int, dbfs: float | None) -> None:
    await _until(socket, "queue_done")
    await socket.send(
        json.dumps({"type": "prepare", "record": False, "interruption": {"mode": "stop"}})
    )
    await _until(socket, "prepared")
    append = json.dumps({"type": "audio_chunk", "audio_base64": _f32_16k(CHUNK_S, dbfs)})
    await _stream(socket, append, seconds)
    await _until(socket, "result")


async def _live(socket: ClientConnection, seconds: int, dbfs: float | None) -> None:
    await socket.send(json.dumps({"type": "session.start", "session": {}}))
    await _until(socket, "session.started")
    sound = _pcm16_24k(CHUNK_S, dbfs)
    append = json.dumps({"type": "session.input_audio.append", "audio": sound})
    await _stream(socket, append, seconds)
    await socket.send(json.dumps({"type": "session.close"}))
    await _until(socket, "session.closed")


def _realtime(detection: dict[str, Any] | None) -> Talk:
    async def talk(socket: ClientConnection, seconds: int, dbfs: float | None) -> None:
        session = {"type": "realtime", "audio": {"input": {"turn_detection": detection}}}
        await socket.send(json.dumps({"type": "session.update", "session": session}))
        await _until(socket, "session.updated")
        sound = _pcm16_24k(CHUNK_S, dbfs)
        append = json.dumps({"type": "input_audio_buffer.append", "audio": sound})
        await _stream(socket, append, seconds)
        # Its answer confirms that everything before it was read.
        await socket.send(json.dumps({"type": "input_audio_buffer.clear"}))
        await _until(socket, "input_audio_buffer.cleared")

    return talk


async def _stream(socket: ClientConnection, append: str, seconds: int) -> None:
    for _ in range(round(seconds / CHUNK_S)):
        await socket.send(append)
        await asyncio.sleep(CHUNK_S / SPEED)


def worker_pid(root: int) -> int:
    """The worker among the descendants of a process.

    Raises:
        SetupError: none was found.
    """
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended
        parents[int(stat.parent.name)] = int(fields[1])
    for pid in sorted(parents):
        above: int | None = pid
        while above not in (None, 0, root):
            above = parents.get(above) if above is not None else None
        if above == root and "parley.executor.child" in _command(pid):
            return pid
    raise SetupError(
        "The worker's process cannot be seen.", hint="This bench needs /proc, i.e. Linux."
    )


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""
