"""Logs of sessions that an earlier build has written are continued as its clients expect.

If one is not, increase `LOG_VERSION`: workers then leave the logs of earlier builds alone, instead
of continuing a conversation that they remember differently. Record again with `python -m
tests.worker.test_recorded_logs`.
"""

import asyncio
import zlib
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.models.cascade.parts import small_cascade
from tests.support.resumed_talks import comparable
from tests.support.sessions import worker_harness
from tests.support.talking import Message
from tests.worker.test_rebuilding import (
    UNHURRIED,
    patient,
    plain,
    rebuilt_talk,
    wait_for_the_model,
    whole_talk,
)

from parley.session_log.contract import LOG_VERSION, LogContents

__all__ = ["patient"]

RECORDED = Path(__file__).parent / "recorded_logs"
DIALECTS = ("realtime", "openai_realtime")
"""One of units, one of turns."""


class Recorded(msgspec.Struct):
    """A log after half of a conversation, and all that the client heard in it."""

    log_version: int
    log: LogContents
    heard: list[Message]


def without_sound(value: Any) -> Any:
    """Processors differ in the last bit of samples."""
    if isinstance(value, dict):
        return {key: without_sound(each) for key, each in value.items()}
    if isinstance(value, list):
        return [without_sound(each) for each in value]
    return len(value) if isinstance(value, str) and len(value) > 500 else value


@pytest.mark.parametrize("name", DIALECTS)
async def test_a_log_of_an_earlier_build_is_continued_or_has_another_version(name: str) -> None:
    data = zlib.decompress((RECORDED / f"{name}.bin").read_bytes())
    recorded = msgspec.msgpack.decode(data, type=Recorded)

    async with worker_harness(
        slots=2, model=small_cascade(rows=2, takes_notes=False), **UNHURRIED
    ) as harness:
        heard = await rebuilt_talk(harness, name, 1, recorded.log, recorded.heard)

    assert recorded.log_version == LOG_VERSION
    whole = comparable(plain(recorded.heard))
    assert without_sound(comparable(plain(heard))) == without_sound(whole)


async def record(name: str) -> None:
    async with worker_harness(
        slots=2, model=small_cascade(rows=2, takes_notes=False), **UNHURRIED
    ) as harness:
        heard, logs = await whole_talk(harness, name)
    recorded = Recorded(LOG_VERSION, logs.taken[len(logs.taken) // 2], heard)
    data = zlib.compress(msgspec.msgpack.encode(recorded), 9)
    (RECORDED / f"{name}.bin").write_bytes(data)


if __name__ == "__main__":
    with pytest.MonkeyPatch.context() as patches:
        wait_for_the_model(patches)
        for each in DIALECTS:
            asyncio.run(record(each))
