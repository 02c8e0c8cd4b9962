"""A part behind the model did not answer: the client learns it, and the session continues."""

from dataclasses import replace
from typing import Any

import pytest
from tests.session.test_conversation_interruption import SERVER_VAD, talking
from tests.session.test_words import SENTENCE, live, unit_of
from tests.support.sessions import feed, loud, quiet, worker_harness
from tests.support.timeline import silence, sound, speak

from parley.clock import ManualClock
from parley.engine.model import Job
from parley.engine.work import GenerateResult, Work
from parley.models.parrot import Parrot

TOLD = "The server has too many requests (429). Try again in 7 s."


class TroubledParrot(Parrot):
    """Says of each of its answers that a part behind it failed."""

    def __init__(self, **told: Any) -> None:
        super().__init__()
        self._told = told or {"problem": TOLD}

    def start(self, row: int, work: Work) -> Job:
        job: Any = super().start(row, work)
        finish = job.finish

        def fail(result: Any) -> None:
            if isinstance(result, GenerateResult) and result.text and result.end_of_turn:
                result = replace(result, **self._told)
            finish(result)

        job.finish = fail
        return job


@pytest.mark.parametrize("streaming", [True, False])
async def test_a_chat_ends_with_the_error(streaming):
    async with worker_harness(model=TroubledParrot()) as harness:
        talk = harness.begin("chat")
        messages = [{"role": "user", "content": "Hello"}]
        talk.say({"messages": messages, "streaming": streaming})

        assert await talk.over() == 1011
        assert talk.socket.sent[-1] == {
            "type": "error", "error": TOLD, "message": TOLD, "code": "upstream_failed"
        }  # fmt: skip


async def test_a_half_duplex_turn_has_failed_and_the_next_one_is_heard():
    async with worker_harness(model=TroubledParrot()) as harness:
        talk = await harness.ready("half_duplex")
        for count in (1, 2):
            feed(talk, SENTENCE)
            done = await talk.until("turn_done", count)

            assert done["failed"] is True
            assert done["text"]


@pytest.mark.parametrize("dialect", ["duplex", "realtime"])
async def test_a_duplex_client_hears_of_it_and_the_session_continues(dialect):
    async with worker_harness(model=TroubledParrot()) as harness:
        talk = await live(harness, dialect)
        for count in (1, 2, 3, 4):
            await talk.unit(unit_of(talk, loud()))
            for _ in range(6):
                if talk.types.count("error") < count:
                    await talk.unit(unit_of(talk, quiet()))

            assert TOLD in str(await talk.until("error", count))


async def test_an_openai_response_has_failed_with_the_reason():
    async with worker_harness(model=TroubledParrot()) as harness:
        talk = await talking(harness, SERVER_VAD)
        feed(talk, sound(silence(0.3), speak(1.0), silence(0.7)))
        done = await talk.until("response.done")

    assert done["response"]["status"] == "failed"
    assert done["response"]["status_details"]["error"]["code"] == "upstream_failed"


@pytest.mark.parametrize(
    ("dialect", "told"),
    [("half_duplex", "status"), ("duplex", "status"), ("realtime", "session.status")],
)
async def test_a_client_learns_that_the_voice_failed_and_the_answer_has_not(dialect, told):
    # No second is late by it, which clients learn, too.
    clock = ManualClock()
    async with worker_harness(model=TroubledParrot(voice_failed=True), clock=clock) as harness:
        if dialect == "half_duplex":
            talk = await harness.ready(dialect)
            feed(talk, SENTENCE)
            assert not (await talk.until("turn_done")).get("failed")
        else:
            talk = await live(harness, dialect)
            await talk.unit(unit_of(talk, loud()))
            for _ in range(6):
                if told not in talk.types:
                    await talk.unit(unit_of(talk, quiet()))

        assert (await talk.until(told))["reason"] == "voice_failed"
        assert harness.host.meter.counts.silences == {"voice_failed": 1}
        assert "error" not in talk.types
