"""Small video clips, generated in the test."""

import functools
import io
from fractions import Fraction

import av
import numpy as np


@functools.cache
def make_clip(
    seconds=2.0, fps=10, size=(64, 48), sound=True, container="mp4", codec="mpeg4", gop=None
):
    """A clip whose frame `i` is uniformly grey `i * 7 % 256`, with a 440 Hz tone; with `gop`, every
    `gop`-th frame is a key frame."""
    width, height = size
    buffer = io.BytesIO()
    with av.open(buffer, "w", format=container) as out:
        video = out.add_stream(codec, rate=fps)
        video.width, video.height, video.pix_fmt = width, height, "yuv420p"
        if gop is not None:
            video.codec_context.gop_size = gop
            video.options = {"sc_threshold": "1000000000"}
        audio = None
        if sound:
            audio_codec = "libopus" if container == "webm" else "aac"
            audio = out.add_stream(audio_codec, rate=48_000, layout="mono")
        for index in range(round(seconds * fps)):
            pixels = np.full((height, width, 3), grey_of(index), np.uint8)
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            frame.pts = index
            frame.time_base = Fraction(1, fps)
            out.mux(video.encode(frame))
        out.mux(video.encode())
        if audio is not None:
            t = np.arange(round(seconds * 48_000)) / 48_000
            samples = (0.5 * np.sin(2 * np.pi * 440 * t)).astype(np.float32)
            for start in range(0, len(samples), 960):
                piece = samples[start : start + 960]
                frame = av.AudioFrame.from_ndarray(piece[None], format="fltp", layout="mono")
                frame.sample_rate = 48_000
                frame.pts = start
                frame.time_base = Fraction(1, 48_000)
                out.mux(audio.encode(frame))
            out.mux(audio.encode())
    return buffer.getvalue()


def grey_of(index):
    return index * 7 % 256
