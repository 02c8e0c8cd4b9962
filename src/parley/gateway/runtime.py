"""Everything one gateway consists of, put together from its settings."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Final

from parley import logs
from parley.clock import Clock, SystemClock
from parley.dialects import registry
from parley.dialects.registry import DialectRegistry
from parley.gateway.acquisition import Acquisition
from parley.gateway.admins import Admins
from parley.gateway.admission import Admission
from parley.gateway.apps import Apps
from parley.gateway.authenticator import Authenticator
from parley.gateway.connection_handler import ConnectionHandler
from parley.gateway.dispatcher import Dispatcher
from parley.gateway.eta import EtaTracker
from parley.gateway.forward_auth import ForwardAuth
from parley.gateway.handover import Handover, store_id
from parley.gateway.log_sweep import LogSweep
from parley.gateway.maintenance import Maintenance
from parley.gateway.metrics import Metrics
from parley.gateway.metrics_history import MetricsHistory
from parley.gateway.moving import Moving
from parley.gateway.queue import Queue
from parley.gateway.rates import RateLimit
from parley.gateway.rebuilding import Rebuilding
from parley.gateway.recording_access import RecordingAccess
from parley.gateway.reload import ReloadReport
from parley.gateway.resumption import Resumption
from parley.gateway.session_relay import SessionRelay
from parley.gateway.sessions import Sessions
from parley.gateway.state import State
from parley.gateway.supervisor import Supervisor
from parley.gateway.tls import own_names
from parley.gateway.upstream import DialPolicy, UpstreamSettings
from parley.gateway.usage import KeyUsage
from parley.gateway.worker_control import WorkerControl, process_is_gone
from parley.gateway.worker_pool import WorkerPool
from parley.library.presets import Presets
from parley.library.voices import VoiceLibrary
from parley.media import decoder
from parley.media.decoder import DecoderLimits
from parley.private import keep_private
from parley.protocol.control import SILENCE_LIMIT_S
from parley.recording.layout import RecordingFolders, free_bytes
from parley.session_log.places import open_session_logs
from parley.settings import Settings
from parley.tracing import Tracing
from parley.transport import (
    LARGE_BYTES,
    Budget,
    ConnectionLimits,
    Keepalive,
    OpenConnections,
    link_limits,
)

SWEEP_EVERY_S: Final = 1.0
FORGIVEN_S: Final = 0.5
"""When the sweep itself is later than this, the silence of others is not held against them."""
SHUTDOWN_S: Final = 20.0
"""How long running sessions may take to end when the server stops."""
MIB: Final = 1 << 20
FAILED_STOPS_PER_MINUTE: Final = 10
"""How many sessions an address may try to stop that are not there or not its own."""
HELD_LIMIT_BYTES: Final = 1 << 30
"""What large messages, mostly chat requests that wait, may take of this process's memory."""
HELD_SHARE_BYTES: Final = 160 << 20
"""... and what one address may take of it, if one chat request does not need more."""

log = logs.get(__name__)


class GatewayRuntime:
    """Built on the event loop that will serve. `run` is its lifetime.

    Args:
        reload: reads the settings again; by default there is nothing to read.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        clock: Clock | None = None,
        dial_policy: DialPolicy | None = None,
        worker_tls: ssl.SSLContext | None = None,
        dialects: DialectRegistry | None = None,
        probe_every_s: float = 2.0,
        reload: Callable[[], ReloadReport] = ReloadReport,
    ) -> None:
        self.settings = settings
        self.clock = clock or SystemClock()
        limits, security = settings.limits, settings.security
        self.eta = EtaTracker(settings.eta)
        self.queue = Queue(settings.queue.max_size)
        self.worker_pool = WorkerPool(self.clock, self.eta)
        self.dispatcher = Dispatcher(
            queue=self.queue,
            worker_pool=self.worker_pool,
            eta=self.eta,
            clock=self.clock,
            no_worker_refuse_s=settings.queue.no_worker_refuse_s,
        )
        self.admission = Admission(
            security,
            sessions_per_client=limits.sessions_per_client,
            own_names=own_names(None if settings.gateway.http else settings.gateway.ssl_certfile),
        )
        self.open_connections = OpenConnections(_connections_of_one(settings))
        self.reload = reload
        proxy = settings.forward_auth
        users = None if proxy.user_header is None else ForwardAuth(proxy, self.admission)
        self.authenticator = Authenticator(
            admin_token=security.admin_token,
            needs_key=security.needs_key,
            clock=self.clock,
            anonymous_per_minute=security.anonymous_per_minute,
            users=users,
        )
        self.admins = Admins(
            security, admission=self.admission, authenticator=self.authenticator, users=users
        )
        self.usage = KeyUsage(self.worker_pool, self.clock, self.authenticator.find_key)
        self.failed_stops = RateLimit(FAILED_STOPS_PER_MINUTE, self.clock)
        self.apps = Apps()
        self.dialects = dialects or registry.installed()
        self.folders = RecordingFolders(settings.storage.data_dir)
        self.voices = VoiceLibrary(
            settings.storage.data_dir,
            limit_s=limits.reference_audio_s,
            limit_each=limits.voices_per_client,
        )
        self.presets = Presets(settings.storage.data_dir)
        self.recordings = RecordingAccess(self.folders, self.authenticator, settings.storage)
        self.state = State(
            settings.storage.data_dir / "state.db",
            on_several_hosts=settings.standby.redis_url is not None,
        )
        self.maintenance = Maintenance(
            apps=self.apps,
            authenticator=self.authenticator,
            clock=self.clock,
            eta=self.eta,
            folders=self.folders,
            recordings=self.recordings,
            state=self.state,
            storage=settings.storage,
            usage=self.usage,
        )
        self.handover = Handover(
            worker_pool=self.worker_pool,
            folders=self.folders,
            recordings=self.recordings,
            state=self.state,
            storage=settings.storage,
            secret=security.worker_secret,
        )
        self.session_logs = open_session_logs(settings)
        self.log_sweep = LogSweep(
            self.session_logs,
            known=self._known_logs,
            total_bytes=round(limits.session_logs_mb * MIB),
        )
        self.metrics = Metrics(
            self.queue,
            self.worker_pool,
            session_logs=self.log_sweep,
            find_disk_free=lambda: free_bytes(settings.storage.data_dir),
            count_keys=lambda: self.authenticator.keys,
            count_kept=lambda: self.sessions.away,
            is_in_doubt=lambda: self.dispatcher.is_paused,
        )
        self.metrics_history = MetricsHistory(self.metrics.page, self.clock)
        self.worker_control = WorkerControl(
            worker_pool=self.worker_pool,
            admission=self.admission,
            metrics=self.metrics,
            probe_every_s=probe_every_s,
        )
        self.supervisor = Supervisor()
        self.keepalive = Keepalive()
        chat_bytes = int(limits.chat_frame_mb * MIB)
        self.budget = Budget(
            HELD_LIMIT_BYTES, share_bytes=max(HELD_SHARE_BYTES, chat_bytes + LARGE_BYTES)
        )
        self.connection_limits = ConnectionLimits(
            message_bytes=int(limits.frame_mb * MIB),
            output_bytes=int(limits.output_mb * MIB),
            stall_s=limits.output_stall_s,
            messages_per_s=limits.messages_per_s,
        )
        self.upstream_settings = UpstreamSettings(
            limits=link_limits(limits),
            keepalive=self.keepalive,
            policy=dial_policy or DialPolicy(),
            secret=security.worker_secret,
            tls=worker_tls,
        )
        self.tracing = Tracing.of(settings.trace, "parley-gateway")
        self.acquisition = Acquisition(
            dispatcher=self.dispatcher,
            upstream_settings=self.upstream_settings,
            metrics=self.metrics,
            usage=self.usage,
            clock=self.clock,
            tracing=self.tracing,
        )
        self.closing: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._rebuilding = rebuilding = Rebuilding(
            dispatcher=self.dispatcher,
            upstream_settings=self.upstream_settings,
            metrics=self.metrics,
            clock=self.clock,
            window_s=limits.resume_window_s,
            loading_wait_s=limits.rebuild_wait_s,
        )
        self.sessions = Sessions(
            worker_pool=self.worker_pool,
            admission=self.admission,
            clock=self.clock,
            is_gone=process_is_gone,
            rebuild=rebuilding.rebuild,
            drop_log=self.log_sweep.drop,
            window_s=limits.resume_window_s,
        )
        rebuilding.given_up.listen(self.sessions.gave_up)
        self.moving = Moving(
            sessions=self.sessions,
            rebuilding=rebuilding,
            dispatcher=self.dispatcher,
            hand_over=self.worker_control.hand_over,
            end=self.worker_control.end_doubled,
        )
        self.worker_control.leaving.listen(self.moving.begin)
        self.sessions.doubled.listen(self.worker_control.end_doubled)
        session_relay = SessionRelay(sessions=self.sessions, metrics=self.metrics, clock=self.clock)
        self.connection_handler = ConnectionHandler(
            relay=session_relay,
            resumption=Resumption(
                sessions=self.sessions,
                waiting=rebuilding.waiting,
                unreachable=self.moving.move_unreachable,
                relay=session_relay,
                admission=self.admission,
                upstream_settings=self.upstream_settings,
                metrics=self.metrics,
                clock=self.clock,
            ),
            dispatcher=self.dispatcher,
            admins=self.admins,
            admission=self.admission,
            authenticator=self.authenticator,
            apps=self.apps,
            metrics=self.metrics,
            clock=self.clock,
            acquisition=self.acquisition,
            dialects=self.dialects,
            limits=limits,
            queue=settings.queue,
            closing=self.closing,
        )

    def apply(self, settings: Settings, *, workers_too: bool) -> None:
        """Hold whoever comes from now on to these settings, as far as they hold at once; see
        `gateway/reload.py`.

        Args:
            workers_too: the workers have their settings from here.
        """
        limits, security = settings.limits, settings.security
        self.settings = settings
        self.admins.change(security)
        self.admission.change(security, sessions_per_client=limits.sessions_per_client)
        self.authenticator.change(
            admin_token=security.admin_token,
            needs_key=security.needs_key,
            anonymous_per_minute=security.anonymous_per_minute,
        )
        self.open_connections.limit = _connections_of_one(settings)
        self.connection_handler.change_limits(limits)
        self.log_sweep.total_bytes = round(limits.session_logs_mb * MIB)
        self._rebuilding.window_s = limits.resume_window_s
        self._rebuilding.loading_wait_s = limits.rebuild_wait_s
        if workers_too:
            self.worker_control.change_limits(limits.model_dump(mode="json"))

    @contextlib.asynccontextmanager
    async def run(self) -> AsyncIterator[Mapping[str, Any]]:
        """Keep watch while the server serves. Yields the state that `ServerPort` needs."""
        async with self.state, asyncio.TaskGroup() as tasks:
            await asyncio.to_thread(keep_private, self.folders.root)
            await self.maintenance.restore()
            await self.handover.restore()
            self.worker_control.store_id = await asyncio.to_thread(
                store_id, self.settings.storage.data_dir
            )
            decoding = decoder.use(DecoderLimits.of(self.settings.limits))
            maintenance = {
                "maintenance": self.maintenance.run,
                "metrics history": self.metrics_history.run,
                "worker pool sweep": self._sweep,
                "recordings of other hosts": self.handover.run,
                "worker probe": self.worker_control.probe_forever,
                "session logs": self.log_sweep.run,
            }
            watch = [
                tasks.create_task(self.supervisor.keep(name, work), name=name)
                for name, work in maintenance.items()
            ]
            await self._find_left_behind()
            try:
                yield {
                    "keepalive": self.keepalive,
                    "connection_limits": self.connection_limits,
                    "budget": self.budget,
                    "open_connections": self.open_connections,
                    "address_of": self.admission.address_of,
                }
            finally:
                for task in watch:
                    task.cancel()
                await self.moving.close()
                await self.sessions.close()
                await self.session_logs.close()
                await self.maintenance.finish()
                await asyncio.to_thread(self.recordings.close)
                await asyncio.to_thread(decoding.close)
                await asyncio.to_thread(self.tracing.close)

    async def shut_down(
        self, grace_s: float = SHUTDOWN_S, *, drain_s: float = 0.0, keep: bool = False
    ) -> None:
        """Let everybody go: newcomers and those waiting are told, running sessions go on for
        `drain_s`, then end in their dialect's words, and whoever is still there after `grace_s` is
        cut off. Safe to repeat.

        Args:
            keep: another gateway will follow, so sessions that can be gone on with do not end.
        """
        if not self.closing.done():
            running, waiting = len(self.worker_pool.leases), len(self.queue)
            self.closing.set_result(None)
            self.dispatcher.close()
            if keep:
                self.moving.leave()
                self.sessions.leave()
            log.info("shutting_down", running=running, waiting=waiting, drain_s=drain_s)
            if drain_s and running:
                if not keep:
                    self.worker_control.announce_end(drain_s)
                self.connection_handler.is_draining = True
                await self._drain(drain_s)
                self.connection_handler.is_draining = False
            self.worker_control.end_sessions(keep=keep)
        live = set(self.connection_handler.live)
        if not live:
            return
        _, late = await asyncio.wait(live, timeout=grace_s)
        for task in late:
            task.cancel()
        if late:
            log.warning("sessions_cut_off", sessions=len(late))
            await asyncio.wait(late, timeout=5.0)

    async def _drain(self, limit_s: float) -> None:
        """Until no session runs, for at most `limit_s`."""
        emptied = asyncio.Event()

        def look() -> None:
            if not self.worker_pool.leases:
                emptied.set()

        stop = self.worker_pool.changed.listen(look)
        look()
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(limit_s):
                    await emptied.wait()
        finally:
            stop()
        log.info("drained", left=len(self.worker_pool.leases))

    def _known_logs(self) -> set[str]:
        """Logs of sessions that run or are about to continue."""
        return {lease.log_id for lease in self.worker_pool.leases} | self.sessions.log_ids

    async def _find_left_behind(self) -> None:
        """Take over the sessions of an earlier gateway, by their logs. Logs that are older than the
        window belong to clients who are not expected any more."""
        if not self.session_logs.claim():
            log.warning(
                "session_logs_claimed_by_other_gateway",
                hint="Two servers use one data folder; this one leaves the other's sessions alone.",
            )
            return
        for stored in await self.session_logs.stored():
            if stored.has_writer or stored.age_s <= self.settings.limits.resume_window_s:
                self.sessions.found(stored.session)
            else:
                await self.session_logs.drop(stored.session.log_id)

    async def _sweep(self) -> None:
        while True:
            due_s = time.monotonic() + SWEEP_EVERY_S
            await asyncio.sleep(SWEEP_EVERY_S)
            late_s = max(0.0, time.monotonic() - due_s)
            self.metrics.lag(late_s)
            if late_s > FORGIVEN_S:
                log.warning("event_loop_blocked", seconds=round(late_s, 1))
                self.worker_pool.forgive(late_s)
            self.worker_control.end_quietly(self.usage.over())
            for worker in self.worker_pool.sweep():
                log.warning(
                    "worker_lost",
                    worker=worker.worker_id,
                    silent_s=SILENCE_LIMIT_S,
                    sessions=len(worker.leases),
                )


def _connections_of_one(settings: Settings) -> int | None:
    """Most connections of one address; None: behind a proxy all come from the same."""
    limits = settings.limits
    if settings.security.trust_proxy:
        return None
    return max(limits.connections_per_client, 2 * limits.sessions_per_client)
