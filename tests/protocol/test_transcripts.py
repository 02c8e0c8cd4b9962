"""Recorded conversations against the protocol: what clients send is read, what goes wrong is
answered in the recorded words and with the recorded close code, and what servers send survives
decoding and encoding unchanged."""

import json
from typing import Any

import msgspec
import pytest
from tests.support.dialects import NAMES, decode_client, decode_server
from tests.support.transcripts import Conversation, Line, read_all

from parley.dialects.base import Dialect, Reply
from parley.errors import BadInput
from parley.protocol import chat, codec, duplex, half_duplex, realtime
from parley.protocol.kinds import Phase

TALKS = read_all()

PHASE_AFTER: dict[str, str] = {
    "queued": "queued",
    "session.queued": "queued",
    "queue_done": "connected",
    "session.queue_done": "connected",
    "prepared": "active",
    "session.created": "active",
    "generating": "generating",
    "turn_done": "active",
    "paused": "paused",
    "resumed": "active",
}
FROM_THE_SERVER_ALONE = {
    "The model failed.",
    "The context is full.",
    "Cancelled",
    "Queue full (1000 requests)",
}


def first_phase(dialect: Dialect) -> Phase:
    return Phase.CONNECTED if dialect.name == "chat" else Phase.QUEUED


def phase_after(phase: Phase, dialect: Dialect, type_name: str) -> Phase:
    if dialect.name == "chat":
        return {"prefill_done": Phase.GENERATING, "queued": Phase.QUEUED}.get(type_name, phase)
    return Phase(PHASE_AFTER.get(type_name, phase))


def react(dialect: Dialect, phase: Phase, line: Line) -> Reply | None:
    """What the protocol answers to a client's frame; None when it is fine."""
    try:
        dialect.decode(line.raw, phase)
    except BadInput as error:
        return dialect.answer(error)
    return None


@pytest.mark.parametrize("talk", TALKS, ids=str)
def test_client_mistakes_are_answered_in_the_recorded_words(talk: Conversation) -> None:
    dialect = talk.dialect
    phase = first_phase(dialect)

    for index, line in enumerate(talk.lines):
        if line.sender == "server":
            assert line.message is not None
            phase = phase_after(phase, dialect, line.message["type"])
            continue
        following = [each.message for each in talk.lines[index + 1 :] if each.sender == "server"]
        answer = react(dialect, phase, line)
        is_last = not any(each.sender == "client" for each in talk.lines[index + 1 :])
        if answer is None:
            expected = following[0] if following else None
            if expected is not None and expected["type"] == "error":
                assert sentence_of(expected) in FROM_THE_SERVER_ALONE
            continue
        recorded = following[: len(answer.messages)]
        assert [json.loads(frame) for frame in dialect.frames(answer)] == recorded
        assert answer.close_code == (talk.close_code if is_last else None)


def sentence_of(message: dict[str, Any]) -> str:
    inner = message["error"]
    return str(inner["message"] if isinstance(inner, dict) else inner)


@pytest.mark.parametrize("talk", TALKS, ids=str)
def test_server_messages_survive_decoding_and_encoding(talk: Conversation) -> None:
    for line in talk.sent_by("server"):
        message = decode_server(talk.dialect, line.raw)
        frame = talk.dialect.frame(message)

        assert frame is not None
        assert json.loads(frame) == line.message


@pytest.mark.parametrize("talk", TALKS, ids=str)
def test_what_a_client_sends_reads_the_same_after_canonical_encoding(talk: Conversation) -> None:
    for line in talk.sent_by("client"):
        try:
            message = decode_client(talk.dialect, line.raw)
        except BadInput:
            continue

        assert decode_client(talk.dialect, codec.encode(message)) == message


def test_the_transcripts_show_every_message_type() -> None:
    shown = {
        (talk.dialect.name, line.message["type"])
        for talk in TALKS
        for line in talk.sent_by("server")
        if line.message
    }
    for name in NAMES:
        module = {"chat": chat, "half_duplex": half_duplex, "duplex": duplex}.get(name, realtime)
        for struct in msgspec.inspect.type_info(module.ServerMessage).types:  # type: ignore[attr-defined]
            tag = struct.tag
            if (name, tag) in {("chat", "stopped"), ("duplex", "interrupted")}:
                continue  # Rare words: a chat cancelled while waiting, a deprecated answer.
            if tag.endswith("recording_lost"):
                continue  # Shown by tests/system/test_full_disk.py.
            if tag.startswith("queue"):
                assert any(shown_tag == tag for _, shown_tag in shown)
            else:
                assert (name, tag) in shown
