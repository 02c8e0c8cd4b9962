"""The recorded conversations of the wire, read by the worker's dialects."""

import json
from typing import Any

import pytest
from tests.support.transcripts import Conversation, read_all

from parley.dialects.events import Failed
from parley.errors import ParleyError
from parley.protocol.kinds import Phase

PHASES: dict[str, Phase] = {
    "prefill_done": Phase.GENERATING,
    "prepared": Phase.ACTIVE,
    "session.created": Phase.ACTIVE,
    "generating": Phase.GENERATING,
    "turn_done": Phase.ACTIVE,
    "paused": Phase.PAUSED,
    "resumed": Phase.ACTIVE,
}
"""Where a server's message leaves the conversation."""


def sentence_of(message: dict[str, Any]) -> str:
    error = message["error"]
    return str(error["message"] if isinstance(error, dict) else error)


@pytest.mark.parametrize("talk", read_all(), ids=str)
def test_what_clients_said_is_understood_or_refused_as_recorded(talk: Conversation):
    dialect = talk.dialect
    phase = Phase.CONNECTED
    refused: list[str] = []
    for line in talk.lines:
        if line.sender == "server":
            assert line.message is not None
            phase = PHASES.get(line.message["type"], phase)
            continue
        try:
            dialect.decode(line.raw, phase)
        except ParleyError as error:
            frames = dialect.frames(dialect.encode(Failed(error)))
            refused += [sentence_of(json.loads(frame)) for frame in frames]

    recorded = [
        sentence_of(line.message)
        for line in talk.sent_by("server")
        if line.message is not None and line.message["type"] == "error"
    ]
    assert refused == [sentence for sentence in recorded if sentence not in NOT_THE_CLIENT]


NOT_THE_CLIENT = {
    "The model failed.",
    "The context is full.",
    "Cancelled",
    "Queue full (1000 requests)",
}
"""Errors of the model or the queue are recorded too, but no message of a client causes them."""
