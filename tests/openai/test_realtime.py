"""OpenAI's own Python client on `/v1/realtime?model=…`, unchanged but for address and key."""

import asyncio
import base64
import json
import time
from typing import Any
from unittest.mock import AsyncMock

import numpy as np
import pytest
from tests.openai.realtime_talk import ENERGY, Talk, message, noise, talking, tone
from tests.openai.sdk_client import red_picture
from tests.openai.talking_model import HEARD, TalkingModel
from tests.support.gateways import occupied, until
from tests.support.stack import running_stack
from websockets import InvalidStatus
from websockets.asyncio.client import connect

from openai import AsyncOpenAI
from parley.models.parrot import Parrot
from parley.views.half_duplex import HalfDuplexView

ANSWER = [
    "response.created",
    "response.output_item.added",
    "conversation.item.added",
    "response.content_part.added",
]
END = [
    "response.output_audio.done",
    "response.output_audio_transcript.done",
    "response.content_part.done",
    "conversation.item.done",
    "response.output_item.done",
    "response.done",
    "rate_limits.updated",
]
TURN = [
    "input_audio_buffer.speech_started",
    "input_audio_buffer.speech_stopped",
    "input_audio_buffer.committed",
    "conversation.item.added",
    "conversation.item.done",
]


async def test_two_spoken_turns_have_the_published_events_in_the_published_order():
    async with talking(TalkingModel(answer="one two")) as (_, talk):
        turns = []
        for _ in range(2):
            await talk.say()
            await talk.until("rate_limits.updated")
            # Who speaks before an answer has been played is told what the history holds of it.
            turns.append([name for name in talk.types if name != "conversation.item.truncated"])
            talk.events.clear()

    deltas = ["response.output_audio_transcript.delta", "response.output_audio.delta"] * 2
    expected = [*TURN, *ANSWER, *deltas, *END]
    assert turns[0] == ["session.created", *expected]
    assert turns[1] == expected


async def test_what_was_said_is_in_the_response_with_its_usage():
    async with talking(TalkingModel(answer="one two three")) as (_, talk):
        await talk.say()
        done = await talk.until("response.done")

    events = {event.type: event for event in talk.events}
    data, response = talk.sound(), done.response
    assert len(data) == 2 * 3 * 2400
    assert np.abs(np.frombuffer(data, "<i2")).max() > 5000
    assert response.status == "completed"
    assert response.output[0].content[0].transcript == "one two three "
    assert response.usage.output_token_details.text_tokens == 3
    assert response.usage.input_token_details.audio_tokens > 5
    assert response.usage.total_tokens == response.usage.input_tokens + 3
    started = events["input_audio_buffer.speech_started"]
    stopped = events["input_audio_buffer.speech_stopped"]
    assert started.audio_start_ms < 200
    assert 800 < stopped.audio_end_ms < 1300
    assert started.item_id == events["input_audio_buffer.committed"].item_id


async def test_who_speaks_up_silences_the_answer():
    async with talking(TalkingModel(answer="word " * 2000, word_s=0.02)) as (_, talk):
        await talk.say()
        await talk.until("response.output_audio.delta")
        await talk.say(0.5, noise)
        done = await talk.until("response.done")
        index = talk.types.index("response.done")
        started = [i for i, t in enumerate(talk.types) if t == TURN[0]]
        item = done.response.output[0]
        await talk.truncate(item, 50)
        await talk.until("conversation.item.truncated")
        # What was said is answered, before the truncation or after it.
        while talk.types.count("response.created") < 2:
            await talk.next()

    assert done.response.status == "cancelled"
    assert done.response.status_details.reason == "turn_detected"
    assert item.status == "incomplete"
    assert len(started) == 2
    assert started[1] < index


async def test_only_what_was_heard_of_a_truncated_answer_stays_in_the_context():
    model = TalkingModel(answer="one two three four five six")
    async with talking(model) as (_, talk):
        await talk.write("first")
        await talk.truncate((await talk.answer()).output[0], 150)
        await talk.until("conversation.item.truncated")
        await talk.write("second")
        await talk.answer()

    (first, second) = model.contexts[0], model.contexts[-1]
    assert "first" in first
    assert second[-3:] == ["first", "one two ", "second"]


async def test_written_turns_and_written_answers():
    async with talking() as (_, talk):
        session = await talk.set(output_modalities=["text"], instructions="Be brief.")
        item = await talk.write("hello", id="mine_1")
        answer = await talk.answer(metadata={"who": "me"})

    assert session.instructions == "Be brief."
    assert item.item.id == "mine_1"
    assert answer.metadata == {"who": "me"}
    assert answer.output_modalities == ["text"]
    assert answer.output[0].content[0].text == "One two three. "
    assert talk.deltas("output_text") == ["One ", "two ", "three. "]
    assert "response.output_audio.delta" not in talk.types


async def test_a_picture_and_sound_as_items_come_to_the_model():
    url = "data:image/png;base64," + base64.b64encode(red_picture()).decode()
    async with talking(Parrot(1)) as (_, talk):
        picture = {"type": "input_image", "image_url": url}
        sound = {"type": "input_audio", "audio": tone(1.0)}
        await talk.add(**message("look", picture, sound))
        answer = await talk.answer(output_modalities=["text"])

    text = answer.output[0].content[0].text
    assert text.startswith("You spoke for 1.0 seconds")
    assert "1 picture of 32 by 32" in text
    assert "You wrote: look" in text


async def test_without_turn_detection_the_client_says_when():
    async with talking() as (_, talk):
        session = await talk.set(audio={"input": {"turn_detection": None}})
        await talk.connection.input_audio_buffer.append(audio=tone(0.001))
        await talk.connection.input_audio_buffer.commit()
        too_short = await talk.error()
        await talk.say(0.5)
        await talk.connection.input_audio_buffer.commit()
        committed = await talk.until("input_audio_buffer.committed")
        answer = await talk.answer()
        await talk.connection.input_audio_buffer.append(audio=tone(0.5))
        await talk.connection.input_audio_buffer.clear()
        await talk.until("input_audio_buffer.cleared")
        await talk.connection.input_audio_buffer.commit()
        error = await talk.error()

    assert session.audio.input.turn_detection is None
    assert TURN[0] not in talk.types
    assert committed.item_id
    assert answer.status == "completed"
    assert too_short.code == error.code == "input_audio_buffer_commit_empty"


@pytest.mark.parametrize("has_room", [True, False])
@pytest.mark.parametrize("detection", [{"type": "server_vad", "create_response": False}, None])
async def test_a_client_reads_what_the_model_heard_before_it_requests_an_answer(
    detection: Any, has_room: bool, monkeypatch: pytest.MonkeyPatch
):
    """Also if the conversation leaves no room for preparing the answer."""
    if not has_room:
        monkeypatch.setattr(HalfDuplexView, "prefill_early", AsyncMock(return_value=False))
    written = "conversation.item.input_audio_transcription.completed"
    async with talking() as (_, talk):
        model = {"model": "gpt-4o-mini-transcribe"}
        await talk.set(audio={"input": {"transcription": model, "turn_detection": detection}})
        for _ in range(2):
            await talk.say()
            if detection is None:
                await talk.connection.input_audio_buffer.commit()
            done = await talk.until(written)
        await talk.answer(conversation="none")
        await talk.answer()
        await talk.connection.conversation.item.retrieve(item_id=done.item_id)
        item = await talk.until("conversation.item.retrieved")

    assert done.transcript == item.item.content[0].transcript == HEARD
    # Words that are found without preparing the answer come in pieces, too.
    events = sum("input_audio_transcription" in name for name in talk.types)
    assert events == (2 if has_room else 4)


async def test_words_of_a_turn_that_ends_during_an_answer_come_after_it():
    async with talking(TalkingModel(word_s=0.3)) as (_, talk):
        model = {"model": "gpt-4o-mini-transcribe"}
        await talk.set(audio={"input": {"transcription": model, "turn_detection": None}})
        await talk.write("hello")
        await talk.connection.response.create()
        await talk.until("response.created")
        await talk.say(0.5)
        await talk.connection.input_audio_buffer.commit()
        committed = await talk.until("input_audio_buffer.committed")
        await talk.until("response.done")
        done = await talk.until("conversation.item.input_audio_transcription.completed")

    assert done.item_id == committed.item_id
    assert done.transcript == HEARD


async def test_turns_that_are_answered_together_share_a_transcript():
    async with talking(TalkingModel(answer="word " * 2000, word_s=0.02)) as (_, talk):
        detection = {"type": "server_vad", "interrupt_response": False}
        model = {"model": "gpt-4o-mini-transcribe"}
        await talk.set(audio={"input": {"transcription": model, "turn_detection": detection}})
        await talk.write("hello")
        await talk.connection.response.create()
        await talk.until("response.created")
        for _ in range(2):
            await talk.say()
            await talk.until("input_audio_buffer.committed")
        await talk.connection.response.cancel()
        failed, done = [
            await talk.until(f"conversation.item.input_audio_transcription.{end}")
            for end in ("failed", "completed")
        ]

    assert "together" in failed.error.message
    assert done.transcript == f"{HEARD} {HEARD}"


@pytest.mark.parametrize("detection", [{"type": "server_vad"}, None])
async def test_a_model_without_transcripts_says_so(detection: Any):
    async with talking(TalkingModel(can=False)) as (_, talk):
        heard = {"transcription": {"model": "whisper-1"}, "turn_detection": detection}
        await talk.set(audio={"input": heard})
        await talk.say()
        if detection is None:
            await talk.connection.input_audio_buffer.commit()
        failed = await talk.until("conversation.item.input_audio_transcription.failed")

    assert failed.error.code == "transcription_unavailable"


async def test_the_client_cancels_an_answer():
    async with talking(TalkingModel(answer="word " * 2000, word_s=0.02)) as (_, talk):
        await talk.write("go")
        await talk.connection.response.create()
        await talk.until("response.output_audio.delta")
        await talk.connection.response.cancel(response_id="resp_other", event_id="other")
        other = await talk.error()
        await talk.connection.response.cancel()
        done = await talk.until("response.done")
        await talk.connection.response.cancel(event_id="again")
        error = await talk.error()

    assert done.response.status == "cancelled"
    assert done.response.status_details.reason == "client_cancelled"
    assert (other.code, other.event_id) == ("response_cancel_not_active", "other")
    assert (error.code, error.event_id) == ("response_cancel_not_active", "again")
    # LiveKit looks for these words.
    assert error.message.startswith("Cancellation failed")


async def test_a_limit_makes_an_answer_incomplete():
    async with talking(TalkingModel(answer="one two three")) as (_, talk):
        await talk.write("go")
        answer = await talk.answer(max_output_tokens=2)

    assert answer.status == "incomplete"
    assert answer.status_details.reason == "max_output_tokens"
    assert answer.max_output_tokens == 2


async def test_items_are_retrieved_and_deleted():
    model = TalkingModel()
    async with talking(model) as (_, talk):
        await talk.write("one", id="a")
        await talk.write("two", id="b")
        await talk.connection.conversation.item.retrieve(item_id="a")
        found = await talk.until("conversation.item.retrieved")
        await talk.connection.conversation.item.delete(item_id="a")
        await talk.until("conversation.item.deleted")
        await talk.connection.conversation.item.retrieve(item_id="a", event_id="e1")
        error = await talk.error()
        await talk.answer()

    assert found.item.content[0].text == "one"
    assert (error.code, error.event_id) == ("item_retrieve_invalid_item_id", "e1")
    assert "one" not in model.contexts[-1]
    assert "two" in model.contexts[-1]


async def test_a_response_apart_answers_its_own_input_and_is_forgotten():
    model = TalkingModel()
    async with talking(model) as (_, talk):
        await talk.write("kept")
        talk.events.clear()
        apart = await talk.answer(
            conversation="none",
            instructions="Only this.",
            output_modalities=["text"],
            input=[message("aside")],
        )
        kinds = {event.type for event in talk.events}
        await talk.answer()

    assert "response.output_item.added" in kinds
    assert not kinds & {"conversation.item.added", "conversation.item.done"}
    assert apart.conversation_id is None
    assert model.contexts[0] == ["Only this.", "aside"]
    assert "aside" not in model.contexts[-1]
    assert "kept" in model.contexts[-1]


BAD: list[tuple[str, dict[str, Any]]] = [
    ("unknown_event", {"type": "no.such.event"}),
    ("missing_required_parameter", {"type": "input_audio_buffer.append"}),
    ("invalid_payload", {"type": "input_audio_buffer.append", "audio": "!!!"}),
    ("invalid_payload", {"type": "input_audio_buffer.append", "audio": "AA=="}),
    ("invalid_request", {"type": "session.update", "session": {"type": "translation"}}),
    ("invalid_request", {"type": "session.update", "session": {"output_modalities": ["x"]}}),
    ("item_not_found", {"type": "conversation.item.delete", "item_id": "nowhere"}),
]


async def test_mistakes_are_told_with_their_events_and_the_conversation_continues():
    async with talking() as (_, talk):
        errors = []
        for number, (_code, message) in enumerate(BAD):
            await talk.connection.send_raw(json.dumps({**message, "event_id": f"mine {number}"}))
            errors.append(await talk.error())
        await talk.write("still here?")
        answer = await talk.answer()

    assert [error.code for error in errors] == [code for code, _ in BAD]
    assert [error.event_id for error in errors] == [f"mine {number}" for number in range(len(BAD))]
    assert {error.type for error in errors} == {"invalid_request_error"}
    assert answer.status == "completed"


async def test_a_broken_picture_fails_its_response_and_no_later_one():
    broken = {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}
    async with talking() as (_, talk):
        await talk.add(**message(broken))
        await talk.connection.response.create()
        while (event := await talk.next()).type != "response.done":
            pass
        failed = event
        error = await talk.error()
        await talk.write("again")
        await talk.connection.response.create()
        while (event := await talk.next()).type != "response.done":
            pass

    assert failed.response.status == "failed"
    assert error.code == "invalid_payload"
    assert event.response.status == "completed"


# ---- who may, and what is in the way -------------------------------------------------------


async def test_who_waits_gets_the_first_event_with_the_place():
    async with (
        running_stack(load_model=TalkingModel, worker=ENERGY) as running,
        AsyncOpenAI(api_key="k", base_url=f"{running.url}/v1") as client,
        occupied(running) as busy,
        client.realtime.connect(model="m") as connection,
    ):
        talk = Talk(connection)
        first = asyncio.create_task(talk.next())
        await until(lambda: len(running.runtime.dispatcher.queue) == 1)
        assert not first.done()
        # 64 messages are kept.
        for number in range(65):
            await talk.send(type="input_audio_buffer.clear", event_id=f"mine {number}")
        assert (await first).error.event_id == "mine 64"
        await busy.close()
        assert (await talk.next()).type == "session.created"


async def test_a_browsers_key_is_short_lived_and_comes_as_a_subprotocol():
    async with (
        running_stack(
            load_model=TalkingModel,
            worker=ENERGY,
            security={"needs_key": True, "admin_token": "the-admin"},
        ) as running,
    ):
        key = (await running.new_key())["key"]
        async with AsyncOpenAI(api_key=key, base_url=f"{running.url}/v1") as client:
            secret = await client.realtime.client_secrets.create(
                session={"type": "realtime", "model": "gpt-realtime"},
                expires_after={"anchor": "created_at", "seconds": 60},
            )
        url = f"ws://127.0.0.1:{running.gateway.port}/v1/realtime?model=m"
        page: Any = running.url
        offered: Any = ["realtime", f"openai-insecure-api-key.{secret.value}"]
        async with connect(url, subprotocols=offered, origin=page) as socket:
            first = json.loads(await socket.recv())
            chosen = socket.subprotocol
        wrong: Any = ["realtime", "openai-insecure-api-key.st_wrong"]
        with pytest.raises(InvalidStatus) as caught:
            async with connect(url, subprotocols=wrong, origin=page):
                pass

    assert first["type"] == "session.created"
    assert chosen == "realtime"
    assert 0 < secret.expires_at - time.time() <= 60
    for session in (first["session"], secret.session.model_dump()):
        assert 1700 < session["expires_at"] - time.time() <= 1800  # limits.half_duplex_session_s
    assert caught.value.response.status_code == 401


async def test_what_the_server_can_do_is_told():
    async with talking() as (running, _), running.http() as http:
        told = (await http.get("/v1/realtime/capabilities")).json()

    names = {each["name"]: each for each in told["dialects"]}
    assert names["openai_realtime"]["paths"] == ["/v1/realtime"]
    assert names["openai_realtime"]["mode"] == "half_duplex"
    assert {"chat", "half_duplex", "duplex", "realtime"} <= names.keys()
    assert told["models"][0]["id"] == "talking"
    assert told["slots"] == {"total": 1, "free": 0}
    assert told["transcripts"] is True
    assert told["tools"] is False
    assert told["rates"] == {"input_hz": 16000, "output_hz": 24000}
