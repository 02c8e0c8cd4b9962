"""The parts of a gateway, in six groups. Each group is built from the settings and the groups above
it; routes and parts receive the single parts that they use, never a group.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Final

from parley import transport
from parley.clock import Clock
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
from parley.gateway.handover import Handover
from parley.gateway.log_sweep import LogSweep
from parley.gateway.maintenance import Maintenance
from parley.gateway.metrics import Metrics
from parley.gateway.metrics_history import MetricsHistory
from parley.gateway.moving import Moving
from parley.gateway.queue import Queue
from parley.gateway.rates import RateLimit
from parley.gateway.rebuilding import Rebuilding
from parley.gateway.recording_access import RecordingAccess
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
from parley.recording.layout import RecordingFolders, free_bytes
from parley.session_log.places import open_session_logs
from parley.settings import Settings
from parley.tracing import Tracing

MIB: Final = 1 << 20
FAILED_STOPS_PER_MINUTE: Final = 10
"""Attempts per address to stop sessions that do not exist or belong to others."""
HELD_LIMIT_BYTES: Final = 1 << 30
"""Memory for large messages, mostly waiting chat requests."""
HELD_SHARE_BYTES: Final = 160 << 20
"""Share of one address, unless a single chat request needs more."""


class Scheduling:
    """Queue, worker pool, and the dispatcher that matches them."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self.eta = EtaTracker(settings.eta)
        self.queue = Queue(settings.queue.max_size)
        self.worker_pool = WorkerPool(clock, self.eta)
        self.dispatcher = Dispatcher(
            queue=self.queue,
            worker_pool=self.worker_pool,
            eta=self.eta,
            clock=clock,
            no_worker_refuse_s=settings.queue.no_worker_refuse_s,
        )


class AccessControl:
    """Identity, rights and limits of clients."""

    def __init__(self, settings: Settings, clock: Clock, worker_pool: WorkerPool) -> None:
        security, proxy = settings.security, settings.forward_auth
        self.admission = Admission(
            security,
            sessions_per_client=settings.limits.sessions_per_client,
            own_names=own_names(None if settings.gateway.http else settings.gateway.ssl_certfile),
        )
        self.open_connections = transport.OpenConnections(_connections_of_one(settings))
        users = None if proxy.user_header is None else ForwardAuth(proxy, self.admission)
        self.authenticator = Authenticator(
            admin_token=security.admin_token,
            needs_key=security.needs_key,
            clock=clock,
            anonymous_per_minute=security.anonymous_per_minute,
            users=users,
        )
        self.admins = Admins(
            security, admission=self.admission, authenticator=self.authenticator, users=users
        )
        self.usage = KeyUsage(worker_pool, clock, self.authenticator.find_key)
        self.failed_stops = RateLimit(FAILED_STOPS_PER_MINUTE, clock)
        self.apps = Apps()

    def apply(self, settings: Settings) -> None:
        security = settings.security
        self.admins.change(security)
        self.admission.change(security, sessions_per_client=settings.limits.sessions_per_client)
        self.authenticator.change(
            admin_token=security.admin_token,
            needs_key=security.needs_key,
            anonymous_per_minute=security.anonymous_per_minute,
        )
        self.open_connections.limit = _connections_of_one(settings)


class Stores:
    """Data on disk: state, recordings, voices, presets, logs of sessions.

    Args:
        known_logs: ids of the logs that are still needed.
    """

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        *,
        scheduling: Scheduling,
        access: AccessControl,
        known_logs: Callable[[], set[str]],
    ) -> None:
        storage, limits = settings.storage, settings.limits
        self.folders = RecordingFolders(storage.data_dir)
        self.voices = VoiceLibrary(
            storage.data_dir,
            limit_s=limits.reference_audio_s,
            limit_each=limits.voices_per_client,
        )
        self.presets = Presets(storage.data_dir)
        self.recordings = RecordingAccess(self.folders, access.authenticator, storage)
        self.state = State(
            storage.data_dir / "state.db",
            on_several_hosts=settings.standby.redis_url is not None,
        )
        self.maintenance = Maintenance(
            apps=access.apps,
            authenticator=access.authenticator,
            clock=clock,
            eta=scheduling.eta,
            folders=self.folders,
            recordings=self.recordings,
            state=self.state,
            storage=storage,
            usage=access.usage,
        )
        self.handover = Handover(
            worker_pool=scheduling.worker_pool,
            folders=self.folders,
            recordings=self.recordings,
            state=self.state,
            storage=storage,
            secret=settings.security.worker_secret,
        )
        self.session_logs = open_session_logs(settings)
        self.log_sweep = LogSweep(
            self.session_logs, known=known_logs, total_bytes=_session_log_bytes(settings)
        )

    def apply(self, settings: Settings) -> None:
        self.log_sweep.total_bytes = _session_log_bytes(settings)


class Links:
    """Limits of client connections and of links to workers."""

    def __init__(
        self, settings: Settings, dial_policy: DialPolicy, worker_tls: ssl.SSLContext | None
    ) -> None:
        limits = settings.limits
        chat_bytes = int(limits.chat_frame_mb * MIB)
        self.keepalive = transport.Keepalive()
        self.budget = transport.Budget(
            HELD_LIMIT_BYTES, share_bytes=max(HELD_SHARE_BYTES, chat_bytes + transport.LARGE_BYTES)
        )
        self.connection_limits = transport.ConnectionLimits(
            message_bytes=int(limits.frame_mb * MIB),
            output_bytes=int(limits.output_mb * MIB),
            stall_s=limits.output_stall_s,
            messages_per_s=limits.messages_per_s,
        )
        self.upstream_settings = UpstreamSettings(
            limits=transport.link_limits(limits),
            keepalive=self.keepalive,
            policy=dial_policy,
            secret=settings.security.worker_secret,
            tls=worker_tls,
        )


class Monitoring:
    """What operators see: log, metrics, history.

    Args:
        count_kept: number of sessions whose clients are away.
    """

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        *,
        scheduling: Scheduling,
        access: AccessControl,
        stores: Stores,
        count_kept: Callable[[], int],
    ) -> None:
        self.metrics = Metrics(
            scheduling.queue,
            scheduling.worker_pool,
            session_logs=stores.log_sweep,
            find_disk_free=lambda: free_bytes(settings.storage.data_dir),
            count_keys=lambda: access.authenticator.keys,
            ended=access.open_connections.ended,
            count_kept=count_kept,
            is_in_doubt=lambda: scheduling.dispatcher.is_paused,
        )
        self.metrics_history = MetricsHistory(self.metrics.page, clock)
        self.supervisor = Supervisor()
        self.tracing = Tracing.of(settings.trace, "parley-gateway")


class Serving:
    """The sessions, from a client's connection to its worker.

    Args:
        closing: done once the server shuts down.
    """

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        *,
        scheduling: Scheduling,
        access: AccessControl,
        stores: Stores,
        links: Links,
        monitoring: Monitoring,
        dialects: DialectRegistry,
        probe_every_s: float,
        closing: asyncio.Future[None],
    ) -> None:
        limits, metrics = settings.limits, monitoring.metrics
        dispatcher, upstream_settings = scheduling.dispatcher, links.upstream_settings
        self.worker_control = WorkerControl(
            worker_pool=scheduling.worker_pool,
            admission=access.admission,
            metrics=metrics,
            probe_every_s=probe_every_s,
        )
        self.acquisition = Acquisition(
            dispatcher=dispatcher,
            upstream_settings=upstream_settings,
            metrics=metrics,
            usage=access.usage,
            clock=clock,
            tracing=monitoring.tracing,
        )
        self.rebuilding = Rebuilding(
            dispatcher=dispatcher,
            upstream_settings=upstream_settings,
            metrics=metrics,
            clock=clock,
            window_s=limits.resume_window_s,
            loading_wait_s=limits.rebuild_wait_s,
        )
        self.sessions = Sessions(
            worker_pool=scheduling.worker_pool,
            admission=access.admission,
            clock=clock,
            is_gone=process_is_gone,
            rebuild=self.rebuilding.rebuild,
            drop_log=stores.log_sweep.drop,
            window_s=limits.resume_window_s,
        )
        self.moving = Moving(
            sessions=self.sessions,
            rebuilding=self.rebuilding,
            dispatcher=dispatcher,
            hand_over=self.worker_control.hand_over,
            end=self.worker_control.end_doubled,
        )
        self.rebuilding.given_up.listen(self.sessions.gave_up)
        self.worker_control.leaving.listen(self.moving.begin)
        self.sessions.doubled.listen(self.worker_control.end_doubled)
        relay = SessionRelay(sessions=self.sessions, metrics=metrics, clock=clock)
        self.connection_handler = ConnectionHandler(
            relay=relay,
            resumption=Resumption(
                sessions=self.sessions,
                waiting=self.rebuilding.waiting,
                unreachable=self.moving.move_unreachable,
                relay=relay,
                admission=access.admission,
                upstream_settings=upstream_settings,
                metrics=metrics,
                clock=clock,
            ),
            dispatcher=dispatcher,
            admins=access.admins,
            admission=access.admission,
            authenticator=access.authenticator,
            apps=access.apps,
            metrics=metrics,
            clock=clock,
            acquisition=self.acquisition,
            dialects=dialects,
            limits=limits,
            queue=settings.queue,
            closing=closing,
        )

    def apply(self, settings: Settings, *, workers_too: bool) -> None:
        """Apply changed settings to later sessions; see `GatewayRuntime.apply`."""
        limits = settings.limits
        self.connection_handler.limits = limits
        self.rebuilding.window_s = limits.resume_window_s
        self.rebuilding.loading_wait_s = limits.rebuild_wait_s
        if workers_too:
            self.worker_control.change_limits(limits.model_dump(mode="json"))


def _connections_of_one(settings: Settings) -> int | None:
    """Connection limit of one address; None behind a proxy, where all connections have its
    address."""
    limits = settings.limits
    if settings.security.trust_proxy:
        return None
    return max(limits.connections_per_client, 2 * limits.sessions_per_client)


def _session_log_bytes(settings: Settings) -> int:
    return round(settings.limits.session_logs_mb * MIB)
