"""OpenAI's own Python client on `/v1/live/sessions`, unchanged but for address and key."""

import asyncio
import base64
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any

from openai.types.live import ServerEvent
from pydantic import TypeAdapter
from tests.openai.realtime_talk import RATE_HZ, Talk, quiet, tone
from tests.openai.sdk_client import red_picture
from tests.support.stack import running_stack

from openai import AsyncOpenAI

SPOKEN = [tone(0.5), tone(0.5), tone(0.3), tone(0.7), *[quiet(0.5)] * 6]
"""Two seconds of a person and three of silence, in chunks that are not units."""


class LiveTalk(Talk):
    """Steps of such a session."""

    schema = TypeAdapter(ServerEvent)

    def words(self) -> list[str]:
        return [e.delta for e in self.events if e.type == "session.output_transcript.delta"]

    async def start(self, **session: Any) -> Any:
        await self.send(type="session.start", session={"model": "gpt-live-1", **session})
        return await self.until("session.started")

    async def say_until(self, name: str, *chunks: str) -> Any:
        """As a microphone: the chunks again and again, until something is said."""
        waiting = asyncio.create_task(self.until(name))
        while not waiting.done():
            for chunk in chunks:
                await self.send(type="session.input_audio.append", audio=chunk)
                await asyncio.wait({waiting}, timeout=0.1)
        return waiting.result()


@contextlib.asynccontextmanager
async def talking() -> AsyncIterator[LiveTalk]:
    async with (
        running_stack() as running,
        AsyncOpenAI(api_key="sk-any", base_url=f"{running.url}/v1") as client,
        client.live.connect() as connection,
    ):
        yield LiveTalk(connection)


async def test_a_session_from_start_to_close():
    async with talking() as talk:
        started = await talk.start(
            instructions="Be kind.",
            delegation={"type": "client"},
            audio={"output": {"voice": "marin"}},
        )
        said = await talk.say_until("session.output_audio.delta", *SPOKEN)
        await talk.send(type="session.close", event_id="bye")
        closed = await talk.until("session.closed")

    assert started.session.status == "active"
    assert started.session.instructions == "Be kind."
    assert 1700 < started.session.expires_at - time.time() <= 1800  # limits.duplex_session_s
    # Nobody asked to be told of interruptions: sound comes as it is played.
    assert len(base64.b64decode(said.delta)) == 2 * RATE_HZ // 10
    assert said.end_ms == said.start_ms + 100
    assert talk.words()[0]
    assert closed.reason == "close_requested"
    assert closed.usage.seconds >= 3


async def test_muted_sound_is_silence_to_the_model():
    async with talking() as talk:
        await talk.start()
        await talk.send(type="session.input_audio.mute", event_id="m")
        muted = await talk.until("session.input_audio.muted")
        await talk.say_until("session.usage.updated", tone(1.0))
        await talk.send(type="session.input_audio.unmute")
        await talk.until("session.input_audio.unmuted")

    assert muted.client_event_id == "m"
    assert not [e for e in talk.events if e.type == "session.output_audio.delta"]


async def test_words_reach_a_model_that_reads_in_units():
    kinds = ("instructions", "thinking", "commentary")
    async with talking() as talk:
        await talk.start()
        for kind in kinds:
            await talk.send(type=f"session.{kind}.append", content="It rains.", event_id=kind)
            appended = await talk.until(f"session.{kind}.appended")
            assert appended.client_event_id == kind
        await talk.say_until("session.output_audio.delta", *SPOKEN)

    assert talk.words()


async def test_two_times_a_person_speaks_are_answered_twice():
    async with talking() as talk:
        await talk.start()
        first = await talk.say_until("session.output_audio.delta", *SPOKEN)
        # Everything that was said of the first time, and the silence after it.
        await talk.say_until("session.usage.updated", quiet(0.5))
        second = await talk.say_until("session.output_audio.delta", *SPOKEN)
        times = [
            (e.start_ms, e.end_ms) for e in talk.events if e.type == "session.output_audio.delta"
        ]

    assert second.start_ms >= first.end_ms + 1000
    assert times == sorted(times)


async def test_a_picture_goes_with_the_next_unit():
    async with talking() as talk:
        await talk.start()
        picture = base64.b64encode(red_picture()).decode()
        await talk.send(type="session.input_image.append", image=picture)
        await talk.say_until("session.output_audio.delta", *SPOKEN)

    said = "".join(talk.words())
    assert "You spoke" in said or "I saw" in said


async def test_mistakes_are_told_with_the_clients_event_and_the_session_continues():
    async with talking() as talk:
        await talk.send(type="session.input_audio.append", audio=quiet(0.1), event_id="early")
        early = await talk.until("error")
        await talk.start()
        await talk.send(type="response.create", event_id="call", response={})
        unknown = await talk.until("error")
        await talk.send(type="session.input_audio.append", audio="!!!", event_id="bad")
        bad = await talk.until("error")
        await talk.send(type="session.update", session={"delegation": None}, event_id="up")
        updated = await talk.until("session.updated")

    assert early.error.code == "not_ready"
    assert (unknown.error.code, unknown.error.client_event_id) == ("unknown_event", "call")
    assert (bad.error.code, bad.error.client_event_id) == ("invalid_payload", "bad")
    assert updated.client_event_id == "up"
