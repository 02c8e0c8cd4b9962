"""A worker's host on a parrot, with fake sockets as clients: whole sessions in one process."""

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from tests.support.dialects import DialectName
from tests.support.faults import Faulty, Gated
from tests.support.patience import HANG_S, until
from tests.support.sockets import FakeSocket
from tests.support.talking import pcm16
from tests.support.timeline import chunks, silence, sound, speak

from parley.clock import Clock, ManualClock, SystemClock
from parley.engine.engine import Engine
from parley.engine.model import Model
from parley.errors import Refused
from parley.media.pcm import INPUT_RATE_HZ, Pcm
from parley.media.resample import resample
from parley.models.parrot import Parrot
from parley.protocol.control import BUSY_STATUS, FromWorker, Hello, SessionPhase
from parley.protocol.kinds import Kind
from parley.recording.recorder import Recordings
from parley.session.session import Session
from parley.settings import LimitSettings
from parley.turns import NO_JUDGES, TurnJudges
from parley.vad import DetectorFactory
from parley.vad.energy import EnergyDetector
from parley.views.half_duplex import HalfDuplexView
from parley.worker.host import Host
from parley.worker.lease import LeasedSlot

KINDS: dict[str, Kind] = {
    "chat": Kind.CHAT,
    "half_duplex": Kind.HALF_DUPLEX,
    "duplex": Kind.OMNI_DUPLEX,
    "realtime": Kind.OMNI_DUPLEX,
    "openai_live": Kind.OMNI_DUPLEX,
    "openai_realtime": Kind.HALF_DUPLEX,
}

IDENTITY = Hello("w", "ws://127.0.0.1:1", 1, "parrot", "cpu", "0", 1)


@dataclass
class Talk:
    """One client of a server."""

    socket: FakeSocket
    task: asyncio.Task[None]
    lease: LeasedSlot

    def say(self, message: dict[str, Any] | str | bytes) -> None:
        self.socket.say(message)

    async def until(self, type_name: str, count: int = 1) -> dict[str, Any]:
        return await self.socket.until(type_name, count)

    async def drained(self) -> None:
        """Wait until the session has handled all messages."""
        await until(lambda: self.socket.is_drained)

    async def over(self) -> int | None:
        """Wait until the session's slot has been returned; returns the close code."""
        async with asyncio.timeout(HANG_S):
            await self.task
        return self.socket.close_code

    @property
    def types(self) -> list[str]:
        return self.socket.types

    async def unit(self, message: dict[str, Any]) -> bool:
        """Send a unit and wait for its result; returns False if the connection is closed
        instead."""
        before = self._results
        self.say(message)
        await until(lambda: self._results > before or self.socket.closed is not None)
        return self.socket.closed is None

    @property
    def _results(self) -> int:
        """Number of messages about units."""
        results = {"result", "response.listen", "response.output_audio.delta"}
        return sum(map(results.__contains__, self.types))


@dataclass
class WorkerHarness:
    """A worker without a network."""

    host: Host
    engine: Engine
    gate: Gated
    faults: Faulty
    reports: list[FromWorker]
    _talks: list[Talk] = field(default_factory=list)

    def begin(
        self,
        dialect: str,
        session_id: str = "session",
        *,
        kind: str | None = None,
        queue_wait_ms: float = 0.0,
        extensions: bool = True,
    ) -> Talk:
        socket = FakeSocket()
        lease = LeasedSlot(
            lease_id=f"lease-{len(self._talks)}",
            session_id=session_id,
            dialect=dialect,
            kind=KINDS[dialect] if kind is None else Kind(kind),
            queue_wait_ms=queue_wait_ms,
            extensions=extensions,
        )
        talk = Talk(socket, asyncio.create_task(self._serve(lease, socket)), lease)
        self._talks.append(talk)
        return talk

    async def _serve(self, lease: LeasedSlot, socket: FakeSocket) -> None:
        """Admit and serve a lease as the worker's application does."""
        try:
            slot = await self.host.admit(lease)
        except Refused as error:
            await socket.close(BUSY_STATUS, error.code)
            return
        await self.host.hold(lease, slot, socket)

    async def ready(self, dialect: DialectName, session_id: str = "session", **more: Any) -> Talk:
        """Start a live conversation and prepare it."""
        kind = more.pop("kind", None)
        talk = self.begin(
            dialect, session_id, kind=kind, extensions=more.pop("asks_for_extensions", True)
        )
        if dialect == "realtime":
            more.setdefault("instructions", "Be kind.")
            talk.say({"type": "session.update", "session": more})
            await talk.until("session.created")
        else:
            talk.say({"type": "prepare", **more})
            await talk.until("prepared")
        return talk

    def phases(self, talk: Talk) -> list[str]:
        return [
            report.phase
            for report in self.reports
            if isinstance(report, SessionPhase) and report.lease_id == talk.lease.lease_id
        ]

    async def pass_time(self, seconds: float, *, due: str) -> None:
        """Wait until a session has set the deadline `due`, then advance the clock and check
        deadlines."""
        assert isinstance(self.host.clock, ManualClock)
        await until(lambda: any(session.deadlines.get(due) for session in self._lives()))
        self.host.clock.advance(seconds)
        for session in self._lives():
            session.check_deadlines()

    def _lives(self) -> list[Session]:
        return [held.session for held in self.host._held.values() if held.session is not None]

    async def close(self) -> None:
        self.gate.open()
        for talk in self._talks:
            talk.socket.hang_up()
            talk.socket.reads.set()
        async with asyncio.timeout(HANG_S):
            await asyncio.gather(*(talk.task for talk in self._talks))


@contextlib.asynccontextmanager
async def worker_harness(
    *,
    slots: int = 1,
    context_tokens: int = 8192,
    clock: Clock | None = None,
    detectors: DetectorFactory = EnergyDetector,
    judges: TurnJudges = NO_JUDGES,
    guard_s: float = 0.0,
    cleanup_limit_s: float = 10.0,
    recordings: Recordings | None = None,
    model: Model | None = None,
    **limits: Any,
) -> AsyncIterator[WorkerHarness]:
    """A warm worker; on exit, all its slots must be free again.

    Args:
        model: with as many rows as `slots`; None: the parrot.
    """
    tasks_before = _other_tasks()
    faults = Faulty(model or Parrot(slots, context_limit_tokens=context_tokens))
    gate = Gated(faults)
    reports: list[FromWorker] = []
    async with Engine(gate) as engine:
        host = Host(
            engine,
            IDENTITY,
            clock or SystemClock(),
            LimitSettings(**limits),
            detectors,
            judges,
            guard_s=guard_s,
            cleanup_limit_s=cleanup_limit_s,
            report=reports.append,
            recordings=recordings,
            is_ready=True,
        )
        built = WorkerHarness(host, engine, gate, faults, reports)
        try:
            yield built
            await built.close()
            if not host.broken.is_set():
                assert engine.free_slots == slots
                assert host.state == "idle"
        finally:
            gate.open()
    assert _other_tasks() == tasks_before


def _other_tasks() -> set[asyncio.Task[Any]]:
    return {task for task in asyncio.all_tasks() if task is not asyncio.current_task()}


def pcm64(pcm: Pcm) -> str:
    return base64.b64encode(pcm.samples.astype("<f4").tobytes()).decode()


def feed(talk: Talk, pcm: Pcm, chunk_s: float = 0.1) -> None:
    """Send audio in the talk's dialect."""
    if talk.lease.dialect == "openai_realtime":
        # Cut after resampling: pieces that are resampled one by one would click.
        for chunk in chunks(resample(pcm, 24_000), chunk_s):
            talk.say({"type": "input_audio_buffer.append", "audio": pcm16(chunk)})
        return
    for chunk in chunks(pcm, chunk_s):
        talk.say({"type": "audio_chunk", "audio_base64": pcm64(chunk)})


async def feed_in_time(talk: Talk, pcm: Pcm) -> None:
    """Send audio with pauses, as in real time, so that early work starts between two chunks."""
    for chunk in chunks(pcm, 0.1):
        feed(talk, chunk)
        await asyncio.sleep(0.02)


def stranger(seconds: float) -> Pcm:
    """A voice as loud as the user's that differs from the parrot's, which repeats the user's."""
    samples = 0.3 * np.random.default_rng(1).standard_normal(round(seconds * INPUT_RATE_HZ))
    return Pcm(samples.astype(np.float32), INPUT_RATE_HZ)


def heard(text: str) -> Pcm:
    """Audio from its encoding in a message."""
    return Pcm(np.frombuffer(base64.b64decode(text), "<f4").astype(np.float32), 24_000)


def loud(seconds: float = 1.0) -> str:
    return pcm64(sound(speak(seconds)))


def quiet(seconds: float = 1.0) -> str:
    return pcm64(sound(silence(seconds)))


def speak_whole_clauses(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """The model's words come with all of their sound, as of a voice that speaks whole clauses."""
    generate = HalfDuplexView.generate

    async def whole(view, *args, **more):
        async for chunk in generate(view, *args, **more):
            audio = None if chunk.audio is None else Pcm.silence(round(24_000 * seconds), 24_000)
            yield replace(chunk, audio=audio)

    monkeypatch.setattr(HalfDuplexView, "generate", whole)
