"""All parts of one gateway, built from its settings."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import secrets
import sqlite3
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Final

from parley import logs
from parley.clock import Clock, SystemClock
from parley.dialects import registry
from parley.gateway.dispatcher import Dispatcher
from parley.gateway.handover import store_id
from parley.gateway.metrics import Metrics
from parley.gateway.parts import AccessControl, Links, Serving, Stores
from parley.gateway.rebuilding import Rebuilding
from parley.gateway.reload import Reloaded
from parley.gateway.sessions import Sessions
from parley.gateway.supervisor import Supervisor
from parley.gateway.upstream import DialPolicy
from parley.gateway.waits import wait_until
from parley.gateway.worker_control import process_is_gone
from parley.media import decoder
from parley.media.decoder import DecoderLimits
from parley.private import keep_private
from parley.protocol.control import SILENCE_LIMIT_S
from parley.settings import Settings
from parley.tracing import Tracing

SWEEP_EVERY_S: Final = 1.0
FORGIVEN_S: Final = 0.5
"""If the sweep itself is this late, silence of workers is ignored."""
SHUTDOWN_S: Final = 20.0
"""Time for running sessions to end when the server stops."""

log = logs.get(__name__)


class GatewayRuntime:
    """The parts of one gateway and their lifetime, `run`. Built on the event loop that will serve.

    Args:
        reload: re-reads the settings.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        clock: Clock | None = None,
        dial_policy: DialPolicy | None = None,
        reload: Callable[[], Reloaded],
    ) -> None:
        self.settings = settings
        self.clock = clock = clock or SystemClock()
        self.reload = reload
        self.dialects = registry.installed()
        self.closing: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.dispatcher = Dispatcher(clock, settings.queue, settings.eta)
        self.access = AccessControl(settings, self.dispatcher)
        self.stores = Stores(settings, self.dispatcher, self.access)
        self.links = Links(settings, dial_policy or DialPolicy())
        rebuilding = Rebuilding(self.dispatcher, self.links.upstream_settings, settings.limits)
        self.sessions = Sessions(
            dispatcher=self.dispatcher,
            rebuilding=rebuilding,
            admission=self.access.admission,
            is_gone=process_is_gone,
            drop_log=self.stores.log_sweep.drop,
        )
        self.metrics = Metrics(
            authenticator=self.access.authenticator,
            open_connections=self.access.open_connections,
            sessions=self.sessions,
            session_logs=self.stores.log_sweep,
            data_dir=settings.storage.data_dir,
        )
        self.supervisor = Supervisor()
        self._tracing = Tracing.of(settings.trace, "parley-gateway")
        self.serving = Serving(
            settings,
            access=self.access,
            links=self.links,
            metrics=self.metrics,
            tracing=self._tracing,
            sessions=self.sessions,
            dialects=self.dialects,
            closing=self.closing,
        )

    def apply(self, settings: Settings, *, workers_too: bool) -> None:
        """Use these settings for later clients, as far as they can change while sessions run; see
        `gateway/reload.py`.

        Args:
            workers_too: True if the workers get their settings from this gateway.
        """
        self.settings = settings
        self.access.apply(settings)
        self.stores.apply(settings)
        self.serving.apply(settings, workers_too=workers_too)
        self.dispatcher.window_s = settings.limits.resume_window_s

    @contextlib.asynccontextmanager
    async def run(self) -> AsyncIterator[Mapping[str, Any]]:
        """Run the background tasks while the server serves. Yields the state that `ServerPort`
        needs."""
        stores, serving = self.stores, self.serving
        async with stores.state, asyncio.TaskGroup() as tasks:
            await asyncio.to_thread(keep_private, stores.folders.root)
            await stores.maintenance.restore()
            secret = await stores.state.secret("tickets", secrets.token_bytes(32))
            window_s = self.settings.limits.resume_window_s
            self.dispatcher.follow(secret, await self._count_start(), window_s=window_s)
            if await stores.maintenance.had_waiting(window_s):
                self.dispatcher.await_returns()
            await stores.handover.restore()
            serving.worker_control.store_id = await asyncio.to_thread(
                store_id, self.settings.storage.data_dir
            )
            decoding = decoder.use(DecoderLimits.of(self.settings.limits))
            background: dict[str, Callable[[], Awaitable[None]]] = {
                "maintenance": stores.maintenance.run,
                "metrics history": self.metrics.look_forever,
                "worker pool sweep": self._sweep,
                "recordings of other hosts": stores.handover.run,
                "worker probe": serving.worker_control.probe_forever,
                "session logs": functools.partial(stores.log_sweep.run, self._known_logs),
            }
            running = [
                tasks.create_task(self.supervisor.keep(name, work), name=name)
                for name, work in background.items()
            ]
            await self._find_left_behind()
            try:
                yield {
                    "keepalive": self.links.keepalive,
                    "connection_limits": self.links.connection_limits,
                    "budget": self.links.budget,
                    "open_connections": self.access.open_connections,
                    "owner_of": self.access.admission.owner_of,
                }
            finally:
                for task in running:
                    task.cancel()
                await serving.moving.close()
                await self.sessions.close()
                await stores.session_logs.close()
                await stores.maintenance.finish()
                await asyncio.to_thread(stores.recordings.close)
                await asyncio.to_thread(decoding.close)
                await asyncio.to_thread(self._tracing.close)

    async def _count_start(self) -> int:
        state = self.stores.state
        starts = 1 + (await state.fact("queue.starts") or 0)
        try:
            await state.set_fact("queue.starts", starts)
        except sqlite3.Error as error:
            # Clients that wait when this gateway dies then lose their places.
            log.warning("start_not_counted", why=str(error))
        return starts

    async def shut_down(
        self, grace_s: float = SHUTDOWN_S, *, drain_s: float = 0.0, keep: bool = False
    ) -> None:
        """End all sessions. New and waiting clients are refused; running sessions continue for
        `drain_s` and are then ended with their dialect's messages; those left after `grace_s` are
        cut off. Safe to repeat.

        Args:
            keep: True if another gateway takes over: sessions that can be resumed are not ended,
                and continue until no other session is left.
        """
        dispatcher, serving = self.dispatcher, self.serving
        if not self.closing.done():
            running, waiting = len(dispatcher.worker_pool.leases), len(dispatcher.queue)
            self.closing.set_result(keep)
            dispatcher.close()
            if keep:
                serving.moving.leave()
                self.sessions.leave()
            log.info("shutting_down", running=running, waiting=waiting, drain_s=drain_s)
            if drain_s and running:
                if not keep:
                    serving.worker_control.announce_end(drain_s)
                serving.connection_handler.is_draining = True
                await self._drain(drain_s, keep=keep)
                serving.connection_handler.is_draining = False
            serving.worker_control.end_sessions(keep=keep)
        live = set(serving.connection_handler.live)
        _, late = await asyncio.wait(live, timeout=grace_s) if live else ((), ())
        for task in late:
            task.cancel()
        if late:
            log.warning("sessions_cut_off", sessions=len(late))
            await asyncio.wait(late, timeout=5.0)

    async def _drain(self, limit_s: float, *, keep: bool) -> None:
        """Wait at most `limit_s` until no session runs, or with `keep` only sessions that can be
        resumed."""
        worker_pool = self.dispatcher.worker_pool

        def is_drained() -> bool:
            return all(keep and lease.resume is not None for lease in worker_pool.leases)

        due_s = self.clock.monotonic() + limit_s
        await wait_until(is_drained, [worker_pool.changed], lambda: due_s - self.clock.monotonic())
        log.info("drained", left=len(worker_pool.leases))

    def _known_logs(self) -> set[str]:
        """Logs of sessions that run or are about to continue."""
        running = {lease.log_id for lease in self.dispatcher.worker_pool.leases}
        return running | self.sessions.log_ids

    async def _find_left_behind(self) -> None:
        """Take over the sessions of an earlier gateway from their logs. Logs older than the resume
        window are dropped, because their clients can no longer return."""
        session_logs = self.stores.session_logs
        if not session_logs.claim():
            log.warning(
                "session_logs_claimed_by_other_gateway",
                hint="Two servers use one data folder: each counts limits for itself, and this one "
                "leaves the other's sessions alone.",
            )
            return
        for stored in await session_logs.stored():
            if stored.has_writer or stored.age_s <= self.settings.limits.resume_window_s:
                self.sessions.found(stored)
            else:
                await session_logs.drop(stored.session.log_id)

    async def _sweep(self) -> None:
        worker_pool = self.dispatcher.worker_pool
        while True:
            due_s = time.monotonic() + SWEEP_EVERY_S
            await asyncio.sleep(SWEEP_EVERY_S)
            late_s = max(0.0, time.monotonic() - due_s)
            self.metrics.lag(late_s)
            if late_s > FORGIVEN_S:
                log.warning("event_loop_blocked", seconds=round(late_s, 1))
                worker_pool.forgive(late_s)
            self.serving.worker_control.end_quietly(self.access.usage.over())
            for worker in worker_pool.sweep():
                log.warning(
                    "worker_lost",
                    worker=worker.worker_id,
                    silent_s=SILENCE_LIMIT_S,
                    sessions=len(worker.leases),
                )
