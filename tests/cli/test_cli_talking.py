"""`chat` and `talk` against recorded conversations."""

import asyncio
import io
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from tests.support.command import run
from tests.support.fake_server import Elsewhere
from tests.support.transcripts import Conversation, find

from parley.cli import files
from parley.cli.screen import Screen
from parley.cli.talk import ENDS_BECAUSE, FileSource, TalkLoop
from parley.client import devices
from parley.client.duplex import DuplexClient
from parley.client.events import EndsSoon, Reconnected, Speaking, TurnDone, Waiting
from parley.client.half_duplex import HalfDuplexClient
from parley.clock import ManualClock
from parley.errors import SetupError
from parley.media import wav
from parley.media.pcm import Pcm, join
from parley.protocol.resume import AwayReason


@pytest.fixture
def playing() -> Iterator[Any]:
    running: list[Elsewhere] = []

    def play(*talks: Conversation) -> Any:
        running.append(Elsewhere(*talks))
        return running[-1].server

    yield play
    for each in running:
        each.close()


def tone(seconds: float) -> Pcm:
    samples = 0.5 * np.sin(np.arange(round(16_000 * seconds)) * 0.2)
    return Pcm(samples.astype(np.float32), 16_000)


# ---- chat ----------------------------------------------------------------------------------


def test_chat_streams_text_to_standard_output_and_saves_the_sound(
    playing: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    server = playing(find("chat", "streamed"))

    # As people type it: without quotation marks, and with an option before the verb.
    assert run("--url", server.url, "chat", "Hello", "there!", "--save", "answer.wav") == 0

    (request,) = server.heard[0]
    assert request["messages"][0]["content"] == "Hello there!"
    out, err = capsys.readouterr()
    assert out == "Hello! How can I help?\n"
    assert "42 tokens in, 15 out" in err
    assert "recorded as chat_abc123" in err
    answer = wav.load("answer.wav")
    assert (len(answer), answer.rate_hz) == (480, 24_000)


@pytest.mark.parametrize("dash", [(), ("-",)])
def test_chat_sends_files_and_reads_the_question_from_standard_input(
    dash: tuple[str, ...], playing: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = playing(find("chat", "one shot"))
    wav.save("a.wav", tone(0.1))
    Path("a.jpg").write_bytes(b"\xff\xd8jpeg")
    monkeypatch.setattr(sys, "stdin", io.StringIO("What is this?\n"))

    words = ["chat", *dash, "--url", server.url, "--image", "a.jpg", "--image", "a.jpg"]
    assert run(*words, "--audio", "a.wav", "--system", "Be brief.", "--no-speech") == 0

    (request,) = server.heard[0]
    system, user = request["messages"]
    assert system == {"role": "system", "content": "Be brief."}
    assert [part["type"] for part in user["content"]] == ["image", "image", "audio", "text"]
    assert user["content"][-1]["text"] == "What is this?"
    assert request["tts"] is None


def test_chat_without_a_question_says_what_to_give(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))

    assert run("chat") == 2

    assert "The question is empty." in capsys.readouterr().err


def test_chat_shows_the_queue_and_the_servers_error(
    playing: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    server = playing(find("queue", "chat waits"), find("queue", "chat: the queue is full"))

    assert run("chat", "x", "--url", server.url) == 0
    assert "waiting: place 2 of 2, about 30 s" in capsys.readouterr().err
    assert run("chat", "x", "--url", server.url) == 1
    assert "error: Queue full (1000 requests)" in capsys.readouterr().err


# ---- talk ----------------------------------------------------------------------------------


def test_talk_without_a_microphone_says_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("talk", "--url", "http://127.0.0.1:1") == 2

    err = capsys.readouterr().err
    assert "There is no access to a microphone" in err
    assert "--file speech.wav" in err
    assert "--sample" in err


def test_the_sample_is_speech() -> None:
    sample = files.sample()

    assert sample.rate_hz == 16_000
    assert 5 < sample.duration_s < 20
    assert float(abs(sample.samples).max()) > 0.3


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--sample --file speech.wav", "--file and --sample exclude each other."),
        ("--duplex --realtime audio", "--duplex and --realtime exclude each other."),
        ("--sample --frame speech.wav", "--frame needs --duplex or --realtime video."),
        ("http://a --url http://b", "Two servers are named: http://a and http://b."),
    ],
)
def test_two_ways_together_are_refused(
    words: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("speech.wav").touch()

    assert run("talk", *words.split()) == 2
    assert sentence in capsys.readouterr().err


def test_talk_speaks_a_file_shows_the_turn_and_saves_the_answer(
    playing: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    talk = one_turn()
    server = playing(talk)
    wav.save("speech.wav", tone(0.08))

    assert run("talk", server.url, "--file", "speech.wav", "--save", "a.wav") == 0

    out, err = capsys.readouterr()
    assert out.startswith("Hi there.")
    assert "Session hdx_demo (recorded as hdx_demo" in err
    assert "[answer 1: 0.0 s of speech, " in err
    assert "ended: stopped" in err
    assert len(wav.load("a.wav")) == 240


def one_turn() -> Conversation:
    """The recorded half-duplex conversation, cut after its first turn."""
    talk = find("half_duplex", "two turns")
    kinds = [line.message and line.message.get("type") for line in talk.lines]
    first = kinds.index("turn_done")
    chunks = [i for i, kind in enumerate(kinds) if kind == "audio_chunk"]
    # After the answer the client keeps sending silence until its turn comes; then it says stop.
    talk.lines = [line for i, line in enumerate(talk.lines) if i <= first and i != chunks[1]]
    talk.lines += find("half_duplex", "two turns").lines[-2:]
    return talk


@pytest.mark.parametrize(
    ("flags", "name", "path"),
    [
        (["--realtime", "audio"], "realtime_audio", "/v1/realtime?mode=audio"),
        (["--duplex", "--frame", "a.jpg"], "duplex", "/ws/duplex/omni_"),
    ],
)
def test_talk_speaks_in_units_when_both_may_speak(
    playing: Any, flags: list[str], name: str, path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    talk = find(name, "listening, speaking")
    lines = [
        line for line in talk.lines if "video_frame" not in (line.message or {}).get("type", "")
    ]
    # Listening, speaking, end of turn; then the file has been answered.
    end = next(i for i, line in enumerate(lines) if '"end_of_turn": true' in line.raw)
    talk.lines = lines[: end + 1] + lines[-2:]
    server = playing(talk)
    wav.save("speech.wav", tone(0.09))
    Path("a.jpg").write_bytes(b"\xff\xd8jpeg")

    assert run("talk", *flags, "--file", "speech.wav", "--url", server.url) == 0

    out, err = capsys.readouterr()
    assert "after your last word; context" in err
    assert "ended: stopped" in err
    assert out.strip()
    assert server.paths[0].startswith(path)


async def test_a_duplex_file_holds_its_next_sentence_until_the_last_one_is_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Every pause is one, however late a busy machine sends the next chunk.
    monkeypatch.setattr("parley.cli.talk.PAUSE_S", 0.0)
    sent: list[bool] = []

    class Client(DuplexClient):
        def send_chunk(self, pcm: Pcm) -> None:
            sent.append(bool(abs(pcm.samples).max() > 0.1))

        async def stop(self) -> None:
            self.phase = "closed"

    # Between the sentences there is one silent chunk, and no more.
    gap = Pcm.silence(1600, 16_000)
    sound = join([gap, tone(0.1), gap, tone(0.1), gap], 16_000)
    talk = TalkLoop(Client("http://localhost:1"), sound=sound, tail_s=5.0, plays=False)
    speaking = asyncio.create_task(talk._speak(FileSource(sound, 1600)))
    while len(sent) < 5:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    before = sent[:5]
    while not speaking.done():
        talk._show(Speaking("Yes.", tone(0.01), True, 0, None))
        await asyncio.sleep(0.05)

    assert before == [False, True, False, False, False]
    assert sent.count(True) == 2


@pytest.mark.parametrize("reason", get_args(AwayReason))
async def test_talk_says_that_the_call_will_end_and_why(reason, capsys) -> None:
    client = DuplexClient("http://localhost:1")
    talk = TalkLoop(client, sound=None, tail_s=0.0, plays=False)

    talk._show(EndsSoon(59.8, reason))

    assert f"the call ends in 60 s: {ENDS_BECAUSE[reason]}" in capsys.readouterr().err


def unheard(kind: Any, ended_s: list[float]) -> Any:
    class Client(kind):  # type: ignore[misc]
        is_my_turn = True

        def send_chunk(self, pcm: Pcm) -> None:
            pass

        async def stop(self) -> None:
            ended_s.append(asyncio.get_running_loop().time())
            self.phase = "closed"

    return Client("http://localhost:1")


async def test_talk_waits_for_every_answer_after_an_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several questions may have been asked in it."""
    monkeypatch.setattr("parley.cli.talk.ANSWER_S", 2.0)

    talk = TalkLoop(unheard(HalfDuplexClient, []), sound=tone(0.1), tail_s=5.0, plays=False)
    talk._show(Reconnected(28.0))
    speaking = asyncio.create_task(talk._speak(FileSource(tone(0.1), 1600)))
    await asyncio.sleep(0.15)
    talk._show(TurnDone(0, "One.", False, False, 0, 0.0))
    await asyncio.sleep(0.15)
    is_waiting = not speaking.done()
    await speaking

    assert is_waiting


@pytest.mark.parametrize("kind", [HalfDuplexClient, DuplexClient])
async def test_without_a_loudspeaker_a_call_ends_once_its_answer_could_have_been_heard(
    kind: Any,
) -> None:
    """Servers count an answer as cut off if its call ends earlier. Longer answers than `tail_s`
    are heard to their end."""
    ended_s: list[float] = []
    loop = asyncio.get_running_loop()
    talk = TalkLoop(unheard(kind, ended_s), sound=tone(0.1), tail_s=0.3, plays=False)
    heard_s = loop.time() + 0.9
    talk._show(Speaking("One.", tone(1.0), True, 0, None))
    talk._show(TurnDone(0, "One.", False, False, 0, 0.0))
    await talk._speak(FileSource(tone(0.1), 1600))

    assert ended_s[0] >= heard_s


def test_talk_reports_a_server_that_goes_away_in_one_sentence(
    playing: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.support.fake_server import Drop

    server = playing(Drop(find("half_duplex", "two turns"), after=5))
    wav.save("speech.wav", tone(0.4))

    assert run("talk", "--file", "speech.wav", "--url", server.url) == 1

    assert "error: The connection closed with code 1006" in capsys.readouterr().err


# ---- devices and screen --------------------------------------------------------------------


class FakeStream:
    def __init__(self, **options: Any) -> None:
        self.options = options
        self.is_open = False

    def start(self) -> None:
        self.is_open = True

    def stop(self) -> None:
        self.is_open = False

    def close(self) -> None:
        pass


def fake_library() -> tuple[Any, list[FakeStream]]:
    streams: list[FakeStream] = []

    def make(**options: Any) -> FakeStream:
        streams.append(FakeStream(**options))
        return streams[-1]

    return types.SimpleNamespace(InputStream=make, OutputStream=make), streams


async def test_the_microphone_keeps_the_newest_chunks() -> None:
    library, (streams) = fake_library()
    with devices.Microphone(1600, library) as microphone:
        capture = streams[0].options["callback"]
        for number in range(42):
            capture(np.full((1600, 1), number, np.float32), 1600, None, None)
        first = await microphone.chunk()

    assert (first.samples == 2.0).all()
    assert not streams[0].is_open


async def test_a_device_that_cannot_be_opened_is_a_setup_error() -> None:
    def broken(**_: Any) -> Any:
        raise RuntimeError("device busy")

    library: Any = types.SimpleNamespace(InputStream=broken, OutputStream=broken)
    opened: list[tuple[str, Any]] = [
        ("microphone", devices.Microphone(4, library)),
        ("loudspeaker", devices.Loudspeaker(library)),
    ]
    for name, device in opened:
        with pytest.raises(SetupError, match=f"The {name} cannot be opened: device busy"), device:
            pass


def test_the_loudspeaker_plays_in_order_and_fills_gaps_with_silence() -> None:
    library, streams = fake_library()
    with devices.Loudspeaker(library) as speaker:
        speaker.play(Pcm(np.array([1, 2, 3], np.float32), 24_000))
        speaker.play(Pcm(np.array([4], np.float32), 24_000))
        out = np.full((2, 1), 9, np.float32)
        rest = np.full((4, 1), 9, np.float32)
        streams[0].options["callback"](out, 2, None, None)
        left_s = speaker.left_s
        streams[0].options["callback"](rest, 4, None, None)

    assert out[:, 0].tolist() == [1, 2]
    assert rest[:, 0].tolist() == [3, 4, 0, 0]
    assert left_s == pytest.approx(2 / 24_000)


def test_the_loudspeaker_plays_softly_while_a_person_may_interrupt() -> None:
    library, streams = fake_library()
    out = np.zeros((1, 1), np.float32)
    with devices.Loudspeaker(library) as speaker:
        levels = []
        for is_ducked in (True, False):
            speaker.play(Pcm(np.ones(1, np.float32), 24_000))
            speaker.duck(is_ducked=is_ducked)
            streams[0].options["callback"](out, 1, None, None)
            levels.append(float(out[0, 0]))

    assert levels == [pytest.approx(0.1), 1.0]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_live_line_is_replaced_on_a_terminal_and_left_out_of_a_log() -> None:
    terminal, log = Terminal(), io.StringIO()
    for status in (terminal, log):
        screen = Screen(io.StringIO(), status)
        screen.live("listening")
        screen.live("you speak …")
        screen.note("ended")

    assert terminal.getvalue() == "listening\r\x1b[Kyou speak …\r\x1b[Kended\n"
    assert log.getvalue() == "ended\n"


def test_a_log_is_told_the_place_in_the_queue_when_it_changes() -> None:
    terminal, log = Terminal(), io.StringIO()
    for status in (terminal, log):
        screen = Screen(io.StringIO(), status)
        for place, wait_s in ((2, 60), (2, 57), (1, 30), (1, 27)):
            screen.waiting(Waiting(place, wait_s, "q_1", 2))
        screen.close()

    assert log.getvalue().splitlines() == [
        "waiting: place 2 of 2, about 60 s",
        "waiting: place 1 of 2, about 30 s",
    ]
    assert "about 57 s" in terminal.getvalue()


def test_a_server_without_workers_is_named_and_not_waited_for_without_end() -> None:
    clock, log = ManualClock(), io.StringIO()
    screen = Screen(io.StringIO(), log, wait_s=60, clock=clock)

    for wait_s, seconds in ((None, 50), (None, 10), (20, 20), (None, 59), (None, 1)):
        screen.waiting(Waiting(1, wait_s, "q_1", 1))
        clock.advance(seconds)
    with pytest.raises(SetupError, match=r"has no worker \(waited 60 s\)") as ended:
        screen.waiting(Waiting(1, None, "q_1", 1))

    assert "parley worker" in ended.value.hint
    no_worker = "waiting for a worker, the server has none: place 1 of 1"
    about = "waiting: place 1 of 1, about 20 s"
    assert log.getvalue().splitlines() == [no_worker, about, no_worker]
