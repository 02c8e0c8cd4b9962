"""Render queue: renders recordings one after another, each in its own low-priority process.

Rendering runs in a separate process because it takes time and decodes images of clients: it must
neither slow down sessions nor crash the server. The queue is bounded; a recording that does not fit
is skipped and can be requested again.
"""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
from collections.abc import Iterable
from typing import Any, Final, Literal

from parley import logs
from parley.recording.layout import Folder, write_atomically
from parley.recording.store import replay_state

WAITING_LIMIT: Final = 1000
MAKING_LIMIT_S: Final = 1800.0
"""Time limit of a render. Half an hour of video takes a few minutes, so a longer render hangs."""

Progress = Literal["queued", "running", "done", "failed"]

log = logs.get(__name__)


class RenderQueue:
    """The thread that starts and supervises the processes; started by the first request."""

    def __init__(self) -> None:
        self._waiting: queue.Queue[Folder | None] = queue.Queue(WAITING_LIMIT)
        self._queued: set[str] = set()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._closing = threading.Event()

    def put(self, folder: Folder) -> bool:
        """Queue a recording; returns False if the queue is full. May be called in any thread; never
        blocks for long."""
        with self._lock:
            if self._closing.is_set():
                return False
            if folder.recording_id in self._queued:
                return True
            self._queued.add(folder.recording_id)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="render-queue", daemon=True)
                self._thread.start()
        # Before it is queued, because reports of the process must overwrite this.
        set_state(folder, "queued", 0.0)
        try:
            self._waiting.put_nowait(folder)
        except queue.Full:
            log.warning("render_skipped", recording_id=folder.recording_id)
            folder.replay_state.unlink(missing_ok=True)
            with self._lock:
                self._queued.discard(folder.recording_id)
            return False
        return True

    def close(self) -> None:
        """Stop rendering. Queued recordings are skipped and can be requested again. Safe to
        repeat."""
        with self._lock:
            self._closing.set()
            process, thread = self._process, self._thread
        if process is not None:
            process.terminate()
        if thread is not None:
            self._waiting.put(None)
            thread.join(10)

    def _run(self) -> None:
        while (folder := self._waiting.get()) is not None:
            try:
                self._make(folder)
            except OSError as error:
                log.error("render_failed", recording_id=folder.recording_id, why=str(error))
            finally:
                with self._lock:
                    self._queued.discard(folder.recording_id)
                self._waiting.task_done()

    def _make(self, folder: Folder) -> None:
        if self._closing.is_set() or not folder.path.is_dir():
            return
        command = [sys.executable, "-P", "-m", "parley.recording.render", str(folder.path)]
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        with self._lock:
            self._process = process
            if self._closing.is_set():
                process.terminate()
        try:
            _, said = process.communicate(timeout=MAKING_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            _, said = process.communicate()
        finally:
            with self._lock:
                self._process = None
        if process.returncode != 0 and not self._closing.is_set() and folder.path.is_dir():
            why = said.decode(errors="replace").strip().splitlines()[-1:] or ["killed"]
            log.error("render_failed", recording_id=folder.recording_id, why=why[0][:500])
            set_state(folder, "failed", 0.0)


def pending(folders: Iterable[Folder]) -> list[Folder]:
    """Recordings whose render was requested and has not finished. If another process is still
    rendering one, the new process notices and exits."""
    states = ((folder, replay_state(folder) or {}) for folder in folders)
    return [folder for folder, each in states if each.get("state") in ("queued", "running")]


def set_state(folder: Folder, state: Progress, share: float, **facts: Any) -> None:
    """Write the progress of a render; `share` from 0 to 1."""
    value = {"state": state, "progress": round(share, 3), **facts}
    try:
        write_atomically(folder.replay_state, json.dumps(value).encode())
    except FileNotFoundError:
        # It was deleted meanwhile.
        return
