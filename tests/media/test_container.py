"""A file is read, and nothing that it names."""

import socket

import av
import pytest

from parley.errors import InvalidPayload
from parley.media.container import FORMATS, open_container
from parley.media.sound import decode_sound
from parley.media.video import decode_video


def session_description(port: int) -> bytes:
    lines = ("v=0", "o=- 0 0 IN IP4 127.0.0.1", "s=x", "c=IN IP4 127.0.0.1", "t=0 0")
    return "\r\n".join((*lines, f"m=audio {port} RTP/AVP 0", "")).encode()


@pytest.mark.parametrize("decode", [decode_video, lambda data: decode_sound(data, limit_s=600)])
def test_a_session_description_opens_no_socket(decode):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]

    # FFmpeg would wait for packets at the port.
    with pytest.raises(InvalidPayload):
        decode(session_description(port))


@pytest.mark.parametrize(
    "text", [b"ffconcat version 1.0\nfile sound.wav\n", session_description(port=9)]
)
def test_formats_that_name_files_or_addresses_are_excluded(text: bytes):
    # FFmpeg recognises the format and does not accept it: no file or socket was tried.
    with pytest.raises(av.ArgumentError):
        open_container(text)


def test_every_format_is_one_of_ffmpegs():
    known = {name for names in av.formats_available for name in names.split(",")}

    assert known >= set(FORMATS)
