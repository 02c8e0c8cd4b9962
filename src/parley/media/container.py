"""Untrusted sound and video files, opened with FFmpeg.

Formats that only name other places (SDP, HLS, DASH, concat …) are left out: FFmpeg would read files
of this machine or open sockets for them. What is left holds its media itself. Needs PyAV; belongs
into a decoder's child (see `decoder`).
"""

from __future__ import annotations

import io
from typing import Any, Final

FORMATS: Final = (
    *("mov", "matroska", "avi", "mpegts", "mpeg", "flv", "asf", "gif"),
    *("wav", "w64", "flac", "mp3", "ogg", "aac", "aiff", "au", "caf", "amr", "ac3", "eac3"),
)
"""Names of FFmpeg's demuxers; `mov` includes MP4 and M4A, `matroska` includes WebM."""


def open_container(data: bytes) -> Any:
    """An `av` container to read from.

    Raises:
        av.FFmpegError: none of these formats.
    """
    import av

    return av.open(
        io.BytesIO(data),
        mode="r",
        container_options={"format_whitelist": ",".join(FORMATS), "protocol_whitelist": "none"},
    )
