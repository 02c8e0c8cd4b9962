"""Jobs of a decoder as plain values: JSON and raw bytes, so that another process can run them, and
its results need not be trusted.

A job returns a description and its arrays; `clip_from` and similar functions rebuild the result.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from parley.media.pcm import INPUT_RATE_HZ, Pcm, Samples
from parley.media.room import ContextRoom
from parley.media.sound import decode_sound

if TYPE_CHECKING:
    # Pillow and PyAV are not part of every installation (a gateway needs neither): they are
    # imported when media has to be decoded.
    from parley.media.image import Pixels
    from parley.media.video import VideoClip

Bytes = npt.NDArray[np.uint8]
Described = tuple[dict[str, Any], list[npt.NDArray[Any]]]


def load_libraries() -> None:
    """Import the libraries first, so that memory limits apply only to the decoded data."""
    for name in ("soundfile", "soxr", "av", "PIL.JpegImagePlugin", "PIL.PngImagePlugin"):
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(name)


def image(data: bytes, *, limit_pixels: int, keep_pixels: int | None) -> Described:
    """Decode a picture; returns its shape and pixels."""
    from parley.media.image import decode_image

    pixels = decode_image(data, limit_pixels=limit_pixels, keep_pixels=keep_pixels)
    return {"shape": pixels.shape}, [pixels]


def image_from(value: dict[str, Any], parts: Sequence[Bytes]) -> Pixels:
    """The picture of an `image` job."""
    height, width, _ = value["shape"]
    return parts[0].reshape(height, width, 3)


def sound(data: bytes, *, limit_s: float, what: str) -> Described:
    """Decode an audio file of any format to 16 kHz mono."""
    pcm = decode_sound(data, limit_s=limit_s, what=what)
    return {"rate_hz": pcm.rate_hz}, [pcm.samples]


def sound_from(value: dict[str, Any], parts: Sequence[Bytes]) -> Pcm:
    """The audio of a `sound` job."""
    return Pcm(_samples(parts[0]), int(value["rate_hz"]))


def video(data: bytes, *, stack_frames: int, room: dict[str, int] | None) -> Described:
    """Decode a clip; returns times, shapes, and pixels and audio in the order of `VideoClip`'s
    fields."""
    from parley.media.video import decode_video

    clip = decode_video(data, stack_frames=stack_frames, room=ContextRoom(**room) if room else None)
    parts: list[npt.NDArray[Any]] = []
    places: dict[int, int] = {}

    def place(pixels: Pixels | None) -> int | None:
        """Index of a picture among the parts; a picture that appears twice is sent once."""
        if pixels is None:
            return None
        if id(pixels) not in places:
            places[id(pixels)] = len(parts)
            parts.append(pixels)
        return places[id(pixels)]

    frames = [place(frame) for frame in clip.frames]
    stacks = [place(stack) for stack in clip.stacks]
    shapes = [part.shape[:2] for part in parts]
    value = {
        "frames": frames,
        "stacks": stacks,
        "shapes": shapes,
        "times_s": clip.times_s,
        "duration_s": clip.duration_s,
    }
    return value, [*parts, *(pcm.samples for pcm in clip.sounds)]


def video_from(value: dict[str, Any], parts: Sequence[Bytes]) -> VideoClip:
    """The clip of a `video` job."""
    from parley.media.video import VideoClip

    shapes = value["shapes"]
    pictures = [
        part.reshape(height, width, 3)
        for part, (height, width) in zip(parts[: len(shapes)], shapes, strict=True)
    ]
    return VideoClip(
        frames=tuple(pictures[index] for index in value["frames"]),
        times_s=tuple(value["times_s"]),
        sounds=tuple(Pcm(_samples(part), INPUT_RATE_HZ) for part in parts[len(shapes) :]),
        stacks=tuple(None if index is None else pictures[index] for index in value["stacks"]),
        duration_s=float(value["duration_s"]),
    )


JOBS: Final[dict[str, Callable[..., Described]]] = {
    "image": image,
    "sound": sound,
    "video": video,
}


def _samples(part: Bytes) -> Samples:
    return part.view(np.float32)
