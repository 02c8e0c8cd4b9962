import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from parley.errors import InvalidPayload, TooLarge
from parley.media.image import decode_image, encode_jpeg


def picture_bytes(picture, form, **options):
    buffer = io.BytesIO()
    picture.save(buffer, form, **options)
    return buffer.getvalue()


def gradient(height=20, width=30):
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[..., 0] = np.linspace(0, 255, width).astype(np.uint8)
    pixels[..., 1] = np.linspace(0, 255, height).astype(np.uint8)[:, None]
    return pixels


def claimed_png(width, height):
    """A PNG header that promises a size and delivers nothing."""

    def chunk(name, body):
        return (
            struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
        )

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", b"") + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    ("form", "options"), [("PNG", {}), ("WEBP", {"lossless": True}), ("JPEG", {"quality": 95})]
)
def test_three_formats_are_read(form, options):
    data = picture_bytes(Image.fromarray(gradient()), form, **options)

    pixels = decode_image(data)

    assert pixels.dtype == np.uint8
    np.testing.assert_allclose(pixels, gradient(), atol=25 if form == "JPEG" else 0)


@pytest.mark.parametrize("form", ["GIF", "BMP", "TIFF", "PPM"])
def test_other_formats_are_refused(form):
    data = picture_bytes(Image.fromarray(gradient()), form)

    with pytest.raises(InvalidPayload, match="not a JPEG, PNG or WebP"):
        decode_image(data)


@pytest.mark.parametrize("data", [b"", b"garbage", b"\xff\xd8\xff\xe0broken"])
def test_garbage_is_refused(data):
    with pytest.raises(InvalidPayload):
        decode_image(data)


def test_a_picture_cut_short_is_refused():
    data = picture_bytes(Image.fromarray(gradient(200, 200)), "JPEG")

    with pytest.raises(InvalidPayload, match="cannot be read"):
        decode_image(data[: len(data) // 2])


@pytest.mark.parametrize(
    ("size", "found"),
    [
        ((8001, 8001), "8001 × 8001"),
        ((10_000, 10_000), "far too many"),
        ((60_000, 60_000), "far too many"),
    ],
)
def test_too_many_pixels_are_refused_from_the_header(size, found):
    with pytest.raises(InvalidPayload, match=f"has {found} pixels; 64000000 are accepted"):
        decode_image(claimed_png(*size))


def test_too_many_bytes_are_refused():
    with pytest.raises(TooLarge, match="11 bytes, the limit is 10 bytes"):
        decode_image(b"x" * 11, limit_bytes=10)


def test_a_sideways_photo_is_turned_upright():
    exif = Image.Exif()
    exif[0x0112] = 6
    data = picture_bytes(Image.fromarray(gradient(20, 30)), "PNG", exif=exif)

    pixels = decode_image(data)

    assert pixels.shape == (30, 20, 3)
    np.testing.assert_array_equal(pixels, np.rot90(gradient(20, 30), k=-1))


def test_transparent_parts_are_white():
    clear = Image.new("RGBA", (4, 4), (0, 0, 0, 0))

    assert (decode_image(picture_bytes(clear, "PNG")) == 255).all()


def test_deep_grey_is_scaled_not_clipped():
    grey = Image.fromarray(np.full((4, 4), 0x8000, np.uint16))

    assert (decode_image(picture_bytes(grey, "PNG")) == 0x80).all()


def test_jpeg_round_trip():
    np.testing.assert_allclose(decode_image(encode_jpeg(gradient(), 95)), gradient(), atol=25)
