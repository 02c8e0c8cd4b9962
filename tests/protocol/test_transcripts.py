"""Recorded conversations against the protocol: what clients send is read, what goes wrong is
answered in the recorded words and with the recorded close code, and what servers send survives
decoding and encoding unchanged."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from tests.support.transcripts import Conversation, Line, read_all

from parley.errors import BadInput
from parley.protocol import chat, codec, duplex, half_duplex, realtime
from parley.protocol.dialects import DIALECTS, Dialect
from parley.protocol.values import Answer, ImagePart

TALKS = read_all()

PHASE_AFTER: dict[str, Any] = {
    "queued": "queued",
    "session.queued": "queued",
    "queue_done": "connected",
    "session.queue_done": "connected",
    "prepared": {"half_duplex": "listening", "duplex": "active"},
    "session.created": "active",
    "generating": "generating",
    "turn_done": "listening",
    "paused": "paused",
    "resumed": "active",
}
FROM_THE_SERVER_ALONE = {"inference_error", "context_full", "cancelled", "queue_full"}


def first_phase(dialect: Dialect) -> str:
    return "opened" if dialect.name == "chat" else "queued"


def phase_after(phase: str, dialect: Dialect, type_name: str) -> str:
    if dialect.name == "chat":
        return {"prefill_done": "generating", "queued": "waiting"}.get(type_name, phase)
    after = PHASE_AFTER.get(type_name, phase)
    return str(after[dialect.name] if isinstance(after, dict) else after)


def open_payloads(message: Any) -> None:
    """Decode what a session would decode."""
    match message:
        case half_duplex.AudioChunk():
            message.audio_bytes()
        case duplex.AudioChunk() | realtime.Append():
            message.audio_bytes()
            message.frame_bytes()
        case duplex.VideoFrame():
            message.frame_bytes()
        case half_duplex.Prepare() | duplex.Prepare():
            message.voice_bytes()
        case realtime.SessionUpdate(session=session):
            session.tts_voice_bytes()
        case chat.Request():
            for each in message.messages:
                for part in each.parts:
                    if isinstance(part, ImagePart):
                        part.file_bytes()
        case _:
            pass


def react(dialect: Dialect, phase: str, line: Line) -> Answer | None:
    """What the protocol answers to a client's frame; None when it is fine."""
    try:
        message = dialect.decode_client(line.raw)
        name = message.__struct_config__.tag or "request"
        dialect.check(phase, name)
        open_payloads(message)
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
                assert code_of(expected) in FROM_THE_SERVER_ALONE
            continue
        recorded = following[: len(answer.messages)]
        assert [json.loads(frame) for frame in answer.frames()] == recorded
        assert answer.close_code == (talk.close_code if is_last else None)


def code_of(message: dict[str, Any]) -> str:
    inner = message["error"]
    return str(inner["code"] if isinstance(inner, dict) else message["code"])


@pytest.mark.parametrize("talk", TALKS, ids=str)
def test_server_messages_survive_decoding_and_encoding(talk: Conversation) -> None:
    for line in talk.sent_by("server"):
        message = talk.dialect.decode_server(line.raw)

        assert json.loads(codec.encode(message)) == line.message


@pytest.mark.parametrize("talk", TALKS, ids=str)
def test_what_a_client_sends_reads_the_same_after_canonical_encoding(talk: Conversation) -> None:
    for line in talk.sent_by("client"):
        try:
            message = talk.dialect.decode_client(line.raw)
        except BadInput:
            continue

        assert talk.dialect.decode_client(codec.encode(message)) == message


def test_the_transcripts_show_every_message_type() -> None:
    shown = {
        (talk.dialect.name, line.message["type"])
        for talk in TALKS
        for line in talk.sent_by("server")
        if line.message
    }
    for name in DIALECTS:
        module = {"chat": chat, "half_duplex": half_duplex, "duplex": duplex}.get(name, realtime)
        for struct in msgspec.inspect.type_info(module.ServerMessage).types:  # type: ignore[attr-defined]
            tag = struct.tag
            if (name, tag) in {("chat", "stopped"), ("duplex", "interrupted")}:
                continue  # Rare words: a chat cancelled while waiting, a deprecated answer.
            if tag.startswith("queue"):
                assert any(shown_tag == tag for _, shown_tag in shown)
            else:
                assert (name, tag) in shown
