"""The format on disk: scripted sessions leave exactly the files kept in `data/format.json`.

Recordings outlive versions, so a change of any field is a change of the format. After an intended
one, write the file again with `python -m tests.recording.test_recording_format`.
"""

import asyncio
import hashlib
import json
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from tests.support import units
from tests.support.recordings import recordings, started, tone

from parley.clock import ManualClock
from parley.dialects.events import (
    AnswerDone,
    AudioInput,
    ChatRequested,
    Clip,
    Content,
    DuplexSetup,
    Event,
    Failed,
    HalfDuplexSetup,
    InputCommitted,
    OutputDelta,
    Picture,
    SessionEnded,
    SessionInterrupted,
    SessionPaused,
    SessionReady,
    SessionResumed,
    Sound,
    TurnCompleted,
    UnitDone,
)
from parley.errors import InferenceFailed
from parley.media.wav import encode_wav
from parley.protocol.content import Message
from parley.protocol.kinds import Kind
from parley.protocol.values import DuplexConfig, Generation, TextPart
from parley.recording import lines, store
from parley.recording.finish import recover
from parley.recording.layout import RecordingFolders
from parley.results import PrefillResult

KEPT = Path(__file__).parent / "data/format.json"
PNG = b"\x89PNG\r\n\x1a\n and so on"
JPEG = b"\xff\xd8\xff and so on"
RAW = Sound(np.linspace(-0.5, 0.5, 800, dtype="<f4").tobytes())


def wav() -> Sound:
    """Each is a value of its own, as those that clients send are."""
    return Sound(encode_wav(tone(0.1, 16_000)))


Script = Iterable[tuple[float, Event]]
Dialect = Literal["chat", "half_duplex", "duplex"]


def _unit(index: int, *, speaks: bool, ends: bool = False, heard: bool = True) -> UnitDone:
    given = AudioInput(tone(0.05, 16_000), (JPEG, PNG)[: index + 1], index == 0, index or None)
    return UnitDone(
        index=index,
        result=units.result(
            is_listen=not speaks,
            text=f"wörd {index}" if speaks else "",
            pcm=tone(0.04, 24_000) if speaks else None,
            end_of_turn=ends,
            context_tokens=100 + index,
            cost_encode_ms=1.23456,
            cost_llm_ms=2,
            cost_tts_ms=3.5,
            cost_all_ms=7.0,
            text_tokens=4,
            speech_tokens=25 if speaks else 0,
            prefilled=PrefillResult(0, 0, vision_slices=1, vision_tokens=64),
        ),
        wall_ms=12.3456,
        unit=given if heard else None,
    )


def duplex() -> Script:
    setup = DuplexSetup("Be kind.", wav(), RAW, "anna", 2, DuplexConfig())
    yield 10.0, setup
    yield 10.5, SessionReady(prompt_tokens=17)
    yield 11.5, _unit(0, speaks=False)
    yield 12.5, _unit(1, speaks=True)
    yield 13.0, SessionInterrupted()
    yield 13.5, _unit(2, speaks=True, ends=True)
    yield 14.0, SessionPaused(60.0)
    yield 15.0, SessionResumed()
    yield 15.5, _unit(3, speaks=False, heard=False)
    yield 16.0, Failed(InferenceFailed())
    yield 16.5, _unit(4, speaks=True)
    yield 17.0, SessionEnded("stopped")


def half_duplex() -> Script:
    system = (TextPart("Talk\nlike"), wav(), TextPart("this."))
    yield 10.0, HalfDuplexSetup(system, RAW, None, idle_s=90.0)
    yield 10.5, SessionReady(prompt_tokens=3, idle_s=90.0)
    yield 12.0, InputCommitted("i1", tone(0.2, 16_000), 900)
    yield 12.0, started("i1", speech_ms=900)
    yield 12.4, OutputDelta(0, "Hello ", tone(0.03, 24_000))
    yield 12.6, OutputDelta(1, "", tone(0.05, 24_000))
    yield 12.7, OutputDelta(2, "there", None, is_final=True)
    yield 12.8, TurnCompleted(0, "Hello there", audio_ms=80)
    yield 14.0, InputCommitted("i2", tone(0.1, 16_000), 300)
    yield 14.0, started("i2", speech_ms=300)
    yield 14.5, OutputDelta(0, "Once", tone(0.03, 24_000))
    yield 14.6, TurnCompleted(1, "Once", audio_ms=30, is_interrupted=True)
    yield 15.0, InputCommitted("i3", tone(0.1, 16_000), 300)
    yield 15.0, started("i3", speech_ms=300)
    yield 15.2, TurnCompleted(2, "", has_failed=True)
    yield 16.0, InputCommitted("i4", tone(0.1, 16_000), 300)
    yield 16.0, started("i4", speech_ms=300)
    yield 16.1, OutputDelta(0, "Cut o", None)
    yield 76.2, SessionEnded("disconnected", elapsed_s=60.0)


def chat() -> Script:
    history: tuple[Message[Content], ...] = (
        Message("system", (TextPart("Be brief."), wav())),
        Message("user", (TextPart("And this?"), Picture(JPEG))),
        Message("assistant", (TextPart("A picture."),)),
        Message("user", (TextPart("What  is\nthis?"), Picture(PNG), RAW, wav(), Clip(b"film", 2))),
    )
    yield (
        10.0,
        ChatRequested(
            history,
            wants_speech=True,
            voice=wav(),
            language="de",
            generation=Generation(say="A test."),
            seed=5,
        ),
    )
    yield 10.3, OutputDelta(0, "A ", None)
    yield 10.6, OutputDelta(1, "test.", None, is_final=True)
    yield 10.9, AnswerDone("A test.", 5, 321, tone(0.05, 24_000), is_stopped=True)
    yield 11.0, SessionEnded("done")


SCRIPTS = {"duplex": duplex, "half_duplex": half_duplex, "chat": chat}
TASKS: dict[str, Any] = {
    "duplex": Kind.OMNI_DUPLEX,
    "half_duplex": Kind.HALF_DUPLEX,
    "chat": Kind.CHAT,
}


async def _record(data_dir: Path, dialect: Dialect) -> dict[str, Any]:
    """Run a script; returns every file by its path: JSON as it is, media by length and hash."""
    clock = ManualClock()
    kept = recordings(data_dir, worker_id="w1", clock=clock)
    recording = kept.begin(session_id="s1", dialect=dialect, kind=TASKS[dialect])
    assert recording is not None
    recording.head.seed = 12345
    for at_s, event in SCRIPTS[dialect]():
        recording.observe(event, at_s)
        if isinstance(event, ChatRequested | HalfDuplexSetup | DuplexSetup):
            await recording.recording_id()
    kept.close()
    (folder,) = RecordingFolders(data_dir)
    files = {path.relative_to(folder.path).as_posix(): path for path in folder.files()}
    return {name: _content(path, folder.recording_id) for name, path in files.items()}


def _content(path: Path, recording_id: str) -> Any:
    data = path.read_bytes()
    if path.suffix not in (".json", ".jsonl"):
        return [len(data), hashlib.sha256(data).hexdigest()[:16]]
    text = data.decode().replace(recording_id, "ID")
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in text.splitlines()]
    return json.loads(text)


@pytest.mark.parametrize("dialect", SCRIPTS)
async def test_a_scripted_session_leaves_the_files_that_are_kept(tmp_path, dialect):
    kept = json.loads(KEPT.read_text())[dialect]

    found = await _record(tmp_path, dialect)

    assert found.keys() == kept.keys()
    for name, content in kept.items():
        assert found[name] == content, name


@pytest.mark.parametrize("dialect", SCRIPTS)
async def test_a_journal_of_another_format_or_without_a_head_is_refused(tmp_path, dialect):
    await _record(tmp_path, dialect)
    (folder,) = RecordingFolders(tmp_path)
    head, *more = folder.journal.read_text().splitlines(keepends=True)
    folder.journal.write_text("".join([json.dumps(json.loads(head) | {"version": 1}), "\n", *more]))

    with pytest.raises(lines.OtherJournal, match="format 1, and this version reads format 3"):
        lines.read(folder.journal)
    assert store.read_recording(folder) is not None
    folder.recording.unlink()
    assert store.read_recording(folder) is None
    assert recover(RecordingFolders(tmp_path)) == []
    folder.journal.write_text("".join(more))
    with pytest.raises(lines.NoHead):
        lines.read(folder.journal)


async def _write() -> None:
    made = {}
    for dialect in SCRIPTS:
        with tempfile.TemporaryDirectory() as folder:
            made[dialect] = await _record(Path(folder), dialect)  # type: ignore[arg-type]
    KEPT.write_text(json.dumps(made, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    sys.exit(asyncio.run(_write()))
