import asyncio
from unittest.mock import create_autospec

import pytest
from tests.support.sessions import heard, loud, quiet, worker_harness
from tests.support.talking import b64

from parley.clock import ManualClock
from parley.dialects.events import Content
from parley.engine.work import Stage
from parley.errors import ContextFull
from parley.models.parrot import Parrot
from parley.protocol.content import Message
from parley.protocol.values import Role, TextPart, ToolCallPart, ToolResultPart
from parley.session.chat import without_oldest

HELLO = {"messages": [{"role": "user", "content": "Hello there, parrot!"}]}
SPOKEN = {
    "messages": [{"role": "user", "content": [{"type": "audio", "data": loud(2.0)}]}],
    "tts": {},
}


async def test_a_streamed_answer_is_prefill_done_then_chunks_that_join_to_done(monkeypatch):
    opened = create_autospec(Parrot.open, side_effect=Parrot.open)
    monkeypatch.setattr(Parrot, "open", opened)
    async with worker_harness() as harness:
        talk = harness.begin("chat")
        talk.say({**SPOKEN, "seed": 7})

        assert await talk.over() == 1000

        opening = opened.call_args.args[2]
        assert (opening.seed, opening.is_seed_chosen) == (7, True)
        assert talk.types[0] == "prefill_done"
        assert talk.types[-1] == "done"
        assert set(talk.types[1:-1]) == {"chunk"}
        done, chunks = talk.socket.sent[-1], talk.socket.sent[1:-1]
        assert "".join(chunk["text_delta"] or "" for chunk in chunks) == done["text"]
        assert "You spoke for 2.0 seconds" in done["text"]
        sounds = [heard(chunk["audio_data"]) for chunk in chunks if chunk["audio_data"]]
        assert sum(map(len, sounds)) == pytest.approx(2 * 24_000, abs=100)
        assert done["audio_data"] is None
        assert done["stopped"] is False
        assert done["input_tokens"] == talk.socket.sent[0]["input_tokens"] > 20
        assert done["generated_tokens"] > 5


async def test_a_long_answer_waits_for_a_client_that_reads_slowly():
    # Forty seconds are five megabytes of base64, five times what may wait.
    async with worker_harness(output_mb=1) as harness:
        talk = harness.begin("chat")
        talk.socket.reads.clear()
        part = {"type": "audio", "data": loud(40)}
        talk.say({"messages": [{"role": "user", "content": [part]}], "tts": {}})
        await asyncio.sleep(0)
        talk.socket.reads.set()

        assert await talk.over() == 1000
        sounds = [heard(m["audio_data"]) for m in talk.socket.sent if m.get("audio_data")]
        assert sum(map(len, sounds)) == pytest.approx(40 * 24_000, abs=100)


async def test_stop_ends_the_answer_with_what_there_is():
    async with worker_harness() as harness:
        harness.gate.shut(Stage.DECODE)
        talk = harness.begin("chat")
        talk.say(HELLO)
        await talk.until("prefill_done")
        await harness.gate.arrived()

        talk.say({"type": "stop"})
        await talk.until("done")
        harness.gate.open()

        assert await talk.over() == 1000
        assert talk.socket.sent[-1]["stopped"] is True


LONG = "word " * 2000
SYSTEM = {"role": "system", "content": "Be kind."}
HISTORY = [
    {"role": role, "content": f"{LONG}{turn}"}
    for turn in range(6)
    for role in ("user", "assistant")
]


@pytest.mark.parametrize("truncation", ["auto", "disabled"])
async def test_a_conversation_that_does_not_fit_is_refused_or_continues_without_its_oldest_turns(
    truncation: str,
):
    async with worker_harness() as harness:
        talk = harness.begin("chat")
        messages = [SYSTEM, *HISTORY, {"role": "user", "content": "Hello there, parrot!"}]
        talk.say({"messages": messages, "truncation": truncation})

        await talk.over()

        last = talk.socket.sent[-1]
        if truncation == "disabled":
            assert (last["type"], last["code"]) == ("error", "context_full")
        else:
            assert "Hello there, parrot!" in last["text"]
            assert 8192 - 2 * 2100 < last["input_tokens"] <= 8192


def asked_of(*roles: str) -> list[Message[Content]]:
    """Messages: s(ystem), u(ser), a(ssistant), c(all), r(esult)."""
    kinds: dict[str, tuple[Role, Content]] = {
        "s": ("system", TextPart(text="s")),
        "u": ("user", TextPart(text="u")),
        "a": ("assistant", TextPart(text="a")),
        "c": ("assistant", ToolCallPart(name="look")),
        "r": ("user", ToolResultPart(content="seen")),
    }
    return [Message(kinds[each][0], (kinds[each][1],)) for each in "".join(roles)]


@pytest.mark.parametrize(
    ("before", "needed", "after"),
    [
        ("suauauau", 100, "suauau"),
        ("suauauau", 200, "suau"),
        ("suauauau", 1000, "su"),
        ("uauau", 101, "uau"),
        ("sucrauau", 101, "suau"),
        ("sucrauau", 1000, "su"),
        ("aauau", 101, "uau"),
        ("sucr", 101, "sucr"),
        ("su", 101, "su"),
        ("ss", 101, "ss"),
    ],
)
def test_the_oldest_turns_are_left_out_as_a_whole_and_the_last_one_stays(before, needed, after):
    left = without_oldest(asked_of(before), ContextFull(needed, 90))

    assert list(left) == asked_of(after)


async def test_a_request_that_never_comes_ends_in_a_timeout():
    async with worker_harness(clock=ManualClock()) as harness:
        talk = harness.begin("chat")
        await harness.pass_time(31, due="setup")

        assert await talk.over() == 1008
        assert talk.socket.sent[-1]["code"] == "timeout"


def user(*parts: dict) -> dict:
    return {"messages": [{"role": "user", "content": list(parts)}]}


@pytest.mark.parametrize(
    ("frame", "code", "close_code"),
    [
        ("{", "invalid_json", 1003),
        (b"\x00\x01", "invalid_json", 1003),
        ("[]", "invalid_request", 1008),
        ({"type": "stop"}, "invalid_request", 1008),
        ({"messages": [{"role": "assistant", "content": "x"}]}, "invalid_request", 1008),
        (user({"type": "image", "data": "?"}), "invalid_payload", 1008),
        (user({"type": "image", "data": b64(b"no picture")}), "invalid_payload", 1008),
        (user({"type": "audio", "data": b64(b"\0\0\xc0\x7f" * 99)}), "invalid_payload", 1008),
        (user({"type": "video", "data": b64(b"no clip")}), "invalid_payload", 1008),
        ({**HELLO, "tts": {"ref_audio_data": quiet(70)}}, "invalid_payload", 1008),
        ({**HELLO, "tts": {"ref_audio_path": "/etc/passwd"}}, "invalid_payload", 1008),
        ({**HELLO, "tools": [{"function": {"name": "look"}}]}, "invalid_request", 1008),
        ({"messages": [{"role": "user", "content": "word " * 9000}]}, "context_full", 1008),
    ],
)
async def test_bad_input_is_answered_with_its_code_and_close_code(frame, code, close_code):
    async with worker_harness() as harness:
        talk = harness.begin("chat")
        talk.say(frame)

        assert await talk.over() == close_code
        assert talk.types == ["error"]
        error = talk.socket.sent[0]
        assert error["code"] == code
        assert error["error"] == error["message"] != ""
