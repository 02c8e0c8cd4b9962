"""Hands what happens in a session to the one thread that writes files.

`Writer` is that thread, one per worker. Its queue is bounded in bytes; a line that finds it full is
lost, which is counted, logged and written down in the journal: a recording may have a hole, but
inference never waits for a disk. `Recorder` is one session's side: every method only puts its
arguments in the queue. `_Files` is the other side, and touches files in the writer thread only.

Order within a session: media first, then the journal line that names it, so that a crash leaves no
line without its file.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import queue
import shutil
import threading
import time
import wave
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

import numpy as np

from parley import logs
from parley.errors import InvalidPayload
from parley.media.pcm import Pcm, from_float32_bytes
from parley.media.wav import encode_wav
from parley.recording import layout, timeline
from parley.recording.finish import finish
from parley.recording.layout import Folder

QUEUE_BYTES: Final = 64 * 1024 * 1024
"""About fifteen minutes of one duplex session's sound."""

JOB_BYTES: Final = 1024
"""What a job without media counts."""

SYNC_EVERY_S: Final = 5.0
"""A crash of the process loses nothing that was written; one of the machine, at most this much."""

_log = logs.get(__name__)


class Writer:
    """The thread. `put` never blocks; `close` waits until everything is written.

    Args:
        limit_bytes: media that may wait; a job that goes beyond is refused.
    """

    def __init__(self, *, limit_bytes: int = QUEUE_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._waiting_bytes = 0
        self._lock = threading.Lock()
        self._jobs: queue.SimpleQueue[tuple[Callable[[], None], int, str] | None] = (
            queue.SimpleQueue()
        )
        self.lost = 0
        self._thread = threading.Thread(target=self._run, name="recorder", daemon=True)
        self._thread.start()

    @property
    def waiting_bytes(self) -> int:
        return self._waiting_bytes

    def put(
        self, job: Callable[[], None], size: int, *, session_id: str, must: bool = False
    ) -> bool:
        """Have a job done; False when it was refused because too much waits.

        Args:
            must: for the few small jobs without which the rest makes no sense.
        """
        with self._lock:
            if not must and self._waiting_bytes + size > self._limit_bytes:
                self.lost += 1
                return False
            self._waiting_bytes += size
        self._jobs.put((job, size, session_id))
        return True

    def flush(self, limit_s: float = 30.0) -> bool:
        """Wait until what was put so far is done; whether it was in time."""
        done = threading.Event()
        self.put(done.set, 0, session_id="", must=True)
        return done.wait(limit_s)

    def close(self, limit_s: float = 30.0) -> None:
        """Finish what waits and end the thread. Safe to repeat."""
        self._jobs.put(None)
        self._thread.join(limit_s)

    def _run(self) -> None:
        while (item := self._jobs.get()) is not None:
            job, size, session_id = item
            try:
                job()
            except Exception:
                # The edge: one recording fails, the thread and the others go on.
                _log.exception("recording failed", session_id=session_id)
            finally:
                with self._lock:
                    self._waiting_bytes -= size


@dataclass(frozen=True, slots=True)
class Sent:
    """Raw float32 samples as a client sent them; becomes a WAV file for listening."""

    data: bytes
    rate_hz: int


Media = Mapping[str, bytes | Pcm | Sent]
"""Path within the folder → content."""


@dataclass(frozen=True, slots=True)
class Unit:
    """What the recorder keeps of a unit. Times in milliseconds since the session was ready.

    Args:
        result: `recording.json`'s `result` without its sound.
        more: what a replay needs besides: `force_listen`, `max_slices`.
    """

    index: int
    turn: int
    receive_ms: float
    at_ms: float
    heard: Pcm
    frames: tuple[bytes, ...]
    said: Pcm
    result: Mapping[str, Any]
    more: Mapping[str, Any]


class Recorder:
    """One session's side. Belongs to the event loop; nothing here waits or raises.

    Args:
        keeps_inputs: whether sound is kept exactly as the model gets it, besides what is there to
            listen to.
        finished: called in the writer thread when `recording.json` is there.
    """

    def __init__(
        self,
        folder: Folder,
        writer: Writer,
        *,
        keeps_inputs: bool = True,
        finished: Callable[[Folder], None] = lambda folder: None,
    ) -> None:
        self.folder = folder
        self._writer = writer
        self._files = _Files(folder, keeps_inputs=keeps_inputs)
        self._finished = finished
        self._lost = 0
        self._has_begun = False
        self._is_over = False

    @property
    def lost(self) -> int:
        """Entries that were not written because too much waited."""
        return self._lost

    def begin(self, head: Mapping[str, Any], media: Media) -> None:
        """Make the folder, or change how the session was asked for. `media`: path → content."""
        if self._is_over:
            return
        files, is_first = self._files, not self._has_begun
        self._has_begun = True

        def job() -> None:
            files.open(head, is_first=is_first)
            for path, content in media.items():
                files.write(path, content)
            files.line({"kind": "head", "version": timeline.VERSION, **head})

        self._put(job, JOB_BYTES, must=True)

    def ready(self, start_s: float, **facts: Any) -> None:
        """The conversation begins; `start_s` in unix seconds."""
        line = {"kind": "ready", "at_ms": 0.0, "start_ts": start_s, **facts}
        self._put(lambda: self._files.line(line), JOB_BYTES, must=True)

    def unit(self, unit: Unit) -> None:
        """A unit is complete."""
        size = unit.heard.samples.nbytes + unit.said.samples.nbytes + sum(map(len, unit.frames))
        self._put(lambda: self._files.unit(unit), size + JOB_BYTES)

    def turn(self, line: Mapping[str, Any], media: Media, inputs: Sequence[Pcm] = ()) -> None:
        """Something was asked. `inputs`: sound as the model gets it, kept exactly."""
        size = sum(_size(content) for content in media.values())
        self._put(lambda: self._files.turn(line, media, inputs), size + JOB_BYTES)

    def said(self, turn: int, text: str, pcm: Pcm | None, at_ms: float) -> None:
        """A piece of an answer."""
        size = 0 if pcm is None else pcm.samples.nbytes
        self._put(lambda: self._files.said(turn, text, pcm, at_ms), size + JOB_BYTES)

    def answer(self, turn: int, line: Mapping[str, Any]) -> None:
        """An answer is complete."""
        self._put(lambda: self._files.answer(turn, line), JOB_BYTES, must=True)

    def note(self, name: str, at_ms: float, **facts: Any) -> None:
        """Something happened that is neither unit nor turn."""
        line = {"kind": "note", "name": name, "at_ms": round(at_ms, 1), **facts}
        self._put(lambda: self._files.line(line), JOB_BYTES)

    def end(self, reason: str, at_ms: float) -> None:
        """The session is over; `recording.json` is made. Safe to repeat."""
        if self._is_over or not self._has_begun:
            return
        lost, files = self._lost, self._files

        def job() -> None:
            if lost:
                files.line({"kind": "lost", "count": lost})
            files.line({"kind": "end", "reason": reason, "at_ms": round(at_ms, 1)})
            files.close()
            if finish(files.folder, is_owner=True) is not None:
                self._finished(files.folder)

        self._put(job, JOB_BYTES, must=True)
        self._is_over = True

    def discard(self) -> None:
        """The client does not want to be recorded after all: keep nothing."""
        if self._has_begun and not self._is_over:
            self._put(self._files.discard, JOB_BYTES, must=True)
        self._is_over = True

    def _put(self, job: Callable[[], None], size: int, *, must: bool = False) -> None:
        if self._is_over:
            return
        recording_id = self.folder.recording_id
        if not self._writer.put(job, size, session_id=recording_id, must=must):
            self._lost += 1
            # 1, 2, 4, 8 …: a disk that stands still must not fill the log as well.
            if self._lost & (self._lost - 1) == 0:
                _log.warning("recording loses entries", session_id=recording_id, lost=self._lost)


class _Files:
    """The writer thread's side of one session."""

    def __init__(self, folder: Folder, *, keeps_inputs: bool) -> None:
        self.folder = folder
        self._keeps_inputs = keeps_inputs
        self._journal: IO[bytes] | None = None
        self._inputs: IO[bytes] | None = None
        self._input_samples = 0
        self._turn_sound: tuple[int, wave.Wave_write, IO[bytes]] | None = None
        self._synced_s = 0.0

    def open(self, head: Mapping[str, Any], *, is_first: bool) -> None:
        if is_first:
            # Never into a folder that is there: another recording's files must not be touched.
            self.folder.path.mkdir(parents=True, exist_ok=False, mode=0o750)
            self._journal = open(self.folder.journal, "xb")  # noqa: SIM115  closed in `close`
            fcntl.flock(self._journal, fcntl.LOCK_EX)
        layout.write_atomically(self.folder.meta, _json(timeline.open_meta(head)))

    def line(self, line: Mapping[str, Any]) -> None:
        journal = self._journal
        if journal is None:
            return
        journal.write(timeline.encode(line))
        journal.flush()
        now_s = time.monotonic()
        if now_s - self._synced_s > SYNC_EVERY_S:
            self._synced_s = now_s
            os.fdatasync(journal.fileno())

    def write(self, path: str, content: bytes | Pcm | Sent) -> None:
        """A file of its own. Sound becomes 16 bit; what was sent as a file stays as it is."""
        if isinstance(content, Sent):
            try:
                content = from_float32_bytes(content.data, content.rate_hz)
            except InvalidPayload:
                # The session refuses this sound too, and says so; there is nothing to listen to.
                return
        target = self.folder.path / path
        target.parent.mkdir(exist_ok=True)
        target.write_bytes(encode_wav(content) if isinstance(content, Pcm) else content)

    def keep(self, pcm: Pcm) -> list[int | None]:
        """Samples as they were fed; gives where they are: first sample (None: not kept), number,
        rate."""
        if not self._keeps_inputs:
            return [None, len(pcm), pcm.rate_hz]
        if self._inputs is None:
            self._inputs = open(self.folder.inputs, "xb")  # noqa: SIM115  closed in `close`
        self._inputs.write(np.ascontiguousarray(pcm.samples, "<f4").data)
        self._inputs.flush()
        first = self._input_samples
        self._input_samples += len(pcm)
        return [first, len(pcm), pcm.rate_hz]

    def unit(self, unit: Unit) -> None:
        line: dict[str, Any] = {
            "kind": "unit",
            "index": unit.index,
            "at_ms": round(unit.at_ms, 1),
            "receive_ts_ms": round(unit.receive_ms, 1),
        }
        result = dict(unit.result)
        if len(unit.heard):
            line["user_audio"] = layout.user_audio(unit.index)
            self.write(line["user_audio"], unit.heard)
            line["samples"] = self.keep(unit.heard)
        frames = []
        for number, frame in enumerate(unit.frames):
            path = layout.user_frame(unit.index, number, layout.picture_extension(frame))
            self.write(path, frame)
            frames.append(path)
        if frames:
            line["user_frame"], line["frames"] = frames[0], frames
        if len(unit.said):
            result["ai_audio"] = layout.unit_audio(unit.turn, unit.index)
            result["ai_audio_duration_ms"] = unit.said.duration_ms
            self.write(result["ai_audio"], unit.said)
            line["said_sha256"] = fingerprint(unit.said)
        line["result"] = result
        line.update(unit.more)
        self.line(line)

    def turn(self, line: Mapping[str, Any], media: Media, inputs: Sequence[Pcm]) -> None:
        for path, content in media.items():
            self.write(path, content)
        self.line({"kind": "turn", **line, "samples": [self.keep(pcm) for pcm in inputs]})

    def said(self, turn: int, text: str, pcm: Pcm | None, at_ms: float) -> None:
        line: dict[str, Any] = {"kind": "said", "turn_index": turn, "at_ms": round(at_ms, 1)}
        if text:
            line["text"] = text
        if pcm is not None and len(pcm):
            line["audio"] = layout.turn_audio(turn)
            line["audio_ms"] = round(1000 * pcm.duration_s, 2)
            line["said_sha256"] = fingerprint(pcm)
            self._append_sound(turn, self.folder.path / line["audio"], pcm)
        self.line(line)

    def answer(self, turn: int, line: Mapping[str, Any]) -> None:
        self._close_turn()
        self.line({"kind": "answer", "turn_index": turn, **line})

    def close(self) -> None:
        """Close all files; the journal last, because its lock says that the session runs."""
        self._close_turn()
        for file in (self._inputs, self._journal):
            if file is not None:
                file.flush()
                os.fdatasync(file.fileno())
                file.close()
        self._inputs = self._journal = None

    def discard(self) -> None:
        self.close()
        remove(self.folder.path)

    def _append_sound(self, turn: int, path: Path, pcm: Pcm) -> None:
        """`wave` corrects the length in the header with every piece, so the file can be played
        whenever the process may die."""
        if self._turn_sound is None or self._turn_sound[0] != turn:
            self._close_turn()
            path.parent.mkdir(exist_ok=True)
            raw: IO[bytes] = open(path, "xb")  # noqa: SIM115  closed in `_close_turn`
            sound = wave.open(raw, "wb")  # noqa: SIM115
            sound.setnchannels(1)
            sound.setsampwidth(2)
            sound.setframerate(pcm.rate_hz)
            self._turn_sound = (turn, sound, raw)
        _, sound, raw = self._turn_sound
        sound.writeframes(to_int16(pcm).tobytes())
        raw.flush()

    def _close_turn(self) -> None:
        if self._turn_sound is not None:
            _, sound, raw = self._turn_sound
            self._turn_sound = None
            sound.close()
            raw.close()


def fingerprint(pcm: Pcm) -> str:
    """Of the samples as the model made them, before they became 16 bit."""
    return hashlib.sha256(np.ascontiguousarray(pcm.samples, "<f4").data).hexdigest()


def to_int16(pcm: Pcm) -> np.ndarray[Any, np.dtype[np.int16]]:
    """Rounded; ±1 becomes ±32767."""
    return np.rint(np.clip(pcm.samples, -1.0, 1.0) * 32767).astype("<i2")


def remove(path: Path) -> None:
    """Remove a recording's folder. Renamed first, so that it is gone as a whole or not at all."""
    doomed = path.with_name(f".{path.name}.deleted")
    os.replace(path, doomed)
    shutil.rmtree(doomed)


def _size(content: bytes | Pcm | Sent) -> int:
    match content:
        case Pcm():
            return content.samples.nbytes
        case Sent():
            return len(content.data)
        case bytes():
            return len(content)


def _json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False, indent=1).encode()
