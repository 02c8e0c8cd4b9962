"""The pocket model through one running server: questions by voice, answers that must be right.

The questions are spoken by espeak-ng, whose voices had no part in the training.
"""

import asyncio
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageDraw
from tests.support import speech
from tests.support.processes import Process, running
from tests.support.talking import b64, end_of, hear, heard, say
from websockets.asyncio.client import ClientConnection, connect

from parley.client import DuplexClient, HalfDuplexClient, RealtimeClient
from parley.client.events import Event, Piece, Speaking, Transcript, TurnDone
from parley.media.image import encode_jpeg
from parley.media.pcm import INPUT_RATE_HZ, OUTPUT_RATE_HZ, Pcm, join
from parley.protocol.half_duplex import Config
from parley.protocol.values import TurnGeneration

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

VOICE = "en-us"
SECOND = INPUT_RATE_HZ
QUIET = Pcm.silence(SECOND, INPUT_RATE_HZ)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """`parley serve` without a word about the model; its address for sockets."""
    flags = ("--http", "--host", "127.0.0.1", "--port", "0")
    with running(tmp_path_factory.mktemp("pocket"), "serve", *flags) as process:
        process.line_with("ready after")
        yield websocket_address(process)


def websocket_address(process: Process) -> str:
    return "ws" + process.url.removeprefix("http")


def is_sound(pcm: Pcm) -> bool:
    """Loud enough to be a voice, and not clipped."""
    return float(np.sqrt(np.mean(pcm.samples**2))) > 0.01 and float(np.abs(pcm.samples).max()) <= 1


async def admitted(socket: ClientConnection) -> None:
    """Until the slot is free: the session of the test before has just ended."""
    while not (await hear(socket))["type"].endswith("queue_done"):
        continue


async def asked(server: str, *turns: str, system: str = "") -> str:
    """The answer to the last of some typed turns; before it the model says what it says."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
    for text in turns:
        messages.append({"role": "user", "content": text})
        async with connect(f"{server}/ws/chat", max_size=None) as socket:
            await say(socket, messages=messages, generation={"do_sample": False})
            received, _ = await end_of(socket)
        assert received[-1]["type"] == "done", received[-1]
        messages.append({"role": "assistant", "content": received[-1]["text"]})
    return str(messages[-1]["content"])


@pytest.mark.parametrize(
    ("turns", "wanted"),
    [
        (["What is the capital of Portugal?"], "Lisbon"),
        (["How much is 17 plus 25?"], "42"),
        (["My cat is called Miezi.", "Thanks!", "What is my cat called?"], "Miezi"),
        (["What is the weather like today?"], "know"),
    ],
    ids=["capital", "sum", "told", "unknown"],
)
async def test_typed_questions_are_answered(server: str, turns: list[str], wanted: str) -> None:
    assert wanted in await asked(server, *turns)


async def test_a_drawing_is_seen(server: str) -> None:
    image = Image.new("RGB", (320, 240), (245, 245, 245))
    ImageDraw.Draw(image).ellipse((100, 60, 220, 180), fill=(220, 30, 30))
    content = [
        {"type": "image", "data": b64(encode_jpeg(np.asarray(image)))},
        {"type": "text", "text": "What color is the circle?"},
    ]
    async with connect(f"{server}/ws/chat", max_size=None) as socket:
        await say(
            socket, messages=[{"role": "user", "content": content}], tts={"enabled": True},
            generation={"do_sample": False},
        )  # fmt: skip
        messages, code = await end_of(socket)

    assert messages[-1]["type"] == "done", messages[-1]
    assert "red" in messages[-1]["text"]
    sounds = [heard(m, "audio_data") for m in messages if m["type"] == "chunk"]
    assert is_sound(join(sounds, OUTPUT_RATE_HZ))
    assert code == 1000


async def spoken_turn(socket: ClientConnection, words: str) -> tuple[str, Pcm]:
    """Say `words` into a half-duplex session and take the answer."""
    wave = join([QUIET, speech.say(words, VOICE), QUIET, QUIET], INPUT_RATE_HZ)
    for start in range(0, len(wave), SECOND // 2):
        chunk = wave.slice(start, start + SECOND // 2)
        await say(socket, type="audio_chunk", audio_base64=b64(chunk))
    pieces: list[Pcm] = []
    while (message := await hear(socket))["type"] != "turn_done":
        assert message["type"] != "error", message
        if message["type"] == "chunk" and message.get("audio_data"):
            pieces.append(heard(message, "audio_data"))
    return message["text"], join(pieces, OUTPUT_RATE_HZ)


async def test_half_duplex_remembers_a_name_over_three_turns(server: str) -> None:
    async with connect(f"{server}/ws/half_duplex/hdx_pocket", max_size=None) as socket:
        await admitted(socket)
        await say(socket, type="prepare", config={"generation": {"do_sample": False}})
        assert (await hear(socket))["type"] == "prepared"
        met, first = await spoken_turn(socket, "My name is Thomas.")
        fact, second = await spoken_turn(socket, "What is the capital of France?")
        known, third = await spoken_turn(socket, "What is my name?")
        await say(socket, type="stop")
        _, code = await end_of(socket)

    assert "Thomas" in met
    assert "Paris" in fact
    assert "Thomas" in known
    assert all(is_sound(sound) for sound in (first, second, third))
    assert code == 1000


class Call:
    """A full-duplex session in either dialect, unit by unit."""

    def __init__(self, socket: ClientConnection, dialect: str) -> None:
        self.socket = socket
        self.dialect = dialect

    async def begin(self) -> None:
        await admitted(self.socket)
        if self.dialect == "duplex":
            await say(self.socket, type="prepare", system_prompt="You are a helpful assistant.")
        else:
            session = {"instructions": "You are a helpful assistant."}
            await say(self.socket, type="session.update", session=session)
        assert (await hear(self.socket))["type"] in ("prepared", "session.created")

    async def unit(self, pcm: Pcm, *, is_forced: bool = False) -> dict[str, Any]:
        """Send one second; what it came to as `is_listen`, `text`, `sound`, `ends`."""
        if self.dialect == "duplex":
            message = {"type": "audio_chunk", "audio_base64": b64(pcm)}
        else:
            message = {"type": "input_audio_buffer.append", "audio": b64(pcm)}
        await say(self.socket, **message, force_listen=is_forced)
        message = await hear(self.socket)
        while message["type"] not in ("result", "response.listen", "response.output_audio.delta"):
            assert message["type"] != "error", message
            message = await hear(self.socket)
        field = "audio_data" if self.dialect == "duplex" else "audio"
        return {
            "is_listen": message.get("is_listen", message["type"] == "response.listen"),
            "text": message.get("text", ""),
            "sound": heard(message, field) if message.get(field) else Pcm.silence(0, 24_000),
            "ends": message.get("end_of_turn", False),
        }

    async def say(self, words: str) -> list[dict[str, Any]]:
        """Speak `words`, beginning a tenth into a unit."""
        lead = Pcm.silence(SECOND // 10, INPUT_RATE_HZ)
        wave = join([lead, speech.say(words, VOICE)], INPUT_RATE_HZ)
        wave = join([wave, Pcm.silence(-len(wave) % SECOND, INPUT_RATE_HZ)], INPUT_RATE_HZ)
        return [await self.unit(wave.slice(at, at + SECOND)) for at in range(0, len(wave), SECOND)]

    async def wait(self, units: int) -> list[dict[str, Any]]:
        return [await self.unit(QUIET) for _ in range(units)]

    async def answer(self, words: str) -> str:
        """Ask, and listen to the answer to its end."""
        units = await self.say(words)
        while not units[-1]["ends"]:
            assert len(units) < 14, units
            units += await self.wait(1)
        spoken = [unit for unit in units if not unit["is_listen"]]
        assert is_sound(join([unit["sound"] for unit in spoken], OUTPUT_RATE_HZ))
        return "".join(unit["text"] for unit in spoken).strip()

    async def end(self) -> None:
        await say(self.socket, type="stop" if self.dialect == "duplex" else "session.close")
        _, code = await end_of(self.socket)
        assert code == 1000


LIVE = {"duplex": "/ws/duplex/omni_pocket", "realtime": "/v1/realtime?mode=audio"}


@pytest.mark.parametrize("kind", LIVE)
async def test_a_call_is_answered_and_can_be_interrupted(server: str, kind: str) -> None:
    async with connect(server + LIVE[kind], max_size=None) as socket:
        call = Call(socket, kind)
        await call.begin()
        waited = await call.wait(3)
        answer = await call.answer("What is the capital of Spain?")
        await call.wait(1)
        counted = await call.say("Count to twenty.")
        while counted[-1]["is_listen"]:
            assert len(counted) < 6, counted
            counted += await call.wait(1)
        over = await call.say("Stop talking, please.")
        after = await call.wait(1)
        await call.end()

    assert all(unit["is_listen"] for unit in waited)
    assert "Madrid" in answer
    said = "".join(unit["text"] for unit in counted + over + after)
    assert "twenty" not in said.lower(), said


async def test_a_unit_that_must_listen_listens(server: str) -> None:
    """An answer that has started falls silent for the units in which listening is ordered."""
    async with connect(server + LIVE["duplex"], max_size=None) as socket:
        call = Call(socket, "duplex")
        await call.begin()
        await call.wait(3)
        units = await call.say("What is the capital of Italy?")
        while units[-1]["is_listen"]:
            assert len(units) < 6, units
            units += await call.wait(1)
        forced = [await call.unit(QUIET, is_forced=True) for _ in range(2)]
        await call.end()

    assert all(unit["is_listen"] and not len(unit["sound"]) for unit in forced)


# The Python clients: what is written into a call is answered aloud, what is said is written down.


def http(server: str) -> str:
    return "http" + server.removeprefix("ws")


def words_of(events: list[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, Piece | Speaking | TurnDone))


def is_aloud(events: list[Event]) -> bool:
    sounds = [event.sound for event in events if isinstance(event, Piece | Speaking)]
    spoken = join([sound for sound in sounds if sound is not None], OUTPUT_RATE_HZ)
    return len(spoken) > 0 and is_sound(spoken)


async def turn(talk: HalfDuplexClient) -> list[Event]:
    events: list[Event] = []
    async with asyncio.timeout(120):
        async for event in talk:
            events.append(event)
            if isinstance(event, TurnDone):
                break
    return events


async def test_what_is_written_and_said_in_half_duplex_is_answered(server: str) -> None:
    config = Config(transcribe=True, generation=TurnGeneration(temperature=0))
    async with HalfDuplexClient(http(server), config=config, record=False) as talk:
        await talk.ready(timeout_s=60)
        talk.write("What is the capital of Portugal?")
        written = await turn(talk)
        said = asyncio.create_task(talk.say(speech.say("What is the capital of France?", "en-us")))
        spoken = await turn(talk)
        await said

    assert "Lisbon" in words_of(written)
    assert is_aloud(written)
    assert not any(isinstance(event, Transcript) for event in written)
    assert is_aloud(spoken)
    (heard,) = [event.text for event in spoken if isinstance(event, Transcript)]
    assert "What is the capital" in heard


@pytest.mark.parametrize("kind", [DuplexClient, RealtimeClient])
async def test_what_is_written_and_said_in_a_call_is_answered(
    server: str, kind: type[DuplexClient] | type[RealtimeClient]
) -> None:
    async with kind(http(server), transcribe=True, record=False) as talk:
        await talk.ready(timeout_s=60)
        written = await answer(talk, "What is the capital of Portugal?", None)
        spoken = await answer(talk, "", speech.say("What is the capital of France?", "en-us"))

    assert "Lisbon" in words_of(written)
    assert is_aloud(written)
    assert "Paris" in words_of(spoken)
    (heard,) = [event.text for event in spoken if isinstance(event, Transcript)]
    # The recogniser is small: one of the short words between may be another.
    assert "capital" in heard
    assert "France" in heard


async def answer(talk: DuplexClient | RealtimeClient, text: str, pcm: Pcm | None) -> list[Event]:
    """What comes until the assistant has spoken to its end."""
    if text:
        talk.write(text)
    silence = Pcm.silence(1600, 16_000)
    saying = asyncio.create_task(talk.say(silence if pcm is None else pcm))
    events: list[Event] = []
    async with asyncio.timeout(120):
        async for event in talk:
            events.append(event)
            if isinstance(event, Speaking) and event.end_of_turn:
                break
    await saying
    return events
