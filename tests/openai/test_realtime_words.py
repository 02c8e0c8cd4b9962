"""What clients of OpenAI Realtime read in events: codes and words that they look for, items in
their order, and fields that are named instead of being ignored."""

from __future__ import annotations

import time
from secrets import token_hex
from typing import Any

import pytest
from tests.openai.talking_model import CallingModel, TalkingModel
from tests.openai.test_realtime import Talk, say_text, talking
from tests.openai.test_rest import talking as serving
from tests.openai.test_tools import SUNNY

import openai
from openai import AsyncOpenAI
from parley.errors import Unauthorized


async def test_nothing_to_cancel_begins_with_the_words_that_livekit_looks_for():
    async with talking(TalkingModel()) as (_, talk):
        await talk.connection.response.cancel()
        error = await talk.error()

    assert error.code == "response_cancel_not_active"
    assert error.message.startswith("Cancellation failed")


async def test_an_item_twice_and_an_output_without_a_call_are_errors_with_their_codes():
    async with talking(CallingModel(SUNNY)) as (_, talk):
        await say_text(talk, "one", id="a")
        await talk.connection.conversation.item.create(
            item={
                "id": "a",
                "type": "message",
                "role": "user",
                "content": [{"type": "input_text", "text": "again"}],
            }
        )
        twice = await talk.error()
        await talk.connection.conversation.item.create(
            item={"type": "function_call_output", "call_id": "call_x", "output": "{}"}
        )
        alone = await talk.error()

    assert twice.code == "item_create_duplicate_item_id"
    assert (alone.code, alone.param) == ("invalid_tool_call_id", "item.call_id")


async def test_an_item_comes_behind_the_last_one_in_order():
    async with talking(TalkingModel()) as (_, talk):
        await say_text(talk, "one", id="a")
        await talk.connection.conversation.item.create(
            previous_item_id="root",
            item={
                "id": "z",
                "type": "message",
                "role": "user",
                "content": [{"type": "input_text", "text": "first"}],
            },
        )
        await talk.until("conversation.item.done")
        talk.events.clear()
        await say_text(talk, "two", id="b")
        added = next(e for e in talk.events if e.type == "conversation.item.done")

    assert added.previous_item_id == "a"


async def test_an_answer_apart_is_not_told_as_an_item():
    async with talking(TalkingModel()) as (_, talk):
        await talk.connection.response.create(
            response={"conversation": "none", "output_modalities": ["text"]}
        )
        await talk.until("response.done")
        kinds = {event.type for event in talk.events}

    assert "response.output_item.added" in kinds
    assert not kinds & {"conversation.item.added", "conversation.item.done"}


@pytest.mark.parametrize(
    ("field", "value", "hint"),
    [
        ("modalities", ["text"], "output_modalities"),
        ("turn_detection", {"type": "server_vad"}, "audio.input.turn_detection"),
        ("input_audio_transcription", {"model": "whisper-1"}, "audio.input.transcription"),
        ("voice", "alloy", "audio.output.voice"),
        ("colour", "red", "instructions"),
    ],
)
async def test_what_is_not_a_field_of_a_session_is_named(field, value, hint):
    async with talking(TalkingModel()) as (_, talk):
        session: Any = {"type": "realtime", field: value}
        await talk.connection.session.update(session=session)
        error = await talk.error()

    assert error.param == f"session.{field}"
    assert hint in error.message


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
            await connection.session.update(
                session={"type": "realtime", "instructions": "Be brief."}
            )
            updated = await talk.until("session.updated")
            await say_text(talk, "Hello!")
            await connection.response.create()
            done = await talk.until("response.done")

    assert secret.session.id.startswith("sess_")
    assert secret.session.audio.output.voice == "marin"
    assert 7190 < secret.expires_at - time.time() <= 7200
    assert created.session.instructions == "Be kind."
    assert created.session.audio.input.turn_detection is None
    assert updated.session.instructions == "Be brief."
    assert updated.session.output_modalities == ["text"]
    (item,) = done.response.output
    assert item.content[0].type == "output_text"
    assert done.response.status_details.reason == "max_output_tokens"


@pytest.mark.parametrize(
    ("session", "field"),
    [
        ({"type": "realtime", "modalities": ["text"]}, "session.modalities"),
        ({"type": "realtime", "audio": {"output": {"voice": "gramophone"}}}, "voice"),
        ({"type": "realtime", "instructions": 5}, "session.instructions"),
        ({"type": "realtime", "instructions": token_hex(20_000)}, "session"),
    ],
)
async def test_a_secret_that_sets_what_cannot_be_is_refused_by_name(session, field):
    async with serving() as (_, client):
        with pytest.raises(openai.BadRequestError) as caught:
            await client.realtime.client_secrets.create(session=session)

    assert caught.value.param == field


async def test_a_secret_of_a_server_without_keys_cannot_pose_as_a_key():
    async with serving() as (running, client):
        secret = await client.realtime.client_secrets.create(session={"type": "realtime"})
        sealed = secret.value.removeprefix("ek_")
        authenticator = running.runtime.authenticator
        link = authenticator.share_token("x", None).removeprefix("sh_")
        for token in (f"st_{sealed}", f"st_{link}"):
            with pytest.raises(Unauthorized):
                authenticator.identify({"authorization": f"Bearer {token}"})
