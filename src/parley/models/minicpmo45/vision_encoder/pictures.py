"""Conversion of pictures to pieces of patches, on the CPU.

The overview and the tiles of a picture are laid out as the vision encoder expects them. Independent
of networks, so any thread may do it: cutting takes 10 ms of CPU time or more, in which the device
would wait, so `MediaThreads` start when a picture is submitted. Source: model.md 4.
"""

from __future__ import annotations

import math
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, TypeVar

import numpy as np
import torch
from PIL import Image as PillowImage
from torch import Tensor

from parley.errors import BadInput
from parley.media.image import Pixels as Pixels
from parley.models.minicpmo45.config import SliceRules
from parley.models.minicpmo45.device import to_device, use_device


@dataclass(frozen=True, slots=True, eq=False)
class Pieces:
    """The pieces of one picture: the overview first, then the tiles row by row.

    Args:
        patches: per piece (3, P, L * P), values in [-1, 1]; patch k occupies columns k * P to
            k * P + P - 1.
        sizes: per piece (rows, columns) in patches.
        grid: (columns, rows) of tiles, None if the picture is not sliced.
    """

    patches: tuple[Tensor, ...]
    sizes: tuple[tuple[int, int], ...]
    grid: tuple[int, int] | None

    @property
    def count(self) -> int:
        return len(self.patches)


def choose_grid(
    width: int, height: int, max_slices: int, resolution: int = 448
) -> tuple[int, int] | None:
    """Number of tiles (columns, rows) for a picture of this size; None: it is not tiled."""
    wanted = min(math.ceil(width * height / (resolution * resolution)), max_slices)
    if wanted <= 1:
        return None
    aim = math.log(width / height)
    best: tuple[int, int] | None = None
    least = math.inf
    for count in (wanted - 1, wanted, wanted + 1):
        if count == 1 or count > max_slices:
            continue
        for columns in range(1, count + 1):
            if count % columns:
                continue
            error = abs(aim - math.log(columns / (count // columns)))
            if error < least:
                best, least = (columns, count // columns), error
    return best


def cut(pixels: Pixels, max_slices: int | None, rules: SliceRules) -> Pieces:
    """Cut a picture into pieces and lay them out as patches, in float32 on the host.

    Args:
        pixels: uint8, shape (height, width, 3).
        max_slices: maximum number of tiles after the overview; None means the processor's own
            limit.

    Raises:
        BadInput: `max_slices` is not positive, or the picture has no area.
    """
    limit = rules.max_slice_nums if max_slices is None else int(max_slices)
    if limit <= 0:
        raise BadInput("max_slice_nums must be at least 1.", field="max_slice_nums")
    if pixels.ndim != 3 or pixels.shape[2] != 3 or 0 in pixels.shape:
        raise BadInput(f"A picture needs shape (height, width, 3), got {pixels.shape}.")
    picture = PillowImage.fromarray(np.ascontiguousarray(pixels))
    width, height = picture.size
    grid = choose_grid(width, height, limit, rules.scale_resolution)
    parts = [_resize(picture, fitting_size(width, height, rules, enlarge=grid is None))]
    if grid is not None:
        columns, rows = grid
        whole = _resize(picture, tiled_size(width, height, grid, rules))
        tile_w, tile_h = whole.width // columns, whole.height // rows
        parts += [
            whole.crop((x * tile_w, y * tile_h, (x + 1) * tile_w, (y + 1) * tile_h))
            for y in range(rows)
            for x in range(columns)
        ]
    patches, sizes = zip(*(_to_patches(part, rules) for part in parts), strict=True)
    return Pieces(tuple(patches), tuple(sizes), grid)


def fitting_size(
    width: float, height: float, rules: SliceRules, *, enlarge: bool
) -> tuple[int, int]:
    """(width, height) near `resolution` squared in area, in whole patches.

    The height follows from the aspect ratio and is truncated; the width follows from that height.
    """
    side = rules.scale_resolution
    if width * height > side * side or enlarge:
        ratio = width / height
        height = int(side / math.sqrt(ratio))
        width = int(height * ratio)
    return _whole(width, rules.patch_size), _whole(height, rules.patch_size)


def tiled_size(
    width: int, height: int, grid: tuple[int, int], rules: SliceRules
) -> tuple[int, int]:
    """(width, height) that divides into `grid` tiles of whole patches."""
    columns, rows = grid
    tile_w, tile_h = fitting_size(
        _whole(width, columns) / columns, _whole(height, rows) / rows, rules, enlarge=True
    )
    return tile_w * columns, tile_h * rows


def _whole(length: float, step: int) -> int:
    return max(round(length / step) * step, step)


def _resize(picture: PillowImage.Image, size: tuple[int, int]) -> PillowImage.Image:
    # Pillow's antialiased bicubic on 8-bit pixels; tensor resizing returns other pixels.
    return picture.resize(size, PillowImage.Resampling.BICUBIC)


def _to_patches(picture: PillowImage.Image, rules: SliceRules) -> tuple[Tensor, tuple[int, int]]:
    side, pixels = rules.patch_size, np.asarray(picture)
    rows, columns = pixels.shape[0] // side, pixels.shape[1] // side
    # (rows, y, columns, x, channel) -> (channel, y, rows, columns, x), while a value is one byte.
    grid = pixels.reshape(rows, side, columns, side, 3).transpose(4, 1, 0, 2, 3)
    values = np.ascontiguousarray(grid).reshape(3, side, -1).astype(np.float32)
    values /= np.float32(255.0)
    values -= np.asarray(rules.norm_mean, np.float32)[:, None, None]
    values /= np.asarray(rules.norm_std, np.float32)[:, None, None]
    return torch.from_numpy(values), (rows, columns)


CPU: Final = torch.device("cpu")

THREADS: Final = max(1, min(4, (os.cpu_count() or 1) - 1))

Found = TypeVar("Found")

_Key = tuple[int, int | None]


class MediaThreads:
    """Threads that cut pictures, send them to the device, and analyse audio; they may be shared.
    Unused results are dropped with their picture.

    Args:
        device, dtype: of the patches.
    """

    def __init__(
        self,
        rules: SliceRules,
        device: torch.device = CPU,
        dtype: torch.dtype = torch.float32,
        *,
        threads: int = THREADS,
    ) -> None:
        self._rules, self._device, self._dtype = rules, device, dtype
        self._threads = ThreadPoolExecutor(
            threads, "parley-media", initializer=use_device, initargs=(device,)
        )
        # A picture may be garbage-collected, and its result dropped, while this thread holds the
        # lock.
        self._lock = threading.RLock()
        self._cuts: dict[_Key, Future[Pieces]] = {}

    def begin_cut(self, pixels: Pixels, limit: int | None) -> None:
        """Start to cut a picture, from any thread; returns immediately."""
        key = (id(pixels), limit)
        with self._lock:
            if key in self._cuts:
                return
            try:
                self._cuts[key] = self._threads.submit(_guarded, partial(self._cut, pixels, limit))
            except RuntimeError:
                # The model is being unloaded; a late step cuts the picture itself.
                return
        # An id is valid as long as its object exists.
        weakref.finalize(pixels, self._forget, key).atexit = False

    def pieces(self, pixels: Pixels, limit: int | None) -> Pieces:
        """Returns a picture's pieces; waits for them, or cuts the picture now.

        Raises:
            BadInput: see `cut`.
        """
        with self._lock:
            found = self._cuts.get((id(pixels), limit))
        return self._cut(pixels, limit) if found is None else found.result()

    def together(self, tasks: Sequence[Callable[[], Found]]) -> list[Found]:
        """Results of independent tasks in order; a single task runs in place."""
        if len(tasks) < 2:
            return [task() for task in tasks]
        return [one.result() for one in [self._threads.submit(_guarded, task) for task in tasks]]

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            self._cuts.clear()

    def _cut(self, pixels: Pixels, limit: int | None) -> Pieces:
        found = cut(pixels, limit, self._rules)
        placed = [to_device(patches.to(self._dtype), self._device) for patches in found.patches]
        return replace(found, patches=tuple(placed))

    def _forget(self, key: _Key) -> None:
        with self._lock:
            self._cuts.pop(key, None)


def _guarded(task: Callable[[], Found]) -> Found:
    with torch.inference_mode():
        return task()
