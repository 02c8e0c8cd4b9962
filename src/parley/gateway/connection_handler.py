"""One client's connection, from the handshake to the last close frame.

Admission first, then a queue waiter until there is a slot, then a relay. Every resource is held by
a `with` block, so each exit releases all of them: the count of the address, the session id, the
ticket, the lease, the worker's socket.
"""

from __future__ import annotations

import asyncio
import secrets
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

from starlette.responses import JSONResponse
from starlette.websockets import WebSocket

from parley import logs
from parley.dialects.base import Dialect, SessionContext, UpgradeRequest
from parley.dialects.openai_session import SETTINGS_PARAMETER
from parley.dialects.registry import DialectRegistry
from parley.errors import InferenceFailed, ParleyError, ServiceUnavailable
from parley.gateway.acquisition import Acquisition, Client, Departed, TicketCancelled
from parley.gateway.admission import Admission
from parley.gateway.apps import Apps
from parley.gateway.authenticator import Authenticator, Caller, caller_word
from parley.gateway.dispatcher import Dispatcher
from parley.gateway.metrics import Metrics
from parley.gateway.queue_waiter import SHUTTING_DOWN, QueueWaiter, send_answer
from parley.gateway.resumption import Resumption, wants_resume
from parley.gateway.session_relay import SessionRelay
from parley.protocol.codec import check_session_id
from parley.protocol.kinds import Kind
from parley.protocol.resume import AGAIN_CODE, TICKET_QUERY
from parley.settings import LimitSettings, QueueSettings
from parley.transport import Connection, connection_of
from parley.transport.peer import Peer

RECONNECT_S: Final = 2.0
"""Time for which a new connection waits for a session id whose session is ending."""

log = logs.get(__name__)


@dataclass(kw_only=True, eq=False, repr=False)
class ConnectionHandler:
    dispatcher: Dispatcher
    admission: Admission
    authenticator: Authenticator
    apps: Apps
    metrics: Metrics
    acquisition: Acquisition
    relay: SessionRelay
    resumption: Resumption
    dialects: DialectRegistry
    limits: LimitSettings
    queue: QueueSettings
    closing: asyncio.Future[bool]

    def __post_init__(self) -> None:
        self.is_draining = False
        """True while the server shuts down and sessions still run."""
        self.live: set[asyncio.Task[object]] = set()

    async def serve(self, websocket: WebSocket, path: str, caller: Caller | ParleyError) -> None:
        """Serve one connection.

        Args:
            path: as dialects name it.
            caller: who opened it, or why it is refused.
        """
        task = asyncio.current_task()
        assert task is not None
        self.live.add(task)
        task.add_done_callback(self.live.discard)
        newcomer = self._newcomer(websocket, path, caller)
        dialect, request = newcomer.dialect, newcomer.request
        with logs.bind_session(dialect.session_id[:64], dialect=dialect.name):
            if not await self._may_upgrade(newcomer):
                return
            # Other dialects are accepted first and refused afterwards: a refused handshake would
            # hide the close code.
            offered = dialect.subprotocol in request.subprotocols
            await websocket.accept(dialect.subprotocol if offered else None)
            connection = connection_of(websocket)
            if newcomer.kind is Kind.CHAT:
                connection.set_message_limit(int(self.limits.chat_frame_mb * (1 << 20)))
            try:
                await self._visit(connection, newcomer)
            except Departed as departure:
                if departure.is_error:
                    self.metrics.error(departure.why)
                log.info("client_left_early", why=departure.why)
            except ParleyError as error:
                self.metrics.error(error.code)
                log.info("client_refused", code=error.code)
                send_answer(connection, newcomer.dialect, newcomer.dialect.refuse(error))
            except asyncio.CancelledError:
                # Cancelled by a shutdown at the end of its grace period.
                spoken = newcomer.dialect
                send_answer(connection, spoken, spoken.closed("server_shutdown"))
                raise
            except Exception:
                error_id = secrets.token_hex(4)
                log.exception("connection_failed", error_id=error_id)
                self.metrics.error("internal_error")
                failure = InferenceFailed("Something went wrong here.", error_id=error_id)
                spoken = newcomer.dialect
                send_answer(connection, spoken, spoken.refuse(failure))
            finally:
                connection.close(1000)
        # Closing has its own time limit, and the connection is not over before.
        await asyncio.wait({connection.gone})

    def _newcomer(self, websocket: WebSocket, path: str, caller: Caller | ParleyError) -> _Newcomer:
        request = UpgradeRequest(
            path=path,
            session_id=websocket.path_params.get("session_id", ""),
            query=dict(websocket.query_params),
            headers=dict(websocket.headers),
            subprotocols=tuple(websocket.scope.get("subprotocols", ())),
        )
        spoken, clock = self.dialects.choose(request), self.dispatcher.clock
        kind: Kind | ParleyError
        try:
            kind = spoken.kind_of(request)
        except ParleyError as error:
            kind = error
        query = request.query
        context = SessionContext(
            session_id=request.session_id or spoken.new_session_id(clock.time()),
            kind=kind if isinstance(kind, Kind) else spoken.kind,
            extensions=request.wants_extensions,
            parameters={name: query[name] for name in spoken.parameters if name in query},
            clock=clock,
        )
        return _Newcomer(websocket, request, spoken(context), kind, caller)

    async def _may_upgrade(self, newcomer: _Newcomer) -> bool:
        """True if the handshake may continue. If the dialect asks for it, a new client that cannot
        be served is refused here with an HTTP status."""
        dialect = newcomer.dialect
        if not dialect.refuses_by_status:
            return True
        try:
            client = self._client(newcomer)
            if self._is_closed_to(newcomer.request):
                raise ServiceUnavailable(SHUTTING_DOWN)
            if not wants_resume(newcomer.request):
                self.dispatcher.check(client.kind)
        except ParleyError as error:
            self.metrics.error(error.code)
            log.info("client_refused", code=error.code)
            status, body = dialect.refuse_upgrade(error)
            wait_s = error.retry_after_s
            headers = None if wait_s is None else {"Retry-After": str(wait_s)}
            await newcomer.websocket.send_denial_response(JSONResponse(body, status, headers))
            return False
        newcomer.client = client
        return True

    def _is_closed_to(self, request: UpgradeRequest) -> bool:
        """True if the client is refused because the server shuts down. While sessions still run,
        clients that were cut off may resume theirs."""
        return self.closing.done() and not (self.is_draining and wants_resume(request))

    async def _visit(self, connection: Connection, newcomer: _Newcomer) -> None:
        client = newcomer.client or self._client(newcomer)
        dialect = newcomer.dialect
        if self._is_closed_to(newcomer.request):
            why = ServiceUnavailable(SHUTTING_DOWN)
            waited = self.closing.result() and TICKET_QUERY in newcomer.request.query
            if waited or wants_resume(newcomer.request):
                # The next gateway may have its session or its place in the queue.
                connection.close(AGAIN_CODE, "try again")
                raise Departed(why.code)
            send_answer(connection, dialect, dialect.shutting_down(why))
            raise Departed(why.code, is_error=True)
        if (old := self.dispatcher.queue.find(client.waited_as)) is not None:
            # The client has lost that connection, and we have not noticed yet.
            self.dispatcher.cut_off(old)
        with ExitStack() as held:
            returns = wants_resume(newcomer.request)
            held.enter_context(self.admission.visit(client.address, returns=returns))
            if isinstance(newcomer.caller, Caller) and newcomer.caller.key is not None:
                key = newcomer.caller.key
                named, most = f"key {key.id}", key.max_sessions
                held.enter_context(self.admission.visit(named, limit=most, returns=returns))
            if returns:
                await self.resumption.serve(connection, client, dialect, held)
                return
            # A client that comes back immediately may find its old session still being closed.
            await self.admission.wait_until_free(client.session_id, RECONNECT_S)
            held.enter_context(self.admission.claim(client.session_id))
            await self._wait_and_talk(connection, client, newcomer, held)

    def _client(self, newcomer: _Newcomer) -> Client:
        """Identity of an admitted client.

        Raises:
            ParleyError: it is not.
        """
        websocket, dialect, caller = newcomer.websocket, newcomer.dialect, newcomer.caller
        peer = Peer.of(websocket.scope, websocket.headers)
        address = self.admission.address_of(peer.address, websocket.headers)
        if isinstance(caller, ParleyError):
            raise caller
        self.authenticator.count(caller, address)
        parameters = dict(dialect.context.parameters)
        if dialect.takes_settings:
            token = newcomer.request.query.get("token")
            settings = self.authenticator.settings_of(websocket.headers, token)
            parameters |= {SETTINGS_PARAMETER: settings} if settings else {}
        check_session_id(dialect.session_id)
        if not isinstance(newcomer.kind, Kind):
            raise newcomer.kind
        self.apps.check(newcomer.kind, dialect.app_id)
        return Client(
            kind=newcomer.kind,
            dialect=dialect.name,
            session_id=dialect.session_id,
            address=address,
            key_id=caller.key.id if caller.key else None,
            caller=caller_word(
                caller, is_admin=self.authenticator.role_of(peer, websocket.headers) == "admin"
            ),
            extensions=dialect.extensions,
            parameters=parameters,
            waited_as=newcomer.request.query.get(TICKET_QUERY, ""),
        )

    async def _wait_and_talk(
        self, connection: Connection, client: Client, newcomer: _Newcomer, held: ExitStack
    ) -> None:
        dialect = newcomer.dialect
        waiter = QueueWaiter(
            connection,
            dialect,
            dialects=self.dialects,
            dispatcher=self.dispatcher,
            limits=self.limits,
            update_every_s=self.queue.update_every_s,
            total_s=self._total_s(dialect, client.kind),
            closing=self.closing,
        )
        async with waiter:
            if dialect.asks_first:
                await waiter.first_request()
            try:
                async with self.acquisition.acquire(client, waiter) as upstream:
                    await waiter.hand_over(upstream.connection)
                    await self.relay.run(connection, upstream, waiter.dialect, held)
            except TicketCancelled:
                waiter.cancelled()
            finally:
                newcomer.dialect = waiter.dialect

    def _total_s(self, dialect: Dialect, kind: Kind) -> float | None:
        """Limit of waiting and session together; None if the dialect counts from the lease."""
        is_call = dialect.is_timed_call and kind.is_duplex
        if not (is_call and self.limits.realtime_counts_queue):
            return None
        limits = self.limits
        return limits.realtime_audio_s if kind is Kind.AUDIO_DUPLEX else limits.realtime_video_s


@dataclass(slots=True, eq=False)
class _Newcomer:
    """A client that has not been admitted yet.

    Args:
        dialect: as far as it is known from what the client has sent.
        kind: of its session, or the reason why it cannot have one.
        caller: who it is, or the reason why it is refused.
        client: its identity, once that has been checked.
    """

    websocket: WebSocket
    request: UpgradeRequest
    dialect: Dialect
    kind: Kind | ParleyError
    caller: Caller | ParleyError
    client: Client | None = None
