"""Decodes and encodes pictures (JPEG, PNG or WebP): pixels are uint8, shape (H, W, 3), RGB,
upright.

Sizes are checked in the header, before any pixel is decoded. `decode_light_image` is for the
server's process; call everything else only in a decoder's child process (see `decoder`).
"""

from __future__ import annotations

import contextlib
import io
import math
import struct
import warnings

import numpy as np
import numpy.typing as npt
from PIL import Image, UnidentifiedImageError

from parley.errors import InvalidPayload, TooLarge
from parley.protocol.values import IMAGE_LIMIT_BYTES

Pixels = npt.NDArray[np.uint8]

LIMIT_PIXELS = 64_000_000
"""Source: service.md 4.1."""

LIGHT_PIXELS = 4_000_000
LIGHT_BYTES = 4 * 1024 * 1024
LIGHT_SCANS = 64
"""A picture within these limits takes about 50 MB and a fraction of a second, regardless of its
content. A JPEG file may repeat its scans a hundred thousand times; cameras write at most a
dozen."""

LIMIT_SIDE = 65_535
"""Maximum side, which is that of JPEG. Scaling a PNG of one row would take a hundred times its
number of pixels."""

CHUNKS = 10_000
SEGMENTS = 1000
"""Maximum number of chunks of a PNG file, and of segments and padding bytes before the pixels of a
JPEG file. Pillow reads them one by one, in Python. Encoders write a chunk per 8 KB, and a few
segments."""
EXIF_SEGMENTS = 400
PROFILE_CHUNKS = 500
"""Cost of one EXIF segment, which is a list of up to 5,000 tags, and of a PNG's colour profile,
which Pillow unpacks to 1 MiB before it drops the previous one."""
EXIF_LIMIT_BYTES = 64 * 1024
"""Longer ones are not read; a JPEG segment cannot be longer."""

_ORIENTATION = 0x0112
"""EXIF tag for the orientation of the camera."""
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}

_FORMATS = ("JPEG", "PNG", "WEBP")
_ALONE = (b"\xff", b"\0")
"""JPEG: bytes after 0xFF that are padding, not the marker of a segment."""
_DAMAGE = (OSError, ValueError, SyntaxError, TypeError, KeyError, struct.error)
"""Exceptions of Pillow for damaged files."""

# Pillow warns about every damaged tag, thousands in one picture, and Python would store each text.
warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.")


def decode_image(
    data: bytes, *, limit_pixels: int = LIMIT_PIXELS, keep_pixels: int | None = None
) -> Pixels:
    """Pixels of a still picture (the first one of an animation), EXIF rotation applied.

    Transparent parts become white, as on a web page.

    Args:
        keep_pixels: a picture with more pixels is scaled down to about this number.

    Raises:
        InvalidPayload: not a JPEG, PNG or WebP picture, damaged, or with too many pixels: as a
            small file can claim any number of them, this is an invalid picture, not a large
            message.
        TooLarge: too many bytes.
    """
    with _open(data, limit_pixels) as picture:
        return _decode(picture, keep_pixels)


def decode_light_image(
    data: bytes, *, limit_pixels: int = LIMIT_PIXELS, keep_pixels: int | None = None
) -> Pixels | None:
    """Like `decode_image`, but None for a picture that could take much memory or time according to
    its header."""
    with _open(data, limit_pixels) as picture:
        is_light = (
            picture.width * picture.height <= LIGHT_PIXELS
            and len(data) <= LIGHT_BYTES
            # Also MPO, the JPEG of several pictures, is a format of Pillow.
            and (picture.format in ("PNG", "WEBP") or data.count(b"\xff\xda") <= LIGHT_SCANS)
        )
        return _decode(picture, keep_pixels) if is_light else None


def check_image(data: bytes, *, limit_pixels: int) -> int:
    """Number of pixels of a picture, from its header alone.

    Raises:
        InvalidPayload, TooLarge: as `decode_image`, as far as the header shows it.
    """
    with _open(data, limit_pixels) as picture:
        return picture.width * picture.height


def _open(data: bytes, limit_pixels: int) -> Image.Image:
    if len(data) > IMAGE_LIMIT_BYTES:
        raise TooLarge("The image", len(data), IMAGE_LIMIT_BYTES)
    if not _has_short_head(data):
        raise InvalidPayload("The image consists of too many small parts.")
    try:
        picture = Image.open(io.BytesIO(data), formats=_FORMATS)
    except UnidentifiedImageError as error:
        raise InvalidPayload("The image is not a JPEG, PNG or WebP picture.") from error
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        # Pillow itself refuses sizes far above our limit; the exact size is then unknown.
        raise _too_many("far too many", limit_pixels) from error
    except _DAMAGE as error:
        raise InvalidPayload("The image cannot be read.") from error
    width, height = picture.size
    if width * height > limit_pixels:
        picture.close()
        raise _too_many(f"{width} × {height}", limit_pixels)
    if max(width, height) > LIMIT_SIDE:
        picture.close()
        raise InvalidPayload(
            f"The image has {width} × {height} pixels; a side of {LIMIT_SIDE} is accepted."
        )
    return picture


def _has_short_head(data: bytes) -> bool:
    """False for a file whose header would take Pillow seconds."""
    if data.startswith(b"\x89PNG"):
        return _has_few_chunks(data)
    return not data.startswith(b"\xff\xd8") or _has_few_segments(data)


def _has_few_chunks(data: bytes) -> bool:
    place, parts = 8, 0
    while parts < CHUNKS and place < len(data):
        parts += 1 + PROFILE_CHUNKS * (data[place + 4 : place + 8] == b"iCCP")
        place += 12 + int.from_bytes(data[place : place + 4])
    return place >= len(data)


def _has_few_segments(data: bytes) -> bool:
    place, parts = 2, 0
    while parts < SEGMENTS:
        parts += 1
        if data[place : place + 1] != b"\xff" or data[place + 1 : place + 2] in _ALONE:
            place += 1
        elif data[place + 1 : place + 2] in (b"\xda", b""):
            return True
        else:
            parts += EXIF_SEGMENTS * (data[place + 4 : place + 10] == b"Exif\0\0")
            place += 2 + int.from_bytes(data[place + 2 : place + 4])
    return place >= len(data)


def _decode(picture: Image.Image, keep_pixels: int | None) -> Pixels:
    try:
        picture.load()
        upright = _UPRIGHT.get(_orientation(picture))
        reduced = _reduced(picture, keep_pixels)
        if upright is not None:
            reduced = reduced.transpose(upright)
    except _DAMAGE as error:
        raise InvalidPayload("The image cannot be read.") from error
    return np.ascontiguousarray(np.asarray(_to_rgb(reduced), dtype=np.uint8))


def _orientation(picture: Image.Image) -> int:
    """Orientation of the camera; 0 if it is absent or damaged."""
    raw = picture.info.get("exif", b"")
    if 0 < len(raw) <= EXIF_LIMIT_BYTES:
        exif = Image.Exif()
        with contextlib.suppress(*_DAMAGE):
            exif.load(raw)
            found = exif.get(_ORIENTATION)
            return found if isinstance(found, int) else 0
    return 0


def _reduced(picture: Image.Image, keep_pixels: int | None) -> Image.Image:
    """Scale down first, because every later step copies the picture."""
    pixels = picture.width * picture.height
    if keep_pixels is None or pixels <= keep_pixels:
        return picture
    scale = math.sqrt(keep_pixels / pixels)
    size = (max(1, int(picture.width * scale)), max(1, int(picture.height * scale)))
    if picture.mode in ("P", "PA", "1") or "transparency" in picture.info:
        has_holes = picture.mode == "PA" or "transparency" in picture.info
        picture = picture.convert("RGBA" if has_holes else "RGB")
    elif picture.mode.startswith("I"):
        picture = _eight_bits(picture)
    return picture.resize(size, Image.Resampling.BICUBIC, reducing_gap=2.0)


def _too_many(found: str, limit_pixels: int) -> InvalidPayload:
    return InvalidPayload(f"The image has {found} pixels; {limit_pixels} are accepted.")


def encode_jpeg(pixels: Pixels, quality: int = 85) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels, "RGB").save(buffer, "JPEG", quality=quality)
    return buffer.getvalue()


def _to_rgb(picture: Image.Image) -> Image.Image:
    if picture.mode.startswith("I"):
        picture = _eight_bits(picture)
    if picture.mode in ("RGBA", "LA", "PA") or "transparency" in picture.info:
        layered = picture.convert("RGBA")
        ground = Image.new("RGBA", layered.size, "white")
        return Image.alpha_composite(ground, layered).convert("RGB")
    return picture if picture.mode == "RGB" else picture.convert("RGB")


def _eight_bits(picture: Image.Image) -> Image.Image:
    """Convert 16-bit grey to 8 bits; Pillow would clip instead of scaling."""
    grey = np.array(picture)
    np.right_shift(grey, 8, out=grey)
    return Image.fromarray(np.clip(grey, 0, 255).astype(np.uint8))
