"""Pictures cut and sound analysed beside the engine thread.

Cutting a picture takes a processor 10 ms and more, in which the device would wait. It needs nothing
of a conversation, so it begins when a picture is handed in, on threads of its own, and is usually
done when its step comes. Unused results are forgotten with the picture.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Final, TypeVar

import torch

from parley.media.image import Pixels
from parley.models.minicpmo45.config import SliceRules
from parley.models.minicpmo45.vision_encoder.pictures import Pieces, cut

THREADS: Final = max(1, min(4, (os.cpu_count() or 1) - 1))

Found = TypeVar("Found")

_Key = tuple[int, int | None]


class MediaThreads:
    """Threads for what comes before the encoders; harmless to share."""

    def __init__(self, rules: SliceRules, threads: int = THREADS) -> None:
        self._rules = rules
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="parley-media")
        # A picture may be collected, and be forgotten, while this very thread holds the lock.
        self._lock = threading.RLock()
        self._cuts: dict[_Key, Future[Pieces]] = {}

    def begin_cut(self, pixels: Pixels, limit: int | None) -> None:
        """Begin to cut a picture; any thread, returns at once."""
        key = (id(pixels), limit)
        with self._lock:
            if key in self._cuts:
                return
            try:
                self._cuts[key] = self._threads.submit(_guarded, partial(self._cut, pixels, limit))
            except RuntimeError:
                # The model is being unloaded; a late step cuts it itself.
                return
        # An id is good for as long as its object lives.
        weakref.finalize(pixels, self._forget, key).atexit = False

    def pieces(self, pixels: Pixels, limit: int | None) -> Pieces:
        """A picture's pieces; waits for them, or cuts it now.

        Raises:
            BadInput: see `cut`.
        """
        with self._lock:
            found = self._cuts.get((id(pixels), limit))
        return self._cut(pixels, limit) if found is None else found.result()

    def together(self, tasks: Sequence[Callable[[], Found]]) -> list[Found]:
        """What some independent tasks return, in order; a single one runs where it is."""
        if len(tasks) < 2:
            return [task() for task in tasks]
        return [one.result() for one in [self._threads.submit(_guarded, task) for task in tasks]]

    def close(self) -> None:
        """Take nothing more."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            self._cuts.clear()

    def _cut(self, pixels: Pixels, limit: int | None) -> Pieces:
        return cut(pixels, limit, self._rules)

    def _forget(self, key: _Key) -> None:
        with self._lock:
            self._cuts.pop(key, None)


def _guarded(task: Callable[[], Found]) -> Found:
    with torch.inference_mode():
        return task()
