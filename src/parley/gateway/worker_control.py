"""The gateway's side of the control sockets: reports of workers, and orders to them."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import httpx
import msgspec
from starlette.websockets import WebSocket

from parley import __version__, logs
from parley.errors import ParleyError, ServiceUnavailable, Unauthorized
from parley.gateway.admission import Admission, names_loopback
from parley.gateway.metrics import Metrics
from parley.gateway.signals import Signal
from parley.gateway.tls import worker_tls
from parley.gateway.worker_pool import Lease, Worker, WorkerPool
from parley.installation import build_id
from parley.protocol import control
from parley.transport import Connection, ConnectionClosed, connection_of
from parley.transport.peer import Peer

ANSWER_LIMIT_S: Final = 5.0
HAND_OVER_S: Final = 30.0
"""Time for which `stop` waits for an answer that is being computed."""
GONE_EVERY_S: Final = 0.25
MESSAGE_LIMIT_BYTES: Final = 1 << 20
SLOTS_LIMIT: Final = 4096

log = logs.get(__name__)

_decoder = msgspec.json.Decoder(control.FromWorker)


@dataclass(kw_only=True, eq=False, repr=False)
class WorkerControl:
    """The control connections to all workers. `Worker.connection` is the one of a worker."""

    worker_pool: WorkerPool
    admission: Admission
    metrics: Metrics
    probe_every_s: float

    def __post_init__(self) -> None:
        self.store_id = ""
        """Name of our data folder, sent to workers."""
        self.leaving: Signal[Worker] = Signal()
        """Notified when a worker is shutting down although this gateway did not ask for it."""
        self.is_over = False
        """True once the gateway's sessions have ended: workers that disconnect are no longer
        probed."""
        self._answers: dict[str, asyncio.Future[bool]] = {}
        self._limits: dict[str, Any] | None = None
        """Session limits that were sent to workers; None: they use those that they started with."""

    async def serve(self, websocket: WebSocket) -> None:
        """The route for workers: serves one until it disconnects."""
        await websocket.accept()
        connection = connection_of(websocket)
        connection.set_message_limit(MESSAGE_LIMIT_BYTES)
        worker: Worker | None = None
        try:
            peer = Peer.of(websocket.scope, websocket.headers)
            self.admission.check_worker(peer, websocket.headers)
            hello = await self._hello(connection)
            worker = self._welcome(hello, connection)
            while self.worker_pool.knows(worker):
                message = await connection.receive()
                self._heard(worker, _decoder.decode(message.payload()))
        except ConnectionClosed:
            pass
        except ParleyError as error:
            log.warning("worker_refused", code=error.code, why=str(error))
            connection.close(error.close_code, str(error))
        except TimeoutError:
            connection.close(1008, "no hello")
        except msgspec.MsgspecError as error:
            log.warning("control_message_refused", why=str(error))
            connection.close(1008, "not a control message")
        finally:
            connection.close()
            if worker is not None and worker.connection is connection and worker.is_connected:
                if not self.is_over:
                    log.warning("control_socket_lost", worker=worker.worker_id)
                self.worker_pool.disconnected(worker)
                await self._look_after(worker)
        await asyncio.wait({connection.gone})

    async def stop_turn(self, lease: Lease) -> bool:
        """Stop the answer in progress; returns False if there is none."""
        return await self._ask(lease.worker, control.StopTurn(_new_id(), lease.lease_id))

    async def end_session(self, lease: Lease) -> bool:
        """End a session as if its client had ended it; returns False if it has already ended."""
        order = control.EndSession(lease.lease_id, "stopped", _new_id())
        return await self._ask(lease.worker, order)

    def end_quietly(self, leases: Iterable[Lease]) -> None:
        """Ask workers to end these sessions, each once, with the messages of their dialects."""
        for lease in leases:
            if not lease.is_ending:
                lease.is_ending = True
                log.info("session_quota_reached", session_id=lease.session_id, key=lease.key_id)
                self._send(lease.worker, control.EndSession(lease.lease_id, "stopped"))

    async def hand_over(self, lease: Lease) -> bool:
        """Have a session stopped between two turns or units, with everything in its log."""
        order = control.HandOver(_new_id(), lease.lease_id)
        return await self._ask(lease.worker, order, limit_s=HAND_OVER_S)

    def message_arrives(self, lease: Lease) -> None:
        """Tell a worker that a session's client is not silent."""
        self._send(lease.worker, control.MessageArrives(lease.lease_id))

    def end_doubled(self, lease: Lease) -> None:
        """Ask a worker to end a session that continues at another one."""
        self._send(lease.worker, control.EndSession(lease.lease_id, "moved"))

    def end_sessions(self, *, keep: bool = False) -> int:
        """Ask workers to end all running sessions with the messages of their dialects; returns the
        number of sessions.

        Args:
            keep: True if sessions that can be resumed at the next gateway should only lose their
                connection.
        """
        leases = self.worker_pool.leases
        for lease in leases:
            if keep and lease.resume is not None:
                lease.lost.notify()
            else:
                self._send(lease.worker, control.EndSession(lease.lease_id, "server_shutdown"))
        return len(leases)

    def announce_end(self, time_left_s: float) -> None:
        """Have workers announce the end to clients that requested such messages."""
        for worker in self.worker_pool:
            if worker.is_connected:
                self._send(worker, control.AnnounceEnd(time_left_s))

    def change_limits(self, limits: dict[str, Any]) -> None:
        """Use these limits for later sessions on all workers, including those that join later."""
        self._limits = limits
        for worker in self.worker_pool:
            if worker.is_connected:
                self._send(worker, control.ChangeLimits(limits))

    def restart(self, worker: Worker, grace_s: float) -> None:
        """Ask one worker to exit; its supervisor restarts it. Its calls move if there is another
        worker."""
        others = (other for other in self.worker_pool if other is not worker)
        self._send(worker, control.Leave(grace_s, moves=any(other.is_usable for other in others)))

    async def probe_forever(self) -> None:
        """Check if new workers, and those that could not be reached, answer at their address."""
        while True:
            await asyncio.sleep(self.probe_every_s)
            for worker in list(self.worker_pool):
                if worker.is_connected and (worker.is_unreachable or not worker.was_reached):
                    await self._probe(worker)

    async def _probe(self, worker: Worker) -> None:
        worker.was_reached = await _is_up(worker)
        if worker.was_reached and worker.is_unreachable:
            log.info("worker_reachable", worker=worker.worker_id)
            self.worker_pool.reachable(worker)
        elif not worker.was_reached and not worker.is_unreachable:
            log.error(
                "worker_unreachable",
                worker=worker.worker_id,
                url=worker.hello.url,
                hint="The worker connects to the gateway, but the gateway cannot connect to the "
                "worker's address. Check `parley worker --advertise` and the firewall.",
            )
            worker.is_unreachable = True
            self.worker_pool.changed.notify()

    async def _look_after(self, worker: Worker) -> None:
        """A worker's control socket broke: if no process listens at its address any more, its
        sessions are lost immediately, not only after `SILENCE_LIMIT_S`."""
        while not self.is_over and self.worker_pool.knows(worker) and not worker.is_connected:
            if await process_is_gone(worker.hello.url) and not worker.is_connected:
                log.warning("worker_process_gone", worker=worker.worker_id)
                self.worker_pool.gone(worker)
                return
            # A process that is being killed may still listen for a moment.
            await asyncio.sleep(GONE_EVERY_S)

    async def _hello(self, connection: Connection) -> control.Hello:
        async with asyncio.timeout(control.SILENCE_LIMIT_S):
            first = _decoder.decode((await connection.receive()).payload())
        if not isinstance(first, control.Hello):
            raise Unauthorized("The first message must be hello.")
        if not (0 < first.slots <= SLOTS_LIMIT and 0 < len(first.worker_id) <= 128):
            raise Unauthorized("worker_id must not be empty and slots must be at least 1.")
        if not _is_address(first.url):
            raise ServiceUnavailable("url must be http(s)://host:port.")
        self.admission.check_worker_url(first.url)
        try:
            worker_tls(first)
        except ValueError as error:
            raise Unauthorized("certificate must be in PEM format.") from error
        if not first.url.startswith("https") and not names_loopback(first.url):
            log.warning("worker_without_tls", worker=first.worker_id, url=first.url)
        return first

    def _welcome(self, hello: control.Hello, connection: Connection) -> Worker:
        worker = self.worker_pool.welcome(hello, connection)
        self._send(worker, control.Welcome(__version__, self.store_id))
        if self._limits is not None:
            self._send(worker, control.ChangeLimits(self._limits))
        log.info(
            "worker_joined",
            worker=hello.worker_id,
            slots=hello.slots,
            model=hello.model,
            device=hello.device,
            version=hello.version,
            build=hello.build,
        )
        if (hello.version, hello.build) != (__version__, build_id()):
            log.warning(
                "worker_build_differs",
                worker=hello.worker_id,
                version=hello.version,
                build=hello.build,
                own_version=__version__,
                own_build=build_id(),
            )
        return worker

    def _heard(self, worker: Worker, message: control.FromWorker) -> None:
        if worker.is_silent:
            log.info("worker_heard_again", worker=worker.worker_id)
        match message:
            case control.Heartbeat():
                self.metrics.heartbeat(message)
                self.worker_pool.heard(worker, message)
                if message.is_leaving and not worker.is_draining:
                    self.worker_pool.drain(worker, True)
                    self.leaving.notify(worker)
            case control.SessionPhase():
                self.worker_pool.phase(worker, message)
            case control.StopResult(request_id=request_id, stopped=stopped):
                answer = self._answers.get(request_id)
                if answer is not None and not answer.done():
                    answer.set_result(stopped)
            case control.Goodbye(reason=reason):
                log.info("worker_left", worker=worker.worker_id, reason=reason)
                self.worker_pool.left(worker)
            case control.Hello():
                raise Unauthorized("hello was sent twice.")

    async def _ask(
        self,
        worker: Worker,
        order: control.StopTurn | control.EndSession | control.HandOver,
        *,
        limit_s: float = ANSWER_LIMIT_S,
    ) -> bool:
        if not worker.is_connected:
            return False
        answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._answers[order.request_id] = answer
        try:
            self._send(worker, order)
            async with asyncio.timeout(limit_s):
                return await answer
        except TimeoutError:
            return False
        finally:
            del self._answers[order.request_id]

    def _send(self, worker: Worker, message: control.ToWorker) -> None:
        connection: Connection = worker.connection
        connection.send_text(msgspec.json.encode(message))


def _new_id() -> str:
    return secrets.token_hex(8)


def _is_address(url: str) -> bool:
    """True if a connection to it can be tried."""
    try:
        address = httpx.URL(url)
    except httpx.InvalidURL:
        return False
    has_port = address.port is None or 0 < address.port < 1 << 16
    return address.scheme in ("http", "https") and bool(address.host) and has_port


async def process_is_gone(url: str) -> bool:
    """True if the host answers that no process listens there."""
    address = httpx.URL(url)
    port = address.port or (443 if address.scheme == "https" else 80)
    try:
        async with asyncio.timeout(ANSWER_LIMIT_S):
            _, writer = await asyncio.open_connection(address.host, port)
    except ConnectionRefusedError:
        return True
    except (OSError, TimeoutError):
        return False
    writer.close()
    return False


async def _is_up(worker: Worker) -> bool:
    url = worker.hello.url.rstrip("/")
    verify = worker_tls(worker.hello) or False
    try:
        async with httpx.AsyncClient(timeout=5.0, verify=verify, trust_env=False) as http:
            response = await http.get(f"{url}/health")
    except httpx.HTTPError:
        return False
    return response.status_code == 200
