"""EfficientNet-Lite0: one of a thousand classes for a photograph, and its probability.

Shapes: pixels (H, W, 3) uint8; activations (1, C, H, W). Batch norms are folded into the
convolutions when the weights are packed (`training/cascade/eyes.py`). Strided convolutions pad as
the published network does: the spare row and column at the end.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from parley.media.image import Pixels
from parley.models.cascade import store
from parley.models.cascade.vision import drawings

SIZE = 224
CROP = 0.875
"""Share of the shorter side that is used."""
SURE, LIKELY, GUESS = 0.6, 0.3, 0.12
"""Minimum probabilities for naming a class, with decreasing certainty."""

# Repeats, kernel, stride, expansion, channels out. Source: the published Lite0 builder.
STAGES = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)


@dataclass(frozen=True, slots=True)
class Seen:
    """An object class and its probability."""

    name: str
    probability: float


def padded(x: Tensor, kernel: int, stride: int) -> Tensor:
    """Pad so that a convolution returns the size divided by the stride, rounded up."""
    spare = max((-(-x.shape[-1] // stride) - 1) * stride + kernel - x.shape[-1], 0)
    return functional.pad(x, (spare // 2, spare - spare // 2) * 2)


class Photographs:
    """The bundled vision: a classifier with its class names, and rules for drawings.

    Args:
        folder: contains `eyes-*.safetensors` and `eyes.txt`, one name per class.
    """

    def __init__(self, folder: Path) -> None:
        self._weights = store.read(folder, "eyes")
        self.names = (folder / "eyes.txt").read_text("utf-8").splitlines()

    @torch.inference_mode()
    def classify(self, pixels: Pixels, count: int = 3) -> list[Seen]:
        """The likeliest classes, best first."""
        x = self._layer("stem", inputs(pixels), 3, 2)
        block = 0
        for repeats, kernel, stride, expansion, channels in STAGES:
            for index in range(repeats):
                x = self._block(x, block, kernel, stride if index == 0 else 1, expansion, channels)
                block += 1
        x = self._layer("head", x, 1, 1).mean((2, 3))
        scores = functional.linear(x, self._weights["out.weight"], self._weights["out.bias"])
        chances, ids = torch.softmax(scores[0], -1).topk(count)
        pairs = zip(ids.tolist(), chances.tolist(), strict=True)
        return [Seen(self.names[one], chance) for one, chance in pairs]

    def _block(
        self, x: Tensor, number: int, kernel: int, stride: int, expansion: int, channels: int
    ) -> Tensor:
        y = self._layer(f"{number}.expand", x, 1, 1) if expansion > 1 else x
        y = self._layer(f"{number}.depth", y, kernel, stride, groups=y.shape[1])
        y = self._layer(f"{number}.project", y, 1, 1, is_bounded=False)
        return x + y if stride == 1 and x.shape[1] == channels else y

    def _layer(
        self, name: str, x: Tensor, kernel: int, stride: int, *, groups: int = 1,
        is_bounded: bool = True,
    ) -> Tensor:  # fmt: skip
        weight = self._weights[name + ".weight"].view(-1, x.shape[1] // groups, kernel, kernel)
        bias = self._weights[name + ".bias"]
        y = functional.conv2d(padded(x, kernel, stride), weight, bias, stride, groups=groups)
        return functional.relu6(y) if is_bounded else y

    def look(self, pixels: Pixels) -> str:
        """Describe a picture (H, W, 3): a drawing thing by thing, or anything by its class."""
        things = drawings.things_in(pixels)
        return self.describe(pixels) if things is None else drawings.describe(things)

    def describe(self, pixels: Pixels) -> str:
        """A sentence with the class of a picture, which expresses the certainty."""
        best, second, _ = self.classify(pixels)
        if best.probability >= SURE:
            return f"It looks like {with_article(best.name)}."
        if best.probability >= LIKELY:
            return f"It may be {with_article(best.name)}."
        if best.probability >= GUESS:
            return (
                f"I'm not sure. It may be {with_article(best.name)} or {with_article(second.name)}."
            )
        return "I can't tell what is in the picture."


def inputs(pixels: Pixels) -> Tensor:
    """The centre of a picture at the network's size (1, 3, 224, 224), about -1 to 1."""
    x = torch.from_numpy(pixels.astype(np.float32)).permute(2, 0, 1)[None]
    side = min(x.shape[-2:])
    crop = max(1, round(side * CROP))
    top, left = (x.shape[-2] - crop) // 2, (x.shape[-1] - crop) // 2
    x = x[..., top : top + crop, left : left + crop]
    x = functional.interpolate(
        x, (SIZE, SIZE), mode="bicubic", antialias=True, align_corners=False
    ).clamp(0, 255)
    return (x - 127) / 128


def with_article(name: str) -> str:
    """A class's name with its article."""
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"
