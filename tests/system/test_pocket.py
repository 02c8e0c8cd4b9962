"""The pocket model through one running server: questions by voice, answers that must be right.

The questions are spoken by espeak-ng, whose voices had no part in the training.
"""

import functools
import json
import re
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from openai.types.audio import TranscriptionVerbose
from PIL import Image, ImageDraw
from tests.openai.sdk_client import chat, client_of, read_aloud, respond, transcribe
from tests.openai.test_own_llm import WEATHER, Event
from tests.support import speech
from tests.support.processes import running
from tests.support.talking import b64, end_of, hear, heard, say
from websockets.asyncio.client import ClientConnection, connect

import openai
from openai import AsyncOpenAI
from parley.cli import files
from parley.client import DuplexClient, RealtimeClient
from parley.client.events import Listening, Problem, Speaking, Transcript
from parley.media.encoder import encode_whole
from parley.media.image import encode_jpeg
from parley.media.pcm import INPUT_RATE_HZ, OUTPUT_RATE_HZ, Pcm, join
from parley.protocol.values import DuplexConfig

pytestmark = pytest.mark.timeout(240)

VOICE = "en-us"
SECOND = INPUT_RATE_HZ
QUIET = Pcm.silence(SECOND, INPUT_RATE_HZ)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """`parley serve` without a word about the model; its address for sockets."""
    flags = ("--http", "--host", "127.0.0.1", "--port", "0")
    with running(tmp_path_factory.mktemp("pocket"), "serve", *flags) as process:
        process.line_with("ready after")
        yield "ws" + process.url.removeprefix("http")


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


async def test_the_printed_chat_example_is_greeted_aloud(server: str) -> None:
    """Of the requirement text on chat, word by word."""
    reference = b64(speech.say("Good morning. This is what I sound like."))
    system = [
        {"type": "text", "text": "Mimic the voice from the audio sample."},
        {"type": "audio", "data": reference},
        {"type": "text", "text": "You are a helpful assistant. Reply naturally."},
    ]
    async with connect(f"{server}/ws/chat", max_size=None) as socket:
        await say(
            socket,
            messages=[
                {"role": "system", "content": system},
                {"role": "user", "content": "Hello!"},
            ],
            streaming=True,
            generation={"max_new_tokens": 256, "temperature": 0.7},
            tts={"enabled": True, "mode": "audio_assistant", "ref_audio_data": reference},
        )
        messages, _ = await end_of(socket)

    assert messages[-1]["type"] == "done", messages[-1]
    greeting = r"\b(hello|hi|good (day|morning|evening|afternoon))\b"
    assert re.search(greeting, messages[-1]["text"].lower())
    sounds = [heard(m, "audio_data") for m in messages if m["type"] == "chunk"]
    assert sum(map(len, sounds)) > OUTPUT_RATE_HZ / 2


async def turn(socket: ClientConnection, transcript: str | None = None) -> str:
    """The answer to a turn, which is said aloud.

    Args:
        transcript: part of what the user was heard to say; None: nothing was said.
    """
    pieces: list[Pcm] = []
    told = []
    while (message := await hear(socket))["type"] != "turn_done":
        assert message["type"] != "error", message
        if message["type"] == "chunk" and message.get("audio_data"):
            pieces.append(heard(message, "audio_data"))
        if message["type"] == "input_transcript":
            told.append(message["text"])
    assert is_sound(join(pieces, OUTPUT_RATE_HZ))
    assert len(told) == (transcript is not None)
    assert transcript is None or transcript in told[0]
    return str(message["text"])


async def spoken_turn(socket: ClientConnection, words: str, transcript: str) -> str:
    """Say `words` into a half-duplex session and take the answer."""
    wave = join([QUIET, speech.say(words, VOICE), QUIET, QUIET], INPUT_RATE_HZ)
    for start in range(0, len(wave), SECOND // 2):
        chunk = wave.slice(start, start + SECOND // 2)
        await say(socket, type="audio_chunk", audio_base64=b64(chunk))
    return await turn(socket, transcript)


async def test_half_duplex_reads_hears_and_remembers_a_name(server: str) -> None:
    async with connect(f"{server}/ws/half_duplex/hdx_pocket?extensions=true") as socket:
        await admitted(socket)
        config = {"generation": {"do_sample": False}, "transcribe": True}
        await say(socket, type="prepare", config=config)
        assert (await hear(socket))["type"] == "prepared"
        await say(socket, type="input_text", text="What is the capital of Portugal?")
        written = await turn(socket)
        met = await spoken_turn(socket, "My name is Thomas.", "name is")
        fact = await spoken_turn(socket, "What is the capital of France?", "What is the capital")
        known = await spoken_turn(socket, "What is my name?", "my name")
        await say(socket, type="stop")
        _, code = await end_of(socket)

    assert "Lisbon" in written
    assert "Thomas" in met
    assert "Paris" in fact
    assert "Thomas" in known
    assert code == 1000


class Call:
    """A call by one of the clients, unit by unit."""

    def __init__(self, talk: DuplexClient | RealtimeClient) -> None:
        self.talk = talk
        self.told: list[str] = []

    async def unit(
        self, pcm: Pcm = QUIET, *, frames: tuple[bytes, ...] = (), is_forced: bool = False
    ) -> Listening | Speaking:
        """Send one second; what it came to. What was heard to be said is `told`."""
        self.talk.send_unit(pcm, frames=frames, force_listen=is_forced)
        async for event in self.talk:
            match event:
                case Listening() | Speaking():
                    return event
                case Transcript(text=text):
                    self.told.append(text)
                case Problem():
                    raise AssertionError(event)
        raise AssertionError("the call has ended")

    async def say(self, words: str) -> list[Listening | Speaking]:
        """Speak `words`, beginning a tenth into a unit."""
        lead = Pcm.silence(SECOND // 10, INPUT_RATE_HZ)
        wave = join([lead, speech.say(words, VOICE)], INPUT_RATE_HZ)
        wave = join([wave, Pcm.silence(-len(wave) % SECOND, INPUT_RATE_HZ)], INPUT_RATE_HZ)
        return [await self.unit(wave.slice(at, at + SECOND)) for at in range(0, len(wave), SECOND)]

    async def begun(self, units: list[Listening | Speaking]) -> list[Listening | Speaking]:
        """With those until the answer begins."""
        while isinstance(units[-1], Listening):
            assert len(units) < 6, units
            units.append(await self.unit())
        return units

    async def answer(self, units: list[Listening | Speaking]) -> str:
        """Listen to an answer to its end."""
        units = await self.begun(units)
        while not (isinstance(units[-1], Speaking) and units[-1].end_of_turn):
            assert len(units) < 14, units
            units.append(await self.unit())
        sounds = [unit.sound for unit in units if isinstance(unit, Speaking) and unit.sound]
        assert is_sound(join(sounds, OUTPUT_RATE_HZ))
        return text_of(units)


def text_of(units: list[Listening | Speaking]) -> str:
    return "".join(unit.text for unit in units if isinstance(unit, Speaking))


@pytest.mark.parametrize("kind", [DuplexClient, RealtimeClient])
async def test_a_call_reads_hears_and_can_be_interrupted(
    server: str, kind: type[DuplexClient] | type[RealtimeClient]
) -> None:
    async with kind("http" + server.removeprefix("ws"), transcribe=True, record=False) as talk:
        await talk.ready(timeout_s=60)
        call = Call(talk)
        waited = [await call.unit() for _ in range(3)]
        talk.write("What is the capital of Portugal?")
        written = await call.answer([await call.unit()])
        assert call.told == []
        spoken = await call.answer(await call.say("What is the capital of Spain?"))
        (told,) = call.told
        await call.unit()
        counted = await call.begun(await call.say("Count to twenty."))
        counted += [*await call.say("Stop talking, please."), await call.unit()]

    assert all(isinstance(unit, Listening) for unit in waited)
    assert "Lisbon" in written
    assert "Madrid" in spoken
    # The recogniser is small: one of the short words between may be another.
    assert "capital" in told
    assert "Spain" in told
    assert "twenty" not in text_of(counted).lower(), counted


async def test_units_listen_where_they_must_and_may_be_pictures_only(server: str) -> None:
    """An answer that has started falls silent for the units in which listening is ordered."""
    config = DuplexConfig(force_listen_count=0)
    async with DuplexClient("http" + server.removeprefix("ws"), video=True, config=config) as talk:
        await talk.ready(timeout_s=60)
        call = Call(talk)
        frame = encode_jpeg(np.full((48, 64, 3), 90, np.uint8))
        seen = await call.unit(Pcm.silence(0, INPUT_RATE_HZ), frames=(frame,))
        await call.begun(await call.say("What is the capital of Italy?"))
        forced = [await call.unit(is_forced=True) for _ in range(2)]

    assert isinstance(seen, Listening)
    assert all(isinstance(unit, Listening) for unit in forced)


# ---- OpenAI's own client -------------------------------------------------------------------


def own_client(server: str) -> AsyncOpenAI:
    return client_of(SimpleNamespace(url="http" + server.removeprefix("ws")))


async def test_an_answer_that_it_knows_has_its_tokens_counted_and_limited(server: str) -> None:
    question: list[Any] = [{"role": "user", "content": "What is the capital of Italy?"}]
    async with own_client(server) as client:
        create: Any = functools.partial(client.responses.create, temperature=0)
        whole: Any = await create(model="m", input=question)
        cut: Any = await create(model="m", input=question, max_output_tokens=3)
        events = await create(model="m", input=question, max_output_tokens=3, stream=True)
        streamed: Any = [event async for event in events][-1]

    assert whole.output_text == "The capital of Italy is Rome."
    assert 5 < whole.usage.output_tokens < 12
    for found in (cut, streamed.response):
        assert (found.status, found.usage.output_tokens) == ("incomplete", 3)
        assert 0 < len(found.output[0].content[0].text) < len("The capital of Italy")
        assert found.incomplete_details.reason == "max_output_tokens"


async def test_the_words_of_a_transcript_have_times(server: str) -> None:
    """As LiteLLM and Vercel's AI SDK ask for them, of a file with three sentences."""
    spoken = ("questions.wav", encode_whole("wav", files.sample()))
    async with own_client(server) as client:
        form: Any = {"response_format": "verbose_json", "timestamp_granularities": ["word"]}
        words = await transcribe(client, spoken, **form)
        form["timestamp_granularities"] = ["word", "segment"]
        both = await transcribe(client, spoken, **form)
        with pytest.raises(openai.BadRequestError, match="verbose_json"):
            await transcribe(client, spoken, **form | {"response_format": "json"})

    TranscriptionVerbose.model_validate(both.model_dump(), strict=False)
    assert words.segments is None
    assert words.words == both.words
    assert " ".join(each.word for each in words.words or ()) == words.text
    assert len(both.segments or ()) == 3
    times = [at for each in both.words or () for at in (each.start, each.end)]
    assert times == sorted(times)
    within = [
        [word for word in both.words or () if one.start <= word.start and word.end <= one.end]
        for one in both.segments or ()
    ]
    assert sum(map(len, within)) == len(both.words or ())


async def test_speech_of_a_text_without_a_word_is_an_error_not_an_empty_file(server: str) -> None:
    async with own_client(server) as client:
        with pytest.raises(openai.BadRequestError, match="no words") as refused:
            await read_aloud(client, "你好 🎡")

    assert refused.value.param == "input"


async def test_it_answers_in_the_form_of_a_schema_through_every_door(server: str) -> None:
    """Valid JSON of the schema, whatever it would like to say."""
    async with own_client(server) as client:
        said: Any = [{"role": "user", "content": "Anna and Bob come on Friday."}]
        limits: Any = {"temperature": 0, "max_completion_tokens": 300}
        parsed = await client.chat.completions.parse(
            model="m", messages=said, response_format=Event, **limits
        )
        response = await client.responses.parse(
            model="m", input="Anna and Bob come on Friday.", text_format=Event, temperature=0
        )
        async with client.responses.stream(
            model="m", input="Anna comes on Friday.", text_format=Event, temperature=0
        ) as stream:
            async for _ in stream:
                pass
            streamed = await stream.get_final_response()
        plain = await chat(client, response_format={"type": "json_object"}, temperature=0)
        choice = {"type": "function", "function": {"name": "get_weather"}}
        forced = await chat(client, tools=[WEATHER], tool_choice=choice, temperature=0)
        function = {**WEATHER["function"], "type": "function"}
        items = await respond(client, tools=[function], tool_choice="required", temperature=0)
        impossible = {"name": "x", "schema": {"not": {}}}
        tool = {"type": "function", "name": "f", "parameters": {"not": {}}}
        form = {"type": "json_schema", "json_schema": impossible}
        for asked, param in (
            (chat(client, response_format=form), "response_format"),
            (
                respond(client, text={"format": {"type": "json_schema", **impossible}}),
                "text.format",
            ),
            (respond(client, tools=[tool], tool_choice="required"), "tools"),
        ):
            with pytest.raises(openai.BadRequestError, match='"not"') as refused:
                await asked
            assert refused.value.param == param

    assert isinstance(parsed.choices[0].message.parsed, Event)
    assert isinstance(response.output_parsed, Event)
    assert isinstance(streamed.output_parsed, Event)
    assert isinstance(json.loads(plain.choices[0].message.content or ""), dict)
    (call,) = forced.choices[0].message.tool_calls or []
    assert json.loads(call.function.arguments)["city"] in ("Rome", "Oslo")
    assert forced.choices[0].finish_reason == "tool_calls"
    (item,) = items.output
    assert item.type == "function_call"
    assert json.loads(item.arguments)["city"] in ("Rome", "Oslo")
