"""OpenAI's own Python client, with nothing changed but the address and the key, against a whole
server: chat completions, models, speech, transcriptions, and every error in its own shape."""

import asyncio
import base64
import io
import json
import re
import time
from typing import Any

import av
import numpy as np
import pytest
import soundfile
from openai.types.audio import TranscriptionVerbose
from openai.types.chat import ChatCompletionChunk
from tests.openai.sdk_client import (
    QUESTION,
    chat,
    client_of,
    read_aloud,
    red_picture,
    streamed_chat,
    talking,
    transcribe,
)
from tests.openai.talking_model import HEARD, TalkingModel
from tests.support.gateways import all_free, occupied, running_gateway, until
from tests.support.sounds import speak
from tests.support.stack import running_stack
from websockets import InvalidStatus

import openai
from parley import logs
from parley.gateway.http.openai.models import ModelList
from parley.gateway.http.openai.speech import pieces_of
from parley.media.encoder import encode_whole
from parley.media.pcm import Pcm
from parley.media.wav import encode_wav


def parse(chunk: ChatCompletionChunk) -> None:
    """Strictly: nothing is coerced, nothing is missing."""
    ChatCompletionChunk.model_validate(chunk.model_dump(), strict=False)


# ---- chat completions ----------------------------------------------------------------------


async def test_a_streamed_answer_with_usage_comes_piece_by_piece():
    async with talking() as (_, client):
        chunks = await streamed_chat(client, stream_options={"include_usage": True})

    *pieces, last, usage = chunks
    assert pieces[0].choices[0].delta.role == "assistant"
    said = [chunk.choices[0].delta.content for chunk in pieces[1:]]
    assert said == ["One ", "two ", "three. "]
    assert last.choices[0].finish_reason == "stop"
    assert usage.choices == []
    assert usage.usage is not None
    assert usage.usage.completion_tokens == 3
    assert len({chunk.id for chunk in chunks}) == 1
    for chunk in chunks:
        parse(chunk)


async def test_a_spoken_answer_in_one_piece_is_a_file_and_its_words():
    async with talking() as (_, client):
        for form in ("wav", "mp3", "flac", "opus", "aac"):
            spoken = {"voice": "alloy", "format": form}
            answer = await chat(client, modalities=["text", "audio"], audio=spoken)
            message = answer.choices[0].message
            data = base64.b64decode(message.audio.data)
            if form == "aac":
                # soundfile does not read it.
                assert data[:1] == b"\xff"
                continue
            samples, rate_hz = soundfile.read(io.BytesIO(data))

            assert (message.content, message.audio.transcript) == (None, "One two three. ")
            assert len(samples) >= 7200
            if form == "wav":
                assert (len(samples), rate_hz) == (7200, 24_000)


async def test_a_streamed_spoken_answer_has_standard_audio_deltas():
    async with talking() as (_, client):
        spoken = {"voice": "alloy", "format": "pcm16"}
        chunks = await streamed_chat(client, modalities=["text", "audio"], audio=spoken)
        deltas = [chunk.choices[0].delta for chunk in chunks]

    sounds = [delta.audio for delta in deltas if delta.audio is not None]
    words = "".join(audio.transcript or "" for audio in sounds)
    data = b"".join(base64.b64decode(audio.data) for audio in sounds if audio.data)
    assert words == "One two three. "
    assert len(data) == 2 * 7200
    assert np.abs(np.frombuffer(data, "<i2")).max() > 5000
    assert sounds[-1].expires_at is not None
    assert len({audio.id for audio in sounds}) == 1
    assert all(not delta.content for delta in deltas)


SPOKEN: Any = {"modalities": ["text", "audio"], "audio": {"voice": "alloy", "format": "wav"}}


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_a_spoken_conversation_continues_with_the_id_of_its_audio(is_streamed: bool):
    model = TalkingModel()
    async with talking(model) as (_, client):
        if is_streamed:
            deltas = [chunk.choices[0].delta for chunk in await streamed_chat(client, **SPOKEN)]
            ids = [delta.audio.id for delta in deltas if delta.audio is not None]
            messages = [{"role": "assistant", "content": "", "audio": {"id": ids[-1]}}]
        else:
            first, second = (await chat(client, n=2, **SPOKEN)).choices
            assert first.message.audio.id != second.message.audio.id
            assert 3590 <= second.message.audio.expires_at - time.time() <= 3600
            messages = [{"role": "assistant", "audio": {"id": second.message.audio.id}}]
        await chat(client, messages=[*QUESTION, *messages, *QUESTION], **SPOKEN)

    assert "One two three. " in model.contexts[-1]


async def test_audio_of_an_answer_is_known_by_its_transcript_or_refused_by_name():
    model = TalkingModel()
    async with talking(model) as (_, client):
        whole = {"role": "assistant", "audio": {"id": "audio_x", "transcript": "Four five."}}
        await chat(client, messages=[*QUESTION, whole, *QUESTION])
        with pytest.raises(openai.BadRequestError, match="send the transcript") as caught:
            await chat(client, messages=[{"role": "assistant", "audio": {"id": "audio_x"}}])

    assert "Four five." in model.contexts[-1]
    assert caught.value.param == "messages[0].audio.id"


async def test_sound_pictures_and_words_come_to_the_model():
    wav = base64.b64encode(encode_wav(speak(1.0))).decode()
    mp3 = base64.b64encode(encode_whole("mp3", speak(2.0))).decode()
    picture = base64.b64encode(red_picture()).decode()
    content: list[Any] = [
        {"type": "text", "text": "look"},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{picture}"}},
        {"type": "input_audio", "input_audio": {"data": wav, "format": "wav"}},
        {"type": "input_audio", "input_audio": {"data": mp3, "format": "mp3"}},
        {"type": "input_audio", "input_audio": {"data": mp3, "format": "wav"}},
    ]
    async with running_stack() as running, client_of(running) as client:
        instructions = {"role": "developer", "content": "Be kind."}
        answer = await chat(client, messages=[instructions, {"role": "user", "content": content}])

    text = answer.choices[0].message.content or ""
    assert text.startswith("You spoke for 5.")
    assert "I saw 1 picture of 32 by 32." in text
    assert "You wrote: look" in text


async def test_limits_seed_and_temperature_reach_the_model():
    model = TalkingModel(answer="one two three four")
    async with talking(model) as (_, client):
        answer = await chat(client, max_completion_tokens=2, temperature=0, top_p=0.5, seed=-7)
        old = await chat(client, max_tokens=3)

    (asked, _) = model.asked
    assert answer.choices[0].message.content == "one two "
    assert answer.choices[0].finish_reason == "length"
    assert old.choices[0].message.content == "one two three "
    assert asked.is_greedy
    assert asked.top_p == 0.5


async def test_a_conversation_may_begin_with_the_assistants_greeting():
    model = TalkingModel()
    messages: list[Any] = [{"role": "assistant", "content": "Welcome, guest!"}, *QUESTION]
    async with talking(model) as (_, client):
        answer = await chat(client, messages=messages)

    assert answer.choices[0].finish_reason == "stop"
    assert "Welcome, guest!" in "".join(model.contexts[0])


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_a_stop_text_ends_the_answer_before_it(is_streamed):
    async with talking(TalkingModel(answer="one two three four " * 50)) as (_, client):
        if is_streamed:
            chunks = await streamed_chat(client, stop=["e fo", "nowhere"])
            choices = [chunk.choices[0] for chunk in chunks]
            text = "".join(choice.delta.content or "" for choice in choices)
            finish = choices[-1].finish_reason
        else:
            answer = await chat(client, stop="e fo")
            text = answer.choices[0].message.content or ""
            finish = answer.choices[0].finish_reason

    assert text == "one two thre"
    assert finish == "stop"


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_each_choice_is_an_answer_of_its_own_and_the_question_is_counted_once(is_streamed):
    async with talking() as (_, client):
        one = await chat(client)
        texts, finished = {0: "", 1: "", 2: ""}, []
        if is_streamed:
            for chunk in await streamed_chat(client, n=3, stream_options={"include_usage": True}):
                usage = chunk.usage
                for choice in chunk.choices:
                    texts[choice.index] += choice.delta.content or ""
                    finished += [choice.index] if choice.finish_reason else []
        else:
            answer = await chat(client, n=3)
            usage = answer.usage
            for whole in answer.choices:
                texts[whole.index] = whole.message.content or ""
                finished.append(whole.index)

    assert [*texts.values()] == [one.choices[0].message.content] * 3
    assert finished == [0, 1, 2]
    assert one.usage is not None
    assert usage is not None
    assert usage.prompt_tokens == one.usage.prompt_tokens
    assert usage.completion_tokens == 3 * one.usage.completion_tokens


IMAGE = {"type": "image_url", "image_url": {"url": "http://127.0.0.1/x.png"}}
BROKEN = {"type": "image_url", "image_url": {"url": "data:image/png;base64,@@@"}}
NO_SOUND = {"type": "input_audio", "input_audio": {"data": "@@@", "format": "wav"}}
REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"n": 9}, "n", ""),
    ({"top_logprobs": 2}, "top_logprobs", "logprobs: true"),
    ({"logprobs": True, "top_logprobs": 2}, "logprobs", "--llm"),
    ({"response_format": {"type": "json_object"}}, "response_format", "--llm"),
    ({"response_format": {"type": "yaml"}}, "response_format", "json_schema"),
    (
        {"response_format": {"type": "json_schema"}},
        "response_format.json_schema.schema",
        "a JSON schema",
    ),
    ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools", "--llm"),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type", "function"),
    ({"logprobs": True}, "logprobs", "--llm"),
    ({"logit_bias": {"1": 2}}, "logit_bias", ""),
    ({"presence_penalty": 1.0}, "presence_penalty", "--llm"),
    ({"frequency_penalty": -0.5}, "frequency_penalty", "--llm"),
    ({"modalities": ["text", "audio"]}, "audio", ""),
    ({"temperature": 3.0}, "temperature", ""),
    ({"messages": []}, "messages", ""),
    ({"messages": [{"role": "user", "content": [{"type": "file", "file": {}}]}]}, "file", ""),
    ({"modalities": ["audio"], "audio": {"voice": "nobody", "format": "wav"}}, "audio.voice", ""),
    ({"messages": [{"role": "user", "content": [IMAGE]}]}, "image_url", ""),
    ({"messages": [{"role": "user", "content": [BROKEN]}]}, "image_url", "image_url is not"),
    ({"messages": [{"role": "user", "content": [NO_SOUND]}]}, "input_audio.data", ""),
    ({"messages": [*QUESTION, {"role": "tool", "content": "21"}]}, "messages[1].tool_call_id", ""),
]


async def test_what_cannot_be_held_is_refused_by_name():
    async with talking() as (running, client):
        for asked, param, hint in REFUSED:
            with pytest.raises(openai.BadRequestError) as caught:
                await chat(client, **asked)
            assert hint in str(caught.value)
            assert caught.value.type == "invalid_request_error"
            assert param in (caught.value.param or "")
        await all_free(running)


async def test_tools_that_are_not_to_be_used_are_no_reason_to_refuse():
    async with talking() as (_, client):
        answer = await chat(
            client, tools=[{"type": "function", "function": {"name": "f"}}], tool_choice="none"
        )

    assert answer.choices[0].message.content


def picture_part(data: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}


def sound_part(data: str, form: str) -> dict[str, Any]:
    return {"type": "input_audio", "input_audio": {"data": data, "format": form}}


FINE = base64.b64encode(red_picture()).decode()
WAV = base64.b64encode(encode_wav(speak(1.0))).decode()


@pytest.mark.parametrize(
    ("broken", "field"),
    [
        (picture_part("AAAA"), "image_url"),
        (picture_part("!!!"), "image_url"),
        ({"type": "image_url", "image_url": {"url": "there"}}, "image_url"),
        (sound_part("AAAA", "mp3"), "input_audio.data"),
        (sound_part("UklGRAAA", "wav"), "input_audio.data"),
        ({"type": "video_url", "video_url": {"url": "data:video/mp4;base64,A"}}, "video_url"),
        ({"type": "file", "file": {"file_id": "file-1"}}, "file"),
    ],
)
async def test_media_that_cannot_be_used_are_named_by_their_part(broken: Any, field: str):
    """Also after a greeting, before which the server puts a system message."""
    greeting = {"role": "assistant", "content": "Hello!"}
    fine = [picture_part(FINE), sound_part(WAV, "wav")]
    first = {"role": "user", "content": [*fine, {"type": "text", "text": "look"}]}
    last = {"role": "user", "content": [{"type": "text", "text": "and?"}, broken]}
    async with talking() as (_, client):
        for stream in (False, True):
            with pytest.raises(openai.BadRequestError) as caught:
                await chat(client, messages=[greeting, first, last], stream=stream)
            assert caught.value.type == "invalid_request_error"
            assert caught.value.param == f"messages[2].content[1].{field}"


async def test_hanging_up_in_the_middle_of_a_stream_frees_the_slot():
    async with talking(TalkingModel(answer="word " * 3000)) as (running, client):
        stream = await chat(client, stream=True, max_tokens=4096)
        async for _ in stream:
            break
        await stream.close()
        await all_free(running)


# ---- who may, and what is in the way -------------------------------------------------------


async def test_a_full_queue_is_429_and_says_when_to_come_again():
    async with (
        running_stack(queue={"max_size": 1}) as running,
        client_of(running) as client,
        occupied(running),
        running.http() as http,
    ):
        waiting = asyncio.create_task(chat(client))
        await until(lambda: len(running.runtime.dispatcher.queue) == 1)
        with pytest.raises(openai.RateLimitError) as caught:
            await chat(client)
        ours = await http.post("/api/chat", json={"messages": QUESTION})
        waiting.cancel()

    assert caught.value.code == "queue_full"
    assert int(caught.value.response.headers["retry-after"]) > 0
    assert ours.status_code == 503


async def test_where_keys_are_needed_a_strange_one_is_401_and_a_right_one_works():
    async with (
        running_gateway(security={"needs_key": True, "admin_token": "the-admin"}) as running,
        running.http() as http,
        client_of(running, api_key="sk-strange") as stranger,
    ):
        key = (await running.new_key())["key"]
        with pytest.raises(openai.AuthenticationError) as caught:
            await stranger.models.list()
        listed = [
            await http.get("/v1/models", headers={header: f"{before}{key}"})
            for header, before in (("Authorization", "Bearer "), ("api-key", ""), ("X-Api-Key", ""))
        ]

    assert caught.value.code == "invalid_api_key"
    assert "revoked or expired" in str(caught.value)
    assert [answer.status_code for answer in listed] == [200] * 3


async def test_where_none_is_needed_a_strange_key_is_nobodys_and_one_of_ours_must_be_valid():
    async with running_gateway() as running, running.http() as http:
        strange = await http.get("/status", headers={"authorization": "Bearer sk-strange"})
        ours = await http.get("/status", headers={"authorization": "Bearer pk_unknown"})
        api_key = await http.get("/status", headers={"api-key": "strange"})

    assert strange.status_code == api_key.status_code == 200
    assert ours.status_code == 401


async def test_a_conversation_that_is_too_long_has_the_code_that_sdks_compare():
    def asked(words: int) -> Any:
        return [{"role": "user", "content": "word " * words}]

    async with talking() as (_, client):
        for is_streamed in (False, True):
            with pytest.raises(openai.BadRequestError, match="maximum context length") as caught:
                await chat(client, messages=asked(13_000), stream=is_streamed)
            assert caught.value.code == "context_length_exceeded"
        # More than one text may have: agents send whole files.
        with pytest.raises(openai.BadRequestError) as caught:
            await chat(client, messages=asked(14_000))
        assert caught.value.code == "context_length_exceeded"
        # What LiteLLM and CrewAI compare, and LangChain.
        own = "string too long. Expected a string with maximum length 65536, got 70000 characters."
        assert f"messages[0].content: {own}" in caught.value.message
        assert "prompt is too long" in caught.value.message


# ---- models --------------------------------------------------------------------------------


async def test_models_are_those_that_are_loaded_with_their_abilities():
    async with talking() as (running, client), running.http() as http:
        (card,) = (await client.models.list()).data
        one = await client.models.retrieve("talking")
        nameless = await http.get("/v1/models/", follow_redirects=True)
        # Requests may name any model: so may who looks for one.
        other = await client.models.retrieve("gpt-4o")

    assert card == one
    assert other.id == "gpt-4o"
    assert [each["id"] for each in nameless.json()["data"]] == ["talking"]
    assert card.id == "talking"
    assert card.model_extra is not None
    assert card.model_extra["abilities"] == ["speech", "reading", "transcription"]
    assert card.model_extra["context_window"] == 8192


# ---- speech --------------------------------------------------------------------------------


async def test_a_text_is_spoken_as_it_stands():
    model = TalkingModel(answer="something else")
    words = "four words are enough"
    async with talking(model) as (_, client):
        found = {
            form: await read_aloud(client, words, response_format=form)
            for form in ("wav", "mp3", "opus", "flac", "aac", "pcm")
        }

    assert [asked.say for asked in model.asked] == [words] * 6
    assert len(found.pop("pcm").content) == 2 * 4 * 2400
    assert found["aac"].response.headers["content-type"] == "audio/aac"
    for form, answer in found.items():
        assert answer.response.headers["content-type"].startswith("audio/")
        # A FLAC that is made while it is sent cannot say how long it will be.
        with av.open(io.BytesIO(answer.content), format="aac" if form == "aac" else None) as file:
            samples = sum(frame.samples for frame in file.decode(audio=0))
        assert samples >= 4 * 2400 - (3000 if form == "aac" else 0)


async def test_a_long_text_is_spoken_before_the_next_request_of_its_caller():
    model = TalkingModel()
    texts = [" ".join([letter * 100] * 8) for letter in "ab"]
    async with talking(model, limits={"sessions_per_client": 1}) as (_, client):
        await asyncio.gather(*(read_aloud(client, text, response_format="pcm") for text in texts))

    assert "".join((asked.say or "")[0] for asked in model.asked) in ("aabb", "bbaa")


async def test_speech_as_events():
    async with talking() as (running, _), running.http() as http:
        answer = await http.post(
            "/v1/audio/speech",
            json={
                "model": "m",
                "voice": "alloy",
                "input": "one two",
                "response_format": "pcm",
                "stream_format": "sse",
            },
        )

    events = [json.loads(line[6:]) for line in answer.text.splitlines() if line]
    data = b"".join(base64.b64decode(e["audio"]) for e in events[:-1])
    assert len(data) == 2 * 2 * 2400
    assert events[-1]["type"] == "speech.audio.done"
    usage = events[-1]["usage"]
    assert usage["output_tokens"] == 2 * 2400 // 960
    assert usage["input_tokens"] > 0
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]


async def test_a_model_that_cannot_read_aloud_refuses_speech():
    async with talking(TalkingModel(can=False)) as (_, client):
        with pytest.raises(openai.BadRequestError, match="read text aloud"):
            await read_aloud(client)


async def test_speech_that_cannot_be_made_is_refused_by_name():
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"speed": 5.0}, "speed"),
        ({"voice": "nobody"}, "voice"),
        ({"input": "x" * 5000}, "input"),
        ({"input": "  "}, "input"),
        ({"response_format": "midi"}, "response_format"),
    ]
    async with talking() as (_, client):
        for asked, param in wrong:
            with pytest.raises(openai.BadRequestError) as caught:
                await read_aloud(client, **asked)
            assert param in (caught.value.param or "")


async def test_speech_faster_and_slower_has_the_same_pitch():
    said = " ".join(["word"] * 30)
    asked = {"instructions": "Speak in a cheerful tone.", "response_format": "pcm"}
    async with talking() as (_, client):
        found = {
            speed: await read_aloud(client, said, speed=speed, **asked)
            for speed in (0.25, 0.5, 1.0, 2.0, 4.0)
        }

    sounds = {s: np.frombuffer(each.content, "<i2").astype(float) for s, each in found.items()}
    for speed, sound in sounds.items():
        assert len(sound) == pytest.approx(len(sounds[1.0]) / speed, rel=0.15)
        assert pitch_of(sound) == pytest.approx(pitch_of(sounds[1.0]), rel=0.05)


def pitch_of(samples: Any) -> float:
    """The strongest frequency, Hz."""
    middle = samples[len(samples) // 4 : 3 * len(samples) // 4]
    spectrum = np.abs(np.fft.rfft(middle * np.hanning(len(middle))))
    return float(np.fft.rfftfreq(len(middle), 1 / 24_000)[int(spectrum.argmax())])


@pytest.mark.parametrize(
    "text", ["a " * 2048, "This is a sentence. " * 204, "x" * 4096, "Wie schön! " * 372]
)
def test_a_long_text_is_said_to_its_end_in_pieces(text):
    said = pieces_of(text)

    assert len(said) > 5
    assert max(map(len, said)) <= 600
    assert "".join(said).replace(" ", "") == text.replace(" ", "")


async def test_a_long_text_is_spoken_piece_by_piece():
    model = TalkingModel()
    async with talking(model) as (_, client):
        await read_aloud(client, "This is a sentence. " * 60, response_format="pcm")

    assert [asked.say for asked in model.asked] == pieces_of("This is a sentence. " * 60)


PUBLISHED = {"published": True}


async def test_a_registered_voice_is_named_by_its_name(tmp_path):
    wav = base64.b64encode(encode_wav(speak(1.5))).decode()
    async with (
        running_stack(
            load_model=TalkingModel,
            storage={"data_dir": tmp_path, "min_free_gb": 0, "recording": False},
        ) as running,
        running.http() as http,
        client_of(running) as client,
    ):
        added = await http.post("/api/assets/ref_audio", json={"name": "Anna", "audio_base64": wav})
        await http.put(f"/api/assets/ref_audio/{added.json()['id']}/published", json=PUBLISHED)
        voices = (await http.get("/v1/audio/voices")).json()["voices"]
        spoken = [
            await read_aloud(client, voice=voice, response_format="pcm")
            for voice in ("Anna", *(each["id"] for each in voices))
        ]

    assert voices == [
        {"id": "default", "name": "Default"},
        {"id": added.json()["id"], "name": "Anna"},
    ]
    assert [len(each.content) for each in spoken] == [2 * 2400] * 3


# ---- transcriptions ------------------------------------------------------------------------


def sound_file(form: Any = "wav") -> tuple[str, bytes]:
    return f"question.{form}", encode_whole(form, speak(1.0))


async def test_what_the_model_says_it_heard_is_the_transcript():
    async with talking() as (_, client):
        for form in ("wav", "mp3"):
            answer = await transcribe(client, sound_file(form))
            assert answer.text == HEARD


async def test_decoded_sound_is_memory_of_its_client_while_it_waits():
    async with talking() as (running, client):
        once, budget = client.with_options(max_retries=0), running.runtime.links.budget
        budget.share_bytes = 50_000
        with pytest.raises(openai.InternalServerError, match="use all memory"):
            await transcribe(once, sound_file())
        budget.share_bytes = budget.limit_bytes
        answer = await transcribe(once, sound_file())

        assert answer.text == HEARD
        assert budget.peak_bytes >= 4 * 16_000
        await until(lambda: budget.used_bytes == 0)


async def test_a_model_that_transcribes_when_asked_is_asked():
    model = TalkingModel(answer="the words it was asked for", prompt="Please write it down.")
    async with talking(model) as (_, client):
        text = await transcribe(client, sound_file(), response_format="text")

    assert str(text).strip() == "the words it was asked for"


def two_sentences() -> tuple[str, bytes]:
    """Sound from 1.0 to 2.0 s and from 3.5 to 4.5 s."""
    quiet = [np.zeros(int(16_000 * length_s), np.float32) for length_s in (1.0, 1.5, 0.5)]
    parts = [quiet[0], speak(1.0).samples, quiet[1], speak(1.0).samples, quiet[2]]
    return "two.wav", encode_wav(Pcm(np.concatenate(parts), 16_000))


async def test_a_transcript_with_times():
    async with talking() as (_, client):
        file, grains = two_sentences(), ["segment"]
        found = await transcribe(
            client, file, response_format="verbose_json", timestamp_granularities=grains
        )
        srt = await transcribe(client, file, response_format="srt")
        vtt = await transcribe(client, file, response_format="vtt")

    TranscriptionVerbose.model_validate(found.model_dump(), strict=False)
    assert found.text == f"{HEARD} {HEARD}"
    assert found.duration == pytest.approx(5.0)
    assert [segment.text for segment in found.segments or ()] == [HEARD] * 2
    times = [at for segment in found.segments or () for at in (segment.start, segment.end)]
    assert times == pytest.approx([1.0, 2.0, 3.5, 4.5], abs=0.25)
    first, second = srt.strip().split("\n\n")
    assert first.splitlines()[0] == "1"
    assert re.fullmatch(r"00:00:0\d,\d{3} --> 00:00:0\d,\d{3}", first.splitlines()[1])
    assert second.splitlines()[2] == HEARD
    assert vtt.startswith("WEBVTT\n\n1\n00:00:00.")


async def test_a_long_file_is_transcribed_to_its_end():
    """Recognisers take half a minute at a time."""
    quiet = np.zeros(16_000, np.float32)
    parts = [quiet, speak(14.0).samples, quiet, speak(14.0).samples, quiet, speak(5.0).samples]
    file = ("long.wav", encode_wav(Pcm(np.concatenate(parts), 16_000)))
    async with talking() as (_, client):
        found = await transcribe(client, file)

    assert found.text == " ".join([HEARD] * 3)


async def test_silence_has_no_words():
    """Recognisers find words in it."""
    wav = encode_wav(Pcm(np.zeros(16_000, np.float32), 16_000))
    async with talking() as (_, client):
        found = await transcribe(client, ("quiet.wav", wav), response_format="verbose_json")
        plain = await transcribe(client, ("quiet.wav", wav))

    assert (found.text, found.segments, plain.text) == ("", [], "")


async def test_the_parts_of_a_forced_call_are_those_of_the_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its request to the model has a further system message."""
    monkeypatch.setattr(ModelList, "can", lambda _, ability: ability == "json")
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
    picture = {"type": "image_url", "image_url": {"url": "there"}}
    message = {"role": "user", "content": [picture]}
    async with talking() as (_, client):
        with pytest.raises(openai.BadRequestError) as caught:
            await chat(client, messages=[message], tools=[tool], tool_choice="required")

    assert caught.value.param == "messages[0].content[0].image_url"


async def test_a_message_without_content_and_a_picture_without_an_address_are_named():
    bare = {"type": "image_url", "image_url": {"url": FINE}}
    asked: list[tuple[Any, str, str]] = [
        ({"role": "user"}, "messages[0].content", "content field is required"),
        ({"role": "user", "content": [bare]}, "messages[0].content[0].image_url", "a data URL"),
    ]
    async with talking() as (_, client):
        for message, field, why in asked:
            with pytest.raises(openai.BadRequestError, match=why) as caught:
                await chat(client, messages=[message])
            assert caught.value.param == field


async def test_what_is_not_there_says_what_to_use_instead():
    hints = [
        ("POST", "/completions", "/v1/chat/completions"),
        ("POST", "/embeddings", "embeddings"),
        ("POST", "/messages", "/v1/chat/completions"),
        ("POST", "/moderations", "moderate"),
        ("POST", "/audio/translations", "/v1/audio/transcriptions"),
        ("POST", "/images/generations", "pictures"),
        ("GET", "/files", "data URLs"),
        ("POST", "/realtime/calls", "websocket"),
        ("POST", "/realtime/sessions", "client_secrets, with the settings"),
        ("POST", "/live/sessions", "websocket"),
        ("GET", "/no/such/thing", "docs"),
        ("GET", "/chat/completions/chatcmpl-1", "does not store"),
        ("POST", "/responses/compact", "items"),
        ("POST", "/responses/input_tokens", "usage"),
    ]
    async with running_gateway() as running, client_of(running) as client:
        for method, path, hint in hints:
            with pytest.raises(openai.NotFoundError, match=hint) as caught:
                await (client.get if method == "GET" else client.post)(path, cast_to=object)
            assert caught.value.code == "unknown_url"
            assert caught.value.type == "invalid_request_error"


@pytest.mark.parametrize("base", ["", "/", "//v1", "/v1/v1", "/openai/deployments/gpt-5"])
async def test_a_base_url_that_is_wrong_learns_how_it_must_end(base: str):
    async with running_gateway() as running:
        client = openai.AsyncOpenAI(api_key="any", base_url=running.url + base, max_retries=0)
        hint = "the base URL of a client must end in /v1"
        with pytest.raises(openai.NotFoundError, match=f"Use /v1/chat/completions: {hint}") as http:
            await chat(client)
        with pytest.raises(InvalidStatus) as socket:
            async with client.realtime.connect(model="m"):
                pass
        await client.close()

    assert http.value.code == "unknown_url"
    assert f"Use /v1/realtime: {hint}" in socket.value.response.body.decode()


async def test_a_file_for_what_is_not_there_is_not_called_too_large():
    big = ("a.bin", bytes(100_000))
    async with talking() as (_, client):
        with pytest.raises(openai.NotFoundError, match="stores no files"):
            await client.files.create(file=big, purpose="user_data")
        with pytest.raises(openai.NotFoundError, match="no pictures"):
            await client.images.edit(image=big, prompt="x")
        with pytest.raises(openai.APIStatusError, match="Unknown request URL") as method:
            await client.models.delete("m")

    assert (method.value.status_code, method.value.code) == (405, "unknown_url")


async def test_a_transcript_is_streamed_stretch_by_stretch():
    async with talking() as (_, client):
        events = [event async for event in await transcribe(client, two_sentences(), stream=True)]

    deltas = [event.delta for event in events if event.type == "transcript.text.delta"]
    assert deltas == [HEARD, f" {HEARD}"]
    assert events[-1].type == "transcript.text.done"
    assert events[-1].text == "".join(deltas)
    assert events[-1].usage.output_tokens == 2


async def test_nothing_is_decoded_for_who_may_not_wait():
    broken = ("x.mp3", b"no sound at all")
    content: Any = [{"type": "input_audio", "input_audio": {"data": "AA==", "format": "mp3"}}]
    async with (
        running_stack(load_model=TalkingModel, queue={"max_size": 1}) as running,
        client_of(running) as client,
        occupied(running),
    ):
        waiting = asyncio.create_task(chat(client))
        await until(lambda: len(running.runtime.dispatcher.queue) == 1)
        with pytest.raises(openai.RateLimitError) as full:
            await transcribe(client, broken)
        with pytest.raises(openai.RateLimitError) as refused:
            await chat(client, messages=[{"role": "user", "content": content}])
        waiting.cancel()

    assert full.value.code == refused.value.code == "queue_full"


async def test_sounds_are_decoded_within_the_sessions_of_their_sender():
    async with (
        running_stack(load_model=TalkingModel, limits={"sessions_per_client": 1}) as running,
        client_of(running) as client,
        occupied(running),
    ):
        with pytest.raises(openai.RateLimitError) as caught:
            await transcribe(client, ("x.mp3", b"no sound"))

    assert caught.value.code == "too_many_sessions"


async def test_a_form_without_a_file_or_a_model_is_refused_by_name():
    file = {"file": ("x.wav", sound_file()[1])}
    forms: list[tuple[dict[str, Any], str]] = [
        ({"data": {"model": "m"}}, "file"),
        ({"data": {"model": "m", "file": "words"}}, "file"),
        ({"data": {}}, "file"),
        ({"files": file}, "model"),
    ]
    async with talking() as (running, _), running.http() as http:
        for form, param in forms:
            answer = await http.post("/v1/audio/transcriptions", **form)
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


async def test_a_form_that_cannot_be_read_is_refused_in_a_sentence() -> None:
    field = b"--b\r\nContent-Disposition: form-data; name=n\r\n\r\nx\r\n"
    file = field.replace(b"name=n", b"name=file; filename=x")
    forms = [
        (field.replace(b"; name=n", b""), 'header field "name"'),
        (b"no form", "Invalid multipart data."),
        (b"--b\r\n" + b"x: y\r\n" * 10_000, "Invalid multipart data."),
        (2 * file, "Too many files."),
        (1000 * field, "Too many fields."),
    ]
    kind = {"content-type": "multipart/form-data; boundary=b"}
    async with talking() as (running, _), running.http() as http:
        for form, why in forms:
            answer = await http.post(
                "/v1/audio/transcriptions", content=form + b"--b--\r\n", headers=kind
            )
            said = answer.json()["error"]["message"]
            assert answer.status_code == 400
            assert said.startswith("The form cannot be read: ")
            assert why in said


async def test_what_cannot_be_transcribed_is_refused():
    timed = {"response_format": "verbose_json", "timestamp_granularities": ["word"]}
    grains = "timestamp_granularities"
    wrong: list[tuple[dict[str, Any], str, str]] = [
        ({"response_format": "diarized_json"}, "response_format", ""),
        (timed, grains, "when words were said"),
        ({**timed, grains: ["hour"]}, grains, ""),
        ({"file": ("x.wav", b"")}, "file", "empty"),
        ({"file": ("x.wav", b"no sound at all")}, "file", "unknown format"),
        ({"file": ("x.wav", encode_wav(Pcm.silence(0, 16_000)))}, "file", "no samples"),
        ({"temperature": 7}, "temperature", "<= 1.0, got 7.0"),
        ({"include": ["logprobs"]}, "include", "probabilities"),
        ({"extra_body": {"hotwords": "Rome"}}, "hotwords", "the fields are"),
        ({"extra_body": {"known_speaker_names": ["Anna"]}}, "known_speaker_names", ""),
    ]
    async with talking() as (_, client):
        for asked, param, hint in wrong:
            with pytest.raises(openai.BadRequestError) as caught:
                await transcribe(client, sound_file(), **asked)
            assert hint in str(caught.value)
            assert param in (caught.value.param or "")
    async with talking(TalkingModel(can=False)) as (_, client):
        with pytest.raises(openai.BadRequestError, match="cannot transcribe"):
            await transcribe(client, sound_file())


async def test_options_of_a_transcript_without_effect_are_taken():
    async with talking() as (_, client):
        found = await transcribe(
            client,
            sound_file(),
            language="en",
            prompt="Rome",
            extra_body={"temperature": ".5", "keywords": ["Rome"], "languages": ["en", "it"]},
            chunking_strategy={"type": "server_vad", "threshold": 0.4},
            response_format="verbose_json",
            timestamp_granularities=["segment"],
        )

    assert found.text


async def test_answers_streams_and_errors_have_an_id_that_the_sdk_shows():
    async with talking() as (_, client):
        answer = await chat(client)
        with pytest.raises(openai.BadRequestError) as caught:
            await chat(client, messages=[])
        with pytest.raises(openai.NotFoundError) as missing:
            await client.embeddings.create(model="m", input="x")
        made = client.responses.with_streaming_response
        async with made.create(model="m", input="hi", stream=True) as stream:
            headers = stream.headers

    ids = {
        answer._request_id,
        caught.value.request_id,
        missing.value.request_id,
        headers["x-request-id"],
    }
    assert len(ids) == 4
    assert all(each is not None and each.startswith("req_") for each in ids)
    assert int(headers["openai-processing-ms"]) >= 0


async def test_refusals_in_front_of_the_routes_have_an_id_too():
    async with running_gateway() as running, running.http() as http:
        wrong = {"authorization": "Bearer pk_unknown"}
        refused = await http.get("/v1/models", headers=wrong)
        large = await http.post("/v1/models", content=b"x" * 100_000)

    assert (refused.status_code, large.status_code) == (401, 413)
    assert refused.headers["x-request-id"] != large.headers["x-request-id"]


async def test_a_fault_of_ours_names_the_id_under_which_the_log_has_it(monkeypatch):
    monkeypatch.setattr(ModelList, "cards", lambda self: 1 / 0)
    log = io.StringIO()

    async with running_gateway() as running, client_of(running) as client:
        logs.configure(style="json", stream=log)
        with pytest.raises(openai.InternalServerError) as caught:
            await client.models.list()
        await asyncio.sleep(0)

    lines = [json.loads(line) for line in log.getvalue().splitlines()]
    (failed,) = [line for line in lines if line["event"] == "request_failed"]
    assert caught.value.request_id == failed["request_id"]
    assert str(caught.value.request_id) in str(caught.value)
