"""Decodes untrusted media in child processes with limits.

A small file can contain gigabytes of white, or hours of work. So everything except small pictures
and plain audio is decoded in a child process with limited address space and processor time, and a
deadline for every job. If it dies, only its job fails, and the next job starts a new process.
Children are started when they are first needed and end when they have been idle for a while. The
results are raw bytes, which are read directly into the final array.

Clips have `DecoderLimits.children` processes; pictures and audio have the same number of separate
ones, so they never wait for a clip. `decoding_order` chooses among the waiting jobs.

Systems without `resource` (Windows) decode in this process, with checks only, which is logged. On
macOS there is a process and a deadline, but no limit of memory.

Everything here except `aside` blocks: call it in a thread; any thread will do.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import importlib.util
import json
import os
import queue
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import IO, TYPE_CHECKING, Any, Final, TypeVar

import numpy as np

from parley import logs
from parley.errors import ContextFull, InferenceFailed, InvalidPayload, ParleyError, TooLarge
from parley.media import jobs
from parley.media.decoding_order import DecodingOrder, Stop
from parley.media.pcm import Pcm
from parley.media.room import ContextRoom

if TYPE_CHECKING:
    from parley.media.image import Pixels
    from parley.media.video import VideoClip
    from parley.settings import LimitSettings

T = TypeVar("T")

owner: contextvars.ContextVar[str] = contextvars.ContextVar("owner", default="")
"""Owner of the files being decoded: the client's key or, without one, the network of its
address."""

_stop: contextvars.ContextVar[Stop | None] = contextvars.ContextVar("stop", default=None)
"""Cancels the jobs of this context; set by `aside`."""

MIB: Final = 1024 * 1024

RESULT_BYTES: Final = 512 * MIB
"""Maximum size of a result; a child that announces more is broken. Each kind of media has its own,
lower limit."""

THREADS: Final = 64
"""Maximum number of callers that wait for a decoder in parallel; a worker has at most as many as
slots."""

PATIENCE: Final = 3.0
"""Factor between wall-clock and processor time: a busy machine gives a job at least a third of a
processor."""

LIGHT_SHARE: Final = 0.5
"""Processor time of a picture or audio file, as a share of that of a clip: 64 million pixels of PNG
take about 3 s."""

HAS_LIMITS: Final = importlib.util.find_spec("resource") is not None

_LENGTH: Final = struct.Struct(">I")
_HEAD_BYTES: Final = 4 * MIB

_log = logs.get(__name__)


@dataclass(frozen=True, slots=True)
class DecoderLimits:
    """Limits of decoding.

    Args:
        children: number of processes for clips, and also for pictures and audio; 0: decode in this
            process, with checks only.
        memory_bytes: of one process, in addition to that of the libraries.
        job_s: processor time for one clip; a picture or audio file gets half. After that, or after
            `PATIENCE` times as much real time, the process is killed.
        wait_s: maximum time for which a job waits for its turn.
        idle_s: time without a job after which a process ends.
        start_s: time limit for starting a process.
    """

    children: int = 1
    memory_bytes: int = 1024 * MIB
    job_s: float = 20.0
    wait_s: float = 60.0
    idle_s: float = 60.0
    start_s: float = 60.0

    @classmethod
    def of(cls, limits: LimitSettings) -> DecoderLimits:
        return cls(
            children=limits.decoders,
            memory_bytes=limits.decoder_mb * MIB,
            job_s=limits.decode_s,
            wait_s=PATIENCE * limits.decode_s,
        )


class Decoder:
    """See the module. `what` in the methods names the input in errors: "The image"."""

    def __init__(self, limits: DecoderLimits | None = None) -> None:
        self.limits = limits or DecoderLimits()
        self._children = self.limits.children if HAS_LIMITS else 0
        if self.limits.children and not HAS_LIMITS:
            _log.warning("decoder_limits_unavailable", system=sys.platform)
        places = max(1, self._children)
        self._clips, self._stills = DecodingOrder(places), DecodingOrder(places)
        self._idle: queue.LifoQueue[_Child] = queue.LifoQueue()
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None
        self._is_closed = False

    def image(
        self,
        data: bytes,
        *,
        limit_pixels: int | None = None,
        keep_pixels: int | None = None,
    ) -> Pixels:
        """A picture, shape (H, W, 3). Small ones are decoded in this process.

        Raises:
            InvalidPayload, TooLarge: see `decode_image`; also if it exceeds the limits.
        """
        from parley.media.image import LIMIT_PIXELS, decode_light_image

        limit_pixels = LIMIT_PIXELS if limit_pixels is None else limit_pixels
        pixels = decode_light_image(data, limit_pixels=limit_pixels, keep_pixels=keep_pixels)
        if pixels is not None:
            return pixels
        options = {"limit_pixels": limit_pixels, "keep_pixels": keep_pixels}
        return jobs.image_from(*self._run("image", "The image", data, options))

    def sound(self, data: bytes, *, limit_s: float, what: str = "The audio") -> Pcm:
        """Decode an audio file of any common format to 16 kHz mono.

        Raises:
            InvalidPayload, TooLarge: see `decode_sound`; also if it exceeds the limits.
        """
        options = {"limit_s": limit_s, "what": what}
        return jobs.sound_from(*self._run("sound", what, data, options))

    def video(
        self, data: bytes, *, stack_frames: int = 1, room: ContextRoom | None = None
    ) -> VideoClip:
        """A clip.

        Raises:
            InvalidPayload, TooLarge, ContextFull: see `decode_video`; also if it exceeds the
                limits.
        """
        options = {"stack_frames": stack_frames, "room": asdict(room) if room else None}
        return jobs.video_from(*self._run("video", "The video", data, options))

    def close(self) -> None:
        """End all idle processes. Safe to repeat."""
        self._is_closed = True
        self._retire(idle_s=0.0)

    # ---- a job -----------------------------------------------------------------------------

    def _run(
        self, kind: str, what: str, data: bytes, options: Mapping[str, Any]
    ) -> tuple[dict[str, Any], list[jobs.Bytes]]:
        if not self._children:
            value, parts = jobs.JOBS[kind](data, **options)
            return value, [part.reshape(-1).view(np.uint8) for part in parts]
        stop = _stop.get() or Stop()
        is_clip = kind == "video"
        limit_s = self.limits.job_s if is_clip else LIGHT_SHARE * self.limits.job_s
        order = self._clips if is_clip else self._stills
        with order.turn(owner.get(), len(data), stop, wait_s=self.limits.wait_s):
            child = self._child()
            try:
                answer, parts = child.work(
                    {"kind": kind, "options": dict(options)}, data, limit_s, stop
                )
            except _Died as death:
                stop.check()
                raise _lethal(what, death, limit_s) from death
            if answer.get("last"):
                child.end()
            else:
                self._put_back(child)
        _raise(answer, what)
        return answer["value"], parts

    def _child(self) -> _Child:
        while True:
            try:
                child = self._idle.get_nowait()
            except queue.Empty:
                break
            if child.process.poll() is None:
                return child
            child.end()
        try:
            return _Child(self.limits)
        except (_Died, OSError) as error:
            _log.error("decoder_start_failed", why=str(error))
            raise InferenceFailed("Media cannot be decoded at present.") from error

    def _put_back(self, child: _Child) -> None:
        child.idle_since_s = time.monotonic()
        self._idle.put(child)
        if self._is_closed:
            self._retire(idle_s=0.0)
            return
        with self._lock:
            if self._timer is None:
                self._timer = threading.Timer(self.limits.idle_s, self._on_timer)
                self._timer.daemon = True
                self._timer.start()

    def _on_timer(self) -> None:
        with self._lock:
            self._timer = None
        self._retire(idle_s=self.limits.idle_s / 2)

    def _retire(self, *, idle_s: float) -> None:
        """End the processes that have been idle for too long."""
        kept: list[_Child] = []
        now_s = time.monotonic()
        while True:
            try:
                child = self._idle.get_nowait()
            except queue.Empty:
                break
            if now_s - child.idle_since_s >= idle_s:
                child.end()
            else:
                kept.append(child)
        for child in reversed(kept):
            self._put_back(child)


def _raise(answer: Mapping[str, Any], what: str) -> None:
    """Raise the error that the job raised in the child process."""
    if "context_full" in answer:
        needed, limit = answer["context_full"]
        raise ContextFull(int(needed), int(limit))
    if "too_large" in answer:
        raise TooLarge(*answer["too_large"])
    if "memory_bytes" in answer:
        raise InvalidPayload(
            f"{what} needs more memory to decode than the {answer['memory_bytes'] // MIB} MiB "
            "it may take."
        )
    if "invalid" in answer:
        raise InvalidPayload(str(answer["invalid"]))


def _lethal(what: str, death: _Died, limit_s: float) -> ParleyError:
    _log.warning("decoder_died", what=what, why=str(death))
    if death.was_late:
        return InvalidPayload(f"{what} takes longer than {limit_s:g} s to decode.")
    return InvalidPayload(f"{what} cannot be decoded: it is damaged, or needs too much memory.")


# ---- a process -----------------------------------------------------------------------------


class _Died(Exception):
    """The process died during a job."""

    was_late = False


class _Child:
    """A child process that runs one job at a time."""

    def __init__(self, limits: DecoderLimits) -> None:
        self.idle_since_s = 0.0
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "parley.media.decoder_child", str(limits.memory_bytes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            env=_environment(),
            # Ctrl-C in a terminal is meant for the server, which ends its children itself.
            start_new_session=True,
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._orders: IO[bytes] = self.process.stdin
        self._answers: IO[bytes] = self.process.stdout
        with self._deadline(limits.start_s):
            self._answer()

    def work(
        self, order: dict[str, Any], data: bytes, limit_s: float, stop: Stop
    ) -> tuple[dict[str, Any], list[jobs.Bytes]]:
        """Run a job within `limit_s` of processor time.

        Raises:
            _Died: the process died, and the job with it.
        """
        head = json.dumps({**order, "size": len(data), "limit_s": limit_s}).encode()
        stop.arm(self.process.kill)
        try:
            with self._deadline(PATIENCE * limit_s):
                try:
                    self._orders.write(_LENGTH.pack(len(head)) + head)
                    view = memoryview(data)
                    while view:
                        view = view[self._orders.write(view) :]
                except OSError as error:
                    raise _Died(self._how_it_ended()) from error
                return self._answer()
        finally:
            stop.arm(lambda: None)

    def end(self) -> None:
        """End the process and wait for it. Safe to repeat."""
        self.process.kill()
        self.process.wait()
        self._orders.close()
        self._answers.close()

    def _answer(self) -> tuple[dict[str, Any], list[jobs.Bytes]]:
        (size,) = _LENGTH.unpack(self._read(_LENGTH.size).tobytes())
        if size > _HEAD_BYTES:
            raise _Died("its answer is invalid")
        answer = json.loads(self._read(size).tobytes())
        sizes = [int(each) for each in answer["sizes"]]
        if min(sizes, default=0) < 0 or sum(sizes) > RESULT_BYTES:
            raise _Died("its answer is too large")
        return answer, [self._read(each) for each in sizes]

    def _read(self, size: int) -> jobs.Bytes:
        """Read exactly this many bytes into their final buffer."""
        whole = np.empty(size, np.uint8)
        view, done = whole.data, 0
        while done < size:
            count = self._answers.readinto(view[done:])  # type: ignore[attr-defined]
            if not count:
                raise _Died(self._how_it_ended())
            done += count
        return whole

    @contextlib.contextmanager
    def _deadline(self, limit_s: float) -> Iterator[None]:
        """Kill the process if the block takes longer; end it if the block fails."""
        was_late = threading.Event()
        timer = threading.Timer(limit_s, self._kill, (was_late,))
        timer.daemon = True
        timer.start()
        try:
            yield
        except BaseException as error:
            timer.cancel()
            self.end()
            if isinstance(error, _Died):
                # Killed here, or by the system for using too much processor time.
                error.was_late = was_late.is_set() or self.process.poll() == -signal.SIGXCPU
            raise
        finally:
            timer.cancel()

    def _kill(self, was_late: threading.Event) -> None:
        was_late.set()
        self.process.kill()

    def _how_it_ended(self) -> str:
        self.process.kill()
        return f"exit status {self.process.wait()}"


def _environment() -> dict[str, str]:
    """Our environment without our settings, which contain secrets, and with few threads, because
    each thread has its own heap."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PARLEY_")}
    return {**kept, "MALLOC_ARENA_MAX": "2", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


# ---- threads to wait in ------------------------------------------------------------------------

_threads: Final = ThreadPoolExecutor(THREADS, thread_name_prefix="decoding")


async def aside(work: Callable[[], T]) -> T:
    """Run decoding work in a separate thread pool; its jobs are cancelled with the task that waits
    for it. A client's files may take minutes, and voice detection and disk reads need the few
    threads of the event loop."""
    stop, run = Stop(), contextvars.copy_context().run
    run(_stop.set, stop)
    try:
        return await asyncio.get_running_loop().run_in_executor(_threads, run, work)
    except asyncio.CancelledError:
        stop.set()
        raise


# ---- the decoder of this process -------------------------------------------------------------

_shared = Decoder()


def shared() -> Decoder:
    """The decoder of this process; all its sessions share the children."""
    return _shared


def use(limits: DecoderLimits) -> Decoder:
    """Set the limits of this process's decoder; ends the previous one's idle children."""
    global _shared
    former, _shared = _shared, Decoder(limits)
    former.close()
    return _shared
