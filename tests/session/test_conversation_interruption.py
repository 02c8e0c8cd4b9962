"""Interruptions in a conversation of items: the rules of half-duplex and duplex, OpenAI's words."""

import asyncio
import base64
from typing import Any

import numpy as np
import pytest
from tests.openai.talking_model import TalkingModel
from tests.support.patience import HANG_S
from tests.support.sessions import Talk, WorkerHarness, feed, feed_in_time, stranger, worker_harness
from tests.support.timeline import silence, sound, speak

from parley.clock import ManualClock
from parley.engine.work import Stage
from parley.media.pcm import INPUT_RATE_HZ, Pcm
from parley.media.resample import resample
from parley.protocol.kinds import Kind
from parley.session import listener
from parley.session.early import EarlyAnswer
from parley.session.listening import QUIET
from parley.turns import TurnJudges
from parley.vad import UtteranceFinder, VadEvent
from parley.views.half_duplex import HalfDuplexView

ANSWER = "one two three four five six seven eight nine ten"
"""A second of sound."""


async def talking(harness: WorkerHarness, detection: dict[str, Any] | None = None) -> Talk:
    talk = harness.begin("openai_realtime", kind=Kind.HALF_DUPLEX.value)
    session = {"type": "realtime", "audio": {"input": {"turn_detection": detection}}}
    talk.say({"type": "session.update", "session": session})
    await talk.until("session.updated")
    return talk


SERVER_VAD = {"type": "server_vad"}
SEMANTIC_VAD = {"type": "semantic_vad", "eagerness": "high"}
STARTED = "input_audio_buffer.speech_started"


STOPPED = "input_audio_buffer.speech_stopped"
IS_HEARING = pytest.mark.parametrize("is_hearing", [False, True], ids=["between", "meanwhile"])


def may_wait(monkeypatch: pytest.MonkeyPatch, is_hearing: bool) -> tuple[asyncio.Event, ...]:
    """Events: the detector hears speech; it may continue (if `is_hearing`, it waits for that)."""
    hears, continues = asyncio.Event(), asyncio.Event()

    async def find(finder: UtteranceFinder, pcm: Pcm) -> list[VadEvent]:
        found = finder.feed(pcm)
        if finder.is_speaking and is_hearing:
            hears.set()
            await continues.wait()
        return found

    monkeypatch.setattr(listener, "find", find)
    return hears, continues


@IS_HEARING
async def test_speech_during_which_the_client_takes_over_waits_for_its_commit(
    monkeypatch, is_hearing
):
    hears, continues = may_wait(monkeypatch, is_hearing)
    async with worker_harness(clock=ManualClock()) as harness:
        talk = await talking(harness, SERVER_VAD)
        feed(talk, sound(silence(0.3), speak(1.0)))
        await (hears.wait() if is_hearing else talk.until(STARTED))
        session = {"type": "realtime", "audio": {"input": {"turn_detection": None}}}
        talk.say({"type": "session.update", "session": session})
        talk.say({"type": "input_audio_buffer.commit"})
        await talk.drained()
        continues.set()
        await talk.until("input_audio_buffer.committed")
        talk.say({"type": "response.create"})
        answer = await talk.until("response.output_audio_transcript.done")

    types = [each for each in talk.types if "buffer" in each]
    assert types == [STARTED, STOPPED, "input_audio_buffer.committed"]
    assert answer["transcript"].startswith("You spoke for 1.")


@pytest.mark.parametrize("answers", [True, False])
async def test_positions_count_what_the_client_has_sent(answers):
    judges = TurnJudges(end_of_turn=lambda _: 0.99)
    async with worker_harness(clock=ManualClock(), judges=judges) as harness:
        talk = await talking(harness, {**SERVER_VAD, "create_response": answers})
        feed(talk, sound(silence(0.3), speak(1.0), silence(0.2)), chunk_s=2.0)
        # The client sends no more, and its silence is assumed.
        await harness.pass_time(5.0, due=QUIET)
        await talk.until(STOPPED)
        feed(talk, sound(silence(0.3), speak(1.0)))
        started = await talk.until(STARTED, 2)

    assert started["audio_start_ms"] == pytest.approx(1800, abs=100)


async def test_no_silence_is_assumed_while_sound_waits_for_the_detector(monkeypatch):
    """A busy worker must not end a sentence that the user has continued."""
    continues = asyncio.Event()

    async def find(finder: UtteranceFinder, pcm: Pcm) -> list[VadEvent]:
        await continues.wait()
        return finder.feed(pcm)

    chances = iter([0.1, 0.1])
    judges = TurnJudges(end_of_turn=lambda _: next(chances, 0.99))
    async with worker_harness(clock=ManualClock(), judges=judges) as harness:
        talk = await talking(harness, SERVER_VAD)
        feed(talk, sound(silence(0.3), speak(1.0), silence(0.4)), chunk_s=2.0)
        await harness.pass_time(0.0, due=QUIET)
        monkeypatch.setattr(listener, "find", find)
        feed(talk, sound(speak(0.5)))
        await talk.drained()
        await harness.pass_time(5.0, due=QUIET)
        continues.set()
        feed(talk, sound(speak(0.5), silence(1.0)))
        stopped = await talk.until(STOPPED)

    assert stopped["audio_end_ms"] == pytest.approx(2700, abs=100)


async def test_a_change_of_the_setup_during_an_answer_applies_to_the_next():
    async with worker_harness(clock=ManualClock()) as harness:
        talk = await talking(harness)
        harness.gate.shut(Stage.PREFILL)
        talk.say({"type": "response.create"})
        await harness.gate.arrived()
        talk.say(
            {"type": "session.update", "session": {"type": "realtime", "max_output_tokens": 1}}
        )
        await talk.until("session.updated", 2)
        harness.gate.open()
        done = await talk.until("response.done")

    assert done["response"]["status"] == "completed"


async def test_where_the_client_has_taken_over_speech_interrupts_nothing():
    model = TalkingModel(answer="word " * 400, word_s=0.01)
    async with worker_harness(clock=ManualClock(), model=model) as harness:
        talk = await talking(harness, SERVER_VAD)
        talk.say({"type": "response.create"})
        await talk.until("response.output_audio.delta")
        feed(talk, stranger(0.7))
        session = {"type": "realtime", "audio": {"input": {"turn_detection": None}}}
        talk.say({"type": "session.update", "session": session})
        await talk.until("session.updated", 2)
        said = talk.types.count("response.output_audio.delta")
        await talk.until("response.output_audio.delta", said + 5)
        talk.say({"type": "response.cancel"})
        done = await talk.until("response.done")

    assert done["response"]["status_details"]["reason"] == "client_cancelled"
    assert talk.types.count(STARTED) == talk.types.count(STOPPED)


async def test_an_answer_that_said_nothing_stays_an_item():
    model = TalkingModel(answer=ANSWER, word_s=HANG_S)
    async with worker_harness(clock=ManualClock(), model=model) as harness:
        talk = await talking(harness)
        for number in range(3):
            metadata = {"number": str(number)}
            talk.say({"type": "response.create", "response": {"metadata": metadata}})
        await talk.until("error", 2)
        created = await talk.until("response.created")
        talk.say({"type": "response.cancel"})
        done = await talk.until("response.done")
        model.thinking.set()
        (unsaid,) = done["response"]["output"]
        part = {"type": "input_text", "text": "Go."}
        asked = dict[str, Any](type="message", role="user", content=[part], id="asked")
        talk.say({"type": "conversation.item.create", "item": asked})
        here = {"item_id": unsaid["id"], "content_index": 0, "audio_end_ms": 0}
        talk.say({"type": "conversation.item.truncate", **here})
        instead = {"item": {**asked, "id": "before"}, "previous_item_id": unsaid["id"]}
        talk.say({"type": "conversation.item.create", **instead})
        talk.say({"type": "response.create"})
        await talk.until("response.done", 2)

    assert created["response"]["metadata"] == {"number": "0"}
    errors = [each["error"]["code"] for each in talk.socket.sent if each["type"] == "error"]
    assert errors == ["conversation_already_has_active_response"] * 2
    added = [each for each in talk.socket.sent if each["type"] == "conversation.item.added"]
    previous = [each["previous_item_id"] for each in added]
    assert previous == [None, unsaid["id"], unsaid["id"], "asked"]


@IS_HEARING
async def test_speech_that_is_cleared_is_no_turn(monkeypatch, is_hearing):
    hears, clears = may_wait(monkeypatch, is_hearing)
    async with worker_harness(clock=ManualClock(), model=TalkingModel(answer=ANSWER)) as harness:
        talk = await talking(harness, SERVER_VAD)
        feed(talk, sound(silence(0.3), speak(1.0)))
        await (hears.wait() if is_hearing else talk.until(STARTED))
        talk.say({"type": "input_audio_buffer.clear"})
        await talk.drained()
        clears.set()
        feed(talk, sound(silence(0.3), speak(0.5), silence(0.7)))
        await talk.until("input_audio_buffer.committed")

    *cleared, _ = [each["type"] for each in talk.socket.sent if "buffer" in each["type"]]
    assert sorted(cleared[:3]) == ["input_audio_buffer.cleared", STARTED, STOPPED]
    assert cleared[3:] == [STARTED, STOPPED]


@pytest.mark.parametrize(("heard_s", "heard"), [(0.45, "one two three four five "), (0.0, None)])
async def test_the_context_holds_what_was_heard_of_an_interrupted_answer(heard_s, heard):
    clock, model = ManualClock(), TalkingModel(answer=ANSWER)
    async with worker_harness(clock=clock, model=model) as harness:
        talk = await talking(harness, SERVER_VAD)
        feed(talk, sound(silence(0.3), speak(1.0), silence(0.7)))
        await talk.until("response.done")
        clock.advance(heard_s)
        feed(talk, stranger(0.7))
        await talk.until(STARTED, 2)
        feed(talk, sound(silence(0.7)))
        await talk.until("response.done", 2)

    said = [text for text in model.contexts[-1] if text.startswith("one")]
    assert said == ([] if heard is None else [heard])
    # The context goes back to before the answer, which is said again as far as it was heard:
    # nothing is taken in again.
    assert model.contexts[-1][: len(model.contexts[0])] == model.contexts[0]
    assert len(model.seeds) == 1
    (cut,) = [m for m in talk.socket.sent if m["type"] == "conversation.item.truncated"]
    assert cut["audio_end_ms"] == 1000 * heard_s
    at = talk.types.index("conversation.item.truncated")
    assert talk.types[at - 1] == STARTED


async def test_speech_ends_the_answer_that_is_being_made_and_begins_the_next_turn():
    model = TalkingModel(answer="word " * 400, word_s=0.01)
    async with worker_harness(clock=ManualClock(), model=model) as harness:
        talk = await talking(harness, SERVER_VAD)
        feed(talk, sound(silence(0.3), speak(1.0), silence(0.7)))
        await talk.until("response.output_audio.delta")
        talk.say({"type": "response.create"})
        refused = await talk.until("error")
        feed(talk, stranger(0.6))
        done = await talk.until("response.done")
        fence = len(talk.socket.sent)
        feed(talk, sound(silence(0.7)))
        committed = await talk.until("input_audio_buffer.committed", 2)
        await talk.until("response.created", 2)

        assert refused["error"]["code"] == "conversation_already_has_active_response"
        between = talk.types[fence : talk.types.index("input_audio_buffer.committed", fence)]
        assert done["response"]["status_details"]["reason"] == "turn_detected"
        assert "response.output_audio.delta" not in between
        assert talk.types.count(STARTED) == 2
        started = await talk.until(STARTED, 2)
        assert started["item_id"] == committed["item_id"]
        assert started["audio_start_ms"] == pytest.approx(2000, abs=200)


async def test_speech_interrupts_an_answer_that_began_while_sound_was_waiting(monkeypatch):
    free = asyncio.Event()
    model = TalkingModel(answer="word " * 400, word_s=0.01)
    async with worker_harness(clock=ManualClock(), model=model) as harness:
        talk = await talking(harness, SERVER_VAD)

        async def find(finder: UtteranceFinder, pcm: Pcm) -> list[VadEvent]:
            if "input_audio_buffer.committed" in talk.types:
                await free.wait()
            return finder.feed(pcm)

        monkeypatch.setattr(listener, "find", find)
        feed(talk, sound(silence(0.3), speak(1.0), silence(1.5)))
        await talk.until("response.output_audio.delta")
        feed(talk, stranger(0.6))
        free.set()
        done = await talk.until("response.done")

    assert done["response"]["status_details"]["reason"] == "turn_detected"
    assert talk.types.count(STARTED) == 2


async def test_turns_that_come_together_have_one_answer_and_committed_ones_wait_to_be_asked_for():
    turn = (speak(1.0), silence(0.7))
    async with worker_harness(clock=ManualClock(), model=TalkingModel(answer=ANSWER)) as harness:
        talk = await talking(harness, SERVER_VAD)
        feed(talk, sound(silence(0.3), *turn, *turn), chunk_s=9.0)
        await talk.until("response.done")
        await harness.pass_time(5.0, due="played")
        assert talk.types.count("response.created") == 1
        feed(talk, sound(silence(0.3), speak(1.0)))
        await talk.until(STARTED, 3)
        talk.say({"type": "input_audio_buffer.commit"})
        await talk.until("input_audio_buffer.committed", 3)
        talk.say({"type": "response.create"})
        await talk.until("response.done", 2)

        assert talk.types.count("response.created") == 2
        assert "error" not in talk.types


@pytest.mark.parametrize("is_echo", [False, True])
async def test_neither_an_acknowledgement_nor_the_assistants_own_echo_is_a_turn(is_echo: bool):
    clock = ManualClock()
    async with worker_harness(clock=clock, model=TalkingModel(answer=ANSWER)) as harness:
        # An acknowledgement is one where turns are told by their sense.
        talk = await talking(harness, SERVER_VAD if is_echo else SEMANTIC_VAD)
        feed(talk, sound(silence(0.3), speak(1.0), silence(0.7)))
        await talk.until("response.done")
        if is_echo:
            sent = [m for m in talk.socket.sent if m["type"].endswith("output_audio.delta")]
            played = np.frombuffer(b"".join(base64.b64decode(m["delta"]) for m in sent), "<i2")
            echo = Pcm((0.1 / 32768 * played).astype(np.float32), 24_000)
            feed(talk, resample(echo, INPUT_RATE_HZ))
        else:
            feed(talk, stranger(0.4))
            feed(talk, sound(silence(0.6)))
        await talk.drained()
        await harness.pass_time(5.0, due="played")
        feed(talk, sound(silence(0.3), speak(1.0), silence(0.7)))
        await talk.until("response.done", 2)

        assert talk.types.count(STARTED) == 2


async def test_where_responses_are_not_to_be_interrupted_speech_is_a_turn_of_its_own():
    model = TalkingModel(answer=ANSWER)
    async with worker_harness(clock=ManualClock(), model=model) as harness:
        talk = await talking(harness, {**SERVER_VAD, "interrupt_response": False})
        feed(talk, sound(silence(0.3), speak(1.0), silence(0.7)))
        await talk.until("response.done")
        feed(talk, stranger(0.7))
        feed(talk, sound(silence(0.7)))
        second = await talk.until("response.done", 2)

    assert second["response"]["status"] == "completed"
    # What was heard of the first answer is all of it: the context stayed as it was.
    assert len(model.contexts) == 2
    assert not any(text.startswith("one") for text in model.contexts[-1])


@pytest.fixture
def early(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each turn that was to be taken in early, whether it was."""
    tried: list[bool] = []
    prefill_early = HalfDuplexView.prefill_early

    async def noted(view, request, **more):
        tried.append(await prefill_early(view, request, **more))
        return tried[-1]

    monkeypatch.setattr(HalfDuplexView, "prefill_early", noted)
    return tried


async def test_a_turn_is_taken_in_before_its_silence_is_over(monkeypatch, early):
    contexts = []
    for is_early in (True, False):
        if not is_early:
            monkeypatch.setattr(EarlyAnswer, "follow", lambda self, finder: None)
        model = TalkingModel(answer="Yes.")
        async with worker_harness(clock=ManualClock(), model=model) as harness:
            talk = await talking(harness, SERVER_VAD)
            for count in (1, 2, 3):
                if count == 3:
                    session = {"type": "realtime", "instructions": "Be brief."}
                    talk.say({"type": "session.update", "session": session})
                await feed_in_time(talk, sound(silence(0.3), speak(1.0), silence(0.4)))
                feed(talk, sound(silence(0.4)))
                await talk.until("response.done", count)
                await harness.pass_time(1.0, due="played")
            contexts.append(model.contexts[-1])

    # Also of the first turn, and where other instructions have the context filled from the start.
    assert early == [True, True, True]
    assert contexts[0] == contexts[1]


async def test_a_turn_is_taken_in_early_after_the_client_has_truncated_the_answer(early):
    model = TalkingModel(answer=ANSWER)
    async with worker_harness(clock=ManualClock(), model=model) as harness:
        talk = await talking(harness, SERVER_VAD)
        feed(talk, sound(silence(0.3), speak(1.0), silence(0.7)))
        await talk.until("response.done")
        await harness.pass_time(5.0, due="played")
        (item_id,) = {m["item_id"] for m in talk.socket.sent if m["type"].endswith("audio.delta")}
        # The first turn comes in one piece: whether there is time for early work is chance.
        early.clear()
        cut = {"item_id": item_id, "content_index": 0, "audio_end_ms": 450}
        talk.say({"type": "conversation.item.truncate", **cut})
        await talk.until("conversation.item.truncated")
        await feed_in_time(talk, sound(silence(0.3), speak(1.0), silence(0.4)))
        feed(talk, sound(silence(0.4)))
        await talk.until("response.done", 2)

    assert early == [True]
    assert [text for text in model.contexts[-1] if text.startswith("one")] == [
        "one two three four five "
    ]
