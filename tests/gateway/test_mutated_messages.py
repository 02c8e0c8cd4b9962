"""Messages that are nearly right, in every dialect, against the whole server: whatever comes, the
server answers with an error or continues as usual. No session fails inside (1011), hangs or keeps
its slot, and the next client is served.

A failure names the seed of its conversation, and `FUZZ_SEED=… pytest …/test_mutated_messages.py`
runs that one alone.
"""

import asyncio
import contextlib
import json
import os
import random
import time
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Final

import pytest
import structlog
import websockets
from tests.support.gateways import all_free, until
from tests.support.long import IS_LONG
from tests.support.mutations import TALKS, Frame, Talk, mutated
from tests.support.patience import HANG_S
from tests.support.stack import RunningStack, running_stack
from websockets.asyncio.client import ClientConnection, connect

from parley.protocol import (
    chat,
    duplex,
    half_duplex,
    legacy,
    minicpmo_v2,
    openai_live,
    openai_realtime,
    realtime,
    resume,
)

pytestmark = pytest.mark.slow

TRIED: Final = 120
"""Talks of a usual run, always the same ones."""
LONG_S: Final = 240.0
"""The long form tries others each time, for so long."""
AT_ONCE: Final = 6
SLOTS: Final = 4
"""Fewer than clients, so that some of them wait for a place."""
CLOSES: Final = frozenset({1000, 1003, 1007, 1008, 1009, resume.REFUSED_CODE})
READY_S: Final = 2.0
PAUSE_S: Final = 0.05
"""So long a patient client waits for an answer, which not every message has."""
GUARD_S: Final = 0.5
"""What is said in the first half second of half-duplex is not heard."""
PROBE: Final = "no_such_message"

MODULES: Final[dict[str, tuple[ModuleType, ...]]] = {
    "chat": (chat, legacy),
    "half_duplex": (half_duplex, legacy),
    "duplex": (duplex, legacy),
    "realtime": (realtime, legacy),
    "minicpmo_v2": (minicpmo_v2, realtime),
    "openai_realtime": (openai_realtime,),
    "openai_live": (openai_live,),
    "resume": (duplex, legacy),
}


def told_by(dialect: str) -> frozenset[str]:
    """Types of all messages that a server may send in a dialect."""
    names: set[str] = set()
    # `/v1/realtime` settles on a dialect by the first message, which may have been changed.
    settling = ("realtime", "minicpmo_v2", "openai_realtime")
    near = settling if dialect in settling else (dialect,)
    for module in {resume, *(each for name in near for each in MODULES[name])}:
        for value in vars(module).values():
            tag = getattr(getattr(value, "__struct_config__", None), "tag", None)
            if isinstance(tag, str):
                names.add(tag)
    return frozenset(names)


@dataclass
class Seen:
    """What all conversations of a run came to."""

    talks: int = 0
    errors: int = 0
    answers: int = 0
    closes: dict[int, int] = field(default_factory=dict)


class Client:
    """One conversation from connecting to the close."""

    def __init__(
        self,
        talk: Talk,
        frames: list[Frame],
        number: int = 0,
        *,
        waits: bool = True,
        is_patient: bool = True,
        extensions: bool = True,
        until_answered: bool = False,
    ) -> None:
        """`waits`: for what comes before its first message; `is_patient`: a moment for each answer;
        `until_answered`: for one of `ANSWERS`, however long it takes, before it ends."""
        self._talk, self._waits, self._is_patient = talk, waits, is_patient
        self._extensions, self._until_answered = extensions, until_answered
        self.path = talk.connect.format(number)
        self.frames = frames
        self.types: list[str] = []
        self.errors: list[str] = []
        self.close_code: int | None = None
        self._told = told_by(talk.dialect)
        self._started = asyncio.Event()
        self._ready = asyncio.Event()
        self._spoken = asyncio.Event()
        self._probed = asyncio.Event()
        self._answered = asyncio.Event()

    async def run(self, server: RunningStack) -> None:
        url = server.ws(self.path, extensions=self._extensions)
        async with connect(url, max_size=None, close_timeout=HANG_S, open_timeout=HANG_S) as socket:
            hearing = asyncio.create_task(self._hear(socket))
            with contextlib.suppress(websockets.ConnectionClosed):
                await self._say(socket)
            await hearing
            self.close_code = socket.close_code
        young = {1012} if self._talk.dialect == "resume" else set()
        assert self.close_code in CLOSES | young, (self.close_code, socket.close_reason)

    async def _say(self, socket: ClientConnection) -> None:
        if self._talk.waits_for and self._waits:
            await self._started.wait()
        for index, frame in enumerate(self.frames):
            self._spoken.clear()
            if self._until_answered and json.loads(frame).get("type", "") == self._talk.ends:
                await self._answered.wait()
            await socket.send(frame)
            if self._is_patient:
                is_first = index == 0 and self._talk.ready
                event, limit_s = (self._ready, READY_S) if is_first else (self._spoken, PAUSE_S)
                await self._pause(event, limit_s)
                if index == 0 and self._talk.dialect == "half_duplex":
                    await asyncio.sleep(GUARD_S)
        if self._until_answered:
            await self._answered.wait()
        if self._talk.dialect in ("chat", "resume"):
            # One request, one answer, and a close. Who has not made one says no more than this.
            await self._pause(self._spoken, PAUSE_S)
            if not self.types:
                await socket.send("{")
            return
        if self._talk.ends is not None:
            await socket.send(json.dumps({"type": self._talk.ends}))
        await socket.send(json.dumps({"type": PROBE}))
        if self._talk.ends is None:
            await self._probed.wait()
            await socket.close()

    async def _pause(self, event: asyncio.Event, limit_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(event.wait(), limit_s)

    async def _hear(self, socket: ClientConnection) -> None:
        with contextlib.suppress(websockets.ConnectionClosed):
            while True:
                text = str(await socket.recv())
                message: dict[str, Any] = json.loads(text)
                assert message["type"] in self._told, text
                self.types.append(message["type"])
                if message["type"] == self._talk.waits_for:
                    self._started.set()
                if message["type"] in ANSWERS:
                    self._answered.set()
                if message["type"] in (self._talk.ready, "error"):
                    self._ready.set()
                if PROBE in text:
                    self._probed.set()
                elif message["type"] == "error":
                    self.errors.append(text)
                self._spoken.set()
        for event in (self._started, self._ready, self._spoken, self._probed, self._answered):
            event.set()


async def one(server: RunningStack, seed: int, seen: Seen) -> None:
    """The conversation of one seed. Its failure says which it was."""
    dice = random.Random(seed)
    talk = dice.choice(TALKS)
    client = Client(
        talk,
        mutated(talk, dice),
        seed,
        waits=dice.random() < 0.8,
        is_patient=dice.random() < 0.6,
        extensions=dice.random() < 0.5,
    )
    try:
        async with asyncio.timeout(HANG_S):
            await client.run(server)
    except (AssertionError, TimeoutError, OSError, ValueError, KeyError) as problem:
        shown = "\n".join(f"  {str(frame)[:800]}" for frame in client.frames)
        raise AssertionError(
            f"FUZZ_SEED={seed} ({client.path}): {problem!r}\nheard {client.types}, sent\n{shown}"
        ) from problem
    seen.talks += 1
    seen.errors += "error" in client.types or "session.resume_failed" in client.types
    seen.answers += bool(set(client.types) & ANSWERS)
    code = client.close_code or 0
    seen.closes[code] = seen.closes.get(code, 0) + 1


WRONG_IN: Final = {"openai_realtime": 4}
"""Right messages that may come at a wrong time: nothing to commit, to cancel or to truncate, and an
answer that has not ended when the next one is asked for."""
ANSWERS: Final = frozenset(
    {
        *("result", "generating", "done", "response.listen", "response.output_audio.delta"),
        *("response.output.delta", "response.done", "session.input_audio.muted"),
    }
)


def seeds() -> list[int]:
    if asked := os.environ.get("FUZZ_SEED"):
        return [int(asked)]
    first = random.SystemRandom().randrange(10**9) if IS_LONG else 1
    return list(range(first, first + (100_000 if IS_LONG else TRIED)))


@pytest.mark.parametrize("talk", TALKS[:-1], ids=lambda talk: talk.connect)
async def test_what_is_changed_is_right_before(talk: Talk) -> None:
    frames: list[Frame] = [json.dumps(message) for message in talk.says]
    async with running_stack(worker={"vad": "energy"}) as server:
        client = Client(talk, frames, until_answered=True)
        async with asyncio.timeout(HANG_S):
            await client.run(server)

    allowed = WRONG_IN.get(talk.dialect, 0)
    assert len(client.errors) <= allowed, client.errors
    assert set(client.types) & ANSWERS, client.types
    assert client.close_code == 1000


async def test_nearly_right_messages_break_nothing() -> None:
    limits = {
        "sessions_per_client": 100,
        "connections_per_client": 1000,
        "messages_per_s": 10_000,
        # A server that is younger says "try again" of sessions that it does not know.
        "resume_window_s": 1,
    }
    seen = Seen()
    async with running_stack(slots=SLOTS, worker={"vad": "energy"}, limits=limits) as server:
        (worker,) = server.workers
        host = worker.host
        assert host is not None
        with structlog.testing.capture_logs() as lines:
            until_s = time.monotonic() + LONG_S
            waiting = iter(seeds())

            async def client_after_client() -> None:
                for seed in waiting:
                    await one(server, seed, seen)
                    if time.monotonic() > until_s:
                        break

            async with asyncio.TaskGroup() as group:
                for _ in range(AT_ONCE):
                    group.create_task(client_after_client())
        await all_free(server)
        await until(lambda: host.state == "idle" and host.engine.free_slots == SLOTS)
        assert not host.broken.is_set()
        await until(lambda: server.runtime.links.budget.used_bytes == 0)

    failed = [line for line in lines if line["log_level"] in ("error", "critical")]
    assert not failed, failed[:3]
    if "FUZZ_SEED" in os.environ:
        return
    # Else nothing was tried.
    assert seen.talks >= 100, seen
    assert seen.errors >= seen.talks / 10, seen
    assert seen.answers >= seen.talks / 10, seen
    print(seen)
