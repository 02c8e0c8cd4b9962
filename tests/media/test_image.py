import functools
import io
import struct
import subprocess
import sys
import zlib

import numpy as np
import pytest
from PIL import Image, ImageOps
from tests.support.cpu_time import takes_less_than

from parley.errors import InvalidPayload, TooLarge
from parley.media.image import check_image, decode_image, decode_light_image, encode_jpeg
from parley.protocol.values import IMAGE_LIMIT_BYTES


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
    with pytest.raises(TooLarge, match="20971521 bytes, the limit is 20971520 bytes"):
        decode_image(bytes(IMAGE_LIMIT_BYTES + 1))


@pytest.mark.parametrize("held", range(1, 9))
def test_every_way_to_hold_a_camera_is_understood_also_when_scaled_down(held):
    exif = Image.Exif()
    exif[0x0112] = held
    scene = Image.fromarray(gradient(20, 30))

    pixels = decode_image(picture_bytes(scene, "PNG", exif=exif), keep_pixels=150)

    scene.info["exif"] = exif.tobytes()
    wanted = ImageOps.exif_transpose(scene.resize((15, 10), Image.Resampling.BICUBIC))
    assert pixels.shape == np.asarray(wanted).shape
    np.testing.assert_allclose(pixels, np.asarray(wanted), atol=6)


def exif_of(tags, *, kind=2):
    """EXIF with so many tags, which say that the camera was held sideways and lie elsewhere."""
    lies = (struct.pack(">HHII", 0x0200 + tag, kind, 90_000, 8) for tag in range(tags))
    sideways = struct.pack(">HHIHH", 0x0112, 3, 1, 6, 0)
    return b"MM\0*\0\0\0\x08" + struct.pack(">H", tags + 1) + sideways + b"".join(lies)


def jpeg_with(*segments):
    data = encode_jpeg(gradient(20, 30))
    return data[:2] + b"".join(segments) + data[2:]


def segment(marker, body):
    return b"\xff" + marker + struct.pack(">H", len(body) + 2) + body


@pytest.mark.filterwarnings("ignore")  # this process has filters of pytest's own
@pytest.mark.parametrize("orientation", [b"\0\2\0\0\0\1six\0", b"\0\5\0\0\0\1\0\0\xff\xff"])
def test_a_photo_whose_exif_is_damaged_is_shown_as_it_lies(orientation):
    exif = b"MM\0*\0\0\0\x08\0\1\x01\x12" + orientation + bytes(4)

    pixels = decode_image(jpeg_with(segment(b"\xe1", b"Exif\0\0" + exif)), keep_pixels=100)

    assert pixels.shape[1] > pixels.shape[0]


def test_damaged_tags_write_no_warnings(tmp_path):
    photo = tmp_path / "photo.jpg"
    photo.write_bytes(jpeg_with(segment(b"\xe1", b"Exif\0\0" + exif_of(5000))))
    program = (
        "import pathlib, sys; from parley.media.image import decode_image; "
        "print(decode_image(pathlib.Path(sys.argv[1]).read_bytes()).shape)"
    )

    ran = subprocess.run([sys.executable, "-c", program, photo], capture_output=True, check=True)

    assert (ran.stdout, ran.stderr) == (b"(30, 20, 3)\n", b"")


def chunked_png(name, body, count):
    data = picture_bytes(Image.fromarray(gradient()), "PNG")
    chunk = struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
    return data[:33] + chunk * count + data[33:]


@pytest.mark.parametrize(
    "data",
    [
        jpeg_with(segment(b"\xe1", b"Exif\0\0") * 150_000),
        jpeg_with(b"\xff" * 3_000_000),
        jpeg_with(b"\xff\0" * 1_000_000),
        jpeg_with(segment(b"\xe1", b"Exif\0\0" + exif_of(5000)) * 20),
        chunked_png(b"tEXt", b"a\0b", 100_000),
        chunked_png(b"IDAT", b"", 100_000),
        chunked_png(b"iCCP", b"a\0\0" + zlib.compress(bytes(1 << 20), 9), 5000),
        claimed_png(3_999_999, 1),
    ],
    ids=["segments", "padding", "stuffing", "tags", "texts", "pieces", "profiles", "row"],
)
def test_a_file_that_would_be_read_part_by_part_for_seconds_is_refused_immediately(data):
    def read_both_ways():
        for read in (decode_light_image, functools.partial(check_image, limit_pixels=1 << 24)):
            with pytest.raises(InvalidPayload, match=r"many small parts|a side of 65535"):
                read(data)

    assert takes_less_than(0.1, read_both_ways)


def test_transparent_parts_are_white():
    clear = Image.new("RGBA", (4, 4), (0, 0, 0, 0))

    assert (decode_image(picture_bytes(clear, "PNG")) == 255).all()


def test_deep_grey_is_scaled_not_clipped():
    grey = Image.fromarray(np.full((4, 4), 0x8000, np.uint16))

    assert (decode_image(picture_bytes(grey, "PNG")) == 0x80).all()


def test_jpeg_round_trip():
    np.testing.assert_allclose(decode_image(encode_jpeg(gradient(), 95)), gradient(), atol=25)
