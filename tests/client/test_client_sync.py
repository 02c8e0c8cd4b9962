"""The synchronous facade: same conversations, no asyncio in sight."""

import threading
from collections.abc import Iterator

import pytest
from tests.support.fake_server import Elsewhere, FakeServer
from tests.support.transcripts import find

from parley.client import sync
from parley.client.events import Ended, Ready, Transcript, TurnDone, Voice
from parley.errors import QueueFull, SetupError
from parley.media.pcm import Pcm


@pytest.fixture
def playing(request: pytest.FixtureRequest) -> Iterator[FakeServer]:
    elsewhere = Elsewhere(find(*request.param))
    yield elsewhere.server
    elsewhere.close()


@pytest.mark.parametrize("playing", [("half_duplex", "two turns")], indirect=True)
def test_a_script_holds_a_half_duplex_conversation(playing: FakeServer) -> None:
    sound = Pcm.silence(8_000, 16_000)
    seen = []

    with sync.connect(playing.url) as server, server.half_duplex() as talk:
        assert isinstance(talk.ready(), Ready)
        talk.send_audio(sound)
        for event in talk:
            seen.append(event)
            if event == Voice(True) or (isinstance(event, TurnDone) and event.turn == 0):
                talk.send_audio(sound)
            if isinstance(event, TurnDone) and event.turn == 1:
                talk.stop()

    assert seen[-1] == Ended("stopped")


@pytest.mark.parametrize("playing", [("queue", "chat: the queue is full")], indirect=True)
def test_errors_arrive_in_the_script(playing: FakeServer) -> None:
    with sync.connect(playing.url) as server, pytest.raises(QueueFull):
        server.ask("Hello!")


def test_closing_twice_is_harmless_ends_the_thread_and_is_said() -> None:
    before = threading.active_count()
    server = sync.connect("http://127.0.0.1:1")

    server.close()
    server.close()

    assert threading.active_count() == before
    with pytest.raises(SetupError, match="closed"):
        server.ask("Hello!")


WRITTEN = ("realtime_audio", "written words, and what was heard")


@pytest.mark.parametrize("playing", [WRITTEN], indirect=True)
def test_a_script_writes_and_reads_what_was_heard(playing: FakeServer) -> None:
    with sync.connect(playing.url) as server, server.realtime(transcribe=True) as talk:
        talk.ready()
        talk.write("What is this?", b"\xff\xd8jpeg")

        assert next(talk) == Transcript("Look at this.")
    content = playing.heard[0][1]["item"]["content"]
    assert [part["type"] for part in content] == ["input_image", "input_text"]
