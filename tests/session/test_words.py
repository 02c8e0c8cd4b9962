"""Words inside a call, in a whole worker: what users write, and what they are heard to say."""

import base64
import io
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.support.dialects import DialectName
from tests.support.hearing_model import WORDS, HearingParrot
from tests.support.sessions import Talk, WorkerHarness, feed, loud, quiet, worker_harness
from tests.support.timeline import silence, sound, speak

from parley.engine.work import Stage
from parley.protocol.values import FRAMES_LIMIT
from parley.session.conversation import TYPED_LIMIT

SENTENCE = sound(silence(0.5), speak(1.5), silence(1.2))
PAIR: tuple[DialectName, ...] = ("duplex", "realtime")


def picture(width: int = 48) -> str:
    file = io.BytesIO()
    Image.fromarray(np.full((32, width, 3), 90, np.uint8)).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


def write(talk: Talk, text: str = "", *pictures: str) -> None:
    """In the words of the talk's dialect."""
    if talk.lease.dialect == "realtime":
        content: list[dict[str, str]] = [{"type": "input_text", "text": text}] if text else []
        content += [
            {"type": "input_image", "image_url": f"data:image/png;base64,{one}"} for one in pictures
        ]
        item = {"type": "message", "role": "user", "content": content}
        talk.say({"type": "conversation.item.create", "item": item})
    else:
        talk.say({"type": "input_text", "text": text, "images": list(pictures)})


def unit_of(talk: Talk, audio: str) -> dict[str, str]:
    if talk.lease.dialect == "realtime":
        return {"type": "input_audio_buffer.append", "audio": audio}
    return {"type": "audio_chunk", "audio_base64": audio}


async def live(harness: WorkerHarness, dialect: DialectName, **more: Any) -> Talk:
    """A duplex conversation in which the parrot may speak immediately."""
    name = "voice_config" if dialect == "realtime" else "config"
    more[name] = {"force_listen_count": 0}
    return await harness.ready(dialect, **more)


async def answers(talk: Talk) -> str:
    """Send silence until a turn of the assistant has ended; all that it said."""
    for _ in range(12):
        assert await talk.unit(unit_of(talk, quiet()))
        if any(message.get("end_of_turn") for message in talk.socket.sent):
            return "".join(m["text"] for m in talk.socket.sent if "end_of_turn" in m)
    raise AssertionError("the assistant did not finish")


# ---- half-duplex -------------------------------------------------------------------------------


async def test_written_words_alone_are_a_turn():
    async with worker_harness() as harness:
        talk = await harness.ready("half_duplex")
        write(talk, "How far is the moon?")
        done = await talk.until("turn_done")

        assert talk.socket.sent[0]["accepts"] == ["input_text"]
        assert done["text"] == "You wrote: How far is the moon?"
        assert (await talk.until("generating"))["speech_duration_ms"] == 0


async def test_pictures_go_with_the_words_that_are_said_next():
    async with worker_harness() as harness:
        talk = await harness.ready("half_duplex")
        write(talk, "", picture())
        feed(talk, SENTENCE)
        done = await talk.until("turn_done")

        assert "You spoke for" in done["text"]
        assert "I saw 1 picture of 48 by 32." in done["text"]
        assert talk.types.count("generating") == 1


async def test_what_is_written_during_an_answer_is_the_next_turn_in_order():
    async with worker_harness() as harness:
        harness.gate.shut(Stage.DECODE)
        talk = await harness.ready("half_duplex")
        feed(talk, SENTENCE)
        await talk.until("generating")
        write(talk, "First.")
        write(talk, "Second.", picture())
        harness.gate.open()
        done = await talk.until("turn_done", 2)

        assert done["text"] == "I saw 1 picture of 48 by 32. You wrote: First.\nSecond."


async def test_what_is_written_while_a_person_speaks_is_answered_with_what_they_say():
    async with worker_harness() as harness:
        talk = await harness.ready("half_duplex")
        feed(talk, sound(silence(0.5), speak(1.5)))
        await talk.until("vad_state")
        write(talk, "And this.")
        feed(talk, sound(silence(1.5)))
        done = await talk.until("turn_done")

        assert "You spoke for" in done["text"]
        assert "You wrote: And this." in done["text"]


async def test_only_so_much_may_wait_to_be_read():
    async with worker_harness() as harness:
        harness.gate.shut(Stage.DECODE)
        talk = await harness.ready("half_duplex")
        feed(talk, SENTENCE)
        await talk.until("generating")
        for _ in range(TYPED_LIMIT + 1):
            write(talk, "Again.")
        error = await talk.until("error")
        harness.gate.open()

        assert error["code"] == "invalid_request"


# ---- duplex ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dialect", PAIR)
async def test_written_words_and_pictures_join_the_next_unit(dialect: DialectName):
    async with worker_harness() as harness:
        talk = await live(harness, dialect)
        write(talk, "How far is the moon?", picture())
        said = await answers(talk)

        assert talk.socket.sent[0]["accepts"] == ["input_text"]
        assert said == "I saw 1 picture of 48 by 32. You wrote: How far is the moon?"


@pytest.mark.parametrize("dialect", PAIR)
async def test_a_failed_unit_loses_no_written_words(dialect: DialectName):
    async with worker_harness() as harness:
        talk = await live(harness, dialect)
        harness.faults.fail_at(Stage.PREFILL)
        write(talk, "Are you there?")
        talk.say(unit_of(talk, quiet()))
        await talk.until("error")

        assert await answers(talk) == "You wrote: Are you there?"


async def test_what_is_written_during_a_unit_goes_with_the_next():
    async with worker_harness() as harness:
        talk = await live(harness, "duplex")
        harness.gate.shut(Stage.PREFILL)
        write(talk, "Are you there?")
        talk.say(unit_of(talk, loud()))
        await harness.gate.arrived()
        write(talk, "And now?")
        await talk.drained()
        harness.gate.open()

        said = await answers(talk)
        assert "You wrote: Are you there?" in said
        assert "And now?" in said


async def test_only_so_many_pictures_wait_for_a_unit():
    async with worker_harness() as harness:
        talk = await live(harness, "duplex")
        for _ in range(FRAMES_LIMIT + 2):
            write(talk, "", picture())
        await talk.drained()

        (session,) = harness._lives()
        runner: Any = session._runner
        assert len(runner._frames) == FRAMES_LIMIT


@pytest.mark.parametrize("dialect", PAIR)
async def test_a_model_that_cannot_read_in_units_says_so(dialect: DialectName):
    async with worker_harness(model=HearingParrot(reads_in_units=False)) as harness:
        talk = await live(harness, dialect)
        write(talk, "Hello?")
        error = await talk.until("error")
        talk.say(unit_of(talk, quiet()))
        await talk.until("response.listen" if dialect == "realtime" else "result")

        assert "accepts" not in talk.socket.sent[0]
        assert "half-duplex and chat" in str(error)
        assert talk.socket.closed is None


@pytest.mark.parametrize("dialect", PAIR)
async def test_clients_without_extensions_are_told_that_there_is_no_such_event(dialect):
    async with worker_harness() as harness:
        talk = await live(harness, dialect, asks_for_extensions=False)
        write(talk, "Hello?")
        error = await talk.until("error")

        assert "accepts" not in talk.socket.sent[0]
        assert "input_text" in str(error) or "conversation.item.create" in str(error)


# ---- what was heard ----------------------------------------------------------------------------

TRANSCRIPTS = {
    "half_duplex": "input_transcript",
    "duplex": "input_transcript",
    "realtime": "conversation.item.input_audio_transcription.completed",
}


@pytest.mark.parametrize("asks", [True, False])
@pytest.mark.parametrize("dialect", ["half_duplex", *PAIR])
async def test_who_asks_is_told_what_they_said_and_nobody_else(dialect: DialectName, asks: bool):
    options = {"transcribe": True} if asks else {}
    async with worker_harness(model=HearingParrot()) as harness:
        if dialect == "half_duplex":
            talk = await harness.ready(dialect, config=options)
            feed(talk, SENTENCE)
            await talk.until("turn_done")
        else:
            talk = await live(harness, dialect, **options)
            talk.say(unit_of(talk, loud()))
            await answers(talk)

    told = [m for m in talk.socket.sent if m["type"] == TRANSCRIPTS[dialect]]
    assert [m.get("text") or m["transcript"] for m in told] == [WORDS] * asks
    if dialect == "half_duplex" and asks:
        assert told[0]["index"] == 0
        # Before the answer.
        assert talk.types.index("input_transcript") < talk.types.index("chunk")
