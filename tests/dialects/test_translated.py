"""Every valid message of a client as the events that it becomes, and every event as the messages
that it becomes, in each dialect: the files in `tests/transcripts/translated`.

After an intended change: `python -m tests.dialects.test_translated`, and read the difference.
"""

import dataclasses
import itertools
import json
import secrets
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any, Final, get_args
from unittest.mock import patch
from urllib.parse import parse_qsl

import msgspec
import pytest
from tests.contracts.dialect import REASONS, SERVER_EVENTS
from tests.support.mutations import TALKS, Talk

from parley.clock import ManualClock
from parley.dialects.base import Dialect, Reply, SessionContext, UpgradeRequest
from parley.dialects.events import SessionEnded
from parley.dialects.registry import installed
from parley.errors import (
    InferenceFailed,
    InvalidPayload,
    ParleyError,
    QueueFull,
    ServiceUnavailable,
    WorkerLost,
)
from parley.media.pcm import Pcm
from parley.protocol.control import Ability
from parley.protocol.kinds import Phase
from parley.protocol.values import QueuePlace

FOLDER: Final = Path(__file__).parents[1] / "transcripts" / "translated"
DIALECTS: Final = sorted({talk.dialect for talk in TALKS} - {"resume"})
FAILURES: Final = (QueueFull(1), ServiceUnavailable(), InvalidPayload("x."), WorkerLost())
LONG: Final = 64
"""Longer texts are media, of which only the length is shown."""


def shown(value: Any) -> Any:
    """A value as JSON, without what is empty."""
    match value:
        case Pcm(samples, rate_hz):
            return f"{len(samples)} samples at {rate_hz} Hz up to {abs(samples).max(initial=0):.2f}"
        case bytes():
            return "bytes"
        case Enum():
            return value.value
        case str():
            is_media = len(value) > LONG and " " not in value
            return f"{len(value)} characters" if is_media else value
        case dict():
            return {key: shown(each) for key, each in value.items()}
        case list() | tuple():
            return [shown(each) for each in value]
        case frozenset():
            return sorted(map(str, value))
        case ParleyError():
            return {type(value).__name__: str(value), "event_id": value.client_event_id}
        case msgspec.Struct():
            fields = {name: getattr(value, name) for name in value.__struct_fields__}
        case _ if dataclasses.is_dataclass(value):
            fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        case float():
            return round(value, 6)
        case _:
            return value if isinstance(value, int | None) else type(value).__name__
    told = {key: shown(each) for key, each in fields.items() if each not in (None, (), {}, "")}
    return {type(value).__name__: told}


def line(sign: str, what: Any) -> str:
    return f"{sign} {json.dumps(what, ensure_ascii=False)}"


def replied(dialect: Dialect, reply: Reply) -> Iterator[str]:
    for frame in dialect.frames(reply):
        yield line("<", shown(json.loads(frame)))
    if reply.close_code is not None:
        yield line("close", [reply.close_code, reply.reason])
    if reply.sound_ms or reply.offers_resume:
        yield line("with", [reply.sound_ms, reply.offers_resume])


def opened(talk: Talk, *, extensions: bool) -> Dialect:
    path, _, query = talk.connect.partition("?")
    path = path.replace("adx_fuzz{}", "{session_id}")
    route = next(each for each in installed().paths if path.startswith(each.partition("{")[0]))
    asked = UpgradeRequest(route, session_id="omni_1", query=dict(parse_qsl(query)))
    provisional = installed().choose(asked)
    context = SessionContext(
        "omni_1",
        provisional.kind_of(asked),
        extensions=extensions,
        abilities=frozenset(get_args(Ability)),
        clock=ManualClock(),
        limit_s=3600.0,
    )
    return installed().settle(provisional(context), json.dumps(talk.says[0]))


def client_lines(dialect: Dialect, talk: Talk) -> Iterator[str]:
    for message in talk.says:
        type_name = message.get("type", "")
        yield f"> {type_name}"
        phase = next(
            (each for each in Phase if type_name in dialect.accepts.get(each, ())), Phase.ACTIVE
        )
        try:
            found = dialect.events(dialect.decode(json.dumps(message), phase), phase)
        except ParleyError as error:
            yield from replied(dialect, dialect.answer(error))
            continue
        for each in found:
            if isinstance(each, Reply):
                yield from replied(dialect, each)
            else:
                yield line("=", shown(each))


def server_lines(dialect: Dialect) -> Iterator[str]:
    place = QueuePlace(2, 1.5, "q_1", 3)
    waiting = dialect.queued(place), dialect.queue_update(place), dialect.queue_done()
    yield from replied(dialect, dialect.greet())
    yield from replied(dialect, Reply(tuple(each for each in waiting if each is not None)))
    for event in SERVER_EVENTS:
        yield f"= {type(event).__name__}"
        yield from replied(dialect, dialect.encode(event))


def end_lines(talk: Talk) -> Iterator[str]:
    for reason, error in itertools.product(REASONS, (None, InferenceFailed(error_id="e"))):
        yield f"= {reason}{' of an error' if error else ''}"
        dialect = opened(talk, extensions=True)
        yield from replied(dialect, dialect.encode(SessionEnded(reason, error, elapsed_s=2.5)))
    for failure in FAILURES:
        yield f"= {type(failure).__name__}"
        dialect = opened(talk, extensions=True)
        yield line("status", dialect.refuse_upgrade(failure))
        for answered in (dialect.refuse, dialect.answer, dialect.shutting_down):
            yield from replied(dialect, answered(failure))
    yield "= cancelled"
    yield from replied(dialect, opened(talk, extensions=True).cancelled())


def translated(name: str) -> str:
    """Everything in one dialect, with numbers in place of random ids."""
    numbers = itertools.count(1)
    found: list[str] = []
    with patch.object(secrets, "token_hex", lambda _=None: f"{next(numbers)}"):
        for talk in (each for each in TALKS if each.dialect == name):
            for extensions in (True, False):
                dialect = opened(talk, extensions=extensions)
                found.append(f"\n{talk.connect}{', extensions' if extensions else ''}\n")
                found += client_lines(dialect, talk) if extensions else ()
                found += server_lines(dialect)
        found.append("\nits ends\n")
        found += end_lines(talk)
    return "\n".join(found).lstrip() + "\n"


@pytest.mark.parametrize("name", DIALECTS)
def test_messages_and_events_are_translated_as_before(name: str) -> None:
    expected = (FOLDER / f"{name}.txt").read_text(encoding="utf-8")

    assert translated(name).splitlines() == expected.splitlines()


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name in DIALECTS:
        (FOLDER / f"{name}.txt").write_text(translated(name), encoding="utf-8")
