"""A worker's host on a parrot, with clients that are fake sockets: whole sessions, one process."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from tests.support.faults import Faulty, Gated
from tests.support.sockets import FakeSocket
from tests.support.timeline import silence, sound, speak

from parley.clock import Clock, ManualClock, SystemClock
from parley.engine.seat import Engine
from parley.media.pcm import Pcm
from parley.models.parrot import Parrot
from parley.protocol.control import FromWorker, SessionPhase, TaskType
from parley.protocol.dialects import DialectName
from parley.session.life import Life
from parley.settings import LimitSettings
from parley.vad import DetectorFactory
from parley.vad.energy import EnergyDetector
from parley.worker.host import Host, Identity, Lease
from parley.worker.recording import Recordings

TASKS: dict[DialectName, TaskType] = {
    "chat": "chat",
    "half_duplex": "half_duplex_audio",
    "duplex": "omni_duplex",
    "realtime": "omni_duplex",
}

IDENTITY = Identity(worker_id="w", url="ws://127.0.0.1:1", version="0", pid=1)


@dataclass
class Talk:
    """One client of a house."""

    socket: FakeSocket
    task: asyncio.Task[None]
    lease: Lease

    def say(self, message: dict[str, Any] | str | bytes) -> None:
        self.socket.say(message)

    async def until(self, type_name: str, count: int = 1) -> dict[str, Any]:
        return await self.socket.until(type_name, count)

    async def over(self) -> int | None:
        """Until the session has been given back; the close code."""
        async with asyncio.timeout(20):
            await self.task
        return self.socket.close_code

    @property
    def types(self) -> list[str]:
        return self.socket.types


@dataclass
class House:
    """A worker without a network."""

    host: Host
    engine: Engine
    gate: Gated
    faults: Faulty
    reports: list[FromWorker]
    _talks: list[Talk] = field(default_factory=list)

    def begin(
        self,
        dialect: DialectName,
        session_id: str = "session",
        *,
        task: TaskType | None = None,
        accepted_s: float | None = None,
    ) -> Talk:
        socket = FakeSocket()
        lease = Lease(
            lease_id=f"lease-{len(self._talks)}",
            session_id=session_id,
            dialect=dialect,
            task=task or TASKS[dialect],
            accepted_s=accepted_s,
        )
        talk = Talk(socket, asyncio.create_task(self.host.hold(lease, socket)), lease)
        self._talks.append(talk)
        return talk

    async def ready(self, dialect: DialectName, session_id: str = "session", **more: Any) -> Talk:
        """A live conversation that is prepared."""
        task = more.pop("task", None)
        talk = self.begin(dialect, session_id, task=task)
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
        """Move the clock once some session has set the deadline `due`, and let it be noticed."""
        assert isinstance(self.host.clock, ManualClock)
        async with asyncio.timeout(10):
            while not any(life.deadlines.get(due) for life in self._lives()):  # noqa: ASYNC110
                await asyncio.sleep(0)
        self.host.clock.advance(seconds)
        for life in self._lives():
            life.check_deadlines()

    def _lives(self) -> list[Life]:
        return [held.life for held in self.host._held.values() if held.life is not None]

    async def close(self) -> None:
        self.gate.open()
        for talk in self._talks:
            talk.socket.hang_up()
            talk.socket.reads.set()
        async with asyncio.timeout(20):
            await asyncio.gather(*(talk.task for talk in self._talks))


@contextlib.asynccontextmanager
async def house(
    *,
    slots: int = 1,
    context_tokens: int = 8192,
    clock: Clock | None = None,
    detectors: DetectorFactory = EnergyDetector,
    guard_s: float = 0.0,
    cleanup_limit_s: float = 10.0,
    recordings: Recordings | None = None,
    **limits: Any,
) -> AsyncIterator[House]:
    """A warm worker; on leaving, everything it held must be free again."""
    tasks_before = _other_tasks()
    faults = Faulty(Parrot(slots, context_limit_tokens=context_tokens))
    gate = Gated(faults)
    reports: list[FromWorker] = []
    async with Engine(gate) as engine:
        host = Host(
            engine,
            IDENTITY,
            clock or SystemClock(),
            LimitSettings(**limits),
            detectors,
            guard_s=guard_s,
            cleanup_limit_s=cleanup_limit_s,
            report=reports.append,
            recordings=recordings,
            is_ready=True,
        )
        built = House(host, engine, gate, faults, reports)
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


def heard(text: str) -> Pcm:
    """Sound that came over the wire."""
    return Pcm(np.frombuffer(base64.b64decode(text), "<f4").astype(np.float32), 24_000)


def loud(seconds: float = 1.0) -> str:
    return pcm64(sound(speak(seconds)))


def quiet(seconds: float = 1.0) -> str:
    return pcm64(sound(silence(seconds)))
