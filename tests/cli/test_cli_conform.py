"""The conformance kit passes on this server, and notices what is wrong with another."""

import base64
import json
from typing import Any

import pytest
from tests.openai.talking_model import TalkingModel
from tests.support.stack import running_stack

from parley.cli import main
from parley.cli.conform import played, scenarios_of
from parley.cli.conform.player import STRUCTS, check_of, order_of
from parley.cli.conform.scenarios import DIALECTS, SCENARIOS
from parley.client.access import Access
from parley.dialects.registry import SHIPPED
from parley.errors import SetupError


def test_every_dialect_has_a_script_and_a_schema():
    assert set(DIALECTS) == {entry.name for entry in SHIPPED} == set(STRUCTS)


@pytest.mark.parametrize("dialect", ["chat half_duplex duplex realtime", "minicpmo_v2", "openai"])
async def test_this_server_speaks_as_published(dialect):
    names = [name for name in DIALECTS if name in dialect.split() or name.startswith(dialect)]
    model = TalkingModel(answer="one two three", word_s=0.01)

    async with running_stack(load_model=lambda: model) as running:
        access = Access(f"ws://127.0.0.1:{running.gateway.port}")
        found = [await played(access, scenario, 60.0) for scenario in scenarios_of(names)]

    assert {v.scenario.name: v.complaints for v in found if v.complaints} == {}
    assert len(found) == sum(scenario.dialect in names for scenario in SCENARIOS)
    assert all(result.events for result in found)


def test_an_unknown_dialect_is_refused():
    with pytest.raises(SetupError, match="no script for 'morse'"):
        scenarios_of(["morse"])


def test_a_server_that_is_not_there_is_a_failure(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["conform", "http://127.0.0.1:9", "--dialect", "chat"])

    told = capsys.readouterr()
    assert ended.value.code == 1
    assert "FAIL" not in told.out
    assert told.err.count("No connection to ws://127.0.0.1:9/ws/chat") == 1


DELTA: dict[str, Any] = {
    "type": "response.output_text.delta",
    "event_id": "e",
    "response_id": "r",
    "item_id": "i",
    "output_index": 0,
    "content_index": 0,
    "delta": "x",
}


@pytest.mark.parametrize(
    ("dialect", "event", "complaint"),
    [
        ("openai_realtime", DELTA | {"output_index": "0"}, "output_index"),
        ("openai_realtime", {"type": "response.delta"}, "not an event"),
        ("openai_live", {"type": "session.muted", "event_id": "e"}, "not an event"),
        ("chat", {"type": "chunk", "text": "x"}, "not its own: text"),
        ("chat", {"type": "hello"}, "no such event"),
        ("duplex", {"type": "result", "is_listen": "yes"}, "bool"),
    ],
)
def test_a_wrong_shape_is_noticed(dialect, event, complaint):
    check, _ = check_of(dialect)

    assert complaint in str(check(json.dumps(event)))


ITEM = {"id": "i", "type": "message"}
CREATED = {"type": "response.created", "response": {"id": "r"}}
ADDED = {"type": "response.output_item.added", "response_id": "r", "output_index": 0, "item": ITEM}
BEGUN = {"type": "session.created"}
LONG_SOUND = {
    "type": "session.output_audio.delta",
    "delta": base64.b64encode(bytes(2 * 24_001)).decode(),
    "start_ms": 0,
    "end_ms": 1000,
}
TWO_KINDS = {"type": "response.output.delta", "kind": "text", "text": "x", "audio": "AAAAAA=="}


@pytest.mark.parametrize(
    ("dialect", "events", "complaint"),
    [
        ("chat", [{"type": "chunk"}], "does not follow"),
        ("realtime", [{"type": "session.created"}], "does not follow"),
        ("duplex", [{"type": "queue_done"}, {"type": "result"}], "does not follow"),
        ("openai_realtime", [CREATED], "before session.created"),
        ("openai_realtime", [BEGUN, CREATED, DELTA], "not open"),
        ("openai_realtime", [BEGUN, CREATED, CREATED], "in progress"),
        (
            "openai_realtime",
            [BEGUN, CREATED, ADDED, {"type": "response.done", "response": {"id": "r"}}],
            "are open",
        ),
        ("openai_live", [{"type": "session.output_audio.delta"}], "before session.started"),
        (
            "openai_live",
            [{"type": "session.started"}, {"type": "session.closed"}, {"type": "error"}],
            "after session.closed",
        ),
        ("openai_live", [{"type": "session.started"}, LONG_SOUND], "longer than a second"),
        (
            "minicpmo_v2",
            [{"type": "session.queue_done"}, {"type": "session.created"}, TWO_KINDS],
            "kind 'text' has",
        ),
    ],
)
def test_a_wrong_order_is_noticed(dialect, events, complaint):
    order = order_of(dialect)

    told = [sentence for event in events for sentence in order.see(event)]

    assert [complaint in sentence for sentence in told] == [True], told
