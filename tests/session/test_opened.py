import asyncio
import os
import threading

import numpy as np
import pytest
from tests.support.patience import HANG_S
from tests.support.present import present
from tests.support.timeline import sound, speak

from parley.dialects.events import Content, Picture, Sound
from parley.errors import ContextFull, InvalidPayload
from parley.media import decoder
from parley.media.decoder import Decoder
from parley.media.image import encode_jpeg
from parley.media.pcm import Pcm
from parley.media.resample import resample
from parley.media.room import ContextRoom
from parley.media.wav import encode_wav
from parley.protocol.content import Message
from parley.protocol.values import TextPart
from parley.session import opened
from parley.views import content

VOICE = sound(speak(1.0))


async def test_a_registered_voice_is_found_by_name_and_the_one_brought_wins():
    voices = opened.Voices(60, {"anna": VOICE}.get)

    by_name = await voices.open(None, "anna")
    own = Sound(encode_wav(Pcm.silence(4000, 16_000)))
    brought = await voices.open(own, "anna")

    assert by_name is VOICE
    assert brought is not None
    assert len(brought) == 4000


async def test_no_voice_at_all_is_none():
    assert await opened.Voices(60).open(None, None) is None


async def test_an_unknown_voice_is_named_and_no_path_is_read(tmp_path):
    file = tmp_path / "voice.wav"
    file.write_bytes(encode_wav(VOICE))

    with pytest.raises(InvalidPayload, match="no registered voice called '/"):
        await opened.Voices(60).open(None, str(file))


async def test_a_voice_that_is_too_long_is_bad_input_that_keeps_the_connection():
    with pytest.raises(InvalidPayload, match=r"too large: 1 s, the limit is 0\.5 s"):
        await opened.Voices(0.5).open(Sound(VOICE.samples.tobytes()), None)


def jpeg(height: int, width: int) -> bytes:
    return encode_jpeg(np.full((height, width, 3), 255, np.uint8))


async def test_a_history_keeps_its_order():
    message: Message[Content] = Message(
        "user", (TextPart("Look"), Picture(jpeg(20, 30)), Sound(VOICE.samples.tobytes()))
    )

    (read,) = await opened.open_messages([message])

    assert [type(part) for part in read.parts] == [
        TextPart,
        content.ImagePart,
        content.AudioPart,
    ]
    assert isinstance(read.parts[1], content.ImagePart)
    assert read.parts[1].pixels.shape == (20, 30, 3)


async def test_all_pictures_of_a_request_together_have_a_limit(monkeypatch):
    monkeypatch.setattr(opened, "REQUEST_PIXELS", 1000)
    picture = Picture(jpeg(20, 30))

    with pytest.raises(InvalidPayload, match="30 × 20 pixels; 400 are accepted"):
        await opened.open_messages([Message("user", (picture, picture))])


@pytest.mark.parametrize("broken", [Picture(b"no picture"), Sound(b"")])
async def test_media_that_cannot_be_used_are_named_where_their_messages_have_names(
    broken: Content,
):
    messages: list[Message[Content]] = [
        Message("system", (TextPart("Look"),)),
        Message("user", (Sound(bytes(64)), broken)),
    ]

    with pytest.raises(InvalidPayload) as named:
        await opened.open_messages(messages, path_of="m{}.{}".format)
    with pytest.raises(InvalidPayload) as nameless:
        await opened.open_messages(messages)

    assert named.value.field == "m1.1"
    assert str(named.value) == f"m1.1: {nameless.value}"
    assert nameless.value.field is None


async def test_a_frame_that_is_too_large_spoils_its_unit_only(monkeypatch):
    monkeypatch.setattr(opened, "FRAME_PIXELS", 100)

    with pytest.raises(InvalidPayload, match="30 × 20 pixels"):
        await opened.open_frames([jpeg(20, 30)])


async def test_sound_of_another_rate_is_converted_and_empty_sound_refused():
    half = resample(VOICE, 8000)
    (read,) = await opened.open_messages([Message("user", (Sound(half.samples.tobytes(), 8000),))])

    assert isinstance(read.parts[0], content.AudioPart)
    assert len(read.parts[0].pcm) == 16_000
    with pytest.raises(InvalidPayload, match="empty"):
        await opened.open_messages([Message("user", (Sound(b""),))])


PICTURE = Picture(jpeg(20, 30))
SPOKEN = Sound(VOICE.samples.tobytes())


@pytest.mark.parametrize(
    ("limit", "messages", "told"),
    [
        (100, [Message("user", (PICTURE, PICTURE))], "100 tokens, the request has at least 128"),
        (15, [Message("user", (SPOKEN, SPOKEN))], "15 tokens, the request has at least 20"),
        (200, [Message("user", (TextPart("word " * 1000),))] * 2, "length is 200 tokens"),
        (
            200,
            [Message("user", (TextPart("a"),)), Message("assistant", (TextPart("b"),))] * 101,
            "length is 200 tokens",
        ),
    ],
    ids=["pictures", "sounds", "long text", "many texts"],
)
async def test_what_the_context_cannot_take_is_refused_before_it_is_decoded(
    monkeypatch, limit, messages, told
):
    room = ContextRoom(limit_tokens=limit, image_tokens=64, audio_tokens_per_s=10)
    with monkeypatch.context() as never:
        never.setattr(Decoder, "image", lambda *_, **__: pytest.fail("something was decoded"))
        with pytest.raises(ContextFull, match=told):
            await opened.open_messages(messages, room=room)

    if len(messages) > 1:
        assert await opened.open_messages(messages[:1], room=room)


async def test_a_job_whose_session_ends_is_ended_with_it(monkeypatch):
    class Slow(Decoder):
        def image(self, data, **options):
            began.set()
            present(decoder._stop.get()).arm(stopped.set)
            assert stopped.wait(30)
            raise InvalidPayload("killed")

    monkeypatch.setattr("parley.media.decoder.shared", Slow)
    began, stopped = threading.Event(), threading.Event()
    task = asyncio.create_task(opened.open_frames([b"x"]))
    await asyncio.to_thread(began.wait, 30)

    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
    assert stopped.is_set()


async def test_slow_files_leave_the_event_loops_own_threads_free(monkeypatch):
    began, done = threading.Event(), threading.Event()

    class Slow(Decoder):
        def image(self, data, **options):
            began.set()
            done.wait()

    monkeypatch.setattr("parley.media.decoder.shared", Slow)
    # The most that the event loop's own threads can be.
    count = min(32, (os.cpu_count() or 1) + 4)
    slow = [asyncio.create_task(opened.open_frames([b"x"])) for _ in range(count)]
    await asyncio.sleep(0)  # each has asked for its thread
    try:
        async with asyncio.timeout(HANG_S):
            assert await asyncio.to_thread(began.wait, HANG_S)
    finally:
        done.set()
        await asyncio.gather(*slow)
