"""Drawn pictures with everything known about them: what the eyes learn from.

A `Scene` is a list of things on a background; it can be drawn at any size and shape, described in
words (the order of the description is the reading order) and asked about. Positions are fractions
of the picture, so that a 4:3 camera frame and a square mean the same.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFilter, ImageFont

from training import words

Pixels = npt.NDArray[np.uint8]
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
DIGITS = "0123456789"
SIGNS = (*words.SHAPES, *LETTERS, *DIGITS)


@dataclass(frozen=True, slots=True)
class Thing:
    """A shape (or one letter or digit) of a colour at `x`, `y` (0..1), `radius` in parts of the
    shorter side."""

    sign: str
    color: str
    x: float
    y: float
    radius: float
    turn: float = 0.0

    @property
    def place(self) -> str:
        """Where it is, in a grid of three by three."""
        column = 0 if self.x < 0.36 else 2 if self.x > 0.64 else 1
        row = 0 if self.y < 0.36 else 2 if self.y > 0.64 else 1
        return words.POSITIONS[3 * row + column]

    @property
    def name(self) -> str:
        """`star`, `letter A`, `digit seven`."""
        if self.sign in words.SHAPES:
            return self.sign
        if self.sign.isdigit():
            return f"digit {words.number(int(self.sign))}"
        return f"letter {self.sign}"


@dataclass(frozen=True, slots=True)
class Scene:
    """Things on a background, in reading order."""

    background: str
    things: tuple[Thing, ...]

    def describe(self) -> str:
        """Everything about the picture, as the model writes it down for itself."""
        listed = ", ".join(f"{t.color} {t.name} {t.place}" for t in self.things)
        return f"on {self.background}: {listed or 'nothing'}"

    def questions(self, random: Random) -> list[tuple[str, str, str]]:
        """(kind, question, answer) triples that the picture can answer."""
        asked = [("background", "what color is the background", f"the background is "
                  f"{self.background}")]  # fmt: skip
        if len(self.things) == 1 and self.things[0].sign not in words.SHAPES:
            thing = self.things[0]
            kind = "digit" if thing.sign.isdigit() else "letter"
            name = words.number(int(thing.sign)) if kind == "digit" else thing.sign
            asked.append(("sign", f"what {kind} is this", f"this is the {kind} {name}"))
            asked.append(("color", f"what color is the {kind}", f"the {kind} is {thing.color}"))
            asked.append(("see", "what do you see", f"i see the {thing.color} {kind} {name}"))
            return asked
        count = words.number(len(self.things)) if self.things else "no"
        verb = "is one shape" if count == "one" else f"are {count} shapes"
        asked.append(("count", "how many shapes are there", f"there {verb}"))
        for shape in sorted({t.sign for t in self.things}):
            found = [t for t in self.things if t.sign == shape]
            plural = words.SHAPE_PLURALS[shape]
            amount = (
                f"is one {shape}" if len(found) == 1 else f"are {words.number(len(found))} {plural}"
            )
            asked.append(("count_of", f"how many {plural} are there", f"there {amount}"))
            if len(found) == 1:
                only = found[0]
                asked.append(("color", f"what color is the {shape}",
                              f"the {shape} is {only.color}"))  # fmt: skip
                where = "in the middle" if only.place == "middle" else f"at the {only.place}"
                asked.append(("place", f"where is the {shape}", f"the {shape} is {where}"))
        for color in sorted({t.color for t in self.things}):
            found = [t for t in self.things if t.color == color]
            if len(found) == 1:
                asked.append(("shape", f"what shape is {color}",
                              f"the {found[0].sign} is {color}"))  # fmt: skip
        if len(self.things) == 1:
            only = self.things[0]
            asked.append(("shape", "what shape is it", f"it is a {only.sign}"))
        if self.things:
            first = self.things[0]
            rest = {1: "", 2: " and one other shape"}.get(
                len(self.things), f" and {words.number(len(self.things) - 1)} other shapes"
            )
            a = "an" if first.color == "orange" else "a"
            asked.append(("see", "what do you see", f"i see {a} {first.color} {first.sign}{rest}"))
        else:
            asked.append(("see", "what do you see", "i see no shapes"))
        shape = random.choice(words.SHAPES)
        if any(t.sign == shape for t in self.things):
            asked.append(("is_there", f"is there a {shape}", f"yes, there is a {shape}"))
        else:
            asked.append(("is_there", f"is there a {shape}", f"no, there is no {shape}"))
        return asked


def make_scene(random: Random, *, things: int | None = None) -> Scene:
    """A scene of up to six shapes, or of one letter or digit."""
    background = random.choice(list(words.COLORS))
    colors = [c for c in words.COLORS if c != background]
    if things is None and random.random() < 0.2:
        sign = random.choice(LETTERS + DIGITS)
        thing = Thing(
            sign, random.choice(colors), random.uniform(0.36, 0.64), random.uniform(0.36, 0.64),
            random.uniform(0.2, 0.32),
        )  # fmt: skip
        return Scene(background, (thing,))
    count = random.choices(range(7), (1, 6, 5, 4, 3, 2, 2))[0] if things is None else things
    is_uniform = random.random() < 0.35 and count > 1
    same = random.choice(words.SHAPES), random.choice(colors)
    cells = sorted(random.sample(range(9), count))
    made = []
    for cell in cells:
        sign, color = same if is_uniform else (random.choice(words.SHAPES), random.choice(colors))
        row, column = divmod(cell, 3)
        radius = random.uniform(0.11, 0.16) if count > 1 else random.uniform(0.12, 0.25)
        x = 1 / 6 + column / 3 + random.uniform(-0.04, 0.04)
        y = 1 / 6 + row / 3 + random.uniform(-0.04, 0.04)
        made.append(Thing(sign, color, x, y, radius, random.uniform(-0.25, 0.25)))
    return Scene(background, tuple(made))


def draw(scene: Scene, random: Random, *, size: tuple[int, int] = (224, 224)) -> Pixels:
    """The scene as uint8 RGB (height, width, 3); colours, light, blur and noise vary."""
    width, height = size
    side = min(width, height)
    image = Image.new("RGB", size, _shade(words.COLORS[scene.background], random))
    canvas = ImageDraw.Draw(image)
    for thing in scene.things:
        x = min(max(thing.x, thing.radius * side / width), 1 - thing.radius * side / width) * width
        y = min(max(thing.y, thing.radius * side / height), 1 - thing.radius * side / height)
        color = _shade(words.COLORS[thing.color], random)
        _draw_thing(canvas, thing, x, y * height, thing.radius * side, color)
    if random.random() < 0.3:
        image = image.filter(ImageFilter.GaussianBlur(random.uniform(0.3, 1.2) * side / 224))
    pixels = np.asarray(image, np.float32)
    pixels = pixels * random.uniform(0.85, 1.08) + random.uniform(-12, 12)
    pixels += _noise(random, pixels.shape) * random.uniform(0, 8)
    return np.clip(pixels, 0, 255).astype(np.uint8)


def _noise(random: Random, shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
    """Normal noise of a picture's shape, a piece of one long stretch: to draw it anew would cost
    more than all the rest of a picture."""
    stretch = _noise_stretch()
    count = math.prod(shape)
    first = random.randrange(0, len(stretch) - count)
    return stretch[first : first + count].reshape(shape)


@functools.cache
def _noise_stretch() -> npt.NDArray[np.float32]:
    return np.random.default_rng(5).standard_normal(1 << 21, np.float32)


def _shade(color: Sequence[int], random: Random) -> tuple[int, int, int]:
    r, g, b = (max(0, min(255, v + random.randint(-20, 20))) for v in color)
    return r, g, b


@functools.cache
def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size)


def _draw_thing(
    canvas: ImageDraw.ImageDraw,
    thing: Thing,
    x: float,
    y: float,
    r: float,
    color: tuple[int, int, int],
) -> None:
    if thing.sign not in words.SHAPES:
        canvas.text((x, y), thing.sign, fill=color, font=_font(round(2.4 * r)), anchor="mm")
        return
    box = [x - r, y - r, x + r, y + r]
    if thing.sign == "circle":
        canvas.ellipse(box, fill=color)
        return
    if thing.sign == "ring":
        canvas.ellipse(box, outline=color, width=max(3, round(0.35 * r)))
        return
    cos, sin = math.cos(thing.turn), math.sin(thing.turn)
    canvas.polygon(
        [(x + r * (px * cos - py * sin), y + r * (px * sin + py * cos))
         for px, py in _outline(thing.sign)],
        fill=color,
    )  # fmt: skip


@functools.cache
def _outline(shape: str) -> tuple[tuple[float, float], ...]:
    """Corners of a shape of radius one, y down."""
    if shape == "square":
        return ((-0.85, -0.85), (0.85, -0.85), (0.85, 0.85), (-0.85, 0.85))
    if shape == "diamond":
        return ((0, -1.1), (0.75, 0), (0, 1.1), (-0.75, 0))
    if shape == "triangle":
        return ((0, -1), (0.9, 0.8), (-0.9, 0.8))
    if shape == "star":
        radii = [1 if i % 2 == 0 else 0.42 for i in range(10)]
        return tuple(
            (k * math.sin(i * math.pi / 5), -k * math.cos(i * math.pi / 5))
            for i, k in enumerate(radii)
        )
    if shape == "cross":
        a = 0.3
        return (
            (-a, -1), (a, -1), (a, -a), (1, -a), (1, a), (a, a), (a, 1), (-a, 1), (-a, a),
            (-1, a), (-1, -a), (-a, -a),
        )  # fmt: skip
    if shape == "heart":
        turns = np.linspace(0, 2 * math.pi, 24)
        return tuple(
            (
                0.95 * math.sin(t) ** 3,
                -(0.8125 * math.cos(t) - 0.3125 * math.cos(2 * t) - 0.125 * math.cos(3 * t)
                  - 0.0625 * math.cos(4 * t)),
            )
            for t in turns
        )  # fmt: skip
    raise ValueError(f"no such shape: {shape}")
