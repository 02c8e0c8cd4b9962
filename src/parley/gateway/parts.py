"""Groups of a gateway's parts. Each is built from the settings and from earlier parts. A part
receives the parts that it uses; routes receive the whole runtime.
"""

from __future__ import annotations

import asyncio
from typing import Final

from parley import transport
from parley.dialects.registry import DialectRegistry
from parley.gateway.acquisition import Acquisition
from parley.gateway.admission import Admission
from parley.gateway.apps import Apps
from parley.gateway.authenticator import Authenticator
from parley.gateway.connection_handler import ConnectionHandler
from parley.gateway.dispatcher import Dispatcher
from parley.gateway.forward_auth import ForwardAuth
from parley.gateway.handover import Handover
from parley.gateway.log_sweep import LogSweep
from parley.gateway.maintenance import Maintenance
from parley.gateway.metrics import Metrics
from parley.gateway.moving import Moving
from parley.gateway.recording_access import RecordingAccess
from parley.gateway.resumption import Resumption
from parley.gateway.session_relay import SessionRelay
from parley.gateway.sessions import Sessions
from parley.gateway.state import STATE_FILE, State
from parley.gateway.tls import own_names
from parley.gateway.upstream import DialPolicy, UpstreamSettings
from parley.gateway.usage import KeyUsage
from parley.gateway.worker_control import WorkerControl
from parley.library.presets import Presets
from parley.library.voices import VoiceLibrary
from parley.recording.layout import RecordingFolders
from parley.session_log.places import open_session_logs
from parley.settings import Settings
from parley.tracing import Tracing

MIB: Final = 1 << 20
FAILED_STOPS_PER_MINUTE: Final = 10
"""Number of attempts per key, or address without one, to stop sessions that do not exist or belong
to other clients."""
HELD_LIMIT_BYTES: Final = 1 << 30
"""Memory for large messages, mostly waiting chat requests."""
HELD_SHARE_BYTES: Final = 160 << 20
"""Share of one address, unless a single chat request needs more."""


class AccessControl:
    def __init__(self, settings: Settings, dispatcher: Dispatcher) -> None:
        security, proxy, clock = settings.security, settings.forward_auth, dispatcher.clock
        self.admission = Admission(
            security,
            sessions_per_client=settings.limits.sessions_per_client,
            own_names=own_names(None if settings.gateway.http else settings.gateway.ssl_certfile),
        )
        self.open_connections = transport.OpenConnections(connections_of_one(settings))
        users = None if proxy.user_header is None else ForwardAuth(proxy, self.admission)
        self.authenticator = Authenticator(security, clock, self.admission, users=users)
        self.usage = KeyUsage(dispatcher.worker_pool, clock, self.authenticator.find_key)
        self.failed_stops = transport.RateLimit(FAILED_STOPS_PER_MINUTE, 60.0, clock.monotonic)
        self.apps = Apps()

    def apply(self, settings: Settings) -> None:
        security = settings.security
        self.admission.change(security, sessions_per_client=settings.limits.sessions_per_client)
        self.authenticator.change(security)
        self.open_connections.change(connections_of_one(settings))


class Stores:
    def __init__(self, settings: Settings, dispatcher: Dispatcher, access: AccessControl) -> None:
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
            storage.data_dir / STATE_FILE,
            on_several_hosts=settings.standby.redis_url is not None,
        )
        self.maintenance = Maintenance(
            apps=access.apps,
            authenticator=access.authenticator,
            clock=dispatcher.clock,
            eta=dispatcher.eta,
            folders=self.folders,
            queue=dispatcher.queue,
            recordings=self.recordings,
            state=self.state,
            storage=storage,
            usage=access.usage,
        )
        self.handover = Handover(
            worker_pool=dispatcher.worker_pool,
            folders=self.folders,
            recordings=self.recordings,
            state=self.state,
            storage=storage,
            secret=settings.security.worker_secret,
        )
        self.session_logs = open_session_logs(settings)
        self.log_sweep = LogSweep(self.session_logs)
        self.apply(settings)

    def apply(self, settings: Settings) -> None:
        self.session_logs.keep_for(settings.limits.resume_window_s)
        self.log_sweep.total_bytes = round(settings.limits.session_logs_mb * MIB)


class Links:
    def __init__(self, settings: Settings, dial_policy: DialPolicy) -> None:
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
        )


class Serving:
    """The parts that connect clients with their sessions.

    Args:
        closing: completed when the server shuts down; its result is true if another gateway takes
            over.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        access: AccessControl,
        links: Links,
        metrics: Metrics,
        tracing: Tracing,
        sessions: Sessions,
        dialects: DialectRegistry,
        closing: asyncio.Future[bool],
    ) -> None:
        dispatcher, upstream_settings = sessions.dispatcher, links.upstream_settings
        self.rebuilding = sessions.rebuilding
        self.worker_control = WorkerControl(
            worker_pool=dispatcher.worker_pool,
            admission=access.admission,
            metrics=metrics,
            probe_every_s=upstream_settings.policy.probe_every_s,
        )
        self.acquisition = Acquisition(
            dispatcher=dispatcher,
            upstream_settings=upstream_settings,
            metrics=metrics,
            usage=access.usage,
            tracing=tracing,
        )
        self.moving = Moving(sessions=sessions, worker_control=self.worker_control)
        self.worker_control.leaving.listen(self.moving.begin)
        sessions.doubled.listen(self.worker_control.end_doubled)
        relay = SessionRelay(
            sessions=sessions,
            metrics=metrics,
            message_arrives=self.worker_control.message_arrives,
        )
        self.connection_handler = ConnectionHandler(
            relay=relay,
            resumption=Resumption(
                sessions=sessions,
                moving=self.moving,
                relay=relay,
                upstream_settings=upstream_settings,
                metrics=metrics,
            ),
            dispatcher=dispatcher,
            admission=access.admission,
            authenticator=access.authenticator,
            apps=access.apps,
            metrics=metrics,
            acquisition=self.acquisition,
            dialects=dialects,
            limits=settings.limits,
            queue=settings.queue,
            closing=closing,
        )

    def apply(self, settings: Settings, *, workers_too: bool) -> None:
        """Apply changed settings to later sessions; see `GatewayRuntime.apply`."""
        self.connection_handler.limits = self.rebuilding.limits = settings.limits
        if workers_too:
            self.worker_control.change_limits(settings.limits.model_dump(mode="json"))


def connections_of_one(settings: Settings) -> int | None:
    """Connection limit per address; None behind a proxy, because all connections have the proxy's
    address."""
    limits = settings.limits
    if settings.security.trust_proxy:
        return None
    return max(limits.connections_per_client, 2 * limits.sessions_per_client)
