import io
import itertools
import struct

import av
import numpy as np
import pytest
from tests.support.clips import grey_of, make_clip

from parley.errors import ContextFull, InvalidPayload, TooLarge
from parley.media import video
from parley.media.pcm import Pcm, level_dbfs
from parley.media.room import ContextRoom
from parley.media.video import (
    MAX_FRAMES,
    decode_video,
    frame_times,
    stack,
    stack_times,
)


def grey(height, width, value):
    return np.full((height, width, 3), value, np.uint8)


def test_one_frame_per_second_with_the_sound_of_that_second():
    clip = decode_video(make_clip(seconds=2.5))

    assert clip.times_s == (0.0, 1.0, 2.0)
    assert [len(sound) for sound in clip.sounds] == [16_000, 16_000, 8_000]
    for second, frame in enumerate(clip.frames):
        assert frame.shape == (48, 64, 3)
        assert abs(float(frame.mean()) - grey_of(second * 10)) < 8
    assert level_dbfs(clip.sounds[1]) == pytest.approx(-9.03, abs=0.5)


@pytest.mark.parametrize(
    ("picture_s", "sound_s", "is_heard"),
    [(10, 10, [True, True, True]), (0, 1, [False, True, True]), (5, 4, [True, True, False])],
)
def test_sound_belongs_to_the_pictures_of_its_time(picture_s, sound_s, is_heard):
    """A piece of a longer recording does not start at 0."""
    buffer = io.BytesIO()
    with (
        av.open(io.BytesIO(make_clip(seconds=3.0))) as clip,
        av.open(buffer, "w", format="matroska") as out,
    ):
        streams = {each: out.add_stream_from_template(each) for each in clip.streams}
        for packet in clip.demux():
            late_s = picture_s if packet.stream.type == "video" else sound_s
            if packet.dts is not None:
                packet.pts += round(late_s / packet.time_base)
                packet.dts += round(late_s / packet.time_base)
                packet.stream = streams[packet.stream]
                out.mux(packet)

    sounds = decode_video(buffer.getvalue()).sounds

    assert [level_dbfs(sound) > -12 for sound in sounds] == is_heard


def test_parts_come_as_frame_sound_stack():
    clip = decode_video(make_clip(seconds=2.0), stack_frames=3)

    kinds = ["sound" if isinstance(part, Pcm) else part.shape for part in clip.parts()]

    frame = (48, 64, 3)
    assert kinds == [frame, "sound", (48 * 2 + 6, 64, 3)] * 2


def test_a_clip_without_sound_has_no_sounds():
    clip = decode_video(make_clip(seconds=1.0, sound=False))

    assert clip.sounds == ()
    (part,) = clip.parts()
    assert isinstance(part, np.ndarray)
    assert part.shape == (48, 64, 3)


def test_a_browser_recording_without_a_length_is_measured():
    data = make_clip(seconds=2.0, container="webm", codec="libvpx")

    assert decode_video(data).duration_s == pytest.approx(2.0, abs=0.11)


def test_a_sideways_clip_is_turned_upright():
    data = make_clip(seconds=1.0, sound=False)
    upright = struct.pack(">9i", 0x10000, 0, 0, 0, 0x10000, 0, 0, 0, 0x40000000)
    quarter = struct.pack(">9i", 0, 0x10000, 0, -0x10000, 0, 0, 0, 0, 0x40000000)
    header = data.index(b"tkhd")
    assert data[header + 44 : header + 80] == upright

    clip = decode_video(data[: header + 44] + quarter + data[header + 80 :])

    assert clip.frames[0].shape == (64, 48, 3)


def test_a_clip_of_part_of_a_second_has_one_frame_and_some_sound():
    clip = decode_video(make_clip(seconds=0.05, fps=20))

    assert len(clip.frames) == 1
    assert len(clip.sounds[0]) >= 1600


def test_long_clips_are_thinned_evenly():
    times = frame_times(100.0)

    assert len(times) == MAX_FRAMES
    assert times[0] == 0.0
    assert times[-1] == pytest.approx(99.9)
    assert all(1.4 < later - earlier < 1.8 for earlier, later in itertools.pairwise(times))


def test_clips_up_to_the_limit_have_a_frame_each_second():
    assert frame_times(64.0) == [float(second) for second in range(64)]
    assert frame_times(63.2)[-1] == 63.0


def test_stacks_never_reach_past_the_end():
    assert stack_times(1.5, 4) == [0.25, 0.5, 0.75, 1.25]
    assert stack_times(1.5, 1) == []
    assert len(stack_times(200.0, 3)) == 2 * MAX_FRAMES


def test_a_long_clip_is_thinned_when_decoded():
    clip = decode_video(make_clip(seconds=70.0, fps=2, size=(32, 32)), stack_frames=2)

    assert len(clip.frames) == len(clip.sounds) == len(clip.stacks) == MAX_FRAMES
    assert sum(len(sound) for sound in clip.sounds) == pytest.approx(70 * 16_000, rel=0.01)


@pytest.mark.parametrize(
    ("count", "size", "expected"),
    [
        (1, (10, 20), (10, 20)),
        (2, (10, 20), (26, 20)),
        (2, (20, 10), (20, 26)),
        (3, (10, 40), (42, 40)),
        (4, (10, 20), (26, 46)),
        (5, (10, 20), (10, 124)),
    ],
)
def test_stacked_frames_lie_as_square_as_they_can(count, size, expected):
    tiled = stack([grey(size[0], size[1], 100)] * count)

    assert tiled.shape[:2] == expected


def test_a_smaller_frame_is_letterboxed_on_white_with_black_lines_between():
    tiled = stack([grey(10, 40, 100), grey(10, 20, 100)])

    assert tiled.shape == (26, 40, 3)
    assert (tiled[10:16] == 0).all()
    assert (tiled[16:, :10] == 255).all()
    assert (tiled[16:, 10:30] == 100).all()


@pytest.mark.parametrize("data", [b"", b"garbage" * 100, None])
def test_what_is_not_a_video_is_refused(data):
    data = make_clip(seconds=1.0)[:300] if data is None else data
    with pytest.raises(InvalidPayload, match="video"):
        decode_video(data)


@pytest.mark.parametrize(
    ("name", "limit", "sentence"),
    [
        ("VIDEO_LIMIT_BYTES", 100, "The video is too large: .* bytes, the limit is 100 bytes"),
        ("DURATION_LIMIT_S", 1.0, "The video is too large: 2 s, the limit is 1 s"),
        ("LIMIT_PIXELS", 100, "A frame of the video is too large: 3072 pixels"),
        ("PACKETS_LIMIT", 5, "The video is too large: 6 frames"),
    ],
)
def test_limits_are_kept(monkeypatch, name, limit, sentence):
    monkeypatch.setattr(video, name, limit)
    data = make_clip(seconds=2.0)

    with pytest.raises(TooLarge, match=sentence):
        decode_video(data)


def test_frames_and_stacks_together_stay_within_the_memory_they_may_take(monkeypatch):
    monkeypatch.setattr(video, "DECODED_BYTES", 200_000)
    data = make_clip(seconds=3.0, size=(320, 240))

    clip = decode_video(data, stack_frames=5)

    kept = [*clip.frames, *(stack for stack in clip.stacks if stack is not None)]
    assert len(kept) == 6
    assert sum(pixels.nbytes for pixels in kept) <= 200_000
    assert all(abs(frame.shape[1] / frame.shape[0] - 4 / 3) < 0.2 for frame in clip.frames)


def test_cells_of_a_stack_stay_small_when_a_clip_changes_its_shape():
    canvas = stack([grey(4, 1000, 9), grey(1000, 4, 9), grey(4, 4, 9)], cell_pixels=4000)

    assert canvas.nbytes < 3 * 3 * 4000 * 1.2


def test_a_clip_that_the_context_cannot_take_is_refused_before_a_frame_is_decoded(monkeypatch):
    def never(*args):
        raise AssertionError("a frame was decoded")

    monkeypatch.setattr("parley.media.video._decode_frames", never)
    room = ContextRoom(limit_tokens=639, image_tokens=64, audio_tokens_per_s=10)

    with pytest.raises(ContextFull, match="length is 639 tokens, the request has at least 640"):
        decode_video(make_clip(seconds=5.0), stack_frames=2, room=room)


def test_stack_frames_has_a_range():
    with pytest.raises(InvalidPayload, match="stack_frames must be 1 to 16, got 0"):
        decode_video(b"x", stack_frames=0)


def test_a_clip_of_too_many_pixels_in_all_is_refused_before_a_frame_is_decoded(monkeypatch):
    """One key frame, and then nothing changes: a few bytes a frame, and all the work."""
    data = make_clip(seconds=3.0, fps=10, sound=False, gop=1000)
    monkeypatch.setattr(
        "parley.media.video._decode_frames", lambda *_, **__: pytest.fail("decoded")
    )
    monkeypatch.setattr(video, "WORK_PIXELS", 64 * 48 * 20)

    with pytest.raises(TooLarge, match="All frames of the video together") as found:
        decode_video(data)

    assert (found.value.size, found.value.unit) == (64 * 48 * 31, "pixels")


def test_a_clip_of_too_much_work_is_shown_by_its_key_frames_if_they_are_close(monkeypatch):
    monkeypatch.setattr(video, "WORK_PIXELS", 64 * 48 * 20)
    data = make_clip(seconds=3.0, fps=10, gop=10)

    clip = decode_video(data)

    assert clip.times_s == tuple(float(second) for second in range(3))
    for second, frame in enumerate(clip.frames):
        assert abs(float(frame.mean()) - grey_of(second * 10)) < 8


def test_frames_that_are_larger_than_the_container_says_are_counted(monkeypatch):
    monkeypatch.setattr(video, "WORK_PIXELS", 640 * 480 * 5)
    data = make_clip(seconds=2.0, fps=10, size=(640, 480), sound=False, container="avi")
    header = data.index(b"strf") + 8
    assert struct.unpack("<ii", data[header + 4 : header + 12]) == (640, 480)
    lying = data[: header + 4] + struct.pack("<ii", 16, 16) + data[header + 12 :]

    with pytest.raises(TooLarge, match="All frames of the video together"):
        decode_video(lying)
