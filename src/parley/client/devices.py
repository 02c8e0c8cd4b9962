"""Microphone and loudspeaker through the optional package `sounddevice` (extra `talk`).

    with Microphone(talk.chunk_samples) as microphone, Loudspeaker() as speaker:
        speaking = asyncio.create_task(talk.send_from(microphone))

The callbacks run on PortAudio's threads and only move samples. Captured audio is passed to the
event loop in a bounded queue that drops the oldest. If the playback buffer is empty, silence is
played, because a gap is better than a stall.
"""

from __future__ import annotations

import asyncio
import importlib
import threading
from collections import deque
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final, Self

import numpy as np

from parley.errors import SetupError
from parley.installation import install_command
from parley.media.pcm import INPUT_RATE_HZ, OUTPUT_RATE_HZ, Pcm, Samples

QUEUE_S: Final = 4.0


def sound_library() -> ModuleType:
    """`sounddevice`, if it works here.

    Raises:
        SetupError: the package, PortAudio or a device is missing; the hint says what to do.
    """
    try:
        return importlib.import_module("sounddevice")
    except ModuleNotFoundError:
        missing = "the package 'sounddevice' is not installed"
        remedy = f"Install it with: {install_command('talk')}"
    except OSError:
        missing = "the PortAudio library was not found"
        remedy = "Install it (Debian: apt install libportaudio2)"
    raise SetupError(
        f"There is no access to a microphone or loudspeaker: {missing}.",
        hint=f"{remedy}; or talk with --file speech.wav or --sample.",
    )


def has_output() -> bool:
    """True if audio can be played here."""
    try:
        sound_library().query_devices(kind="output")
    except Exception:
        # PortAudio has its own error classes, which exist only if it is installed.
        return False
    return True


def _started(device: str, kind: Callable[..., Any], **options: Any) -> Any:
    """A running stream of PortAudio.

    Raises:
        SetupError: it cannot be opened.
    """
    try:
        stream = kind(**options)
        stream.start()
    except Exception as error:
        raise SetupError(
            f"The {device} cannot be opened: {error}.",
            hint="Is one connected, and may this terminal use it? Else: --file, --sample.",
        ) from error
    return stream


class _Device:
    """A stream of PortAudio that runs during a `with` block."""

    _stream: Any

    def __exit__(self, *exc: object) -> None:
        self._stream.stop()
        self._stream.close()


class Microphone(_Device):
    """Chunks of audio at 16 kHz. Use as `with`, inside a running event loop; iterate, or await
    `chunk()`. If they are read too slowly, the oldest are dropped.

    Args:
        chunk_samples: samples per chunk; use `chunk_samples` of the client.
        library: replaces `sounddevice` in tests.
    """

    def __init__(self, chunk_samples: int, library: ModuleType | None = None) -> None:
        self._library = library or sound_library()
        self._chunk_samples = chunk_samples
        most = round(QUEUE_S * INPUT_RATE_HZ / chunk_samples)
        self._chunks: deque[Pcm] = deque(maxlen=most)
        self._more = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def __enter__(self) -> Self:
        self._stream = _started(
            "microphone",
            self._library.InputStream,
            samplerate=INPUT_RATE_HZ,
            channels=1,
            dtype="float32",
            blocksize=self._chunk_samples,
            callback=self._captured,
        )
        return self

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Pcm:
        return await self.chunk()

    async def chunk(self) -> Pcm:
        """Wait for the next full chunk."""
        while not self._chunks:
            self._more.clear()
            await self._more.wait()
        return self._chunks.popleft()

    def _captured(self, samples: Samples, frames: int, time: Any, status: Any) -> None:
        pcm = Pcm(np.array(samples[:, 0], dtype=np.float32), INPUT_RATE_HZ)
        self._loop.call_soon_threadsafe(self._arrived, pcm)

    def _arrived(self, pcm: Pcm) -> None:
        self._chunks.append(pcm)
        self._more.set()


DUCKED: Final = 0.1
"""-20 dB."""


class Loudspeaker(_Device):
    """Plays audio in order, at 24 kHz. Use as `with`."""

    def __init__(self, library: ModuleType | None = None) -> None:
        self._library = library or sound_library()
        self._waiting: deque[Samples] = deque()
        self._lock = threading.Lock()
        self._gain = 1.0

    def __enter__(self) -> Self:
        self._stream = _started(
            "loudspeaker",
            self._library.OutputStream,
            samplerate=OUTPUT_RATE_HZ,
            channels=1,
            dtype="float32",
            callback=self._wanted,
        )
        return self

    def play(self, pcm: Pcm) -> None:
        """Append audio."""
        with self._lock:
            self._waiting.append(pcm.samples)

    def duck(self, *, is_ducked: bool) -> None:
        """Lower the level to a tenth while the user may be interrupting, or restore it."""
        self._gain = DUCKED if is_ducked else 1.0

    def flush(self) -> None:
        """Stop playing immediately."""
        with self._lock:
            self._waiting.clear()

    @property
    def left_s(self) -> float:
        """Seconds of audio that were not played yet."""
        with self._lock:
            return sum(len(part) for part in self._waiting) / OUTPUT_RATE_HZ

    def _wanted(self, out: Samples, frames: int, time: Any, status: Any) -> None:
        filled = 0
        with self._lock:
            while filled < frames and self._waiting:
                part = self._waiting.popleft()
                taken = part[: frames - filled]
                out[filled : filled + len(taken), 0] = self._gain * taken
                filled += len(taken)
                if len(taken) < len(part):
                    self._waiting.appendleft(part[len(taken) :])
        out[filled:, 0] = 0.0
