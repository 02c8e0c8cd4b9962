"""`python -m tools.bench recording`: the cost of recording a unit.

A unit here is one second of input and output audio and a camera picture of typical size. The
session's side is the time spent on the event loop; the writer's side is the time that a thread
needs until the unit is on disk.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import tempfile
import time
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
import typer

from parley import logs
from parley.cli.bench.figures import Figures
from parley.clock import SystemClock
from parley.dialects.events import AudioInput, DuplexSetup, SessionEnded, SessionReady, UnitDone
from parley.gateway.maintenance import refresh
from parley.gateway.state import State
from parley.media.pcm import INPUT_RATE_HZ, OUTPUT_RATE_HZ, Pcm
from parley.protocol.kinds import Ending, Kind
from parley.recording import timeline
from parley.recording.layout import RecordingFolders
from parley.recording.lines import HeadLine
from parley.recording.recorder import Recordings
from parley.results import UnitResult
from parley.settings import StorageSettings

FRAME_BYTES = 30_000
"""Size of a 640 by 480 JPEG picture of a room."""

PAGE = 100


def recording(
    units: Annotated[int, typer.Option(min=10, max=5000, help="Units of one session.")] = 300,
    recordings: Annotated[int, typer.Option(min=1, max=100_000, help="Recordings listed.")] = 1000,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure the cost of recording a unit, and the speed of lists."""
    logs.configure(level="warning", style="text")
    with tempfile.TemporaryDirectory(prefix="parley-bench-") as folder:
        figures = asyncio.run(measure(Path(folder), units, recordings))
    if as_json:
        typer.echo(json.dumps({name: dataclasses.asdict(one) for name, one in figures.items()}))
        return
    for name, one in figures.items():
        typer.echo(f"{name:<28} {one}")


async def measure(folder: Path, units: int, recordings: int) -> dict[str, Figures]:
    """All figures, by name."""
    # Runs on the event loop, like a session: a recording reports lost entries there.
    session_ms, written_ms = record(folder, units)
    first_ms, again_ms = await listed(folder, recordings)
    return {
        "unit, session's side": Figures.of(session_ms),
        "unit, until written": Figures.of(written_ms),
        f"first list of {recordings}": Figures.of(first_ms),
        f"further lists of {recordings}": Figures.of(again_ms),
    }


def record(folder: Path, units: int) -> tuple[list[float], list[float]]:
    """Milliseconds per unit for the session, and until it is written. Called on an event loop."""
    storage = StorageSettings(data_dir=folder, min_free_gb=0)
    kept = Recordings(storage, worker_id="bench", model="none", clock=SystemClock())
    one = kept.begin(session_id="bench", dialect="duplex", kind=Kind.OMNI_DUPLEX)
    assert one is not None
    one.observe(DuplexSetup("Be kind."), time.monotonic())
    one.observe(SessionReady(), time.monotonic())
    kept.writer.flush()
    generator = np.random.default_rng(0)
    session_ms: list[float] = []
    written_ms: list[float] = []
    for index in range(units):
        event = _unit(index, generator)
        began_s = time.perf_counter()
        one.observe(event, time.monotonic())
        session_ms.append(1000 * (time.perf_counter() - began_s))
        # Units arrive once a second, so the writer has always finished the previous one.
        kept.writer.flush()
        written_ms.append(1000 * (time.perf_counter() - began_s))
    one.observe(SessionEnded("done"), time.monotonic())
    kept.close()
    return session_ms, written_ms


def _unit(index: int, generator: np.random.Generator) -> UnitDone:
    heard = generator.uniform(-0.3, 0.3, INPUT_RATE_HZ).astype(np.float32)
    said = generator.uniform(-0.3, 0.3, OUTPUT_RATE_HZ).astype(np.float32)
    frame = b"\xff\xd8" + generator.bytes(FRAME_BYTES)
    return UnitDone(
        index=index,
        result=UnitResult(
            ending=Ending.SPOKE,
            is_listen=False,
            text="some words ",
            pcm=Pcm(said, OUTPUT_RATE_HZ),
            end_of_turn=index % 7 == 6,
            text_tokens=10,
            speech_tokens=25,
            context_tokens=100 * index,
            cost_encode_ms=30.0,
            cost_llm_ms=100.0,
            cost_all_ms=200.0,
        ),
        unit=AudioInput(Pcm(heard, INPUT_RATE_HZ), (frame,)),
    )


async def listed(folder: Path, recordings: int) -> tuple[list[float], list[float]]:
    """Durations in milliseconds of the first list, which reads every folder, and of later ones."""
    folders = RecordingFolders(folder / "many")
    await asyncio.to_thread(_fill, folders, recordings)
    durations_ms: list[float] = []
    async with State(folders.data_dir / "state.db") as state:
        for _ in range(20):
            began_s = time.perf_counter()
            await refresh(state, folders)
            total, _ = await state.recordings(limit=PAGE)
            durations_ms.append(1000 * (time.perf_counter() - began_s))
            assert total == recordings
    return durations_ms[:1], durations_ms[1:]


def _fill(folders: RecordingFolders, recordings: int) -> None:
    for number in range(recordings):
        folder = folders.folder(f"chat_{number:024x}")
        folder.path.mkdir(parents=True)
        head = HeadLine(
            recording_id=folder.recording_id,
            app_type=Kind.CHAT,
            dialect="chat",
            created_s=1_700_000_000.0 + number,
            worker_id="bench",
            model="none",
            title="A question of usual length about something",
            config=msgspec.Raw(msgspec.json.encode({"system_prompt": "Be kind. " * 20})),
            seed=0,
        )
        meta = timeline.open_meta(head)
        meta.ended_at, meta.duration_s = timeline.iso(1.8e9), 12.0
        folder.meta.write_bytes(timeline.encode_file(meta))
