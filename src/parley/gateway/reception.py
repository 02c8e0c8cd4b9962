"""One client's connection, from the accept to the last close frame.

Checks at the door, a lobby while there is no slot, a relay while there is one. Every resource is
held by a `with`, so each way out gives everything back: the count of the address, the session id,
the ticket, the lease, the worker's socket.
"""

from __future__ import annotations

import asyncio
import secrets
from contextlib import ExitStack
from dataclasses import dataclass

from starlette.websockets import WebSocket

from parley import logs
from parley.clock import Clock
from parley.errors import (
    InferenceFailed,
    ParleyError,
    ServiceUnavailable,
    SlowClient,
    Unauthorized,
    WorkerLost,
)
from parley.gateway.access import Access, Caller
from parley.gateway.apps import Apps
from parley.gateway.dispatcher import Dispatcher
from parley.gateway.door import Door
from parley.gateway.fleet import Lease
from parley.gateway.leg import Leg, LegSettings, leg_headers
from parley.gateway.lobby import Departed, Lobby, LobbyLimits, say
from parley.gateway.metrics import Metrics
from parley.gateway.port import Port
from parley.gateway.relay import RelayEnd, relay
from parley.gateway.server_port import port_of
from parley.protocol.control import TaskType
from parley.protocol.dialects import Dialect, check_session_id
from parley.settings import LimitSettings, QueueSettings

log = logs.get(__name__)


@dataclass(frozen=True, slots=True)
class _Visit:
    """What is known of a client once it is let in."""

    dialect: Dialect
    task: TaskType
    session_id: str
    address: str
    accepted_time: float
    total_s: float | None


class Reception:
    """Serves the public sockets of all dialects."""

    def __init__(
        self,
        *,
        dispatcher: Dispatcher,
        door: Door,
        access: Access,
        apps: Apps,
        metrics: Metrics,
        clock: Clock,
        legs: LegSettings,
        limits: LimitSettings,
        queue: QueueSettings,
        closing: asyncio.Future[None],
    ) -> None:
        self._dispatcher = dispatcher
        self._door = door
        self._access = access
        self._apps = apps
        self._metrics = metrics
        self._clock = clock
        self._legs = legs
        self._limits = limits
        self._queue = queue
        self._closing = closing
        self._last_realtime_ms = 0
        self._live: set[asyncio.Task[object]] = set()

    @property
    def live(self) -> set[asyncio.Task[object]]:
        """The tasks of all connections."""
        return self._live

    async def serve(self, websocket: WebSocket, dialect: Dialect) -> None:
        """A route: one connection."""
        task = asyncio.current_task()
        assert task is not None
        self._live.add(task)
        task.add_done_callback(self._live.discard)
        # Accepted first and refused afterwards: a refused handshake would hide the close code.
        await websocket.accept()
        port = port_of(websocket)
        if dialect.name == "chat":
            port.set_message_limit(int(self._limits.chat_frame_mb * (1 << 20)))
        session_id = websocket.path_params.get("session_id") or self._make_id(dialect)
        with logs.bind_session(session_id[:64], dialect=dialect.name):
            try:
                await self._visit(port, websocket, dialect, session_id)
            except Departed as departure:
                if departure.is_error:
                    self._metrics.error(departure.why)
                log.info("client left before its session", why=departure.why)
            except ParleyError as error:
                self._metrics.error(error.code)
                log.info("client refused", code=error.code)
                say(port, dialect.refuse(error))
            except asyncio.CancelledError:
                # Cut off by a shutdown that had waited long enough.
                say(port, dialect.closed("server_shutdown", session_id=session_id))
                raise
            except Exception:
                error_id = secrets.token_hex(4)
                log.exception("connection failed", error_id=error_id)
                self._metrics.error("internal_error")
                failure = InferenceFailed("Something went wrong here.", error_id=error_id)
                say(port, dialect.refuse(failure))
            finally:
                port.close(1000)
        # The port ends by itself within its own time limit; the connection is not over before.
        await asyncio.wait({port.gone})

    async def _visit(
        self, port: Port, websocket: WebSocket, dialect: Dialect, session_id: str
    ) -> None:
        accepted_time = self._clock.time()
        self._door.check_origin(websocket.headers)
        caller = self._caller(websocket)
        check_session_id(session_id)
        task = dialect.task(session_id=session_id, mode=websocket.query_params.get("mode"))
        self._apps.check(task, dialect.name)
        if self._closing.done():
            if dialect.name == "realtime":
                say(port, dialect.closed("server_shutdown"))
                raise Departed("server_shutdown")
            raise ServiceUnavailable("The server is shutting down.")
        peer = websocket.client.host if websocket.client else None
        visit = _Visit(
            dialect=dialect,
            task=task,
            session_id=session_id,
            address=self._door.address_of(peer, websocket.headers),
            accepted_time=accepted_time,
            total_s=self._total_s(dialect, task),
        )
        with ExitStack() as held:
            held.enter_context(self._door.visit(visit.address))
            if caller.key is not None:
                one = f"key {caller.key.id}"
                held.enter_context(self._door.visit(one, limit=caller.key.max_sessions))
            held.enter_context(self._door.claim(session_id))
            await self._wait_and_talk(port, visit)

    def _caller(self, websocket: WebSocket) -> Caller:
        """Who asks for a session.

        Raises:
            Unauthorized: a bad token, or none where one is needed.
            TooManyRequests: a key that is used too often.
        """
        caller = self._access.identify(websocket.headers, websocket.query_params.get("token"))
        if self._access.needs_key and caller.kind == "anonymous":
            raise Unauthorized("A key is required.")
        self._access.count(caller)
        return caller

    async def _wait_and_talk(self, port: Port, visit: _Visit) -> None:
        counted_s = visit.total_s if self._limits.realtime_counts_queue else None
        lobby = Lobby(
            port,
            visit.dialect,
            session_id=visit.session_id,
            dispatcher=self._dispatcher,
            clock=self._clock,
            limits=LobbyLimits(
                update_every_s=self._queue.update_every_s,
                first_message_s=self._limits.chat_first_message_s,
                total_s=counted_s,
            ),
            closing=self._closing,
        )
        async with lobby:
            if visit.dialect.name == "chat":
                await lobby.first_request()
            ticket = self._dispatcher.submit(
                visit.task,
                session_id=visit.session_id,
                address=visit.address,
                owner=asyncio.current_task(),
            )
            try:
                while True:
                    await lobby.until_leased(ticket)
                    lease = ticket.lease
                    assert lease is not None
                    waited_s = self._clock.monotonic() - ticket.enqueued_at
                    async with lease, self._leg(lease, visit, waited_s) as leg:
                        if await lobby.attend(leg.open()) is not None:
                            await self._talk(port, leg, lobby, visit, waited_s)
                            return
                        self._dispatcher.worker_failed(ticket)
            finally:
                self._dispatcher.cancel(ticket)

    async def _talk(
        self, port: Port, leg: Leg, lobby: Lobby, visit: _Visit, waited_s: float
    ) -> None:
        assert leg.port is not None
        lobby.hand_over()
        for message in (lobby.request, lobby.kept):
            if message is not None:
                leg.port.pass_on(message)
        lobby.request = lobby.kept = None
        port.forget_large()
        self._metrics.session(visit.task, waited_s)
        worker_id = leg.lease.worker.worker_id
        began_at = self._clock.monotonic()
        log.info("session began", worker=worker_id, waited_s=round(waited_s, 1))
        end: RelayEnd | None = None
        try:
            end = await relay(
                port, leg.port, lost=leg.lost, up=self._metrics.up, down=self._metrics.down
            )
        finally:
            log.info(
                "session ended",
                worker=worker_id,
                lasted_s=round(self._clock.monotonic() - began_at, 1),
                by=end.who if end else "gateway",
                code=end.closure.code if end else None,
            )
        self._finish(port, leg, visit, end)

    def _finish(self, port: Port, leg: Leg, visit: _Visit, end: RelayEnd) -> None:
        assert leg.port is not None
        closure = end.closure
        if end.who == "client":
            if closure.is_slow:
                self._metrics.error(SlowClient.code)
            leg.port.close(closure.code if closure.is_clean else 1001, closure.reason)
        elif end.who == "worker" and closure.is_clean:
            port.close(closure.code, closure.reason)
        else:
            self._metrics.error(WorkerLost.code)
            say(port, visit.dialect.answer(WorkerLost()))

    def _leg(self, lease: Lease, visit: _Visit, waited_s: float) -> Leg:
        counts_queue = self._limits.realtime_counts_queue
        headers = leg_headers(
            lease,
            secret=self._legs.secret,
            accepted_time=visit.accepted_time if counts_queue else self._clock.time(),
            queue_wait_s=waited_s,
        )
        return Leg(lease, self._legs, dialect=visit.dialect.name, headers=headers)

    def _total_s(self, dialect: Dialect, task: TaskType) -> float | None:
        if dialect.name != "realtime":
            return None
        if task == "audio_duplex":
            return self._limits.realtime_audio_s
        return self._limits.realtime_video_s

    def _make_id(self, dialect: Dialect) -> str:
        if dialect.name == "realtime":
            # `rt_{timestamp_ms}` is the published form; the number is bumped until it is new.
            self._last_realtime_ms = max(self._last_realtime_ms + 1, int(self._clock.time() * 1000))
            return f"rt_{self._last_realtime_ms}"
        return f"{dialect.name}_{secrets.token_hex(8)}"
