"""The gateway's side of the control sockets: what workers tell, and what we ask of them."""

from __future__ import annotations

import asyncio
import functools
import secrets
import ssl
from typing import Final

import httpx
import msgspec
from starlette.websockets import WebSocket

from parley import __version__, logs
from parley.errors import ParleyError, ServiceUnavailable, Unauthorized
from parley.gateway.door import Door
from parley.gateway.fleet import Fleet, Worker
from parley.gateway.metrics import Metrics
from parley.gateway.port import Port, PortClosed
from parley.gateway.server_port import port_of
from parley.protocol.control import (
    SILENCE_LIMIT_S,
    Beat,
    EndSession,
    FromWorker,
    Goodbye,
    Hello,
    Leave,
    SessionPhase,
    Stopped,
    StopTurn,
    ToWorker,
    Welcome,
)

ANSWER_LIMIT_S: Final = 5.0
PROBE_EVERY_S: Final = 2.0
MESSAGE_LIMIT_BYTES: Final = 1 << 20
SLOTS_LIMIT: Final = 4096

log = logs.get(__name__)

_decoder = msgspec.json.Decoder(FromWorker)


class ControlDesk:
    """Talks to all workers. `Worker.connection` is the port of its control socket."""

    def __init__(
        self,
        *,
        fleet: Fleet,
        door: Door,
        metrics: Metrics,
        probe_every_s: float = PROBE_EVERY_S,
        probe_tls: bool = True,
    ) -> None:
        self._fleet = fleet
        self._door = door
        self._metrics = metrics
        self._probe_every_s = probe_every_s
        self._probe_tls = probe_tls
        self._answers: dict[str, asyncio.Future[bool]] = {}

    async def serve(self, websocket: WebSocket) -> None:
        """The route: one worker, for as long as it stays."""
        await websocket.accept()
        port = port_of(websocket)
        port.set_message_limit(MESSAGE_LIMIT_BYTES)
        worker: Worker | None = None
        try:
            self._door.check_worker(
                websocket.client.host if websocket.client else None, websocket.headers
            )
            worker = self._welcome(await self._hello(port), port)
            while self._fleet.knows(worker):
                self._heard(worker, _decoder.decode((await port.receive()).payload()))
        except PortClosed:
            pass
        except ParleyError as error:
            log.warning("worker refused", code=error.code, why=str(error))
            port.close(error.close_code, str(error))
        except TimeoutError:
            port.close(1008, "no hello")
        except msgspec.MsgspecError as error:
            log.warning("worker spoke nonsense", why=str(error))
            port.close(1008, "not a control message")
        finally:
            port.close()
            if worker is not None and worker.connection is port and worker.is_connected:
                log.warning("control socket lost", worker=worker.worker_id)
                self._fleet.disconnected(worker)
        await asyncio.wait({port.gone})

    async def stop(self, session_id: str, scope: str) -> bool:
        """Ask whichever worker runs `session_id` to stop it; whether one did."""
        for lease in self._fleet.leases:
            if lease.session_id == session_id and lease.worker.is_connected:
                return await self._stop(lease.worker, session_id, scope)
        return False

    def end_sessions(self) -> int:
        """Ask for the end of every running session in its dialect's words; how many there are."""
        leases = self._fleet.leases
        for lease in leases:
            self._send(lease.worker, EndSession(lease.session_id, "server_shutdown"))
        return len(leases)

    def leave(self, grace_s: float) -> None:
        """Ask all workers to finish."""
        for worker in self._fleet:
            self._send(worker, Leave(grace_s))

    def restart(self, worker: Worker, grace_s: float) -> None:
        """Ask one worker to finish; whoever started it starts it again."""
        self._send(worker, Leave(grace_s))

    async def probe_forever(self) -> None:
        """Take workers back that could not be reached, once they answer for themselves."""
        verify = _trusted() if self._probe_tls else False
        async with httpx.AsyncClient(timeout=5.0, verify=verify, trust_env=False) as http:
            while True:
                await asyncio.sleep(self._probe_every_s)
                for worker in self._fleet:
                    if worker.is_unreachable and worker.is_connected and await _is_up(http, worker):
                        log.info("worker reachable again", worker=worker.worker_id)
                        self._fleet.reachable(worker)

    async def _hello(self, port: Port) -> Hello:
        async with asyncio.timeout(SILENCE_LIMIT_S):
            first = _decoder.decode((await port.receive()).payload())
        if not isinstance(first, Hello):
            raise Unauthorized("The first message must be hello.")
        if not (0 < first.slots <= SLOTS_LIMIT and 0 < len(first.worker_id) <= 128):
            raise Unauthorized("A worker has a name and at least one slot.")
        if not first.url.startswith(("http://", "https://")):
            raise ServiceUnavailable("A worker's url begins with http:// or https://.")
        self._door.check_worker_url(first.url)
        return first

    def _welcome(self, hello: Hello, port: Port) -> Worker:
        worker = self._fleet.welcome(hello, port)
        self._send(worker, Welcome(__version__))
        log.info(
            "worker joined",
            worker=hello.worker_id,
            slots=hello.slots,
            model=hello.model,
            device=hello.device,
        )
        return worker

    def _heard(self, worker: Worker, message: FromWorker) -> None:
        match message:
            case Beat():
                self._metrics.beat(message)
                self._fleet.heard(worker, message)
            case SessionPhase():
                self._fleet.phase(worker, message)
            case Stopped(request_id=request_id, found=found):
                answer = self._answers.get(request_id)
                if answer is not None and not answer.done():
                    answer.set_result(found)
            case Goodbye(reason=reason):
                log.info("worker left", worker=worker.worker_id, reason=reason)
                self._fleet.left(worker)
            case Hello():
                raise Unauthorized("Hello is said once.")

    async def _stop(self, worker: Worker, session_id: str, scope: str) -> bool:
        request_id = secrets.token_hex(8)
        answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._answers[request_id] = answer
        try:
            self._send(
                worker,
                StopTurn(request_id, session_id, "turn" if scope == "turn" else "session"),
            )
            async with asyncio.timeout(ANSWER_LIMIT_S):
                return await answer
        except TimeoutError:
            return False
        finally:
            del self._answers[request_id]

    def _send(self, worker: Worker, message: ToWorker) -> None:
        port: Port = worker.connection
        port.send_text(msgspec.json.encode(message))


@functools.cache
def _trusted() -> ssl.SSLContext:
    """The authorities we believe; reading them takes 30 ms of processor time."""
    return httpx.create_ssl_context(trust_env=False)


async def _is_up(http: httpx.AsyncClient, worker: Worker) -> bool:
    try:
        response = await http.get(f"{worker.hello.url.rstrip('/')}/health")
    except httpx.HTTPError:
        return False
    return response.status_code == 200
