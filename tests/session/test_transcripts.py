"""The recorded conversations of the wire, read by the worker's translators."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.transcripts import Conversation, read_all

from parley.clock import ManualClock
from parley.errors import ParleyError
from parley.session.events import Failed
from parley.session.life import Phase, Translator
from parley.session.translate.chat import ChatTranslator
from parley.session.translate.duplex import DuplexTranslator
from parley.session.translate.half_duplex import HalfDuplexTranslator
from parley.session.translate.realtime import RealtimeTranslator

PHASES: dict[str, Phase] = {
    "prefill_done": "generating",
    "prepared": "active",
    "session.created": "active",
    "generating": "generating",
    "turn_done": "active",
    "paused": "paused",
    "resumed": "active",
}
"""Where a server's message leaves the conversation."""


def translator(talk: Conversation) -> Translator:
    match talk.dialect.name:
        case "chat":
            return ChatTranslator()
        case "half_duplex":
            return HalfDuplexTranslator("demo")
        case "duplex":
            return DuplexTranslator("demo", clock=ManualClock())
        case "realtime":
            return RealtimeTranslator("rt_1", sees_video="mode=audio" not in talk.connect)


def code_of(message: dict[str, Any]) -> str:
    error = message["error"]
    return str(error["code"] if isinstance(error, dict) else message["code"])


@pytest.mark.parametrize("talk", read_all(), ids=str)
def test_what_clients_said_is_understood_or_refused_as_recorded(talk: Conversation):
    reader = translator(talk)
    phase: Phase = "connected"
    refused: list[str] = []
    for line in talk.lines:
        if line.sender == "server":
            assert line.message is not None
            phase = PHASES.get(line.message["type"], phase)
            continue
        try:
            reader.read(line.raw, phase)
        except ParleyError as error:
            outgoing = reader.write(Failed(error))
            refused += [error.code] if outgoing.frames else []

    recorded = [
        code_of(line.message)
        for line in talk.sent_by("server")
        if line.message is not None and line.message["type"] == "error"
    ]
    # Errors of the model or the queue are recorded too, but no message of a client causes them.
    assert refused == [code for code in recorded if code in refused or code in CLIENT_CODES]


CLIENT_CODES = {
    "invalid_json",
    "invalid_request",
    "invalid_config",
    "missing_field",
    "unknown_event",
    "invalid_event",
    "not_ready",
    "not_prepared",
    "already_prepared",
}
