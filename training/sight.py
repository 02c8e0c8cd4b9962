"""Pictures as the eyes receive them: resized as the image processor does, with dense labels.

`B` pictures of one shape, `P` patches, `Q` queries.
"""

from __future__ import annotations

import io
import math
from random import Random

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from training import pictures, words
from training.pictures import SIGNS, Pixels, Scene

PATCH = 14
COLOR_NAMES = tuple(words.COLORS)
NOTHING = 0
"""Label of places without a thing; colours and signs count from 1."""
SIZES = {
    (224, 224): 8, (320, 240): 8, (240, 320): 4, (426, 240): 3, (448, 448): 1, (640, 480): 1,
}  # fmt: skip
"""Picture sizes (a step has one) and their weights: squares, cameras, a telephone held upright."""


def target_size(width: int, height: int, side: int = 112) -> tuple[int, int]:
    """Size that a picture is resized to, in pixels, a multiple of the patch in both directions.
    Source: the large model's image processor, without tiles."""
    ratio = width / height
    target_height = int(side / math.sqrt(ratio))
    target_width = int(target_height * ratio)
    return tuple(max(round(v / PATCH) * PATCH, PATCH) for v in (target_width, target_height))  # type: ignore[return-value]


def as_tensor(pixels: Pixels, side: int = 112) -> Tensor:
    """uint8 (H, W, 3) to normalised (3, 14 h, 14 w)."""
    image = Image.fromarray(pixels)
    image = image.resize(target_size(*image.size, side), Image.Resampling.BICUBIC)
    return torch.from_numpy(np.asarray(image, np.float32)).permute(2, 0, 1) / 127.5 - 1


def compressed(pixels: Pixels, quality: int) -> Pixels:
    """Through JPEG and back."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=quality)
    return np.asarray(Image.open(buffer).convert("RGB"))


def picture(scene: Scene, random: Random, size: tuple[int, int]) -> Pixels:
    """The scene drawn, half of the time compressed."""
    pixels = pictures.draw(scene, random, size=size)
    return compressed(pixels, random.randint(40, 95)) if random.random() < 0.4 else pixels


def labels(scene: Scene, rows: int, columns: int, radius: float = 1.0) -> tuple[Tensor, Tensor]:
    """Colour and sign at each place of a grid (rows x columns), row-major; 0 where nothing is."""
    colors = torch.zeros(rows * columns, dtype=torch.long)
    signs = torch.zeros(rows * columns, dtype=torch.long)
    y = ((torch.arange(rows) + 0.5) / rows)[:, None].expand(rows, columns).flatten()
    x = ((torch.arange(columns) + 0.5) / columns)[None].expand(rows, columns).flatten()
    for thing in scene.things:
        # Radii are in parts of the shorter side.
        scale = min(rows, columns)
        distance = (((x - thing.x) * columns) ** 2 + ((y - thing.y) * rows) ** 2).sqrt() / scale
        inside = distance < thing.radius * radius
        inside[distance.argmin()] = True
        colors[inside] = 1 + COLOR_NAMES.index(thing.color)
        signs[inside] = 1 + SIGNS.index(thing.sign)
    return colors, signs


def cell_labels(scene: Scene, grid: int) -> tuple[Tensor, Tensor]:
    """Colour and sign of the thing whose centre lies in each cell of a square grid."""
    colors = torch.zeros(grid * grid, dtype=torch.long)
    signs = torch.zeros(grid * grid, dtype=torch.long)
    for thing in scene.things:
        cell = min(int(thing.y * grid), grid - 1) * grid + min(int(thing.x * grid), grid - 1)
        colors[cell] = 1 + COLOR_NAMES.index(thing.color)
        signs[cell] = 1 + SIGNS.index(thing.sign)
    return colors, signs
