"""Recorded sessions, created in the test without a model."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from tests.support import units

from parley.clock import SystemClock
from parley.dialects.events import (
    AudioInput,
    ResponseRequested,
    SessionReady,
    TurnStarted,
    UnitDone,
)
from parley.media.image import encode_jpeg
from parley.media.pcm import Pcm
from parley.protocol.kinds import Kind
from parley.recording.journal import Journal
from parley.recording.journal_writer import JournalWriter
from parley.recording.layout import Folder, RecordingFolders
from parley.recording.lines import EntryLine, HeadLine, KeptSound, RecordedEntry
from parley.recording.recorder import Recordings
from parley.session_log.entries import Recorded
from parley.settings import StorageSettings

JPEG = encode_jpeg(np.full((48, 64, 3), 90, np.uint8))


def recordings(
    data_dir: Path, *, exact_inputs: bool = True, min_free_gb: float = 0.0, **more: Any
) -> Recordings:
    """The recordings of a worker with the parrot in this folder."""
    storage = StorageSettings(data_dir=data_dir, exact_inputs=exact_inputs, min_free_gb=min_free_gb)
    given = {"worker_id": "w", "model": "parrot", "clock": SystemClock(), **more}
    return Recordings(storage, **given)


def head(recording_id: str, *, config: Any = None, **more: Any) -> HeadLine:
    facts: dict[str, Any] = {
        "app_type": Kind.OMNI_DUPLEX,
        "dialect": "duplex",
        "created_s": 1_700_000_000.0,
        "worker_id": "w",
        "model": "parrot",
        "title": "",
        "seed": 1,
        **more,
    }
    shown = {"system_prompt": "Be kind."} if config is None else config
    return HeadLine(
        recording_id=recording_id,
        config=msgspec.Raw(msgspec.json.encode(shown)),
        **facts,
    )


def tone(seconds: float, rate_hz: int, level: float = 0.3) -> Pcm:
    t = np.arange(round(seconds * rate_hz)) / rate_hz
    return Pcm((level * np.sin(2 * np.pi * 440 * t)).astype(np.float32), rate_hz)


def entry(at_ms: float, what: Recorded, *sounds: KeptSound, **more: Any) -> RecordedEntry:
    """An entry as it is read from a journal."""
    line = EntryLine(at_ms, msgspec.Raw(b"null"), sounds=list(sounds), **more)
    return RecordedEntry(line, what)


def a_unit(
    index: int, *, speaks: bool = True, frames: tuple[bytes, ...] = (JPEG,)
) -> tuple[UnitDone, float]:
    """Unit `index`, which arrived `index` seconds after the start, and its time in milliseconds;
    the answer took 100 ms."""
    heard, said = tone(1.0, 16_000, 0.1), tone(1.0, 24_000)
    result = units.result(
        is_listen=not speaks, text=f"word {index} " if speaks else "", pcm=said if speaks else None
    )
    done = UnitDone(index, result, wall_ms=100.0, unit=AudioInput(heard, frames))
    return done, 1000.0 * (index + 1) + 100


def started(asked_id: str | None = None, *, speech_ms: int = 0) -> TurnStarted:
    """The event that the answer to an item starts."""
    return TurnStarted("r1", "a1", asked_id, True, ResponseRequested(), speech_ms)


def begun(
    folder: Folder,
    writer: JournalWriter,
    *,
    finished: Callable[[Folder], None] = lambda folder: None,
    **more: Any,
) -> Journal:
    """A journal with its head and the time at which the session was ready."""
    journal = Journal(folder, writer, finished=finished)
    journal.begin(head(folder.recording_id, **more))
    journal.put(SessionReady(), 0.0, ready_s=1_700_000_000.0)
    return journal


def recorded(data_dir: Path, recording_id: str, *, units: int = 2, **more: Any) -> Folder:
    """A complete duplex recording."""
    writer = JournalWriter()
    journal = begun(RecordingFolders(data_dir).folder(recording_id), writer, **more)
    for index in range(units):
        journal.put(*a_unit(index))
    journal.end("stopped", 1000.0 * (units + 1))
    writer.close()
    return journal.folder


class Running:
    """A recording that is live within the context."""

    def __init__(self, data_dir: Path, recording_id: str) -> None:
        self._writer = JournalWriter()
        self._folder = RecordingFolders(data_dir).folder(recording_id)
        self._journal = Journal(self._folder, self._writer)

    def __enter__(self) -> Folder:
        self._journal = begun(self._folder, self._writer)
        self._journal.put(*a_unit(0))
        assert self._writer.flush()
        return self._folder

    def __exit__(self, *exc: object) -> None:
        self._journal.end("done", 1000.0)
        self._writer.close()
