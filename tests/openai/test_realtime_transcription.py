"""Sessions of the type `transcription`, with OpenAI's own client. For its agents' package see
`test_agents.py`."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from openai.types.realtime.realtime_transcription_session_create_response import (
    RealtimeTranscriptionSessionCreateResponse,
)
from tests.openai.realtime_talk import ENERGY, Talk, quiet, tone
from tests.openai.sdk_client import talking
from tests.openai.talking_model import HEARD, TalkingModel

from openai import AsyncOpenAI, BadRequestError

SESSION: dict[str, Any] = {
    "type": "transcription",
    "audio": {"input": {"transcription": {"model": "gpt-4o-transcribe", "language": "en"}}},
}
ITEM = [
    "input_audio_buffer.committed",
    "conversation.item.added",
    "conversation.item.done",
    "conversation.item.input_audio_transcription.delta",
    "conversation.item.input_audio_transcription.completed",
]


@contextlib.asynccontextmanager
async def transcribing(
    model: TalkingModel | None = None, *, audio_input: Any = None
) -> AsyncIterator[tuple[AsyncOpenAI, Talk]]:
    async with (
        talking(model, worker=ENERGY) as (_, client),
        client.realtime.connect(extra_query={"intent": "transcription"}) as connection,
    ):
        talk = Talk(connection)
        created = await talk.until("session.created")
        assert created.session.type == "transcription"
        asked: Any = (
            SESSION if audio_input is None else {**SESSION, "audio": {"input": audio_input}}
        )
        await connection.session.update(session=asked)
        updated = await talk.until("session.updated")
        RealtimeTranscriptionSessionCreateResponse.model_validate(updated.session.model_dump())
        talk.events.clear()
        yield client, talk


@pytest.mark.parametrize("prompt", ["", "Write down what is said."])
async def test_turns_are_written_down_one_after_the_other_and_never_answered(prompt):
    model = TalkingModel(can=True, prompt=prompt, answer=HEARD)
    async with transcribing(model) as (_, talk):
        found = []
        for _ in range(2):
            await talk.say()
            found.append(await talk.until(ITEM[-1]))

    speech = ["input_audio_buffer.speech_started", "input_audio_buffer.speech_stopped"]
    assert talk.types == [*speech, *ITEM] * 2
    assert [event.transcript for event in found] == [HEARD] * 2
    assert len({event.item_id for event in found}) == 2
    assert found[0].usage.seconds > 0.5


async def test_the_client_ends_turns_where_nothing_is_detected():
    async with transcribing(audio_input={"turn_detection": None}) as (_, talk):
        await talk.connection.input_audio_buffer.commit()
        assert (await talk.error()).code == "input_audio_buffer_commit_empty"
        await talk.connection.input_audio_buffer.append(audio=tone(0.5))
        await talk.connection.input_audio_buffer.commit()
        done = await talk.until(ITEM[-1])

    assert done.transcript == HEARD


async def test_sound_of_a_minute_is_written_down_between_its_pauses():
    async with transcribing(audio_input={"turn_detection": None}) as (_, talk):
        for _ in range(3):
            for part in [tone(5)] * 2 + [quiet(1)]:
                await talk.connection.input_audio_buffer.append(audio=part)
        await talk.connection.input_audio_buffer.commit()
        done = await talk.until(ITEM[-1])

    assert done.transcript == " ".join([HEARD] * 3)
    assert talk.types.count(ITEM[-2]) == 3
    assert done.transcript == "".join(
        event.delta for event in talk.events if event.type == ITEM[-2]
    )


async def test_a_commit_ends_the_speech_that_the_detector_hears_and_a_clear_waits_for_it():
    async with transcribing() as (_, talk):
        for _ in range(20):
            await talk.connection.input_audio_buffer.append(audio=tone(0.5))
        await talk.connection.input_audio_buffer.commit()
        await talk.connection.input_audio_buffer.clear()
        await talk.until(ITEM[-1])
        await talk.connection.input_audio_buffer.commit(event_id="again")
        error = await talk.error()

    assert talk.types.index(ITEM[0]) < talk.types.index("input_audio_buffer.cleared")
    started = next(e for e in talk.events if e.type == "input_audio_buffer.speech_started")
    committed = next(e for e in talk.events if e.type == ITEM[0])
    assert started.item_id == committed.item_id
    assert (error.code, error.event_id) == ("input_audio_buffer_commit_empty", "again")


async def test_what_only_conversations_have_is_refused_by_name():
    wrong: list[tuple[str, dict[str, Any], str]] = [
        ("response.create", {}, "type"),
        ("conversation.item.create", {"item": {"type": "message"}}, "type"),
        ("session.update", {"session": {"instructions": "x"}}, "session.instructions"),
        ("session.update", {"session": {"audio": {"output": {}}}}, "session.audio.output"),
        ("session.update", {"session": {"type": "other"}}, "session.type"),
    ]
    async with transcribing() as (_, talk):
        for kind, fields, param in wrong:
            asked: Any = {"type": kind, "event_id": f"my {param}", **fields}
            await talk.connection.send(asked)
            error = await talk.error()
            assert (error.param, error.event_id) == (param, f"my {param}")


async def test_a_session_keeps_its_type_once_it_has_heard_something():
    async with transcribing() as (_, talk):
        await talk.connection.input_audio_buffer.append(audio=quiet(0.1))
        await talk.connection.session.update(session={"type": "realtime"})
        error = await talk.error()

    assert error.param == "session.type"
    assert 'must stay "transcription"' in error.message


async def test_a_model_that_writes_nothing_down_says_so_per_turn_and_per_key():
    async with transcribing(TalkingModel(can=False)) as (client, talk):
        await talk.say()
        failed = await talk.until("conversation.item.input_audio_transcription.failed")
        with pytest.raises(BadRequestError) as refused:
            await client.realtime.client_secrets.create(session={"type": "transcription"})

    assert failed.error.message == "The loaded model cannot transcribe audio."
    assert refused.value.param == "session.type"


async def test_a_key_opens_a_session_with_its_settings():
    off: Any = {"type": "transcription", "audio": {"input": {"turn_detection": None}}}
    async with talking(worker=ENERGY) as (running, client):
        secret = await client.realtime.client_secrets.create(session=off)
        async with (
            AsyncOpenAI(api_key=secret.value, base_url=f"{running.url}/v1") as browser,
            browser.realtime.connect(extra_query={"intent": "transcription"}) as connection,
        ):
            created = await Talk(connection).until("session.created")

    assert secret.session.type == created.session.type == "transcription"
    assert created.session.audio.input.turn_detection is None
