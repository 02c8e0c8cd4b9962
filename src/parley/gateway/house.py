"""Everything one gateway consists of, put together from its settings."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

from parley import logs
from parley.clock import Clock, SystemClock
from parley.gateway.access import Access
from parley.gateway.apps import Apps
from parley.gateway.control import ControlDesk
from parley.gateway.dispatcher import Dispatcher
from parley.gateway.door import Door
from parley.gateway.eta import EtaTracker
from parley.gateway.fleet import Fleet
from parley.gateway.keeper import Keeper
from parley.gateway.leg import DialPolicy, LegSettings
from parley.gateway.metrics import Metrics
from parley.gateway.port import Budget, PortLimits, Pulse
from parley.gateway.queue import Queue
from parley.gateway.reception import Reception
from parley.gateway.sessions import Sessions
from parley.gateway.state import State
from parley.library.presets import Presets
from parley.library.voices import VoiceShelf
from parley.recording.layout import Shelf
from parley.settings import Settings

SWEEP_EVERY_S: Final = 1.0
SHUTDOWN_S: Final = 20.0
"""How long running sessions may take to end when the server stops."""
MIB: Final = 1 << 20
HELD_LIMIT_BYTES: Final = 1 << 30
"""What large messages, mostly chat requests that wait, may take of this process's memory."""

log = logs.get(__name__)


class House:
    """Built on the event loop that will serve. `run` is its lifetime."""

    def __init__(
        self,
        settings: Settings,
        *,
        clock: Clock | None = None,
        dial_policy: DialPolicy | None = None,
        worker_tls: ssl.SSLContext | None = None,
        probe_every_s: float = 2.0,
    ) -> None:
        self.settings = settings
        self.clock = clock or SystemClock()
        limits, security = settings.limits, settings.security
        self.eta = EtaTracker(settings.eta)
        self.queue = Queue(settings.queue.max_size)
        self.fleet = Fleet(self.clock, self.eta)
        self.dispatcher = Dispatcher(
            queue=self.queue,
            fleet=self.fleet,
            eta=self.eta,
            clock=self.clock,
            no_worker_refuse_s=settings.queue.no_worker_refuse_s,
        )
        self.door = Door(security, sessions_per_client=limits.sessions_per_client)
        self.access = Access(
            admin_token=security.admin_token, needs_key=security.needs_key, clock=self.clock
        )
        self.apps = Apps()
        self.shelf = Shelf(settings.storage.data_dir)
        self.voices = VoiceShelf(settings.storage.data_dir, limit_s=limits.reference_audio_s)
        self.presets = Presets(settings.storage.data_dir)
        self.sessions = Sessions(self.shelf, self.access, settings.storage)
        self.keeper = Keeper(self)
        self.metrics = Metrics(self.queue, self.fleet)
        self.desk = ControlDesk(
            fleet=self.fleet, door=self.door, metrics=self.metrics, probe_every_s=probe_every_s
        )
        self.pulse = Pulse()
        self.budget = Budget(HELD_LIMIT_BYTES)
        self.port_limits = PortLimits(
            message_bytes=int(limits.frame_mb * MIB),
            output_bytes=int(limits.output_mb * MIB),
            stall_s=limits.output_stall_s,
        )
        self.legs = LegSettings(
            # What a worker sends may be a whole spoken chat answer.
            limits=PortLimits(
                message_bytes=int(limits.chat_frame_mb * MIB),
                output_bytes=2 * int(limits.chat_frame_mb * MIB),
                stall_s=3 * limits.output_stall_s,
            ),
            pulse=self.pulse,
            policy=dial_policy or DialPolicy(),
            secret=security.worker_secret,
            tls=worker_tls,
        )
        self.closing: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.reception = Reception(
            dispatcher=self.dispatcher,
            door=self.door,
            access=self.access,
            apps=self.apps,
            metrics=self.metrics,
            clock=self.clock,
            legs=self.legs,
            limits=limits,
            queue=settings.queue,
            closing=self.closing,
        )

    @contextlib.asynccontextmanager
    async def run(self) -> AsyncIterator[Mapping[str, Any]]:
        """Keep watch while the server serves. Yields the state that `ServerPort` needs."""
        async with (
            State.open(self.settings.storage.data_dir / "state.db") as self.state,
            asyncio.TaskGroup() as tasks,
        ):
            await self.keeper.restore()
            watch = [
                tasks.create_task(self.keeper.run(), name="keeper"),
                tasks.create_task(self._sweep(), name="fleet sweep"),
                tasks.create_task(self.desk.probe_forever(), name="worker probe"),
            ]
            try:
                yield {
                    "pulse": self.pulse,
                    "port_limits": self.port_limits,
                    "budget": self.budget,
                }
            finally:
                for task in watch:
                    task.cancel()
                await self.keeper.finish()
                await asyncio.to_thread(self.sessions.close)

    async def shut_down(self, grace_s: float = SHUTDOWN_S) -> None:
        """Let everybody go: newcomers and those waiting are told, running sessions end in their
        dialect's words, and whoever is still there after `grace_s` is cut off. Safe to repeat."""
        if not self.closing.done():
            self.closing.set_result(None)
            self.dispatcher.close()
            running = self.desk.end_sessions()
            log.info("shutting down", running=running, waiting=len(self.queue))
        live = set(self.reception.live)
        if not live:
            return
        _, late = await asyncio.wait(live, timeout=grace_s)
        for task in late:
            task.cancel()
        if late:
            log.warning("sessions cut off", sessions=len(late))
            await asyncio.wait(late, timeout=5.0)

    async def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + SWEEP_EVERY_S
            await asyncio.sleep(SWEEP_EVERY_S)
            self.metrics.lag(max(0.0, loop.time() - due))
            self.fleet.sweep()
