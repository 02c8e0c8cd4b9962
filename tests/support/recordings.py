"""Recorded sessions made on the spot, without a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from parley.media.image import encode_jpeg
from parley.media.pcm import Pcm
from parley.recording.layout import Folder, Shelf
from parley.recording.recorder import Recorder, Unit, Writer

JPEG = encode_jpeg(np.full((48, 64, 3), 90, np.uint8))


def head(recording_id: str, **more: Any) -> dict[str, Any]:
    return {
        "recording_id": recording_id,
        "app_type": "omni_duplex",
        "dialect": "duplex",
        "created_s": 1_700_000_000.0,
        "worker_id": "w",
        "model": "parrot",
        "title": "",
        "config": {"system_prompt": "Be kind."},
        "asked": {},
        "seed": 1,
        **more,
    }


def tone(seconds: float, rate_hz: int, level: float = 0.3) -> Pcm:
    t = np.arange(round(seconds * rate_hz)) / rate_hz
    return Pcm((level * np.sin(2 * np.pi * 440 * t)).astype(np.float32), rate_hz)


def a_unit(index: int, *, speaks: bool = True, frames: tuple[bytes, ...] = (JPEG,)) -> Unit:
    """Unit `index` came at `index` seconds and was answered 100 ms later."""
    return Unit(
        index=index,
        turn=0,
        receive_ms=1000.0 * (index + 1),
        at_ms=1000.0 * (index + 1) + 100,
        heard=tone(1.0, 16_000, 0.1),
        frames=frames,
        said=tone(1.0, 24_000) if speaks else Pcm.empty(24_000),
        result={"mode": "SPEAK", "text": f"word {index} ", "timing": {"wall_clock_ms": 100.0}}
        if speaks
        else {"mode": "LISTEN", "timing": {"wall_clock_ms": 100.0}},
        more={},
    )


def recorded(data_dir: Path, recording_id: str, *, units: int = 2, **more: Any) -> Folder:
    """A complete duplex recording."""
    writer = Writer()
    recorder = Recorder(Shelf(data_dir).folder(recording_id), writer)
    recorder.begin(head(recording_id, **more), {})
    recorder.ready(1_700_000_000.0)
    for index in range(units):
        recorder.unit(a_unit(index))
    recorder.end("stopped", 1000.0 * (units + 1))
    writer.close()
    return recorder.folder


class Running:
    """A recording that goes on while the block runs."""

    def __init__(self, data_dir: Path, recording_id: str) -> None:
        self._writer = Writer()
        self._recorder = Recorder(Shelf(data_dir).folder(recording_id), self._writer)

    def __enter__(self) -> Folder:
        self._recorder.begin(head(self._recorder.folder.recording_id), {})
        self._recorder.ready(1_700_000_000.0)
        self._recorder.unit(a_unit(0))
        assert self._writer.flush()
        return self._recorder.folder

    def __exit__(self, *exc: object) -> None:
        self._recorder.end("done", 1000.0)
        self._writer.close()
