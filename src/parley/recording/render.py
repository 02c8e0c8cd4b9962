"""Renderer of one recording: `python -m parley.recording.render FOLDER`.

Mixes a stereo WAV file at 24 kHz (user left, assistant right) with the session's timing, writes
subtitles and, if there are images, an MP4 video of them with that audio. Runs at the lowest
priority and writes its progress to `replay.json`. Every result is written to a partial file and
then renamed, so results are never incomplete. Source: service.md 6.4.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import math
import os
import resource
import shutil
import subprocess
import sys
import textwrap
import wave
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from parley.errors import BadInput
from parley.media.pcm import INPUT_RATE_HZ, OUTPUT_RATE_HZ, Pcm
from parley.media.resample import ResampleStream, resample
from parley.media.wav import load
from parley.recording import lines, store
from parley.recording.layout import Folder, write_atomically
from parley.recording.placing import CAPTION_STAYS_S, PlacedPiece, PlacedText, Plan, place
from parley.recording.render_queue import set_state
from parley.replacing import replacing
from parley.session_log.items import heard_part

if TYPE_CHECKING:
    import av
    from PIL import ImageFont

SIZE: Final = (1280, 720)
FONT_PIXELS: Final = 42
"""Source of both: service.md 6.4."""

LONGEST_S: Final = 4 * 3600.0
CPU_LIMIT_S: Final = 3600
BLOCK_S: Final = 10
FRAME_PIXELS: Final = 16_000_000
CODECS: Final = ("libx264", "libopenh264", "mpeg4")
CAPTION_LINES: Final = 2
SRT_CHARS: Final = 84
"""Maximum length of a subtitle: two lines of a film."""
LEAST_SHOWN_S: Final = 1.2
"""Minimum duration of a subtitle."""

Int16 = npt.NDArray[np.int16]
Progress = Callable[[float], None]


def make(folder: Folder, progress: Progress = lambda share: None) -> list[Path]:
    """Render a recording; returns the files that were written.

    Raises:
        OSError: there is no journal, or the disk is full.
        OtherJournal: the journal is of another format.
        NoHead: the journal has no head.
        ValueError: the session is too long.
    """
    plan = place(lines.read(folder.journal), partial(_length_s, folder))
    made = []
    if plan.length_s > LONGEST_S:
        raise ValueError("the session is too long to render")
    if plan.user or plan.assistant or plan.frames:
        write_wav(folder, plan)
        made.append(folder.replay_wav)
    progress(0.3)
    if plan.said:
        write_atomically(folder.subtitles, srt(plan.said).encode())
        write_atomically(folder.web_subtitles, vtt(plan.said).encode())
        made += [folder.subtitles, folder.web_subtitles]
    # A gateway on its own machine may lack the packages for video; audio always works.
    if plan.frames and all(importlib.util.find_spec(name) for name in ("av", "PIL")):
        write_mp4(folder, plan, lambda share: progress(0.3 + 0.7 * share))
        made.append(folder.replay_mp4)
    return made


def _length_s(folder: Folder, path: str) -> float:
    """Length of an audio file; 0 if it cannot be played."""
    import soundfile

    try:
        return float(soundfile.info(folder.path / path).duration)
    except (soundfile.LibsndfileError, OSError):
        return 0.0


# ---- audio ---------------------------------------------------------------------------------


def write_wav(folder: Folder, plan: Plan) -> None:
    """Write the stereo mix. Levels are unchanged."""
    user = _track(folder, plan.user, INPUT_RATE_HZ, plan.length_s)
    assistant = _track(folder, plan.assistant, OUTPUT_RATE_HZ, plan.length_s)
    with replacing(folder.replay_wav) as partial, wave.open(str(partial), "wb") as file:
        file.setnchannels(2)
        file.setsampwidth(2)
        file.setframerate(OUTPUT_RATE_HZ)
        at = 0
        for left in _at_output_rate(user):
            right = assistant[at : at + len(left)]
            at += len(left)
            stereo = np.zeros((len(left), 2), "<i2")
            stereo[:, 0] = left
            stereo[: len(right), 1] = right
            file.writeframes(stereo.tobytes())


def _track(folder: Folder, pieces: Sequence[PlacedPiece], rate_hz: int, length_s: float) -> Int16:
    """One complete channel: half an hour takes less than 100 MB."""
    track = np.zeros(round(length_s * rate_hz), np.int16)
    for piece in pieces:
        sound = _read(folder.path / piece.path, rate_hz)
        first = round(piece.offset_s * rate_hz)
        sound = sound[first : first + round(piece.length_s * rate_hz)]
        start = round(piece.start_s * rate_hz)
        room = track[start : start + len(sound)]
        # Pieces overlap only if clocks disagree; the sum must not wrap around.
        mixed = room.astype(np.int32) + sound[: len(room)]
        room[:] = np.clip(mixed, -32768, 32767)
    return track


def _read(path: Path, rate_hz: int) -> Int16:
    try:
        pcm = resample(load(path), rate_hz)
    except (OSError, BadInput):
        # A file that was truncated by a crash is rendered as silence.
        return np.zeros(0, np.int16)
    return np.rint(pcm.samples * 32767).astype(np.int16)


def _at_output_rate(track: Int16) -> Iterator[Int16]:
    stream = ResampleStream(INPUT_RATE_HZ, OUTPUT_RATE_HZ)
    step = BLOCK_S * INPUT_RATE_HZ
    for start in range(0, max(1, len(track)), step):
        block = track[start : start + step].astype(np.float32) / 32767
        out = stream.feed(
            Pcm(np.clip(block, -1, 1), INPUT_RATE_HZ), last=start + step >= len(track)
        )
        yield np.rint(out.samples * 32767).astype(np.int16)


# ---- captions-------------------------------------------------------------------------------


def clean(text: str) -> str:
    """Remove characters that subtitle formats or terminals would interpret."""
    kept = "".join(char if char.isprintable() else " " for char in text)
    return " ".join(kept.translate(_HARMLESS).split())


_HARMLESS = str.maketrans({"<": "‹", ">": "›", "{": "(", "}": ")", "\\": "/"})


def srt(said: Sequence[PlacedText]) -> str:
    """Subtitles in SubRip format; if both sides have words, with the speaker's name."""
    blocks: list[str] = []
    has_both = any(one.who == "user" for one in said)
    for name, start_s, end_s, text in _cues(said):
        times = f"{_stamp(start_s, ',')} --> {_stamp(end_s, ',')}"
        line = f"{name}: {text}" if has_both else text
        blocks.append(f"{len(blocks) + 1}\n{times}\n{line}\n")
    return "\n".join(blocks)


def vtt(said: Sequence[PlacedText]) -> str:
    """Subtitles in WebVTT format, with the speaker's voice tag."""
    blocks = ["WEBVTT\n"]
    for name, start_s, end_s, text in _cues(said):
        times = f"{_stamp(start_s, '.')} --> {_stamp(end_s, '.')}"
        escaped = text.replace("&", "&amp;")
        blocks.append(f"{times}\n<v {name}>{escaped}\n")
    return "\n".join(blocks)


def _cues(said: Sequence[PlacedText]) -> Iterator[tuple[str, float, float, str]]:
    """Subtitles: speaker, start, end, text. A long answer is split into parts, with times
    proportional to their text."""
    for one in said:
        parts = textwrap.wrap(clean(one.text), SRT_CHARS)
        total = sum(map(len, parts))
        start_s = one.start_s
        for part in parts:
            end_s = start_s + (one.end_s - one.start_s) * len(part) / total
            shown_s = max(end_s, start_s + LEAST_SHOWN_S) if len(parts) == 1 else end_s
            yield one.who.capitalize(), start_s, shown_s, part
            start_s = end_s


def _stamp(seconds: float, point: str) -> str:
    ms = round(seconds * 1000)
    hours, minutes, full_s = ms // 3_600_000, ms // 60_000 % 60, ms // 1000 % 60
    return f"{hours:02d}:{minutes:02d}:{full_s:02d}{point}{ms % 1000:03d}"


# ---- video ---------------------------------------------------------------------------------


def write_mp4(folder: Folder, plan: Plan, progress: Progress) -> None:
    """Write the video: images when they were sent, captions below, the mix as audio."""
    import av

    with (
        replacing(folder.replay_mp4) as partial,
        av.open(str(partial), "w", format="mp4", options={"movflags": "faststart"}) as film,
    ):
        codec = next(name for name in CODECS if name in av.codecs_available)
        video = film.add_stream(codec, rate=10)
        video.width, video.height = SIZE
        video.pix_fmt = "yuv420p"
        video.time_base = video.codec_context.time_base = Fraction(1, 1000)
        video.codec_context.thread_count = 1
        if codec == "libx264":
            video.options = {"preset": "ultrafast", "crf": "26"}
        sound = film.add_stream("aac", rate=OUTPUT_RATE_HZ, layout="stereo")
        packets = _sound_packets(folder, sound)
        waiting = next(packets, None)
        for at_s, image in _images(folder, plan):
            # Interleaved, so that players need not seek.
            while waiting is not None and waiting[0] <= at_s:
                film.mux(waiting[1])
                waiting = next(packets, None)
            frame = av.VideoFrame.from_ndarray(image, format="rgb24")
            frame.pts, frame.time_base = round(1000 * at_s), Fraction(1, 1000)
            film.mux(video.encode(frame))
            progress(min(1.0, at_s / plan.length_s))
        film.mux(video.encode())
        while waiting is not None:
            film.mux(waiting[1])
            waiting = next(packets, None)


def _sound_packets(folder: Folder, stream: Any) -> Iterator[tuple[float, list[av.Packet]]]:
    import av

    with wave.open(str(folder.replay_wav), "rb") as file:
        at = 0
        while data := file.readframes(1024):
            samples = np.frombuffer(data, "<i2").reshape(1, -1)
            frame = av.AudioFrame.from_ndarray(samples, format="s16", layout="stereo")
            frame.sample_rate = OUTPUT_RATE_HZ
            frame.pts, frame.time_base = at, Fraction(1, OUTPUT_RATE_HZ)
            yield at / OUTPUT_RATE_HZ, stream.encode(frame)
            at += samples.shape[1] // 2
        yield at / OUTPUT_RATE_HZ, stream.encode(None)


def _images(folder: Folder, plan: Plan) -> Iterator[tuple[float, npt.NDArray[np.uint8]]]:
    """Video frames: one whenever something changes, and at least one per second."""
    from PIL import Image

    font = _font()
    changes = {0.0, plan.length_s}
    changes |= {at_s for at_s, _ in plan.frames}
    changes |= {piece.start_s for piece in plan.assistant}
    spoken = [one for one in plan.said if one.who == "assistant"]
    for one in spoken:
        changes |= {one.start_s, one.end_s + CAPTION_STAYS_S}
    changes |= {float(second) for second in range(int(plan.length_s) + 1)}
    times = sorted({round(at_s, 3) for at_s in changes})
    frames = sorted(plan.frames)
    scene = Image.new("RGB", SIZE, "black")
    shown = 0
    for at_s, until_s in zip(times, [*times[1:], math.inf], strict=True):
        newest = shown
        while newest < len(frames) and frames[newest][0] <= at_s + 0.0005:
            newest += 1
        if newest > shown:
            scene = _fitted(folder.path / frames[newest - 1][1]) or scene
            shown = newest
        yield at_s, _captioned(scene, clean(caption(spoken, at_s, until_s)), font)


def caption(spoken: Sequence[PlacedText], at_s: float, until_s: float) -> str:
    """The words below the image between two times: those of the newest speech that are spoken by
    then."""
    for one in reversed(spoken):
        if one.start_s <= at_s + 0.0005 < one.end_s + CAPTION_STAYS_S:
            length_s = one.end_s - one.start_s
            share = (until_s - one.start_s) / length_s if length_s else 1.0
            return heard_part(one.text, min(1.0, share))
    return ""


def _fitted(path: Path) -> Any:
    from PIL import Image, ImageOps

    from parley.media.image import decode_image

    try:
        picture = Image.fromarray(decode_image(path.read_bytes(), limit_pixels=FRAME_PIXELS))
    except (OSError, BadInput):
        return None
    return ImageOps.pad(picture, SIZE)


def _captioned(scene: Any, text: str, font: Any) -> npt.NDArray[np.uint8]:
    from PIL import ImageDraw

    if not text:
        return np.asarray(scene, np.uint8)
    image = scene.copy()
    pen = ImageDraw.Draw(image)
    lines = wrap(text, lambda part: float(font.getlength(part)), SIZE[0] * 0.9)[-CAPTION_LINES:]
    line_height = round(FONT_PIXELS * 1.3)
    top = SIZE[1] - line_height * len(lines) - 30
    for number, line in enumerate(lines):
        place_at = (SIZE[0] / 2, top + number * line_height)
        pen.text(
            place_at,
            line,
            fill="white",
            font=font,
            anchor="ma",
            stroke_width=3,
            stroke_fill="black",
        )
    return np.asarray(image, np.uint8)


def wrap(text: str, width: Callable[[str], float], most: float) -> list[str]:
    """Break text into lines no wider than `most`: at spaces if possible, else anywhere."""
    lines = [""]
    for word in text.replace(" ", " \0").split("\0"):
        if width(lines[-1] + word.rstrip()) <= most:
            lines[-1] += word
            continue
        if lines[-1] and width(word.rstrip()) <= most:
            lines.append(word)
            continue
        for char in word:
            if lines[-1] and width(lines[-1] + char) > most:
                lines.append("")
            lines[-1] += char
    return [line.strip() for line in lines if line.strip()]


def _font() -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    """A font with Chinese characters, if fontconfig finds one."""
    from PIL import ImageFont

    finder = shutil.which("fc-match")
    if finder:
        found = subprocess.run(
            [finder, "-f", "%{file}", "sans:lang=zh"],
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
        ).stdout
        # Without one, the built-in font has Latin letters.
        with contextlib.suppress(OSError):
            return ImageFont.truetype(found, FONT_PIXELS)
    return ImageFont.load_default(FONT_PIXELS)


def main(arguments: Sequence[str]) -> int:
    """Render one recording as a low-priority process."""
    os.nice(19)
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_LIMIT_S, CPU_LIMIT_S))
    folder = Folder(Path(arguments[0]))
    with open(folder.replay_lock, "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return 0  # another process is rendering it
        if (store.replay_state(folder) or {}).get("state") != "done":
            _make_and_report(folder)
    return 0


def _make_and_report(folder: Folder) -> None:
    last = 0.0

    def progress(share: float) -> None:
        nonlocal last
        if share - last >= 0.05:
            last = share
            set_state(folder, "running", share)

    set_state(folder, "running", 0.0)
    made = make(folder, progress)
    set_state(folder, "done", 1.0, files=[path.name for path in made])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
