"""Opens untrusted audio and video files with FFmpeg.

Formats that refer to other files (SDP, HLS, DASH, concat …) are excluded, because FFmpeg would read
files of this machine or open sockets for them. The remaining formats contain their media. Needs
PyAV; call it only in a decoder's child process (see `decoder`).
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
    """Open an `av` container for reading.

    Raises:
        av.FFmpegError: the file has none of these formats.
    """
    import av

    return av.open(
        io.BytesIO(data),
        mode="r",
        container_options={"format_whitelist": ",".join(FORMATS), "protocol_whitelist": "none"},
    )
