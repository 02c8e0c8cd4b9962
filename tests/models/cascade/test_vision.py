"""What the eyes see in drawings and, where the weights are, in other pictures."""

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw

from parley.models import pocket_data
from parley.models.cascade.vision import drawings
from parley.models.cascade.vision.drawings import Thing, describe, things_in
from parley.models.cascade.vision.photographs import Photographs, with_article
from parley.settings import ModelSettings

COLOURS = {
    "red": (220, 30, 30), "green": (30, 160, 60), "blue": (30, 60, 210), "yellow": (240, 210, 40),
    "orange": (245, 140, 20), "purple": (130, 50, 170), "black": (15, 15, 15),
    "white": (250, 250, 250), "pink": (250, 150, 190), "brown": (120, 70, 30),
    "gray": (128, 128, 128),
}  # fmt: skip


def star(x: float, y: float, size: float) -> list[tuple[float, float]]:
    turns = np.arange(10) * np.pi / 5 - np.pi / 2
    radii = np.where(np.arange(10) % 2, 0.4, 1.0) * size
    return [(x + r * np.cos(t), y + r * np.sin(t)) for r, t in zip(radii, turns, strict=True)]


def draw(canvas: ImageDraw.ImageDraw, shape: str, x: int, y: int, size: int, fill) -> None:
    box = (x - size, y - size, x + size, y + size)
    match shape:
        case "circle":
            canvas.ellipse(box, fill=fill)
        case "square":
            canvas.rectangle(box, fill=fill)
        case "rectangle":
            canvas.rectangle((x - size, y - size // 2, x + size, y + size // 2), fill=fill)
        case "triangle":
            canvas.polygon([(x, y - size), (x - size, y + size), (x + size, y + size)], fill=fill)
        case "diamond":
            canvas.polygon([(x, y - size), (x + size, y), (x, y + size), (x - size, y)], fill=fill)
        case "star":
            canvas.polygon(star(x, y, size), fill=fill)
        case "cross":
            canvas.rectangle((x - size // 3, y - size, x + size // 3, y + size), fill=fill)
            canvas.rectangle((x - size, y - size // 3, x + size, y + size // 3), fill=fill)
        case "ring":
            canvas.ellipse(box, outline=fill, width=size // 3)


def picture(*placed: tuple[str, str, int, int, int], ground: str = "white") -> np.ndarray:
    """Things (colour, shape, x, y, size) as a JPEG gives them."""
    image = Image.new("RGB", (320, 240), COLOURS[ground])
    for colour, shape, x, y, size in placed:
        draw(ImageDraw.Draw(image), shape, x, y, size, COLOURS[colour])
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=80)
    return np.asarray(Image.open(buffer))


@pytest.mark.parametrize("shape", ["circle", "square", "rectangle", "triangle", "diamond", "star",
                                   "cross", "ring"])  # fmt: skip
@pytest.mark.parametrize(("x", "y", "size"), [(160, 120, 60), (100, 140, 35), (220, 90, 80)])
def test_a_shape_is_told_wherever_it_is(shape: str, x: int, y: int, size: int) -> None:
    assert things_in(picture(("blue", shape, x, y, size))) == [Thing("blue", shape)]


@pytest.mark.parametrize("colour", COLOURS)
def test_every_colour_has_its_name(colour: str) -> None:
    ground = "gray" if colour in ("white", "black") else "white"

    seen = things_in(picture((colour, "circle", 160, 120, 50), ground=ground))

    assert seen == [Thing(colour, "circle")]


def test_several_things_are_told_from_left_to_right() -> None:
    seen = things_in(
        picture(("green", "square", 240, 60, 30), ("red", "circle", 60, 160, 40), ground="yellow")
    )

    assert seen is not None
    assert describe(seen) == "I see a red circle, a green square."


def test_what_is_not_a_drawing_is_left_to_the_classifier() -> None:
    noise = np.random.default_rng(1).integers(0, 256, (240, 320, 3), np.uint8)
    gradient = np.linspace(0, 255, 320)[None, :, None] * np.ones((240, 1, 3))

    assert things_in(noise) is None
    assert things_in(gradient.astype(np.uint8)) is None
    assert things_in(picture()) is None
    assert things_in(np.zeros((1, 1, 3), np.uint8)) is None


def test_an_outline_of_any_size_is_measured() -> None:
    assert drawings.hull_area(np.array([[0, 0], [1, 0], [2, 0], [2, 2]])) == pytest.approx(7.0)


@pytest.mark.slow
def test_the_classifier_says_how_sure_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = pocket_data.folder(ModelSettings())
    assert isinstance(folder, Path)
    eyes = Photographs(folder)

    # An orange on a table, near enough: round, orange, shaded, on a rough ground.
    y, x = np.mgrid[:240, :240]
    inside = ((x - 120) ** 2 + (y - 120) ** 2) < 90**2
    shade = np.clip(1.15 - np.hypot(x - 90, y - 85) / 190, 0.2, 1)[..., None]
    rough = np.random.default_rng(3).normal(0, 8, (240, 240, 1))
    ball = np.where(inside[..., None], shade * [255, 150, 20], [235, 235, 230]) + rough
    seen = eyes.classify(np.clip(ball, 0, 255).astype(np.uint8), 5)

    assert len(eyes.names) == 1000
    assert {one.name for one in seen} & {
        "orange",
        "lemon",
        "tennis ball",
        "balloon",
        "ping-pong ball",
    }
    assert with_article("orange") == "an orange"
    for probability, words in ((0.7, "It looks like"), (0.4, "It may be"), (0.2, "I'm not sure")):
        best = [type(seen[0])("daisy", probability), *seen[1:3]]
        monkeypatch.setattr(eyes, "classify", lambda pixels, best=best: best)
        assert eyes.describe(picture()).startswith(words)
