"""The bundled vision: describes a drawing thing by thing, anything else by its likeliest class."""

from __future__ import annotations

from pathlib import Path

from parley.media.image import Pixels
from parley.models.cascade.vision import drawings
from parley.models.cascade.vision.photographs import Photographs


class OwnVision:
    """A picture to a sentence.

    Args:
        folder: of the bundled weights, with those of the classifier.
    """

    def __init__(self, folder: Path) -> None:
        self.photographs = Photographs(folder)

    def look(self, pixels: Pixels) -> str:
        """Describe a picture (H, W, 3)."""
        things = drawings.things_in(pixels)
        if things is not None:
            return drawings.describe(things)
        return self.photographs.describe(pixels)
