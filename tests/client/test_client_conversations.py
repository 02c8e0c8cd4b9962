"""The clients against recorded conversations."""

import asyncio
import contextlib
import functools
import json
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.fake_server import Drop, FakeServer
from tests.support.patience import HANG_S
from tests.support.transcripts import Conversation, Line, find

from parley.client import ChatClient, DuplexClient, HalfDuplexClient, RealtimeClient, Server
from parley.client.access import ConnectionLost, RemoteError, Unreachable, as_error, unreachable
from parley.client.events import (
    Answer,
    Assigned,
    Ended,
    EndsSoon,
    Event,
    Interruption,
    Listening,
    Paused,
    Piece,
    Problem,
    Ready,
    Reconnecting,
    RecordingIncomplete,
    Resumed,
    Speaking,
    Thinking,
    Transcript,
    TurnDone,
    Understood,
    Voice,
    Waiting,
)
from parley.clock import ManualClock
from parley.errors import BadSessionId, Cancelled, InferenceFailed, InvalidConfig, NotReady
from parley.media.pcm import Pcm
from parley.protocol import legacy, realtime
from parley.protocol.half_duplex import Config
from parley.protocol.values import InterruptionOptions

HALF_SECOND = Pcm.silence(8_000, 16_000)
SECOND = Pcm.silence(16_000, 16_000)
DEMO: dict[str, Any] = {"session_id": "hdx_demo", "voice": HALF_SECOND}
JPEG = b"\xff\xd8jpeg"


@pytest.fixture(autouse=True)
async def everything_is_closed() -> AsyncIterator[None]:
    yield
    names = [task.get_name() for task in asyncio.all_tasks()]
    assert not [name for name in names if name.startswith("parley-client")]


async def collect(events: AsyncIterator[Event]) -> list[Event]:
    async with asyncio.timeout(HANG_S):
        return [event async for event in events]


@contextlib.asynccontextmanager
async def conversing(
    client: type[Any], file: str, *talks: str | Conversation | Drop, **options: Any
) -> AsyncIterator[tuple[FakeServer, Any]]:
    """A server that plays conversations, those of a file by their titles, and its client."""
    played = [find(file, talk) if isinstance(talk, str) else talk for talk in talks]
    async with FakeServer(*played) as server, client(server.url, **options) as talk:
        yield server, talk


in_half_duplex = functools.partial(conversing, HalfDuplexClient, "half_duplex")
in_duplex = functools.partial(conversing, DuplexClient, "duplex")
in_realtime = functools.partial(conversing, RealtimeClient)


def kinds(events: list[Event]) -> list[type]:
    return [type(event) for event in events]


# ---- chat ----------------------------------------------------------------------------------


async def test_a_streamed_answer_comes_in_pieces_and_as_a_whole() -> None:
    async with FakeServer(find("chat", "streamed")) as server:
        client = ChatClient(server.url, system="Be kind.", voice=HALF_SECOND, speech=True)

        events = await collect(client.stream("Hello!"))

    assert kinds(events) == [Understood, Piece, Piece, Piece, Answer]
    answer = events[-1]
    assert isinstance(answer, Answer)
    assert answer.text == "Hello! How can I help?"
    assert answer.sound is not None
    assert (len(answer.sound), answer.sound.rate_hz) == (480, 24_000)
    assert (answer.input_tokens, answer.generated_tokens) == (42, 15)
    assert answer.recording_id == "chat_abc123"
    (request,) = server.heard[0]
    system = request["messages"][0]
    assert [part["type"] for part in system["content"]] == ["text", "audio", "text"]
    assert request["tts"]["enabled"] is True
    assert server.paths == ["/ws/chat?extensions=true"]


async def test_asking_sends_pictures_sounds_and_words() -> None:
    async with FakeServer(find("chat", "one shot")) as server:
        answer = await ChatClient(server.url).ask(
            "What is this?",
            images=[JPEG],
            sounds=[Pcm.silence(44_100, 44_100)],
            streaming=False,
            temperature=0.25,
            max_tokens=7,
            record=False,
            tools=[{"type": "function", "function": {"name": "look"}}],
        )

    assert answer.text == "A grey square."
    assert answer.sound is None
    (request,) = server.heard[0]
    generation = request["generation"]
    assert (generation["temperature"], generation["max_new_tokens"]) == (0.25, 7)
    assert request["record"] is False
    assert [tool["function"]["name"] for tool in request["tools"]] == ["look"]
    image, sound, text = request["messages"][0]["content"]
    assert (image["type"], text["text"]) == ("image", "What is this?")
    assert sound["sample_rate"] == 16_000
    assert abs(len(sound["data"]) * 3 / 4 / 4 - 16_000) < 8


async def test_waiting_shows_place_and_estimate() -> None:
    async with FakeServer(find("queue", "chat waits")) as server:
        events = await collect(ChatClient(server.url).stream("Hello!"))

    assert kinds(events) == [Waiting, Waiting, Assigned, Understood, Answer]
    assert events[0] == Waiting(2, 30.0, "q_0123456789ab", 2)


async def test_a_chat_that_broke_before_any_answer_is_asked_again() -> None:
    talk = find("queue", "chat waits")
    async with FakeServer(Drop(talk, after=2), talk) as server:
        events = await collect(ChatClient(server.url).stream("Hello!"))

    assert Reconnecting in kinds(events)
    assert isinstance(events[-1], Answer)
    assert [len(heard) for heard in server.heard] == [1, 1]


async def test_a_chat_that_broke_in_mid_answer_is_not_asked_again() -> None:
    async with FakeServer(Drop(find("chat", "streamed"), after=3)) as server:
        with pytest.raises(ConnectionLost, match="closed with code 1006"):
            await collect(ChatClient(server.url).stream("Hello!"))

    assert len(server.heard) == 1


# ---- half-duplex ---------------------------------------------------------------------------


async def test_a_half_duplex_conversation_reads_like_one() -> None:
    async with in_half_duplex("two turns", **DEMO) as (server, talk):
        ready = await talk.ready()
        events = []
        talk.send_audio(HALF_SECOND)
        async for event in talk:
            events.append(event)
            if isinstance(event, Voice) and event.is_speaking:
                talk.send_audio(HALF_SECOND)
            if isinstance(event, TurnDone) and event.turn == 0:
                talk.send_audio(HALF_SECOND)
            if isinstance(event, TurnDone) and event.turn == 1:
                await talk.stop()

    assert (ready.session_id, ready.timeout_s, ready.recording_id) == (
        "hdx_demo",
        180.0,
        "hdx_demo",
    )
    assert kinds(events) == [Voice, Voice, Thinking, Piece, TurnDone] * 2 + [Ended]
    assert events[-1] == Ended("stopped")
    assert server.paths == ["/ws/half_duplex/hdx_demo?extensions=true"]
    content = server.heard[0][0]["system_content"]
    assert [part["type"] for part in content] == ["text", "audio", "text"]


async def test_notices_about_a_session_do_not_end_its_conversation() -> None:
    transcript = find("half_duplex", "two turns")
    hole = {"type": "recording_lost", "entries": 1}
    warning = {"type": "session.going_away", "time_left_s": 60, "reason": "time"}
    later = {"type": "session.of_a_later_version"}
    is_server = [line.sender == "server" for line in transcript.lines]
    third = [place for place, sent in enumerate(is_server) if sent][2]
    for message in (hole, later, warning):
        transcript.lines.insert(third, Line("server", json.dumps(message), message))
    async with in_half_duplex(transcript, **DEMO) as (_, talk):
        await talk.ready()
        talk.send_audio(HALF_SECOND)
        events = [await anext(talk) for _ in range(3)]

    assert events[:2] == [EndsSoon(60, "time"), RecordingIncomplete(1)]
    assert isinstance(events[2], Voice)


async def test_sound_is_not_sent_while_the_answer_plays_nor_shortly_after() -> None:
    clock = ManualClock()
    async with in_half_duplex("two turns", clock=clock) as (_, talk):
        await talk.ready()
        talk.send_audio(HALF_SECOND)
        my_turn = []
        async for event in talk:
            if isinstance(event, Voice) and event.is_speaking:
                talk.send_audio(HALF_SECOND)
            if isinstance(event, Thinking):
                my_turn.append(talk.is_my_turn)
            if isinstance(event, TurnDone):
                my_turn.append(talk.is_my_turn)
                clock.advance(0.80)
                my_turn.append(talk.is_my_turn)
                clock.advance(0.02)
                my_turn.append(talk.is_my_turn)
                break

    assert my_turn == [False, False, False, True]


async def test_latency_runs_from_the_end_of_speech_to_the_first_sound() -> None:
    clock = ManualClock()
    async with in_half_duplex("two turns", clock=clock) as (_, talk):
        await talk.ready()
        talk.send_audio(HALF_SECOND)
        async for event in talk:
            if isinstance(event, Voice) and event.is_speaking:
                talk.send_audio(HALF_SECOND)
            if isinstance(event, Thinking):
                clock.advance(0.25)
            if isinstance(event, TurnDone):
                done = event
                break

    assert done.first_sound_ms == pytest.approx(250)


async def test_sound_before_ready_is_refused_here() -> None:
    async with in_half_duplex("two turns") as (_, talk):
        with pytest.raises(NotReady):
            talk.send_audio(HALF_SECOND)


async def test_a_silent_session_ends_with_a_timeout() -> None:
    async with in_half_duplex("a click") as (_, talk):
        await talk.ready()
        talk.send_audio(HALF_SECOND)
        events = await collect(talk)

    assert events == [Voice(True), Voice(False), Ended("timeout", 10.0)]


async def test_an_error_of_half_duplex_is_raised_with_its_class() -> None:
    async with in_half_duplex("threshold") as (_, talk):
        with pytest.raises(InvalidConfig, match=r"config\.vad\.threshold"):
            await collect(talk)


@pytest.mark.parametrize("client", [HalfDuplexClient, DuplexClient, RealtimeClient])
def test_a_session_need_not_be_resumed(client: type[Any]) -> None:
    assert client("http://localhost", resume=False)._returning is None


async def test_a_connection_that_breaks_while_waiting_is_opened_again() -> None:
    talk = find("queue", "half-duplex waits")
    async with in_half_duplex(
        Drop(talk, after=1), Drop(talk, after=4), talk, session_id="hdx_q"
    ) as (server, client):
        async with asyncio.timeout(HANG_S):
            events = [event async for event in _until_ready(client)]

    assert [type(e) for e in events].count(Reconnecting) == 2
    assert isinstance(events[-1], Ready)
    assert len(server.heard) == 3


async def _until_ready(client: HalfDuplexClient) -> AsyncIterator[Event]:
    async for event in client:
        yield event
        if isinstance(event, Ready):
            return


async def test_a_connection_that_breaks_in_conversation_is_an_error() -> None:
    async with in_half_duplex(Drop(find("half_duplex", "two turns"), after=5)) as (server, talk):
        await talk.ready()
        talk.send_audio(HALF_SECOND)
        with pytest.raises(ConnectionLost):
            await collect(talk)

    assert len(server.heard) == 1


async def test_leaving_says_stop() -> None:
    async with in_half_duplex(find("queue", "half-duplex waits")) as (server, talk):
        await talk.ready()

    assert [message["type"] for message in server.heard[0]] == ["prepare", "stop"]


def test_a_session_id_with_odd_characters_is_refused_immediately() -> None:
    with pytest.raises(BadSessionId):
        HalfDuplexClient("http://127.0.0.1:1", session_id="../x")


async def test_who_may_interrupt_sends_on_and_is_told_what_was_heard() -> None:
    config = Config(interruption=InterruptionOptions(mode="stop"))
    async with in_half_duplex("interrupted", session_id="hdx_demo", config=config) as (
        server,
        talk,
    ):
        await talk.ready()
        talk.send_audio(HALF_SECOND)
        events = []
        async for event in talk:
            events.append(event)
            if isinstance(event, Piece):
                assert talk.may_send
                assert not talk.is_my_turn
                talk.send_audio(HALF_SECOND)
            if isinstance(event, TurnDone):
                assert talk.is_my_turn
                await talk.stop()

    told = [event for event in events if isinstance(event, Interruption)]
    assert told == [Interruption("suspected", 1, "Once"), Interruption("stopped", 2, "Once upon")]
    assert server.heard[0][0]["config"]["interruption"]["mode"] == "stop"
    assert not any("playback" in message for message in server.heard[0])


async def test_interruptions_and_holes_of_a_recording_are_told_in_every_live_dialect() -> None:
    options = InterruptionOptions(mode="stop")
    clients = (
        HalfDuplexClient("http://localhost:1"),
        DuplexClient("http://localhost:1", interruption=options),
        RealtimeClient("http://localhost:1", interruption=options),
    )
    for client in clients:
        is_realtime = isinstance(client, RealtimeClient)
        lost = realtime.SessionRecordingLost if is_realtime else legacy.RecordingLostMessage
        interruption = realtime.ResponseInterruption if is_realtime else legacy.InterruptionMessage
        assert client._translate(lost(entries=4)) == RecordingIncomplete(4)
        event = client._translate(interruption(state="dismissed", heard_ms=7, text="One"))
        assert event == Interruption("dismissed", 7, "One")


# ---- duplex and realtime -------------------------------------------------------------------


async def test_a_duplex_conversation_listens_speaks_pauses_and_stops() -> None:
    transcript = find("duplex", "listening, speaking")
    transcript.lines = [line for line in transcript.lines if "video_frame" not in line.raw]
    async with in_duplex(transcript, video=True, session_id="omni_demo") as (server, talk):
        ready = await talk.ready()
        events: list[Event] = []
        talk.loudspeaker = lambda: 0.5
        talk.send_unit(SECOND, frames=[JPEG])
        units = 1
        async for event in talk:
            events.append(event)
            if isinstance(event, Listening | Speaking) and units < 3:
                talk.send_unit(SECOND, frames=[JPEG])
                units += 1
            elif isinstance(event, Speaking) and event.end_of_turn:
                await talk.pause(30)
            elif isinstance(event, Paused):
                talk.send_unit(SECOND)
            elif isinstance(event, Problem):
                await talk.resume()
            elif isinstance(event, Resumed):
                talk.send_unit(SECOND, force_listen=True)
            elif isinstance(event, Listening):
                await talk.stop()

    assert ready.prompt_tokens == 200
    assert kinds(events) == [
        Listening, Speaking, Speaking, Paused, Problem, Resumed, Listening, Ended,
    ]  # fmt: skip
    speaking = events[1]
    assert isinstance(speaking, Piece)
    assert speaking.sound is not None
    assert (speaking.text, len(speaking.sound)) == ("Hello", 240)
    assert server.paths == ["/ws/duplex/omni_demo?extensions=true"]
    assert server.heard[0][-2]["force_listen"] is True
    assert server.heard[0][-2]["playback"] == {"received_ms": 20, "buffered_ms": 500}


async def test_a_full_context_says_so_at_the_end() -> None:
    async with in_duplex("context is full") as (_, talk):
        await talk.ready()
        talk.send_unit(SECOND)
        events = await collect(talk)

    assert kinds(events) == [Listening, Problem, Ended]
    assert events[-1] == Ended("context_full")


async def test_a_realtime_conversation_with_video() -> None:
    async with in_realtime("realtime_video", "listening, speaking", mode="video") as (server, talk):
        ready = await talk.ready()
        talk.send_unit(SECOND, frames=[JPEG])
        events: list[Event] = []
        async for event in talk:
            events.append(event)
            if len(events) < 4:
                talk.send_unit(SECOND, frames=[JPEG])
            elif len(events) == 4:
                await talk.stop()

    assert ready.session_id == "rt_1714200000000"
    assert kinds(events) == [Listening, Speaking, Speaking, Listening, Ended]
    assert server.paths == ["/v1/realtime?mode=video&extensions=true"]
    assert server.heard[0][1]["video_frames"]
    assert server.heard[0][-1] == {"type": "session.close", "reason": "user_stop"}


async def test_a_realtime_session_that_keeps_failing_ends_with_its_reason() -> None:
    async with in_realtime("realtime_video", "keeps failing") as (_, talk):
        await talk.ready()
        talk.send_unit(SECOND)
        events = await collect(talk)

    assert kinds(events) == [Problem, Ended]
    assert isinstance(events[0], Problem)
    assert isinstance(events[0].error, InferenceFailed)
    assert events[1] == Ended("error")


async def test_a_ticket_cancelled_from_outside_ends_the_wait() -> None:
    async with in_duplex(find("queue", "duplex: cancelled")) as (_, talk):
        with pytest.raises(Cancelled):
            await talk.ready()


async def test_when_the_network_lags_the_oldest_units_go_and_force_listen_stays() -> None:
    async with in_realtime("realtime_audio", "listening, speaking", mode="audio") as (server, talk):
        await talk.ready()
        # Nothing is sent between these calls: they share one turn of the loop.
        talk.send_unit(SECOND, force_listen=True)
        for _ in range(5):
            talk.send_unit(SECOND)
        dropped = talk.dropped
        assert isinstance(await anext(talk), Listening)

    assert dropped == 3
    assert server.heard[0][1]["force_listen"] is True


# ---- reaching a server ---------------------------------------------------------------------


async def test_a_certificate_is_checked_unless_trusted_or_told_not_to(tmp_path: Path) -> None:
    from tests.support.certificates import self_signed

    context, certificate = self_signed(tmp_path)
    talk = find("chat", "one shot")
    async with FakeServer(talk, ssl=context) as server:
        with pytest.raises(Unreachable, match="certificate is not trusted") as caught:
            await ChatClient(server.url, attempts=1).ask("Hello!")
        trusted = await ChatClient(server.url, ca=certificate).ask("Hello!")
        unchecked = await ChatClient(server.url, insecure=True).ask("Hello!")

    assert "--ca" in caught.value.hint
    assert trusted.text == unchecked.text == "A grey square."
    other = ssl.SSLCertVerificationError("")
    other.verify_code, other.verify_message = 62, "Hostname mismatch"
    assert "--ca" not in unreachable(server.url, other).hint


@contextlib.asynccontextmanager
async def answering(head: bytes) -> AsyncIterator[str]:
    """The address of a server that gives each connection this answer (a status, and headers)."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 " + head + b"\r\nContent-Length: 0\r\n\r\n")
        await reader.read()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1") as server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_tls_to_a_server_without_it_is_called_so_and_not_tried_again() -> None:
    async with answering(b"404 Not Found") as place:
        address = f"https://{place}"
        with pytest.raises(Unreachable, match=r"no TLS there \(wrong version number\)") as caught:
            await ChatClient(address).ask("Hello!")
        with pytest.raises(Unreachable, match="no TLS there"):
            async with Server(address) as operator:
                await operator.status()
        with pytest.raises(Unreachable, match=r"/v1/ws/chat\S*: not a .* 404") as lost:
            await ChatClient(f"{address.replace('https', 'http')}/v1").ask("Hello!")

    assert "/v1 is for OpenAI's" in lost.value.hint
    assert "http:// only" in caught.value.hint
    assert not caught.value.may_pass


async def test_an_address_that_redirects_to_a_login_page_is_called_so() -> None:
    async with answering(b"302 Found\r\nLocation: http://login.example/?to=here") as place:
        with pytest.raises(Unreachable, match=r"redirected to http://login\.example/\n") as caught:
            await ChatClient(f"http://{place}").ask("Hello!")

    assert "a key may be needed" in caught.value.hint


@pytest.mark.parametrize(
    ("code", "facts"),
    [
        ("rate_limited", []),
        ("cancelled", []),
        ("timeout", []),
        ("worker_lost", []),
        ("queue_full", []),
        ("context_full", ["needed", "limit"]),
        ("too_large", ["what", "size", "limit", "unit", "field"]),
        ("inference_error", ["error_id"]),
    ],
)
def test_errors_from_the_wire_have_their_documented_attributes(code: str, facts: list[str]) -> None:
    error = as_error(code, "A sentence.")

    assert not isinstance(error, RemoteError)
    assert (error.code, str(error)) == (code, "A sentence.")
    assert [getattr(error, fact) for fact in facts] == [None] * len(facts)


async def test_words_are_written_and_transcripts_told_in_half_duplex() -> None:
    config = Config(transcribe=True)
    async with in_half_duplex("written words", session_id="hdx_demo", config=config) as (
        server,
        talk,
    ):
        await talk.ready()
        talk.write("What is this?", JPEG)
        events = []
        async for event in talk:
            events.append(event)
            if isinstance(event, TurnDone) and event.turn == 0:
                talk.send_audio(HALF_SECOND)
            elif isinstance(event, TurnDone):
                await talk.stop()

    assert [event for event in events if isinstance(event, Transcript)] == [
        Transcript("Thank you.")
    ]
    assert server.heard[0][0]["config"]["transcribe"] is True
    written = server.heard[0][1]
    assert (written["type"], written["text"], len(written["images"])) == (
        "input_text",
        "What is this?",
        1,
    )


async def test_realtime_writes_in_items() -> None:
    async with in_realtime("realtime_audio", "written words", mode="audio", transcribe=True) as (
        server,
        talk,
    ):
        await talk.ready()
        talk.write("What is this?", JPEG)
        events = []
        async for event in talk:
            events.append(event)
            if isinstance(event, Listening):
                await talk.stop()

    assert Transcript("Look at this.") in events
    assert server.heard[0][0]["session"]["transcribe"] is True
    content = server.heard[0][1]["item"]["content"]
    assert [part["type"] for part in content] == ["input_image", "input_text"]
