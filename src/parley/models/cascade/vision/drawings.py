"""Recognises drawings (flat colours on a plain ground) by colour and outline, with fixed rules.

Shapes: pixels (H, W, 3) uint8; masks (h, w) at a size of at most 128. A picture whose ground is not
plain, or that contains more than a few things, is not a drawing; it is left to a classifier.
"""

from __future__ import annotations

import colorsys
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from parley.media.image import Pixels

SIZE = 128
Mask = npt.NDArray[np.bool_]
GROUND_SHARE = 0.4
"""Minimum share of the plain background in a drawing."""
SAME = 48.0
"""Distance of two colours (0 to 441) below which they count as one, because JPEG blurs them."""
SMALLEST = 0.004
"""Spots below this share of the picture are ignored."""
MOST = 6


@dataclass(frozen=True, slots=True)
class Thing:
    """A shape in a drawing."""

    colour: str
    shape: str


def things_in(pixels: Pixels) -> list[Thing] | None:
    """The shapes of a drawing from left to right; None if the picture is not a drawing."""
    step = max(1, -(-max(pixels.shape[:2]) // SIZE))
    small = pixels[::step, ::step].astype(np.float64)
    border = np.concatenate((small[0], small[-1], small[:, 0], small[:, -1]))
    ground = np.median(border, 0)
    is_ground = np.linalg.norm(small - ground, axis=2) < SAME
    if is_ground.mean() < GROUND_SHARE or not _is_plain(border, ground):
        return None
    found: list[tuple[float, Thing]] = []
    for mask in parts(~is_ground):
        if mask.mean() < SMALLEST:
            continue
        colour = _flat_colour(small, mask)
        if colour is None:
            return None
        found.append((float(np.nonzero(mask)[1].mean()), Thing(colour, outline(mask))))
    if not 0 < len(found) <= MOST:
        return None
    return [thing for _, thing in sorted(found, key=lambda one: one[0])]


def _is_plain(border: npt.NDArray[np.float64], ground: npt.NDArray[np.float64]) -> bool:
    near = np.linalg.norm(border - ground, axis=1) < SAME / 2
    return float(near.mean()) > 0.85


def _flat_colour(small: npt.NDArray[np.float64], mask: Mask) -> str | None:
    """The name of a shape's colour; None if it has several."""
    inside = small[mask]
    middle = np.median(inside, 0)
    if (np.linalg.norm(inside - middle, axis=1) < 1.5 * SAME).mean() < 0.75:
        return None
    return name_of(middle)


def name_of(rgb: npt.NDArray[np.float64]) -> str:
    """English name of a colour."""
    hue, saturation, value = colorsys.rgb_to_hsv(*(rgb / 255))
    if value < 0.2:
        return "black"
    if saturation < 0.15:
        return "white" if value > 0.85 else "gray"
    degrees = hue * 360
    if 10 <= degrees < 45 and value < 0.65:
        return "brown"
    if (degrees < 10 or degrees >= 320) and saturation < 0.6 and value > 0.75:
        return "pink"
    for limit, name in ((12, "red"), (42, "orange"), (68, "yellow"), (165, "green"), (255, "blue"),
                        (295, "purple"), (340, "pink")):  # fmt: skip
        if degrees < limit:
            return name
    return "red"


def parts(mask: Mask) -> Iterator[Mask]:
    left = mask.copy()
    height, width = mask.shape
    while left.any():
        start = np.unravel_index(int(left.argmax()), mask.shape)
        part = np.zeros_like(mask)
        waiting = [(int(start[0]), int(start[1]))]
        left[start] = False
        while waiting:
            y, x = waiting.pop()
            part[y, x] = True
            for ny, nx in ((y - 1, x), (y + 1, x), (y, x - 1), (y, x + 1)):
                if 0 <= ny < height and 0 <= nx < width and left[ny, nx]:
                    left[ny, nx] = False
                    waiting.append((ny, nx))
        yield part


def outline(mask: Mask) -> str:
    """Name of a region's outline."""
    rows, columns = np.nonzero(mask)
    box = mask[rows.min() : rows.max() + 1, columns.min() : columns.max() + 1]
    if _has_hole(box):
        return "ring"
    height, width = box.shape
    fill = float(box.mean())
    solid = box.sum() / max(1.0, hull_area(np.stack((columns, rows), 1)))
    is_even = 0.8 < width / height < 1.25
    if solid > 0.9:
        if fill > 0.9:
            return "square" if is_even else "rectangle"
        if fill > 0.68:
            return "circle" if is_even else "oval"
        return "diamond" if _is_widest_in_the_middle(box) else "triangle"
    if solid > 0.8:
        return "heart"
    ends = box[[0, -1]].any(0).mean(), box[:, [0, -1]].any(1).mean()
    return "cross" if min(ends) > 0.2 and fill > 0.35 else "star"


def _has_hole(box: Mask) -> bool:
    """True if the background shows inside."""
    outside = np.pad(~box, 1, constant_values=True)
    pieces = [piece for piece in parts(outside) if piece.sum() > 0.02 * box.size]
    return any(not piece[0, 0] for piece in pieces)


def _is_widest_in_the_middle(box: Mask) -> bool:
    rows, columns = box.sum(1), box.sum(0)
    middle_rows = abs(int(rows.argmax()) / len(rows) - 0.5) < 0.2
    middle_columns = abs(int(columns.argmax()) / len(columns) - 0.5) < 0.2
    return middle_rows and middle_columns


def hull_area(points: npt.NDArray[np.int64]) -> float:
    """Area of the convex hull of the pixels at (x, y) (N, 2)."""
    corners = np.concatenate([points + shift for shift in ((0, 0), (1, 0), (0, 1), (1, 1))])
    ordered = sorted({(int(x), int(y)) for x, y in corners})

    def half(path: list[tuple[int, int]]) -> list[tuple[int, int]]:
        kept: list[tuple[int, int]] = []
        for x, y in path:
            while len(kept) > 1:
                (ax, ay), (bx, by) = kept[-2:]
                if (bx - ax) * (y - ay) - (by - ay) * (x - ax) > 0:
                    break
                kept.pop()
            kept.append((x, y))
        return kept[:-1]

    hull = half(ordered) + half(ordered[::-1])
    xs, ys = np.array(hull, np.float64).T
    return float(abs((xs * np.roll(ys, -1) - ys * np.roll(xs, -1)).sum()) / 2)


def describe(things: list[Thing]) -> str:
    named = [
        f"{'an' if one.colour[0] in 'aeiou' else 'a'} {one.colour} {one.shape}" for one in things
    ]
    return f"I see {', '.join(named)}."
