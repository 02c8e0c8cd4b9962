"""Makes a running gateway of its settings."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Final

from parley import logs
from parley.clock import SystemClock
from parley.errors import SetupError
from parley.gateway.app import GatewayApp
from parley.gateway.http.pages import MADE
from parley.gateway.leadership import Leadership, RedisStore
from parley.gateway.parts import connections_of_one
from parley.gateway.reload import Reloaded, changed, taken_over
from parley.gateway.runtime import GatewayRuntime
from parley.gateway.standby import answering_as_standby, refuse, stand_by
from parley.gateway.state import STATE_FILE, is_locked
from parley.gateway.tls import ShownPair, ensure_certificate, own_fingerprint, own_names
from parley.protocol.networks import in_url
from parley.settings import Settings
from parley.tasks import end_tasks
from parley.transport import OpenConnections, UvicornServer, listen, listen_on_loopback

log = logs.get(__name__)

CERTIFICATE_EVERY_S: Final = 86_400.0
"""Interval at which the certificate files are read again, because they may have been renewed."""


class Gateway:
    """One gateway: its listening socket, its server, its runtime.

    `serve()` runs until `stop()`; the caller handles signals.

    Attributes:
        was_replaced: True if it ended because another gateway is active; the caller starts it
            again, as a standby.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        make_runtime: Callable[..., GatewayRuntime] = GatewayRuntime,
        web: Path = MADE,
    ) -> None:
        self.settings = settings
        self._reread: Callable[[], Settings] | None = None
        self._as_read: Settings | None = None
        """Settings as they were read, including later changes."""
        self._has_own_workers = False
        self._is_reload_due = False
        """True if `reload` was called before there was a runtime."""
        self._listener = listen(settings.gateway.host, settings.gateway.port)
        self.port: int = self._listener.getsockname()[1]

        def make(settings: Settings) -> GatewayRuntime:
            return make_runtime(settings, reload=self.reload)

        self.app = GatewayApp(settings, make_runtime=make, web=web)
        self._shown = self._pair()
        context = self._shown.context if self._shown else None
        self._server = _Server(self.app, tls=context, drain=self._drain)
        self._internal: asyncio.Server | None = None
        self._drain_s = 0.0
        self._stopping = asyncio.Event()
        self._leadership: Leadership | None = None
        self._keeping: asyncio.Task[None] | None = None
        self.was_replaced = False
        self.keeps_sessions = False
        """True if workers outlive this gateway: resumable sessions then continue at the next
        one."""

    @property
    def url(self) -> str:
        return self.settings.gateway.url(self.port)

    @property
    def fingerprint(self) -> str | None:
        """Of the certificate; None on plain HTTP."""
        gateway = self.settings.gateway
        return None if gateway.http else own_fingerprint(gateway.ssl_certfile)

    @property
    def runtime(self) -> GatewayRuntime:
        """Available once the server has started."""
        assert self.app.runtime is not None
        return self.app.runtime

    async def serve(self, started: Callable[[], Any] | None = None) -> None:
        """Serve until stopped; with several gateways, first wait until this one is active.
        `started` is called once clients can connect.

        Raises:
            SetupError: the application could not start.
        """
        try:
            async with self._leading() as is_active:
                if is_active and await self._can_read_state():
                    await self._serve(started)
        finally:
            if self._internal is not None:
                self._internal.close()
            self._listener.close()

    async def _can_read_state(self) -> bool:
        """Wait until no other process has the database for itself, as a gateway has that was frozen
        while it wrote; returns False if this gateway is stopped first."""
        path = self.settings.storage.data_dir / STATE_FILE
        if not await asyncio.to_thread(is_locked, path):
            return True
        log.warning(
            "state_locked",
            file=str(path),
            hint="Another process, perhaps a frozen gateway, is writing to it: resume or kill it; "
            "this gateway waits. Storage without file locks looks the same.",
        )
        async with answering_as_standby(self._listener, self._server.config.ssl, self._clients()):
            while not self._stopping.is_set() and await asyncio.to_thread(is_locked, path):
                pass
        return not self._stopping.is_set()

    def _clients(self) -> OpenConnections:
        return OpenConnections(connections_of_one(self.settings))

    async def _serve(self, started: Callable[[], Any] | None) -> None:
        serving = asyncio.create_task(self._server.serve_until_stopped([self._listener]))
        try:
            await asyncio.wait(
                {serving, asyncio.ensure_future(self._server.ready.wait())},
                return_when=asyncio.FIRST_COMPLETED,
            )
            if self._server.ready.is_set() and self._is_reload_due:
                self.reload()
            if self._server.ready.is_set() and started is not None:
                started()
            while not serving.done():
                await asyncio.wait({serving}, timeout=CERTIFICATE_EVERY_S)
                if not (serving.done() or self.settings.gateway.http):
                    self.reload_certificate()
            await serving
        except asyncio.CancelledError:
            self.stop()
            await serving
            raise

    @contextlib.asynccontextmanager
    async def _leading(self) -> AsyncIterator[bool]:
        """If there is a leadership, wait for it and keep it; yields True once this gateway has
        it."""
        standby = self.settings.standby
        if standby.redis_url is None:
            yield True
            return
        store = RedisStore(standby.redis_url, standby.key)
        leadership = Leadership(store, ttl_s=standby.ttl_s, clock=SystemClock(), name=standby.name)
        self._leadership = leadership
        try:
            is_active = await stand_by(
                leadership,
                self._listener,
                tls=self._server.config.ssl,
                clients=self._clients(),
                url=self.url,
                stopping=self._stopping,
            )
            if is_active:
                self._keeping = asyncio.create_task(self._keep(leadership), name="leadership")
            yield is_active
        finally:
            await self._give_up_leadership()
            await store.close()

    async def _give_up_leadership(self) -> None:
        leadership, self._leadership = self._leadership, None
        if leadership is None:
            return
        if self._keeping is not None:
            (ended,) = await end_tasks(self._keeping)
            if isinstance(ended, Exception):
                log.error("leadership_failed", exc_info=ended)
        await leadership.release()

    async def _keep(self, leadership: Leadership) -> None:
        def doubted(is_doubtful: bool) -> None:
            if self._server.ready.is_set():
                self.runtime.dispatcher.pause(is_doubtful)

        try:
            await leadership.keep(doubted)
        finally:
            # Even if this fails: otherwise two gateways could be active.
            if not self._stopping.is_set():
                self.was_replaced = True
                self.stop(self.settings.gateway.drain_timeout_s)

    def stop(self, drain_s: float = 0.0) -> None:
        """Start a graceful shutdown: running sessions continue for `drain_s`, then end."""
        self._drain_s = drain_s
        self._stopping.set()
        self._server.end()

    def reload(self) -> Reloaded:
        """Apply changed settings and a changed certificate, as far as they can change while
        sessions run; no connection is closed. If the settings cannot be read, the old ones stay in
        force. A gateway that is starting or is a standby does this again when it serves."""
        problem = self.reload_certificate()
        done = Reloaded(
            applied=[],
            needs_restart=[],
            certificate=problem is None and self._shown is not None,
            certificate_problem=problem,
        )
        runtime = self.app.runtime
        self._is_reload_due = runtime is None
        if self._reread is None or self._as_read is None or runtime is None:
            return done
        try:
            new = self._reread()
        except SetupError as error:
            done.problem = " ".join(each for each in (str(error), error.hint) if each)
            log.error("settings_reload_failed", why=done.problem)
            return done
        done.applied, done.needs_restart = changed(self._as_read, new)
        self._as_read = taken_over(self._as_read, new, done.applied)
        settings = taken_over(runtime.settings, new, done.applied)
        runtime.apply(settings, workers_too=self._has_own_workers)
        log.info("settings_reloaded", applied=done.applied, needs_restart=done.needs_restart)
        return done

    def reread_by(
        self, read: Callable[[], Settings], as_read: Settings, *, has_own_workers: bool = False
    ) -> None:
        """Let `reload` read the settings again.

        Args:
            read: as they were read at the start.
            as_read: the first result of `read`.
            has_own_workers: True if the workers get their settings from this gateway.
        """
        self._reread, self._as_read, self._has_own_workers = read, as_read, has_own_workers

    def reload_certificate(self) -> str | None:
        """Use the certificate that is now in the files for new connections. Returns why it
        cannot be used, and the old one stays in use."""
        gateway = self.settings.gateway
        if self._shown is None:
            return None
        try:
            if gateway.ssl_certfile.exists():  # An operator's may be absent while it is renewed.
                ensure_certificate(gateway.ssl_certfile, gateway.ssl_keyfile, gateway.host)
            self._shown.load(gateway.ssl_certfile, gateway.ssl_keyfile)
        except SetupError as error:
            log.error("certificate_reload_failed", why=str(error), hint=error.hint)
            return str(error)
        if self.app.runtime is not None:  # a standby has none
            self.runtime.access.admission.learn_names(own_names(gateway.ssl_certfile))
        log.info("certificate_reloaded", fingerprint=self.fingerprint)
        return None

    def stop_now(self) -> None:
        self.stop()
        self._server.hurry.set()

    async def open_internal(self) -> str:
        """Open a second, plain HTTP listener on loopback for workers of this machine, which then
        need not trust the certificate, and reach it if `gateway.host` is not a loopback address.
        Returns its URL."""
        listener = listen_on_loopback()
        address, port = listener.getsockname()[:2]
        loop = asyncio.get_running_loop()
        self._internal = await loop.create_server(self._server.protocol, sock=listener)
        return f"http://{in_url(address)}:{port}"

    async def _drain(self) -> None:
        # Calls that cannot be resumed end now; the next gateway accepts new ones immediately.
        if self._leadership is not None:
            self.app.standby = refuse
        await self._give_up_leadership()
        draining = asyncio.create_task(
            self.runtime.shut_down(drain_s=self._drain_s, keep=self.keeps_sessions)
        )
        hurry = asyncio.create_task(self._server.hurry.wait())
        await asyncio.wait({draining, hurry}, return_when=asyncio.FIRST_COMPLETED)
        for task in (draining, hurry):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        serving = self.runtime.serving
        serving.worker_control.is_over = True
        for connection in list(serving.connection_handler.live):
            connection.cancel()

    def _pair(self) -> ShownPair | None:
        gateway = self.settings.gateway
        if gateway.http:
            return None
        why = ensure_certificate(gateway.ssl_certfile, gateway.ssl_keyfile, gateway.host)
        if why is not None:
            log.info("certificate_made", file=str(gateway.ssl_certfile), why=why)
        shown = ShownPair()
        shown.load(gateway.ssl_certfile, gateway.ssl_keyfile)
        return shown


class _Server(UvicornServer):
    """Clients are notified before their connections close."""

    def __init__(
        self, app: GatewayApp, *, tls: ssl.SSLContext | None, drain: Callable[[], Any]
    ) -> None:
        super().__init__(app, tls=tls, proxy_headers=False, timeout_graceful_shutdown=5)
        self.ready = asyncio.Event()
        self.hurry = asyncio.Event()
        self._app = app
        self._drain = drain

    async def serve_until_stopped(self, sockets: list[socket.socket]) -> None:
        app = self._app

        def is_news(record: logging.LogRecord) -> bool:
            # The caller reports it in a sentence; uvicorn would print a traceback.
            return app.setup_error is None

        logger = logging.getLogger("uvicorn.error")
        logger.addFilter(is_news)
        try:
            await self._serve(sockets)
        except SystemExit as error:
            unknown = SetupError("The gateway could not start; the log says why.")
            raise app.setup_error or unknown from error
        finally:
            logger.removeFilter(is_news)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._drain()
        await super().shutdown(sockets)
