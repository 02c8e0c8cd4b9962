"""Decodes a clip to frames and audio, for chat messages with a video.

One frame per second with the audio of that second; in clips longer than `MAX_FRAMES` seconds,
frames are thinned out evenly. Source of the rules: model.md 10.3.

Clips are not trusted: bytes, duration and pixels have limits, and the memory is bounded in advance:
frames and tiled pictures are scaled so that together they take at most `DECODED_BYTES`.
Call it only in a decoder's child process (see `decoder`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from PIL import Image

from parley.errors import InvalidPayload, TooLarge
from parley.media.container import open_container
from parley.media.image import LIMIT_PIXELS, Pixels
from parley.media.pcm import INPUT_RATE_HZ, Pcm
from parley.media.room import ContextRoom
from parley.protocol.values import VIDEO_LIMIT_BYTES

if TYPE_CHECKING:
    import av

MAX_FRAMES = 64
"""Maximum number of frames from one clip. Source: model.md 10.3."""

CANDIDATE_S = 0.1
"""Interval of the candidate frames of long clips. Source: as above."""

MIN_SOUND_SAMPLES = 1600
"""The last piece of sound is padded to this length. Source: as above."""

SEPARATOR_PX = 6
MAX_STACK = 16
SIDE_LIMIT_PX = 1920
"""Larger frames are scaled down first: the model's finest slicing uses fewer pixels."""

KEY_FRAME_S = 2.0
"""If a clip is too much work, only its key frames are decoded, provided that no two are further
apart than this or than the frames that are taken."""

_SLACK_S = 1e-4
"""Timestamps are fractions of a time base; a frame this little late still counts."""


DURATION_LIMIT_S = 600.0
PACKETS_LIMIT = 200_000
WORK_PIXELS = 8_000_000_000
"""Pixels of all frames that have to be decoded, wanted or not; one core decodes 0.4e9 to 2e9 a
second. A clip of more is shown by its key frames, if they are close."""
DECODED_BYTES = 128 * 1024 * 1024
"""All frames, stacked pictures and what they are made of; a 64 second clip keeps half a megapixel a
frame, of which the model sees 448 × 448."""


@dataclass(frozen=True, slots=True, eq=False)
class VideoClip:
    """Frames of a clip in order, and what was heard from each to the next.

    Args:
        frames: `n` pictures, uint8 (H, W, 3).
        times_s: when each is shown, shape (n,).
        sounds: 16 kHz mono, one per frame; none at all when the clip has no sound.
        stacks: one per frame: further frames of the same stretch tiled into one picture, or None.
    """

    frames: tuple[Pixels, ...]
    times_s: tuple[float, ...]
    sounds: tuple[Pcm, ...]
    stacks: tuple[Pixels | None, ...]
    duration_s: float

    def parts(self) -> Iterator[Pixels | Pcm]:
        """Frame, its sound, its stack, next frame, … in the order in which a model reads them."""
        for index, frame in enumerate(self.frames):
            yield frame
            if self.sounds:
                yield self.sounds[index]
            stack = self.stacks[index]
            if stack is not None:
                yield stack


def decode_video(
    data: bytes,
    *,
    stack_frames: int = 1,
    room: ContextRoom | None = None,
) -> VideoClip:
    """Frames and sound of a clip in any container and codec that FFmpeg reads.

    Args:
        stack_frames: frames per second; those after the first of each second are tiled into one
            picture.
        room: what the context can take; asked before a frame is decoded.

    Raises:
        InvalidPayload: not a video, or damaged, or `stack_frames` out of range.
        TooLarge: beyond one of the limits.
        ContextFull: more pictures than `room` has tokens for.
    """
    import av

    if len(data) > VIDEO_LIMIT_BYTES:
        raise TooLarge("The video", len(data), VIDEO_LIMIT_BYTES)
    if not 1 <= stack_frames <= MAX_STACK:
        raise InvalidPayload(f"stack_frames must be 1 to {MAX_STACK}, got {stack_frames}.")
    try:
        start_s, duration_s, only_keys = _measure(data)
        times_s = frame_times(duration_s)
        extra_s = stack_times(duration_s, stack_frames)
        groups = _group(extra_s, times_s)
        if room is not None:
            room.take(pictures=len(times_s) + sum(1 for extras in groups if extras))
        wanted_s = sorted({*times_s, *extra_s})
        shown = _decode_frames(data, wanted_s, only_keys=only_keys)
        sound = _decode_sound(data, start_s)
    except MemoryError:
        raise
    except (av.FFmpegError, ValueError, EOFError) as error:
        raise InvalidPayload("The video cannot be read.") from error
    frames = tuple(shown[time_s] for time_s in times_s)
    cell_pixels = _frame_pixels(len(times_s) + len(extra_s))
    stacks: list[Pixels | None] = []
    for extras in groups:
        # Taken out one by one: a frame and the picture it becomes part of are not both kept.
        tiles = [shown.pop(extra) for extra in extras]
        stacks.append(stack(tiles, cell_pixels=cell_pixels) if tiles else None)
    return VideoClip(
        frames=frames,
        times_s=tuple(times_s),
        sounds=_cut_sound(sound, times_s, duration_s),
        stacks=tuple(stacks),
        duration_s=duration_s,
    )


def frame_times(duration_s: float) -> list[float]:
    """Times of the frames: every second, or `MAX_FRAMES` evenly spread instants."""
    if duration_s <= MAX_FRAMES:
        return [float(second) for second in range(max(1, math.ceil(duration_s)))]
    candidates = [round(index * CANDIDATE_S, 6) for index in range(int(duration_s / CANDIDATE_S))]
    return _thin(candidates, MAX_FRAMES)


def stack_times(duration_s: float, stack_frames: int) -> list[float]:
    """Times of the frames between the seconds, at most `MAX_FRAMES` times the stack."""
    if stack_frames == 1:
        return []
    times_s = [
        second + step / stack_frames
        for second in range(max(1, math.ceil(duration_s)))
        for step in range(1, stack_frames)
        if second + step / stack_frames < duration_s
    ]
    limit = MAX_FRAMES * (stack_frames - 1)
    return _thin(times_s, limit) if len(times_s) > limit else times_s


def stack(frames: Sequence[Pixels], *, cell_pixels: int | None = None) -> Pixels:
    """Several frames in one picture: letterboxed on white in equal cells, black lines between.

    Two or three frames stand side by side or one above the other, whichever is closer to a square;
    four make two rows; more stand in one row. Source: model.md 10.3.

    Args:
        cell_pixels: no cell is larger. A clip may change its shape from frame to frame, and cells
            are as high as the highest and as wide as the widest.
    """
    height = max(frame.shape[0] for frame in frames)
    width = max(frame.shape[1] for frame in frames)
    if cell_pixels is not None and height * width > cell_pixels:
        scale = math.sqrt(cell_pixels / (height * width))
        height, width = max(1, int(height * scale)), max(1, int(width * scale))
    rows, columns = _layout(len(frames), height, width, frames)
    canvas = np.zeros(
        (
            rows * height + (rows - 1) * SEPARATOR_PX,
            columns * width + (columns - 1) * SEPARATOR_PX,
            3,
        ),
        np.uint8,
    )
    for index, frame in enumerate(frames):
        top = (index // columns) * (height + SEPARATOR_PX)
        left = (index % columns) * (width + SEPARATOR_PX)
        canvas[top : top + height, left : left + width] = _letterbox(frame, height, width)
    return canvas


def _layout(count: int, height: int, width: int, frames: Sequence[Pixels]) -> tuple[int, int]:
    if count == 4:
        return 2, 2
    if count not in (2, 3):
        return 1, count

    def squareness(rows: int, columns: int) -> float:
        tall = rows * height + (rows - 1) * SEPARATOR_PX
        wide = columns * width + (columns - 1) * SEPARATOR_PX
        return abs(math.log(wide / tall))

    side_by_side, one_above = squareness(1, count), squareness(count, 1)
    if math.isclose(side_by_side, one_above):
        aspect = sum(frame.shape[1] / frame.shape[0] for frame in frames) / count
        return (1, count) if aspect >= 1 else (count, 1)
    return (1, count) if side_by_side < one_above else (count, 1)


def _letterbox(frame: Pixels, height: int, width: int) -> Pixels:
    scale = min(height / frame.shape[0], width / frame.shape[1])
    inner_height = max(1, round(frame.shape[0] * scale))
    inner_width = max(1, round(frame.shape[1] * scale))
    inner = frame
    if (inner_height, inner_width) != frame.shape[:2]:
        picture = Image.fromarray(frame).resize(
            (inner_width, inner_height), Image.Resampling.BICUBIC
        )
        inner = np.asarray(picture)
    cell = np.full((height, width, 3), 255, np.uint8)
    top, left = (height - inner_height) // 2, (width - inner_width) // 2
    cell[top : top + inner_height, left : left + inner_width] = inner
    return cell


def _frame_pixels(count: int) -> int:
    """Pixels per frame so that `count` frames fit; one group of frames exists twice while it is
    tiled."""
    return max(1, DECODED_BYTES // (3 * (count + 2 * MAX_STACK)))


def _thin(times_s: list[float], count: int) -> list[float]:
    picks = np.linspace(0, len(times_s) - 1, count).astype(int)
    return [times_s[index] for index in picks]


def _group(extra_s: Sequence[float], times_s: Sequence[float]) -> list[list[float]]:
    """Group extra instants by the frame whose interval contains them."""
    groups: list[list[float]] = [[] for _ in times_s]
    for extra in extra_s:
        index = int(np.searchsorted(times_s, extra, side="right")) - 1
        if extra != times_s[index]:
            groups[index].append(extra)
    return groups


def _measure(data: bytes) -> tuple[float, float, bool]:
    """Start of the pictures and length in seconds, and whether to decode key frames only; from the
    packets alone, because headers may lack the length (browser recordings)."""
    with open_container(data) as container:
        if not container.streams.video:
            raise InvalidPayload("The video has no picture track.")
        stream = container.streams.video[0]
        pixels = stream.codec_context.width * stream.codec_context.height
        if pixels > LIMIT_PIXELS:
            raise TooLarge("A frame of the video", pixels, LIMIT_PIXELS, "pixels")
        rate = float(stream.average_rate or 0)
        starts_s: list[float] = []
        keys_s: list[float] = []
        end_s, packets = 0.0, 0
        for packet in container.demux(stream):
            packets += 1
            if packets > PACKETS_LIMIT:
                raise TooLarge("The video", packets, PACKETS_LIMIT, "frames")
            if packet.pts is None or packet.time_base is None:
                continue
            start_s = float(packet.pts * packet.time_base)
            starts_s.append(start_s)
            if packet.is_keyframe:
                keys_s.append(start_s)
            length_s = float((packet.duration or 0) * packet.time_base)
            end_s = max(end_s, start_s + (length_s or (1 / rate if rate else 0.0)))
        if not starts_s:
            raise InvalidPayload("The video has no frames.")
    start_s = min(starts_s)
    duration_s = end_s - start_s
    if duration_s > DURATION_LIMIT_S:
        raise TooLarge("The video", duration_s, DURATION_LIMIT_S, "s")
    only_keys = packets * pixels > WORK_PIXELS
    if only_keys:
        step_s = max(KEY_FRAME_S, duration_s / MAX_FRAMES)
        gaps_s = np.diff([start_s, *sorted(keys_s), end_s])
        if len(keys_s) * pixels > WORK_PIXELS or gaps_s.max() > step_s + _SLACK_S:
            raise _too_much_work(packets * pixels)
    return start_s, duration_s, only_keys


def _too_much_work(pixels: int) -> TooLarge:
    return TooLarge("All frames of the video together", pixels, WORK_PIXELS, "pixels")


def _decode_frames(
    data: bytes, times_s: Sequence[float], *, only_keys: bool
) -> dict[float, Pixels]:
    """The frame on screen at each instant: the newest one shown at or before it.

    Raises:
        TooLarge: frames are larger, or more, than the container said.
    """
    shown: dict[float, Pixels] = {}
    frame_pixels = _frame_pixels(len(times_s))
    with open_container(data) as container:
        stream = container.streams.video[0]
        if only_keys:
            stream.codec_context.skip_frame = "NONKEY"
        worked_pixels = 0
        waiting = list(times_s)
        before: av.VideoFrame | None = None
        origin_s: float | None = None

        def keep(frame: av.VideoFrame, until_s: float) -> None:
            pixels: Pixels | None = None
            while waiting and waiting[0] < until_s - _SLACK_S:
                if pixels is None:
                    pixels = _pixels(frame, frame_pixels)
                shown[waiting.pop(0)] = pixels

        for frame in container.decode(stream):
            worked_pixels += frame.width * frame.height
            if worked_pixels > WORK_PIXELS:
                raise _too_much_work(worked_pixels)
            if frame.pts is None:
                continue
            start_s = float(frame.pts * (frame.time_base or stream.time_base or 0))
            origin_s = start_s if origin_s is None else origin_s
            if before is not None:
                keep(before, start_s - origin_s)
            before = frame
            if not waiting:
                break
        if before is None:
            raise InvalidPayload("The video has no frames.")
        keep(before, math.inf)
    return shown


def _pixels(frame: av.VideoFrame, most_pixels: int) -> Pixels:
    if frame.width * frame.height > LIMIT_PIXELS:
        raise TooLarge("A frame of the video", frame.width * frame.height, LIMIT_PIXELS, "pixels")
    scale = min(
        1.0,
        SIDE_LIMIT_PX / max(frame.width, frame.height),
        math.sqrt(most_pixels / (frame.width * frame.height)),
    )
    if scale < 1.0:
        frame = frame.reformat(
            width=max(1, round(frame.width * scale)),
            height=max(1, round(frame.height * scale)),
            format="rgb24",
        )
    pixels = frame.to_ndarray(format="rgb24")
    # Phones film sideways and say so in the clip's display matrix, in degrees counterclockwise,
    # which PyAV before 14 does not report.
    quarter_turns = round(getattr(frame, "rotation", 0) / 90)
    return np.ascontiguousarray(np.rot90(pixels, k=quarter_turns))


def _decode_sound(data: bytes, start_s: float) -> npt.NDArray[np.float32] | None:
    """Samples at 16 kHz from the first picture, at `start_s`, shape (N,); None if there is no sound
    track. Pieces of longer recordings do not start at 0."""
    from av.audio.resampler import AudioResampler

    with open_container(data) as container:
        if not container.streams.audio:
            return None
        resampler = AudioResampler(format="fltp", layout="mono", rate=INPUT_RATE_HZ)
        pieces: list[npt.NDArray[np.float32]] = []
        early, count, limit = 0, 0, math.ceil((DURATION_LIMIT_S + 1) * INPUT_RATE_HZ)
        for frame in container.decode(container.streams.audio[0]):
            if not pieces and frame.pts is not None and frame.time_base is not None:
                late = round((float(frame.pts * frame.time_base) - start_s) * INPUT_RATE_HZ)
                early = max(0, -late)
                pieces.append(np.zeros(min(limit, max(0, late)), np.float32))
                count = len(pieces[0])
            for converted in resampler.resample(frame):
                pieces.append(converted.to_ndarray()[0].astype(np.float32, copy=False))
                count += len(pieces[-1])
            if count > limit:
                break
        pieces += [converted.to_ndarray()[0] for converted in resampler.resample(None)]
    if not pieces:
        return None
    return np.clip(np.concatenate(pieces)[early:], -1.0, 1.0).astype(np.float32, copy=False)


def _cut_sound(
    sound: npt.NDArray[np.float32] | None, times_s: Sequence[float], duration_s: float
) -> tuple[Pcm, ...]:
    if sound is None:
        return ()
    borders = [int(time_s * INPUT_RATE_HZ) for time_s in times_s]
    borders.append(max(int(duration_s * INPUT_RATE_HZ), borders[-1] + MIN_SOUND_SAMPLES))
    whole = np.zeros(borders[-1], np.float32)
    fitting = sound[: borders[-1]]
    whole[: len(fitting)] = fitting
    return tuple(
        Pcm(whole[start:stop], INPUT_RATE_HZ) for start, stop in itertools.pairwise(borders)
    )
