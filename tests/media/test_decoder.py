"""Large, slow or hostile files are decoded in a child and harm only that child."""

import contextlib
import io
import json
import os
import signal
import struct
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from fractions import Fraction

import av
import numpy as np
import psutil
import pytest
import soundfile
from PIL import Image
from tests.support.clips import make_clip
from tests.support.patience import HANG_S

from parley.errors import ContextFull, InvalidPayload, ServiceUnavailable, TooLarge
from parley.media import decoder as decoders
from parley.media.decoder import MIB, Decoder, DecoderLimits
from parley.media.decoding_order import Stop
from parley.media.image import decode_image
from parley.media.pcm import Pcm
from parley.media.room import ContextRoom
from parley.media.video import decode_video
from parley.settings import LimitSettings

pytestmark = pytest.mark.starts_python

HEAVY = (2100, 2000)
"""Just above what is decoded in the process itself."""


def png(size, mode="RGB"):
    buffer = io.BytesIO()
    Image.new(mode, size).save(buffer, "PNG")
    return buffer.getvalue()


def photo(size, form="JPEG", **options):
    width, height = size
    ramp = np.linspace(0, 255, width * height * 3).astype(np.uint8).reshape(height, width, 3)
    buffer = io.BytesIO()
    Image.fromarray(ramp).save(buffer, form, **options)
    return buffer.getvalue()


def one_picture_over_and_over(frames):
    """A clip of 1280 × 720 whose pictures are encoded once and decoded one by one."""
    buffer = io.BytesIO()
    with av.open(buffer, "w", format="mp4") as out:
        stream = out.add_stream("mpeg4", rate=30)
        stream.width, stream.height, stream.pix_fmt = 1280, 720, "yuv420p"
        picture = av.VideoFrame.from_ndarray(np.full((720, 1280, 3), 90, np.uint8), format="rgb24")
        encoded = bytes((list(stream.encode(picture)) + list(stream.encode()))[0])
        for index in range(frames):
            packet = av.Packet(encoded)
            packet.stream, packet.time_base, packet.is_keyframe = stream, Fraction(1, 30), True
            packet.pts = packet.dts = index
            out.mux(packet)
    return buffer.getvalue()


@pytest.fixture
def decoder():
    with closing(Decoder()) as decoder:
        yield decoder


@pytest.fixture(scope="module")
def bomb():
    """63 million pixels in less than 200 KB."""
    return png((8000, 7900))


def plain(part):
    return part.samples if isinstance(part, Pcm) else part


OTHERS: set[int] = set()
"""Processes of decoders that other tests in this process have used and not closed."""


@pytest.fixture(autouse=True)
def _others():
    OTHERS.clear()
    OTHERS.update(each.pid for each in children_of())


def children_of(pid=None):
    found = []
    for each in psutil.Process(pid).children():
        # What has ended, and nobody has waited for, has no command line.
        with contextlib.suppress(psutil.ZombieProcess, psutil.NoSuchProcess):
            if each.pid not in OTHERS and "parley.media.decoder_child" in " ".join(each.cmdline()):
                found.append(each)
    return found


def test_a_child_gives_what_decoding_here_gives(decoder):
    picture, film = photo(HEAVY), make_clip(seconds=2.5)

    assert np.array_equal(decoder.image(picture), decode_image(picture))
    there, here = decoder.video(film, stack_frames=3), decode_video(film, stack_frames=3)
    assert there.times_s == here.times_s
    assert there.duration_s == here.duration_s
    for one, other in zip(there.parts(), here.parts(), strict=True):
        assert np.array_equal(plain(one), plain(other))


def test_small_pictures_start_no_child(decoder):
    before = children_of()

    decoder.image(photo((640, 480)))

    assert children_of() == before


@pytest.mark.parametrize(
    "data",
    [
        photo((64, 64)),
        photo((64, 64), "MPO", save_all=True, append_images=[Image.new("RGB", (64, 64))]),
    ],
    ids=["one picture", "several"],
)
def test_a_small_jpeg_of_very_many_scans_goes_to_the_child(decoder, data):
    before = len(children_of())

    scans = b"\xff\xda" * 100
    remark = b"\xff\xfe" + struct.pack(">H", len(scans) + 2) + scans
    decoder.image(data[:2] + remark + data[2:])

    assert len(children_of()) == before + 1


def test_a_picture_of_63_million_pixels_stays_out_of_this_process(decoder, bomb):
    decoder.image(photo(HEAVY))  # the child is there
    me = psutil.Process()
    before = me.memory_info().rss

    pixels = decoder.image(bomb, keep_pixels=8_000_000)

    assert pixels.size <= 3 * 8_000_000
    assert me.memory_info().rss - before < 100 * MIB


LITTLE = DecoderLimits.of(LimitSettings(decoder_mb=128))


@pytest.mark.parametrize(
    ("limits", "later", "why"),
    [
        (LITTLE, LITTLE, "needs more memory to decode than the 128 MiB"),
        (DecoderLimits(job_s=0.05), DecoderLimits(), r"image takes longer than 0\.025 s to decode"),
    ],
    ids=["memory", "time"],
)
def test_what_needs_too_much_is_a_bad_file_and_the_next_one_is_decoded(bomb, limits, later, why):
    with closing(Decoder(limits)) as decoder:
        with pytest.raises(InvalidPayload, match=why):
            decoder.image(bomb)
        decoder.limits = later
        assert decoder.image(photo(HEAVY)).shape == (2000, 2100, 3)


def test_a_child_that_dies_costs_its_own_job_only(decoder, bomb):
    decoder.image(photo(HEAVY))
    (child,) = children_of()

    with ThreadPoolExecutor() as pool:
        job = pool.submit(decoder.image, bomb)
        _until_busy(child)
        os.kill(child.pid, signal.SIGSEGV)
        with pytest.raises(InvalidPayload, match="cannot be decoded: it is damaged"):
            job.result()

    assert decoder.image(photo(HEAVY)).shape == (2000, 2100, 3)


def test_an_idle_child_is_used_again_unless_it_has_died(decoder):
    def child_of_a_job() -> psutil.Process:
        decoder.image(photo(HEAVY))
        (child,) = children_of()
        return child

    first = child_of_a_job()
    assert child_of_a_job() == first

    first.kill()
    os.waitid(os.P_PID, first.pid, os.WEXITED | os.WNOWAIT)
    assert child_of_a_job() != first


def test_a_job_that_nobody_waits_for_any_more_is_ended(bomb, monkeypatch):
    monkeypatch.setattr(decoders, "_log", None)  # nothing is wrong with the decoder
    stop = Stop()
    with closing(Decoder()) as decoder:
        decoder.image(photo(HEAVY))
        (child,) = children_of()
        with ThreadPoolExecutor() as pool:
            job = pool.submit(lambda: decoders._stop.set(stop) and decoder.image(bomb))
            _until_busy(child)
            stop.set()
            with pytest.raises(ServiceUnavailable, match="cancelled"):
                job.result()
        assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE


def test_errors_are_the_same_as_here(decoder):
    with pytest.raises(InvalidPayload, match="The video cannot be read"):
        decoder.video(b"garbage" * 100)
    with pytest.raises(TooLarge, match="The voice is too large") as found:
        decoder.sound(wav(seconds=3.0), limit_s=1.0, what="The voice")
    assert (found.value.limit, found.value.unit) == (1.0, "s")
    with pytest.raises(ContextFull, match="length is 100 tokens, the request has at least 128"):
        decoder.video(make_clip(seconds=2.0), room=ContextRoom(100, 64, 10))


def test_only_so_many_children_and_they_take_turns(bomb):
    with closing(Decoder(DecoderLimits(children=1, wait_s=0.01))) as decoder:
        decoder.image(photo(HEAVY))
        (child,) = children_of()
        with ThreadPoolExecutor() as pool:
            job = pool.submit(decoder.image, bomb, keep_pixels=1_000_000)
            _until_busy(child)
            child.suspend()
            with pytest.raises(ServiceUnavailable, match="The decoder is busy with other files"):
                decoder.image(photo(HEAVY))
            child.resume()
            assert job.result() is not None


def test_a_clip_that_takes_long_keeps_no_picture_waiting():
    with closing(Decoder(DecoderLimits(children=1, wait_s=0.01))) as decoder:
        decoder.video(make_clip(seconds=0.5))
        (child,) = children_of()
        with ThreadPoolExecutor() as pool:
            child.suspend()
            job = pool.submit(decoder.video, make_clip(seconds=0.5))
            while decoder._clips._free:
                assert not job.done()
            assert decoder.image(photo(HEAVY)).shape == (2000, 2100, 3)
            child.resume()
            assert job.result().duration_s == pytest.approx(0.5)


def test_a_job_ends_by_its_processor_time_and_says_so(bomb, monkeypatch):
    monkeypatch.setattr(decoders, "PATIENCE", 1000.0)
    # Linux counts whole seconds: the clip has to take more than one.
    with (
        closing(Decoder(DecoderLimits(job_s=0.02))) as decoder,
        pytest.raises(InvalidPayload, match=r"The video takes longer than 0\.02 s to decode"),
    ):
        decoder.video(one_picture_over_and_over(1440))


def test_a_child_nobody_needs_ends(monkeypatch):
    ended = threading.Event()
    end = decoders._Child.end

    def noting(child):
        end(child)
        ended.set()

    monkeypatch.setattr(decoders._Child, "end", noting)
    decoder = Decoder(DecoderLimits(idle_s=0.05))

    decoder.image(photo(HEAVY))

    assert ended.wait(HANG_S)
    assert children_of() == []


def test_children_end_with_the_process_that_started_them():
    script = (
        "import io, sys, time\n"
        "from PIL import Image\n"
        "from parley.media.decoder import Decoder\n"
        "buffer = io.BytesIO()\n"
        "Image.new('RGB', (2100, 2000)).save(buffer, 'PNG')\n"
        "Decoder().image(buffer.getvalue())\n"
        "print('there', flush=True)\n"
        "sys.stdin.read()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"there\n"
    (child,) = children_of(process.pid)

    process.kill()
    process.communicate()

    child.wait(HANG_S)


def test_a_child_sees_no_settings_and_writes_no_files(monkeypatch, decoder):
    monkeypatch.setenv("PARLEY_SECURITY__WORKER_SECRET", "hush")
    decoder.image(photo(HEAVY))
    (child,) = children_of()

    assert "PARLEY_SECURITY__WORKER_SECRET" not in child.environ()
    assert child.rlimit(psutil.RLIMIT_FSIZE) == (0, 0)
    assert child.rlimit(psutil.RLIMIT_CORE) == (0, 0)
    assert child.rlimit(psutil.RLIMIT_AS)[0] != psutil.RLIM_INFINITY


def test_a_child_that_claims_too_much_is_not_believed(monkeypatch):
    head = json.dumps({"ready": True, "sizes": [1 << 40]}).encode()
    answer = struct.pack(">I", len(head)) + head
    script = f"import sys; sys.stdout.buffer.write({answer!r})"
    started = subprocess.Popen

    def false_child(command, **options):
        return started([sys.executable, "-c", script], **options)

    monkeypatch.setattr(subprocess, "Popen", false_child)

    with pytest.raises(decoders._Died, match="too large"):
        decoders._Child(DecoderLimits())


def test_without_resource_limits_media_are_decoded_here_and_the_log_says_so(monkeypatch):
    monkeypatch.setattr(decoders, "HAS_LIMITS", False)
    said = []
    monkeypatch.setattr(decoders._log, "warning", lambda event, **facts: said.append(event))
    before = children_of()

    decoder = Decoder()
    pixels = decoder.image(photo(HEAVY))

    assert said == ["decoder_limits_unavailable"]
    assert pixels.shape == (2000, 2100, 3)
    assert children_of() == before


def wav(seconds):
    buffer = io.BytesIO()
    soundfile.write(buffer, np.zeros(round(16_000 * seconds), np.float32), 16_000, format="WAV")
    return buffer.getvalue()


def _until_busy(child):
    """Until a child works: it has used processor time since it was last idle."""
    idle_s = sum(child.cpu_times()[:2])
    while sum(child.cpu_times()[:2]) < idle_s + 0.05:
        assert child.is_running()
