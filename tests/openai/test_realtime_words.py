"""What clients of OpenAI Realtime read in events: codes and words that they look for, items in
their order, and fields that are named instead of being ignored."""

import base64
import time
from secrets import token_hex
from typing import Any

import numpy as np
import pytest
from tests.openai.realtime_talk import Talk, message, talking
from tests.openai.sdk_client import talking as serving
from tests.openai.talking_model import CallingModel, TalkingModel
from tests.openai.test_tools import SUNNY
from tests.support.sounds import speak

import openai
from openai import AsyncOpenAI
from parley.errors import Unauthorized
from parley.media import g711
from parley.media.pcm import Pcm
from parley.media.wav import encode_wav
from parley.session.session import VOICES_BURST


async def test_an_item_twice_and_an_output_without_a_call_are_errors_with_their_codes():
    async with talking(CallingModel(SUNNY)) as (_, talk):
        await talk.write("one", id="a")
        await talk.send(type="conversation.item.create", item=message("again", id="a"))
        twice = await talk.error()
        output = {"type": "function_call_output", "call_id": "call_x", "output": "{}"}
        await talk.send(type="conversation.item.create", item=output)
        alone = await talk.error()

    assert twice.code == "item_create_duplicate_item_id"
    assert (alone.code, alone.param) == ("invalid_tool_call_id", "item.call_id")


async def test_an_item_comes_behind_the_last_one_in_order():
    async with talking(TalkingModel()) as (_, talk):
        await talk.write("one", id="a")
        first = message("first", id="z")
        await talk.send(type="conversation.item.create", previous_item_id="root", item=first)
        await talk.until("conversation.item.done")
        added = await talk.write("two", id="b")

    assert added.previous_item_id == "a"


async def test_an_unknown_voice_is_an_error_and_changes_nothing():
    output: Any = {"voice": "gramophone"}
    async with talking(TalkingModel()) as (_, talk):
        await talk.connection.session.update(
            session={"type": "realtime", "instructions": "No.", "audio": {"output": output}}
        )
        errors = [await talk.error()]
        await talk.connection.response.create(response={"audio": {"output": output}})
        errors.append(await talk.error())
        session = await talk.set(max_output_tokens=9)
        await talk.write("Hello!")
        answer = await talk.answer()

    assert [error.param for error in errors] == [
        "session.audio.output.voice",
        "response.audio.output.voice",
    ]
    assert all("gramophone" in error.message for error in errors)
    assert session.audio.output.voice == "default"
    assert session.instructions != "No."
    assert answer.status == "completed"


async def test_a_session_names_other_voices_only_so_often():
    async with talking(TalkingModel()) as (_, talk):
        for number in range(VOICES_BURST + 5):
            session: Any = {"type": "realtime", "audio": {"output": {"voice": f"v{number}"}}}
            await talk.connection.session.update(session=session)
        errors = [await talk.error() for _ in range(VOICES_BURST + 5)]
        await talk.set(max_output_tokens=9)

    unknown = [error for error in errors if "There is no voice" in error.message]
    often = [error for error in errors if f"another voice {VOICES_BURST} times" in error.message]
    assert len(unknown) + len(often) == len(errors)
    assert VOICES_BURST <= len(unknown) < len(errors)
    assert {error.param for error in often} == {"session.audio.output.voice"}


async def test_a_response_has_a_format_and_a_voice_of_its_own(tmp_path):
    wav = base64.b64encode(encode_wav(speak(1.5))).decode()
    storage = {"data_dir": tmp_path, "min_free_gb": 0, "recording": False}
    async with talking(TalkingModel(), storage=storage) as (running, talk), running.http() as http:
        await http.post("/api/assets/ref_audio", json={"name": "Anna", "audio_base64": wav})
        await talk.write("Hello!")
        output: Any = {"format": {"type": "audio/pcmu"}, "voice": "Anna"}
        own = await talk.answer(audio={"output": output})
        first = talk.sound()
        talk.events.clear()
        plain = await talk.answer()
        second = talk.sound()

    assert own.audio.output.format.type == "audio/pcmu"
    assert own.audio.output.voice == "Anna"
    assert plain.audio.output.format.type == "audio/pcm"
    assert plain.audio.output.voice == "default"
    assert len(first) > 0
    # 24,000 samples of two bytes a second, against 8,000 of one.
    assert len(second) == pytest.approx(6 * len(first), rel=0.05)


async def test_a_secret_keeps_settings_which_the_first_update_is_laid_over():
    async with serving(TalkingModel(answer="one two three four")) as (running, client):
        secret = await client.realtime.client_secrets.create(
            expires_after={"anchor": "created_at", "seconds": 7200},
            session={
                "type": "realtime",
                "model": "gpt-realtime",
                "instructions": "Be kind.",
                "output_modalities": ["text"],
                "max_output_tokens": 2,
                "audio": {"input": {"turn_detection": None}, "output": {"voice": "marin"}},
            },
        )
        async with (
            AsyncOpenAI(api_key=secret.value, base_url=f"{running.url}/v1") as browser,
            browser.realtime.connect(model="gpt-realtime") as connection,
        ):
            talk = Talk(connection)
            created = await talk.until("session.created")
            updated = await talk.set(instructions="Be brief.")
            await talk.write("Hello!")
            answer = await talk.answer()

    assert secret.session.id.startswith("sess_")
    kept: Any = secret.session
    assert kept.audio.output.voice == "marin"
    assert 7190 < secret.expires_at - time.time() <= 7200
    assert created.session.instructions == "Be kind."
    assert created.session.audio.input.turn_detection is None
    assert updated.instructions == "Be brief."
    assert updated.output_modalities == ["text"]
    (item,) = answer.output
    assert item.content[0].type == "output_text"
    assert answer.status_details.reason == "max_output_tokens"


async def test_a_secret_that_sets_what_cannot_be_is_refused_by_name():
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"modalities": ["text"]}, "session.modalities"),
        ({"audio": {"output": {"voice": "gramophone"}}}, "session.audio.output.voice"),
        ({"instructions": 5}, "session.instructions"),
        ({"instructions": token_hex(20_000)}, "session"),
    ]
    half = r'{"session": {"audio": {"output": {"voice": "\ud800"}}}}'
    headers = {"content-type": "application/json"}
    async with serving() as (running, client), running.http() as http:
        for session, field in wrong:
            asked: Any = {"type": "realtime", **session}
            with pytest.raises(openai.BadRequestError) as caught:
                await client.realtime.client_secrets.create(session=asked)
            assert caught.value.param == field
        answer = await http.post("/v1/realtime/client_secrets", content=half, headers=headers)

    assert answer.status_code == 400
    assert "is not valid JSON text" in answer.json()["error"]["message"]


async def test_a_secret_of_a_server_without_keys_cannot_pose_as_a_key():
    async with serving() as (running, client):
        secret = await client.realtime.client_secrets.create(session={"type": "realtime"})
        sealed = secret.value.removeprefix("ek_")
        authenticator = running.runtime.access.authenticator
        link = authenticator.share_token("x", None).removeprefix("sh_")
        for token in (f"st_{sealed}", f"st_{link}"):
            with pytest.raises(Unauthorized):
                authenticator.identify({"authorization": f"Bearer {token}"})


LAWS: Any = [("audio/pcmu", "mu"), ("audio/pcma", "a")]


def g711_tone(law: Any, seconds: float, hz: float = 440) -> bytes:
    at = np.arange(round(8000 * seconds)) / 8000
    return g711.encoded(Pcm((0.5 * np.sin(2 * np.pi * hz * at)).astype(np.float32), 8000), law)


@pytest.mark.parametrize(("form", "law"), LAWS)
async def test_telephones_speak_g711_both_ways(form, law):
    model = TalkingModel(answer="one two three four ")
    async with talking(model) as (_, talk):
        sound = {"format": {"type": form}, "turn_detection": None}
        audio = {"input": sound, "output": {"format": {"type": form}}}
        session = await talk.set(audio=audio)
        await talk.connection.input_audio_buffer.append(
            audio=base64.b64encode(g711_tone(law, 1.0)).decode()
        )
        await talk.connection.input_audio_buffer.commit()
        await talk.answer()

    assert session.audio.input.format.type == form
    heard = g711.decoded(talk.sound(), law)
    # The model says a tone of 24,000 / (16 pi) Hz, a tenth of a second for each of four words.
    assert 0.38 < heard.duration_s <= 0.4
    loudest = np.abs(np.fft.rfft(heard.samples)).argmax() / heard.duration_s
    assert abs(loudest - 24_000 / (16 * np.pi)) < 10


def heard(**fields: Any) -> dict[str, Any]:
    """`audio` of a session."""
    return {"audio": {"input": fields}}


NO_FIELDS: list[tuple[dict[str, Any], str, str]] = [
    ({"modalities": ["text"]}, "modalities", "session.output_modalities"),
    ({"turn_detection": {}}, "turn_detection", "session.audio.input.turn_detection"),
    ({"input_audio_transcription": {}}, "input_audio_transcription", "audio.input.transcription"),
    ({"voice": "alloy"}, "voice", "session.audio.output.voice"),
    ({"colour": "red"}, "colour", "the fields are audio, include, instructions"),
    (heard(colour=1), "audio.input.colour", "format"),
    ({"audio": {"output": {"pitch": 2}}}, "audio.output.pitch", "speed"),
    ({"audio": {"microphone": {}}}, "audio.microphone", "input, output"),
    (
        heard(turn_detection={"type": "server_vad", "eagerness": "low"}),
        "audio.input.turn_detection.eagerness",
        "threshold",
    ),
    (heard(transcription={"mood": "good"}), "audio.input.transcription.mood", "language"),
    (
        heard(noise_reduction={"type": "near_field", "db": 6}),
        "audio.input.noise_reduction.db",
        "type",
    ),
    ({"tracing": {"group": "g"}}, "tracing.group", "group_id"),
    (
        {"truncation": {"type": "retention_ratio", "retention_ratio": 0.5, "limit": 9}},
        "truncation.limit",
        "token_limits",
    ),
    ({"tools": [{"name": "f", "strict": True}]}, "tools[0].strict", "parameters"),
    ({"tools": [{"function": {"name": "f"}}]}, "tools[0].function", "parameters"),
    ({"tools": [{"type": "mcp", "server_label": "x"}]}, "tools[0].type", "function"),
    (heard(format="g711"), "audio.input.format", "audio/pcmu"),
    (heard(format={"type": "audio/opus"}), "audio.input.format", "audio/pcmu"),
    (heard(format={"type": "audio/pcm", "rate": 8000}), "audio.input.format", "24000"),
]
NO_FIELDS_OF_A_RESPONSE: list[tuple[dict[str, Any], str, str]] = [
    ({"modalities": ["text"]}, "modalities", "response.output_modalities"),
    ({"audio": {"input": {}}}, "audio.input", "output"),
    ({"audio": {"output": {"loudness": 3}}}, "audio.output.loudness", "voice"),
    ({"audio": {"output": {"format": {"type": "audio/mp3"}}}}, "audio.output.format", "pcmu"),
    ({"audio": "loud"}, "audio", "an object"),
]


async def test_what_is_not_a_field_is_named_with_what_is():
    async with talking(CallingModel(SUNNY)) as (_, talk):
        for kind, where, table in (
            ("session.update", "session", NO_FIELDS),
            ("response.create", "response", NO_FIELDS_OF_A_RESPONSE),
        ):
            for fields, param, hint in table:
                asked: Any = {"type": kind, where: {"type": "realtime", **fields}}
                if where == "response":
                    del asked[where]["type"]
                await talk.connection.send(asked)
                error = await talk.error()
                assert error.param == f"{where}.{param}"
                assert hint in error.message


async def test_a_field_within_an_item_that_does_not_exist_is_named():
    text = {"type": "input_text", "text": "a"}
    picture = {"type": "input_image", "image_url": "data:,", "format": "png"}
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"type": "message", "role": "user", "name": "anna"}, "name"),
        ({"type": "function_call_output", "call_id": "c", "result": "x"}, "result"),
        ({"type": "function_call", "call_id": "c", "name": "f", "input": "{}"}, "input"),
        (message(text, picture), "content[1].format"),
        (message({**text, "annotations": []}), "content[0].annotations"),
    ]
    named: list[str] = []
    async with talking(CallingModel(SUNNY)) as (_, talk):
        for item, _param in wrong:
            for asked in (
                {"type": "conversation.item.create", "item": item},
                {"type": "response.create", "response": {"input": [item]}},
            ):
                await talk.connection.send(asked)
                named.append((await talk.error()).param)

    assert named == [
        f"{where}.{param}" for _, param in wrong for where in ("item", "response.input")
    ]


async def test_what_has_no_effect_is_null_in_the_session():
    async with talking(TalkingModel()) as (_, talk):
        heard: Any = {
            "noise_reduction": {"type": "near_field"},
            "turn_detection": {"type": "server_vad", "idle_timeout_ms": 5000},
        }
        session = await talk.set(
            tracing="auto",
            include=["item.input_audio_transcription.logprobs"],
            audio={"input": heard},
        )

    assert session.audio.input.noise_reduction is None
    assert session.audio.input.turn_detection.idle_timeout_ms is None
    assert (session.tracing, session.include) == (None, None)


async def test_a_truncation_behind_the_end_of_the_sound_is_an_error():
    async with talking(TalkingModel(answer="one two ")) as (_, talk):
        await talk.write("Hello!")
        item = (await talk.answer()).output[0]
        for end_ms in (600_000, 150):
            await talk.truncate(item, end_ms)
            if end_ms > 200:
                error = await talk.error()
        cut = await talk.until("conversation.item.truncated")

    assert error.param == "audio_end_ms"
    assert "at most 200" in error.message
    assert cut.audio_end_ms == 150
