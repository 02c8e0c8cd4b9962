"""JPEG, PNG or WebP ↔ an array of pixels: uint8, shape (H, W, 3), RGB, upright.

Sizes are checked from the header, before any pixel is decoded.
"""

from __future__ import annotations

import io

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps, UnidentifiedImageError

from parley.errors import InvalidPayload, TooLarge

Pixels = npt.NDArray[np.uint8]

LIMIT_PIXELS = 64_000_000
LIMIT_BYTES = 20 * 1024 * 1024
"""Source of both: service.md 4.1."""

_FORMATS = ("JPEG", "PNG", "WEBP")


def decode_image(
    data: bytes, *, limit_pixels: int = LIMIT_PIXELS, limit_bytes: int = LIMIT_BYTES
) -> Pixels:
    """Pixels of a still picture (the first one of an animation), EXIF rotation applied.

    Transparent parts become white, as a person would see them on a page.

    Raises:
        InvalidPayload: not a JPEG, PNG or WebP picture, damaged, or of too many pixels: a small
            file can claim any number of them, so that is a bad picture and no large message.
        TooLarge: too many bytes.
    """
    if len(data) > limit_bytes:
        raise TooLarge("The image", len(data), limit_bytes)
    try:
        picture = Image.open(io.BytesIO(data), formats=_FORMATS)
    except UnidentifiedImageError as error:
        raise InvalidPayload("The image is not a JPEG, PNG or WebP picture.") from error
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        # Pillow refuses on its own far above our limit; the exact size stays unknown then.
        raise _too_many("far too many", limit_pixels) from error
    except (OSError, ValueError, SyntaxError) as error:
        raise InvalidPayload("The image cannot be read.") from error
    with picture:
        width, height = picture.size
        if width * height > limit_pixels:
            raise _too_many(f"{width} × {height}", limit_pixels)
        try:
            picture.load()
            upright = ImageOps.exif_transpose(picture)
        except (OSError, ValueError, SyntaxError) as error:
            raise InvalidPayload("The image cannot be read.") from error
        return np.ascontiguousarray(np.asarray(_to_rgb(upright), dtype=np.uint8))


def _too_many(found: str, limit_pixels: int) -> InvalidPayload:
    return InvalidPayload(f"The image has {found} pixels; {limit_pixels} are accepted.")


def encode_jpeg(pixels: Pixels, quality: int = 85) -> bytes:
    """A JPEG picture of `pixels`."""
    buffer = io.BytesIO()
    Image.fromarray(pixels, "RGB").save(buffer, "JPEG", quality=quality)
    return buffer.getvalue()


def _to_rgb(picture: Image.Image) -> Image.Image:
    if picture.mode.startswith("I"):
        # 16 bit grey: Pillow would clip to 8 bits instead of scaling.
        grey = np.asarray(picture).astype(np.uint32) >> 8
        return Image.fromarray(np.minimum(grey, 255).astype(np.uint8)).convert("RGB")
    if picture.mode in ("RGBA", "LA", "PA") or "transparency" in picture.info:
        layered = picture.convert("RGBA")
        ground = Image.new("RGBA", layered.size, "white")
        return Image.alpha_composite(ground, layered).convert("RGB")
    return picture.convert("RGB")
